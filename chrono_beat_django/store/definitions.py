"""Write what users decide about jobs: the queries that lock, each to be called inside the caller's transaction.

Order of locks: tenant, then jobs by id. On PostgreSQL a claim waits for a locked job and changes nothing of it where its
version has grown meanwhile; on SQLite a transaction begins IMMEDIATE, so it excludes every other writer.
"""
from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from django.db import DataError, IntegrityError, OperationalError, connections, router, transaction

from chrono_beat.core import callback, ids, lifecycle
from chrono_beat.core.definition import JobDefinition
from chrono_beat.core.errors import ChronoError, Conflict, InvalidInput, NotFound, Problem
from chrono_beat.core.retry import Retry
from chrono_beat_django.models import Execution, Job, JobEvent, Tenant
from chrono_beat_django.store import layout
from chrono_beat_django.store.session import ATTEMPTS, is_deadlock

P = ParamSpec("P")
Answer = TypeVar("Answer")

MAX_TOKEN_CHARACTERS = 200
TOKEN_DAYS = 7
"""Days for which a trigger's request token is remembered."""

MAX_EVENT_VALUE_CHARACTERS = 2_000
"""Longest value that the audit keeps of one field; arguments may be a hundred times as long."""

MAX_INSTANTS_TRIED = 1_000
"""Manual runs of a job that may be asked for in the same instant."""


class UnknownTenant(InvalidInput, NotFound):
    """There is no tenant of that slug."""

    def __init__(self, slug: str) -> None:
        super().__init__(Problem("tenant", f'there is no tenant "{slug}"; create it first', "unknown"))


# Field of JobDefinition -> column of Job, where both hold the same value.
COLUMNS = {
    "tenant": "tenant", "name": "name", "task": "task", "target_kind": "target_kind", "url": "url",
    "timeout": "timeout_seconds", "queue": "queue", "schedule_kind": "schedule_kind", "expression": "expression",
    "timezone": "timezone", "start": "start_at", "end": "end_at", "anchor": "anchor_at",
    "args": "args", "kwargs": "kwargs",
    "headers": "headers", "pool": "pool", "priority": "priority", "soft_limit": "soft_limit_seconds",
    "max_duration": "max_duration_seconds", "expires_after": "expires_after_seconds", "concurrency": "concurrency",
    "exclusion_group": "exclusion_group", "misfire": "misfire", "misfire_cap": "misfire_cap", "grace": "grace_seconds",
    "spread": "spread_seconds", "max_occurrences": "max_occurrences", "idempotent": "idempotent",
    "key_scope": "key_scope", "paused": "paused", "note": "note",
}
RETRY_COLUMNS = {
    "max_attempts": "max_attempts", "base": "retry_base_seconds", "factor": "retry_factor",
    "maximum": "retry_maximum_seconds", "jitter": "retry_jitter",
}

PLANNED = ("version", "plan_version", "next_run_at", "anchor_at", "paused_at", "finished_at", "replan", "quarantined_reason",
           "updated_at")
"""Columns of a job that an edit may change beside those of its definition."""


def definition_of(job: Job) -> JobDefinition:
    """Return what is stored of a job as a definition."""
    values = {field: getattr(job, column) for field, column in COLUMNS.items()}
    retry = Retry(**{field: getattr(job, column) for field, column in RETRY_COLUMNS.items()})
    return JobDefinition(**values, retry=retry)


def take_over(job: Job, definition: JobDefinition) -> dict[str, tuple[Any, Any]]:
    """Set a job's columns from a validated definition; returns {column: (before, after)} of those that changed."""
    wanted = {column: getattr(definition, field) for field, column in COLUMNS.items()}
    wanted |= {column: getattr(definition.retry, field) for field, column in RETRY_COLUMNS.items()}
    changed = {}
    for column, after in wanted.items():
        before = getattr(job, column)
        if before != after:
            changed[column] = (before, after)
            setattr(job, column, after)
    return changed


def alias() -> str:
    """Return the database that definitions are written to."""
    return router.db_for_write(Job)


