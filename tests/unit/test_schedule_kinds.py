"""Intervals, single instants, Celery's crontab, bounds, parts, and what is refused of them."""

import copy
import pickle
import zoneinfo
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chrono_beat.core.errors import InvalidInput
from chrono_beat.core.schedule import (
    CeleryCrontab,
    Cron,
    Interval,
    Once,
    ScheduleError,
    schedule_from_parts,
)

zoneinfo.reset_tzpath(to=())

T0 = datetime(2026, 1, 1, 8, 15, 7, 250_000, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)

EVERY_KIND = [
    Cron("*/20 8-9 * * mon-fri", "Europe/London"),
    CeleryCrontab("0", "8, 20", "mon-friday", timezone="Asia/Tokyo"),
    Interval(90, anchor=T0),
    Interval(1.5, anchor=T0, timezone="Europe/Berlin"),
    Once(T0, timezone="Africa/Cairo"),
]


def refusal(build):
    with pytest.raises(ScheduleError) as caught:
        build()
    return caught.value


def walked(schedule, start, count):
    found, t = [], start
    while len(found) < count and (t := schedule.next_after(t)) is not None:
        found.append(t)
    return found


# Intervals


def test_an_interval_runs_at_its_anchor_and_then_by_elapsed_time():
    schedule = Interval(90, anchor=T0)

    assert walked(schedule, T0 - SECOND, 3) == [T0, T0 + 90 * SECOND, T0 + 180 * SECOND]
    assert schedule.next_after(T0) == T0 + 90 * SECOND
    assert schedule.previous_before(T0) is None
    assert schedule.previous_before(T0 + MICROSECOND) == T0
    assert schedule.matches(T0 + 900 * SECOND)
    assert not schedule.matches(T0 + 900 * SECOND + MICROSECOND)


def test_an_interval_of_a_day_moves_on_the_clock_where_a_daily_text_does_not():
    zone = "Europe/Berlin"
    start = datetime(2026, 3, 28, 8, tzinfo=UTC)

    interval = walked(Interval(timedelta(days=1), anchor=start, timezone=zone), start, 1)
    cron = walked(Cron("0 9 * * *", zone), start, 1)

    assert [t.astimezone(zoneinfo.ZoneInfo(zone)).hour for t in interval + cron] == [10, 9]


