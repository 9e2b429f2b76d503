"""``chrono jobs …``: list, show, history, preview, go-live, pause, resume, trigger, backfill, delete; the others are beside."""
from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from chrono_beat.celery.commands import completion, progress
from chrono_beat.celery.commands.editing import create, update
from chrono_beat.celery.commands.options import (
    all_of,
    job_argument,
    limit_option,
    machine_option,
    missed_option,
    seconds,
    tenant_option,
    tenants_option,
)
from chrono_beat.celery.commands.output import ACTOR, TROUBLE, answer, as_json, command, lines, local, root, table
from chrono_beat.celery.commands.shown import (
    facade,
    facts,
    find,
    first_line,
    for_people,
    found_of,
    meaning,
    next_run,
    schedule_text,
    state,
    target_text,
    tenant_of,
)
from chrono_beat.core.errors import Conflict, InvalidInput, Problem

STEP = 1_000
"""Instants of a backfill that are written at once."""

MOST_FILLED = 1_000_000


@click.group()
def jobs() -> None:
    """Look after jobs."""


jobs.add_command(create)
jobs.add_command(update)

one_job = all_of(job_argument, tenant_option, machine_option)


@jobs.command("list")
@tenants_option
@click.option("--prefix", default="", help="Names that begin with that.")
@click.option("--task", default=None, help="Only those that run this task.")
@click.option("--paused/--not-paused", default=None, help="Only those that are, or are not.")
@click.option("--troubled", is_flag=True, help="Only those that are quarantined, or that no live worker can run.")
@click.option("--source", default=None, type=click.Choice(["api", "decorator", "admin", "import"]), help="Where they come from.")
@click.option("--finished", is_flag=True, help="Those that are over instead.")
@click.option("--after", default=None, metavar="TENANT/NAME", help="The page after this job, the last one of the page before.")
@limit_option
@machine_option
@click.pass_context
@command
def list_jobs(context: click.Context, limit: int, machine: bool, after: str | None, **asked: Any) -> None:
    """List jobs that are not over, by tenant and name."""
    last = None
    if after is not None:
        tenant, _, name = after.partition("/")
        if not name:
            raise InvalidInput(Problem("after", "write TENANT/NAME, as the last job of the page before has them"))
        last = (tenant, name)
    functions = facade(context)
    found = found_of(context, asked["tenant"], functions.list(after=last, **asked)[:limit + 1])
    more, found = len(found) > limit, found[:limit]
    if machine:
        click.echo(as_json([facts(functions, job) for job in found]))
    else:
        table(("tenant", "name", "schedule", "target", "state", "next run"), [
            (job.tenant, job.name, schedule_text(job), target_text(job), state(job), local(job.next_run_at, job.timezone))
            for job in found])
    if more:
        click.echo(f"There are more: go on with --after '{found[-1]}'.", err=True)


@jobs.command()
@one_job
@click.pass_context
@command
def show(context: click.Context, name: str, tenant: str | None, machine: bool) -> None:
    """Show a job with its last executions."""
    job = find(context, tenant, name)
    last = facade(context).executions(job)[:10]
    history = [{
        "id": row.id, "state": row.state, "reason": row.reason, "due_at": row.due_at, "started_at": row.started_at,
        "finished_at": row.finished_at, "attempt": row.attempt, "deliveries": row.deliveries, "error": row.error,
    } for row in last]
    told = {**facts(facade(context), job), "words": meaning(context, job)}
    if machine:
        click.echo(as_json({**told, "executions": history}))
        return
    lines(for_people(job, told))
    click.echo()
    table(
        ("due", "attempt", "state", "reason", "deliveries", "error"),
        [(local(row["due_at"], job.timezone), row["attempt"], row["state"], row["reason"], row["deliveries"],
          first_line(row["error"])) for row in history],
    )


