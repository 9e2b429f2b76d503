"""Dead letters: executions whose last attempt failed and that nobody has handled yet. Find, replay or discard them.

A replay is one more attempt at the same occurrence, under the same idempotency key: a target that has finished it
recognises it. Its retries are counted anew, and it runs under its execution id as Celery task id.
"""
from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import NamedTuple

from django.db import transaction

from chrono_beat.core import field_checks as checks
from chrono_beat.core import ids, lifecycle
from chrono_beat.core.errors import Conflict, InvalidInput, NotFound, Problem
from chrono_beat_django import wiring
from chrono_beat_django.models import Execution, ExecutionQuerySet, Job
from chrono_beat_django.store import attempts
from chrono_beat_django.store import definitions as store

MAX_HANDLED = 10_000
"""Dead letters of one call; each is a transaction."""

DEFAULT_LIMIT = 1_000
Letter = Execution | str


class AttemptError(NamedTuple):
    """What became of one attempt at an occurrence.

    Args:
        execution_id, attempt, kind, state, reason: as in the row.
        deliveries: how often a worker was given it; more than one is a duplicate.
        worker: where it ran.
        finished_at: when it ended.
        error: type, message and the tail of the traceback; "" for none.
    """

    execution_id: str
    attempt: int
    kind: str
    state: str
    reason: str
    deliveries: int
    worker: str
    finished_at: datetime | None
    error: str


class Handled(NamedTuple):
    """What a call on many dead letters did.

    Args:
        executions: the replays that were written, or the letters that were discarded.
        refused: (execution id, why) of letters that could not be handled.
        more: whether the limit left letters alone.
    """

    executions: Sequence[Execution]
    refused: Sequence[tuple[str, str]]
    more: bool


def list(
    tenant: str | None = None, *, job: Job | str | None = None, reason: str | None = None,
    older_than: float | timedelta | None = None,
) -> ExecutionQuerySet:
    """Return the dead letters that nobody has handled, the newest first, as a queryset to filter, slice and count.

    Args:
        tenant: exact slug; None for all.
        job: a job or its id; None for all.
        reason: one of lifecycle.REASONS; None for all.
        older_than: seconds since they died; None for any age.

    Raises:
        InvalidInput: the age is no number of seconds, or there is no such reason.
    """
    if wrong := None if reason is None else checks.not_one_of(reason, tuple(lifecycle.REASONS)):
        raise InvalidInput(Problem("reason", wrong, "unknown"))
    found = Execution.objects.dead_letters()
    if tenant is not None:
        found = found.filter(tenant=tenant)
    if job is not None:
        found = found.filter(job_id=job.id if isinstance(job, Job) else job)
    if reason is not None:
        found = found.filter(reason=reason)
    seconds, wrong = checks.number(older_than, checks.Number(0, 10 * 366 * 86_400, "seconds"))
    if wrong:
        raise InvalidInput(Problem("older_than", wrong))
    if seconds is not None:
        found = found.filter(finished_at__lt=ids.from_us(wiring.now_us()) - timedelta(seconds=seconds))
    return found.order_by("-finished_at")


def errors_of(execution: Execution) -> Sequence[AttemptError]:
    """Return what became of every attempt at the execution's occurrence, the first attempt first."""
    rows = Execution.objects.filter(job_id=execution.job_id, scheduled_at=execution.scheduled_at).order_by("attempt")
    return [AttemptError(row.id, row.attempt, row.kind, row.state, row.reason, row.deliveries, row.worker, row.finished_at,
                         row.error) for row in rows]


