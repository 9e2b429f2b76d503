"""Executions to come are counted by distinct schedules, and clock changes are told for each schedule."""
from datetime import UTC, datetime, timedelta

import pytest

from chrono_beat.core.forecast import Busiest, Load, Runs, advice, forecast, fullest, grouped, peaks, proposed_spread, touches
from chrono_beat.core.schedule import CeleryCrontab, Cron, Interval
from chrono_beat.core.zones import to_seconds

NOON = datetime(2026, 1, 7, 12, tzinfo=UTC)
YEAR = (datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC))


def test_each_minute_has_the_runs_of_all_jobs_in_it():
    found = forecast({
        Load("cron", "0 * * * *", "UTC"): 1_000,
        Load("cron", "30 14 * * *", "Europe/Paris"): 5,             # 13:30 UTC
        Load("interval", "20", "UTC", anchor=NOON): 2,
        Load("once", "2026-01-07T15:00:30Z", "UTC"): 1,
    }, NOON + timedelta(seconds=30), hours=4)

    assert (len(found), found[0], found[1], found[90], found[180]) == (240, 1_006, 6, 11, 1_007)


def test_a_spread_is_counted_as_its_average_and_loses_nothing():
    spread = forecast({Load("cron", "0 13 * * *", "UTC", spread_seconds=600): 100}, NOON, hours=2)
    before = forecast({Load("cron", "55 11 * * *", "UTC", spread_seconds=600): 100}, NOON, hours=2)

    assert spread[59:71] == [0.0, *[10.0] * 10, 0.0]
    assert before[:6] == [10.0] * 5 + [0.0]


def test_intervals_are_told_apart_by_the_minute_in_which_they_fall():
    loads = {grouped(Load("interval", "300", "UTC", anchor=NOON + timedelta(milliseconds=37 * job))) for job in range(20_000)}

    assert len(loads) == 5
    assert forecast(dict.fromkeys(loads, 1), NOON, hours=1) == [1.0] * 60


def test_a_crowded_minute_gets_the_shortest_spread_that_helps():
    [peak] = peaks(forecast({Load("cron", "0 13 * * *", "UTC"): 4_000}, NOON, hours=2), NOON)

    assert (peak.at, peak.executions, peak.spread_seconds) == (NOON + timedelta(hours=1), 4_000, 900)
    assert peak.spread_to == pytest.approx(4_000 / 15)


@pytest.mark.parametrize(("minutes", "spread", "left"), [
    ([0] * 59 + [4_000], 900, 4_000 / 15),
    ([400] * 30 + [2_500] + [400] * 29, 1_800, 400 + 2_100 / 30),
    ([1_600] * 30 + [1_900] + [1_600] * 29, 3_600, 1_600 + 300 / 60),
])
def test_a_spread_moves_executions_to_minutes_that_are_not_empty(minutes, spread, left):
    peak = peaks(minutes, NOON)[0]

    assert (peak.spread_seconds, peak.spread_to) == (spread, pytest.approx(left))
    assert proposed_spread(500) is None


def test_the_fullest_tenants_come_first_and_no_load_is_computed_twice(monkeypatch):
    computed = []
    monkeypatch.setattr(Runs, "_compute", lambda self, load, true=Runs._compute: computed.append(load) or true(self, load))
    each_hour, at_one = Load("cron", "0 * * * *", "UTC"), Load("cron", "0 13 * * *", "UTC")
    tenants = {f"t{number:02}": {each_hour: 1} for number in range(40)}
    tenants |= {"crowded": {at_one: 600}, "both": {each_hour: 2, at_one: 2}, "apart": {Load("cron", "7 * * * *", "UTC"): 3},
                "idle": {}}

    found = fullest(tenants, Runs(NOON, 2), 3)

    assert found == [Busiest("crowded", 600, 600, 60, 300), Busiest("both", 6, 4, 60, None), Busiest("apart", 6, 3, 7, None)]
    assert len(computed) == len(set(computed)) == 3


@pytest.mark.parametrize("zone", ["UTC", "Europe/London", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"])
@pytest.mark.parametrize("text", ["* * * * *", "*/20 1-3 * * *", "30 1 * * *", "59 23 28-31 3,9,10,12 *", "0 2 * * sun"])
def test_the_instants_of_a_span_are_those_that_one_step_after_another_finds(text, zone):
    """Over the days on which the clocks of these zones change; Apia left out a day at the end of 2011."""
    instants = Cron(text, zone).shared().instants
    for day in (datetime(2011, 12, 29), datetime(2026, 3, 7), datetime(2026, 3, 28), datetime(2026, 4, 4),
                datetime(2026, 10, 3), datetime(2026, 10, 24), datetime(2026, 10, 31)):
        first = to_seconds(day.replace(tzinfo=UTC))[0] + 1
        end = first + 2 * 86_400
        stepped, at = [], instants.first_from(first)
        while at is not None and at < end:
            stepped.append(at)
            at = instants.first_from(at + 1)

        assert list(instants.within(first, end)) == stepped


@pytest.mark.parametrize(("schedule", "how"), [
    (Cron("30 1 * * *", "Europe/London"), ["moved", "once"]),
    (Cron("*/30 1 * * *", "Europe/London"), ["moved", "twice"]),
    (Cron("0 9 * * *", "Europe/London"), []),
    (Cron("* * * * *", "Europe/London"), []),
    (Cron("30 1 * * *", "UTC"), []),
    (CeleryCrontab("30", "1", timezone="Europe/London"), ["moved", "once"]),
    (Interval(3600, anchor=NOON, timezone="Europe/London"), []),
])
def test_r059_a_clock_change_is_told_for_what_it_touches(schedule, how):
    assert [touched.how for touched in touches(schedule, *YEAR)] == how


def test_r058_a_time_inside_the_gap_is_taken_in_the_week_before_the_change():
    week_before = datetime(2026, 3, 24, tzinfo=UTC)
    schedule = Cron("0 2 * * *", "Europe/Berlin")

    assert schedule.next_after(week_before) == datetime(2026, 3, 24, 1, tzinfo=UTC)
    assert [touched.how for touched in touches(schedule, week_before, week_before + timedelta(days=7))] == ["moved"]


def test_r059_a_date_that_does_not_exist_is_skipped():
    samoa = Cron("0 12 30 12 *", "Pacific/Apia")

    [touched] = touches(samoa, datetime(2011, 12, 1, tzinfo=UTC), datetime(2012, 1, 15, tzinfo=UTC))
    assert touched.how == "skipped"


@pytest.mark.parametrize(("others", "gap", "said"), [
    (499, None, None),
    (500, None, "With a spread of 300 seconds this one is due up to 5 minutes later"),
    (1_999, timedelta(days=1), "with one on each of them about 400 of them are due a minute"),
    (4_099, None, "about 273 of them"),
    (10_000, timedelta(minutes=30), "With a spread of 900 seconds this one is due up to 15 minutes later"),
    (10_000, timedelta(minutes=5), None),
])
def test_a_spread_is_proposed_that_helps_and_ends_before_the_next_run(others, gap, said):
    found = advice(others, datetime(2026, 1, 7, 3, tzinfo=UTC), gap, "this tenant")

    crowded = f"03:00Z is crowded: at least {others:,} other jobs of this tenant are due in that minute, none of them spread"
    assert found is None if said is None else said in found and found.startswith(crowded)
