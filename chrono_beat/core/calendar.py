"""Which wall minutes a schedule names: minute, hour, month and day fields over a calendar without zones.

**Rule.** A wall minute is named when its minute, hour and month are listed and its day obeys the `DayRule`. A day rule
has two halves, dates (day of month) and weekdays. If one half is free the other decides; if both are restricted either
is enough (POSIX cron), or both are needed (Celery's crontab, `DayRule.both`).

**Who names them.** croniter finds the next and the previous named minute where it is right: over naive times, given
plain sorted numbers, with at most one half of the day rule restricted and no date after the 28th (croniter 6 loses
1 March behind a list that ends in 30 or 31). The other days, combined ones and ``L``, ``W`` and ``#``, are found here
month by month; so is everything in the first and last hundred years, where croniter leaves datetime's range.

**Units.** A wall time is a whole number of seconds of the wall clock since 0001-01-01T00:00. The day of wall time *w*
is the ordinal ``w // 86400 + 1``. Integers cannot overflow at the ends of the calendar, where datetime raises.

**Bound.** What a month looks like depends on its number, its length and the weekday of its first day, so a rule knows
at most 91 different months and keeps them. The longest search, 40 years for a fifth Monday in February, looks at 40.
"""
from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from calendar import monthrange
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from croniter import croniter

DAY_SECONDS = 86_400
LAST_ORDINAL = date.max.toordinal()
LONGEST_MONTH = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
"""Days that a month can have, January first, as in a leap year."""

SURE_DATE = 28
"""The last day that every month has."""

CRONITER_YEARS = range(100, 9_900)
"""Years of wall times that croniter may be asked about: it searches up to 50 years and must stay inside datetime's."""

_ORIGIN = datetime(1, 1, 1)
_SECOND = timedelta(seconds=1)
_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class DayRule:
    """Which days of a month are meant.

    Args:
        dates: days of the month, sorted.
        last_date: the last day of the month too (``L``).
        last_workday: the last Monday to Friday (``LW``).
        near: the Monday to Friday nearest to this date, in the same month (``15W``); None if not asked for.
        any_date: the date half is free, and the four above are empty.
        weekdays: days of the week, sorted, 0 is Sunday.
        nth: (weekday, n) pairs, the n-th such day of the month (``5#2``).
        last_of: weekdays, the last such day of the month (``5L``).
        any_weekday: the weekday half is free, and the three above are empty.
        both: if both halves are restricted, a day must obey both.
    """

    dates: tuple[int, ...] = ()
    last_date: bool = False
    last_workday: bool = False
    near: int | None = None
    any_date: bool = False
    weekdays: tuple[int, ...] = ()
    nth: tuple[tuple[int, int], ...] = ()
    last_of: tuple[int, ...] = ()
    any_weekday: bool = False
    both: bool = False

    @property
    def plain(self) -> bool:
        """True if one list of numbers says it all, without days that some month lacks: croniter can be trusted."""
        special = self.last_date or self.last_workday or self.near is not None or self.nth or self.last_of
        return not special and (self.any_date or self.any_weekday) and max(self.dates, default=0) <= SURE_DATE

    def days(self, length: int, first_weekday: int) -> tuple[int, ...]:
        """Return the days of a month that are meant, sorted.

        Args:
            length: days in the month.
            first_weekday: weekday of its first day, 0 is Sunday.
        """
        if self.any_date and self.any_weekday:
            return tuple(range(1, length + 1))
        if self.any_weekday:
            return tuple(sorted(self._by_date(length, first_weekday)))
        if self.any_date:
            return tuple(sorted(self._by_weekday(length, first_weekday)))
        dates, weekdays = self._by_date(length, first_weekday), self._by_weekday(length, first_weekday)
        return tuple(sorted(dates & weekdays if self.both else dates | weekdays))

    def possible(self, months: tuple[int, ...]) -> bool:
        """Tell whether some day of some year is meant in one of *months*; 29 days count for February."""
        if not self.any_weekday and not self.both:
            return True  # every weekday comes in every month; a fifth one in February, in some leap years
        if self.any_date or self.last_date or self.last_workday:
            return True
        longest = max(LONGEST_MONTH[month - 1] for month in months)
        wanted = self.dates if self.near is None else (self.near,)
        return min(wanted) <= longest

    def _by_date(self, length: int, first_weekday: int) -> set[int]:
        days = {day for day in self.dates if day <= length}
        if self.last_date:
            days.add(length)
        if self.last_workday:
            days.add(_nearest_workday(length, length, first_weekday))
        if self.near is not None and self.near <= length:
            days.add(_nearest_workday(self.near, length, first_weekday))
        return days

    def _by_weekday(self, length: int, first_weekday: int) -> set[int]:
        days = {day for day in range(1, length + 1) if (first_weekday + day - 1) % 7 in self.weekdays}
        for weekday, n in self.nth:
            day = (weekday - first_weekday) % 7 + 1 + 7 * (n - 1)
            if day <= length:
                days.add(day)
        for weekday in self.last_of:
            days.add(length - (first_weekday + length - 1 - weekday) % 7)
        return days


