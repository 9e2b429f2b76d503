"""What a due job's claim contains, when a failed occurrence is tried again, and how an outcome ends its row.

Pure decisions: the time and the chance come in as arguments, records go out.

**Misfire.** An occurrence whose due time has passed when it is claimed is *overdue*. What becomes of overdue ones is
the job's choice; whatever does not run becomes one row ``missed`` that says how many it stands for:

=========  ==============================================  =======================================================
policy     runs                                            grace, unless the job sets one
=========  ==============================================  =======================================================
latest     the newest, if it is within grace               one-offs: any time. Else the longer of an hour and the
                                                           job's own period, at most a day
skip       all that are within grace                       a minute
all        the newest up to the cap, within grace if set   any time
=========  ==============================================  =======================================================

**Worked example.** ``*/10 * * * *``, policy latest, nobody there from 09:05 to 10:03. At 10:03 the instants 09:10 to
10:00 are overdue: 10:00 runs, and a row ``missed`` at 09:50 stands for five, the first of which was 09:10.

**Bound.** A claim costs by the occurrences it writes (`MAX_OCCURRENCES`), never by those that were missed: these are
counted, and the oldest that runs under ``all`` is found by bisection over the count.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from chrono_beat.core import lifecycle
from chrono_beat.core.ids import from_us, spread_us, to_us
from chrono_beat.core.records import (
    GONE_VERSION,
    MISFIRE_POLICIES,
    MISSED,
    RAN_FAILED,
    RAN_LOST,
    RAN_OK,
    RAN_REJECTED,
    RAN_RETRY,
    RAN_REVOKED,
    RAN_SUPERSEDED,
    RAN_TIMEOUT,
    Claim,
    DueJob,
    Ending,
    NewAttempt,
    Occurrence,
    OpenExecution,
    Outcome,
    RetryPolicy,
    Start,
)
from chrono_beat.core.schedule import Schedule, ScheduleError, schedule_from_parts

MAX_OCCURRENCES = 64
"""Occurrences of one job in one claim; the look-ahead comes round at once for the rest."""

DEFAULT_MISFIRE_CAP = 1_000
"""Overdue occurrences that ``all`` runs unless the job says otherwise."""

SKIP_GRACE_US = 60_000_000
SHORTEST_GRACE_US = 3_600_000_000
LONGEST_GRACE_US = 86_400_000_000

LONGEST_SPREAD_SECONDS = 86_400
MAX_COUNTED = 1_000_000
"""Missed occurrences that are counted; a greater number is recorded as one more than this."""

MAX_SCHEDULES = 8_192
"""Schedules that are kept between claims, by their stored parts."""

LONGEST_RETRY_US = 10 * 366 * 86_400_000_000
"""How far ahead a task may put its own retry: ten years. More is a slip, and may not fit into a database's calendar."""

MAX_ERROR_CHARACTERS = 4_000
"""Length of an execution's error text; of a traceback the end is kept."""

_MICROSECOND = timedelta(microseconds=1)
_SECOND_US = 1_000_000


# -- claim ------------------------------------------------------------------------------------------------------------

Answers = dict[tuple[object, ...], int | None]
"""The runs that schedules named: (parts of the schedule, instant) -> the run after it."""


def plan_claim(
    job: DueJob, now_us: int, until_us: int, epoch: int, limit: int = MAX_OCCURRENCES, answers: Answers | None = None,
) -> Claim:
    """Decide what the claim of a due job writes, and where its next run then stands.

    Args:
        job: a row of the due index.
        now_us: what is due by then is overdue; microseconds since the epoch.
        until_us: the end of the look-ahead: occurrences scheduled later are left for another claim.
        epoch: under which the claimant owns the job's partition.
        limit: occurrences to run in one claim, at least 1.
        answers: shared by the jobs of one batch, which often have the schedule and the instant in common. Not for longer:
            zone data may change.

    Raises:
        ScheduleError: the row cannot be planned, and `field` and `reason` say why.
    """
    schedule = _schedule_of(job)
    occurrences: list[Occurrence] = []
    if job.replan:
        # Edited around the store: what was planned counts for nothing, and nothing of it is made up for.
        following = _after(schedule, now_us)
    else:
        offset_us = spread_us(job.job_id, job.spread_seconds)
        following = job.next_run_us
        if following + offset_us <= now_us:
            following = _judge_overdue(job, schedule, now_us - offset_us, offset_us, occurrences)
        last_us = max(until_us, now_us - offset_us)
        room = limit
        while following is not None and following <= last_us and room > 0:
            occurrences.append(Occurrence(following, following + offset_us))
            following = _after_as_before(job, schedule, following, answers)
            room -= 1
    return Claim(job.job_id, job.partition, job.version, job.next_run_us, epoch, following, occurrences, job.content)


