"""Run what a schedule named in the past: a backfill that somebody asks for, or what fell into a pause.

Rows of kind backfill keep the schedule's instants and are due from now on. They run one after another beside the job's
live runs, under the tenant's cap like everything else.
"""
from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import transaction

from chrono_beat.core import field_checks as checks
from chrono_beat.core import ids
from chrono_beat.core.backfill import newest_between, oldest_between
from chrono_beat.core.errors import InvalidInput, Problem, QueueUnavailable
from chrono_beat.core.schedule import Schedule, ScheduleError
from chrono_beat_django import wiring
from chrono_beat_django.models import Job
from chrono_beat_django.store import attempts
from chrono_beat_django.store import definitions as store

MAX_BACKFILL = 10_000
"""Instants of one call: one transaction, during which the job cannot be changed."""

DEFAULT_LIMIT = 1_000
LONGEST_PACE_SECONDS = 86_400
MISSED = ("latest", "all")


class Backfilled(NamedTuple):
    """What a backfill did.

    Args:
        created: executions that it wrote.
        existing: instants that have run, or will, and were left alone.
        left_out: instants beyond the limit; 1,000,001 for more than a million.
        go_on_from: the first of these, to be given as the next call's start; None where nothing was left out.
        end: up to where it went, which is never later than now, nor than the job's next run.
    """

    created: int
    existing: int
    left_out: int
    go_on_from: datetime | None
    end: datetime


def backfill(
    job: Job | str, start: datetime | str, end: datetime | str, *, limit: int = DEFAULT_LIMIT,
    pace: float | timedelta | None = None, token: str | None = None, actor: str | None = None,
) -> Backfilled:
    """Run what a job's schedule named in [start, end), oldest first, beside its live runs.

    Repeating a call adds nothing. An instant whose last attempt was missed, skipped or expired is tried again; any other
    that has a row is left alone. An interval has no instants before its first run.

    Args:
        job: the job or its id; a paused job is filled in, too.
        start: an aware datetime or its ISO text; itself included.
        end: likewise; itself not included. What lies in the future is cut off: the schedule itself will run it.
        limit: instants to look at, 1 to 10,000.
        pace: seconds between the due times of two executions; None makes all due at once, and the tenant's cap holds
            them back.
        token: the request's own name. A second call with the same token within seven days returns the first one's
            answer, whatever has become of its executions.
        actor: who does it, for the audit.

    Raises:
        InvalidInput: with everything that is wrong.
        NotFound: there is no such job.
    """
    first, last, pace_seconds = _checked(start, end, limit, pace)
    store.check_token(token)
    with transaction.atomic(using=store.alias()):
        found = store.lock_job(job.id if isinstance(job, Job) else job)
        now_us = wiring.now_us()
        earlier = None if token is None else store.earlier(found, "backfill", token, now_us)
        if earlier is not None:
            return _read(earlier)
        now = ids.from_us(now_us)
        last = _not_live(found, last, now)
        stretch = oldest_between(_schedule(found, now), first, last, limit)
        filled = attempts.fill_in(
            [attempts.Instants(found, stretch.instants)], now, pace=timedelta(seconds=pace_seconds))
        done = Backfilled(filled.created, filled.existing, stretch.left_out, stretch.go_on_from, last)
        detail = {"start": first, **done._asdict(), **({} if token is None else {"token": token})}
        store.write_event(found, "backfill", actor, now_us, detail)
        transaction.on_commit(wiring.wake_dispatchers, using=store.alias())
    return done


def expected(
    jobs: Sequence[Job], start: datetime | str, end: datetime | str, *, limit: int = DEFAULT_LIMIT,
    pace: float | timedelta | None = None,
) -> dict[uuid.UUID, Backfilled]:
    """Say by job's id what :func:`backfill` with the same arguments would do, without doing it.

    Args:
        jobs: as they are stored; one whose schedule cannot be worked out is left out.

    Raises:
        InvalidInput: with everything that is wrong with the arguments.
    """
    first, last, _ = _checked(start, end, limit, pace)
    now = ids.from_us(wiring.now_us())
    stretches = {}
    for job in jobs:
        try:
            until = _not_live(job, last, now)
            stretches[job] = (oldest_between(_schedule(job, now), first, until, limit), until)
        except InvalidInput:
            continue
    counted = attempts.count([attempts.Instants(job, stretch.instants) for job, (stretch, _) in stretches.items()])
    none = attempts.Filled(0, 0)
    return {
        job.id: Backfilled(*counted.get(job.id, none), stretch.left_out, stretch.go_on_from, until)
        for job, (stretch, until) in stretches.items()
    }


