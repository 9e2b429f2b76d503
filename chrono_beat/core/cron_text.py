"""Reads cron text: five fields or an alias, as documented for users; everything else is refused with the mend.

**Grammar.** Minute 0-59, hour 0-23, day of month 1-31, month 1-12, day of week 0-7 (0 and 7 are Sunday), apart by
spaces or tabs, in any case. A field is a list of items: ``v``, ``a-b``, ``*``, the last two also with ``/n``; ``v/n``
runs from v to the end of the field. A bare ``*`` (or ``?`` in a day field) stands alone. Months and days have
three-letter English names. Ranges may wrap (``FRI-MON``, ``22-2``), days of the month excepted; a step counts along the
wrapped range. Days of the month know ``L``, ``LW`` and ``15W``, days of the week ``5#2`` and ``5L``.

**Day fields.** ``*``, ``*/1`` and ``?`` leave a day field free. If both are restricted either is enough; ``*/2``
restricts, unlike in the crons that look at the first character only.

**Refused on purpose.** Six and seven fields (libraries disagree whether seconds come first or last), ``H`` and ``R``
(their meaning depends on a name or on luck), a zone inside the text, steps wider than the field (``*/90`` would be
hourly), and days that no chosen month has.

**Bound.** At most `MAX_CHARACTERS` are read, by splitting and table look-ups; no pattern here can backtrack.
"""
from __future__ import annotations

import re
from dataclasses import dataclass

from chrono_beat.core.calendar import DayRule, Fields
from chrono_beat.core.schedule_error import ScheduleError, shown

MAX_CHARACTERS = 255
"""Longest cron text, blanks included."""

ALIASES = {
    "@YEARLY": "0 0 1 1 *",
    "@ANNUALLY": "0 0 1 1 *",
    "@MONTHLY": "0 0 1 * *",
    "@WEEKLY": "0 0 * * 0",
    "@DAILY": "0 0 * * *",
    "@MIDNIGHT": "0 0 * * *",
    "@HOURLY": "0 * * * *",
}

_MONTH_NAMES = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAY_NAMES = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")

_KNOWN = re.compile(r"[0-9A-Za-z*?,/#@ \t-]*")
_NUMBER = re.compile(r"[0-9]{1,2}")
_ZONE_AT_END = re.compile(r"(UTC|GMT|Z|[A-Z_]+(/[A-Z0-9_+-]+)+|(UTC|GMT)?[+-][0-9:]+)")
_ZONE_IN_FRONT = re.compile(r"(CRON_)?TZ\s*=")
_BETWEEN_WORDS = re.compile(r"[ \t,/()~-]+")

FREE = ("*", "*/1", "?")


@dataclass(frozen=True, slots=True)
class _Shape:
    """What one field may hold: numbers `low` to `high`; a step up to `size`; open-ended items end at `last`."""

    name: str
    low: int
    high: int
    size: int
    last: int
    names: tuple[str, ...] = ()
    wraps: bool = True


MINUTE = _Shape("minute", 0, 59, 60, 59)
HOUR = _Shape("hour", 0, 23, 24, 23)
DATE = _Shape("day-of-month", 1, 31, 31, 31, wraps=False)
MONTH = _Shape("month", 1, 12, 12, 12, names=_MONTH_NAMES)
WEEKDAY = _Shape("day-of-week", 0, 7, 7, 6, names=_DAY_NAMES)
SHAPES = (MINUTE, HOUR, DATE, MONTH, WEEKDAY)


@dataclass(frozen=True, slots=True)
class Step:
    """A step as it was written, for warnings: ``*/7`` in the minute field of 60 values, from its value number 0."""

    field: str
    item: str
    start: int
    step: int
    size: int

    @property
    def last_gap(self) -> int:
        """How many values lie between the last one and the first one of the next round."""
        last = self.start + (self.size - 1 - self.start) // self.step * self.step
        return self.size - last + self.start


@dataclass(frozen=True, slots=True)
class ParsedText:
    """A cron text and its meaning.

    Args:
        text: the text in its stored form: single spaces, otherwise as typed.
        fields: what it means.
        steps: the open-ended items with a step above one.
        both_days: both day fields are restricted.
    """

    text: str
    fields: Fields
    steps: tuple[Step, ...]
    both_days: bool


