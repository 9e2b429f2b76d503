"""What all kinds of schedules have in common: the questions, their bounds, and how instants are read."""
from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import UTC, datetime, timedelta
from typing import ClassVar, NamedTuple

from chrono_beat.core.schedule_error import ScheduleError

COUNT_LIMIT = 10_000
"""Instants up to which a count is exact unless another limit is given."""

MAX_COUNT_LIMIT = 1_000_000
"""Highest limit of a count."""

_MICROSECOND = timedelta(microseconds=1)
FIRST_INSTANT = datetime(1, 1, 3, tzinfo=UTC)
"""No run lies before; nearer to the calendar's beginning a local time may fall off it."""

END_INSTANT = datetime(9999, 1, 1, tzinfo=UTC)
"""No run lies here or later."""


class ScheduleParts(NamedTuple):
    """What a schedule is made of: three texts to store, and its instants in UTC.

    Args:
        kind: ``"cron"``, ``"interval"``, ``"once"`` or ``"celery"``.
        expression: its text, in the form of its kind.
        timezone: IANA key.
        start: the first instant that may run.
        end: the first instant that may not run any more.
        anchor: the first run of an interval; None for the other kinds, or where it is not known yet.
    """

    kind: str
    expression: str
    timezone: str
    start: datetime | None = None
    end: datetime | None = None
    anchor: datetime | None = None


class Schedule(ABC):
    """A set of instants; all of them lie in the years 1 to 9998.

    Every method takes aware datetimes of any zone and raises :class:`ScheduleError` for others.
    """

    kind: ClassVar[str]
    timezone: str
    start: datetime | None
    end: datetime | None

    def next_after(self, t: datetime) -> datetime | None:
        """Return the first run later than *t*, strictly.

        Args:
            t: an aware datetime.

        Returns:
            An aware UTC datetime; None if no run is left.

        Raises:
            ScheduleError: *t* is naive or no datetime.
        """
        t = read_instant("instant", t)
        if self.start is not None and t < self.start:
            t = self.start - _MICROSECOND
        found = self._next_after(t) if t < END_INSTANT else None
        return None if found is None or (self.end is not None and found >= self.end) else found

    def previous_before(self, t: datetime) -> datetime | None:
        """Return the last run earlier than *t*, strictly.

        Args:
            t: an aware datetime.

        Returns:
            An aware UTC datetime; None if no run came before.

        Raises:
            ScheduleError: *t* is naive or no datetime.
        """
        t = read_instant("instant", t)
        if self.end is not None and t > self.end:
            t = self.end
        found = self._previous_before(t) if t > FIRST_INSTANT else None
        return None if found is None or (self.start is not None and found < self.start) else found

    def matches(self, t: datetime) -> bool:
        """Tell whether *t* is a run, to the microsecond.

        Args:
            t: an aware datetime.

        Raises:
            ScheduleError: *t* is naive or no datetime.
        """
        t = read_instant("instant", t)
        return t > FIRST_INSTANT and self.next_after(t - _MICROSECOND) == t

    def count_between(self, a: datetime, b: datetime, limit: int = COUNT_LIMIT) -> int:
        """Count the runs in [a, b), *a* included and *b* not.

        Costs by clock changes and months, never by runs.

        Args:
            a: an aware datetime.
            b: an aware datetime.
            limit: count exactly up to here, 1 to a million.

        Returns:
            The number of runs; ``limit + 1`` means more than *limit*.

        Raises:
            ScheduleError: *a* or *b* is naive or no datetime, or the limit is out of range.
        """
        a, b = read_instant("instant", a), read_instant("instant", b)
        if type(limit) is not int or not 1 <= limit <= MAX_COUNT_LIMIT:
            raise ScheduleError("limit", f"give a whole number from 1 to {MAX_COUNT_LIMIT}")
        a = max(a, self.start or FIRST_INSTANT, FIRST_INSTANT)
        b = min(b, self.end or END_INSTANT, END_INSTANT)
        return min(self._count(a, b, limit), limit + 1) if a < b else 0

    def parts(self) -> ScheduleParts:
        """Return everything that :func:`~chrono_beat.core.schedule.schedule_from_parts` takes to build this again."""
        return ScheduleParts(*self.to_parts(), start=self.start, end=self.end)

    @abstractmethod
    def to_parts(self) -> tuple[str, str, str]:
        """Return (kind, expression, timezone) as text to store; :meth:`parts` has the instants too."""

    @abstractmethod
    def _next_after(self, t: datetime) -> datetime | None: ...

    @abstractmethod
    def _previous_before(self, t: datetime) -> datetime | None: ...

    @abstractmethod
    def _count(self, a: datetime, b: datetime, limit: int) -> int: ...

    def _check_bounds(self) -> None:
        """Bring `start` and `end` to UTC and refuse a span without instants."""
        for name in ("start", "end"):
            value = getattr(self, name)
            if value is not None:
                put(self, name, read_instant(name, value))
        if self.start is not None and self.end is not None and self.end <= self.start:
            raise ScheduleError("end", "it does not come after start, so nothing would run; give a later end")


def read_instant(field: str, value: object) -> datetime:
    """Return *value* in UTC; what does not fit into the calendar there becomes its end."""
    if not isinstance(value, datetime):
        raise ScheduleError(field, f"an instant is an aware datetime, not {type(value).__name__}")
    if value.tzinfo is UTC:
        return value
    if value.utcoffset() is None:
        raise ScheduleError(field, "a datetime without a zone names no instant; give it tzinfo, such as UTC")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        return (datetime.min if value.year == 1 else datetime.max).replace(tzinfo=UTC)


def put(schedule: Schedule, name: str, value: object) -> None:
    object.__setattr__(schedule, name, value)  # frozen for everybody else
