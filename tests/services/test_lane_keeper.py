"""Redis that is away, forgets, or becomes another server; generations, quarantine, and what tenants may."""

import pytest

import chrono_beat.services.lanes as lanes_module
from chrono_beat.core.deliveries import Hold
from chrono_beat.core.errors import QueueUnavailable
from chrono_beat.core.plain import PlainTask, copy_id
from chrono_beat.core.records import TenantLimits
from chrono_beat.core.recovery import LostGrant
from chrono_beat.services.lanes import OPENING_US, LaneKeeper, Lanes
from chrono_beat.testing.memory_jobs import MemoryTenant
from tests.services.world import LEASE_US, NINE, SECOND, World, us


def started(**options):
    world = World(**options)
    world.dispatcher("a")
    world.run(seconds=3)
    return world


def generation_of(world, lane=0):
    return world.queue.lane_state(lane).generation


def plain(name):
    return PlainTask(copy_id(name, "1"), "default", "chrono", 5, b"{}")


# -- away -------------------------------------------------------------------------------------------------------------

def test_while_redis_is_away_nothing_is_lost_and_nothing_piles_up():
    world = started()
    world.job(concurrency="allow", expression="1", next_run_us=us(), anchor_us=us())
    world.run_until(us() + 5 * SECOND)

    world.queue.unavailable = True
    world.run(seconds=50)
    ahead = len(world.members["a"].dispatcher.pending)
    assert 0 < ahead <= 61                                   # what had been claimed before
    world.flow.advance(seconds=120)
    world.run(seconds=5)
    assert len(world.members["a"].dispatcher.pending) == ahead

    world.queue.unavailable = False
    world.run(seconds=10)

    world.assert_each_ran_once()
    assert world.now_us() - max(at for _, at in world.runs) < 2 * SECOND


def test_leases_of_partitions_are_prolonged_while_redis_is_away():
    world = started()
    world.queue.unavailable = True
    world.run(seconds=30)

    epochs = [lease.epoch for lease in world.store.partitions()]

    assert world.owners() == {"a": 8}
    assert epochs == [1] * 8


def test_a_short_outage_without_loss_publishes_what_waits_under_the_same_generation():
    world = started()
    world.job()
    world.run_until(us() - SECOND)

    world.queue.unavailable = True
    world.run(seconds=5)
    world.queue.unavailable = False
    world.run(seconds=2)

    assert generation_of(world) == 1
    assert len(world.runs) == 1
    world.assert_each_ran_once()


# -- rule 4 -----------------------------------------------------------------------------------------------------------

def test_a_first_start_opens_the_lane_at_once():
    world = started()

    state = world.queue.lane_state(0)

    assert state.generation == world.store.lane(0).generation == 1
    assert state.quarantine_until_us <= state.now_us


def test_rule04_a_lost_memory_raises_the_generation_and_what_waited_is_read_anew():
    world = started()
    job = world.job()
    world.run_until(us() - 20 * SECOND)
    assert len(world.members["a"].dispatcher.pending) == 1

    world.flush_redis()
    world.run_until(us() + SECOND)

    assert generation_of(world) == world.store.lane(0).generation == 2
    assert world.run_counts() == {world.store.rows(job)[0].execution_id: 1}
    assert max(world.lateness_us().values()) <= 100_000      # nothing could be running, so there was no quarantine


def test_rule05_where_something_may_be_running_nothing_starts_for_one_lease():
    world = started()
    world.working = False
    running = world.job("long", schedule_kind="once", expression=NINE.isoformat())
    short = world.job("short", next_run_us=us(seconds=10), anchor_us=us(seconds=10), concurrency="allow")
    world.run_until(us() + SECOND)
    [delivery] = world.queue.draw(0, "chrono", 10, "w", LEASE_US)
    world.begin(0, delivery)
    world.run(seconds=1)                                     # the start is recorded

    world.flush_redis()
    lost = world.now_us()
    world.working = True
    world.run(seconds=58)
    assert [row.published_us for row in world.store.rows(short)] == [None]

    world.run(seconds=14)

    started_at = [at for id_, at in world.runs if id_.startswith(short)]
    assert lost + LEASE_US <= started_at[0] <= lost + LEASE_US + 1_500_000
    assert started_at[1] - us(seconds=70) <= 100_000
    assert world.store.rows(running)[0].state == "running"


