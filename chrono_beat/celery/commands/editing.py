"""``chrono jobs create`` and ``chrono jobs update``: the same options; both show what they will do, and may leave it at that."""
from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import click

from chrono_beat.celery.commands.options import (
    definition_options,
    if_version_option,
    job_argument,
    machine_option,
    said_of,
    tenant_option,
)
from chrono_beat.celery.commands.output import (
    ACTOR,
    IN_THE_WAY,
    as_facts,
    as_json,
    command,
    fail,
    going_on,
    local,
    root,
    table,
    tell,
)
from chrono_beat.celery.commands.shown import facade, facts, find, next_run
from chrono_beat.core.definition import JobDefinition
from chrono_beat.core.errors import InvalidInput, Problem

RUNS = 5
CELL_CHARACTERS = 60
UNDONE_BY = {
    "decorator": "the job comes from @scheduled in the code: the next chrono sync makes it so again. Change it there",
    "import": "the job was imported: the next import brings back what stands there. Change it there, or end the imports",
}
"""Who undoes a change, by where the job comes from."""

dry_option = click.option("--dry-run", is_flag=True, help="Show it and write nothing.")


@click.command()
@click.argument("name")
@tenant_option
@definition_options
@dry_option
@machine_option
@click.pass_context
@command
def create(
    context: click.Context, name: str, tenant: str | None, dry_run: bool, machine: bool, **given: Any,
) -> None:
    """Create a job.

    Give NAME, a task or a URL, and exactly one of --cron, --every, --at and --crontab.
    """
    functions = facade(context)
    definition = JobDefinition(name=name, tenant=tenant, **said_of(given))
    found = functions.preview(definition, count=RUNS, operator=True)
    told: dict[str, Any] = {"words": found.words, "runs": found.runs, "notes": found.notes, "saved": not dry_run}
    job = functions.rehearse(definition) if dry_run else functions.create_from(definition, actor=ACTOR)
    told |= {} if dry_run else facts(functions, job)
    warnings = _warnings(context, functions.definition_of(job))
    if machine:
        click.echo(as_json({**told, "warnings": [as_facts(problem) for problem in warnings]}))
        return
    tell("Warning", warnings)
    click.echo(found.words)
    for note in found.notes:
        click.echo(f"note: {note}")
    if not dry_run:
        click.echo(f"created {job}, next run {next_run(job)}")
        return
    for run in found.runs:
        click.echo(local(run, found.timezone))
    click.echo("Nothing was written.")


@click.command()
@job_argument
@tenant_option
@click.option("--rename", default=None, metavar="NAME", help="Another name.")
@definition_options
@if_version_option
@dry_option
@machine_option
@click.pass_context
@command
def update(
    context: click.Context, name: str, tenant: str | None, rename: str | None, if_version: int | None, dry_run: bool,
    machine: bool, **given: Any,
) -> None:
    """Change a job, and show first what that changes.

    What is not given stays. The word none empties an option that may be empty. Nothing is written where somebody else
    changed the job between what is shown and the change.
    """
    functions = facade(context)
    job = find(context, tenant, name)
    if if_version is not None and job.version != if_version:
        fail(f"{job} is at version {job.version}, not {if_version}: it was changed meanwhile", IN_THE_WAY)
    changes = said_of(given, functions.definition_of(job)) | ({} if rename is None else {"name": rename})
    if not changes:
        raise InvalidInput(Problem("options", "give at least one thing to change"))
    edit = functions.preview_edit(job, changes, count=RUNS, operator=True)
    if not machine:
        _show(job, edit)
    before, running = job.version, ()
    if not dry_run:
        done = functions.change(job, "update", ACTOR, changes, before)
        job, running = done.job, done.running
    warnings = [*_undone(context, job.source, changes), *_warnings(context, edit.definition)]
    if machine:
        click.echo(as_json({
            "saved": not dry_run, "changed": {column: list(values) for column, values in edit.changed.items()},
            "runs_before": [] if edit.before is None else edit.before.runs, "runs_after": edit.after.runs,
            "soon": [found._asdict() for found in edit.soon], "still_running": [run._asdict() for run in running],
            "warnings": [as_facts(problem) for problem in warnings], "job": facts(functions, job),
        }))
        return
    tell("Warning", warnings)
    if dry_run:
        click.echo("Nothing was written.")
        return
    click.echo(f"updated {job} to version {job.version}, next run {next_run(job)}" if job.version != before
               else f"{job} is so already")
    going_on(running)


def _show(job: Any, edit: Any) -> None:
    """Write what an edit changes, the next runs before and after it, and what becomes of what is due within a minute."""
    if not edit.changed:
        return
    table(("changes", "from", "to"), [
        (column, _cell(before), _cell(after)) for column, (before, after) in edit.changed.items()])
    before = () if edit.before is None else edit.before.runs
    zone_before = edit.after.timezone if edit.before is None else edit.before.timezone
    if tuple(before) != tuple(edit.after.runs) or zone_before != edit.after.timezone:
        click.echo()
        table(("next runs so far", "next runs then"), [
            (local(before[place], zone_before) if place < len(before) else "",
             local(edit.after.runs[place], edit.after.timezone) if place < len(edit.after.runs) else "")
            for place in range(max(len(before), len(edit.after.runs)))])
    for soon in edit.soon:
        click.echo(f"what is due {local(soon.due_at, edit.after.timezone)} {soon.fate}")
    for note in edit.after.notes:
        click.echo(f"note: {note}")
    click.echo()


def _cell(value: Any) -> str:
    text = "none" if value in (None, "") else str(value)
    return text if len(text) <= CELL_CHARACTERS else text[:CELL_CHARACTERS] + "…"


def _undone(context: click.Context, source: str, changes: Mapping[str, Any]) -> list[Problem]:
    """Say who undoes these changes of a job; an import brings back only what the other scheduler knows of."""
    if source not in UNDONE_BY or source == "import" and not changes.keys() & {*root(context).importing().TAKEN}:
        return []
    return [Problem("source", UNDONE_BY[source], "undone")]


def _warnings(context: click.Context, definition: JobDefinition) -> list[Problem]:
    """Return what is allowed but likely to hurt, and a task that this app does not know: another one's worker may."""
    found = list(facade(context).warnings_for(definition))
    if definition.target_kind == "task" and (unknown := unknown_task(context.obj.app, definition.task)):
        found.append(Problem("task", unknown, "unknown"))
    return found


def unknown_task(app: Any, task: str) -> str:
    """Say that an app does not know a task, and which one may be meant; "" where it knows it."""
    app.finalize()
    if task in app.tasks:
        return ""
    near = difflib.get_close_matches(task, [name for name in app.tasks if not name.startswith("celery.")], n=1)
    return f"this app has no task {task}" + (
        f"; did you mean {near[0]}?" if near else ", so a worker of another one has to know it")
