"""Which instants a backfill creates, also over clock changes, and what it costs to find them."""
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from chrono_beat.core.backfill import newest_between, oldest_between
from chrono_beat.core.schedule import Cron, Interval

HOUR = timedelta(hours=1)
DAY = datetime(2026, 1, 1, tzinfo=UTC)


class Counting:
    """A schedule that counts how often it is asked."""

    def __init__(self, schedule):
        self.schedule, self.asked = schedule, 0

    def __getattr__(self, name):
        self.asked += 1
        return getattr(self.schedule, name)


def test_a_day_of_an_hourly_job_has_24_instants_with_its_end_left_out():
    stretch = oldest_between(Cron("0 * * * *"), DAY, DAY + 24 * HOUR, 1000)

    assert stretch.instants == [DAY + n * HOUR for n in range(24)]
    assert (stretch.left_out, stretch.go_on_from) == (0, None)


@pytest.mark.parametrize(("day", "runs"), [("2026-03-29", 23), ("2026-10-25", 25)])
def test_the_days_of_clock_changes_have_the_hours_that_they_have(day, runs):
    local = Cron("0 * * * *", timezone="Europe/London")
    start = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo("Europe/London"))

    stretch = oldest_between(local, start, start + timedelta(days=1), 1000)

    assert len(stretch.instants) == len(set(stretch.instants)) == runs


def test_what_is_left_out_is_counted_and_can_be_gone_on_from():
    schedule = Interval(60).anchored(DAY)

    first = oldest_between(schedule, DAY, DAY + HOUR, 25)
    second = oldest_between(schedule, first.go_on_from, DAY + HOUR, 100)

    assert (len(first.instants), first.left_out, first.go_on_from) == (25, 35, DAY + timedelta(minutes=25))
    assert [*first.instants, *second.instants] == [DAY + timedelta(minutes=n) for n in range(60)]


def test_the_newest_come_oldest_first():
    assert newest_between(Cron("0 * * * *"), DAY, DAY + 5 * HOUR + timedelta(minutes=20), 3) == [
        DAY + 3 * HOUR, DAY + 4 * HOUR, DAY + 5 * HOUR]
    assert newest_between(Cron("0 * * * *"), DAY + timedelta(minutes=1), DAY + timedelta(minutes=59), 3) == []


@pytest.mark.parametrize("find", [oldest_between, newest_between])
def test_millions_of_instants_are_not_walked_through(find):
    """20 years of a per-minute job: ten million instants, of which ten are asked for."""
    schedule = Counting(Cron("* * * * *"))

    find(schedule, DAY, DAY + timedelta(days=20 * 365), 10)

    assert schedule.asked <= 12
