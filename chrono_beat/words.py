"""What a schedule means, said in words: for people who are about to save one.

Cron text is worded by cron-descriptor, after what its releases say differently, or wrongly for this grammar, has been
written out: hours and weekdays by range or step, and the two day fields of which either is enough. The other kinds are
worded here. The words explain; what runs is what the next runs say.
"""
from __future__ import annotations

from datetime import timedelta

from cron_descriptor import ExpressionDescriptor, Options

from chrono_beat.core.cron_text import ALIASES, FREE, parse_cron
from chrono_beat.core.schedule import CeleryCrontab, Cron, Interval, Once, Schedule
from chrono_beat.core.zones import timeline

_MIDNIGHT = "At 00:00, "
_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60))
_CELERY = (("minute", "minute"), ("hour", "hour"), ("day_of_week", "day of week"), ("day_of_month", "day of month"),
           ("month_of_year", "month"))


def words(schedule: Schedule) -> str:
    """Say in a sentence without its full stop what a schedule means.

    ``0 9 * * mon-fri`` is "At 09:00, Monday through Friday, on the clocks of Europe/London".
    """
    if isinstance(schedule, Cron):
        return f"{_cron(schedule.expression)}, on the clocks of {schedule.timezone}"
    if isinstance(schedule, CeleryCrontab):
        return f"{_celery(schedule)}, on the clocks of {schedule.timezone}"
    zone = timeline(schedule.timezone).zone
    if isinstance(schedule, Interval):
        since = "" if schedule.anchor is None else f", counted from {schedule.anchor.astimezone(zone):%Y-%m-%d %H:%M:%S %Z}"
        return f"Every {span(schedule.period)} of elapsed time{since}"
    assert isinstance(schedule, Once)
    return f"Once, on {schedule.at.astimezone(zone):%A %Y-%m-%d at %H:%M:%S} in {schedule.timezone}"


def span(length: timedelta) -> str:
    """Return a length of time in the largest units that leave no rest: "hour", "90 seconds", "2 days"."""
    seconds = length.total_seconds()
    for unit, size in _UNITS:
        if seconds >= size and seconds % size == 0:
            count = int(seconds // size)
            return unit if count == 1 else f"{count:,} {unit}s"
    return "second" if seconds == 1 else f"{seconds:,.6f}".rstrip("0").rstrip(".") + " seconds"


def _cron(expression: str) -> str:
    minute, hour, date, month, weekday = ALIASES.get(expression.upper(), expression).split(" ")
    parsed = parse_cron(expression).fields
    if minute.isdigit() and "-" in hour:
        hour = ",".join(map(str, parsed.hours))          # a range reads as if it ran all through it
    if "/" in weekday and parsed.days.weekdays:
        weekday = ",".join(map(str, parsed.days.weekdays))
    if date in FREE or weekday in FREE:
        return _described(minute, hour, date, month, weekday)
    # Either is enough, and older releases say "only".
    day = _described("0", "0", "*", "*", weekday).removeprefix(_MIDNIGHT).removeprefix("only ")
    months = _described("0", "0", "*", month, "*").removeprefix(_MIDNIGHT) if month != "*" else ""
    return f"{_described(minute, hour, date, '*', '*')}, or {day}" + (f", {months}" if months else "")


def _described(*fields: str) -> str:
    options = Options()
    options.use_24hour_time_format = True
    options.day_of_week_start_index_zero = True
    options.locale_code = "en_US"                        # also where the system speaks another language
    return str(ExpressionDescriptor(" ".join(fields), options).get_description())


def _celery(schedule: CeleryCrontab) -> str:
    """Word Celery's fields one by one: all have to hold, the two of days too."""
    said = [f"{label} {text}" for name, label in _CELERY if (text := str(getattr(schedule, name)).strip()) != "*"]
    if not said:
        return "Every minute"
    return f"Whenever the clock shows {said[0] if len(said) == 1 else ', '.join(said[:-1]) + ' and ' + said[-1]}"
