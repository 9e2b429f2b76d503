"""Plain tasks: no execution row stands behind them, so the lane alone must keep, count and repeat them."""
from __future__ import annotations

import json

import pytest

from chrono_beat.core.plain import PlainTask, copy_id
from chrono_beat.core.recovery import LostGrant
from tests.contract.queues import GENERATION, LANE, LEASE, POOL, SECOND, hold, queue_bench

bench = pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis)])(queue_bench)

OTHER = "chrono.gold"


def task(name="t", nonce="1", **values):
    fields = {"copy_id": copy_id(name, nonce), "tenant": "acme", "pool": POOL, "priority": 5,
              "payload": f'{{"task": "{name} ü"}}'.encode()}
    return PlainTask(**{**fields, **values})


def send(bench, *tasks):
    return bench.store.publish_plain(LANE, tasks)


def retried(name="t", **values):
    """What a worker stores for self.retry()."""
    return {"pool": POOL, "priority": 5, "payload": f'{{"again": "{name} ü"}}', **values}


def open_anew(bench, quarantine_us=0):
    assert bench.store.open_lane(LANE, GENERATION + 1, bench.store.lane_state(LANE).replication_id, quarantine_us)


def test_it_is_drawn_with_its_payload_and_leaves_no_outcome(bench):
    assert send(bench, task()) == ["published"]
    assert bench.wakes()

    delivery = bench.one()
    bench.store.accept(LANE, "w1", [hold(delivery)])

    assert delivery[:4] == (copy_id("t", "1"), "", "acme", POOL)
    assert delivery.payload == task().payload and delivery.deliveries == 1
    assert bench.store.still_held(LANE, hold(delivery))
    assert bench.settle(delivery) == "settled"
    assert bench.outcomes() == []
    bench.draw()
    bench.advance(61 * SECOND)
    assert bench.leftovers() == []


def test_a_repeated_publish_of_one_message_adds_nothing_while_it_waits_runs_or_has_just_ended(bench):
    assert send(bench, task(), task()) == ["published", "already"]
    delivery = bench.one()
    assert send(bench, task()) == ["already"]
    bench.settle(delivery)
    assert send(bench, task()) == ["already"]
    assert bench.draw() == []


def test_the_same_celery_id_sent_again_is_another_message(bench):
    assert send(bench, task(), task(nonce="2")) == ["published", "published"]
    assert len(bench.draw()) == 2


def test_an_id_with_colons_or_that_of_a_job_or_an_execution_is_not_mistaken_for_one(bench):
    item = bench.item("job")
    bench.publish(item)
    bench.store.void(LANE, "job", 5)
    bench.store.void(LANE, "plain", 5)
    names = [item.execution_id, "job", "a:b:1", "plain:x", ""]

    assert send(bench, *(task(name) for name in names)) == ["published"] * 5

    assert bench.ids() == [copy_id(name, "1") for name in names]
    assert bench.store.deliveries_of(LANE, "job", None) == []
    assert len(bench.store.deliveries_of(LANE, "", None, tenant="acme")) == 5


def test_priorities_are_those_of_executions(bench):
    bench.publish(bench.item("a", priority=3))
    send(bench, task("late", priority=9), task("early", priority=0), task("middle", priority=5))
    assert bench.ids() == [copy_id("early", "1"), bench.item("a").execution_id, copy_id("middle", "1"), copy_id("late", "1")]


def test_inv08_the_cap_holds_over_executions_and_plain_tasks_together(bench):
    bench.limit(max_running=2)
    bench.publish(bench.item("a"), bench.item("b"))
    send(bench, *(task(f"t{n}") for n in range(3)), task("gold", pool=OTHER))

    drawn = bench.draw(3)
    assert len(drawn) == 2
    assert bench.draw(pool=OTHER) == []
    bench.settle(drawn[0])
    assert len(bench.draw(3)) == 1
    assert bench.draw(pool=OTHER) == []