def replay(letter: Letter, *, actor: str | None = None) -> Execution:
    """Run a dead letter's occurrence again, with the job's present content and the letter's own arguments.

    Args:
        letter: the execution or its id.
        actor: who does it, for the audit.

    Returns:
        The new attempt, due now.

    Raises:
        NotFound: there is no such execution, or its job was deleted.
        Conflict: it is no dead letter, or was replayed or discarded already.
    """
    with transaction.atomic(using=store.alias()):
        execution_id, job_id = _ids_of(letter)
        try:
            job = store.lock_job(job_id)
        except NotFound:
            alone = attempts.lock_letter(execution_id)          # says so if it is no dead letter at all
            if alone.task is None:
                raise NotFound(
                    f"the job of dead letter {execution_id} was deleted, so there is nothing to run: discard it, or "
                    "create the job anew and trigger it") from None
            job = _in_place_of_job(alone)                       # an ETA task never had one
        dead, now_us = attempts.lock_letter(execution_id), wiring.now_us()
        made = attempts.add_replay(job, dead, ids.from_us(now_us))
        attempts.handle(dead, "replayed", ids.from_us(now_us))
        store.write_event(job, "replay", actor, now_us, {"execution": made.id, "of": dead.id})
        transaction.on_commit(wiring.wake_dispatchers, using=store.alias())
    return made


def discard(letter: Letter, *, actor: str | None = None) -> Execution:
    """Put a dead letter aside for good; it stays in the history.

    Args:
        letter: the execution or its id; its job may be gone.
        actor: who does it, for the audit.

    Raises:
        NotFound: there is no such execution.
        Conflict: it is no dead letter, or was replayed or discarded already.
    """
    with transaction.atomic(using=store.alias()):
        dead, now_us = attempts.lock_letter(_ids_of(letter)[0]), wiring.now_us()
        attempts.handle(dead, "discarded", ids.from_us(now_us))
        store.write_event(_in_place_of_job(dead), "discard", actor, now_us, {"execution": dead.id})
    return dead


def _in_place_of_job(row: Execution) -> Job:
    """Return what stands for the job of an execution whose own is not there, not to be saved."""
    return Job(id=row.job_id, tenant=row.tenant, name=row.job_name, version=row.job_version, partition=row.partition)


def replay_all(
    letters: Iterable[Letter], *, limit: int = DEFAULT_LIMIT, actor: str | None = None,
    progress: Callable[[], None] = lambda: None,
) -> Handled:
    """Replay many dead letters, each by itself, so that one that is refused stops no other.

    Args:
        letters: executions or their ids, or a queryset such as `list` returns.
        limit: how many are looked at, 1 to 10,000.
        actor: who does it, for the audit.
        progress: called after each.

    Raises:
        InvalidInput: the limit is out of range.
    """
    return _each(letters, limit, lambda letter: replay(letter, actor=actor), progress)


def discard_all(
    letters: Iterable[Letter], *, limit: int = DEFAULT_LIMIT, actor: str | None = None,
    progress: Callable[[], None] = lambda: None,
) -> Handled:
    """Discard many dead letters as :func:`replay_all` replays them."""
    return _each(letters, limit, lambda letter: discard(letter, actor=actor), progress)


def _each(
    letters: Iterable[Letter], limit: int, deed: Callable[[Letter], Execution], progress: Callable[[], None],
) -> Handled:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_HANDLED:
        raise InvalidInput(Problem("limit", f"must be a whole number from 1 to {MAX_HANDLED:,}"))
    some = letters[:limit + 1] if isinstance(letters, ExecutionQuerySet) else islice(letters, limit + 1)
    chosen = [letter for letter in some]
    done: builtins.list[Execution] = []
    refused: builtins.list[tuple[str, str]] = []
    for letter in chosen[:limit]:
        try:
            done.append(deed(letter))
        except (NotFound, Conflict) as error:
            refused.append((letter.id if isinstance(letter, Execution) else str(letter), str(error)))
        progress()
    return Handled(done, refused, len(chosen) > limit)


def _ids_of(letter: Letter) -> tuple[str, str]:
    """Return (execution id, job id).

    Raises:
        NotFound: it is no id of an execution.
    """
    text = letter.id if isinstance(letter, Execution) else str(letter)
    key = attempts.split([text]).get(text)
    if key is None:
        raise NotFound(f"there is no execution {text[:100]!r}")
    return text, key.job_id
