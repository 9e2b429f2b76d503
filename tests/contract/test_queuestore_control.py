"""What every QueueStore promises about control: what workers hold, cancelling one execution, drawing anew (rule 10)."""
from __future__ import annotations

import pytest

from chrono_beat.core.deliveries import Cancelled, Hold, Running
from tests.contract.queues import LANE, LEASE, SECOND, hold, queue_bench

bench = pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis)])(queue_bench)

ENDED, DONE = Cancelled("ended", "", "", False), Cancelled("done", "", "", False)


def cancel(bench, item):
    return bench.store.cancel(LANE, item.execution_id, item.job_id, item.tenant)


def events(bench):
    return [(o.event, o.execution_id) for o in bench.store.read_outcomes(LANE, "r", SECOND, 100)]


# -- deliveries_of ----------------------------------------------------------------------------------------------------


def test_deliveries_of_a_job_are_those_that_workers_hold_of_older_versions(bench):
    old, other = bench.item("a", version=1, concurrency="allow"), bench.item("b", version=1)
    new = bench.item("a", version=2, concurrency="allow", attempt=2)
    bench.publish(old, other, new, bench.item("a", version=1, concurrency="allow", attempt=3))
    drawn = {d.execution_id: d for d in bench.draw(3)}
    assert set(drawn) == {old.execution_id, other.execution_id, new.execution_id}
    bench.store.accept(LANE, "w1", [hold(drawn[old.execution_id])])

    found = bench.store.deliveries_of(LANE, "a", 2)

    assert found == [Running(old.execution_id, drawn[old.execution_id].token, "w1", True)]
    assert {r.execution_id for r in bench.store.deliveries_of(LANE, "a", None)} == {old.execution_id, new.execution_id}
    assert bench.store.deliveries_of(LANE, "c", None) == []


def test_deliveries_of_a_tenant_are_those_of_all_its_jobs(bench):
    bench.publish(bench.item("a", tenant="x"), bench.item("b", tenant="x"), bench.item("c", tenant="y"))
    first = next(d for d in bench.draw() if d.job_id == "a")
    bench.settle(first)

    assert [(r.execution_id.split(":")[0], r.begun) for r in bench.store.deliveries_of(LANE, "", None, tenant="x")] == [
        ("b", False)]


# -- cancel -----------------------------------------------------------------------------------------------------------


def test_a_queued_copy_that_is_cancelled_goes_with_an_outcome_and_frees_its_lock(bench):
    first, second = bench.item("a"), bench.item("a", attempt=2)
    bench.publish(first, second)

    assert cancel(bench, first) == ENDED

    assert events(bench) == [("cancelled", first.execution_id)]
    assert [d.execution_id for d in bench.draw()] == [second.execution_id]
    assert cancel(bench, first) == DONE


def test_a_waiting_copy_that_is_cancelled_leaves_the_line(bench):
    first, second, third = bench.item("a"), bench.item("a", attempt=2), bench.item("a", attempt=3)
    bench.publish(first, second, third)
    assert cancel(bench, second) == ENDED

    bench.settle(bench.one())

    assert [d.execution_id for d in bench.draw()] == [third.execution_id]


@pytest.mark.parametrize("version", [1, 2])
def test_what_was_cancelled_before_its_publish_is_not_published_in_any_version(bench, version):
    """It sits in a wheel, or an edit brings it up anew."""
    item = bench.item("a", version=version)
    assert cancel(bench, item) == ENDED
    assert cancel(bench, item) == DONE, "who ended it is told so once"

    assert bench.publish(item) == ["already"]
    assert bench.draw() == []


def test_a_cancel_of_what_a_worker_holds_names_the_worker_and_says_whether_it_began(bench):
    item = bench.item("a")
    bench.publish(item)
    delivery = bench.one()
    assert cancel(bench, item) == Cancelled("held", "w1", delivery.token, False)

    bench.store.accept(LANE, "w1", [hold(delivery)])

    assert cancel(bench, item) == Cancelled("held", "w1", delivery.token, True)


@pytest.mark.parametrize("way", ["given back", "lost", "reaped", "recovered", "drawn anew", "laid aside"])
def test_what_was_cancelled_in_a_workers_hands_does_not_come_back_from_there(bench, way):
    item, other = bench.item("a"), bench.item("a", attempt=2)
    bench.publish(item, other)
    delivery = bench.one()
    cancel(bench, item)

    if way == "given back":
        assert bench.store.give_back(LANE, "w1", [hold(delivery)]) == 1
    elif way == "lost":
        bench.settle(delivery, "lost")
    elif way == "reaped":
        bench.advance(LEASE + SECOND)
        bench.store.reap(LANE, 5, 100)
    elif way == "recovered":
        bench.store.recover(LANE, "w1", [])
    elif way == "laid aside":
        bench.store.park(LANE, "w1", [(hold(delivery), "a.b")])
    else:
        assert bench.store.redraw(LANE, "w1", hold(delivery), LEASE) is None

    assert events(bench) == [("cancelled", item.execution_id)]
    assert [d.execution_id for d in bench.draw()] == [other.execution_id]