@dataclass(frozen=True, slots=True)
class Fields:
    """The meaning of a cron text: equal meanings are equal values, however they were spelled.

    Args:
        minutes: minutes of the hour, sorted, at least one.
        hours: hours of the day, sorted, at least one.
        months: months, sorted, at least one.
        days: which days of these months.
        ticks: it goes by elapsed minutes rather than by fixed times of day (see `chrono_beat.core.instants`).
    """

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    months: tuple[int, ...]
    days: DayRule
    ticks: bool

    @property
    def names_hours(self) -> bool:
        """True if some hour of the day is left out."""
        return len(self.hours) < 24


class WallCalendar:
    """Finds and counts the wall minutes that *fields* name."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self._months: dict[tuple[int, int, int], tuple[int, ...]] = {}
        self._croniter: croniter | None = None
        self._croniter_lock = threading.Lock()  # croniter keeps its start time in itself

    def next(self, wall: int) -> int | None:
        """Return the first named minute at or after *wall* (wall seconds); None if the calendar ends before."""
        wall = -(-wall // 60) * 60
        if self._croniter_knows(wall):
            return self._ask_croniter(wall, forward=True)
        day, minute = divmod(max(wall, 0) // 60, 1_440)
        if self._names_day(day + 1):
            found = self._minute_from(minute)
            if found is not None:
                return day * DAY_SECONDS + found * 60
        ordinal = self._day_from(day + 2)
        if ordinal is None:
            return None
        return (ordinal - 1) * DAY_SECONDS + self.fields.hours[0] * 3_600 + self.fields.minutes[0] * 60

    def previous(self, wall: int) -> int | None:
        """Return the last named minute before *wall* (wall seconds); None if the calendar begins after."""
        wall = min(-(-wall // 60) * 60, LAST_ORDINAL * DAY_SECONDS)
        if self._croniter_knows(wall):
            return self._ask_croniter(wall, forward=False)
        day, minute = divmod(wall // 60, 1_440)
        if self._names_day(day + 1):
            found = self._minute_before(minute)
            if found is not None:
                return day * DAY_SECONDS + found * 60
        ordinal = self._day_until(day)
        if ordinal is None:
            return None
        return (ordinal - 1) * DAY_SECONDS + self.fields.hours[-1] * 3_600 + self.fields.minutes[-1] * 60

    def names(self, wall: int) -> bool:
        """Tell whether *wall* (wall seconds) is a named minute."""
        day, second = divmod(wall, DAY_SECONDS)
        hour, rest = divmod(second, 3_600)
        return (
            rest % 60 == 0
            and hour in self.fields.hours
            and rest // 60 in self.fields.minutes
            and self._names_day(day + 1)
        )

    def count(self, start: int, end: int) -> int:
        """Count the named minutes in [start, end) (wall seconds); a negative count if *end* comes before *start*.

        Costs by months, not by minutes.
        """
        if end < start:
            return -self.count(end, start)
        first_day, first_minute = divmod(-(-start // 60), 1_440)
        last_day, last_minute = divmod(-(-end // 60), 1_440)
        per_day = len(self.fields.hours) * len(self.fields.minutes)
        total = self._count_days(first_day + 1, last_day + 1) * per_day
        if self._names_day(first_day + 1):
            total -= self._count_minutes(first_minute)
        if self._names_day(last_day + 1):
            total += self._count_minutes(last_minute)
        return total

    def within(self, start: int, end: int) -> Iterator[int]:
        """Return the named minutes in [start, end) (wall seconds), in order. Costs by what it returns, and by days."""
        for ordinal in range(start // DAY_SECONDS + 1, -(-end // DAY_SECONDS) + 1):
            if self._names_day(ordinal):
                for hour in self.fields.hours:
                    for minute in self.fields.minutes:
                        wall = (ordinal - 1) * DAY_SECONDS + hour * 3_600 + minute * 60
                        if start <= wall < end:
                            yield wall

    # Days, as ordinals.

    def _days_of(self, year: int, month: int) -> tuple[int, ...]:
        monday_based, length = monthrange(year, month)
        key = (month, length, monday_based)
        days = self._months.get(key)
        if days is None:
            wanted = month in self.fields.months
            days = self._months[key] = self.fields.days.days(length, (monday_based + 1) % 7) if wanted else ()
        return days

    def _names_day(self, ordinal: int) -> bool:
        if not 1 <= ordinal <= LAST_ORDINAL:
            return False
        day = date.fromordinal(ordinal)
        return day.month in self.fields.months and day.day in self._days_of(day.year, day.month)

    def _day_from(self, ordinal: int) -> int | None:
        if ordinal > LAST_ORDINAL:
            return None
        after = date.fromordinal(max(ordinal, 1))
        floor = after.day
        for year in range(after.year, 10_000):
            for month in self.fields.months:
                if year == after.year and month < after.month:
                    continue
                days = self._days_of(year, month)
                index = bisect_left(days, floor) if (year, month) == (after.year, after.month) else 0
                if index < len(days):
                    return date(year, month, days[index]).toordinal()
        return None

    def _day_until(self, ordinal: int) -> int | None:
        if ordinal < 1:
            return None
        until = date.fromordinal(ordinal)
        for year in range(until.year, 0, -1):
            for month in reversed(self.fields.months):
                if year == until.year and month > until.month:
                    continue
                days = self._days_of(year, month)
                same = (year, month) == (until.year, until.month)
                index = bisect_right(days, until.day) if same else len(days)
                if index:
                    return date(year, month, days[index - 1]).toordinal()
        return None

    def _count_days(self, start: int, end: int) -> int:
        """Count the days named in [start, end), ordinals."""
        start, end = max(start, 1), min(end, LAST_ORDINAL + 1)
        if start >= end:
            return 0
        first, last = date.fromordinal(start), date.fromordinal(end - 1)
        total = 0
        for year in range(first.year, last.year + 1):
            for month in self.fields.months:
                if (first.year, first.month) < (year, month) < (last.year, last.month):
                    total += len(self._days_of(year, month))
                elif (first.year, first.month) <= (year, month) <= (last.year, last.month):
                    days = self._days_of(year, month)
                    low = bisect_left(days, first.day) if (year, month) == (first.year, first.month) else 0
                    high = bisect_right(days, last.day) if (year, month) == (last.year, last.month) else len(days)
                    total += high - low
        return total

    # Minutes of a named day, 0 to 1440.

    def _minute_from(self, minute: int) -> int | None:
        hours, minutes = self.fields.hours, self.fields.minutes
        hour, rest = divmod(minute, 60)
        index = bisect_left(minutes, rest)
        if hour in hours and index < len(minutes):
            return hour * 60 + minutes[index]
        index = bisect_right(hours, hour)
        return hours[index] * 60 + minutes[0] if index < len(hours) else None

    def _minute_before(self, minute: int) -> int | None:
        hours, minutes = self.fields.hours, self.fields.minutes
        hour, rest = divmod(minute, 60)
        index = bisect_left(minutes, rest)
        if hour in hours and index:
            return hour * 60 + minutes[index - 1]
        index = bisect_left(hours, hour)
        return hours[index - 1] * 60 + minutes[-1] if index else None

    def _count_minutes(self, minute: int) -> int:
        """Count the named minutes of a day before *minute*."""
        hours, minutes = self.fields.hours, self.fields.minutes
        hour, rest = divmod(minute, 60)
        inside = bisect_left(minutes, rest) if hour in hours else 0
        return bisect_left(hours, hour) * len(minutes) + inside

    def _croniter_knows(self, wall: int) -> bool:
        return self.fields.days.plain and _year(wall) in CRONITER_YEARS

    def _ask_croniter(self, wall: int, *, forward: bool) -> int:
        at = _ORIGIN + timedelta(seconds=wall)
        with self._croniter_lock:
            if self._croniter is None:
                self._croniter = croniter(_plain_text(self.fields), at)
            if forward:
                found = self._croniter.get_next(datetime, start_time=at - _MINUTE)
            else:
                found = self._croniter.get_prev(datetime, start_time=at)
        return int((found - _ORIGIN) // _SECOND)


def _plain_text(fields: Fields) -> str:
    """Write plain fields for croniter: sorted numbers or ``*``, the only forms that it reads without faults."""
    days = fields.days
    return " ".join((
        _numbers(fields.minutes, 60),
        _numbers(fields.hours, 24),
        "*" if days.any_date else _numbers(days.dates, 31),
        _numbers(fields.months, 12),
        "*" if days.any_weekday else _numbers(days.weekdays, 7),
    ))


def _numbers(values: tuple[int, ...], size: int) -> str:
    return "*" if len(values) == size else ",".join(map(str, values))


def _nearest_workday(day: int, length: int, first_weekday: int) -> int:
    """Return the Monday to Friday nearest to *day* that lies in the same month."""
    weekday = (first_weekday + day - 1) % 7
    if weekday == 6:
        return day - 1 if day > 1 else day + 2
    if weekday == 0:
        return day + 1 if day < length else day - 2
    return day


def _year(wall: int) -> int:
    ordinal = wall // DAY_SECONDS + 1
    return date.fromordinal(ordinal).year if 1 <= ordinal <= LAST_ORDINAL else 0
