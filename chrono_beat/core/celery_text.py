"""Reads the five fields of Celery's own ``crontab``, as Celery reads them.

Taken over schedules must keep firing when they fired. So this follows Celery's parser step by step, also where it is
lenient: blanks around numbers (``"8, 20"``), full day and month names, names in any field, what follows a match is
ignored (``"*/15 x"``), steps wider than the field, ranges that wrap. Both day fields must hold, where cron text takes
either. What changes is the clock: clock changes follow the rules of this package, not Celery's.

Source: ``celery.schedules.crontab_parser`` of Celery 5.6 and 5.7, compared with the original in the tests.
"""
from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import islice

from chrono_beat.core.calendar import DayRule, Fields
from chrono_beat.core.cron_text import DATE, HOUR, MAX_CHARACTERS, MINUTE, MONTH, NEVER, WEEKDAY, Step
from chrono_beat.core.schedule_error import ScheduleError, shown

FIELDS = (("minute", MINUTE.name), ("hour", HOUR.name), ("day_of_week", WEEKDAY.name),
          ("day_of_month", DATE.name), ("month_of_year", MONTH.name))
"""Celery's names of the fields in the order of its constructor, and ours."""

_SIZES = {MINUTE.name: (60, 0), HOUR.name: (24, 0), WEEKDAY.name: (7, 0), DATE.name: (31, 1), MONTH.name: (12, 1)}
_NAMES = {name.lower(): number for number, name in enumerate(WEEKDAY.names)}
_NAMES.update({name.lower(): number for number, name in enumerate(MONTH.names, 1)})

_RANGE_STEPS = re.compile(r"(\w+?)-(\w+)/(\w+)?")
_RANGE = re.compile(r"(\w+?)-(\w+)")
_STAR_STEPS = re.compile(r"\*/(\w+)?")
_STAR = re.compile(r"^\*$")


def parse_celery(texts: tuple[str, ...]) -> Fields:
    """Read Celery's five fields.

    Args:
        texts: minute, hour, day_of_week, day_of_month, month_of_year, as :func:`field_text` returns them.

    Raises:
        ScheduleError: Celery would refuse them too; names the field.
    """
    values = {name: _numbers(name, text) for (_, name), text in zip(FIELDS, texts, strict=True)}
    minutes, hours, months = values[MINUTE.name], values[HOUR.name], values[MONTH.name]
    dates, weekdays = values[DATE.name], values[WEEKDAY.name]
    every_date, every_weekday = len(dates) == 31, len(weekdays) == 7
    days = DayRule(
        dates=() if every_date else dates, any_date=every_date,
        weekdays=() if every_weekday else weekdays, any_weekday=every_weekday, both=True)
    if not days.possible(months):
        raise ScheduleError(DATE.name, NEVER, code="never")
    open_ended = any(_is_open(part) for part in texts[0].split(","))
    ticks = len(hours) == 24 or (len(minutes) > 1 and (open_ended or len(minutes) == 60))
    return Fields(minutes=minutes, hours=hours, months=months, days=days, ticks=ticks)


def field_text(name: str, value: object) -> str:
    """Return a field as text: a text as it is, a number or a collection of numbers as Celery's constructor takes them.

    Args:
        name: our name of the field, for refusals.
        value: text, a whole number, or an iterable of whole numbers.

    Raises:
        ScheduleError: the value is none of these, or longer than 255 characters.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = (value,)
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        numbers = list(islice(value, MAX_CHARACTERS + 1))
        if len(numbers) > MAX_CHARACTERS or not all(type(number) is int for number in numbers):
            raise ScheduleError(name, "a collection must hold whole numbers of the field only")
        size, low = _SIZES[name]
        for number in numbers:
            if not low <= number < low + size:
                raise ScheduleError(name, f"a number is outside {low}-{low + size - 1}")
        value = ",".join(str(number) for number in sorted(set(numbers)))
    if not isinstance(value, str):
        raise ScheduleError(name, f"a crontab field is text, a number or a collection of numbers, not {shown(value)}")
    if len(value) > MAX_CHARACTERS:
        raise ScheduleError(name, f"longer than {MAX_CHARACTERS} characters; use ranges and steps", code="too_large")
    return value


def split_stored(expression: str) -> list[str]:
    """Read the stored form, a JSON list of five texts in the order of :data:`FIELDS`.

    Raises:
        ScheduleError: it is none.
    """
    try:
        texts = json.loads(expression) if len(expression) <= 8 * MAX_CHARACTERS else None
    except (ValueError, RecursionError):
        texts = None
    if not isinstance(texts, list) or len(texts) != len(FIELDS) or not all(isinstance(text, str) for text in texts):
        names = ", ".join(celery_name for celery_name, _ in FIELDS)
        raise ScheduleError("expression", f"a crontab of Celery is stored as a JSON list of five texts: {names}")
    return texts


def celery_steps(texts: tuple[str, ...]) -> tuple[Step, ...]:
    """Return the steps over whole fields, for warnings; *texts* must have been read before."""
    found = [
        (name, part, match)
        for (_, name), text in zip(FIELDS, texts, strict=True)
        for part in text.split(",")
        if (match := _STAR_STEPS.match(part))
    ]
    return tuple(Step(name, part.strip(), 0, int(match[1]), _SIZES[name][0]) for name, part, match in found)


def _is_open(part: str) -> bool:
    base = part.strip().partition("/")[0]
    return base in ("*", "0-59")


def _numbers(name: str, text: str) -> tuple[int, ...]:
    size, low = _SIZES[name]
    numbers: set[int] = set()
    try:
        for part in text.split(","):
            numbers.update(_part(part, size, low))
    except ValueError as error:
        raise ScheduleError(name, f"Celery cannot read {shown(text)}: {error}") from error
    return tuple(sorted(numbers))


def _part(part: str, size: int, low: int) -> list[int]:
    if not part:
        raise ValueError("a part between commas is empty")
    if found := _RANGE_STEPS.match(part):
        return _span(found[1], found[2], size, low)[::_step(found[3])]
    if found := _RANGE.match(part):
        return _span(found[1], found[2], size, low)
    if found := _STAR_STEPS.match(part):
        return list(range(low, low + size))[::_step(found[1])]
    if _STAR.match(part):
        return list(range(low, low + size))
    return [_number(part, size, low)]


def _span(start_text: str, end_text: str, size: int, low: int) -> list[int]:
    start, end = _number(start_text, size, low), _number(end_text, size, low)
    if end < start:
        return [*range(start, low + size), *range(low, end + 1)]
    return list(range(start, end + 1))


def _step(text: str | None) -> int:
    if not text:
        raise ValueError("a step is missing behind '/'")
    step = int(text)
    if step < 1:
        raise ValueError("a step must be at least 1")
    return step


def _number(text: str, size: int, low: int) -> int:
    try:
        number = int(text)
    except ValueError:
        found = _NAMES.get(text[:3].lower())
        if found is None:
            raise ValueError(f"{shown(text)} is neither a number nor a name of a day or month") from None
        number = found
    if not low <= number < low + size:
        raise ValueError(f"{number} is outside {low}-{low + size - 1}")
    return number