@jobs.command()
@click.argument("name", required=False, shell_complete=completion.jobs)
@tenant_option
@click.option("--id", "job_id", default=None, metavar="UUID", help="Instead of a name; also of a job that was deleted.")
@limit_option
@machine_option
@click.pass_context
@command
def history(
    context: click.Context, name: str | None, tenant: str | None, job_id: str | None, limit: int, machine: bool,
) -> None:
    """Show who changed what of a job, the last change first."""
    if (name is None) == (job_id is None):
        raise InvalidInput(Problem("name", "give the name of a job, or --id"))
    events = facade(context).history(job_id or find(context, tenant, str(name)))[:limit]
    rows = [{
        "at": event.at, "action": event.action, "actor": event.actor, "version": event.version,
        "tenant": event.tenant, "name": event.job_name, "detail": json.loads(event.detail) if event.detail else {},
    } for event in events]
    if machine:
        click.echo(as_json(rows))
        return
    table(("at", "version", "what", "who", "details"), [
        (f"{row['at']:%Y-%m-%d %H:%M:%S}Z", row["version"], row["action"], row["actor"], _told(row["detail"])) for row in rows])


def _told(detail: dict[str, Any]) -> str:
    """Write what an event says in one line: a change as before -> after."""
    before, after = detail.get("before"), detail.get("after")
    if isinstance(before, dict) and isinstance(after, dict):
        return ", ".join(f"{field}: {before.get(field)!s} -> {value!s}" for field, value in after.items())
    said = after if isinstance(after, dict) else before if isinstance(before, dict) else detail
    return ", ".join(f"{field}={value}" for field, value in said.items())


@jobs.command()
@one_job
@click.option("--count", default=10, show_default=True, type=int, help="How many runs, 1 to 1,000.")
@click.pass_context
@command
def preview(context: click.Context, name: str, tenant: str | None, count: int, machine: bool) -> None:
    """Show the next runs of a job in its zone."""
    found = facade(context).preview(find(context, tenant, name), count=count, operator=True)
    if machine:
        click.echo(as_json({
            "words": found.words, "timezone": found.timezone, "runs": found.runs, "notes": found.notes}))
        return
    click.echo(found.words)
    for run in found.runs:
        click.echo(f"{local(run, found.timezone)}   {run:%Y-%m-%dT%H:%M:%SZ}")
    for note in found.notes:
        click.echo(f"note: {note}")


def changed(context: click.Context, machine: bool, done: str, job: Any) -> None:
    """Say what a change of a job did, and what runs and goes on."""
    answer(machine, done, getattr(job, "still_running", ()), **(facts(facade(context), job) if machine else {}))


@jobs.command()
@one_job
@click.option("--note", default="", help="Why, for people.")
@click.pass_context
@command
def pause(context: click.Context, name: str, tenant: str | None, note: str, machine: bool) -> None:
    """Stop firing a job until it is resumed."""
    job = facade(context).pause(find(context, tenant, name), note=note, actor=ACTOR)
    changed(context, machine, f"paused {job}", job)


@jobs.command("go-live")
@click.argument("names", nargs=-1, shell_complete=completion.jobs)
@tenant_option
@click.option("--all", "every", is_flag=True, help="All shadows of the tenant instead of names.")
@machine_option
@click.pass_context
@command
def go_live(context: click.Context, names: Sequence[str], tenant: str | None, every: bool, machine: bool) -> None:
    """Let shadows send their tasks from their next run on.

    End the entry of the old scheduler first. One that fires within ten seconds is left a shadow. Exit status 1 where
    any was; the others are live.
    """
    if bool(names) == every:
        raise InvalidInput(Problem("name", "give names of jobs, or --all"))
    shadowing = root(context).shadowing()
    chosen = found_of(context, tenant, shadowing.shadows(tenant_of(context, tenant))) if every else [
        find(context, tenant, name) for name in names]
    live, refused = [], {}
    for job in chosen:
        try:
            live.append(shadowing.go_live(job, actor=ACTOR))
        except (Conflict, InvalidInput) as error:
            refused[str(job)] = str(error)
    if machine:
        click.echo(as_json({"live": [facts(facade(context), job) for job in live], "refused": refused}))
    for job in () if machine else live:
        click.echo(f"{job} is live, next run {next_run(job)}")
    for why in () if machine else refused.values():
        click.echo(f"Error: {why}", err=True)
    if refused:
        raise click.exceptions.Exit(TROUBLE)
    if not (live or machine):
        click.echo("no shadow is left")