def test_inv08_a_plain_task_takes_its_tenants_turn(bench):
    send(bench, *(task(f"t{n}") for n in range(6)))
    bench.publish(*(bench.item(f"j{n}", tenant="zeta") for n in range(3)))
    assert [delivery.tenant for delivery in bench.draw(6)] == ["acme", "zeta"] * 3


def test_a_paused_tenants_plain_tasks_wait_and_run_after_it(bench):
    bench.limit(paused=True)
    send(bench, task())
    assert bench.draw() == []
    bench.advance(30 * 86_400 * SECOND)                  # a copy of an execution would be too old to be trusted by now
    bench.limit(paused=False)
    assert len(bench.draw()) == 1


# -- delays


def test_inv01_a_countdown_is_counted_from_the_lanes_clock_and_what_is_due_comes_by_the_draw(bench):
    send(bench, task(countdown_us=10 * SECOND))
    assert bench.draw() == [] and bench.store.backlog(LANE, POOL) == {}
    bench.advance(9 * SECOND)
    assert bench.draw() == []
    bench.advance(2 * SECOND)
    assert bench.ids() == [copy_id("t", "1")]


def test_what_comes_due_is_let_in_by_the_reaper_which_wakes_a_worker(bench):
    send(bench, task("gold", due_us=bench.now() + 10 * SECOND, pool=OTHER), task("later", countdown_us=100 * SECOND))
    bench.store.reap(LANE, 5, 10)
    assert not bench.wakes(OTHER)
    bench.advance(11 * SECOND)
    bench.store.reap(LANE, 5, 10)
    assert bench.wakes(OTHER)
    assert bench.ids(pool=OTHER) == [copy_id("gold", "1")] and bench.draw() == []
    bench.advance(100 * SECOND)
    assert bench.ids() == [copy_id("later", "1")]


def test_delayed_ones_come_in_the_order_of_their_time_and_one_that_is_past_at_once(bench):
    send(bench, task("b", countdown_us=20 * SECOND), task("a", countdown_us=10 * SECOND), task("past", due_us=1))
    assert bench.ids() == [copy_id("past", "1")]
    bench.advance(30 * SECOND)
    assert bench.ids(1) == [copy_id("a", "1")]
    assert bench.ids(1) == [copy_id("b", "1")]


def test_more_than_one_draw_lets_in_come_by_the_next_ones(bench):
    send(bench, *(task(f"t{n}", countdown_us=SECOND) for n in range(250)))
    bench.limit(max_running=1000)
    bench.advance(2 * SECOND)
    assert [len(bench.draw(1000)) for _ in range(4)] in ([100, 100, 50, 0], [250, 0, 0, 0])


# -- endings


def test_a_retry_takes_the_place_of_its_delivery_when_that_is_settled(bench):
    send(bench, task())
    first = bench.one()
    assert bench.store.store_retry(LANE, hold(first), retried(countdown_us=5 * SECOND))
    assert bench.draw() == []

    assert bench.settle(first, "retry") == "settled"

    assert bench.settle(first, "retry") == "done"                       # the reply was lost, and it is said again
    assert bench.draw() == []
    bench.advance(6 * SECOND)
    again = bench.one("w2")
    assert (again.execution_id, again.deliveries) == (first.execution_id, 1)
    assert json.loads(again.payload) == {"again": "t ü"}
    assert again.token != first.token
    assert bench.settle(first, "retry") == "done"
    assert bench.settle(again, worker="w2") == "settled"
    assert bench.outcomes() == []


def test_a_retry_without_a_delay_comes_last_and_may_go_to_another_pool(bench):
    send(bench, task(), task("other"))
    first = bench.one()
    bench.store.store_retry(LANE, hold(first), retried(priority=7, pool=OTHER))
    bench.settle(first, "retry")
    assert bench.ids() == [copy_id("other", "1")]
    assert bench.ids(pool=OTHER) == [first.execution_id]


