"""``chrono shadow``: what jobs would fire beside what Celery fires, without sending anything."""
from __future__ import annotations

from datetime import timedelta

import click
from celery.schedules import maybe_schedule

from chrono_beat.celery.commands import shadow_report
from chrono_beat.celery.commands.importing import app_zone, beat_entries
from chrono_beat.celery.commands.options import Range, machine_option
from chrono_beat.celery.commands.output import as_json, command, root
from chrono_beat.core import ids, imports
from chrono_beat.core.shadow import MAX_FIRES, celery_fires, compare, our_fires

SHOWN = 3


@click.group(invoke_without_command=True)
@click.option("--for", "hours", default=24.0, show_default=True, type=Range(0.1, 8_784), metavar="HOURS",
              help="How far to look from now on; nobody waits for it.")
@click.option("--tolerance", default=1.0, show_default=True, type=Range(0, 3_600), metavar="SECONDS",
              help="Two fires that are no further apart agree.")
@click.option("--timezone", default=None, help="IANA zone of the entries; default: the Celery app's.")
@machine_option
@click.pass_context
@command
def shadow(context: click.Context, hours: float, tolerance: float, timezone: str | None, machine: bool) -> None:
    """Compare beat_schedule, as jobs, with Celery's own clock.

    What its schedules would fire is held against what jobs would. Nothing is sent. Both sides run on a virtual clock.
    Exit status 1 where an entry differs or cannot be taken over.
    """
    if context.invoked_subcommand:
        return
    app = context.obj.app
    start = ids.from_us(root(context).now_us())
    given = beat_entries(app)
    lines = []
    for found in imports.from_beat_schedule(given, timezone or app_zone(app)):
        if found.definition is None:
            lines.append({"name": found.name, "problem": found.problem})
            continue
        theirs_of = given[found.name]["schedule"]
        if not hasattr(theirs_of, "is_due"):
            theirs_of = maybe_schedule(theirs_of, app=app)
        end = start + timedelta(hours=hours)
        theirs, ours = celery_fires(theirs_of, app, start, end), our_fires(found.definition, start, end)
        full = [side[-1] for side in (theirs, ours) if len(side) >= MAX_FIRES]
        last = min(full, default=end)
        seen = compare([at for at in ours if at <= last], [at for at in theirs if at <= last],
                       timedelta(seconds=tolerance))
        lines.append({"name": found.name, **seen._asdict()})
    differ = [line for line in lines if line.get("problem") or line.get("missing") or line.get("extra")]
    if machine:
        click.echo(as_json(lines))
    else:
        for line in lines:
            click.echo(_said(line))
        click.echo(f"{len(lines) - len(differ):,} of {len(lines):,} agree" if lines else "beat_schedule has no entries")
    if differ:
        raise click.exceptions.Exit(1)


shadow.add_command(shadow_report.report)


def _said(line: dict[str, object]) -> str:
    if "problem" in line:
        return f"{line['name']}: cannot be taken over: {line['problem']}"
    text = f"{line['name']}: {line['agreed']} agree, at most {line['offset_seconds']:.3f} s apart"
    for what in ("missing", "extra"):
        instants = line[what]
        assert isinstance(instants, tuple)
        if instants:
            shown = ", ".join(f"{at:%Y-%m-%d %H:%M:%S}Z" for at in instants[:SHOWN])
            text += f"; {len(instants)} {what}: {shown}"
    return text
