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
from datetime import UTC, datetime, timedelta
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


class Peak(NamedTuple):
    """A minute with many executions.

    Args:
        at: its beginning, UTC.
        executions: how many are due in it.
        spread_seconds: the spread that is proposed; None where it is not crowded.
        spread_to: executions in the fullest minute of where its own then go, all jobs being spread so.
    """

    at: datetime
    executions: float
    spread_seconds: int | None = None
    spread_to: float | None = None


class Busiest(NamedTuple):
    """What a tenant has to come.

    Args:
        tenant: its slug.
        executions: in all.
        most: in its fullest minute.
        minute: the index of that minute.
        spread_seconds: the spread that is proposed; None where that minute is not crowded.
    """

    tenant: str
    executions: float
    most: float
    minute: int
    spread_seconds: int | None


class Touched(NamedTuple):
    """A clock change that touches a schedule.

    Args:
        at: the instant of the change, UTC.
        how: "moved", "skipped", "twice" or "once".
        runs: the instants at which it runs for the wall minutes that are left out or come twice, UTC.
    """

    at: datetime
    how: str
    runs: tuple[datetime, ...]


def grouped(load: Load) -> Load:
    """Return what a load is counted by: intervals by where in their period they fall, the others as they are."""
    if load.kind != "interval" or load.anchor is None or load.start or load.end or "." in load.expression:
        return load
    period = int(load.expression)
    phase = (load.anchor - _EPOCH) // timedelta(seconds=1) % period
    # Whole minutes keep their second, so only the minute tells in which one a run is counted.
    return load._replace(anchor=_EPOCH + timedelta(seconds=phase - phase % 60 if period % 60 == 0 else phase))


