"""Laws of the queue over random courses: memory and Redis agree step by step, and sets never drift."""
from __future__ import annotations

import random
import time
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from chrono_beat.core.deliveries import Settlement
from tests.contract.queues import GENERATION, LANE, LEASE, SECOND, MemoryBench, RedisBench, hold, queue_bench

bench = pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis)])(queue_bench)

# Shrinking would repeat whole courses for minutes; a course is short enough to be read.
LAW = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture],
               phases=[phase for phase in Phase if phase is not Phase.shrink])

# Seconds. In memory no time passes within a course but 1 µs a step, since on Redis no two steps share an instant and
# what falls due first goes first. What passes there by itself must not be what makes something fall due: all such times
# are at least half a second from any sum of steps.
COMPARABLE = 0.4

TENANTS = "abcd"
JOBS = [f"{tenant}{n}" for tenant in TENANTS for n in range(3)]
WORKERS = ("w1", "w2")
POOL_OF = {1: "chrono", 2: "chrono.gold", 3: "chrono"}     # of a version of a job: its tenant moves to and fro
RESULTS = ("succeeded", "failed", "retry", "lost", "timeout")

small = st.integers(0, 5)
steps = st.one_of(
    st.tuples(st.just("publish"), st.lists(st.tuples(
        st.sampled_from(JOBS), st.integers(1, 4), st.integers(1, 2), st.integers(1, 3), st.sampled_from((0, 5, 9)),
        st.sampled_from((None, None, 30, 100)), st.sampled_from(("forbid", "forbid", "allow", "replace", "replace")),
        st.sampled_from(("", "", "g")), st.sampled_from(("schedule", "schedule", "backfill", "replay"))), max_size=8)),
    st.tuples(st.just("draw"), st.sampled_from(WORKERS), st.integers(1, 6), st.sampled_from(("chrono", "chrono", "chrono.gold"))),
    st.tuples(st.just("settle"), small, st.sampled_from(RESULTS)),
    st.tuples(st.just("settle"), small, st.just("succeeded")),
    st.tuples(st.sampled_from(("accept", "give_back", "renew", "store_retry", "settle_old", "republish", "park")), small),
    st.tuples(st.just("draw_parked"), small),
    st.tuples(st.just("end_parked"), st.sampled_from((0, 30))),
    st.tuples(st.just("pass"), st.sampled_from((1, 20, 61))),
    st.tuples(st.sampled_from(("reap", "tend", "acknowledge", "recover", "tidy"))),
    st.tuples(st.sampled_from(("cancel", "redraw")), small),
    st.tuples(st.sampled_from(("void", "end_voided")), st.sampled_from(JOBS), st.integers(1, 3)),
    st.tuples(st.just("limit"), st.sampled_from(TENANTS), st.integers(1, 4), st.sampled_from((0, 1, 3, 20)),
              st.booleans()),
)


