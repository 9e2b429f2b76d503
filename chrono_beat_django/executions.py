"""Find executions: what ran, what did not, why, and how late.

    executions.list(tenant="acme", late=60)     # a queryset: those that started more than a minute after they were due

:func:`chrono_beat_django.jobs.cancel` ends one, :mod:`chrono_beat_django.dead_letters` looks after those that failed for good.
"""
from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db.models import Q, QuerySet

from chrono_beat.core import field_checks as checks
from chrono_beat.core import ids, lifecycle
from chrono_beat.core.errors import InvalidInput, NotFound, Problem
from chrono_beat_django import control
from chrono_beat_django.models import Execution, ExecutionQuerySet, Job

NEWEST_FIRST = ("-scheduled_at", "-attempt", "-id")
Key = tuple[datetime, int, str]
"""scheduled_at, attempt and id of an execution: its place in that order."""

LATE = checks.Number(0, 366 * 86_400, unit="seconds", optional=True)


def list(
    tenant: str | None = None, *, job: Job | uuid.UUID | str | None = None, task: str | None = None,
    kind: str | None = None, state: str | None = None, reason: str | None = None, start: datetime | str | None = None,
    end: datetime | str | None = None, late: float | timedelta | None = None,
) -> ExecutionQuerySet:
    """Return executions, the newest occurrence first, as a queryset to filter, slice and count.

    Args:
        tenant: exact slug; None for all.
        job: a job or its id; None for all.
        task: name of a Celery task: executions of jobs that run it now, and its messages that waited without a job.
        kind: one of lifecycle.KINDS; None for all.
        state: one of lifecycle.STATES; None for all.
        reason: one of lifecycle.REASONS; None for all.
        start, end: bounds of scheduled_at, aware, [start, end). On PostgreSQL only these days' tables are read.
        late: seconds; only those that started later than that after they were due.

    Raises:
        InvalidInput: a value is none of these.
        NotFound: the text is no job's id.
    """
    problems, values = [], {}
    for field, word, known in (
            ("kind", kind, lifecycle.KINDS), ("state", state, lifecycle.STATES), ("reason", reason, lifecycle.REASONS)):
        wrong = None if word is None else checks.not_one_of(word, tuple(known))
        if wrong:
            problems.append(Problem(field, wrong, "unknown"))
    for field, given in (("start", start), ("end", end)):
        values[field], wrong = checks.instant(given)
        if wrong:
            problems.append(Problem(field, wrong))
    values["late"], wrong = checks.number(late, LATE)
    if wrong:
        problems.append(Problem("late", wrong))
    if problems:
        raise InvalidInput(*problems)
    asked = {
        "tenant": tenant, "kind": kind, "state": state, "reason": reason,
        "job_id": None if job is None else control.job_id_of(job),
        "scheduled_at__gte": values["start"], "scheduled_at__lt": values["end"],
    }
    found = Execution.objects.filter(**{field: value for field, value in asked.items() if value is not None})
    if task is not None:
        found = found.filter(Q(task=task) | Q(job_id__in=Job.objects.filter(task=task).values("id")))
    if values["late"] is not None:
        found = found.started_late(values["late"])
    return found.order_by(*NEWEST_FIRST)


def newest(rows: QuerySet[Execution], start: int, end: int) -> Sequence[Execution]:
    """Return rows[start:end] in the order of scheduled_at, attempt and id, the newest first, at the cost of *end* rows."""
    return _of(rows, _newest_keys(rows, end)[start:])


def newest_page(rows: QuerySet[Execution], limit: int) -> tuple[Sequence[Execution], Key | None]:
    """Return the newest *limit* rows in that order, and where the rest begins: the key of the last one; None: there is none.

    One that no longer is what *rows* asks for when it is read, since a worker has begun it, say, is left out of the page
    and ends no list.
    """
    keys = _newest_keys(rows, limit + 1)
    return _of(rows, keys[:limit]), keys[limit - 1] if len(keys) > limit else None


def _newest_keys(rows: QuerySet[Execution], end: int) -> Sequence[Key]:
    """What has ended comes from an index in that order, which costs dispatchers nothing since no open row is in it; what is
    open has a small index of its own and is sorted. So their keys are read in turn, open ones first: a row that ends in
    between is met twice and never missed.
    """
    keys: set[Key] = set()
    for states in (lifecycle.OPEN, lifecycle.TERMINAL):
        part = rows.filter(state__in=states).order_by(*NEWEST_FIRST)
        keys.update(part.values_list("scheduled_at", "attempt", "id")[:end])
    return sorted(keys, reverse=True)[:end]


def _of(rows: QuerySet[Execution], keys: Sequence[Key]) -> Sequence[Execution]:
    if not keys:
        return []
    days = rows.filter(scheduled_at__range=(keys[-1][0], keys[0][0]))
    found = {row.id: row for row in days.filter(id__in=[key[2] for key in keys])}
    return [found[key[2]] for key in keys if key[2] in found]


def get(execution_id: str) -> Execution:
    """Return an execution by its id.

    Raises:
        NotFound: there is none.
    """
    # Its day is part of its id, so one day's table is looked at.
    try:
        parts = ids.parse_execution_id(execution_id)
    except ValueError:
        found = Execution.objects.filter(id=execution_id).first()
    else:
        found = Execution.objects.filter(id=execution_id, scheduled_at=ids.from_us(parts.scheduled_us)).first()
    if found is None:
        raise NotFound(f"there is no execution {execution_id[:100]!r}")
    return found