def test_inv08_plain_tasks_that_run_hold_their_slots_over_a_lost_memory():
    """No row says that one runs; its worker has one lease to say so, as with executions."""
    world = started()
    world.working = False
    world.queue.set_tenants(0, [TenantLimits("default", 1, 1, False, 1)])
    world.queue.publish_plain(0, [plain("running"), plain("next")])
    [delivery] = world.queue.draw(0, "chrono", 10, "w", LEASE_US)
    world.run(seconds=2)

    world.flush_redis()
    world.queue.publish_plain(0, [plain("next")])
    world.run(seconds=5)
    drawn = world.queue.draw(0, "chrono", 10, "other", LEASE_US)
    grant = LostGrant(Hold(delivery.execution_id, delivery.token), delivery.lease_expires_us, delivery.grant)
    back = world.queue.bring_back(0, "w", [grant], LEASE_US)

    assert generation_of(world) == 2 and drawn == [] and back == [delivery.execution_id]


def test_a_lane_that_had_no_plain_tasks_since_its_last_loss_is_not_held_back_for_them():
    world = started()
    world.working = False
    world.queue.publish_plain(0, [plain("once")])
    world.run(seconds=2)
    assert world.store.lane(0).has_plain_tasks
    world.flush_redis()
    world.run(us=LEASE_US + 5 * SECOND)
    assert not world.store.lane(0).has_plain_tasks

    world.flush_redis()
    world.run(seconds=3)

    state = world.queue.lane_state(0)
    assert (state.generation, state.quarantine_until_us <= state.now_us) == (3, True)


def test_a_publish_under_a_lost_generation_is_refused_and_followed_by_a_reload():
    """The loss is noticed by the publish itself, before the keeper's next look."""
    world = started()
    job = world.job()
    world.run_until(us() - 1_000)

    world.flush_redis()
    world.run_until(us() + 3 * SECOND)

    assert world.run_counts() == {world.store.rows(job)[0].execution_id: 1}
    world.assert_each_ran_once()


def test_a_failover_counts_as_a_lost_memory():
    world = started()
    world.job()
    world.run_until(us() - 10 * SECOND)

    world.become_another_server()
    world.run_until(us() + SECOND)

    assert generation_of(world) == 2
    assert len(world.runs) == 1


def test_two_dispatchers_raise_the_generation_once():
    world = World()
    world.dispatcher("a")
    world.dispatcher("b")
    world.run(seconds=5)
    assert generation_of(world) == 1

    world.flush_redis()
    world.run(seconds=5)

    assert generation_of(world) == world.store.lane(0).generation == 2


def test_a_generation_that_somebody_raised_and_never_opened_is_not_used_again():
    world = World()
    world.store.raise_generation(0, 0, "r1")                 # and then it crashed
    world.dispatcher("a")

    world.run(seconds=OPENING_US / SECOND - 1)
    assert generation_of(world) is None
    world.run(seconds=3)

    assert generation_of(world) == 2


def test_a_database_that_was_put_back_hands_out_no_generation_twice():
    world = started()
    for _ in range(4):
        world.flush_redis()
        world.run(seconds=3)
    assert generation_of(world) == 5
    world.store._lanes[0].generation = 2                     # from a backup
    world.kill("a")
    world.dispatcher("b")

    world.run(seconds=10)

    assert world.store.lane(0).generation >= 5
    job = world.job(schedule_kind="once", expression=NINE.isoformat())
    world.run_until(us() + 5 * SECOND)
    assert world.states(job) == {"succeeded": 1}


