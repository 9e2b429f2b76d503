"""Cases that users of other schedulers reported, each with the outcome that is right here.

A number tells one case from another. An instant in a zone is written as UTC.
"""

import zoneinfo
from datetime import UTC, datetime, timedelta

import pytest

from chrono_beat.core.schedule import CeleryCrontab, Cron, Interval, ScheduleError, preview_notes, warnings_of

zoneinfo.reset_tzpath(to=())


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def runs(schedule, after, count):
    found, t = [], at(after) if isinstance(after, str) else after
    while len(found) < count and (t := schedule.next_after(t)) is not None:
        found.append(t)
    return found


def cron_runs(expression, after, count, zone="UTC"):
    return runs(Cron(expression, zone), after, count)


def days(expression, after, count):
    return [f"{t:%m-%d}" for t in cron_runs(expression, after, count)]


def instants(*texts, day="2026-01-01"):
    return [at(text if "T" in text else f"{day}T{text}") for text in texts]


# Grammar and calendar


def test_r001_either_day_field_is_enough_in_cron_text_and_both_are_needed_in_celery():
    assert days("0 22 1-7 * 6", "2026-01-01", 11) == [
        "01-01", "01-02", "01-03", "01-04", "01-05", "01-06", "01-07", "01-10", "01-17", "01-24", "01-31"]

    celery = CeleryCrontab("0", "22", "6", "1-7", "*")

    assert runs(celery, "2026-01-01", 2) == instants("2026-01-03T22:00", "2026-02-07T22:00")


def test_r003_a_day_that_fits_both_halves_runs_once():
    assert days("0 0 13 * 5", "2026-01-31", 6) == ["02-06", "02-13", "02-20", "02-27", "03-06", "03-13"]
    assert Cron("0 0 13 * 5").count_between(at("2026-01-01"), at("2027-01-01")) == 61


def test_r004_a_stepped_star_restricts_its_field():
    assert days("0 0 */2 * 1", "2026-01-01", 5) == ["01-03", "01-05", "01-07", "01-09", "01-11"]


def test_r005_leap_days_come_when_they_come():
    leap = Cron("0 9 29 2 *")

    assert leap.next_after(at("2024-02-29T09:00")) == at("2028-02-29T09:00")
    assert leap.next_after(at("2096-02-29T09:00")) == at("2104-02-29T09:00")
    for schedule in (leap, Cron("0 0 L * *"), Cron("0 0 31 * *"), Cron("0 0 * * 1#5"), CeleryCrontab("0", "0"),
                     Interval(3600, anchor=at("2020-02-29"))):
        assert schedule.next_after(at("2028-02-29T12:00")) is not None


def test_r008_steps_of_days_begin_anew_each_month():
    assert days("0 0 */10 * *", "2021-02-20", 6) == ["02-21", "03-01", "03-11", "03-21", "03-31", "04-01"]
    assert days("0 0 31 * *", "2026-01-01", 5) == ["01-31", "03-31", "05-31", "07-31", "08-31"]


def test_r009_an_uneven_step_has_a_short_gap_and_a_warning():
    assert cron_runs("*/7 * * * *", "2026-01-01T00:50", 4) == instants("00:56", "01:00", "01:07", "01:14")

    [warning] = warnings_of(Cron("*/7 * * * *"), at("2026-01-01"))

    assert warning.code == "uneven_step"
    assert "4 minutes" in warning.message


def test_r013_seven_is_sunday_once():
    assert cron_runs("0 2 * * 0,1,3,7", "2026-01-01", 20) == cron_runs("0 2 * * 0,1,3", "2026-01-01", 20)
    assert days("0 0 * * 5-7", "2026-01-01", 3) == ["01-02", "01-03", "01-04"]


def test_r014_the_last_day_of_the_month():
    assert days("0 0 L * *", "2028-01-15", 3) == ["01-31", "02-29", "03-31"]


def test_r016_the_nearest_weekday_stays_in_its_month():
    assert days("0 9 15W * *", "2026-01-01", 8) == [
        "01-15", "02-16", "03-16", "04-15", "05-15", "06-15", "07-15", "08-14"]
    assert days("0 9 1W * *", "2026-02-01", 2) == ["02-02", "03-02"]
    assert days("0 9 1W * *", "2026-07-15", 1) == ["08-03"]


def test_r017_a_weekday_near_a_day_that_a_month_lacks():
    assert days("0 0 31W * *", "2026-03-31T12:00", 2) == ["05-29", "07-31"]
    assert days("0 0 LW * *", "2026-01-01", 3) == ["01-30", "02-27", "03-31"]


