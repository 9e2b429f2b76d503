"""What people are told before they save a schedule."""

import zoneinfo
from datetime import UTC, datetime, timedelta

import pytest

from chrono_beat.core.schedule import (
    CeleryCrontab,
    Cron,
    Interval,
    Once,
    ScheduleError,
    preview,
    preview_notes,
    warnings_of,
)

zoneinfo.reset_tzpath(to=())

NEW_YORK = "America/New_York"
SUMMER = datetime(2026, 7, 1, tzinfo=UTC)
SPRING_EVE = datetime(2026, 3, 7, 12, tzinfo=UTC)
AUTUMN_EVE = datetime(2026, 10, 31, 12, tzinfo=UTC)


def codes(schedule, after=SUMMER):
    return [warning.code for warning in warnings_of(schedule, after)]


def test_a_preview_shows_runs_in_both_clocks():
    seen = preview(Cron("0 9 * * *", "Europe/London"), SUMMER, 3)

    assert [run.at for run in seen.runs] == [SUMMER + timedelta(days=day, hours=8) for day in range(3)]
    assert {run.local.strftime("%H:%M %Z") for run in seen.runs} == {"09:00 BST"}
    assert seen.warnings == ()


def test_a_moved_run_says_where_from_and_where_to():
    seen = preview(Cron("30 2 * * *", NEW_YORK), SPRING_EVE, 2)

    [note], nothing = (run.notes for run in seen.runs)
    assert nothing == ()
    assert "2026-03-08" in note and "02:30 moves to 03:00" in note


def test_a_repeated_minute_says_which_pass_runs():
    fixed = preview(Cron("30 1 * * *", NEW_YORK), AUTUMN_EVE, 2)
    window = preview(Cron("*/30 1 * * *", NEW_YORK), AUTUMN_EVE, 5)

    assert ["first time only" in "".join(run.notes) for run in fixed.runs] == [True, False]
    assert ["both times" in "".join(run.notes) for run in window.runs] == [True, True, False, False, False]
    assert ["second pass" in "".join(run.notes) for run in window.runs] == [False, False, True, True, False]


def test_both_day_fields_are_warned_about_in_the_words_of_their_kind():
    [cron] = warnings_of(Cron("0 22 1-7 * 6"), SUMMER)
    [celery] = warnings_of(CeleryCrontab("0", "22", "6", "1-7"), SUMMER)

    assert cron.code == celery.code == "both_day_fields"
    assert "either" in cron.message
    assert "fit both" in celery.message


@pytest.mark.parametrize(
    ("expression", "field", "words"),
    [
        ("*/7 * * * *", "minute", "4 minutes"), ("5/20 * * * *", None, ""), ("*/20 * * * *", None, ""),
        ("*/45 * * * *", "minute", "15 minutes"), ("0 */5 * * *", "hour", "4 hours"), ("0 */6 * * *", None, ""),
        ("0 0 */10 * *", "day-of-month", "each month"), ("0 0 1 */5 *", "month", "2 months"),
        ("0 0 * * */2", "day-of-week", "1 day,"), ("0-59/7 * * * *", "minute", "4 minutes"),
        ("*/30,*/7 * * * *", "minute", "*/7"),
    ],
)
def test_steps_that_do_not_divide_their_field_are_warned_about(expression, field, words):
    found = [warning for warning in warnings_of(Cron(expression), SUMMER) if warning.code == "uneven_step"]

    assert [warning.field for warning in found] == ([field] if field else [])
    assert all(words in warning.message for warning in found)


def test_celerys_steps_are_warned_about_too():
    assert codes(CeleryCrontab("*/7")) == ["uneven_step"]


def test_times_inside_the_next_change_are_warned_about():
    [autumn] = warnings_of(Cron("30 1 * * *", NEW_YORK), SUMMER)
    [spring] = warnings_of(Cron("30 2 * * *", NEW_YORK), SUMMER)
    [window] = warnings_of(Cron("*/20 1 * * *", NEW_YORK), SUMMER)

    assert "2026-11-01" in autumn.message and "first pass only" in autumn.message
    assert "2027-03-14" in spring.message and "at 03:00" in spring.message
    assert "both passes" in window.message


@pytest.mark.parametrize("expression", ["30 * * * *", "*/15 * * * *", "0 9 * * *", "30 1 * 7 *"])
def test_schedules_that_no_change_touches_are_not_warned_about(expression):
    assert codes(Cron(expression, NEW_YORK)) == []


def test_a_zone_without_changes_needs_no_warning():
    assert codes(Cron("30 2 * * *", "Asia/Tokyo")) == []
    assert codes(Interval(timedelta(days=1), anchor=SUMMER, timezone="Asia/Tokyo")) == []


def test_an_interval_of_days_is_no_time_of_day():
    assert codes(Interval(timedelta(days=1), anchor=SUMMER, timezone=NEW_YORK)) == ["elapsed_time"]
    assert codes(Interval(timedelta(hours=1), anchor=SUMMER, timezone=NEW_YORK)) == []


def test_rare_and_finished_schedules_are_warned_about():
    [rare] = warnings_of(Cron("0 9 29 2 *"), SUMMER)

    assert rare.code == "rare"
    assert "2028-02-29" in rare.message and "2032-02-29" in rare.message
    assert codes(Cron("0 9 1 1 *")) == []
    assert codes(Cron("0 9 * * *", end=SUMMER)) == ["no_runs"]
    assert codes(Once(SUMMER)) == ["no_runs"]
    assert codes(Once(SUMMER + timedelta(days=800))) == []


def test_notes_are_warnings_and_then_runs_as_sentences():
    notes = preview_notes(Cron("30 1 * * *", NEW_YORK), AUTUMN_EVE)

    assert len(notes) == 2
    assert notes[1].startswith("2026-11-01 01:30: clocks change in America/New_York")


@pytest.mark.parametrize("count", [0, -1, 1_001, True, 1.0, None])
def test_a_preview_is_bounded(count):
    with pytest.raises(ScheduleError) as caught:
        preview(Cron("0 9 * * *"), SUMMER, count)

    assert caught.value.field == "count"


def test_a_preview_starts_from_an_aware_instant():
    with pytest.raises(ScheduleError):
        preview(Cron("0 9 * * *"), datetime(2026, 1, 1))
    with pytest.raises(ScheduleError):
        warnings_of(Cron("0 9 * * *"), datetime(2026, 1, 1))