def test_several_lanes_are_opened_and_lost_apart():
    world = started(lanes=3)
    jobs = []
    for n in range(12):
        world.store.add_tenant(MemoryTenant(slug=f"t{n}"))
        jobs.append(world.job("job", tenant=f"t{n}"))
    world.run_until(us() - 5 * SECOND)
    assert [generation_of(world, lane) for lane in range(3)] == [1, 1, 1]

    world.run_until(us(minutes=2) + SECOND)

    world.assert_each_ran_once()
    assert len(world.runs) == 36


# -- tenants ----------------------------------------------------------------------------------------------------------

class Told:
    """A queue that notes what it is told of tenants."""

    def __init__(self, queue):
        self._queue, self.told = queue, []

    def __getattr__(self, name):
        return getattr(self._queue, name)

    def set_tenants(self, lane, limits):
        self.told.append({limit.tenant: (limit.weight, limit.max_running, limit.paused) for limit in limits})
        self._queue.set_tenants(lane, limits)


@pytest.fixture
def keeping():
    world = World()
    world.queue = Told(world.queue)
    lanes = Lanes(1)
    keeper = LaneKeeper(world.store, world.queue, world.flow, world.config, lanes)

    def look(seconds=1):
        world.flow.advance(seconds=seconds)
        world.queue.told.clear()
        keeper.step(world.flow.monotonic_us())
        return world.queue.told

    return world, look


def test_the_draw_is_told_of_limits_at_the_start_and_of_changes_each_second(keeping):
    world, look = keeping
    world.store.add_tenant(MemoryTenant(slug="acme", weight=3))

    assert look()[-1]["acme"] == (3, 20, False)

    world.store.add_tenant(MemoryTenant(slug="acme", weight=3, max_running=1, paused=True))
    assert look()[-1]["acme"] == (3, 1, True)


def test_what_did_not_change_is_not_told_for_ever(keeping):
    world, look = keeping
    world.store.add_tenant(MemoryTenant(slug="acme", weight=3))
    look()

    assert look(seconds=10)                                  # dated in the last seconds, so told once more
    assert not any("acme" in told for told in look(seconds=10))


def test_limits_that_somebody_deleted_in_redis_are_told_again_in_rounds(keeping, monkeypatch):
    world, look = keeping
    monkeypatch.setattr(lanes_module, "ROUND_TENANTS", 2)
    for slug in "abc":
        world.store.add_tenant(MemoryTenant(slug=slug, weight=3))
    world.store.add_tenant(MemoryTenant(slug="plain"))
    look()
    look(seconds=10)
    world.queue._queue.lanes[0].limits.clear()

    look(seconds=30)
    assert set(world.queue._queue.lanes[0].limits) == {"a", "b"}
    look(seconds=30)
    assert set(world.queue._queue.lanes[0].limits) == {"a", "b", "c"}
    look(seconds=30)
    assert set(look(seconds=30)[-1]) <= {"a", "b", "c"}


def test_a_new_generation_is_told_all_that_differs_from_the_defaults(keeping):
    world, look = keeping
    world.store.add_tenant(MemoryTenant(slug="acme", weight=3))
    look()
    look(seconds=60)

    world.flush_redis()

    assert {"acme": (3, 20, False)}.items() <= look(seconds=60)[-1].items()


def test_limits_that_changed_while_redis_was_away_are_told_when_it_is_back(keeping):
    world, look = keeping
    world.store.add_tenant(MemoryTenant(slug="acme", weight=3, max_running=1))
    look()

    world.queue._queue.unavailable = True
    world.store.add_tenant(MemoryTenant(slug="acme"))        # back to the defaults
    with pytest.raises(QueueUnavailable):
        look()
    world.queue._queue.unavailable = False

    assert look(seconds=600)[-1]["acme"] == (1, 20, False)


