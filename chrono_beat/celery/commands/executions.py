"""``chrono executions …``: list, show and cancel single runs."""
from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click

from chrono_beat.celery.commands.options import limit_option, machine_option, seconds, tenants_option
from chrono_beat.celery.commands.output import ACTOR, as_json, command, lines, root, table
from chrono_beat.celery.commands.shown import first_line, found_of
from chrono_beat.core.errors import InvalidInput, NotFound, Problem
from chrono_beat.core.field_checks import instant

LAST_DAY = timedelta(days=1)


@click.group()
def executions() -> None:
    """Look at what ran, and how late; stop what has not ended."""


def _between(later: datetime | None, earlier: datetime | None) -> float | None:
    return (later - earlier).total_seconds() if later is not None and earlier is not None else None


def facts(execution: Any) -> dict[str, Any]:
    """Return what programs are told of an execution; lengths of time in seconds."""
    return {
        "id": execution.id, "tenant": execution.tenant, "job": execution.job_name, "job_id": str(execution.job_id),
        "kind": execution.kind, "attempt": execution.attempt, "state": execution.state, "reason": execution.reason,
        "scheduled_at": execution.scheduled_at, "due_at": execution.due_at, "published_at": execution.published_at,
        "started_at": execution.started_at, "finished_at": execution.finished_at,
        "lateness": _between(execution.started_at, execution.due_at),
        "publish_lateness": _between(execution.published_at, execution.due_at),
        "duration": _between(execution.finished_at, execution.started_at),
        "deliveries": execution.deliveries, "worker": execution.worker, "missed": execution.missed_count,
        "cancel_requested_at": execution.cancel_requested_at, "error": execution.error,
    }


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _job(composition: Any, tenant: str | None, name: str) -> Any:
    try:
        return composition.jobs().get(tenant, name)
    except NotFound as error:
        raise NotFound(f"{error}; what waited without a job is found by its task: --task {name}") from None


@executions.command("list")
@tenants_option
@click.option("--job", default=None, metavar="NAME", help="Only this job's; needs --tenant.")
@click.option("--task", default=None, metavar="TASK", help="Only of jobs that run it, and of its messages without a job.")
@click.option("--kind", default=None, help="schedule, manual, backfill, retry, replay, eta.")
@click.option("--state", default=None, help="scheduled, queued, running, succeeded, failed, dead, skipped, …")
@click.option("--reason", default=None, help="error, timeout, overlap, misfire, …")
@click.option("--from", "start", default=None, metavar="INSTANT",
              help="Scheduled at or after: 2026-01-02T09:00Z. Default: a day ago.")
@click.option("--to", "end", default=None, metavar="INSTANT", help="Scheduled before.")
@click.option("--late", default=None, help="Started later than that after they were due: 90s, 5m, 2h.")
@limit_option
@machine_option
@click.pass_context
@command
def list_executions(
    context: click.Context, limit: int, machine: bool, start: str | None, end: str | None, late: str | None,
    job: str | None, tenant: str | None, **exact: Any,
) -> None:
    """List executions, the newest occurrence first."""
    composition = root(context)
    if job is not None and tenant is None:
        raise InvalidInput(Problem("tenant", "give the tenant of the job, too"))
    since = start or datetime.now(UTC) - LAST_DAY
    matching = composition.executions().list(
        tenant, job=None if job is None else _job(composition, tenant, job), start=since, end=end, late=seconds(late, "late"),
        **exact)
    first, last = instant(since)[0], instant(end)[0]
    if first is not None and last is not None and last <= first:
        raise InvalidInput(Problem("end", "must be later than --from, which is a day ago unless given"))
    found = found_of(context, tenant, composition.executions().newest(matching, 0, limit))
    if machine:
        click.echo(as_json([facts(execution) for execution in found]))
        return
    rows = [facts(execution) for execution in found]
    table(("scheduled", "tenant", "job", "kind", "state", "reason", "late s", "took s", "deliveries", "id", "error"), [
        (f"{row['scheduled_at']:%Y-%m-%d %H:%M:%S}Z", row["tenant"], row["job"], row["kind"], row["state"], row["reason"],
         _number(row["lateness"]), _number(row["duration"]), row["deliveries"], row["id"],
         first_line(row["error"])) for row in rows])


@executions.command()
@click.argument("id")
@machine_option
@click.pass_context
@command
def show(context: click.Context, id: str, machine: bool) -> None:
    """Show one execution.

    Its instants, how late it was at each stage, deliveries and error.
    """
    found = facts(root(context).executions().get(id))
    if machine:
        click.echo(as_json(found))
        return
    lines({key: f"{value:.3f} s" if isinstance(value, float) else value for key, value in found.items()})


@executions.command()
@click.argument("id")
@machine_option
@click.pass_context
@command
def cancel(context: click.Context, id: str, machine: bool) -> None:
    """End one execution. What has not begun never begins, what runs is told to stop."""
    found = root(context).jobs().cancel(id, actor=ACTOR)
    if machine:
        click.echo(as_json({**facts(found), "told_to_stop": [delivery._asdict() for delivery in found.still_running]}))
        return
    click.echo(f"cancelled {found.id}")
    for delivery in found.still_running:
        click.echo(f"it runs on {delivery.worker} and has been told to stop")
