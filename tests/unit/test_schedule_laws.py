"""Laws that hold for every cron text in every zone, held against an oracle that walks minute by minute.

The oracle shares nothing with the engine but the tables of the rules: it walks real minutes, looks at the wall clock at
each, remembers the wall minutes that it has seen, and tests the fields by membership. It needs offsets of whole
minutes, so its years begin after 1972.
"""

import zoneinfo
from bisect import bisect_left, bisect_right
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import NamedTuple

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from chrono_beat.core.calendar import WallCalendar
from chrono_beat.core.cron_text import parse_cron
from chrono_beat.core.schedule import Cron, ScheduleError, zone_keys

zoneinfo.reset_tzpath(to=())

MINUTE = timedelta(minutes=1)
MICROSECOND = timedelta(microseconds=1)
HOURS_LEARNT = 4
"""Hours at the start of a walk that only teach which wall minutes have been seen; no clock goes back further."""

HOURS_BEFORE, HOURS_AFTER = HOURS_LEARNT + 3, 7
ZONES = sorted(zone_keys())
LAW = settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])


class Item(NamedTuple):
    """An item of a field: its text, its values, whether it is open-ended."""

    text: str
    values: frozenset[int]
    is_open: bool = False


@cache
def changes(zone, year):
    """The hours of a year in which the zone's offset changes, as UTC datetimes."""
    days = [datetime(year, 1, 1, tzinfo=UTC) + timedelta(days=day) for day in range(366)]
    return [
        hour
        for day in days
        if offset(zone, day) != offset(zone, day + timedelta(days=1))
        for hour in (day + timedelta(hours=k) for k in range(24))
        if offset(zone, hour) != offset(zone, hour + timedelta(hours=1))
    ]


def offset(zone, instant):
    return instant.astimezone(zoneinfo.ZoneInfo(zone)).utcoffset()


@cache
def walk(zone, centre):
    """(instant, wall minute) of every real minute around *centre*."""
    info = zoneinfo.ZoneInfo(zone)
    start = centre - timedelta(hours=HOURS_BEFORE)
    minutes = [start + k * MINUTE for k in range((HOURS_BEFORE + HOURS_AFTER) * 60)]
    return [(t, t.astimezone(info).replace(tzinfo=None)) for t in minutes]


class Oracle:
    """Decides minute by minute, from sets of values."""

    def __init__(self, minutes, hours, dates, months, weekdays, both_restricted, one_free):
        self.minutes, self.hours, self.dates, self.months, self.weekdays = minutes, hours, dates, months, weekdays
        self.both_restricted, self.one_free = both_restricted, one_free
        values = frozenset().union(*(item.values for item in minutes))
        self.minute_values = values
        self.ticks = len(hours) == 24 or (
            len(values) > 1 and (any(item.is_open for item in minutes) or len(values) == 60))

    def names(self, wall):
        on_date, on_weekday = wall.day in self.dates, wall.isoweekday() % 7 in self.weekdays
        day = on_date or on_weekday if self.both_restricted else on_date and on_weekday
        return day and wall.month in self.months and wall.hour in self.hours and wall.minute in self.minute_values

    def runs(self, walked):
        """The instants of the walk that run; its first hours only teach which wall minutes have been seen."""
        found, seen, before = [], set(), None
        for index, (instant, wall) in enumerate(walked):
            run = self.names(wall) and (self.ticks or wall not in seen)
            if before is not None and wall > before + MINUTE and len(self.hours) < 24:
                skipped = []
                while (before := before + MINUTE) < wall:
                    skipped.append(before)
                whole_dates = {d for d in {w.date() for w in skipped} if sum(w.date() == d for w in skipped) == 1_440}
                run = run or any(self.names(w) for w in skipped if w.date() not in whole_dates)
            seen.add(wall)
            before = wall
            if run and index >= HOURS_LEARNT * 60:
                found.append(instant)
        return found


def items(low, high, size, *, wraps=True):
    """Items of a field with their values, worked out by walking round the field."""
    everything = list(range(low, low + size))

    def item(draw_kind, a, b, step):
        if draw_kind == "value":
            return Item(str(a), frozenset({a}))
        if draw_kind == "open":
            return Item(f"{a}/{step}", frozenset(everything[a - low :: step]), True)
        if draw_kind == "star":
            return Item(f"*/{step}", frozenset(everything[::step]), True)
        if a > b and not wraps:
            a, b = b, a
        walked, value = [], a
        while value != b:
            walked.append(value)
            value = low + (value - low + 1) % size
        walked.append(b)
        whole = (a, b) == (low, high)
        return Item(f"{a}-{b}/{step}" if step > 1 else f"{a}-{b}", frozenset(walked[::step]), whole)

    value = st.integers(low, high)
    return st.builds(item, st.sampled_from(["value", "open", "star", "range"]), value, value, st.integers(1, size))


def a_list(low, high, size, *, wraps=True):
    some = st.lists(items(low, high, size, wraps=wraps), min_size=1, max_size=3)
    star = st.just([Item("*", frozenset(range(low, low + size)), True)])
    return st.one_of(some, star)