def test_r018_the_nth_weekday():
    assert days("0 0 * * 5#5", "2026-01-01", 3) == ["01-30", "05-29", "07-31"]
    assert days("0 0 * * fri#1,fri#3", "2026-01-01", 3) == ["01-02", "01-16", "02-06"]


def test_r018_the_nth_weekday_beside_a_date_is_one_of_two():
    assert days("0 0 13 * 5#2", "2026-01-01", 4) == ["01-09", "01-13", "02-13", "03-13"]


@pytest.mark.parametrize("expression", ["*/30 * * * * *", "0 0 12 * * ?", "0 0 0 1 1 * 2030"])
def test_r020_six_and_seven_fields_are_refused(expression):
    with pytest.raises(ScheduleError, match="interval"):
        Cron(expression)


def test_r022_reboot_is_refused_with_its_reason():
    with pytest.raises(ScheduleError, match="several machines"):
        Cron("@reboot")


def test_r023_aliases_run_on_the_mark():
    assert cron_runs("@midnight", "2026-06-01T12:00", 1, "Europe/Berlin") == [at("2026-06-01T22:00")]
    assert Cron("@daily").next_after(at("2026-01-01T12:00")) == at("2026-01-02")
    assert cron_runs("@hourly", "2026-01-01T00:30", 2) == instants("01:00", "02:00")


@pytest.mark.parametrize("expression", ["H/5 * * * *", "H H * * *"])
def test_r024_hashed_fields_are_refused_in_favour_of_spread(expression):
    with pytest.raises(ScheduleError, match="spread"):
        Cron(expression)


def test_r026_drawn_fields_are_refused_in_favour_of_spread():
    with pytest.raises(ScheduleError, match="spread"):
        Cron("R R * * *")


# Zones and clock changes

NEW_YORK = "America/New_York"


def test_r027_a_skipped_time_is_made_up_at_the_end_of_the_gap():
    assert cron_runs("30 2 * * *", "2026-03-08T06:30", 2, NEW_YORK) == instants("2026-03-08T07:00", "2026-03-09T06:30")


def test_r029_asking_from_inside_the_night_of_the_change_loses_nothing():
    assert cron_runs("0 0 * * *", "2026-03-28T23:30", 2, "Europe/Prague") == instants(
        "2026-03-29T22:00", "2026-03-30T22:00")
    assert cron_runs("0 0 * * *", "2026-04-22T21:00", 3, "Africa/Cairo") == instants(
        "2026-04-22T22:00", "2026-04-23T22:00", "2026-04-24T21:00")


def test_r031_a_repeated_time_runs_in_the_first_pass_only():
    found = cron_runs("0 2 * * *", "2023-10-27T12:00", 3, "Europe/Berlin")

    assert found == instants("2023-10-28T00:00", "2023-10-29T00:00", "2023-10-30T01:00")
    assert Cron("0 2 * * *", "Europe/Berlin").next_after(at("2023-10-29T00:30")) == at("2023-10-30T01:00")


def test_r032_one_who_takes_over_between_the_passes_does_not_run_again():
    schedule = Cron("30 1 * * *", NEW_YORK)

    assert schedule.next_after(at("2026-11-01T04:00")) == at("2026-11-01T05:30")
    assert schedule.next_after(at("2026-11-01T05:31")) == at("2026-11-02T06:30")
    assert schedule.next_after(at("2026-11-01T06:29")) == at("2026-11-02T06:30")
    assert not schedule.matches(at("2026-11-01T06:30"))


def test_r032_a_count_that_ends_or_begins_between_the_passes_has_the_run_once():
    schedule = Cron("30 1 * * *", NEW_YORK)

    assert schedule.count_between(at("2026-11-01T05:00"), at("2026-11-01T06:15")) == 1
    assert schedule.count_between(at("2026-11-01T06:00"), at("2026-11-01T06:45")) == 0
    assert schedule.count_between(at("2026-11-01T06:15"), at("2026-11-02T06:31")) == 1


def test_r027_a_count_has_the_made_up_run_at_its_instant():
    schedule = Cron("30 2 * * *", NEW_YORK)

    assert schedule.count_between(at("2026-03-08T06:00"), at("2026-03-08T07:00")) == 0
    assert schedule.count_between(at("2026-03-08T06:00"), at("2026-03-08T07:00:01")) == 1
    assert schedule.count_between(at("2026-03-08T07:00"), at("2026-03-08T08:00")) == 1
    assert schedule.count_between(at("2026-03-08T07:00:01"), at("2026-03-08T08:00")) == 0