@settings(deadline=None)
@given(st.integers(1, 10_000_000), st.integers(-10**9, 10**9), st.integers(0, 10**7), st.integers(1, 50))
def test_laws_of_intervals(period, offset, start, limit):
    schedule = Interval(timedelta(seconds=period), anchor=T0)
    t = T0 + timedelta(seconds=offset)

    later, earlier = schedule.next_after(t), schedule.previous_before(t)

    assert later > t and schedule.matches(later)
    assert earlier is None or (earlier < t and schedule.matches(earlier))
    assert schedule.count_between(t + MICROSECOND, later) == 0
    a, b = T0 + timedelta(seconds=start - 100), T0 + timedelta(seconds=start) + 20 * timedelta(seconds=period)
    expected = [run for k in range(start // period + 30) if a <= (run := T0 + k * timedelta(seconds=period)) < b] \
        if start // period < 2_000 else None
    if expected is not None:
        assert schedule.count_between(a, b) == len(expected)
        assert schedule.count_between(a, b, limit) == min(len(expected), limit + 1)


def test_intervals_end_with_the_calendar():
    schedule = Interval(timedelta(days=3_000 * 366), anchor=T0)

    assert len(walked(schedule, T0, 10)) == 2
    assert schedule.next_after(datetime.max.replace(tzinfo=UTC)) is None
    assert schedule.previous_before(datetime.max.replace(tzinfo=UTC)) is not None
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    assert Interval(1, anchor=T0).count_between(first, last) == 10_001


@pytest.mark.parametrize(
    "period",
    [0, -1, 0.999, float("nan"), float("inf"), Decimal("1.0000001"), Decimal("1E+999999"), 10**5_000, 1e300, "90", None,
     True, timedelta(0), timedelta(microseconds=999_999), timedelta.max, b"1", Decimal("sNaN")],
    ids=lambda period: type(period).__name__,
)
def test_periods_that_are_none_are_refused(period):
    assert refusal(lambda: Interval(period, anchor=T0)).field == "period"


def test_an_interval_without_an_anchor_waits_for_one():
    """``every(minutes=10)`` is written before anybody knows when the job is created."""
    bare = schedule_from_parts("interval", "600", "UTC")

    assert bare.parts().anchor is None
    assert refusal(lambda: bare.next_after(T0)).field == "anchor"
    assert bare.anchored(T0) == Interval(600, anchor=T0)
    assert bare.anchored(T0).anchored(T0 + SECOND).anchor == T0
    assert schedule_from_parts("interval", "600", "UTC", start=T0).anchor == T0


# Single instants


def test_a_single_instant_runs_once():
    schedule = Once(T0)

    assert walked(schedule, T0 - SECOND, 5) == [T0]
    assert schedule.next_after(T0) is None
    assert schedule.previous_before(T0) is None
    assert schedule.previous_before(T0 + MICROSECOND) == T0
    assert schedule.matches(T0)
    assert schedule.count_between(T0, T0 + SECOND) == 1
    assert schedule.count_between(T0 - SECOND, T0) == 0


def test_a_single_instant_may_be_a_minute_old_at_creation():
    schedule = Once(T0)

    schedule.refuse_past(T0 + timedelta(seconds=60))

    error = refusal(lambda: schedule.refuse_past(T0 + timedelta(seconds=60, microseconds=1)))
    assert (error.field, error.code) == ("at", "past")


# Bounds


@pytest.mark.parametrize("schedule", EVERY_KIND, ids=lambda s: s.kind)
def test_every_kind_keeps_its_bounds(schedule):
    runs = walked(schedule, T0 - SECOND, 6)
    kind, expression, zone = schedule.to_parts()
    start, end = runs[0], runs[-1] if len(runs) > 1 else runs[0] + SECOND
    bounded = schedule_from_parts(kind, expression, zone, start=start, end=end, anchor=T0)
    inside = [t for t in runs if start <= t < end]

    assert walked(bounded, T0 - timedelta(days=400), 20) == inside
    assert bounded.previous_before(start) is None
    assert bounded.previous_before(end + timedelta(days=400)) == inside[-1]
    assert bounded.matches(start) and not bounded.matches(end)
    assert bounded.count_between(T0 - timedelta(days=400), T0 + timedelta(days=400)) == len(inside)


def test_a_start_between_runs_to_the_microsecond():
    schedule = Cron("0 9 * * *", start=datetime(2026, 1, 1, 9, 0, 0, 1, tzinfo=UTC))

    assert schedule.next_after(datetime(2025, 1, 1, tzinfo=UTC)) == datetime(2026, 1, 2, 9, tzinfo=UTC)


def test_bounds_that_leave_nothing_or_are_none_are_refused():
    assert refusal(lambda: Cron("0 9 * * *", start=T0, end=T0)).field == "end"
    assert refusal(lambda: Cron("0 9 * * *", start=datetime(2026, 1, 1))).field == "start"
    assert refusal(lambda: Interval(60, anchor=T0, end="tomorrow")).field == "end"
    assert refusal(lambda: Interval(60, anchor=datetime(2026, 1, 1))).field == "anchor"
    assert refusal(lambda: Once(datetime(2026, 1, 1))).field == "at"


# Questions


@pytest.mark.parametrize("schedule", EVERY_KIND, ids=lambda s: s.kind)
@pytest.mark.parametrize("t", [datetime(2026, 1, 1), None, "2026-01-01", 5, 1e18, T0.date()])
def test_only_aware_datetimes_are_instants(schedule, t):
    for ask in (schedule.next_after, schedule.previous_before, schedule.matches,
                lambda t: schedule.count_between(t, T0), lambda t: schedule.count_between(T0, t)):
        assert refusal(lambda ask=ask: ask(t)).field == "instant"


@pytest.mark.parametrize("schedule", EVERY_KIND, ids=lambda s: s.kind)
@pytest.mark.parametrize("edge", [datetime.min, datetime.max])
@pytest.mark.parametrize("hours", [-23, 0, 23])
def test_the_ends_of_the_calendar_are_asked_without_harm(schedule, edge, hours):
    t = edge.replace(tzinfo=timezone(timedelta(hours=hours)))

    for answer in (schedule.next_after(t), schedule.previous_before(t)):
        assert answer is None or answer.tzinfo is UTC
    assert not schedule.matches(t)
    assert schedule.count_between(t, t) == 0


def test_nothing_is_left_before_year_9999():
    assert Cron("0 0 29 2 *").next_after(datetime(9996, 3, 1, tzinfo=UTC)) is None
    assert Cron("* * * * *").next_after(datetime(9998, 12, 31, 23, 59, tzinfo=UTC)) is None
    assert Cron("* * * * *", "Asia/Tokyo").previous_before(datetime(1, 1, 3, tzinfo=UTC)) is None


@pytest.mark.parametrize("schedule", EVERY_KIND, ids=lambda s: s.kind)
def test_answers_are_utc_whatever_the_zone_of_the_question(schedule):
    t = (T0 - SECOND).astimezone(zoneinfo.ZoneInfo("Asia/Kolkata"))

    assert schedule.next_after(t).tzinfo is UTC
    assert schedule.next_after(t) == schedule.next_after(T0 - SECOND)


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, None, 10**7])
def test_a_limit_is_a_number_in_range(limit):
    assert refusal(lambda: EVERY_KIND[0].count_between(T0, T0, limit)).field == "limit"


