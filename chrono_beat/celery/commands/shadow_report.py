"""``chrono shadow report``: what the old beat really sent, beside what the shadows of its entries would have sent."""
from __future__ import annotations

from typing import Any

import click

from chrono_beat.celery.commands import importing
from chrono_beat.celery.commands.options import machine_option, seconds, tenants_option
from chrono_beat.celery.commands.output import TROUBLE, as_json, command, plain, root, table
from chrono_beat.celery.commands.shown import known
from chrono_beat.core import ids
from chrono_beat.core.errors import InvalidInput, Problem

SHOWN = 3
NOT_WATCHED = ("nothing was watched: set OBSERVE_BEAT in CHRONO_BEAT to True, see that its app has ChronoBeat(app), and restart "
               "the old beat")

_SOURCES = {"beat_schedule": "beat-schedule", "django_celery_beat": "django-celery-beat", "redbeat": "redbeat"}
"""Names of the import's sources by how their origins begin."""


@click.command()
@click.option("--since", default="7d", show_default=True, metavar="LENGTH", help="How far to look back: 90s, 5m, 2h, 1d.")
@click.option("--tolerance", default=None, metavar="LENGTH",
              help="How far two fires of one occurrence may be apart; by default half the shortest gap, a minute at most.")
@tenants_option
@machine_option
@click.pass_context
@command
def report(context: click.Context, since: str, tolerance: str | None, tenant: str | None, machine: bool) -> None:
    """Compare what the old beat sent with what shadows fired.

    Needs OBSERVE_BEAT. Exit status 1 where an entry differs, also where that is known, or nothing was watched.
    """
    composition = root(context)
    back, apart = seconds(since, "since"), seconds(tolerance, "tolerance")
    now = ids.from_us(composition.now_us())
    try:
        begin = now - back if back else now
    except OverflowError:
        raise InvalidInput(Problem("since", "is too long")) from None
    found = composition.shadowing().report(
        since=begin, tenant=known(context, tenant), tolerance=apart,
        known=lambda source: _differences(context, composition, source))
    if machine:
        click.echo(as_json({
            "watches": [{"start": span.start, "end": span.end} for span in found.watches], "schedulers": found.schedulers,
            "entries": [_facts(line) for line in found.lines]}))
    elif found.watches:
        _show(found)
    if not found.watches:
        click.echo(f"Error: {NOT_WATCHED}", err=True)
    if not found.watches or any(line.differs for line in found.lines):
        raise click.exceptions.Exit(TROUBLE)


def _differences(context: click.Context, composition: Any, source: str) -> dict[str, tuple[str, ...]]:
    """Return where the meaning of a source's entries differs, by origin."""
    if source not in _SOURCES:
        return {}
    try:
        _, entries = importing.read(context, composition, _SOURCES[source], {"timezone": None})
        return {entry.origin: entry.warnings for entry in entries}
    except InvalidInput:
        return {}                                       # it cannot be read any more, and was imported before


def _facts(line: Any) -> dict[str, Any]:
    facts = {**line._asdict(), **line.seen._asdict(), "differs": line.differs}
    del facts["seen"]
    return facts


def _length(seconds: float) -> str:
    for unit, one in (("h", 3_600), ("min", 60)):
        if seconds >= one:
            return f"{seconds / one:,.1f} {unit}"
    return f"{seconds:.0f} s"


def _show(found: Any) -> None:
    spans = found.watches
    length = sum((span.end - span.start).total_seconds() for span in spans)
    click.echo(f"{', '.join(found.schedulers)} was watched for {_length(length)} in {len(spans):,} "
               f"{'span' if len(spans) == 1 else 'spans'}, {plain(spans[0].start)} to {plain(spans[-1].end)}")
    table(("entry", "state", "old", "shadow", "matched", "only old", "only shadow", "furthest", ""), (
        (line.job or line.entry, line.state, line.seen.old, line.seen.shadow, line.seen.matched, len(line.seen.only_old),
         len(line.seen.only_shadow), f"{line.seen.furthest_seconds:.1f} s" if line.seen.matched else "",
         "differs" if line.differs else "" if line.seen.matched else "nothing to compare") for line in found.lines))
    for line in found.lines:
        for what, instants in (("only old", line.seen.only_old), ("only shadow", line.seen.only_shadow),
                               ("sent by both", line.sent_twice), ("sent by nobody", line.sent_by_nobody)):
            if instants:
                more = f" and {len(instants) - SHOWN:,} more" if len(instants) > SHOWN else ""
                click.echo(f"{line.job or line.entry}: {what}: {', '.join(map(plain, instants[:SHOWN]))}{more}")
        for why in line.why:
            click.echo(f"{line.job or line.entry}: {why}")
    differ = sum(line.differs for line in found.lines)
    agree = sum(bool(line.seen.matched) and not line.differs for line in found.lines)
    click.echo(f"{agree:,} of {len(found.lines):,} agree, {differ:,} differ, "
               f"{len(found.lines) - agree - differ:,} have nothing to compare yet")