def _judge_overdue(
    job: DueJob, schedule: Schedule, reached_us: int, offset_us: int, occurrences: list[Occurrence],
) -> int | None:
    """Return the first instant that runs, overdue or not; note in one row what is missed before it.

    *reached_us* is the schedule's own time: instants up to it are overdue.
    """
    first_us = job.next_run_us
    end = from_us(reached_us) + _MICROSECOND
    newest = schedule.previous_before(end)
    newest_us = first_us if newest is None else max(first_us, to_us(newest))
    oldest_us = _oldest_that_runs(job, schedule, first_us, newest_us, reached_us, end)
    if oldest_us is not None and oldest_us <= first_us:
        return first_us
    if oldest_us is None:                                  # not even the newest
        last_missed_us, following = newest_us, _after(schedule, reached_us)
    else:
        before = schedule.previous_before(from_us(oldest_us))
        last_missed_us, following = first_us if before is None else max(first_us, to_us(before)), oldest_us
    # The first one counts even where zone data or an edit have moved the schedule off it.
    count = 1 + (_count(schedule, first_us + 1, last_missed_us + 1) if last_missed_us > first_us else 0)
    occurrences.append(Occurrence(last_missed_us, last_missed_us + offset_us, lifecycle.MISSED, count, first_us))
    return following


def still_runs(job: DueJob, scheduled_us: int, now_us: int) -> bool:
    """Say whether an occurrence that was claimed in time, and has come overdue since, still runs by the misfire policy.

    Args:
        job: its job, as it is now.
        scheduled_us: the occurrence's instant; it is overdue.
        now_us: microseconds since the epoch.

    Raises:
        ScheduleError: the job cannot be planned.
    """
    schedule = _schedule_of(job)
    reached_us = now_us - spread_us(job.job_id, job.spread_seconds)
    end = from_us(reached_us) + _MICROSECOND
    newest = schedule.previous_before(end)
    newest_us = scheduled_us if newest is None else max(scheduled_us, to_us(newest))
    oldest_us = _oldest_that_runs(job, schedule, scheduled_us, newest_us, reached_us, end)
    return oldest_us is not None and oldest_us <= scheduled_us


def _oldest_that_runs(
    job: DueJob, schedule: Schedule, first_us: int, newest_us: int, reached_us: int, end: datetime,
) -> int | None:
    """Return the oldest overdue instant that still runs; None where none does."""
    grace_us = _grace_us(job, schedule, newest_us)
    since_us = first_us if grace_us is None else reached_us - grace_us
    if newest_us < since_us:
        return None
    if job.misfire == "latest":
        return newest_us
    if job.misfire == "all":
        since_us = max(since_us, _start_of_newest(schedule, job.misfire_cap or DEFAULT_MISFIRE_CAP, first_us, end))
    if since_us <= first_us:
        return first_us
    oldest = _after(schedule, since_us - 1)
    return newest_us if oldest is None else min(oldest, newest_us)


def _grace_us(job: DueJob, schedule: Schedule, newest_us: int) -> int | None:
    """Return by how much an occurrence may be late before it counts as missed; None for any time."""
    if job.grace_seconds is not None:
        return round(job.grace_seconds * _SECOND_US)
    if job.misfire == "skip":
        return SKIP_GRACE_US
    if job.misfire == "all" or job.schedule_kind == "once":
        return None
    following = _after(schedule, newest_us)
    if following is not None:
        period_us = following - newest_us
    else:
        before = schedule.previous_before(from_us(newest_us))
        period_us = 0 if before is None else newest_us - to_us(before)
    return min(max(period_us, SHORTEST_GRACE_US), LONGEST_GRACE_US)


