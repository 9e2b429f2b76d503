"""What a due job's claim contains, and whether what was claimed in time and is loaded late still runs.

Pure decisions: the time comes in as an argument, records go out.

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

**Zone data.** A next run that the schedule does not name was planned by a process with another release of the zone data.
Until it is due it waits for the instant that it stands for by the data in use (:mod:`chrono_beat.core.zone_moves`), where
that is later; otherwise it runs as it was planned. Either way that instant is the same occurrence and does not run again.

**Bound.** A claim costs by the occurrences it writes (`MAX_OCCURRENCES`), never by those that were missed: these are
counted, and the oldest that runs under ``all`` is found by bisection over the count.
"""
from __future__ import annotations

import math
from datetime import datetime, timedelta
from functools import lru_cache

from chrono_beat.core import lifecycle
from chrono_beat.core.ids import from_us, spread_us, to_us
from chrono_beat.core.records import MISFIRE_POLICIES, Claim, DueJob, Occurrence
from chrono_beat.core.schedule import Schedule, ScheduleError, schedule_from_parts
from chrono_beat.core.zone_moves import WALL_KINDS, moved

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

_MICROSECOND = timedelta(microseconds=1)
_SECOND_US = 1_000_000


# -- claim ------------------------------------------------------------------------------------------------------------

Answers = dict[tuple[object, ...], int | None]
"""What schedules were asked: (question, instant, parts of the schedule) -> the run in answer."""


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
        # Invariant 2: one planned by other zone data stays one.
        stands_us = _stands(job, schedule, answers)
        if following + offset_us > now_us:
            following = max(following, stands_us)
        else:
            following = _judge_overdue(job, schedule, now_us - offset_us, offset_us, occurrences)
        last_us = max(until_us, now_us - offset_us)
        room = limit
        while following is not None and following <= last_us and room > 0:
            occurrences.append(Occurrence(following, following + offset_us))
            following = _after_as_before(job, schedule, max(following, stands_us), answers)
            room -= 1
    return Claim(job.job_id, job.partition, job.version, job.next_run_us, epoch, following, occurrences, job.content)


def _stands(job: DueJob, schedule: Schedule, answers: Answers | None) -> int:
    """Return the instant that the job's next run has by the zone data in use, which is nearly always the same."""
    if job.timezone == "UTC" or job.schedule_kind not in WALL_KINDS:
        return job.next_run_us
    asked = ("stands", job.next_run_us, *_parts(job))
    found = None if answers is None else answers.get(asked)
    if found is None:
        found = to_us(moved(schedule, from_us(job.next_run_us)))
        if answers is not None:
            answers[asked] = found
    return found


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
    asked = ("after", us, *_parts(job))
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