def repeated_after_deadlock(work: Callable[P, Answer]) -> Callable[P, Answer]:
    """Decorate what is one transaction: where the server ended it for a deadlock, it is run again.

    Claims lock jobs in the order in which they are due, so whatever locks several jobs at once may meet one crosswise;
    either may be ended. The store repeats a claim likewise. Within a caller's transaction the error is the caller's.
    """
    @wraps(work)
    def repeated(*args: P.args, **kwargs: P.kwargs) -> Answer:
        nested = connections[alias()].in_atomic_block
        for left in reversed(range(ATTEMPTS)):
            try:
                return work(*args, **kwargs)
            except OperationalError as error:
                if nested or not left or not is_deadlock(error):
                    raise
        raise AssertionError("unreachable")

    return repeated


def lock_tenant(slug: str) -> Tenant:
    """Return the tenant, locked, so that its jobs are created one after another.

    Raises:
        UnknownTenant: there is none.
    """
    tenant = lock_tenants([slug]).get(slug)
    if tenant is None:
        raise UnknownTenant(slug)
    return tenant


def lock_tenants(slugs: Iterable[str]) -> dict[str, Tenant]:
    """Return those of the tenants that exist, by slug, locked one after another in that order."""
    wanted = sorted(set(slugs))
    if not wanted:
        return {}
    rows = Tenant.objects.using(alias()).select_for_update().filter(slug__in=wanted).order_by("slug")
    return {tenant.slug: tenant for tenant in rows}


def lock_job(job_id: uuid.UUID | str) -> Job:
    """Return the job as it is now, locked.

    Raises:
        NotFound: there is none.
    """
    job = lock_jobs([job_id]).get(str(job_id))
    if job is None:
        raise NotFound(f"there is no job {job_id}")
    return job


def lock_jobs(job_ids: Sequence[uuid.UUID | str]) -> dict[str, Job]:
    """Return those of the jobs that exist, by id, as they are now, locked one after another in that order."""
    rows = Job.objects.using(alias()).select_for_update().filter(id__in=job_ids).order_by("id")
    return {str(job.id): job for job in rows}