def _start_of_newest(schedule: Schedule, cap: int, first_us: int, end: datetime) -> int:
    """Return an instant from which on at most *cap* runs lie before *end*; from a second earlier on there are more.

    Bisected over the count, to the second: a schedule has at most one run in a second.
    """
    if schedule.count_between(from_us(first_us), end, cap) <= cap:
        return first_us
    low, high = 0, (to_us(end) - first_us) // _SECOND_US + 1          # seconds after the first; low is too many
    while high - low > 1:
        middle = (low + high) // 2
        if schedule.count_between(from_us(first_us + middle * _SECOND_US), end, cap) > cap:
            low = middle
        else:
            high = middle
    return first_us + high * _SECOND_US


def _count(schedule: Schedule, start_us: int, end_us: int) -> int:
    return schedule.count_between(from_us(start_us), from_us(end_us), MAX_COUNTED)


def _after_as_before(job: DueJob, schedule: Schedule, us: int, answers: Answers | None) -> int | None:
    if answers is None:
        return _after(schedule, us)
    asked = (us, *_parts(job))
    if asked not in answers:
        answers[asked] = _after(schedule, us)
    return answers[asked]


def _after(schedule: Schedule, us: int) -> int | None:
    found = schedule.next_after(from_us(us))
    return None if found is None else to_us(found)


def _schedule_of(job: DueJob) -> Schedule:
    """Return the job's schedule, after a look at everything else that its plan is reckoned from."""
    if not 0 <= job.spread_seconds <= LONGEST_SPREAD_SECONDS:
        raise ScheduleError("spread", f"must be from 0 to {LONGEST_SPREAD_SECONDS:,} seconds, not {job.spread_seconds}")
    if job.misfire not in MISFIRE_POLICIES:
        raise ScheduleError("misfire", f"{job.misfire[:40]!r} is not one of {', '.join(MISFIRE_POLICIES)}")
    if job.misfire_cap is not None and not 1 <= job.misfire_cap < MAX_COUNTED:
        raise ScheduleError("misfire_cap", f"must be from 1 to {MAX_COUNTED - 1:,}, not {job.misfire_cap}")
    if job.grace_seconds is not None and not 0 <= job.grace_seconds < math.inf:
        raise ScheduleError("grace", f"must be 0 or more seconds, not {job.grace_seconds}")
    return _schedule(*_parts(job))


def _parts(job: DueJob) -> tuple[str, str, str, int | None, int | None, int | None]:
    return job.schedule_kind, job.expression, job.timezone, job.start_us, job.end_us, job.anchor_us


@lru_cache(maxsize=MAX_SCHEDULES)
def _schedule(
    kind: str, expression: str, timezone: str, start_us: int | None, end_us: int | None, anchor_us: int | None,
) -> Schedule:
    start, end, anchor = (None if us is None else from_us(us) for us in (start_us, end_us, anchor_us))
    return schedule_from_parts(kind, expression, timezone, start=start, end=end, anchor=anchor)


# -- retry ------------------------------------------------------------------------------------------------------------

def retry_delay_seconds(policy: RetryPolicy, attempt: int, random: Callable[[], float]) -> float:
    """Return how long to wait before the next attempt: min(maximum, base × factor^(attempt − 1)), then ± jitter.

    Args:
        policy: the job's.
        attempt: how many attempts there have been since the occurrence (or its replay) began, at least 1.
        random: gives a number from 0 to 1, 1 excluded.

    Returns:
        Seconds; never above the maximum, and never below base × (1 − jitter) where the maximum allows that.
    """
    base, factor, maximum = policy.base_seconds, policy.factor, policy.maximum_seconds
    try:
        delay = min(maximum, base * factor ** (attempt - 1))
    except OverflowError:
        delay = maximum
    delay *= 1 + policy.jitter * (2 * random() - 1)
    return min(maximum, max(delay, base * (1 - policy.jitter)))


def _asked_to_wait_seconds(policy: RetryPolicy, detail: Mapping[str, Any]) -> float:
    """Return for how long a target asked to be left alone (``Retry-After``), up to the job's maximum; 0 where it did not.

    It is the least that the target wants (RFC 9110, section 10.2.3); the back-off may be longer.
    """
    error = detail.get("error")
    asked = error.get("retry_after_seconds") if isinstance(error, Mapping) else None
    if isinstance(asked, bool) or not isinstance(asked, (int, float)) or not asked > 0:
        return 0.0
    return min(policy.maximum_seconds, asked)


# -- end --------------------------------------------------------------------------------------------------------------