def test_a_body_that_died_after_it_asked_for_a_retry_is_retried(bench):
    send(bench, task(), task("two"))
    by_worker, by_lease = bench.draw(2)
    for delivery in (by_worker, by_lease):
        bench.store.store_retry(LANE, hold(delivery), retried(eta_us=bench.now() + 200 * SECOND))
    assert bench.settle(by_worker, "lost") == "settled"
    bench.advance(LEASE + SECOND)
    assert bench.store.reap(LANE, 5, 10) == []
    assert bench.draw() == []
    bench.advance(150 * SECOND)
    assert {json.loads(delivery.payload)["again"] for delivery in bench.draw()} == {"t ü"}


def test_a_retry_that_was_not_stored_ends_it(bench):
    send(bench, task())
    assert bench.settle(bench.one(), "retry") == "settled"
    assert bench.draw() == [] and bench.outcomes() == []


def test_inv06_a_lost_one_is_handed_out_again_and_a_stale_holder_is_refused(bench):
    send(bench, task())
    first = bench.one()
    bench.lapse(first)
    second = bench.one("w2")
    assert (second.execution_id, second.deliveries, second.payload) == (first.execution_id, 2, first.payload)
    assert bench.settle(first) == "refused"
    assert not bench.store.still_held(LANE, hold(first))
    assert bench.settle(second, worker="w2") == "settled"
    assert bench.settle(first) == "refused"


def test_inv06_past_the_cap_it_is_handed_out_once_more_for_a_worker_to_say_that_it_failed(bench):
    send(bench, task())
    for reaps in range(1, 4):
        bench.one()
        bench.advance(LEASE + SECOND)
        [found] = bench.store.reap(LANE, 2, 10)
        assert (found.reaps, found.capped) == (reaps, reaps > 2)
    assert bench.one().deliveries == 4
    assert bench.outcomes() == []


def test_it_can_be_given_back_redrawn_recovered_and_taken_back_by_its_late_worker(bench):
    send(bench, task())
    first = bench.one()
    assert bench.store.give_back(LANE, "w1", [hold(first)]) == 1
    second = bench.one()
    again = bench.store.redraw(LANE, "w1", hold(second), LEASE)
    assert again.token != second.token
    assert bench.store.recover(LANE, "w1", []) == 1
    third = bench.one()
    assert third.deliveries == 1
    bench.advance(LEASE + SECOND)
    bench.store.reap(LANE, 5, 10)
    assert bench.store.renew(LANE, "w1", [hold(third)], LEASE).lost == []
    assert bench.draw() == []
    assert bench.settle(third) == "settled"


def test_one_that_no_worker_knows_lies_aside_and_is_not_ended_there(bench):
    send(bench, task())
    delivery = bench.one()
    bench.store.park(LANE, "w1", [(hold(delivery), "t.new")])
    bench.advance(3600 * SECOND)
    assert bench.store.end_parked(LANE, SECOND, 10) == []
    [parked] = bench.store.parked(LANE, 10)
    assert (parked.execution_id, parked.task) == (delivery.execution_id, "t.new")
    [again] = bench.store.draw_parked(LANE, "w2", [delivery.execution_id], LEASE)
    assert again.payload == delivery.payload


# -- lost memory


def test_rule04_a_new_generation_leaves_them_there(bench):
    send(bench, task("queued"), task("front"), task("running"), task("delayed", countdown_us=2 * LEASE))
    bench.publish(bench.item("job"))
    queued, front, running = (bench.one() for _ in range(3))
    for delivery in (queued, front):
        bench.store.give_back(LANE, "w1", [hold(delivery)])
    send(bench, task("more"))

    open_anew(bench)

    assert {d.execution_id for d in bench.draw()} == {copy_id(name, "1") for name in ("queued", "front", "more")}
    assert running.execution_id == copy_id("running", "1")
    bench.advance(LEASE + SECOND)                        # its worker would have lost it by now
    assert bench.ids() == [running.execution_id]
    bench.advance(LEASE)
    assert bench.ids() == [copy_id("delayed", "1")]