def test_r032_looking_back_over_a_second_pass_finds_the_first():
    schedule = Cron("30 1 1 11 *", NEW_YORK)

    for t in ("2026-11-01T06:15", "2026-11-01T06:45", "2026-12-01", "2027-10-01"):
        assert schedule.previous_before(at(t)) == at("2026-11-01T05:30")


def test_r034_every_ten_minutes_goes_on_through_the_gap():
    assert cron_runs("*/10 * * * *", "2026-03-29T00:35", 5, "Europe/London") == instants(
        "00:40", "00:50", "01:00", "01:10", "01:20", day="2026-03-29")


def test_r035_asking_again_and_again_always_moves_on():
    assert cron_runs("30 * * * *", "2026-03-08T05:00", 4, NEW_YORK) == instants(
        "05:30", "06:30", "07:30", "08:30", day="2026-03-08")
    assert cron_runs("30 * * * *", "2017-10-28T22:05", 6, "Europe/Vienna") == instants(
        "2017-10-28T22:30", "2017-10-28T23:30", "2017-10-29T00:30", "2017-10-29T01:30", "2017-10-29T02:30",
        "2017-10-29T03:30")


def test_r036_every_quarter_runs_through_the_repeated_hour():
    assert cron_runs("*/15 * * * *", "2026-11-01T05:40", 6, NEW_YORK) == instants(
        "05:45", "06:00", "06:15", "06:30", "06:45", "07:00", day="2026-11-01")


@pytest.mark.parametrize("back", [False, True])
def test_r036_a_day_of_the_year_runs_in_both_passes_although_its_next_wall_time_is_a_year_off(back):
    schedule = Cron("0/30 1 1 11 *", NEW_YORK)
    passes = instants("05:00", "05:30", "06:00", "06:30", day="2026-11-01")

    if back:
        assert [schedule.previous_before(t) for t in passes[1:]] == passes[:-1]
        assert schedule.previous_before(at("2027-10-01")) == passes[-1]
    else:
        assert runs(schedule, "2026-01-01", 4) == passes
        assert schedule.next_after(passes[-1]) == at("2027-11-01T05:00")


def test_r038_every_second_hour_is_fixed_and_never_runs_twice_at_one_instant():
    assert cron_runs("0 */2 * * *", "2026-03-08T05:00", 4, NEW_YORK) == instants(
        "07:00", "08:00", "10:00", "12:00", day="2026-03-08")
    assert cron_runs("0 */2 * * *", "2026-10-24T22:00", 3, "Europe/Berlin") == instants(
        "00:00", "03:00", "05:00", day="2026-10-25")


def test_r040_lists_of_hours_go_on_after_the_change():
    assert cron_runs("15 7,8,13,19 * * *", "2023-10-28T10:00", 6, "Europe/Brussels") == instants(
        "2023-10-28T11:15", "2023-10-28T17:15", "2023-10-29T06:15", "2023-10-29T07:15", "2023-10-29T12:15",
        "2023-10-29T18:15")


def test_r042_a_short_day_is_still_a_sunday():
    assert cron_runs("0 12 * * 0", "2022-03-24T11:00", 2, "Europe/Berlin") == instants(
        "2022-03-27T10:00", "2022-04-03T10:00")


def test_r044_the_offset_is_that_of_the_run():
    assert cron_runs("* * * */3 *", "2015-02-15T05:00", 1, NEW_YORK) == [at("2015-04-01T04:00")]


def test_r045_half_an_hour_is_skipped_and_all_answers_agree():
    schedule = Cron("0 * * * *", "Australia/Lord_Howe")

    assert runs(schedule, "2019-10-05T15:13", 3) == instants("16:00", "17:00", "18:00", day="2019-10-05")
    night = [at("2019-10-05T12:00") + timedelta(minutes=minute) for minute in range(8 * 60)]
    named = [t for t in night if schedule.matches(t)]
    assert named == [t for t in night if schedule.next_after(t - timedelta(seconds=1)) == t]
    assert named == [t for t in night if schedule.previous_before(t + timedelta(seconds=1)) == t]


def test_r047_the_hour_follows_the_change_on_the_day_itself():
    assert cron_runs("4 16 * * *", "2025-03-08T12:00", 3, NEW_YORK) == instants(
        "2025-03-08T21:04", "2025-03-09T20:04", "2025-03-10T20:04")
    assert cron_runs("0 14 * * 4", "2018-03-08T12:00", 2, "America/Los_Angeles") == instants(
        "2018-03-08T22:00", "2018-03-15T21:00")