# Outcomes that end a row without a look at it: state and reason. The others depend on the row.
_PLAIN_ENDS = {
    RAN_OK: (lifecycle.SUCCEEDED, ""),
    RAN_REVOKED: (lifecycle.CANCELLED, ""),                # by the user, with Celery's revoke: no retry
    "cancelled": (lifecycle.CANCELLED, ""),                # asked for by a user, before its body began
    RAN_SUPERSEDED: (lifecycle.CANCELLED, "superseded"),   # told to stop, since a newer occurrence takes its place
    RAN_REJECTED: (lifecycle.DEAD, "invalid"),
    RAN_LOST: (lifecycle.DEAD, "worker_lost"),             # and expired before it could be handed out again
    "reap_cap": (lifecycle.DEAD, "reap_cap"),
    "no_worker": (lifecycle.DEAD, "no_worker"),            # lay aside for long enough; no worker came that knows its task
    "skipped": (lifecycle.SKIPPED, "overlap"),
    "expired": (lifecycle.EXPIRED, ""),
    MISSED: (lifecycle.MISSED, "misfire"),
}
_CONDITIONAL = ("skipped", "expired", "voided", "cancelled", MISSED)
_FAILURES = {RAN_FAILED: "error", RAN_RETRY: "error", RAN_TIMEOUT: "timeout"}
NEEDS_ROW = frozenset({*_FAILURES, "voided"})
"""Events whose end cannot be decided without the execution's row."""


def decide_end(
    execution: OpenExecution | None, outcome: Outcome, now_us: int, random: Callable[[], float],
) -> tuple[Ending | None, NewAttempt | None, Start | None]:
    """Decide what an outcome does to its execution.

    Args:
        execution: the open row; only the events of `NEEDS_ROW` need it, and do nothing where it is not open any more.
        outcome: what Redis says.
        now_us: microseconds since the epoch; no retry is put off further from it than `LONGEST_RETRY_US`.
        random: gives a number from 0 to 1, 1 excluded, for the jitter.

    Returns:
        The row's end, the next attempt, or its start; None for what does not follow.

    Raises:
        ValueError: the event is none that is known.
    """
    if outcome.event == "started":
        return None, None, Start(outcome.execution_id, outcome.at_us, outcome.worker, outcome.deliveries)
    if execution is not None and _is_unknown(execution, outcome):
        version = execution.version if outcome.event in ("voided", "cancelled") else outcome.version
        return _ending(outcome, lifecycle.DEAD, "unknown", version), None, None
    if outcome.event in _PLAIN_ENDS:
        state, reason = _PLAIN_ENDS[outcome.event]
        if outcome.event == RAN_SUPERSEDED and outcome.detail.get("unknown"):
            state, reason = lifecycle.DEAD, "unknown"          # rule 12: it may have run before Redis' memory was lost
        named = outcome.event == "cancelled"                   # then whatever version it has
        if named and outcome.token:
            state, reason = lifecycle.DEAD, "unknown"          # a worker had it, and could not say any more whether it ran
        return _ending(outcome, state, reason, None if named else outcome.version), None, _forgotten_start(outcome)
    if outcome.event not in NEEDS_ROW:
        raise ValueError(f"no such event: {outcome.event[:40]!r}")
    if execution is None:
        return None, None, None
    if outcome.event == "voided":
        # It speaks of every row below its version, so a row that a newer plan has taken over stays open.
        if execution.version >= outcome.version:
            return None, None, None
        # Rule 12: it began, or a worker had it that could not say so any more; nobody will say how it ended.
        if execution.state == lifecycle.RUNNING or outcome.token:
            return _ending(outcome, lifecycle.DEAD, "unknown", execution.version), None, None
        reason = "deleted" if outcome.version >= GONE_VERSION else "superseded"
        return _ending(outcome, lifecycle.CANCELLED, reason, execution.version), None, None
    attempt = _next_attempt(execution, outcome, now_us, random)
    state = lifecycle.DEAD if attempt is None else lifecycle.FAILED
    return _ending(outcome, state, _FAILURES[outcome.event], None), attempt, _forgotten_start(outcome)


