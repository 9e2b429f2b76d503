"""What is to come: executions per minute, the crowded minutes, and the clock changes that touch a schedule.

**Rule.** Runs are counted exactly from the schedules. A job with a spread is counted as its expectation: the same share
in each minute of its spread, since where a single job falls depends on its id alone.

**Bound.** The work goes by distinct schedules, not by jobs or tenants: the runs of one are worked out once. Intervals are
told apart by the minute in which they fall, by the second where they are not of whole minutes, and counted by
arithmetic: a hundred thousand jobs of every five minutes are at most 5 of them.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from chrono_beat.core.schedule import Schedule, schedule_from_parts
from chrono_beat.core.schedule_kinds import Interval, WallSchedule
from chrono_beat.core.zones import from_seconds, timeline, to_seconds

MAX_HOURS = 7 * 24
SPREADS = (300, 900, 1_800, 3_600)
"""Seconds that are proposed as a spread: the shortest that helps, else the longest."""

CROWDED = 500
"""Executions a minute from which a minute counts as crowded."""

_MINUTE = timedelta(minutes=1)
_EPOCH = from_seconds(to_seconds(datetime.fromisoformat("1970-01-01T00:00:00+00:00"))[0])


class Load(NamedTuple):
    """What jobs have in common that are counted together.

    Args:
        kind, expression, timezone, start, end, anchor: the parts of the schedule, as stored.
        spread_seconds: over how many seconds its runs are spread.
    """

    kind: str
    expression: str
    timezone: str
    start: datetime | None = None
    end: datetime | None = None
    anchor: datetime | None = None
    spread_seconds: int = 0


Known = dict[Load, Mapping[int, int]]
"""Runs in each minute that has some, by what they were counted for."""


class Peak(NamedTuple):
    """A minute with many executions.

    Args:
        at: its beginning, UTC.
        executions: how many are due in it.
        spread_seconds: the spread that is proposed; None where it is not crowded.
        spread_to: executions a minute with that spread, for what is due in this minute.
    """

    at: datetime
    executions: float
    spread_seconds: int | None = None
    spread_to: float | None = None


class Touched(NamedTuple):
    """A clock change that touches a schedule.

    Args:
        at: the instant of the change, UTC.
        how: "moved", "skipped", "twice" or "once".
    """

    at: datetime
    how: str


def grouped(load: Load) -> Load:
    """Return what a load is counted by: intervals by where in their period they fall, the others as they are."""
    if load.kind != "interval" or load.anchor is None or load.start or load.end or "." in load.expression:
        return load
    period = int(load.expression)
    phase = (load.anchor - _EPOCH) // timedelta(seconds=1) % period
    # Whole minutes keep their second, so only the minute tells in which one a run is counted.
    return load._replace(anchor=_EPOCH + timedelta(seconds=phase - phase % 60 if period % 60 == 0 else phase))


def forecast(
    loads: Mapping[Load, int], start: datetime, hours: int = 24, known: Known | None = None,
) -> list[float]:
    """Return how many executions are due in each minute from *start* on.

    Args:
        loads: how many jobs have each.
        start: an aware datetime; cut down to its minute.
        hours: how far to look, 1 to 168.
        known: runs of schedules that were counted for the same *start* and *hours*; filled in with those of these.

    Raises:
        ValueError: *hours* is out of range.
        ScheduleError: a load makes no schedule.
    """
    if not 1 <= hours <= MAX_HOURS:
        raise ValueError(f"hours must be from 1 to {MAX_HOURS}, not {hours}")
    first = start.replace(second=0, microsecond=0)
    minutes = hours * 60
    known = {} if known is None else known
    counted: Counter[Load] = Counter()
    for load, jobs in loads.items():
        counted[grouped(load)] += jobs
    by_span: dict[int, list[int]] = {}
    for load, jobs in counted.items():
        span = max(1, -(-load.spread_seconds // 60))
        if load not in known:
            # What was scheduled before the first minute and spread into it counts, too.
            known[load] = _runs(_schedule(load), first - (span - 1) * _MINUTE, minutes + span - 1)
        due = by_span.setdefault(span, [0] * (minutes + span - 1))
        for minute, runs in known[load].items():
            due[minute] += runs * jobs
    found = [0.0] * minutes
    for span, due in by_span.items():
        within = sum(due[:span - 1])
        for minute in range(minutes):
            within += due[minute + span - 1]
            found[minute] += within / span
            within -= due[minute]
    return found


def peaks(executions: Sequence[float], start: datetime, count: int = 5, crowded: float = CROWDED) -> list[Peak]:
    """Return the minutes with the most executions, the fullest first, and what a spread would do to them.

    Args:
        executions: what :func:`forecast` returned.
        start: what it was asked for.
        count: how many minutes.
        crowded: executions a minute that are fine.
    """
    first = start.replace(second=0, microsecond=0)
    order = sorted((index for index, number in enumerate(executions) if number), key=lambda index: -executions[index])
    found = []
    for index in order[:count]:
        number = executions[index]
        spread = proposed_spread(number, crowded)
        found.append(Peak(first + index * _MINUTE, number, spread, None if spread is None else number / (spread / 60)))
    return found


def proposed_spread(executions: float, crowded: float = CROWDED) -> int | None:
    """Return the spread in seconds to propose for a minute with so many executions; None for none.

    Args:
        executions: how many are due in the minute.
        crowded: executions a minute that are fine.
    """
    if executions <= crowded:
        return None
    return next((spread for spread in SPREADS if executions / (spread / 60) <= crowded), SPREADS[-1])


def touches(schedule: Schedule, start: datetime, end: datetime) -> list[Touched]:
    """Return the clock changes in (start, end] that touch a schedule, in order (R059).

    Args:
        schedule: one that goes by the wall clock; the others are touched by none.
        start, end: aware datetimes.
    """
    if not isinstance(schedule, WallSchedule):
        return []
    instants = schedule.shared().instants
    found = []
    for change in timeline(schedule.timezone).changes_between(to_seconds(start)[0], to_seconds(end)[0]):
        at = from_seconds(change.at)
        over = (schedule.start is not None and at < schedule.start) or (schedule.end is not None and at >= schedule.end)
        if over or not instants.touched_by(change):
            continue
        if change.after > change.before:
            how = "skipped" if instants.made_up(change) is None else "moved"
        else:
            how = "twice" if instants.fields.ticks else "once"
        found.append(Touched(at, how))
    return found


def _schedule(load: Load) -> Schedule:
    return schedule_from_parts(
        load.kind, load.expression, load.timezone, start=load.start, end=load.end, anchor=load.anchor)


def _runs(schedule: Schedule, first: datetime, minutes: int) -> Mapping[int, int]:
    """Count the runs of a schedule in each minute that has some, from *first* on."""
    if isinstance(schedule, Interval):
        counts = {index: schedule.count_between(first + index * _MINUTE, first + (index + 1) * _MINUTE)
                  for index in _minutes(schedule, first, minutes)}
        return {index: count for index, count in counts.items() if count}
    return Counter((at - first) // _MINUTE for at in _instants(schedule, first, first + minutes * _MINUTE))


def _minutes(schedule: Interval, first: datetime, minutes: int) -> Iterable[int]:
    """Return the minutes in which an interval may have runs."""
    step, rest = divmod(schedule.period, _MINUTE)
    if rest or not step:
        return range(minutes)
    following = schedule.next_after(first - timedelta(microseconds=1))
    return () if following is None else range((following - first) // _MINUTE, minutes, step)


def _instants(schedule: Schedule, first: datetime, end: datetime) -> Iterable[datetime]:
    at = schedule.next_after(first - timedelta(microseconds=1))
    while at is not None and at < end:
        yield at
        at = schedule.next_after(at)
