"""The kinds of schedule: cron text, Celery's crontab, an interval, a single instant."""
from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import ClassVar

from chrono_beat.core.celery_text import FIELDS as CELERY_FIELDS
from chrono_beat.core.celery_text import celery_steps, field_text
from chrono_beat.core.cron_text import Step
from chrono_beat.core.schedule_base import END_INSTANT, FIRST_INSTANT, Schedule, ScheduleParts, put, read_instant
from chrono_beat.core.schedule_error import ScheduleError, shown
from chrono_beat.core.shared import SharedInstants, parsed_celery, parsed_cron, shared_instants
from chrono_beat.core.zones import timeline

SHORTEST_PERIOD = timedelta(seconds=1)
ONCE_GRACE = timedelta(minutes=1)
"""How far in the past a single instant may lie when it is created."""

_MICROSECOND = timedelta(microseconds=1)
_LONGEST_MICROS = 10_000 * 366 * 86_400 * 1_000_000


class WallSchedule(Schedule):
    """What cron text and Celery's crontab have in common."""

    @abstractmethod
    def shared(self) -> SharedInstants:
        """Return the compiled schedule, shared by all of the same meaning and zone."""

    @abstractmethod
    def steps(self) -> tuple[Step, ...]:
        """Return the steps over whole fields, as they were written."""

    def _next_after(self, t: datetime) -> datetime | None:
        return self.shared().next_after(t)

    def _previous_before(self, t: datetime) -> datetime | None:
        return self.shared().previous_before(t)

    def _count(self, a: datetime, b: datetime, limit: int) -> int:
        return self.shared().count_between(a, b, limit)


@dataclass(frozen=True)
class Cron(WallSchedule):
    """Describe runs by five cron fields on the wall clock of a zone.

    Args:
        expression: five fields or an alias such as ``@daily``; `chrono_beat.core.cron_text` has the grammar.
        timezone: an exact IANA key.
        start: the first instant that may run.
        end: the first instant that may not run any more.

    Raises:
        ScheduleError: a part is refused; `field` says which, `reason` how to mend it.
    """

    kind: ClassVar[str] = "cron"

    expression: str
    timezone: str = "UTC"
    _: KW_ONLY
    start: datetime | None = None
    end: datetime | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str):
            raise ScheduleError(
                "expression", f"a cron expression is text of five fields, not {shown(self.expression)}")
        put(self, "expression", parsed_cron(self.expression).text)
        timeline(self.timezone)
        self._check_bounds()

    def shared(self) -> SharedInstants:
        """Return the compiled schedule, shared by all of the same meaning and zone."""
        return shared_instants(parsed_cron(self.expression).fields, self.timezone)

    def steps(self) -> tuple[Step, ...]:
        """Return the steps over whole fields, as they were written."""
        return parsed_cron(self.expression).steps

    def to_parts(self) -> tuple[str, str, str]:
        """Return ("cron", the text with single blanks, timezone)."""
        return self.kind, self.expression, self.timezone


