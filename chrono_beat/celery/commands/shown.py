"""How a job is shown: facts for programs, words for people."""
from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, TypeVar

import click

from chrono_beat.celery.commands.output import local, plain, root
from chrono_beat.core import callback
from chrono_beat.core.definition import FIELDS
from chrono_beat.core.errors import InvalidInput, NotFound
from chrono_beat.core.schedule import ScheduleError

SHOWN_ERROR_CHARACTERS = 80
T = TypeVar("T")

LENGTHS = ("timeout", "soft_limit", "max_duration", "expires_after", "grace", "spread")


def facade(context: click.Context) -> Any:
    """Return the functions on jobs, which every way of changing one goes through."""
    return root(context).jobs()


def find(context: click.Context, tenant: str | None, name: str) -> Any:
    """Return the job that the command line names."""
    return facade(context).get(tenant_of(context, tenant), name)


def tenant_of(context: click.Context, tenant: str | None) -> str:
    """Return the tenant that the command line names, the default one where it names none; "" names one that is not."""
    return str(root(context).config().default_tenant) if tenant is None else tenant


def known(context: click.Context, tenant: str | None) -> str | None:
    """Return the tenant that the command line names, or none.

    Raises:
        NotFound: there is no such tenant, so that a slip of the pen is not taken for one that has nothing.
    """
    if tenant is not None and not root(context).tenants().every().filter(slug=tenant).exists():
        raise NotFound(f'there is no tenant "{tenant}"')
    return tenant


def found_of(context: click.Context, tenant: str | None, found: Iterable[T]) -> list[T]:
    """Return what was found of a tenant; "nothing" is said only of one that exists, what a deleted one left is found.

    Raises:
        NotFound: nothing was found, and there is no such tenant.
    """
    rows = [*found]
    if not rows:
        known(context, tenant)
    return rows


def facts(functions: Any, job: Any) -> dict[str, Any]:
    """Return what programs are told of a job: how it stands, and every field of its definition; lengths in seconds."""
    definition = functions.definition_of(job)
    said = {field: getattr(definition, field) for field in FIELDS if field != "written_as"}
    said |= {"headers": callback.masked(job.headers), "retry": asdict(definition.retry)}
    return {
        "id": str(job.id), "tenant": job.tenant, "name": job.name, "state": state(job), "next_run_at": job.next_run_at,
        "version": job.version, **said, "source": job.source, "quarantined_reason": job.quarantined_reason,
        "flagged_reason": job.flagged_reason, "finished_at": job.finished_at,
    }


def state(job: Any) -> str:
    """Say in a word how a job stands."""
    if job.finished_at is not None:
        return "finished"
    if job.quarantined_reason:
        return "quarantined"
    return "paused" if job.paused else "active"


def next_run(job: Any) -> str:
    """Write a job's next run in its zone; "none" where it has none."""
    return local(job.next_run_at, job.timezone) or "none"


def schedule_text(job: Any) -> str:
    """Write a job's schedule as people read it."""
    if job.schedule_kind == "interval":
        return f"every {job.expression} s"
    if job.schedule_kind == "once":
        return f"once, {job.expression}"
    text = " ".join(json.loads(job.expression)) if job.schedule_kind == "celery" else job.expression
    return f"{text} ({job.timezone})"


def for_people(job: Any, told: dict[str, Any]) -> dict[str, Any]:
    """Return facts as people read them: the schedule in one line, lengths with their unit, the next run in its zone."""
    lengths = {field: f"{plain(told[field])} s" for field in LENGTHS if told.get(field) is not None}
    when = {"schedule_kind": None, "expression": None, "schedule": schedule_text(job), "next_run_at": next_run(job)}
    return told | lengths | when


def target_text(job: Any) -> str:
    """Write what a job runs as people read it."""
    if job.target_kind == "http":
        return str(job.url)
    return f"{job.task} -> {job.queue}" if job.target_kind == "message" else str(job.task)


def meaning(context: click.Context, job: Any) -> str:
    """Say in words what a job's schedule means; "" where what is stored is none."""
    try:
        return str(facade(context).preview(job, count=1).words)
    except (InvalidInput, ScheduleError):
        return ""


def first_line(error: str) -> str:
    """Return as much of an error as a table has room for."""
    return error.splitlines()[0][:SHOWN_ERROR_CHARACTERS] if error else ""
