"""Clocks that are wrong, apart, or set while the system works. Lateness is measured by one clock throughout: the database's."""
from datetime import UTC, datetime, timedelta

import pytest

from tests.services.world import MINUTE, SECOND, World, us

HOUR = 60 * MINUTE
LATEST_US = 100_000
SECONDS_OF_SKEW = 5


def minutely(world, count):
    for number in range(count):
        world.job(f"job {number}")


def test_inv01_a_dispatcher_whose_host_clock_jumps_by_six_hours_again_and_again_fires_all_on_time():
    """It also takes over, and is taken over from, in between: no lease may be reckoned by that clock."""
    world = World()
    minutely(world, 20)
    world.dispatcher("steady")
    world.dispatcher("jumping", off_us=6 * HOUR)

    for minute, step in enumerate((-12, 12, -6, 6, -12, 12)):
        world.run_until(us(minutes=minute) - 20 * SECOND)
        world.members["jumping"].clock.off_us += step * HOUR
        world.run_until(us(minutes=minute) - 5 * SECOND)
        world.stop("steady")
        world.run_until(us(minutes=minute) + 20 * SECOND)
        assert world.owners() == {"jumping": 8}
        world.dispatcher("steady")
    world.run_until(us(minutes=6) + SECOND)

    assert len(world.runs) == 20 * 7
    world.assert_each_ran_once()
    assert max(world.lateness_us().values()) <= LATEST_US


def test_r095_a_host_clock_set_back_by_twelve_hours_silences_nothing_and_reuses_no_instant():
    two = datetime(2026, 1, 2, 14, tzinfo=UTC)
    world = World(start=two - timedelta(seconds=90))
    job = world.job(next_run_us=us(two), anchor_us=us(two))
    world.dispatcher()
    world.run_until(us(two, minutes=1) + SECOND)

    world.members["a"].clock.off_us -= 12 * HOUR
    world.run_until(us(two, minutes=4) + SECOND)

    scheduled = [row.scheduled_us for row in world.store.rows(job)]
    assert sorted(scheduled)[:5] == [us(two, minutes=minute) for minute in range(5)]
    assert len(set(scheduled)) == len(scheduled)
    assert len(world.runs) == 5
    world.assert_each_ran_once()
    assert max(world.lateness_us().values()) <= LATEST_US


def test_r097_two_dispatchers_a_minute_apart_make_a_thousand_runs_of_a_hundred_jobs_in_ten_minutes():
    world = World()
    minutely(world, 100)
    world.dispatcher("behind", off_us=-30 * SECOND)
    world.dispatcher("ahead", off_us=30 * SECOND)

    world.run_until(us(minutes=9) + SECOND)

    assert len(world.runs) == 1_000
    world.assert_each_ran_once()
    assert max(world.lateness_us().values()) <= LATEST_US


@pytest.mark.parametrize("ahead_seconds", [SECONDS_OF_SKEW, -SECONDS_OF_SKEW])
def test_inv01_servers_whose_clocks_are_apart_make_runs_late_by_that_and_never_early_by_either(ahead_seconds):
    world = World(redis_off_us=ahead_seconds * SECOND)
    minutely(world, 10)
    world.dispatcher()

    world.run_until(us(minutes=3) + 6 * SECOND)

    assert len(world.runs) == 40
    world.assert_each_ran_once()
    due = {row.execution_id: row.due_us for row in world.store.rows()}
    by_redis = [at + ahead_seconds * SECOND - due[key] for key, at in world.runs]
    assert min(by_redis) >= 0
    assert max(world.lateness_us().values()) <= max(0, -ahead_seconds) * SECOND + LATEST_US


@pytest.mark.parametrize("step_seconds", [-90, 3_600])
def test_inv01_a_redis_clock_that_is_set_while_jobs_run_makes_nothing_early_and_loses_nothing(step_seconds):
    """Set back, everything waits for it: late rather than early. Set forward, the database's clock alone decides."""
    world = World()
    minutely(world, 10)
    world.dispatcher()
    world.run_until(us(minutes=1) + 30 * SECOND)

    world.redis_clock.off_us += step_seconds * SECOND
    world.run_until(us(minutes=3) + max(0, -step_seconds) * SECOND + 2 * SECOND)

    world.redis_clock.off_us = 0
    world.run_until(us(minutes=8) + 5 * SECOND)
    assert len(world.runs) == 90
    world.assert_each_ran_once()
