"""A tenant that moves from pool to pool while its copies wait, lie aside, wait for a lock or were given back."""

import random

import pytest

from chrono_beat.core.deliveries import Hold
from chrono_beat.core.records import RetryPolicy
from chrono_beat.services.audit import Audit
from chrono_beat.services.reaper import Reaper
from chrono_beat.services.repairs import Repairs
from chrono_beat.testing.memory_jobs import MemoryTenant
from tests.services.world import LEASE_US, NINE, SECOND, World, us

POOLS = ("", "chrono.gold")
LOOK_EVERY_US = 100_000
ONCE_MORE = RetryPolicy(2, True, 30.0, 2.0, 3600.0, 0.0)
ONCE = {"schedule_kind": "once", "expression": NINE.isoformat(), "anchor_us": None}


class Hands:
    """A worker for each pool: it draws now and then, lays aside or gives back at random, and ends the others later."""

    def __init__(self, world, chance):
        self.world, self.chance, self.held = world, chance, []
        self.pools = {"chrono", "chrono.gold"}
        self.clumsy = True

    def turn(self, now_us):
        queue = self.world.queue
        for pool in sorted(self.pools):
            for delivery in queue.draw(0, pool, self.chance.randint(0, 3), pool, LEASE_US):
                hold, fate = Hold(delivery.execution_id, delivery.token), self.chance.random() if self.clumsy else 1.0
                if fate < 0.25:
                    queue.give_back(0, pool, [hold])
                elif fate < 0.5:
                    queue.park(0, pool, [(hold, "t.unknown")])
                else:
                    self.world.begin(0, delivery)
                    self.held.append(delivery)
        aside = [parked.execution_id for parked in queue.parked(0, 100) if not self.clumsy or self.chance.random() < 0.1]
        for delivery in queue.draw_parked(0, "chrono", aside, LEASE_US):
            self.world.begin(0, delivery)
            self.held.append(delivery)
        self.chance.shuffle(self.held)
        self.end(self.chance.randint(0, len(self.held)))
        return LOOK_EVERY_US

    def end(self, count):
        for delivery in [self.held.pop() for _ in range(count)]:
            self.world.finish(0, delivery)


def move(world, pool):
    """As the database's trigger does it: the pool, and a new version of each job that has none of its own."""
    world.store.add_tenant(MemoryTenant(slug="acme", pool=pool))
    for job in list(world.store.jobs.values()):
        if not job.pool:
            world.store.edit_job(job.job_id, {})


def moving_world(chance):
    world = World(reap_every=1.0)
    world.store.add_tenant(MemoryTenant(slug="acme"))
    for number in range(40):
        world.job(f"alone {number}", tenant="acme", **ONCE)
    for number in range(10):
        world.job(f"grouped {number}", tenant="acme", exclusion_group="g", **ONCE)
    for number in range(5):
        world.job(f"stays {number}", tenant="acme", pool="chrono.gold", **ONCE)
    world.dispatcher()
    for service in (Repairs, Audit):
        world.add(service(world.store, world.queue, world.flow, world.config))
    world.add(Reaper(world.queue, world.flow, world.config))
    world.working = False
    return world, world.add(Hands(world, chance))


def waiting(world):
    """In how many ways something waits in Redis: given back, aside, behind a lock, in a stream."""
    lane = world.queue.lanes[0]
    kinds = (any(lane.fronts.values()), world.queue.parked(0, 1), any(lane.waiters.values()), any(lane.streams.values()))
    return sum(map(bool, kinds))


@pytest.mark.parametrize("flushed", [False, True], ids=["", "redis flushed in the middle"])
@pytest.mark.parametrize("seed", range(4))
def test_inv02_inv03_whatever_waits_when_its_tenant_moves_runs_once(seed, flushed):
    chance = random.Random(seed)
    world, hands = moving_world(chance)
    world.run_until(us() + SECOND // 2)
    ways = 0

    for number in range(4):
        ways = max(ways, waiting(world))
        move(world, POOLS[(number + 1) % 2])
        if flushed and number == 2:
            hands.pools.clear()                              # what they hold ends and is recorded; all else is forgotten
            hands.end(len(hands.held))
            world.run(seconds=1)
            hands.end(len(hands.held))
            world.run(seconds=1)
            assert world.states().keys() & {"queued", "scheduled"}, "something is left to be forgotten"
            world.flush_redis()
            hands.pools = {"chrono", "chrono.gold"}
        world.run(us=chance.randint(0, SECOND // 2))
    hands.clumsy, hands.pools = False, {"chrono.gold" if world.store.tenants["acme"].pool else "chrono", "chrono.gold"}
    world.run(seconds=100)

    assert ways >= 3
    world.assert_each_ran_once()
    assert world.states() == {"succeeded": 55}
    left = world.queue.lanes[0]
    assert not left.streams and not left.fronts and not left.locks and not left.waiters
    assert not any(line.ready or line.capped for line in left.lines.values())


def test_a_pool_that_has_lost_its_workers_keeps_nothing_of_who_has_moved_away():
    """What was drawn runs where it is; all else goes with the tenant, and the old line is taken away."""
    chance = random.Random(7)
    world, hands = moving_world(chance)
    world.run_until(us() + SECOND // 2)
    hands.clumsy = False

    move(world, "chrono.gold")
    hands.pools = {"chrono.gold"}
    world.run(seconds=60)

    world.assert_each_ran_once()
    assert world.states() == {"succeeded": 55}
    assert not any(line.ready or line.capped for line in world.queue.lanes[0].lines.values())


def test_inv02_inv03_what_runs_what_is_queued_and_retries_that_wait_go_on_after_a_move():
    world = World()
    world.store.add_tenant(MemoryTenant(slug="acme"))
    for number in range(4):
        world.job(f"again {number}", tenant="acme", task="t.again", retry=ONCE_MORE, **ONCE)
    for number in range(60):
        world.job(f"job {number}", tenant="acme", **ONCE)
    world.answers["t.again"] = (lambda delivery: ("failed" if delivery.execution_id.endswith(":1") else "succeeded", {}), {})
    world.dispatcher()
    world.working = False
    hands = world.add(Hands(world, random.Random(1)))
    hands.clumsy = False

    while world.states().get("failed", 0) < 4 or not hands.held:
        world.run(us=LOOK_EVERY_US)
    running = {delivery.execution_id for delivery in hands.held}
    before = world.states()
    move(world, "chrono.gold")
    hands.pools = {"chrono.gold"}
    world.run(seconds=100)

    assert running and before["queued"] and before["scheduled"] == 4, "of each kind there was something"
    assert world.run_counts() == dict.fromkeys((row.execution_id for row in world.store.rows()), 1)
    assert world.states() == {"failed": 4, "succeeded": 64}
