"""``chrono jobs …``: list, show, create, pause, resume, trigger, backfill, delete, preview."""
from __future__ import annotations

import functools
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import click

from chrono_beat.celery.commands.output import ACTOR, as_json, command, local, root, table
from chrono_beat.core import callback
from chrono_beat.core.errors import InvalidInput, Problem
from chrono_beat.core.schedule import ScheduleError

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
machine_option = click.option("--json", "machine", is_flag=True, help="JSON instead of a table.")
tenant_option = click.option("--tenant", "-t", default=None, metavar="SLUG", help="Default: the default tenant.")


@click.group()
def jobs() -> None:
    """Look after jobs."""


def facade(context: click.Context) -> Any:
    """Return the functions on jobs, which every way of changing one goes through."""
    return root(context).jobs()


def find(context: click.Context, tenant: str | None, name: str) -> Any:
    """Return the job that the command line names."""
    composition = root(context)
    return composition.jobs().get(tenant or composition.config().default_tenant, name)


def seconds(text: str | None, field: str) -> timedelta | None:
    """Read ``90``, ``90s``, ``5m``, ``2h`` or ``1d``.

    Raises:
        InvalidInput: the text is none of these.
    """
    if text is None:
        return None
    number, unit = (text[:-1], UNITS[text[-1:].lower()]) if text[-1:].lower() in UNITS else (text, 1)
    try:
        return timedelta(seconds=float(number) * unit)
    except (ValueError, OverflowError):
        raise InvalidInput(Problem(field, f"{text!r} is not a length of time; write 90, 90s, 5m, 2h or 1d")) from None


def facts(job: Any) -> dict[str, Any]:
    """Return what programs are told of a job."""
    return {
        "id": str(job.id), "tenant": job.tenant, "name": job.name,
        "target": job.target_kind, "task": job.task, "url": job.url, "queue": job.queue,
        "headers": callback.masked(job.headers), "args": job.args, "kwargs": job.kwargs,
        "schedule_kind": job.schedule_kind, "expression": job.expression, "timezone": job.timezone,
        "next_run_at": job.next_run_at, "state": state(job), "paused": job.paused, "version": job.version,
        "concurrency": job.concurrency, "misfire": job.misfire, "pool": job.pool, "priority": job.priority,
        "quarantined_reason": job.quarantined_reason, "note": job.note,
    }


def state(job: Any) -> str:
    """Say in a word how a job stands."""
    if job.finished_at is not None:
        return "finished"
    if job.quarantined_reason:
        return "quarantined"
    return "paused" if job.paused else "active"


def next_run(job: Any) -> str:
    """Write a job's next run in its zone; "" for none."""
    return local(job.next_run_at, job.timezone)


def schedule_text(job: Any) -> str:
    """Write a job's schedule as people read it."""
    if job.schedule_kind == "interval":
        return f"every {job.expression} s"
    if job.schedule_kind == "once":
        return f"once, {job.expression}"
    text = " ".join(json.loads(job.expression)) if job.schedule_kind == "celery" else job.expression
    return f"{text} ({job.timezone})"


def meaning(context: click.Context, job: Any) -> str:
    """Say in words what a job's schedule means; "" where what is stored is none."""
    try:
        return str(facade(context).preview(job, count=1).words)
    except (InvalidInput, ScheduleError):
        return ""