def parse_cron(text: object) -> ParsedText:
    """Read cron text.

    Args:
        text: five fields, or one of the aliases ``@yearly @annually @monthly @weekly @daily @midnight @hourly``.

    Raises:
        ScheduleError: the text is none, or describes days that never come; names the field and the mend.
    """
    clean = _clean(text)
    parts = ALIASES.get(clean.upper(), clean).upper().split(" ")
    _refuse_other_dialects(clean, parts)
    steps: list[Step] = []
    minutes, open_ended = _numbers(MINUTE, parts[0], steps)
    hours, _ = _numbers(HOUR, parts[1], steps)
    months, _ = _numbers(MONTH, parts[3], steps)
    days = _day_rule(parts[2], parts[4], steps)
    if not days.possible(months):
        raise ScheduleError("day-of-month", NEVER, code="never")
    ticks = len(hours) == 24 or (len(minutes) > 1 and (open_ended or len(minutes) == 60))
    return ParsedText(
        text=clean,
        fields=Fields(minutes=minutes, hours=hours, months=months, days=days, ticks=ticks),
        steps=tuple(steps),
        both_days=not days.any_date and not days.any_weekday,
    )


NEVER = (
    "no chosen month has such a day, so this would never fire; for a job that only runs when it is triggered by hand, "
    "give any schedule and create it paused instead"
)


def _clean(text: object) -> str:
    if not isinstance(text, str):
        raise ScheduleError("expression", f"a cron expression is text of five fields, not {shown(text)}")
    if len(text) > MAX_CHARACTERS:
        raise ScheduleError(
            "expression", f"longer than {MAX_CHARACTERS} characters; use ranges and steps, or several jobs",
            code="too_large")
    text = text.strip(" \t\r\n")
    if _ZONE_IN_FRONT.match(text.upper()):
        raise ScheduleError("expression", "TZ= and CRON_TZ= are not read; give the zone in its own field, timezone")
    words = _BETWEEN_WORDS.split(text.upper()) if text.isascii() else []
    for letter, why in (("H", "depends on the job's name"), ("R", "is drawn anew in every process")):
        if letter in words:
            raise ScheduleError(
                _field_of(letter, text),
                f"{letter} is not read, because its meaning {why}; give fixed times and set `spread` on the job, which "
                "moves each run by a stable offset")
    if text.startswith("@"):
        _refuse_unknown_alias(text)
    if not _KNOWN.fullmatch(text):
        wrong = next(letter for letter in text if not _KNOWN.fullmatch(letter))
        hint = "; the zone has its own field, timezone" if _zone_at_end(text.upper()) else ""
        raise ScheduleError(
            "expression", f"{ascii(wrong)} is a character that cron does not know; allowed are 0-9 A-Z * ? , / # - @"
            f" and spaces{hint}")
    return re.sub(r"[ \t]+", " ", text)


def _refuse_unknown_alias(text: str) -> None:
    name = text.upper()
    if name in ALIASES:
        return
    if name.startswith("@REBOOT"):
        raise ScheduleError(
            "expression", "@reboot has no meaning where several machines share the schedules and none of them is the "
            "one that boots; trigger the job from your own start-up instead")
    if name.startswith("@EVERY"):
        raise ScheduleError("expression", "@every is not cron; use an interval schedule, such as every(minutes=10)")
    raise ScheduleError(
        "expression", f"unknown alias {shown(text)}; known are {' '.join(ALIASES).lower()}", code="unknown")


def _refuse_other_dialects(text: str, parts: list[str]) -> None:
    if len(parts) == 5:
        return
    count = len(parts) if parts != [""] else 0
    if count == 6 and _zone_at_end(text.upper()):
        raise ScheduleError(
            "expression", f"expected 5 fields, got 6: a zone such as {shown(text.split(' ')[-1])} has its own field, "
            "timezone")
    if count in (6, 7):
        raise ScheduleError(
            "expression", f"expected 5 fields, got {count}: there are no seconds and no years; for work more often "
            "than once a minute use an interval schedule instead")
    raise ScheduleError(
        "expression", f"expected 5 fields (minute, hour, day of month, month, day of week), got {count}")


def _zone_at_end(text: str) -> bool:
    parts = text.split()
    return len(parts) == 6 and _ZONE_AT_END.fullmatch(parts[-1]) is not None


def _field_of(letter: str, text: str) -> str:
    """Name the field that holds the word *letter*, if there are five."""
    parts = text.upper().split()
    if len(parts) == len(SHAPES):
        for shape, part in zip(SHAPES, parts, strict=True):
            if letter in _BETWEEN_WORDS.split(part):
                return shape.name
    return "expression"