@jobs.command()
@one_job
@missed_option
@click.option("--limit", default=1_000, show_default=True, type=int, help="How many --missed all runs, the newest ones.")
@click.option("--note", default=None, help="A new note.")
@click.pass_context
@command
def resume(
    context: click.Context, name: str, tenant: str | None, missed: str, limit: int, note: str | None, machine: bool,
) -> None:
    """Fire a paused job again from now on."""
    job = facade(context).resume(
        find(context, tenant, name), missed=None if missed == "nothing" else missed, limit=limit, note=note, actor=ACTOR)
    changed(context, machine, f"resumed {job}, next run {next_run(job)}", job)


@jobs.command()
@one_job
@click.option("--token", default=None, help="The request's own name: repeated within seven days, it triggers nothing.")
@click.pass_context
@command
def trigger(context: click.Context, name: str, tenant: str | None, token: str | None, machine: bool) -> None:
    """Run a job now, beside its schedule."""
    job = find(context, tenant, name)
    execution = facade(context).trigger(job, token=token, actor=ACTOR)
    active = execution.in_the_way
    if machine:
        click.echo(as_json({"execution": execution.id, "state": execution.state,
                            "in_the_way": None if active is None else active.id}))
        return
    said = f"triggered {job}: {execution.id}"
    if active is not None:
        what = "it will end" if job.concurrency == "replace" else "it may be skipped, for"
        said += f"; {what} {active.id}, which runs since {active.started_at.isoformat()}"
    click.echo(said)


@jobs.command()
@one_job
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
@command
def delete(context: click.Context, name: str, tenant: str | None, yes: bool, machine: bool) -> None:
    """Remove a job; its history stays. Asks first, unless --yes."""
    job = find(context, tenant, name)
    if not yes:
        click.confirm(f"Delete {job}? What has not begun is dropped.", abort=True, err=True)
    job.still_running = facade(context).delete(job, actor=ACTOR)
    changed(context, machine, f"deleted {job} ({job.id}); its history stays", job)


@jobs.command()
@job_argument
@click.argument("start")
@click.argument("end")
@tenant_option
@click.option("--limit", default=STEP, show_default=True, type=click.IntRange(1, MOST_FILLED),
              help="Instants to look at, the oldest ones.")
@click.option("--pace", default=None,
              help="Between two due times: 90s, 5m, 2h; 10,000 instants at most. Default: all are due now.")
@machine_option
@click.pass_context
@command
def backfill(
    context: click.Context, name: str, start: str, end: str, tenant: str | None, limit: int, pace: str | None, machine: bool,
) -> None:
    """Run what the schedule named from START to before END.

    Instants are written 2026-01-01T00:00Z. Repeating it adds nothing.
    """
    job = find(context, tenant, name)
    functions = facade(context)
    # Paced runs are due one after the other from one instant on, so they are written at once.
    step = limit if pace is not None else min(STEP, limit)
    created = existing = 0
    with progress.bar(f"backfill of {job}", machine=machine, total=limit) as went:
        while True:
            done = functions.backfill(
                job, start, end, limit=min(step, limit - created - existing), pace=seconds(pace, "pace"), actor=ACTOR)
            created, existing = created + done.created, existing + done.existing
            went(done.created + done.existing, total=min(limit, created + existing + done.left_out))
            if done.go_on_from is None or created + existing >= limit:
                break
            start = done.go_on_from
    if machine:
        click.echo(as_json({**done._asdict(), "created": created, "existing": existing}))
        return
    click.echo(f"{created:,} runs of {job} to be made up for, {existing:,} were there already")
    if not created + existing:
        click.echo("Its schedule names no instant in that time; an interval has none before its first run.")
    if done.go_on_from is not None:
        click.echo(f"{done.left_out:,} are left out; go on from {done.go_on_from:%Y-%m-%dT%H:%M:%SZ}")