# Parts


@pytest.mark.parametrize("schedule", EVERY_KIND, ids=lambda s: s.kind)
def test_parts_build_the_same_schedule_again(schedule):
    parts = schedule.parts()
    bounds = {"start": parts.start, "end": parts.end, "anchor": parts.anchor}

    assert parts[:3] == schedule.to_parts()
    assert schedule_from_parts(*schedule.to_parts(), **bounds) == schedule
    assert pickle.loads(pickle.dumps(schedule)) == copy.deepcopy(schedule) == schedule
    assert hash(schedule) == hash(copy.copy(schedule))


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (Interval(90, anchor=T0), "90"),
        (Interval(timedelta(days=1), anchor=T0), "86400"),
        (Interval(1.5, anchor=T0), "1.5"),
        (Once(T0), "2026-01-01T08:15:07.250000Z"),
        (Once(datetime(2026, 1, 1, 9, tzinfo=timezone(timedelta(hours=1)))), "2026-01-01T08:00:00Z"),
        (Cron(" 0  9 * * MON "), "0 9 * * MON"),
        (CeleryCrontab(0, {20, 8}, day_of_week=[1]), '["0", "8,20", "1", "*", "*"]'),
    ],
)
def test_stored_texts(parts, text):
    assert parts.to_parts()[1] == text


@pytest.mark.parametrize(
    ("kind", "expression", "field"),
    [
        ("solar", "sunset", "kind"), (None, "* * * * *", "kind"), (["cron"], "* * * * *", "kind"),
        ("cron", None, "expression"), ("cron", b"* * * * *", "expression"), ("cron", "* * * *", "expression"),
        ("interval", "", "expression"), ("interval", "90s", "expression"), ("interval", "1e3", "expression"),
        ("interval", "-5", "expression"), ("interval", "0", "period"), ("interval", "9" * 14, "period"),
        ("once", "tomorrow", "expression"), ("once", "2026-01-01T09:00:00", "at"), ("once", "2026-13-01", "expression"),
        ("celery", "* * * * *", "expression"), ("celery", "[]", "expression"), ("celery", "[" * 4_000, "expression"),
        ("celery", '["0", "9", "*", "*", 5]', "expression"), ("celery", '["61", "9", "*", "*", "*"]', "minute"),
        ("cron", "x" * 100_000, "expression"),
    ],
)
def test_stored_parts_that_are_none_are_refused(kind, expression, field):
    assert refusal(lambda: schedule_from_parts(kind, expression, "UTC", anchor=T0)).field == field