@pytest.mark.parametrize("result, event", [
    ("succeeded", "succeeded"), ("failed", "revoked"), ("timeout", "revoked"), ("retry", "revoked"), ("revoked", "revoked")])
def test_what_was_cancelled_while_it_ran_is_not_tried_again(bench, result, event):
    item = bench.item("a")
    bench.publish(item)
    delivery = bench.one()
    cancel(bench, item)

    bench.settle(delivery, result)

    assert events(bench) == [(event, item.execution_id)]


def test_nothing_is_cancelled_where_nobody_can_know(bench):
    item = bench.item("a")
    bench.store.open_lane(LANE, 99, "other", 60 * SECOND)

    assert cancel(bench, item).state == "held"
    assert bench.store.deliveries_of(LANE, "a", None) is None


# -- redraw -----------------------------------------------------------------------------------------------------------


def test_rule10_a_delivery_that_has_waited_is_drawn_anew_with_a_token_that_grows(bench):
    bench.publish(bench.item("a"))
    delivery = bench.one()
    bench.advance(50 * SECOND)

    again = bench.store.redraw(LANE, "w1", hold(delivery), LEASE)

    assert (again.execution_id, again.job_id, again.tenant, again.deliveries) == (
        delivery.execution_id, "a", delivery.tenant, 1)
    assert int(again.token.split(".")[1]) > int(delivery.token.split(".")[1])
    assert again.lease_expires_us - again.drawn_us == LEASE
    assert not bench.store.still_held(LANE, hold(delivery))
    bench.advance(50 * SECOND)
    assert bench.store.reap(LANE, 5, 100) == []
    assert bench.settle(delivery) == "refused"
    assert bench.settle(again) == "settled"
    assert [d.execution_id for d in bench.draw()] == []


def test_rule10_the_next_draw_goes_on_counting_after_one_anew(bench):
    bench.publish(bench.item("a"), bench.item("b"))
    first = bench.one()
    again = bench.store.redraw(LANE, "w1", hold(first), LEASE)

    later = bench.one()

    numbers = [int(d.token.split(".")[1]) for d in (first, again, later)]
    assert numbers == sorted(set(numbers))


def test_rule10_what_was_voided_meanwhile_is_not_drawn_anew(bench):
    bench.publish(bench.item("a", version=1))
    delivery = bench.one()
    bench.store.void(LANE, "a", 2)

    assert bench.store.redraw(LANE, "w1", hold(delivery), LEASE) is None

    assert bench.draw() == []
    assert bench.publish(bench.item("a", version=2)) == ["published"]


def test_rule10_what_expired_meanwhile_is_not_drawn_anew(bench):
    bench.publish(bench.item("a", expires_us=bench.now() + 10 * SECOND))
    delivery = bench.one()
    bench.advance(11 * SECOND)

    assert bench.store.redraw(LANE, "w1", hold(delivery), LEASE) is None

    assert bench.draw() == []
    assert [event for event, _ in events(bench)] == ["expired"]


def test_a_delivery_of_a_tenant_that_was_paused_is_not_drawn_anew_and_comes_back_first(bench):
    bench.publish(bench.item("a", tenant="x"), bench.item("b", tenant="x"))
    delivery = bench.one()
    bench.limit("x", paused=True)

    assert bench.store.redraw(LANE, "w1", hold(delivery), LEASE) is None
    assert bench.draw() == []
    bench.limit("x", paused=False)

    assert [(d.job_id, d.deliveries) for d in bench.draw()] == [("a", 1), ("b", 1)]


@pytest.mark.parametrize("why", ["begun", "stale", "another's"])
def test_only_what_a_worker_holds_and_has_not_begun_is_drawn_anew(bench, why):
    bench.publish(bench.item("a"))
    delivery = bench.one()
    if why == "begun":
        bench.store.accept(LANE, "w1", [hold(delivery)])
    held = Hold(delivery.execution_id, "1.999") if why == "stale" else hold(delivery)

    assert bench.store.redraw(LANE, "v" if why == "another's" else "w1", held, LEASE) is None
    assert [r.token for r in bench.store.deliveries_of(LANE, "a", None)] == [delivery.token]