@dataclass(frozen=True)
class CeleryCrontab(WallSchedule):
    """Describe runs by the fields of Celery's ``crontab``: both day fields must hold, unlike in cron text.

    Args:
        minute: text as Celery reads it, a number or a collection of numbers; the other fields likewise.
        hour: 0 to 23.
        day_of_week: 0 (Sunday) to 6.
        day_of_month: 1 to 31.
        month_of_year: 1 to 12.
        timezone: an exact IANA key.
        start: the first instant that may run.
        end: the first instant that may not run any more.

    Raises:
        ScheduleError: Celery would refuse the field, or the zone is none.
    """

    kind: ClassVar[str] = "celery"

    minute: str | int | Iterable[int] = "*"
    hour: str | int | Iterable[int] = "*"
    day_of_week: str | int | Iterable[int] = "*"
    day_of_month: str | int | Iterable[int] = "*"
    month_of_year: str | int | Iterable[int] = "*"
    timezone: str = "UTC"
    _: KW_ONLY
    start: datetime | None = None
    end: datetime | None = None

    def __post_init__(self) -> None:
        for celery_name, name in CELERY_FIELDS:
            put(self, celery_name, field_text(name, getattr(self, celery_name)))
        parsed_celery(self.texts)
        timeline(self.timezone)
        self._check_bounds()

    @property
    def texts(self) -> tuple[str, ...]:
        """The five fields as text, in the order of Celery's constructor."""
        return tuple(str(getattr(self, celery_name)) for celery_name, _ in CELERY_FIELDS)

    def shared(self) -> SharedInstants:
        """Return the compiled schedule, shared by all of the same meaning and zone."""
        return shared_instants(parsed_celery(self.texts), self.timezone)

    def steps(self) -> tuple[Step, ...]:
        """Return the steps over whole fields, as they were written."""
        return celery_steps(self.texts)

    def to_parts(self) -> tuple[str, str, str]:
        """Return ("celery", a JSON list of the five fields, timezone)."""
        return self.kind, json.dumps(self.texts), self.timezone