def union(field):
    return frozenset().union(*(item.values for item in field))


def text(field):
    return ",".join(item.text for item in field)


@st.composite
def crons(draw):
    """A cron text and its oracle."""
    minutes, hours = draw(a_list(0, 59, 60)), draw(a_list(0, 23, 24))
    dates, months, weekdays = draw(a_list(1, 31, 31, wraps=False)), draw(a_list(1, 12, 12)), draw(a_list(0, 6, 7))
    free = [text(field) in ("*", "*/1") for field in (dates, weekdays)]
    oracle = Oracle(
        minutes, union(hours), union(dates), union(months), union(weekdays),
        both_restricted=not any(free), one_free=any(free))
    return f"{text(minutes)} {text(hours)} {text(dates)} {text(months)} {text(weekdays)}", oracle


@st.composite
def night_crons(draw):
    """Texts that name something near midnight or in the small hours, where clocks change, on most days."""
    hours = draw(st.one_of(items(0, 4, 5, wraps=False).filter(lambda i: "/" not in i.text).map(lambda i: [i]),
                           st.just([Item("*", frozenset(range(24)), True)]), a_list(0, 23, 24)))
    minutes = draw(a_list(0, 59, 60))
    every_date, every_month = frozenset(range(1, 32)), frozenset(range(1, 13))
    oracle = Oracle(minutes, union(hours), every_date, every_month, frozenset(range(7)), False, True)
    return f"{text(minutes)} {text(hours)} * * *", oracle


@st.composite
def nights(draw):
    """A zone and an hour in which its clock changes, or its new year where it does not."""
    zone, year = draw(st.sampled_from(ZONES)), draw(st.integers(1973, 2090))
    return zone, draw(st.sampled_from(changes(zone, year) or [datetime(year, 1, 1, tzinfo=UTC)]))


def agree(expression, oracle, zone, centre, probes):
    """Hold all four questions against the oracle's runs in the window."""
    try:
        schedule = Cron(expression, zone)
    except ScheduleError as error:
        assert error.code == "never"
        assume(False)
    walked = walk(zone, centre)
    runs = oracle.runs(walked)
    first, last = walked[HOURS_LEARNT * 60][0], walked[-1][0]

    found, t = [], first - MINUTE / 60
    while (t := schedule.next_after(t)) is not None and t <= last:
        found.append(t)

    assert found == runs
    for probe in probes:
        t = first + timedelta(seconds=probe)
        index = bisect_right(runs, t)
        expected = runs[index] if index < len(runs) else None
        answer = schedule.next_after(t)
        assert answer is None or answer > t
        assert answer == expected or (expected is None and (answer is None or answer > last))
        assert schedule.matches(t) == (t in runs)
        index = bisect_left(runs, t)
        if index:
            assert schedule.previous_before(t) == runs[index - 1]
        assert schedule.count_between(first, t) == index
        assert schedule.count_between(t, last + MINUTE) == len(runs) - index


# Seconds into the window at which the questions are asked; the clock mostly changes at its fourth hour.
PROBES = st.lists(
    st.one_of(st.integers(0, 9 * 3_600), st.integers(4 * 3_600 - 60, 5 * 3_600), st.integers(12, 22).map(lambda k: k * 900)),
    min_size=4, max_size=7)


@LAW
@given(nights(), night_crons(), PROBES)
def test_the_night_of_a_change_is_as_walked(night, cron, probes):
    agree(*cron, *night, probes)


@LAW
@given(nights(), crons(), PROBES)
def test_any_text_is_as_walked(night, cron, probes):
    agree(*cron, *night, probes)


RARE_NIGHTS = [
    (zone, datetime.fromisoformat(hour).replace(tzinfo=UTC))
    for zone, hour in [
        ("Pacific/Apia", "2011-12-30T10:00"), ("Pacific/Fakaofo", "2011-12-30T10:00"),
        ("Pacific/Kwajalein", "1993-08-21T12:00"), ("Asia/Pyongyang", "2015-08-14T15:00"),
        ("Antarctica/Troll", "2026-03-29T01:00"), ("Antarctica/Casey", "2018-03-10T17:00"),
        ("Pacific/Chatham", "2026-04-04T14:00"), ("Africa/Casablanca", "2024-03-10T02:00"),
    ]
]


@settings(LAW, max_examples=80)
@given(st.sampled_from(RARE_NIGHTS), night_crons(), PROBES)
def test_the_rarest_changes_are_as_walked(night, cron, probes):
    agree(*cron, *night, probes)


def nights_of_2026():
    """One zone for each way in which a clock changes in 2026, and that hour."""
    ways = {}
    for zone in ZONES:
        for hour in changes(zone, 2026):
            ways.setdefault((hour, offset(zone, hour), offset(zone, hour + timedelta(hours=1))), zone)
    return [(zone, hour) for (hour, _, _), zone in ways.items()]