class Runs:
    """Runs of loads in each minute of one span of time. Each distinct load is computed once, whoever asks for it.

    Args:
        start: an aware datetime; cut down to its minute.
        hours: how far to look, 1 to 168.

    Raises:
        ValueError: *hours* is out of range.
    """

    def __init__(self, start: datetime, hours: int) -> None:
        if not 1 <= hours <= MAX_HOURS:
            raise ValueError(f"hours must be from 1 to {MAX_HOURS}, not {hours}")
        self._first = start.replace(second=0, microsecond=0)
        self._minutes = hours * 60
        self._known: dict[Load, Mapping[int, float]] = {}

    def of(self, load: Load) -> Mapping[int, float]:
        """Return the runs of one job with this load, by the index of the minute; minutes without any are left out.

        Raises:
            ScheduleError: the load makes no schedule.
        """
        found = self._known.get(load)
        if found is None:
            found = self._known[load] = self._compute(load)
        return found

    def together(self, loads: Mapping[Load, int]) -> list[float]:
        """Return the runs of all these jobs, for each minute.

        Args:
            loads: how many jobs have each.

        Raises:
            ScheduleError: a load makes no schedule.
        """
        found = [0.0] * self._minutes
        for load, jobs in loads.items():
            for minute, runs in self.of(load).items():
                found[minute] += runs * jobs
        return found

    def _compute(self, load: Load) -> Mapping[int, float]:
        span = max(1, -(-load.spread_seconds // 60))
        # What was scheduled before the first minute and spread into it counts, too.
        exact = _runs(_schedule(load), self._first - (span - 1) * _MINUTE, self._minutes + span - 1)
        if span == 1:
            return {minute: float(runs) for minute, runs in exact.items()}
        found: dict[int, float] = {}
        for minute, runs in exact.items():
            for index in range(max(0, minute - span + 1), min(self._minutes, minute + 1)):
                found[index] = found.get(index, 0.0) + runs / span
        return found


def forecast(loads: Mapping[Load, int], start: datetime, hours: int = 24) -> list[float]:
    """Return how many executions are due in each minute from *start* on.

    Args:
        loads: how many jobs have each.
        start: an aware datetime; cut down to its minute.
        hours: how far to look, 1 to 168.

    Raises:
        ValueError: *hours* is out of range.
        ScheduleError: a load makes no schedule.
    """
    counted: Counter[Load] = Counter()
    for load, jobs in loads.items():
        counted[grouped(load)] += jobs
    return Runs(start, hours).together(counted)


def fullest(tenants: Mapping[str, Mapping[Load, int]], runs: Runs, count: int) -> list[Busiest]:
    """Return the tenants with the fullest minutes, the fullest first.

    Args:
        tenants: by slug how many jobs have each load.
        runs: of the span of time that is looked at.
        count: how many tenants.

    Raises:
        ScheduleError: a load makes no schedule.
    """
    # No tenant's fullest minute passes the sum of its loads' fullest ones: most need not be added up minute by minute.
    bounds = sorted(((-sum(max(runs.of(load).values(), default=0.0) * jobs for load, jobs in loads.items()), slug)
                     for slug, loads in tenants.items()))
    found: list[Busiest] = []
    for bound, slug in bounds:
        if not bound or (len(found) == count and -bound <= found[-1].most):
            break
        minutes = runs.together(tenants[slug])
        most = max(minutes)
        found.append(Busiest(slug, sum(minutes), most, minutes.index(most), proposed_spread(most)))
        found = sorted(found, key=lambda each: (-each.most, each.tenant))[:count]
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
    return [Peak(first + index * _MINUTE, executions[index], *_relief(executions, index, crowded)) for index in order[:count]]


def _relief(executions: Sequence[float], index: int, crowded: float) -> tuple[int | None, float | None]:
    """Return the shortest spread that leaves a minute's executions uncrowded, else the longest, and what it leaves.

    Spread over n minutes, a minute has the mean of the n up to itself: what goes to the neighbours meets what they have.
    """
    if executions[index] <= crowded:
        return None, None
    for spread in SPREADS:
        length = spread // 60
        left = max(sum(executions[max(0, last - length + 1):last + 1]) for last in range(index, index + length)) / length
        if left <= crowded:
            break
    return spread, left


def proposed_spread(executions: float, crowded: float = CROWDED) -> int | None:
    """Return the spread in seconds to propose for a minute with so many executions; None for none.

    Args:
        executions: how many are due in the minute.
        crowded: executions a minute that are fine.
    """
    if executions <= crowded:
        return None
    return next((spread for spread in SPREADS if executions / (spread / 60) <= crowded), SPREADS[-1])


def advice(others: int, at: datetime, gap: timedelta | None, whose: str, crowded: float = CROWDED) -> str | None:
    """Say in a sentence which spread would help a job that runs in a crowded minute; None where none would.

    A spread of this job alone moves this job alone, so what it would leave is said of all of them.

    Args:
        others: how many other jobs without a spread are due in that minute, at least.
        at: the minute, UTC.
        gap: from this run of the job to its next; None where there is none. A spread is shorter than that.
        whose: who has these jobs, as the end of "jobs of".
        crowded: executions a minute that are fine.
    """
    together = others + 1
    spread = proposed_spread(together, crowded)
    if spread is not None and gap is not None:
        spread = max((each for each in SPREADS if each <= spread and each < gap.total_seconds()), default=None)
    if spread is None:
        return None
    return (f"{at:%H:%M}Z is crowded: at least {others:,} other jobs of {whose} are due in that minute, none of them spread. "
            f"With a spread of {spread} seconds this one is due up to {spread // 60} minutes later; with one on each of them "
            f"about {together * 60 // spread:,} of them are due a minute")


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
        length = abs(change.after - change.before)
        if change.after > change.before:
            made_up = instants.made_up(change)
            how, runs = ("skipped", []) if made_up is None else ("moved", [made_up])
        elif instants.fields.ticks:
            how, runs = "twice", list(instants.within(change.at - length, change.at + length))
        else:
            how, runs = "once", list(instants.within(change.at - length, change.at))
        found.append(Touched(at, how, tuple(map(from_seconds, runs))))
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
    if isinstance(schedule, WallSchedule):
        begin = _second(first)
        low = begin if schedule.start is None else max(begin, _second(schedule.start))
        end = begin + minutes * 60
        high = end if schedule.end is None else min(end, _second(schedule.end))
        return Counter((second - begin) // 60 for second in schedule.shared().instants.within(low, high))
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


def _second(at: datetime) -> int:
    """Return the first whole second at or after an instant: runs by the wall clock fall on whole seconds."""
    second, fraction = to_seconds(at.astimezone(UTC))
    return second + bool(fraction)
