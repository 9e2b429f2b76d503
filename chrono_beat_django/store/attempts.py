"""Write attempts that people ask for, replays and backfills; each function is called inside the caller's transaction.

The caller has locked the job, so that attempts at its occurrences are numbered one after another, and none is written
for a version of the job that is over.
"""
from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from chrono_beat.core import ids, lifecycle
from chrono_beat.core.errors import Conflict, NotFound
from chrono_beat_django.models import Execution, Job
from chrono_beat_django.store.definitions import alias
from chrono_beat_django.store.keys import split

ROWS_IN_ONE_STATEMENT = 1_000
JOBS_IN_ONE_QUERY = 500

NEVER_RAN = (lifecycle.MISSED, lifecycle.SKIPPED, lifecycle.EXPIRED)
"""States of an occurrence's last attempt after which a backfill makes another one."""

FELL_INTO_PAUSE = ("paused", "superseded")
"""Reasons of a cancelled attempt that a resume which looks back makes up for: claimed ahead, and then paused."""


class Instants(NamedTuple):
    """Instants of one job to be filled in, oldest first."""

    job: Job
    instants: Sequence[datetime]


class Filled(NamedTuple):
    """How many rows were written, and how many instants had one that was left alone."""

    created: int
    existing: int


NeverRuns = Callable[[Job, str, int], bool]
"""Ends an open row of an older plan for good: gets the job, the execution's id and the row's version, and says whether it
certainly never ran."""


def fill_in(
    wanted: Sequence[Instants], now: datetime, *, pace: timedelta = timedelta(0), never_runs: NeverRuns | None = None,
) -> Filled:
    """Write rows of kind backfill, due from now on.

    An instant without a row gets attempt 1, one whose last attempt never ran the number after it; any other is left
    alone.

    Args:
        wanted: jobs that the caller has locked.
        now: when the first row of each job is due.
        pace: by how much each row of a job is due after the one before.
        never_runs: given where what was claimed ahead and made void by a pause is to be made up for, too; asked for each
            such row that is still open.
    """
    created = existing = 0
    for part in _parts(wanted, JOBS_IN_ONE_QUERY):
        last = _last_attempts(part)
        rows: list[Execution] = []
        for job, instants in part:
            due = now
            for instant in instants:
                attempt = _next_attempt(job, instant, last.get((job.id, instant)), never_runs)
                if attempt is None:
                    existing += 1
                    continue
                rows.append(_row(job, instant, attempt, due, "backfill"))
                due += pace
        Execution.objects.using(alias()).bulk_create(rows, batch_size=ROWS_IN_ONE_STATEMENT)
        created += len(rows)
    return Filled(created, existing)


def count(wanted: Sequence[Instants]) -> dict[uuid.UUID, Filled]:
    """Say what :func:`fill_in` would do, by job, and write nothing. The jobs need not be locked: it is a forecast."""
    counted = {}
    for part in _parts(wanted, JOBS_IN_ONE_QUERY):
        last = _last_attempts(part)
        for job, instants in part:
            new = sum(_next_attempt(job, at, last.get((job.id, at)), None) is not None for at in instants)
            counted[job.id] = Filled(new, len(instants) - new)
    return counted


def _parts(wanted: Sequence[Instants], size: int) -> Iterable[Sequence[Instants]]:
    some = [entry for entry in wanted if entry.instants]
    return (some[at:at + size] for at in range(0, len(some), size))


_Last = tuple[int, str, str, int]


def _last_attempts(part: Sequence[Instants]) -> dict[tuple[object, datetime], _Last]:
    """Return (attempt, state, reason, version) of the last attempt at each instant that has a row."""
    rows = (
        Execution.objects.using(alias())
        .filter(job_id__in=[entry.job.id for entry in part],
                scheduled_at__gte=min(entry.instants[0] for entry in part),
                scheduled_at__lte=max(entry.instants[-1] for entry in part))
        .order_by("attempt")
        .values_list("job_id", "scheduled_at", "attempt", "state", "reason", "job_version")
    )
    return {(job_id, at): (attempt, state, reason, version)
            for job_id, at, attempt, state, reason, version in rows.iterator()}


def _next_attempt(job: Job, instant: datetime, last: _Last | None, never_runs: NeverRuns | None) -> int | None:
    """Return the number of the attempt to be made; None for none."""
    if last is None:
        return 1
    attempt, state, reason, version = last
    never_ran = state in NEVER_RAN
    if never_runs is not None:
        if state == lifecycle.CANCELLED:
            never_ran = reason in FELL_INTO_PAUSE
        elif state in (lifecycle.SCHEDULED, lifecycle.QUEUED) and version < job.plan_version:
            # Nothing of it is drawn any more, but it may have been before the void, and its start not be recorded yet.
            never_ran = never_runs(job, ids.execution_id(str(job.id), ids.to_us(instant), attempt), version)
    return attempt + 1 if never_ran else None


def lock_letter(execution_id: str) -> Execution:
    """Return a dead letter that nobody has handled, locked.

    Raises:
        NotFound: there is no such execution.
        Conflict: it is no dead letter, or somebody has replayed or discarded it.
    """
    key = split([execution_id]).get(execution_id)
    row = None if key is None else (
        Execution.objects.using(alias()).select_for_update()
        .filter(job_id=key.job_id, scheduled_at=ids.from_us(key.scheduled_us), attempt=key.attempt).first()
    )
    if row is None:
        raise NotFound(f"there is no execution {execution_id[:100]!r}")
    if row.state != lifecycle.DEAD:
        raise Conflict(f"execution {row.id} is {row.state}: only dead letters can be replayed or discarded")
    if row.handled_at is not None:
        raise Conflict(f"dead letter {row.id} was {row.handled_as} at {row.handled_at:%Y-%m-%dT%H:%M:%SZ} already")
    return row


def handle(letter: Execution, how: str, now: datetime) -> None:
    """Note what became of a dead letter that the caller has locked; *how* is one of models.HANDLED."""
    letter.handled_at, letter.handled_as = now, how
    Execution.objects.using(alias()).filter(
        job_id=letter.job_id, scheduled_at=letter.scheduled_at, attempt=letter.attempt,
    ).update(handled_at=now, handled_as=how)


def add_replay(job: Job, letter: Execution, now: datetime) -> Execution:
    """Write the attempt after all others at a dead letter's occurrence, due now, with a fresh count of retries."""
    last = (
        Execution.objects.using(alias()).filter(job_id=job.id, scheduled_at=letter.scheduled_at)
        .order_by("-attempt").values_list("attempt", flat=True)[0]
    )
    replay = _row(job, letter.scheduled_at, last + 1, now, "replay")
    replay.args, replay.kwargs = letter.args, letter.kwargs
    replay.task, replay.options, replay.celery_id = letter.task, letter.options, letter.celery_id
    replay.save(using=alias(), force_insert=True)
    return replay


def _row(job: Job, scheduled_at: datetime, attempt: int, due: datetime, kind: str) -> Execution:
    return Execution(
        id=ids.execution_id(str(job.id), ids.to_us(scheduled_at), attempt), job_id=job.id, tenant=job.tenant,
        job_name=job.name, partition=job.partition, scheduled_at=scheduled_at, due_at=due, first_due_at=due,
        attempt=attempt, kind=kind, job_version=job.version,
    )