def fill_pauses(
    jobs: Sequence[tuple[Job, datetime]], missed: str, *, limit: int = DEFAULT_LIMIT, now: datetime,
) -> int:
    """Write what fell into the pauses of jobs that are resumed, in the caller's transaction; returns how many executions.

    What was claimed ahead and is still open is made up for where Redis is certain that it never ran; it ends it for good.

    Args:
        jobs: each with the instant since when it was paused; locked, and at the version of the resume. What they had
            claimed before is void.
        missed: "latest": the newest of each job; "all": the newest *limit* of each.
        limit: 1 to 10,000.
        now: up to where.
    """
    wanted = [
        attempts.Instants(job, newest_between(_schedule(job, now), since, now, 1 if missed == "latest" else limit))
        for job, since in jobs
    ]
    return attempts.fill_in(wanted, now, never_runs=_never_runs).created


def _never_runs(job: Job, execution_id: str, version: int) -> bool:
    lane = ids.lane_of(job.tenant, wiring.config().lanes)
    try:
        return wiring.queue().end_voided(lane, execution_id, str(job.id), version + 1, job.tenant) == "ended"
    except QueueUnavailable:
        return False                                      # what may have run is not run again


def check_missed(missed: str | None, limit: int) -> None:
    """Refuse what no resume understands.

    Raises:
        InvalidInput: *missed* is neither None, "latest" nor "all", or the limit is out of range.
    """
    problems = []
    if missed is not None and missed not in MISSED:
        problems.append(Problem("missed", f"must be None, \"latest\" or \"all\", not {checks.cut(str(missed))}"))
    problems += _limit_problems(limit)
    if problems:
        raise InvalidInput(*problems)


def _checked(
    start: object, end: object, limit: object, pace: object,
) -> tuple[datetime, datetime, float]:
    problems = _limit_problems(limit)
    instants = []
    for field, given in (("start", start), ("end", end)):
        instant, wrong = checks.instant(given)
        if wrong or instant is None:
            problems.append(Problem(field, wrong or "must not be empty"))
        instants.append(instant)
    seconds, wrong = checks.number(pace, checks.Number(0, LONGEST_PACE_SECONDS, "seconds"))
    if wrong:
        problems.append(Problem("pace", wrong))
    first, last = instants
    if first is None or last is None:
        raise InvalidInput(*problems)
    if last <= first:
        problems.append(Problem("end", "must come after start"))
    if problems:
        raise InvalidInput(*problems)
    return first, last, seconds or 0.0


def _limit_problems(limit: object) -> list[Problem]:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_BACKFILL:
        return [Problem("limit", f"must be a whole number from 1 to {MAX_BACKFILL:,}")]
    return []


def _not_live(job: Job, end: datetime, now: datetime) -> datetime:
    """Cut off what the schedule itself will run, or judge as missed: from the next run on nothing is claimed yet."""
    return min(end, now, job.next_run_at or now)


def _schedule(job: Job, now: datetime) -> Schedule:
    try:
        return store.definition_of(job).schedule(now)
    except ScheduleError as error:
        raise InvalidInput(Problem(error.field, f"job {job}: {error.reason}")) from error


def _read(detail: dict[str, object]) -> Backfilled:
    def instant(name: str) -> datetime | None:
        text = detail[name]
        return datetime.fromisoformat(text) if isinstance(text, str) else None

    created, existing, left_out = (int(str(detail[name])) for name in ("created", "existing", "left_out"))
    end = instant("end")
    assert end is not None
    return Backfilled(created, existing, left_out, instant("go_on_from"), end)