class Course:
    """Carries steps out on one store and tells what was seen of it."""

    def __init__(self, bench):
        self.bench, self.store = bench, bench.store
        self.held = []                # deliveries with their worker, oldest first, also stale ones
        self.published = []
        self.limits = 0

    def pick(self, index):
        return self.held[-1 - index % len(self.held)] if self.held else None

    def publish(self, wanted):
        items, now = [], self.bench.now()
        for job, number, attempt, version, priority, expires, concurrency, group, kind in wanted:
            until = None if expires is None else now + expires * SECOND + SECOND // 2
            items.append(self.bench.item(
                job, number, attempt=attempt, version=version, priority=priority, expires_us=until, tenant=job[0],
                concurrency=concurrency, group=group, kind=kind, pool=POOL_OF[version]))
        self.published += items
        return self._sent(*items) if items else []

    def _sent(self, *items):
        result = self.store.publish(LANE, GENERATION, self.bench.now() + LEASE, items)
        return list(result.replies), list(result.stops)

    def republish(self, index):
        return self._sent(self.published[index % len(self.published)]) if self.published else []

    def draw(self, worker, credit, pool):
        drawn = self.bench.draw(credit, worker, pool=pool)
        self.held += [(delivery, worker) for delivery in drawn]
        return [(d.execution_id, d.tenant, d.token, d.deliveries, d.payload) for d in drawn]

    def settle(self, index, result):
        if not self.held:
            return None
        delivery, worker = self.held.pop(-1 - index % len(self.held))
        word = self.bench.settle(delivery, result, worker)
        again = self.bench.settle(delivery, result, worker)
        assert again == ("refused" if word == "refused" else "done")
        return word

    def settle_old(self, index):
        if not self.held:
            return None
        delivery, worker = self.held[index % len(self.held)]
        return self.bench.settle(delivery, "succeeded", worker)

    def accept(self, index):
        if self.held:
            delivery, worker = self.pick(index)
            self.store.accept(LANE, worker, [hold(delivery)])

    def give_back(self, index):
        if self.held:
            delivery, worker = self.pick(index)
            return self.store.give_back(LANE, worker, [hold(delivery)])

    def park(self, index):
        if self.held:
            delivery, worker = self.pick(index)
            return self.store.park(LANE, worker, [(hold(delivery), "t.unknown")])

    def draw_parked(self, count):
        wanted = sorted(parked.execution_id for parked in self.store.parked(LANE, 100))[:count]
        drawn = sorted(self.store.draw_parked(LANE, "w1", wanted, LEASE), key=lambda d: d.execution_id)
        self.held += [(delivery, "w1") for delivery in drawn]
        return wanted, [(d.execution_id, d.tenant, d.pool, d.deliveries, d.payload) for d in drawn]

    def end_parked(self, seconds):
        return sorted(parked[:-1] for parked in self.store.end_parked(LANE, seconds * SECOND, 100))

    def renew(self, index):
        if self.held:
            delivery, worker = self.pick(index)
            lost = self.store.renew(LANE, worker, [hold(delivery)], LEASE).lost
            return lost, self.store.still_held(LANE, hold(delivery))

    def store_retry(self, index):
        if self.held:
            delivery, _ = self.pick(index)
            return self.store.store_retry(LANE, hold(delivery), {"countdown_us": index})

    def reap(self):
        return sorted(self.store.reap(LANE, 2, 100))

    def tend(self):
        return self.store.tend_locks(LANE, 100)

    def acknowledge(self):
        return [o._replace(entry_id="", at_us=0) for o in self.bench.record()]

    def recover(self):
        return self.store.recover(LANE, "w1", [d.execution_id for d, w in self.held[::2] if w == "w1"])

    def cancel(self, index):
        if self.published:
            item = self.published[index % len(self.published)]
            return self.store.cancel(LANE, item.execution_id, item.job_id, item.tenant)

    def redraw(self, index):
        if self.held:
            delivery, worker = self.pick(index)
            again = self.store.redraw(LANE, worker, hold(delivery), LEASE)
            if again is not None:
                self.held.append((again, worker))
            return again and again.token

    def void(self, job, version):
        self.store.void(LANE, job, version)

    def end_voided(self, job, version):
        return self.store.end_voided(LANE, self.bench.item(job).execution_id, job, version, job[0])

    def limit(self, tenant, weight, max_running, paused):
        self.limits += 1
        self.bench.limit(tenant, weight=weight, max_running=max_running, paused=paused, at=self.limits)

    def step(self, name, *args):
        if name == "pass":
            return self.bench.advance(args[0] * SECOND)
        seen = getattr(self, name)(*args)
        return seen, [self.store.backlog(LANE, pool) for pool in ("chrono", "chrono.gold")], self.bench.events()

    def tidy(self):
        return self.store.tidy(LANE, 1000)

    def finish(self):
        """Bring everything to its end, with no worker for the second pool any more; then nothing may be left."""
        for tenant in TENANTS:
            self.limit(tenant, 1, 20, False)
        for _ in range(200):
            self.bench.advance(LEASE + SECOND)
            self.store.reap(LANE, 2, 1000)
            self.store.tend_locks(LANE, 1000)
            self.store.end_parked(LANE, 0, 1000)
            drawn = self.bench.draw(50)
            for delivery in drawn:
                self.bench.settle(delivery)
            if not drawn:
                break
        self.bench.record()
        for job in JOBS:
            self.store.void(LANE, job, 99)
        for item in self.published:
            self.store.end_voided(LANE, item.execution_id, item.job_id, 99)
        self.bench.draw()
        self.store.end_parked(LANE, 0, 1000)
        self.tidy()
        self.bench.record()
        self.bench.advance(LEASE + SECOND)
        return self.bench.leftovers()


