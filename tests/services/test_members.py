"""Several dispatchers: even shares, takeover, handover, and what one that was deposed can still do (nothing)."""

import pytest

from chrono_beat.core.errors import QueueUnavailable
from chrono_beat.core.ids import format_instant
from tests.services.world import MINUTE, NINE, SECOND, World, us

ROUND = 3 * SECOND      # microseconds within which members have agreed
LEASE = 5 * SECOND
POLL = SECOND


def minutely(world, count, **fields):
    return [world.job(f"job-{n}", **fields) for n in range(count)]


def settled(*names, **options):
    """A world in which these dispatchers have shared the partitions; nine o'clock is still to come."""
    world = World(**options)
    for name in names:
        world.dispatcher(name)
    world.run(us=ROUND)
    return world


def test_two_dispatchers_share_evenly():
    world = settled("a", "b", partitions=16)

    assert world.owners() == {"a": 8, "b": 8}


def test_a_second_dispatcher_gets_its_share_without_a_gap():
    world = settled("a", partitions=16)
    minutely(world, 30, concurrency="allow", expression="1", next_run_us=us(seconds=-40), anchor_us=us(seconds=-40))
    world.run_until(us(seconds=-30))

    world.dispatcher("b")
    world.run(us=2 * ROUND)
    assert world.owners() == {"a": 8, "b": 8}
    world.run_until(us() + SECOND // 2)

    world.assert_each_ran_once()
    assert len(world.runs) == 30 * 41
    assert max(world.lateness_us().values()) <= 100_000


def test_one_that_joins_takes_an_equal_part_from_all():
    world = settled("a", "b", "c", partitions=64)
    world.dispatcher("d")
    world.run(us=2 * ROUND)

    assert sorted(world.owners().values()) == [16, 16, 16, 16]


def test_clocks_that_disagree_by_a_minute_between_hosts_fire_each_occurrence_once():
    world = World()
    minutely(world, 30)
    world.dispatcher("behind", off_us=-30 * SECOND)
    world.dispatcher("ahead", off_us=30 * SECOND)

    world.run_until(us(minutes=9) + SECOND)

    assert len(world.runs) == 300
    world.assert_each_ran_once()
    assert max(world.lateness_us().values()) <= 100_000


# -- takeover ---------------------------------------------------------------------------------------------------------

def test_takeover_after_a_crash_is_within_the_lease_and_finds_everything_overdue_at_once():
    world = settled("a", "b")
    jobs = minutely(world, 60)
    world.run_until(us() - 3 * SECOND)

    world.kill("a")
    died = world.now_us()
    world.run_until(us() + 10 * SECOND)

    assert world.owners() == {"b": 8}
    world.assert_each_ran_once()
    assert len(world.runs) == len(jobs)
    assert max(at for _, at in world.runs) <= died + LEASE + POLL + 100_000


def test_what_was_claimed_and_not_published_when_its_dispatcher_died_is_published_once():
    world = settled("a")
    job = world.job()
    world.run_until(us() - SECOND // 2)
    assert world.store.rows(job)[0].state == "scheduled"      # claimed, the next run is advanced

    world.kill("a")
    world.dispatcher("b")
    world.run_until(us() + LEASE + POLL + SECOND)

    assert [id_ for id_, _ in world.runs] == [f"{job}:{format_instant(us())}:1"]
    world.assert_each_ran_once()


def test_what_was_published_and_not_marked_when_its_dispatcher_died_runs_once():
    world = settled("a")
    job = world.job()
    world.run_until(us() + 50_000)
    assert world.published_at and world.store.rows(job)[0].state in ("scheduled", "running", "succeeded")

    world.kill("a")
    world.dispatcher("b")
    world.run(seconds=20)

    assert world.run_counts()[world.store.rows(job)[0].execution_id] == 1
    world.assert_each_ran_once()


def test_a_restart_under_the_same_name_takes_its_own_partitions_at_once():
    world = settled("a")
    job = world.job()
    world.run_until(us() - SECOND)
    world.kill("a")

    world.dispatcher("a")
    world.run_until(us() + SECOND)

    assert world.run_counts() == {world.store.rows(job)[0].execution_id: 1}
    assert max(world.lateness_us().values()) <= 100_000


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_an_owner_that_goes_three_seconds_before_the_due_time_costs_no_run(how):
    world = settled("a", "b")
    minutely(world, 20)
    world.run_until(us() - 3 * SECOND)

    getattr(world, how)("a")
    world.run_until(us() + 10 * SECOND)

    world.assert_each_ran_once()
    assert len(world.runs) == 20
    assert max(world.lateness_us().values()) <= (100_000 if how == "stop" else LEASE + POLL)


def test_five_dispatchers_of_which_one_dies_each_minute_run_everything_once():
    world = settled("d0", "d1", "d2", "d3", "d4")
    minutely(world, 40)

    for minute in range(10):
        world.run_until(us(minutes=minute) - 20 * SECOND + minute * 4 * SECOND)
        world.kill(f"d{minute % 5}")
        world.dispatcher(f"d{minute % 5}")
    world.run_until(us(minutes=9) + 30 * SECOND)

    assert len(world.runs) == 400
    world.assert_each_ran_once()


# -- handover ---------------------------------------------------------------------------------------------------------

def test_a_graceful_stop_hands_over_without_a_gap():
    world = settled("a", "b", partitions=16)
    minutely(world, 30, concurrency="allow", expression="1", next_run_us=us(), anchor_us=us())
    world.run_until(us() + 10 * SECOND)

    world.stop("a")
    world.run(seconds=3.5)
    assert "a" not in world.members
    assert world.owners() == {"b": 16}
    world.run_until(us() + 20 * SECOND + SECOND // 2)

    world.assert_each_ran_once()
    assert len(world.runs) == 30 * 21
    assert max(world.lateness_us().values()) <= 100_000


def test_the_last_dispatcher_leaves_at_once():
    world = settled("a")

    world.stop("a")
    world.run(seconds=0.3)

    assert "a" not in world.members
    assert world.owners() == {"": 8}


def test_a_stop_is_bounded_though_nobody_takes_over():
    """The other one lives, by its heartbeat, but is too busy to take anything."""
    world = settled("a", "b")
    world.members["b"].dispatcher.partitions.leaving = True       # it takes nothing
    world.pause("b")

    world.stop("a")
    world.run(seconds=3.5)

    assert "a" not in world.members
    assert world.owners()["a"] == 0


def test_a_new_dispatcher_after_a_graceful_stop_starts_at_once():
    world = settled("a")
    minutely(world, 10)
    world.run_until(us() - 2 * SECOND)
    world.stop("a")
    world.run(seconds=0.5)

    world.dispatcher("b")
    world.run_until(us() + SECOND)

    world.assert_each_ran_once()
    assert len(world.runs) == 10
    assert max(world.lateness_us().values()) <= 100_000


# -- deposed ----------------------------------------------------------------------------------------------------------

def test_inv02_a_paused_dispatcher_that_wakes_up_changes_nothing_and_runs_nothing_twice():
    world = settled("a", "b")
    minutely(world, 50, schedule_kind="once", expression=NINE.isoformat())
    world.run_until(us() - 2 * SECOND)
    mine = len(world.members["a"].dispatcher.pending)
    assert mine > 10

    world.pause("a")
    world.run(seconds=90)
    before = {row.execution_id: row for row in world.store.rows()}, len(world.runs)
    world.resume("a")
    world.run(seconds=20)

    assert ({row.execution_id: row for row in world.store.rows()}, len(world.runs)) == before
    assert len(world.runs) == 50
    world.assert_each_ran_once()
    assert world.owners() == {"a": 4, "b": 4}                # and it takes part again


def test_inv02_what_a_paused_dispatcher_still_sends_is_refused_by_redis():
    """It was stopped between its own look at the deadline and the sending: Redis is the last to judge."""
    world = settled("a", "b")
    minutely(world, 30, schedule_kind="once", expression=NINE.isoformat())
    world.run_until(us() - SECOND)
    publish, late = world.queue.publish, []

    def stopped_on_the_way(lane, generation, valid_until_us, items):
        if world.members["a"].paused or late:
            return publish(lane, generation, valid_until_us, items)
        late.append((lane, generation, valid_until_us, items))
        world.pause("a")
        world.run(seconds=80)                                # b has run it all, and the tombstones have gone
        result = publish(lane, generation, valid_until_us, items)
        world.resume("a")
        return result

    firing = world.members["a"].dispatcher.firing
    firing._queue = type("Wire", (), {"publish": staticmethod(stopped_on_the_way)})()
    world.run(seconds=100)

    assert late
    assert world.run_counts().most_common(1)[0][1] == 1
    world.assert_each_ran_once()
    assert len(world.runs) == 30


def test_a_pause_over_the_due_time_runs_it_once_and_late():
    world = settled("a")
    job = world.job()
    world.run_until(us() - 10 * SECOND)

    world.pause("a")
    world.run(seconds=40)
    world.resume("a")
    world.run(seconds=5)

    [row] = [row for row in world.store.rows(job) if row.state == "succeeded"]
    assert row.scheduled_us == us()
    assert 30 * SECOND <= row.started_us - row.due_us <= 32 * SECOND
    world.assert_each_ran_once()


def test_a_lost_partition_leaves_the_memory_of_its_old_owner():
    world = settled("a", "b")
    minutely(world, 40, next_run_us=us(minutes=1), anchor_us=us(minutes=1))
    world.run_until(us() + 10 * SECOND)
    waiting = len(world.members["a"].dispatcher.pending)

    world.dispatcher("c")
    world.run(us=2 * ROUND)

    held = world.members["a"].dispatcher.owned()
    rows = [row for row in world.store.rows() if row.partition in held and row.state == "scheduled"]
    assert 0 < len(world.members["a"].dispatcher.pending) == len(rows) < waiting


def test_rule03_nothing_is_sent_after_the_lease_though_nobody_took_over():
    world = settled("a")
    world.job()
    world.run_until(us() - 10 * SECOND)

    world.store.unavailable = True                           # no renewal is confirmed any more
    world.run_until(us() + SECOND)
    assert world.published_at == {}

    world.store.unavailable = False
    world.run(seconds=8)
    assert len(world.runs) == 1
    world.assert_each_ran_once()


def test_rule02_a_publish_without_an_answer_is_not_repeated_after_its_tombstone_has_gone():
    """The first call was carried out and only its answer was lost: the execution ran, was recorded and forgotten."""
    world = settled("a")
    job = world.job(schedule_kind="once", expression=NINE.isoformat())
    publish, calls = world.queue.publish, []

    def no_answer(lane, generation, valid_until_us, items):
        calls.append(world.now_us())
        result = publish(lane, generation, valid_until_us, items)
        if calls[-1] < us() + 3 * MINUTE:
            raise QueueUnavailable("the connection broke off")
        return result

    world.members["a"].dispatcher.firing._queue = type("Wire", (), {"publish": staticmethod(no_answer)})()
    world.run_until(us() + 6 * MINUTE)

    assert len(calls) >= 2
    assert world.run_counts() == {world.store.rows(job)[0].execution_id: 1}
    assert world.store.rows(job)[0].state == "succeeded"
