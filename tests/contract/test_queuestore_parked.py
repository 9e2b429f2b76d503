"""Executions whose task a worker does not know: laid aside for one that does, and not for ever."""
from __future__ import annotations

import pytest

from tests.contract.queues import LANE, LEASE, SECOND, hold, queue_bench

bench = pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis)])(queue_bench)


def park(bench, *deliveries, worker="old"):
    return bench.store.park(LANE, worker, [(hold(delivery), "t.new") for delivery in deliveries])


def take(bench, *ids, worker="new"):
    return bench.store.draw_parked(LANE, worker, ids, LEASE)


def test_what_was_laid_aside_is_drawn_by_nobody_who_does_not_ask_for_it(bench):
    bench.publish(bench.item("a"), bench.item("b"))
    first, second = bench.draw(2, "old")

    assert park(bench, first) == 1

    assert bench.draw(5, "old") == [] and bench.draw(5, "other") == []
    assert not bench.wakes() or bench.draw(5, "old") == []
    [parked] = bench.store.parked(LANE, 10)
    assert parked[:5] == (first.execution_id, "a", "acme", "chrono", "t.new")
    assert bench.settle(second, worker="old") == "settled"


def test_it_uses_up_no_attempt_no_delivery_and_no_reap(bench):
    bench.publish(bench.item("a"))
    delivery = bench.one("old")
    park(bench, delivery)

    assert bench.settle(delivery, worker="old") == "refused"          # its token counts for nothing any more
    [again] = take(bench, delivery.execution_id)

    assert (again.execution_id, again.deliveries, again.payload) == (delivery.execution_id, 1, delivery.payload)
    assert again.token != delivery.token and again.pool == "chrono"
    assert bench.store.parked(LANE, 10) == []
    assert bench.settle(again, worker="new") == "settled"
    assert bench.events() == [("succeeded", delivery.execution_id)]
    bench.record()
    bench.draw()
    bench.advance(61 * SECOND)
    assert bench.leftovers() == []


def test_inv09_it_stays_active_for_its_job(bench):
    bench.publish(bench.item("a"))
    park(bench, bench.one("old"))

    assert bench.publish(bench.item("a", 2)) == ["skipped"]


def test_inv08_slot_and_lease_are_free_meanwhile_and_the_cap_holds_when_it_is_taken(bench):
    bench.limit(max_running=1)
    bench.publish(bench.item("a"), bench.item("b"))
    parked = bench.one("old")
    park(bench, parked)
    running = bench.one("old")

    assert take(bench, parked.execution_id) == []
    assert len(bench.store.parked(LANE, 10)) == 1
    bench.settle(running, worker="old")
    assert len(take(bench, parked.execution_id)) == 1


def test_only_one_of_two_takes_it(bench):
    bench.publish(bench.item("a"))
    delivery = bench.one("old")
    park(bench, delivery)

    assert len(take(bench, delivery.execution_id, delivery.execution_id)) == 1
    assert take(bench, delivery.execution_id, worker="another") == []


def test_a_stale_worker_lays_nothing_aside(bench):
    bench.publish(bench.item("a"))
    stale = bench.one("old")
    bench.lapse(stale)
    bench.one("other")

    assert park(bench, stale) == 0 and bench.store.parked(LANE, 10) == []


def test_publishing_it_again_adds_nothing(bench):
    item = bench.item("a")
    bench.publish(item)
    delivery = bench.one("old")
    park(bench, delivery)

    assert bench.publish(item) == ["already"]
    assert bench.draw() == []
    assert len(take(bench, delivery.execution_id)) == 1


def test_an_edit_replaces_it_and_a_void_takes_it_away(bench):
    bench.publish(bench.item("a"), bench.item("b"))
    a, b = sorted(bench.draw(2, "old"))
    park(bench, a, b)

    bench.store.void(LANE, "b", 2)
    assert bench.publish(bench.item("a", version=2)) == ["published"]

    assert take(bench, b.execution_id) == []
    assert bench.ids() == [a.execution_id]
    assert bench.store.parked(LANE, 10) == []


@pytest.mark.parametrize("by", ["draw_parked", "end_parked"])
def test_it_expires_as_ever(bench, by):
    bench.publish(bench.item("a", expires_us=bench.now() + 30 * SECOND))
    delivery = bench.one("old")
    park(bench, delivery)
    bench.advance(31 * SECOND)

    if by == "draw_parked":
        assert take(bench, delivery.execution_id) == []
    else:
        assert bench.store.end_parked(LANE, 600 * SECOND, 10) == []

    assert bench.events() == [("expired", delivery.execution_id)]
    assert bench.publish(bench.item("a", 2)) == ["published"]         # the lock is free


def test_r144_what_nobody_came_for_ends_with_a_reason_and_frees_its_lock(bench):
    bench.publish(bench.item("a"))
    delivery = bench.one("old")
    park(bench, delivery)
    bench.advance(599 * SECOND)
    assert bench.store.end_parked(LANE, 600 * SECOND, 10) == []

    bench.advance(2 * SECOND)
    [ended] = bench.store.end_parked(LANE, 600 * SECOND, 10)

    assert (ended.execution_id, ended.task, ended.pool) == (delivery.execution_id, "t.new", "chrono")
    [outcome] = bench.outcomes()
    assert outcome.event == "no_worker" and "t.new" in outcome.detail["error"]["message"]
    assert take(bench, delivery.execution_id) == [] and bench.store.parked(LANE, 10) == []
    assert bench.publish(bench.item("a", 2)) == ["published"]


def test_the_time_counts_from_the_first_worker_that_did_not_know_it(bench):
    """Also where it was published anew in between, a newer worker would have to have come."""
    bench.publish(bench.item("a"))
    park(bench, bench.one("old"))
    [first] = bench.store.parked(LANE, 10)
    bench.advance(300 * SECOND)
    bench.publish(bench.item("a"))

    assert bench.store.parked(LANE, 10) == [first]


def test_a_new_generation_forgets_what_lay_aside(bench):
    item = bench.item("a")
    bench.publish(item)
    park(bench, bench.one("old"))

    assert bench.store.open_lane(LANE, 2, "second", 0)

    assert bench.store.parked(LANE, 10) == []
    assert bench.publish(item, generation=2) == ["published"]