@jobs.command("list")
@click.option("--tenant", "-t", default=None, metavar="SLUG", help="Default: all tenants.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 10_000))
@machine_option
@click.pass_context
@command
def list_jobs(context: click.Context, tenant: str | None, limit: int, machine: bool) -> None:
    """List jobs that are not over, by tenant and name."""
    found = list(facade(context).list(tenant)[:limit])
    if machine:
        click.echo(as_json([facts(job) for job in found]))
        return
    rows = [(job.tenant, job.name, schedule_text(job), job.task, state(job), next_run(job)) for job in found]
    table(("tenant", "name", "schedule", "task", "state", "next run"), rows)


@jobs.command()
@click.argument("name")
@tenant_option
@machine_option
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
    told = {**facts(job), "words": meaning(context, job)}
    if machine:
        click.echo(as_json({**told, "executions": history}))
        return
    for key, value in told.items():
        if value not in ("", None):
            click.echo(f"{key.ljust(20)} {local(value, job.timezone) if key == 'next_run_at' else value}")
    click.echo()
    table(
        ("due", "attempt", "state", "reason", "deliveries", "error"),
        [(local(row["due_at"], job.timezone), row["attempt"], row["state"], row["reason"], row["deliveries"],
          row["error"].splitlines()[0][:80] if row["error"] else "") for row in history],
    )


def creation_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say what a job is; what is not given has the default of the definition."""
    options = (
        click.argument("name"),
        click.option("--task", default=None, help="Name of the Celery task."),
        click.option("--url", default=None, help="Instead of a task: where the kwargs are posted to."),
        click.option("--timeout", default=None, help="Bound of one call of the URL: 30s."),
        click.option("--queue", default=None, help="Send the task's message to this queue of stock workers."),
        click.option("--headers", default=None, help="JSON object: headers of the message, or of the call."),
        click.option("--cron", default=None, help='Five fields, for example "0 9 * * mon-fri".'),
        click.option("--every", default=None, help="Interval: 90s, 5m, 2h, 1d."),
        click.option("--at", default=None, help="One run, ISO 8601 with offset: 2026-01-02T09:00Z."),
        click.option("--timezone", default=None, help="IANA zone of --cron; UTC unless given."),
        click.option("--args", default=None, help="JSON array."),
        click.option("--kwargs", default=None, help="JSON object."),
        click.option("--pool", default=None, help="Celery queue whose workers run it."),
        click.option("--priority", default=None, type=int, help="0 (first) to 9."),
        click.option("--concurrency", default=None, help="forbid or allow."),
        click.option("--misfire", default=None, help="skip, latest or all."),
        click.option("--max-duration", default=None, help="Bound of one run: 90s, 5m, 2h."),
        click.option("--expires-after", default=None, help="How late it may still start: 90s, 5m, 2h."),
        click.option("--paused", is_flag=True, help="Keep it without firing it."),
        click.option("--note", default=None),
    )
    return functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), function)


@jobs.command()
@creation_options
@tenant_option
@machine_option
@click.pass_context
@command
def create(context: click.Context, machine: bool, **given: Any) -> None:
    """Create a job."""
    for field in ("every", "timeout", "max_duration", "expires_after"):
        given[field] = seconds(given[field], field)
    arguments = {key: value for key, value in given.items() if value is not None}
    job = facade(context).create(**arguments, actor=ACTOR)
    for problem in facade(context).warnings_for(job):
        click.echo(f"Warning: {problem.field}: {problem.message}", err=True)
    click.echo(as_json(facts(job)) if machine else f"created {job}, next run {next_run(job) or 'none'}")


def acting(name: str, help_text: str, act: Callable[[Any, Any], str]) -> None:
    """Add a command that does one thing to one job."""
    @jobs.command(name, help=help_text)
    @click.argument("name")
    @tenant_option
    @click.pass_context
    @command
    def _act(context: click.Context, name: str, tenant: str | None) -> None:
        click.echo(act(facade(context), find(context, tenant, name)))


def _pause(functions: Any, job: Any) -> str:
    functions.pause(job, actor=ACTOR)
    return f"paused {job}"


def _trigger(functions: Any, job: Any) -> str:
    execution = functions.trigger(job, actor=ACTOR)
    active = execution.in_the_way
    if active is None:
        return f"triggered {job}: {execution.id}"
    what = "it will end" if job.concurrency == "replace" else "it may be skipped, for"
    return f"triggered {job}: {execution.id}; {what} {active.id}, which runs since {active.started_at.isoformat()}"


def _delete(functions: Any, job: Any) -> str:
    functions.delete(job, actor=ACTOR)
    return f"deleted {job}; its history stays"


acting("pause", "Stop firing a job until it is resumed.", _pause)
acting("trigger", "Run a job now, beside its schedule.", _trigger)
acting("delete", "Remove a job; its history stays.", _delete)


@jobs.command()
@click.argument("name")
@tenant_option
@click.option("--missed", default=None, help='What fell into the pause: "latest" or "all". Default: nothing.')
@click.option("--limit", default=1_000, show_default=True, type=int, help="How many --missed all runs, the newest ones.")
@click.pass_context
@command
def resume(context: click.Context, name: str, tenant: str | None, missed: str | None, limit: int) -> None:
    """Fire a paused job again from now on."""
    job = facade(context).resume(find(context, tenant, name), missed=missed, limit=limit, actor=ACTOR)
    click.echo(f"resumed {job}, next run {next_run(job) or 'none'}")


@jobs.command()
@click.argument("name")
@click.argument("start")
@click.argument("end")
@tenant_option
@click.option("--limit", default=1_000, show_default=True, type=int, help="Instants to look at, the oldest ones.")
@click.option("--pace", default=None, help="Between two due times: 90s, 5m, 2h. Default: all are due now.")
@machine_option
@click.pass_context
@command
def backfill(
    context: click.Context, name: str, start: str, end: str, tenant: str | None, limit: int, pace: str | None, machine: bool,
) -> None:
    """Run what the schedule named from START to before END (2026-01-01T00:00Z); repeating it adds nothing."""
    job = find(context, tenant, name)
    done = facade(context).backfill(job, start, end, limit=limit, pace=seconds(pace, "pace"), actor=ACTOR)
    if machine:
        click.echo(as_json(done._asdict()))
        return
    click.echo(f"{done.created:,} runs of {job} to be made up for, {done.existing:,} were there already")
    if done.go_on_from is not None:
        click.echo(f"{done.left_out:,} are left out; go on from {done.go_on_from:%Y-%m-%dT%H:%M:%SZ}")


@jobs.command()
@click.argument("name")
@tenant_option
@click.option("--count", default=10, show_default=True, type=int)
@machine_option
@click.pass_context
@command
def preview(context: click.Context, name: str, tenant: str | None, count: int, machine: bool) -> None:
    """Show the next runs of a job in its zone, with what to know about them."""
    found = facade(context).preview(find(context, tenant, name), count=count)
    if machine:
        click.echo(as_json({
            "words": found.words, "timezone": found.timezone, "runs": found.runs, "notes": found.notes}))
        return
    click.echo(found.words)
    for run in found.runs:
        click.echo(f"{local(run, found.timezone)}   {run:%Y-%m-%dT%H:%M:%SZ}")
    for note in found.notes:
        click.echo(f"note: {note}")