@dataclass(frozen=True)
class Interval(Schedule):
    """Describe runs at anchor + k × period for k = 0, 1, 2, … in elapsed time.

    Elapsed time is not the wall clock: every 24 hours moves by an hour on the clock when the clock changes, a daily
    cron text does not. Nothing drifts, whatever the delay of a single run.

    Args:
        period: a timedelta or seconds, at least one second, to the microsecond.
        anchor: the instant of the first run; *start* if not given. With neither it is the period alone, as
            ``every(minutes=10)`` writes it: it can be stored, and has no runs until :meth:`anchored` gives it one.
        timezone: an exact IANA key for showing the runs; it does not move them.
        start: the first instant that may run.
        end: the first instant that may not run any more.

    Raises:
        ScheduleError: a part is refused; `field` says which, `reason` how to mend it.
    """

    kind: ClassVar[str] = "interval"

    period: timedelta
    _: KW_ONLY
    anchor: datetime | None = None
    timezone: str = "UTC"
    start: datetime | None = None
    end: datetime | None = None

    def __init__(
        self, period: timedelta | int | float | Decimal, *, anchor: datetime | None = None,
        timezone: str = "UTC", start: datetime | None = None, end: datetime | None = None,
    ) -> None:
        put(self, "period", _period(period))
        put(self, "timezone", timezone)
        put(self, "start", start)
        put(self, "end", end)
        put(self, "anchor", start if anchor is None else anchor)
        if self.anchor is not None:
            put(self, "anchor", read_instant("anchor", self.anchor))
            if not FIRST_INSTANT <= self.anchor < END_INSTANT:
                raise ScheduleError("anchor", "it lies outside the years 1 to 9998")
        timeline(timezone)
        self._check_bounds()

    def to_parts(self) -> tuple[str, str, str]:
        """Return ("interval", seconds as decimal text, timezone); the anchor is stored beside it."""
        micros = self.period // _MICROSECOND
        whole, fraction = divmod(micros, 1_000_000)
        text = f"{whole}.{fraction:06d}".rstrip("0") if fraction else str(whole)
        return self.kind, text, self.timezone

    def parts(self) -> ScheduleParts:
        """Return everything that :func:`~chrono_beat.core.schedule.schedule_from_parts` takes to build this again."""
        return super().parts()._replace(anchor=self.anchor)

    def anchored(self, at: datetime) -> Interval:
        """Return the interval counted from its own anchor, or from *at* if it has none.

        Args:
            at: the moment of creation, an aware datetime.

        Raises:
            ScheduleError: *at* is naive or no datetime.
        """
        return self if self.anchor is not None else replace(self, anchor=at)

    def _next_after(self, t: datetime) -> datetime | None:
        anchor = self._anchor()
        return anchor if t < anchor else self._run((t - anchor) // self.period + 1)

    def _previous_before(self, t: datetime) -> datetime | None:
        anchor = self._anchor()
        return None if t <= anchor else self._run((min(t, END_INSTANT) - anchor - _MICROSECOND) // self.period)

    def _count(self, a: datetime, b: datetime, limit: int) -> int:
        # Runs before an instant: the elapsed periods, rounded up, from the anchor on.
        anchor = self._anchor()
        return max(0, -((anchor - b) // self.period)) - max(0, -((anchor - a) // self.period))

    def _run(self, k: int) -> datetime | None:
        passed = k * (self.period // _MICROSECOND)
        if passed >= (END_INSTANT - self._anchor()) // _MICROSECOND:
            return None
        return self._anchor() + timedelta(microseconds=passed)

    def _anchor(self) -> datetime:
        if self.anchor is None:
            raise ScheduleError("anchor", "an interval needs an instant to count from: its start, or its creation")
        return self.anchor


@dataclass(frozen=True)
class Once(Schedule):
    """Describe a single run.

    Args:
        at: the instant, an aware datetime.
        timezone: an exact IANA key for showing the run; it does not move it.
        start: the first instant that may run.
        end: the first instant that may not run any more.

    Raises:
        ScheduleError: a part is refused; `field` says which, `reason` how to mend it.
    """

    kind: ClassVar[str] = "once"

    at: datetime
    _: KW_ONLY
    timezone: str = "UTC"
    start: datetime | None = None
    end: datetime | None = None

    def __post_init__(self) -> None:
        put(self, "at", read_instant("at", self.at))
        if not FIRST_INSTANT < self.at < END_INSTANT:
            raise ScheduleError("at", "it lies outside the years 1 to 9998")
        timeline(self.timezone)
        self._check_bounds()

    def refuse_past(self, now: datetime) -> None:
        """Raise if the instant has passed by more than a minute; ask this once, when a job is created.

        Args:
            now: the instant of creation. An instant up to a minute old is fine: it runs at once.

        Raises:
            ScheduleError: it lies in the past.
        """
        if self.at < read_instant("instant", now) - ONCE_GRACE:
            raise ScheduleError(
                "at", f"{_iso(self.at)} has passed; give a later instant, or trigger the job now", code="past")

    def to_parts(self) -> tuple[str, str, str]:
        """Return ("once", the instant in ISO 8601 with Z, timezone)."""
        return self.kind, _iso(self.at), self.timezone

    def _next_after(self, t: datetime) -> datetime | None:
        return self.at if t < self.at else None

    def _previous_before(self, t: datetime) -> datetime | None:
        return self.at if self.at < t else None

    def _count(self, a: datetime, b: datetime, limit: int) -> int:
        return int(a <= self.at < b)


def _period(value: object) -> timedelta:
    period = value
    if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool):
        try:
            micros = Decimal(str(value)) * 1_000_000
            period = timedelta(microseconds=int(micros)) if abs(micros) < _LONGEST_MICROS else timedelta.max
            exact = micros == micros.to_integral_value()
        except (ArithmeticError, ValueError):  # not a number, infinite, or too many digits
            raise ScheduleError("period", "it is no length of time; give seconds, such as 90") from None
        if not exact:
            raise ScheduleError("period", "it is finer than a microsecond; give at most six decimal places")
    if not isinstance(period, timedelta):
        raise ScheduleError("period", f"a period is a timedelta or seconds, not {type(value).__name__}")
    if period // _MICROSECOND >= _LONGEST_MICROS:
        raise ScheduleError("period", "it is longer than ten thousand years", code="too_large")
    if period < SHORTEST_PERIOD:
        raise ScheduleError("period", "it is shorter than a second; give one second or more")
    return period


def _iso(instant: datetime) -> str:
    return instant.isoformat().replace("+00:00", "Z")
