"""A tenant's copies go to another pool under a newer version, and nobody draws the old one again: what becomes of its keys."""
from __future__ import annotations

import pytest

from tests.contract.queues import LANE, SECOND, hold, queue_bench

bench = pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis)])(queue_bench)

OLD, NEW = "chrono", "chrono.gold"


def moved(bench, count):
    """Copies that waited in the old pool, published anew for the new one."""
    for version, pool in ((1, OLD), (2, NEW)):
        bench.publish(*(bench.item(f"j{n}", version=version, pool=pool) for n in range(count)))


def all_run(bench, pool):
    while drawn := bench.draw(pool=pool):
        for delivery in drawn:
            bench.settle(delivery)
    bench.record()
    bench.advance(61 * SECOND)


def test_nothing_is_left_of_the_old_pool_once_all_has_moved_and_run(bench):
    moved(bench, 30)
    all_run(bench, NEW)
    assert bench.leftovers(), "a place that nobody looks at any more"

    assert bench.store.tidy(LANE, 500) == 1

    assert bench.leftovers() == []


def test_what_is_void_or_expired_goes_in_bounded_pieces(bench):
    bench.limit(max_running=1)
    for priority in (0, 9):
        bench.publish(*(bench.item(f"j{priority}{n}", priority=priority, expires_us=bench.now() + n % 2 * 30 * SECOND or None)
                        for n in range(40)))
    for priority in (0, 9):
        for n in range(0, 40, 2):
            bench.store.void(LANE, f"j{priority}{n}", 2)
    bench.advance(31 * SECOND)

    gone = [bench.store.tidy(LANE, 25) for _ in range(6)]

    assert sum(gone) == 1
    assert {event for event, _ in bench.events()} == {"expired"}
    assert len(bench.record()) == 40
    bench.advance(61 * SECOND)
    assert bench.leftovers() == []


def test_who_has_something_there_stays_and_keeps_its_turn(bench):
    bench.limit("a", weight=2)
    for tenant in "ab":
        bench.publish(*(bench.item(f"{tenant}{n}", tenant=tenant) for n in range(6)))
    first = [delivery.tenant for delivery in bench.draw(3)]

    assert [bench.store.tidy(LANE, 500) for _ in range(3)] == [0, 0, 0]

    assert (first + [delivery.tenant for delivery in bench.draw(6)]).count("a") == 6


def test_a_copy_that_was_given_back_and_one_that_lies_aside_are_no_draws_loss(bench):
    bench.publish(bench.item("back"), bench.item("aside"))
    back, aside = bench.draw(2)
    bench.store.park(LANE, "w1", [(hold(aside), "t.unknown")])
    bench.store.give_back(LANE, "w1", [hold(back)])

    assert bench.store.tidy(LANE, 500) == 0
    assert bench.ids() == [back.execution_id]
    assert bench.store.tidy(LANE, 500) in (0, 1)
    assert [d.execution_id for d in bench.store.draw_parked(LANE, "w2", [aside.execution_id], SECOND)] == [aside.execution_id]


def test_a_lane_that_must_not_be_drawn_from_is_left_alone(bench):
    moved(bench, 1)
    all_run(bench, NEW)
    bench.store.open_lane(LANE, 2, bench.store.lane_state(LANE).replication_id, 60 * SECOND)
    bench.publish(bench.item("new"), generation=2)

    assert bench.store.tidy(LANE, 500) == 0