def test_rule05_a_worker_keeps_what_it_runs_over_a_new_generation(bench):
    bench.limit(max_running=1)
    send(bench, task(), task("next"))
    delivery = bench.one()

    open_anew(bench)
    renewed = bench.store.renew(LANE, "w1", [hold(delivery)], LEASE)

    assert (renewed.lost, renewed.unknown) == ([], [])
    assert bench.store.still_held(LANE, hold(delivery))
    assert bench.draw() == []                            # it holds its tenant's slot again
    bench.advance(LEASE - SECOND)
    bench.store.renew(LANE, "w1", [hold(delivery)], LEASE)
    bench.advance(LEASE - SECOND)
    assert bench.draw() == []
    assert bench.settle(delivery) == "settled"
    assert bench.ids() == [copy_id("next", "1")]


def test_one_that_ended_while_the_lane_was_opened_anew_does_not_run_again(bench):
    send(bench, task())
    delivery = bench.one()
    open_anew(bench)
    assert bench.settle(delivery) == "settled"
    bench.advance(2 * LEASE)
    assert bench.draw() == []


def test_what_is_sent_in_quarantine_or_without_a_generation_is_drawn_after_it(bench):
    bench.flush()
    assert send(bench, task("early")) == ["published"]
    assert send(bench, task("early")) == ["already"]
    bench.store.open_lane(LANE, GENERATION + 1, "other", LEASE)
    assert send(bench, task("late")) == ["published"]
    bench.store.reap(LANE, 5, 10)
    assert bench.draw() == []
    bench.advance(LEASE + SECOND)
    assert set(bench.ids()) == {copy_id("early", "1"), copy_id("late", "1")}


def test_rule05_a_running_one_that_was_forgotten_comes_back_with_all_that_a_repeat_needs(bench):
    """The database knows nothing of it, so there may be no quarantine."""
    send(bench, task())
    delivery = bench.one()
    bench.flush()
    open_anew(bench)
    assert bench.store.renew(LANE, "w1", [hold(delivery)], LEASE).unknown == [delivery.execution_id]

    grant = LostGrant(hold(delivery), delivery.lease_expires_us, delivery.grant)
    assert bench.store.bring_back(LANE, "w1", [grant], LEASE) == [delivery.execution_id]

    assert bench.store.still_held(LANE, hold(delivery))
    bench.lapse(delivery)
    assert bench.one("w2").payload == delivery.payload


def test_rule05_a_lane_says_whether_its_memory_has_had_any(bench):
    def there():
        return bench.store.lane_state(LANE).has_plain_tasks

    bench.publish(bench.item("job"))
    assert not there()
    send(bench, task())
    assert there()
    bench.draw()
    open_anew(bench)                                     # another server, which remembers them
    assert there()
    bench.flush()
    open_anew(bench)
    assert not there()


def test_rule05_it_says_so_of_those_that_workers_bring_back_too(bench):
    send(bench, task())
    delivery = bench.one()
    bench.flush()
    open_anew(bench, LEASE)

    bench.store.bring_back(LANE, "w1", [LostGrant(hold(delivery), delivery.lease_expires_us, delivery.grant)], LEASE)

    assert bench.store.lane_state(LANE).has_plain_tasks


def test_an_end_that_nobody_knows_of_any_more_is_no_outcome(bench):
    send(bench, task())
    delivery = bench.one()
    bench.flush()
    open_anew(bench, LEASE)
    assert bench.settle(delivery) == "done"
    assert bench.outcomes() == []


def test_what_the_audit_asks_and_ends_does_not_concern_them(bench):
    send(bench, task())
    assert bench.store.end_voided(LANE, bench.item("job").execution_id, "job", 2, "acme") == "ended"
    assert bench.store.tend_locks(LANE, 10) == []
    assert bench.store.lacking(LANE, GENERATION, [copy_id("none", "1")]) == [copy_id("none", "1")]
    assert len(bench.draw()) == 1