def _forgotten_start(outcome: Outcome) -> Start | None:
    """Return the start of a delivery that its lane has forgotten, and with it perhaps that it had started.

    Such an outcome has no tenant. The instant is the latest possible one; what was recorded before stays.
    """
    if outcome.tenant or outcome.event not in (RAN_OK, *_FAILURES):
        return None
    runtime_ms = outcome.detail.get("runtime_ms")
    ran_us = round(runtime_ms * 1000) if isinstance(runtime_ms, (int, float)) else 0
    return Start(outcome.execution_id, outcome.at_us - ran_us, outcome.worker, outcome.deliveries)


def needs_row(outcome: Outcome) -> bool:
    """Say whether `decide_end` has to know the execution's row."""
    return outcome.event in NEEDS_ROW or "unknown_before" in outcome.detail


def _is_unknown(execution: OpenExecution, outcome: Outcome) -> bool:
    """Rule 12: what was due before the lane's generation began may have run, and nobody can know any more."""
    before_us = outcome.detail.get("unknown_before")
    if before_us is None or outcome.event not in _CONDITIONAL:
        return False
    if outcome.event == "voided" and execution.version >= outcome.version:
        return False                                       # a newer plan has taken the row over
    return execution.due_us < int(before_us)


def _ending(outcome: Outcome, state: str, reason: str, version: int | None) -> Ending:
    # Rule 11: a decision without a run counts only for the version and the generation that it was made for. What a
    # worker did counts for any open row.
    conditional = outcome.event in _CONDITIONAL or (outcome.event == RAN_SUPERSEDED and not outcome.token)
    return Ending(
        outcome.execution_id, state, reason, outcome.at_us, outcome.worker, outcome.deliveries,
        _in_the_way(outcome) or error_text(outcome.detail), version if conditional else None,
        outcome.generation if conditional else None, outcome.lane,
    )


def _in_the_way(outcome: Outcome) -> str:
    """Say which other execution a decision about overlap was for; "" for other outcomes."""
    other = outcome.detail.get("blocked_by")
    if not other:
        return ""
    return f"{other} was active" if outcome.event == "skipped" else f"replaced by {other}"


ATTEMPTS_UNTOLD = 4
"""Attempts in all where a body ended by Retry and nothing says how often: Celery's default of three retries."""


def _next_attempt(
    execution: OpenExecution, outcome: Outcome, now_us: int, random: Callable[[], float],
) -> NewAttempt | None:
    """Return the attempt after a failed one; None where it was the last.

    Retries are counted since the occurrence, or its replay, began: a replay starts them anew, attempt numbers grow.
    """
    policy, made = execution.retry, execution.retries + 1
    asked: Mapping[str, Any] | None = outcome.detail.get("retry") if outcome.event == RAN_RETRY else None
    most = policy.max_attempts
    if outcome.event == RAN_RETRY and not policy.explicit:
        # The task has obeyed its own max_retries. Where what it asked for was lost, or nothing was asked (a body may
        # raise Retry itself), Celery's default is the limit, since there must be one.
        most = ATTEMPTS_UNTOLD if asked is None else made + 1
    if made >= most:
        return None
    if asked is None:
        delay = max(retry_delay_seconds(policy, made, random), _asked_to_wait_seconds(policy, outcome.detail))
        due_us = outcome.at_us + round(delay * _SECOND_US)
        return NewAttempt(execution.execution_id, execution.attempt + 1, made, due_us)
    eta_us = asked.get("eta_us")
    due_us = outcome.at_us + int(asked.get("countdown_us") or 0) if eta_us is None else int(eta_us)
    due_us = min(max(due_us, outcome.at_us), now_us + LONGEST_RETRY_US)
    return NewAttempt(
        execution.execution_id, execution.attempt + 1, made, due_us, asked.get("args"), asked.get("kwargs"),
    )


def error_text(detail: Mapping[str, Any]) -> str:
    """Return what an outcome says of its error, as a short text: type and message, then the end of the traceback."""
    error = detail.get("error")
    if not isinstance(error, Mapping):
        return ""
    text = _storable(f"{error.get('type') or 'Error'}: {error.get('message') or ''}")[:MAX_ERROR_CHARACTERS]
    trace = _storable(str(error.get("traceback") or ""))
    room = MAX_ERROR_CHARACTERS - len(text) - 1
    return f"{text}\n{trace[-room:]}" if trace and room > 0 else text


def _storable(text: str) -> str:
    """Replace what no database keeps; an error's text may hold whatever made the task fail."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
