"""Leases over hours of virtual time: long bodies, workers that die at random, reapers that die."""
import random
import resource
from collections import Counter
from datetime import timedelta

import pytest

from chrono_beat import telemetry
from chrono_beat.core.deliveries import Hold, Settlement
from chrono_beat.services.reaper import Reaper
from tests.services.world import NINE, SECOND, World, us

HOUR = 3_600 * SECOND
LEASE, RENEW_EVERY = 60 * SECOND, 20 * SECOND
ONCE = {"schedule_kind": "once", "expression": NINE.isoformat()}


class Worker:
    """Draws one execution at a time and runs it for so long, renewing its lease; it may die."""

    def __init__(self, world, name, body_us):
        self.world, self.name, self.body_us = world, name, body_us
        self.delivery, self.ends_us, self.renew_us = None, 0, 0

    def turn(self):
        queue, now = self.world.queue, self.world.now_us()
        if self.delivery is None:
            drawn = queue.draw(0, "chrono", 1, self.name, LEASE)
            if drawn:
                self.delivery = drawn[0]
                self.world.runs.append((self.delivery.execution_id, now))
                queue.accept(0, self.name, [self.hold])
                self.ends_us, self.renew_us = now + self.body_us(), now + RENEW_EVERY
        elif now >= self.ends_us:
            queue.settle(0, self.name, [Settlement(self.hold, "succeeded", {})])
            self.delivery = None
        elif now >= self.renew_us:
            assert not queue.renew(0, self.name, [self.hold], LEASE).lost
            self.renew_us = now + RENEW_EVERY

    @property
    def hold(self):
        return Hold(self.delivery.execution_id, self.delivery.token)

    def held_by_two(self, other):
        return self.delivery and other.delivery and self.delivery.execution_id == other.delivery.execution_id


@pytest.fixture
def scene():
    """A world without its worker, a reaper, and what is told of reaps."""
    world = World(NINE - timedelta(minutes=2))
    world.working = False
    world.dispatcher()
    heard = []
    unsubscribe = telemetry.subscribe(lambda event, fields: heard.append((event, fields)))
    yield world, Reaper(world.queue, world.flow, world.config), heard
    unsubscribe()


def through(world, reaper, us_long):
    """Publish what is due, then let so much time pass; the reaper looks each second, who iterates acts every five."""
    world.run_until(us() + SECOND)
    for second in range(us_long // SECOND):
        world.flow.advance(us=SECOND)
        reaper.turn(world.flow.monotonic_us())
        if second % 5 == 0:
            world.recorder.turn(world.flow.monotonic_us())
            yield second


def test_r121_inv06_a_body_of_three_hours_under_a_lease_of_a_minute_is_never_handed_out_again(scene):
    world, reaper, heard = scene
    job = world.job(**ONCE)
    workers = [Worker(world, name, lambda: 3 * HOUR) for name in ("w1", "w2")]

    for _ in through(world, reaper, 6 * HOUR):
        for worker in workers:
            worker.turn()

    [row] = world.store.rows(job)
    assert (row.state, row.attempt, row.deliveries) == ("succeeded", 1, 1)
    assert len(world.runs) == 1 and "reaped" not in {event for event, _ in heard}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_inv06_workers_that_die_at_random_lose_nothing_and_never_share_a_lease(scene, seed):
    """Reaps have a budget of their own: none of them uses up an attempt, of which there is one."""
    chance = random.Random(seed)
    world, reaper, heard = scene
    jobs = [world.job(f"j{n}", **ONCE) for n in range(20)]
    number = iter(range(10_000))

    def fresh():
        return Worker(world, f"w{next(number)}", lambda: chance.choice((30, 300, 1800)) * SECOND)

    workers = [fresh() for _ in range(4)]
    for _ in through(world, reaper, 6 * HOUR):
        for n, worker in enumerate(workers):
            if chance.random() < 1 / 250:
                workers[n] = fresh()                 # SIGKILL: what it held it never speaks of again
            else:
                worker.turn()
        holders = Counter(worker.delivery.execution_id for worker in workers if worker.delivery)
        assert set(holders.values()) <= {1}, f"seed {seed}"

    rows = [row for job in jobs for row in world.store.rows(job)]
    deaths = sum(len(fields["reaped"]) for event, fields in heard if event == "reaped")
    assert deaths > 5
    assert {row.attempt for row in rows} == {1} and len(rows) == 20
    assert {(row.state, row.reason) for row in rows} <= {("succeeded", ""), ("dead", "reap_cap")}
    assert sum(row.deliveries for row in rows) == len(world.runs) <= 20 + deaths
    capped = [each for event, fields in heard if event == "reap_capped" for each in fields["reaped"]]
    assert len(capped) == sum(row.reason == "reap_cap" for row in rows)


def test_r146_a_reaper_that_dies_holds_up_no_other(scene):
    """There is no lock to be held: whoever looks, reaps. And it is a service, not itself a job that could stall."""
    world, first, _ = scene
    second = Reaper(world.queue, world.flow, world.config)
    job = world.job(**ONCE)
    world.run_until(us() + SECOND)
    [delivery] = world.queue.draw(0, "chrono", 1, "dead", LEASE)
    world.run(seconds=61)
    stock, world.queue.reap = world.queue.reap, None
    with pytest.raises(TypeError):
        first.step(world.flow.monotonic_us())        # it ends in the middle of its call
    world.queue.reap = stock

    second.turn(world.flow.monotonic_us())

    [again] = world.queue.draw(0, "chrono", 1, "w", LEASE)
    assert again.execution_id == delivery.execution_id and again.deliveries == 2
    assert world.store.rows(job)[0].attempt == 1


def test_r140_a_cancelled_execution_stays_so_when_redis_forgets_it_and_workers_start_anew(scene):
    world, _, _ = scene
    job = world.job(**ONCE)
    world.run_until(us() + SECOND)
    [row] = world.store.rows(job)
    world.store.executions[row.execution_id].cancel_requested_us = world.now_us()
    assert world.queue.cancel(0, row.execution_id, job, row.tenant).state == "ended"

    world.flush_redis()
    world.working = True
    world.run(seconds=300)

    assert world.runs == []


def test_r148_a_million_events_leave_nothing_behind():
    """Nothing is queued for a listener: memory does not grow with what is told."""
    counts = Counter()
    unsubscribe = telemetry.subscribe(lambda event, fields: counts.update((event,)))
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    for number in range(1_000_000):
        telemetry.emit("claimed", member="m", jobs=number, executions=1, missed=0)
    unsubscribe()

    assert counts["claimed"] == 1_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 10_000