def test_the_error_is_a_refusal_of_input_that_travels():
    error = refusal(lambda: Cron("61 * * * *"))
    again = pickle.loads(pickle.dumps(error))

    assert isinstance(error, InvalidInput) and isinstance(error, ValueError)
    assert (again.field, again.reason, str(again)) == (error.field, error.reason, str(error))


# Celery's crontab

CELERY_FIELDS = [
    "*", "*/15", "*/90", "0", "5,20", "8, 20", " 7", "1-5", "22-2", "1-10/3", "10-1/4", "mon", "Monday", "sat-sun",
    "jan-mar", "march", "*/2,3", "0-59/7", "*/0", "", "1,,2", "-1", "70", "x", "5/10", "*/", "1-5/", "*/15 x", "1-5 x",
    "*,5", "L", "7",
]


@pytest.mark.parametrize("text", CELERY_FIELDS)
@pytest.mark.parametrize("position", range(5))
def test_fields_are_read_as_celery_reads_them(text, position):
    celery_schedules = pytest.importorskip("celery.schedules")
    texts = ["*"] * 5
    texts[position] = text

    try:
        theirs = celery_schedules.crontab(*texts)
    except (ValueError, celery_schedules.ParseException):
        theirs = None
    try:
        ours = CeleryCrontab(*texts)
    except ScheduleError:
        ours = None

    assert (ours is None) == (theirs is None)
    if ours is not None:
        fields = ours.shared().instants.fields
        assert (set(fields.minutes), set(fields.hours), set(fields.months)) == (
            theirs.minute, theirs.hour, theirs.month_of_year)
        assert set(fields.days.dates or range(1, 32)) == theirs.day_of_month
        assert set(fields.days.weekdays or range(7)) == theirs.day_of_week


def test_celerys_other_forms_of_a_field():
    assert CeleryCrontab(5, (8, 20), {0}, [1, 2], 12) == CeleryCrontab("5", "8,20", "0", "1,2", "12")


@pytest.mark.parametrize("value", [None, 1.5, True, [1.5], [60], [-1], "0" * 256, range(10**9), b"5", [True]])
def test_values_that_are_no_field_are_refused(value):
    assert refusal(lambda: CeleryCrontab(value)).field == "minute"


def test_celerys_days_that_never_come_are_refused_and_rare_ones_are_not():
    error = refusal(lambda: CeleryCrontab("0", "0", day_of_month="30", month_of_year="2"))
    rare = CeleryCrontab("0", "0", "mon", "29", "2")

    assert (error.field, error.code) == ("day-of-month", "never")
    assert rare.next_after(datetime(2072, 3, 1, tzinfo=UTC)) == datetime(2112, 2, 29, tzinfo=UTC)


def test_clock_changes_are_those_of_cron_for_celerys_fields_too():
    celery = CeleryCrontab("*/15", timezone="America/New_York")
    fixed = CeleryCrontab("30", "1", timezone="America/New_York")
    night = datetime(2026, 11, 1, 5, 40, tzinfo=UTC)

    assert [f"{t:%H:%M}" for t in walked(celery, night, 6)] == ["05:45", "06:00", "06:15", "06:30", "06:45", "07:00"]
    assert fixed.next_after(night) == datetime(2026, 11, 2, 6, 30, tzinfo=UTC)