def assert_locks_are_true(lane):
    """Invariant 9: who is active holds each of its locks, alone; who waits has somebody in its way and is in its list."""
    active = {c.id: c for c in lane.copies.values() if c.state in "qr"}
    waiting = {c.id: c for c in lane.copies.values() if c.state == "w"}
    held = [(lock, c.id) for c in active.values() for lock in c.locks]
    held += [(lock, c.id) for c in waiting.values() for lock in c.locks[:list(c.locks).index(c.waits_at)]]
    assert Counter(held) == Counter(lane.locks.items())
    listed = [(lock, id_) for lock, ids in lane.waiters.items() for id_ in ids]
    assert sorted(listed) == sorted((c.waits_at, c.id) for c in waiting.values())
    assert {lock for lock, _ in listed} <= lane.locks.keys()
    assert all(c.state == "r" for c in active.values() if c.stop_us is not None)


@pytest.mark.redis
@settings(LAW, max_examples=60)
@given(course=st.lists(steps, min_size=10, max_size=60))
def test_inv09_memory_and_redis_see_the_same_in_every_course(redis_url, course):
    on_redis = RedisBench(redis_url)
    both = Course(MemoryBench()), Course(on_redis)
    began = time.monotonic()

    try:
        for step in course:
            if time.monotonic() - began > COMPARABLE:
                break
            both[0].bench.advance(1)
            in_memory, in_redis = (one.step(*step) for one in both)
            assert in_memory == in_redis, step
            assert_locks_are_true(both[0].bench.store.lanes[LANE])
        assert [one.finish() for one in both] == [[], []]
    finally:
        on_redis.close()