def test_r048_a_week_with_a_change_has_eight_runs_in_eight_days():
    found = cron_runs("0 16 * * *", "2017-11-01T12:00", 8, "US/Eastern")

    assert found == [at(f"2017-11-0{day}T{20 if day < 5 else 21}:00") for day in range(1, 9)]
    assert cron_runs("0 0 1 * *", "2026-01-15", 3, "Asia/Kathmandu") == instants(
        "2026-01-31T18:15", "2026-02-28T18:15", "2026-03-31T18:15")


def test_r050_asking_from_inside_a_repeated_hour_raises_nothing_and_repeats_nothing():
    schedule = Cron("0 1 * * *", NEW_YORK)

    for after in ("2019-11-03T05:00:00.300000", "2019-11-03T06:00:00.300000", "2019-11-03T06:30"):
        assert schedule.next_after(at(after)) == at("2019-11-04T06:00")
    second_pass = datetime(2019, 11, 3, 1, 30, fold=1, tzinfo=zoneinfo.ZoneInfo(NEW_YORK))
    assert schedule.next_after(second_pass) == at("2019-11-04T06:00")


def test_r055_one_text_in_two_zones_is_two_schedules():
    berlin, new_york = Cron("0 9 * * *", "Europe/Berlin"), Cron("0 9 * * *", NEW_YORK)

    assert berlin.next_after(at("2026-06-01")) == at("2026-06-01T07:00")
    assert new_york.next_after(at("2026-06-01")) == at("2026-06-01T13:00")
    assert berlin != new_york


def test_r057_order_is_that_of_instants():
    schedules = {"A": Cron("0 9 * * *", "Asia/Tokyo"), "B": Cron("0 1 * * *", "Europe/London"),
                 "C": Cron("55 18 * * *", NEW_YORK)}

    order = sorted(schedules, key=lambda name: schedules[name].next_after(at("2026-01-14T12:00")))

    assert order == ["C", "A", "B"]


def test_r058_a_time_in_the_next_change_is_taken_and_shown_once():
    schedule = Cron("0 2 * * *", "Europe/Copenhagen")

    assert [f"{t:%m-%d}" for t in runs(schedule, "2018-10-26T12:00", 3)] == ["10-27", "10-28", "10-29"]
    assert any("first" in note for note in preview_notes(schedule, at("2018-10-22")))


# Intervals, starts, short periods


def test_r060_a_start_is_a_bound_and_no_run():
    early = Cron("0 15 * * *", start=at("2026-01-01T13:58"))
    late = Cron("0 15 * * *", start=at("2026-01-01T15:30"))
    exact = Cron("0 15 * * *", start=at("2026-01-01T15:00"))

    assert early.next_after(at("2026-01-01T14:00")) == at("2026-01-01T15:00")
    assert late.next_after(at("2026-01-01T14:00")) == at("2026-01-02T15:00")
    assert exact.next_after(at("2026-01-01T14:00")) == at("2026-01-01T15:00")


def test_r061_the_start_of_an_interval_is_its_first_run():
    now = at("2026-01-01T10:00")
    start = now + timedelta(seconds=30)
    daily = Interval(timedelta(days=1), anchor=start, start=start)

    assert runs(daily, now, 3) == [start + timedelta(days=k) for k in range(3)]


def test_r063_ticks_within_the_due_minute_see_one_run():
    schedule = Cron("4 * * * *")
    next_run, fired = schedule.next_after(at("2026-01-01T12:03:50")), []

    for tick in range(400):
        now = at("2026-01-01T12:03:50") + timedelta(milliseconds=200 * tick)
        if next_run <= now:
            fired.append(next_run)
            next_run = schedule.next_after(next_run)

    assert fired == [at("2026-01-01T12:04")]


def test_r065_a_weekly_interval_survives_daily_restarts():
    created = at("2026-01-01T08:15")
    seen = set()

    for day in range(15):
        restarted = Interval(timedelta(days=7), anchor=created)
        seen.add(restarted.next_after(created + timedelta(days=day)))

    assert sorted(seen) == [created + timedelta(days=7 * week) for week in (1, 2, 3)]


def test_r067_a_job_made_in_the_last_second_runs_in_the_coming_minute():
    assert Cron("* * * * *").next_after(at("2026-01-01T12:00:59.500000")) == at("2026-01-01T12:01")