def test_r035_every_zone_moves_on_through_its_changes():
    """48 hours around each change of 2026: each run is later than the last, and none is lost on the way back."""
    nights = nights_of_2026()
    assert len(nights) > 40
    for zone, change in nights:
        start, end = change - timedelta(hours=24), change + timedelta(hours=24)
        for expression in ("0 * * * *", "30 1 * * *", "*/30 0-3 * * *"):
            schedule = Cron(expression, zone)
            chain, t = [], start
            while (t := schedule.next_after(t)) <= end:
                chain.append(t)

            assert chain == sorted(set(chain))
            assert [schedule.previous_before(t) for t in chain[1:]] == chain[:-1]
            assert schedule.count_between(start + MICROSECOND, end + MICROSECOND) == len(chain)


CRONITER_DAYS = st.integers(date(101, 1, 1).toordinal(), date(9_850, 1, 1).toordinal())
DAYS = st.integers(date(1900, 1, 1).toordinal(), date(2200, 1, 1).toordinal())
SPECIAL = st.sampled_from([
    "0 0 L * *", "30 4 LW * *", "0 9 15W * *", "0 9 1W 2,8 *", "0 0 31W * *", "0 0 * * MON#5", "0 0 * 2 TUE#5",
    "0 0 * * 5L", "0 12 * * TUE#2,FRI", "0 0 13 * FRI", "0 0 L * MON#1", "0 0 29 2 *", "0 0 30 2 SUNL",
    "*/7 1-3 */10 * 2",
])


@settings(LAW, max_examples=60)
@given(SPECIAL, st.sampled_from(ZONES), DAYS, st.integers(1, 4_000))
def test_previous_and_count_agree_with_next_for_every_kind_of_day(expression, zone, day, length):
    schedule = Cron(expression, zone)
    start = datetime.combine(date.fromordinal(day), datetime.min.time(), tzinfo=UTC)
    end = start + timedelta(days=length)

    chain, t = [], start - timedelta(seconds=1)
    while (t := schedule.next_after(t)) is not None and t < end and len(chain) < 60:
        chain.append(t)

    stop = end if len(chain) < 60 else chain[-1] + timedelta(seconds=1)
    assert schedule.count_between(start, stop) == len(chain)
    assert all(schedule.matches(t) for t in chain)
    t = stop
    for run in reversed(chain):
        t = schedule.previous_before(t)
        assert t == run


@settings(LAW, max_examples=60)
@given(SPECIAL, DAYS)
def test_days_are_those_of_the_calendar(expression, day):
    """Day by day, with the rule for each form written out again in terms of neighbouring dates."""
    schedule = Cron(expression)
    today = date.fromordinal(day)
    start = datetime.combine(today, datetime.min.time(), tzinfo=UTC)

    assert (schedule.count_between(start, start + timedelta(days=1)) > 0) == is_named(expression, today)


def is_named(expression, day):
    _, _, dates, months, weekdays = expression.split()
    if months != "*" and str(day.month) not in months.split(","):
        return False
    by_date = [date_fits(item, day) for item in dates.split(",")] if dates != "*" else []
    by_weekday = [weekday_fits(item, day) for item in weekdays.split(",")] if weekdays != "*" else []
    return any(by_date) or any(by_weekday)


def date_fits(item, day):
    next_month = (day.replace(day=28) + timedelta(days=4)).replace(day=1)
    month = [day.replace(day=1) + timedelta(days=k) for k in range((next_month - day.replace(day=1)).days)]
    workdays = [d for d in month if d.weekday() < 5]
    if item == "L":
        return day == month[-1]
    if item == "LW":
        return day == workdays[-1]
    if item.endswith("W"):
        wanted = [d for d in month if d.day == int(item[:-1])]
        return bool(wanted) and day == min(workdays, key=lambda d: abs(d - wanted[0]))
    if item.startswith("*/"):
        return (day.day - 1) % int(item[2:]) == 0
    return day.day == int(item)


def weekday_fits(item, day):
    names = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
    name, _, n = item.partition("#")
    last = name.endswith("L")
    number = names.index(name[:3]) if name[:3] in names else int(name[0])
    if day.isoweekday() % 7 != number:
        return False
    if last:
        return (day + timedelta(days=7)).month != day.month
    return not n or (day.day - 1) // 7 + 1 == int(n)


@settings(LAW, max_examples=60)
@given(crons(), st.lists(CRONITER_DAYS, min_size=3, max_size=3), st.integers(0, 1_439))
def test_croniter_and_the_search_of_our_own_name_the_same_minutes(cron, days, minute):
    """Where croniter is asked, the search that stands in for it at the ends of the calendar agrees."""
    fields = parsed_or_rejected(cron[0])
    assume(fields.days.plain)
    asked, own = WallCalendar(fields), OwnSearch(fields)

    for day in days:
        wall = (day - 1) * 86_400 + minute * 60
        assert asked.next(wall) == own.next(wall)
        assert asked.previous(wall) == own.previous(wall)


class OwnSearch(WallCalendar):
    def _ask_croniter(self, wall, *, forward):
        raise AssertionError("not to be asked")

    def _croniter_knows(self, wall):
        return False


def parsed_or_rejected(text):
    try:
        return parse_cron(text).fields
    except ScheduleError:
        assume(False)