@pytest.mark.redis
@settings(LAW, max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_inv08_redis_and_the_pure_choice_take_the_same_turns(redis_url, seed):
    """More tenants than the draw fetches at once, weights, caps, pauses, priorities and two pools, with work
    that comes, goes and is given back, and limits that change meanwhile."""
    chance = random.Random(seed)
    on_redis = RedisBench(redis_url)
    benches = MemoryBench(), on_redis
    tenants = [f"t{n}" for n in range(chance.choice((2, 5, 80)))]
    limits = [(t, chance.choice((1, 1, 2, 3, 7)), chance.choice((1, 2, 5, 50))) for t in tenants]
    running, number, pools = [], 0, ("chrono", "chrono.gold")
    for each in benches:
        for tenant, weight, cap in limits:
            each.limit(tenant, weight=weight, max_running=cap, at=1)

    try:
        for turn in range(25):
            coming = [(chance.choice(tenants), chance.choice((1, 5)), chance.choice(pools))
                      for _ in range(chance.choice((0, 3, 60)))]
            if chance.random() < 0.3:
                changed = {"weight": chance.choice((1, 2, 7)), "max_running": chance.choice((1, 5, 50)),
                           "paused": chance.random() < 0.3}
                tenant = chance.choice(tenants)
                for each in benches:
                    each.limit(tenant, **changed, at=turn + 2)
            for each in benches:
                each.publish(*(
                    each.item(f"j{number + n}", tenant=tenant, priority=priority, pool=pool, concurrency="allow")
                    for n, (tenant, priority, pool) in enumerate(coming)))
            number += len(coming)
            credit, pool = chance.choice((1, 2, 5, 70)), chance.choice(pools)
            drawn = [each.draw(credit, pool=pool) for each in benches]
            turns = [[(d.tenant, d.execution_id) for d in one] for one in drawn]
            assert turns[0] == turns[1]
            running += zip(*drawn, strict=True)
            chance.shuffle(running)
            for pair in [running.pop() for _ in range(chance.randint(0, len(running)))]:
                back = chance.random() < 0.2
                for each, delivery in zip(benches, pair, strict=True):
                    if back:
                        each.store.give_back(LANE, "w1", [hold(delivery)])
                    else:
                        each.settle(delivery)
    finally:
        on_redis.close()


def test_inv08_saturated_weights_of_three_to_one_give_three_quarters(bench):
    """With slots that are given free in any order."""
    chance = random.Random(7)
    bench.limit("a", weight=3, max_running=60)
    bench.limit("b", weight=1, max_running=60)
    for tenant in "ab":
        bench.publish(*(bench.item(f"{tenant}{n}", tenant=tenant) for n in range(1000)))
    drawn, running = Counter(), []

    for _ in range(100):
        new = bench.draw(10)
        drawn.update(d.tenant for d in new)
        running += new
        chance.shuffle(running)
        for delivery in [running.pop() for _ in range(len(new))]:
            bench.settle(delivery)

    assert abs(drawn["a"] / sum(drawn.values()) - 0.75) <= 0.02


def holdings(bench):
    """The sets that must agree: who runs by slots, by leases, by owners, and by the executions' own records."""
    if isinstance(bench, MemoryBench):
        lane = bench.store.lanes[LANE]
        return (set().union(*lane.running.values()), set(lane.leases), set().union(*lane.owned.values()),
                {c.id for c in lane.copies.values() if c.state == "r"})
    client, key = bench.client, bench.key
    sets = [set().union(*(client.smembers(k) for k in client.keys(key(kind, "*").replace("{", "\\{"))))
            for kind in ("run", "own")]
    drawn = {name.removeprefix("x:").encode() for name in bench.names() if name.startswith("x:")}
    records = {id_ for id_ in drawn if b"\xa5state\xa1r" in (client.get(key("x", id_.decode())) or b"")}
    return sets[0], set(client.zrange(key("lease"), 0, -1)), sets[1], records


def test_a_thousand_killed_workers_leave_slots_and_leases_in_step(bench):
    """Counters would drift here (a settle repeated after a lost reply, a draw that nobody heard of); sets can't."""
    chance = random.Random(11)
    bench.limit("a", max_running=3)
    bench.limit("b", max_running=5)
    published = 0
    for cycle in range(1000):
        if published - cycle < 20:
            bench.publish(*(bench.item(f"j{published + n}", tenant=chance.choice("ab")) for n in range(20)))
            published += 20
        drawn = bench.draw(chance.randint(1, 4), lease_us=chance.choice((-1, LEASE)))
        fate = chance.choice(("killed", "settled", "settled twice", "reply lost", "given back", "lost"))
        batch = [Settlement(hold(d), "lost" if fate == "lost" else "succeeded", {}) for d in drawn]
        if fate in ("settled", "settled twice", "lost"):
            bench.store.settle(LANE, "w1", batch)
        if fate == "settled twice":
            bench.store.settle(LANE, "w1", batch)
        if fate == "reply lost":
            bench.store.recover(LANE, "w1", [])
        if fate == "given back":
            bench.store.give_back(LANE, "w1", [hold(d) for d in drawn])
        if cycle % 3 == 0:
            bench.store.reap(LANE, 10**6, 100)
        if cycle % 20 == 0:
            slots, leases, owned, records = holdings(bench)
            assert slots == leases == owned == records, f"cycle {cycle}"
            bench.record()

    bench.advance(LEASE + SECOND)
    bench.store.reap(LANE, 10**6, 10**6)
    assert [len(each) for each in holdings(bench)] == [0, 0, 0, 0]
