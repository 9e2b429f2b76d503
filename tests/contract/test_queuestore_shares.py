"""Shares of tenants in the draw: what they come to over long courses, how long anybody waits, what it costs."""
from __future__ import annotations

import random
from collections import Counter, deque

import pytest

from benchmarks.tenants import draws_beside
from chrono_beat.core.deliveries import Settlement
from chrono_beat.core.fairness import PRIORITIES, PROMOTED_EVERY
from tests.contract.queues import RedisBench, hold, queue_bench

bench = pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis)])(queue_bench)

WORKERS = ("w1", "w2", "w3")


def fill(bench, tenant, count, first=0, **values):
    bench.publish(*(bench.item(f"{tenant}-{first + n}", tenant=tenant, **values) for n in range(count)))


def settle_all(bench, drawn, worker="w1"):
    for delivery in drawn:
        bench.settle(delivery, worker=worker)


@pytest.mark.redis
def test_inv08_three_to_one_over_ten_thousand_draws_with_a_share_lent_and_a_weight_changed(redis_url):
    """Weights 3 and 1: three quarters each way. While one is idle the other has all, and owes nothing afterwards. A changed
    weight counts from the next draw on."""
    bench = RedisBench(redis_url)
    number = Counter()

    def draws(count, *busy):
        seen = Counter()
        for _ in range(count // 50):
            for tenant in busy:
                lacking = 60 - bench.store.backlog(0, "chrono").get(tenant, 0)
                fill(bench, tenant, lacking, number[tenant])
                number[tenant] += max(0, lacking)
            drawn = bench.draw(50, worker=WORKERS[sum(seen.values()) % 3])
            seen.update(delivery.tenant for delivery in drawn)
            bench.store.settle(0, "w1", [Settlement(hold(delivery), "succeeded", {}) for delivery in drawn])
            bench.record()
        assert sum(seen.values()) == count
        return seen["a"] / count

    try:
        bench.limit("a", weight=3, max_running=1000, at=1)
        bench.limit("b", weight=1, max_running=1000, at=1)
        assert draws(10_000, "a", "b") == pytest.approx(0.75, abs=0.02)
        bench.draw(200)
        assert draws(500, "b") == 0
        assert draws(500, "a", "b") == pytest.approx(0.75, abs=0.03)
        bench.limit("b", weight=3, max_running=1000, at=2)
        assert draws(1000, "a", "b") == pytest.approx(0.5, abs=0.02)
    finally:
        bench.close()


@pytest.mark.parametrize("priorities", [(5,), tuple(range(PRIORITIES))], ids=["one priority", "ten priorities"])
@pytest.mark.parametrize("credit", [1, 7])
def test_r160_behind_a_burst_of_another_tenant_one_starts_within_as_many_dispatches_as_there_are_tenants(
    bench, priorities, credit,
):
    """R160. The law does not depend on how long the burst is: the draw never looks at it. Capped work is set aside."""
    tenants = ["a", "b", "c"]
    for tenant in tenants:
        bench.limit(tenant, max_running=10_000)
    for priority in priorities:
        fill(bench, "a", 2000 // len(priorities), 10_000 * priority, priority=priority)
    settle_all(bench, bench.draw(30))
    fill(bench, "c", 100)
    settle_all(bench, bench.draw(8))

    fill(bench, "b", 1, priority=9)

    order = [delivery.tenant for _ in range(6) for delivery in bench.draw(credit)]
    assert order.index("b") < len(tenants)


def test_r160_one_starts_within_three_dispatches_behind_twenty_thousand_queued_by_another(bench):
    """R160. As it was reported: a has 20,000 queued, c some, b one."""
    for tenant in "abc":
        bench.limit(tenant, max_running=10_000)
    burst = bench.item(tenant="a", concurrency="allow")
    for first in range(0, 20_000, 500):
        jobs = [f"a{n}" for n in range(first, first + 500)]
        bench.publish(*(burst._replace(execution_id=f"{job}:20260102T090000Z:1", job_id=job) for job in jobs))
    settle_all(bench, bench.draw(20))
    fill(bench, "c", 20)
    settle_all(bench, bench.draw(8))

    fill(bench, "b", 1)

    order = [delivery.tenant for delivery in bench.draw(6)]
    assert order.index("b") < 3
    assert bench.store.backlog(0, "chrono")["a"] > 19_000


@pytest.mark.parametrize("seed", range(3))
def test_a_low_priority_waits_for_a_bounded_number_of_its_tenants_grants_whoever_draws(bench, seed):
    """Three workers with small credits draw and settle in any order, while the highest priority never runs out: the first
    of each other one is drawn within a hundred grants of its tenant."""
    chance = random.Random(seed)
    bench.limit(max_running=6)
    bench.limit("other", max_running=6)
    since, grants, number, running = {}, 0, 0, deque()
    for priority in range(1, PRIORITIES):
        fill(bench, "acme", 1, 1000 * priority, priority=priority)
        since[f"acme-{1000 * priority}"] = 0

    while since and grants < 400:
        fill(bench, "acme", 4, 100_000 + number, priority=0)
        fill(bench, "other", 2, 100_000 + number)
        number += 4
        worker = chance.choice(WORKERS)
        for delivery in bench.draw(chance.randint(1, 3), worker=worker):
            running.append((delivery, worker))
            grants += delivery.tenant == "acme"
            since.pop(delivery.job_id, None)
        running.rotate(chance.randint(0, 5))
        for _ in range(chance.randint(0, len(running))):
            delivery, holder = running.pop()
            bench.settle(delivery, worker=holder)

    assert not since, "all have been drawn"
    assert grants <= PROMOTED_EVERY * PRIORITIES


@pytest.mark.parametrize(("weight", "cap"), [(5, 1), (10, 1), (10, 2)])
def test_r130_the_wait_is_bounded_also_for_a_tenant_that_is_set_aside_again_and_again(bench, weight, cap):
    """Its virtual time jumps to the floor each time, which another tenant moves on by whole numbers: with some weights
    and caps no grant would stand at a tenth place."""
    bench.limit("a", weight=weight, max_running=cap)
    bench.limit("b", max_running=1000)
    fill(bench, "a", 1, priority=9)
    grants: list[str] = []

    while "a-0" not in grants and len(grants) < 400:
        fill(bench, "a", cap, 1 + len(grants), priority=0)
        fill(bench, "b", 9, 9 * len(grants))
        drawn = bench.draw(cap + 7)
        grants += [delivery.job_id for delivery in drawn if delivery.tenant == "a"]
        settle_all(bench, drawn)

    assert "a-0" in grants[:PROMOTED_EVERY * PRIORITIES]


@pytest.mark.redis
def test_inv08_idle_and_paused_tenants_cost_the_draw_not_one_command(redis_url):
    """Commands that the scripts ran, counted by Redis; python -m benchmarks.tenants does it with 100,000."""
    bench = RedisBench(redis_url)
    try:
        alone, idle, paused = (
            draws_beside(bench.client, bench.store, **beside) for beside in ({}, {"idle": 1000}, {"paused": 1000}))
    finally:
        bench.close()

    assert alone["drawn"] == idle["drawn"] == paused["drawn"] == 1000
    assert alone["commands"] == idle["commands"] == paused["commands"]


def test_capped_is_who_has_work_that_nothing_but_a_cap_holds_back(bench):
    """Not who is paused, who runs all it may and has nothing more, and who only waits for a worker."""
    for tenant, paused in (("full", False), ("exact", False), ("asleep", True), ("free", False)):
        bench.limit(tenant, max_running=2, paused=paused)
    for tenant, count in (("full", 5), ("exact", 2), ("asleep", 3), ("free", 1)):
        fill(bench, tenant, count)
    drawn = bench.draw(20) + bench.draw(20)
    fill(bench, "free", 1, first=1)

    assert bench.store.capped(0, ["chrono", "chrono.gold"], 10)[1] == ["full"]
    fill(bench, "exact", 1, first=2)
    assert sorted(bench.store.capped(0, ["chrono"], 10)[1]) == ["exact", "full"]
    assert bench.store.capped(0, ["chrono.gold"], 10)[1] == []
    settle_all(bench, drawn)
    assert bench.store.capped(0, ["chrono"], 10)[1] == []


def test_who_runs_again_what_had_been_requeued_is_not_capped_by_it(bench):
    """Its worker was slow to renew: the requeued copy is taken back, and nothing waits behind the cap any more."""
    bench.limit(max_running=1)
    fill(bench, "acme", 1)
    delivery = bench.one()
    bench.lapse(delivery)

    bench.store.renew(0, "w1", [hold(delivery)], 60_000_000)

    assert bench.draw() == []
    assert bench.store.capped(0, ["chrono"], 10)[1] == []


def test_r162_a_cap_of_five_holds_over_fifty_workers_that_draw_settle_and_die(bench):
    """A hundred queued, fifty workers, which draw, settle (also twice), give back and die at random. At no sample
    six run."""
    chance = random.Random(162)
    bench.limit("a", max_running=5)
    fill(bench, "a", 100)
    held: dict[str, tuple] = {}
    done = set()
    for _ in range(1_500):
        step = chance.random()
        if step < 0.5 or not held:
            worker = f"w{chance.randrange(50)}"
            for delivery in bench.draw(chance.randint(1, 4), worker=worker):
                held[delivery.execution_id] = (delivery, worker)
        else:
            delivery, worker = held.pop(chance.choice(sorted(held)))
            if step < 0.85:
                for _ in range(chance.randint(1, 2)):
                    bench.settle(delivery, worker=worker)
                done.add(delivery.execution_id)
            elif step < 0.93:
                bench.store.give_back(0, worker, [hold(delivery)])
            else:
                bench.store.recover(0, worker, [])               # it died and came back with nothing
                held = {key: value for key, value in held.items() if value[1] != worker}
        running = bench.store.deliveries_of(0, "", None, tenant="a")
        assert len(running) == len(held) <= 5                    # invariant 8
        if len(done) == 100:
            break
    assert len(done) == 100


def test_what_is_ready_in_a_pool_is_weighed_without_the_capped_and_the_idle(bench):
    for tenant, weight, most in (("a", 3, 20), ("b", 5, 20), ("full", 7, 1), ("idle", 9, 20)):
        bench.limit(tenant, weight=weight, max_running=most)
    assert bench.store.ready_weights(0, ["chrono", "chrono.gold"]) == [0, 0]
    fill(bench, "full", 2)
    bench.draw(2)
    fill(bench, "a", 1)
    fill(bench, "b", 1, pool="chrono.gold")
    fill(bench, "new", 1, pool="chrono.gold")

    assert bench.store.ready_weights(0, ["chrono", "chrono.gold"]) == [3, 6]


@pytest.mark.redis
def test_many_tenants_are_weighed_by_their_first(redis_url):
    bench = RedisBench(redis_url)
    try:
        for n in range(250):
            bench.limit(f"t{n}", weight=4)
            fill(bench, f"t{n}", 1)
        assert bench.store.ready_weights(0, ["chrono"]) == [1000]
    finally:
        bench.close()