def _day_rule(date_text: str, weekday_text: str, steps: list[Step]) -> DayRule:
    dates: tuple[int, ...] = ()
    weekdays: tuple[int, ...] = ()
    last_date = last_workday = False
    near: int | None = None
    nth: list[tuple[int, int]] = []
    last_of: list[int] = []
    if date_text == "LW":
        last_workday = True
    elif date_text.endswith("W") and "," not in date_text and date_text != "W":
        near = _value(DATE, date_text[:-1])
    elif date_text not in FREE:
        items = _items(DATE, date_text)
        last_date = "L" in items
        plain = [item for item in items if item != "L"]
        dates, _ = _numbers(DATE, ",".join(plain), steps) if plain else ((), False)
    if weekday_text not in FREE:
        ordinary = []
        for item in _items(WEEKDAY, weekday_text):
            if "#" in item:
                day, _, n = item.partition("#")
                nth.append((_value(WEEKDAY, day) % 7, _small(WEEKDAY, n, 1, 5, "occurrence")))
            elif item.endswith("L") and len(item) > 1:
                last_of.append(_value(WEEKDAY, item[:-1]) % 7)
            else:
                ordinary.append(item)
        weekdays, _ = _numbers(WEEKDAY, ",".join(ordinary), steps) if ordinary else ((), False)
    return DayRule(
        dates=dates, last_date=last_date, last_workday=last_workday, near=near, any_date=date_text in FREE,
        weekdays=weekdays, nth=tuple(sorted(set(nth))), last_of=tuple(sorted(set(last_of))),
        any_weekday=weekday_text in FREE)


def _numbers(shape: _Shape, text: str, steps: list[Step]) -> tuple[tuple[int, ...], bool]:
    """Return the numbers that *text* yields, sorted, and whether an item is open-ended; note its steps in *steps*."""
    numbers: set[int] = set()
    open_ended = False
    for item in _items(shape, text):
        base, slash, step_text = item.partition("/")
        step = _small(shape, step_text, 1, shape.size, "step") if slash else 1
        start, end = _range(shape, base, stepped=bool(slash))
        if start <= end:
            along = range(start, end + 1, step)
        else:
            along = range(start, end + 1 + shape.size, step)
        numbers.update((value - shape.low) % shape.size + shape.low for value in along)
        is_open = (bool(slash) or base == "*") and end == shape.last and (start == shape.low or "-" not in base)
        if is_open or (start, end) == (shape.low, shape.last):
            open_ended = True
            if step > 1:
                steps.append(Step(shape.name, item, start - shape.low, step, shape.size))
    return tuple(sorted(numbers)), open_ended


def _items(shape: _Shape, text: str) -> list[str]:
    items = text.split(",")
    for item in items:
        if not item:
            raise ScheduleError(shape.name, "empty item; write numbers with one comma between them")
        if item.startswith("?") and (len(items) > 1 or shape not in (DATE, WEEKDAY) or item != "?"):
            raise ScheduleError(shape.name, "'?' stands alone, in the two day fields only; elsewhere write '*'")
        if item == "*" and len(items) > 1:
            raise ScheduleError(shape.name, "'*' cannot be part of a list; it already means every value")
        if item.endswith("W") and shape is DATE and len(items) > 1:
            raise ScheduleError(shape.name, f"{shown(item)} cannot be part of a list; use two jobs")
        if item == "L" and shape is WEEKDAY:
            raise ScheduleError(shape.name, "'L' needs its day in front, such as 5L for the last Friday")
    return items


def _range(shape: _Shape, base: str, *, stepped: bool) -> tuple[int, int]:
    """Return start and end of an item without its step; a wrapping range has its start above its end."""
    if base == "*":
        return shape.low, shape.last
    left, dash, right = base.partition("-")
    start = _value(shape, left)
    if not dash:
        start = 0 if shape is WEEKDAY and start == 7 else start
        return start, shape.last if stepped else start
    end = _value(shape, right)
    if start == end:
        return start, end
    if shape is WEEKDAY and start == 7:
        start = 0
    if start > end and not shape.wraps:
        raise ScheduleError(shape.name, f"a range of days cannot run backwards: {shown(base)}; write two ranges")
    return start, end


def _value(shape: _Shape, text: str) -> int:
    if text in shape.names:
        return shape.names.index(text) + shape.low
    return _small(shape, text, shape.low, shape.high, "value")


def _small(shape: _Shape, text: str, low: int, high: int, what: str) -> int:
    if not _NUMBER.fullmatch(text):
        names = f" or a name such as {shape.names[0]}" if shape.names and what == "value" else ""
        raise ScheduleError(shape.name, f"{what} {shown(text)} is not a number of one or two digits{names}")
    number = int(text)
    if not low <= number <= high:
        prefix = "" if what == "value" else f"{what} "
        hint = "; a wider step would leave one value only" if what == "step" and number > high else ""
        raise ScheduleError(shape.name, f"{prefix}{number} is outside {low}-{high}{hint}")
    return number