def names_taken(wanted: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return which of some (tenant, name) unfinished jobs have."""
    rows = Job.objects.using(alias()).unfinished().filter(
        tenant__in={tenant for tenant, _ in wanted}, name__in={name for _, name in wanted})
    return set(rows.values_list("tenant", "name")) & set(wanted)


def name_is_taken(tenant: str, name: str) -> Conflict:
    """Return what is told to whoever wants a name that an unfinished job has."""
    return Conflict(f'tenant {tenant} has a job named "{name}" already; choose another name', "name")


def insert_all(jobs: Sequence[Job]) -> list[ChronoError | None]:
    """Write new jobs in their partitions, in as few statements as there can be.

    Where the database refuses that, each is written by itself, so that one takes no other with it.

    Returns:
        For each why it was not written, None where it was: Conflict if the tenant has an unfinished job of that name.
    """
    partitions, _ = layout.read(alias())
    for job in jobs:
        job.partition = ids.partition_of(job.tenant, str(job.id), partitions)
    if len(jobs) > 1:
        try:
            with transaction.atomic(using=alias()):
                Job.objects.using(alias()).bulk_create(jobs)
            return [None] * len(jobs)
        except (IntegrityError, DataError):
            pass
    return [_refused(job) for job in jobs]


def _refused(job: Job) -> ChronoError | None:
    try:
        _saved(job, force_insert=True)
    except Conflict as conflict:
        return conflict
    except (IntegrityError, DataError) as error:
        return InvalidInput(Problem("job", f"the database refuses it: {' '.join(str(error).split())}", "refused"))
    return None


def save(job: Job) -> None:
    """Write an edited job under the next version.

    Raises:
        Conflict: the tenant has another unfinished job of that name.
    """
    job.version += 1
    _saved(job, force_update=True)


def save_all(jobs: Sequence[Job], columns: Collection[str], now_us: int) -> None:
    """Write *columns*, and what a plan consists of, of edited jobs under their next versions.

    Raises:
        Conflict: the database refuses one of them, and so has written none.
    """
    if len(jobs) == 1:
        save(jobs[0])
        return
    for job in jobs:
        job.version += 1
        job.updated_at = ids.from_us(now_us)
    try:
        with transaction.atomic(using=alias()):
            Job.objects.using(alias()).bulk_update(jobs, sorted({*columns, *PLANNED}))
    except (IntegrityError, DataError) as error:
        raise Conflict("one of the jobs is refused by the database") from error


def reopen(job: Job) -> None:
    """Let a job that was just found to be over wait for executions that were added since."""
    job.finished_at = None
    Job.objects.using(alias()).filter(id=job.id).update(finished_at=None)


def _saved(job: Job, **how: bool) -> None:
    try:
        with transaction.atomic(using=alias()):             # a savepoint: the caller's transaction goes on
            job.save(using=alias(), **how)
    except IntegrityError as error:
        others = Job.objects.using(alias()).unfinished().of(job.tenant).filter(name=job.name).exclude(id=job.id)
        if not others.exists():
            raise
        raise name_is_taken(job.tenant, job.name) from error


def running(job: Job) -> Execution | None:
    """Return an execution of the job that runs, as far as is recorded; the newest."""
    return Execution.objects.using(alias()).of_job(job.id).filter(state=lifecycle.RUNNING).first()


def has_open(job: Job) -> bool:
    """Say whether an execution of the job has not ended."""
    return Execution.objects.using(alias()).open().filter(job_id=job.id).exists()


def insert_manual(job: Job, now_us: int) -> Execution:
    """Write an execution of kind manual, due now, under the first free instant.

    Raises:
        Conflict: a thousand were asked for within a thousandth of a second.
    """
    taken = set(
        Execution.objects.using(alias())
        .filter(job_id=job.id, scheduled_at__gte=ids.from_us(now_us),
                scheduled_at__lt=ids.from_us(now_us + MAX_INSTANTS_TRIED))
        .values_list("scheduled_at", flat=True)
    )
    for us in range(now_us, now_us + MAX_INSTANTS_TRIED):
        instant = ids.from_us(us)
        if instant not in taken:
            return Execution.objects.using(alias()).create(
                id=ids.execution_id(str(job.id), us, 1), job_id=job.id, tenant=job.tenant, job_name=job.name,
                partition=job.partition, scheduled_at=instant, due_at=instant, first_due_at=instant, kind="manual",
                job_version=job.version,
            )
    raise Conflict("too many manual runs were asked for in the same instant; try again")


def triggered(job: Job, token: str, now_us: int) -> Execution | None:
    """Return the execution that an earlier trigger with the same token made; None where there was none."""
    made = earlier(job, "trigger", token, now_us)
    return None if made is None else Execution.objects.using(alias()).filter(id=made["execution"]).first()


def earlier(job: Job, action: str, token: str, now_us: int) -> dict[str, Any] | None:
    """Return what the audit says of an earlier request with the same token; None where there was none."""
    events = JobEvent.objects.using(alias()).filter(
        job_id=job.id, action=action, at__gte=ids.from_us(now_us) - timedelta(days=TOKEN_DAYS),
        detail__contains=json.dumps(token, ensure_ascii=False),
    )
    for text in events.values_list("detail", flat=True):
        detail: dict[str, Any] = json.loads(text)
        if detail.get("token") == token:
            return detail
    return None


def check_token(token: object) -> None:
    """Refuse what is no request token.

    Raises:
        InvalidInput: it is neither None nor a text of 1 to 200 characters.
    """
    if token is not None and (not isinstance(token, str) or not 1 <= len(token) <= MAX_TOKEN_CHARACTERS):
        raise InvalidInput(Problem("token", f"must be a text of 1 to {MAX_TOKEN_CHARACTERS} characters"))


def write_event(job: Job, action: str, actor: str | None, at_us: int, detail: Mapping[str, Any]) -> None:
    """Write into the audit who did what."""
    write_events([event(job, action, actor, at_us, detail)])


def write_events(events: Sequence[JobEvent]) -> None:
    """Write lines into the audit."""
    JobEvent.objects.using(alias()).bulk_create(events)


def event(job: Job, action: str, actor: str | None, at_us: int, detail: Mapping[str, Any]) -> JobEvent:
    """Return a line of the audit that is not written yet: who did what to a job, which has the version that came of it."""
    return JobEvent(
        at=ids.from_us(at_us), job_id=job.id, tenant=job.tenant, job_name=job.name, version=job.version, action=action,
        actor=(actor or "")[:255], detail=json.dumps(_shortened(detail), ensure_ascii=False) if detail else "",
    )


def _shortened(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _shortened(callback.masked(part) if key == "headers" else part) for key, part in value.items()}
    if isinstance(value, (int, float)) or value is None:
        return value
    text = value.isoformat() if isinstance(value, datetime) else str(value)
    return text if len(text) <= MAX_EVENT_VALUE_CHARACTERS else text[:MAX_EVENT_VALUE_CHARACTERS] + "…"
