"""What every QueueStore promises of caps, weights, leases, endings and outcomes, on memory and on a real Redis."""
from __future__ import annotations

import pytest

from chrono_beat.core.deliveries import Hold, Settlement
from chrono_beat.core.errors import QueueUnavailable
from chrono_beat.core.records import WorkerReport
from tests.contract.queues import DAY, GENERATION, LANE, LEASE, SECOND, hold, queue_bench

bench = pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis)])(queue_bench)


def many(bench, tenant, count, **values):
    return [bench.item(f"{tenant}-{n}", tenant=tenant, **values) for n in range(count)]


# -- order, weights, caps ----------------------------------------------------------------------------------------------


def test_within_a_tenant_the_lowest_priority_number_is_first_then_the_oldest(bench):
    bench.publish(*(bench.item(f"{p}{n}", priority=p) for n in "ab" for p in (5, 0, 9)))
    assert [d.job_id for d in bench.draw()] == ["0a", "0b", "5a", "5b", "9a", "9b"]


def test_a_more_urgent_execution_that_comes_later_is_drawn_next(bench):
    bench.publish(bench.item("a", priority=5), bench.item("b", priority=5))
    assert bench.one().job_id == "a"
    bench.publish(bench.item("c", priority=1))
    assert [d.job_id for d in bench.draw()] == ["c", "b"]


def test_pools_are_apart(bench):
    bench.publish(bench.item("a", pool="chrono.gold"), bench.item("b"))
    assert [d.job_id for d in bench.draw(pool="chrono.gold")] == ["a"]
    assert [d.job_id for d in bench.draw()] == ["b"]


def test_inv08_draws_follow_weights(bench):
    bench.limit("a", weight=3, max_running=1000)
    bench.limit("b", weight=1, max_running=1000)
    bench.publish(*many(bench, "a", 200), *many(bench, "b", 200))

    drawn = [d.tenant for _ in range(20) for d in bench.draw(10)]

    assert abs(drawn.count("a") / len(drawn) - 0.75) <= 0.02


def test_inv08_a_tenant_never_runs_more_than_its_cap_and_others_go_on(bench):
    bench.limit("a", max_running=2)
    bench.publish(*many(bench, "a", 10), *many(bench, "b", 3))

    drawn = bench.draw()

    assert sorted(d.tenant for d in drawn) == ["a", "a", "b", "b", "b"]
    assert bench.draw() == []
    bench.settle(next(d for d in drawn if d.tenant == "a"))
    assert [d.tenant for d in bench.draw()] == ["a"]


def test_the_cap_counts_over_pools(bench):
    bench.limit("a", max_running=2)
    bench.publish(*many(bench, "a", 2, pool="p"), bench.item("q", tenant="a", pool="q"))
    first, _ = bench.draw(pool="p")
    assert bench.draw(pool="q") == []
    bench.settle(first)
    assert len(bench.draw(pool="q")) == 1


def test_r130_the_highest_priority_is_drawn_first(bench):
    """0 is first and 9 last, whatever the broker says."""
    bench.publish(*(bench.item(f"low{n}", priority=9) for n in range(10)), bench.item("high", priority=0))

    assert bench.one().job_id == "high"


@pytest.mark.parametrize("low", [1, 5, 9])
@pytest.mark.parametrize("credit", [1, 7])
def test_r130_a_low_priority_goes_on_under_a_constant_load_of_high_ones(bench, low, credit):
    """Each tenth grant looks from below, beginning with another priority each time: so at most 100 grants."""
    bench.limit(weight=3, max_running=1000)
    bench.publish(*(bench.item(f"low{n}", priority=low, concurrency="allow") for n in range(3)))
    drawn, number = [], 0
    while sum(job.startswith("low") for job in drawn) < 3:
        bench.publish(*(bench.item(f"high{number + n}", priority=0, concurrency="allow") for n in range(credit)))
        number += credit
        drawn += [delivery.job_id for delivery in bench.draw(credit)]
        assert len(drawn) < 400

    waits = [at for at, job in enumerate(drawn) if job.startswith("low")]
    assert max(later - earlier for earlier, later in zip([0, *waits], waits, strict=False)) <= 100
    assert sum(job.startswith("high") for job in drawn[:20]) >= 18            # and the high ones hardly notice


def test_r130_a_priority_in_the_middle_goes_on_between_high_and_low_ones(bench):
    bench.limit(max_running=1000)
    bench.publish(bench.item("middle", priority=5, concurrency="allow"))
    bench.publish(*(bench.item(f"{n}-{p}", priority=p, concurrency="allow") for n in range(100) for p in (0, 9)))

    assert "middle" in [delivery.job_id for delivery in bench.draw(110)]


def test_limits_are_live_at_once(bench):
    bench.publish(*many(bench, "a", 10))
    bench.limit("a", max_running=3)
    assert len(bench.draw()) == 3
    bench.limit("a", max_running=5)
    assert len(bench.draw()) == 2
    bench.limit("a", max_running=1)
    assert bench.draw() == []
    bench.limit("a", max_running=100, paused=True)
    assert bench.draw() == []
    bench.limit("a", max_running=100)
    assert len(bench.draw()) == 5


def test_older_limits_change_nothing(bench):
    bench.limit("a", max_running=1, at=bench.now() + 2)
    bench.limit("a", max_running=9, at=bench.now() - DAY)
    bench.publish(*many(bench, "a", 3))
    assert len(bench.draw()) == 1


def test_inv08_who_was_idle_has_saved_no_credit(bench):
    for tenant in "ab":
        bench.limit(tenant, max_running=1000)
    bench.publish(*many(bench, "a", 100))
    bench.draw(50)

    bench.publish(*many(bench, "b", 100))

    drawn = [d.tenant for d in bench.draw(20)]
    assert drawn.count("b") <= 11


def test_inv08_who_drains_and_returns_at_once_gains_nothing(bench):
    """b never has more than one execution queued, a has a backlog: both get the same."""
    for tenant in "ab":
        bench.limit(tenant, max_running=1000)
    bench.publish(*many(bench, "a", 100))

    drawn = []
    for n in range(40):
        bench.publish(bench.item(f"b{n}", tenant="b"))
        drawn.append(bench.one().tenant)

    assert abs(drawn.count("a") - drawn.count("b")) <= 1


# -- leases ------------------------------------------------------------------------------------------------------------


def test_inv06_a_lease_that_is_renewed_is_not_reaped(bench):
    bench.publish(bench.item())
    delivery = bench.one()

    for _ in range(5):
        bench.advance(20 * SECOND)
        assert bench.store.renew(LANE, "w1", [hold(delivery)], LEASE).lost == []
        assert bench.store.reap(LANE, 5, 10) == []

    assert bench.store.still_held(LANE, hold(delivery))
    bench.advance(LEASE)
    assert not bench.store.still_held(LANE, hold(delivery))


def test_inv05_a_reaped_execution_comes_again_under_its_id_at_the_front(bench):
    bench.publish(bench.item("a", payload=b"\x00a"), bench.item("b"))
    first = bench.one()
    bench.advance(LEASE)

    (reaped,) = bench.store.reap(LANE, 5, 10)

    assert reaped == (first.execution_id, "a", "acme", "w1", 1, False)
    again = bench.one("w2")
    assert (again.execution_id, again.payload, again.deliveries) == (first.execution_id, b"\x00a", 2)
    assert again.token != first.token
    assert bench.store.reap(LANE, 5, 10) == []


def test_inv06_the_outcome_of_a_stale_holder_is_refused(bench):
    bench.publish(bench.item())
    first = bench.one()
    bench.lapse(first)
    second = bench.one("w2")

    assert bench.settle(first) == "refused"
    assert bench.store.renew(LANE, "w1", [hold(first)], LEASE).lost == [first.execution_id]
    assert bench.store.give_back(LANE, "w1", [hold(first)]) == 0
    assert not bench.store.store_retry(LANE, hold(first), {})
    assert not bench.store.still_held(LANE, hold(first))
    bench.store.accept(LANE, "w1", [hold(first)])
    assert bench.events() == []

    assert bench.settle(second, worker="w2") == "settled"
    assert bench.settle(first) == "refused"


@pytest.mark.parametrize("reaped", [False, True])
def test_rule14_the_last_grant_counts_although_its_lease_has_run_out(bench, reaped):
    bench.publish(bench.item("a"), bench.item("b"))
    delivery = bench.one()
    bench.advance(LEASE + 1)
    if reaped:
        assert len(bench.store.reap(LANE, 5, 10)) == 1

    assert bench.settle(delivery) == "settled"

    assert bench.ids() == [bench.item("b").execution_id]
    assert bench.publish(bench.item("a", number=2)) == ["published"]


def test_rule14_the_last_grant_counts_although_its_requeued_copy_was_voided(bench):
    bench.publish(bench.item())
    delivery = bench.one()
    bench.lapse(delivery)
    bench.store.void(LANE, "job", 2)
    assert bench.draw() == []

    assert bench.settle(delivery) == "settled"
    assert [event for event, _ in bench.events()] == ["succeeded"]


def test_a_renewal_takes_back_what_was_requeued_but_not_granted_again(bench):
    """A worker that was stopped for longer than its lease goes on with a body that is still running."""
    bench.limit(max_running=1)
    bench.publish(bench.item("a"), bench.item("b"))
    delivery = bench.one()
    bench.lapse(delivery)

    assert bench.store.renew(LANE, "w1", [hold(delivery)], LEASE).lost == []

    assert bench.draw() == [], "its slot is taken again"
    assert bench.store.still_held(LANE, hold(delivery))
    bench.settle(delivery)
    assert bench.ids() == [bench.item("b").execution_id]


def test_inv08_a_renewal_takes_nothing_back_into_a_slot_that_is_filled_meanwhile(bench):
    """R162: what was requeued gave its place away. Taken back, it would be the second of a tenant whose cap is one."""
    bench.limit(max_running=1)
    bench.publish(bench.item("a"), bench.item("b", pool="chrono.gold"))
    late = bench.one()
    bench.lapse(late)
    in_its_place = bench.one("w2", pool="chrono.gold")

    assert bench.store.renew(LANE, "w1", [hold(late)], LEASE).lost == [late.execution_id]

    assert bench.store.still_held(LANE, hold(in_its_place))
    assert not bench.store.still_held(LANE, hold(late))
    bench.settle(in_its_place, worker="w2")
    assert bench.ids() == [late.execution_id], "it waits in its pool"


def test_a_renewal_takes_back_what_was_requeued_of_a_paused_tenant_that_has_room(bench):
    """A pause ends nothing that runs."""
    bench.publish(bench.item("a"))
    late = bench.one()
    bench.lapse(late)
    bench.limit(max_running=1, paused=True)

    assert bench.store.renew(LANE, "w1", [hold(late)], LEASE).lost == []

    assert bench.store.still_held(LANE, hold(late))


def test_inv06_reaps_are_capped(bench):
    bench.publish(bench.item())
    for reaps in (1, 2):
        bench.one(lease_us=-1)
        assert [r[4:] for r in bench.store.reap(LANE, 2, 10)] == [(reaps, False)]
    last = bench.one(lease_us=-1)

    assert [r[4:] for r in bench.store.reap(LANE, 2, 10)] == [(3, True)]

    (outcome,) = bench.outcomes()
    assert (outcome.event, outcome.token, outcome.deliveries, outcome.worker) == ("reap_cap", last.token, 3, "w1")
    assert bench.draw() == []
    assert bench.publish(bench.item(), bench.item(number=2)) == ["already", "published"]


def test_inv06_what_ended_after_a_worker_had_it_is_not_published_under_a_newer_version(bench):
    """The end waits to be recorded, and it ends the row whatever version that has by then (rules 7 and 11)."""
    bench.publish(bench.item())
    for _ in range(3):
        bench.one(lease_us=-1)
        bench.store.reap(LANE, 2, 10)
    assert bench.events()[-1][0] == "reap_cap"

    assert bench.publish(bench.item(version=2)) == ["already"]
    assert bench.store.open_lane(LANE, GENERATION + 1, bench.store.lane_state(LANE).replication_id, 0)
    assert bench.publish(bench.item(version=2), generation=GENERATION + 1) == ["already"]

    assert [outcome.event for outcome in bench.record()][-1] == "reap_cap"
    assert bench.draw() == []


def test_rule11_what_ended_by_a_decision_alone_is_published_under_a_newer_version(bench):
    bench.publish(bench.item(expires_us=bench.now() + SECOND))
    bench.advance(2 * SECOND)
    assert bench.draw() == [] and [event for event, _ in bench.events()] == ["expired"]

    assert bench.publish(bench.item(version=2)) == ["published"]
    assert len(bench.draw()) == 1


def test_a_reap_looks_at_no_more_than_its_limit(bench):
    bench.publish(*many(bench, "a", 5))
    bench.draw(lease_us=-1)
    assert [len(bench.store.reap(LANE, 5, 2)) for _ in range(4)] == [2, 2, 1, 0]


# -- giving back -------------------------------------------------------------------------------------------------------


def test_a_give_back_goes_to_the_front_in_its_order_and_counts_as_no_delivery(bench):
    bench.publish(*(bench.item(n) for n in "abcd"))
    drawn = bench.draw(3)

    assert bench.store.give_back(LANE, "w1", [hold(d) for d in drawn]) == 3
    assert bench.store.give_back(LANE, "w1", [hold(d) for d in drawn]) == 0

    again = bench.draw()
    assert [d.job_id for d in again] == ["a", "b", "c", "d"]
    assert [d.deliveries for d in again] == [1, 1, 1, 1]
    assert not {d.token for d in drawn} & {d.token for d in again}


def test_what_was_given_back_cannot_be_settled(bench):
    bench.publish(bench.item())
    delivery = bench.one()
    bench.store.give_back(LANE, "w1", [hold(delivery)])
    assert bench.settle(delivery) == "refused"
    assert bench.store.renew(LANE, "w1", [hold(delivery)], LEASE).lost == [delivery.execution_id]


def test_recover_gives_back_what_a_lost_draw_reply_granted(bench):
    bench.publish(*(bench.item(n) for n in "abc"))
    kept = bench.one()
    bench.draw(1)                                                              # the reply is lost
    bench.draw(1, "w2")

    assert bench.store.recover(LANE, "w1", [kept.execution_id]) == 1
    assert bench.store.recover(LANE, "w1", [kept.execution_id]) == 0

    assert [d.job_id for d in bench.draw()] == ["b"]
    assert bench.store.still_held(LANE, hold(kept))


# -- settle ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", ["succeeded", "failed", "timeout", "retry", "revoked", "rejected", "too_late"])
def test_rule02_a_settlement_counts_once_and_its_replay_is_done(bench, result):
    bench.publish(bench.item())
    delivery = bench.one()

    assert bench.settle(delivery, result, runtime_ms=7) == "settled"
    assert bench.settle(delivery, result, runtime_ms=7) == "done"
    before = bench.record()
    assert bench.settle(delivery, result, runtime_ms=7) == "done"

    (outcome,) = before
    assert outcome == (
        outcome.entry_id, LANE, GENERATION, result, delivery.execution_id, "job", "acme", 1, delivery.token, "w1",
        outcome.at_us, 1, {"runtime_ms": 7})
    assert bench.outcomes() == []


def test_a_detail_survives_as_it_was(bench):
    bench.publish(bench.item())
    error = {"type": "ValueError", "message": 'ünïcode "quoted" \u2028 \\ \x00', "traceback": None}
    bench.settle(bench.one(), "failed", error=error, runtime_ms=1.5)
    assert bench.outcomes()[0].detail == {"error": error, "runtime_ms": 1.5}


def test_a_lost_child_is_handed_back_at_once_as_a_reap(bench):
    bench.publish(bench.item("a"), bench.item("b"))
    first = bench.one()

    assert bench.settle(first, "lost") == "settled"
    assert bench.settle(first, "lost") == "done"
    assert bench.settle(first) == "refused"
    assert bench.store.renew(LANE, "w1", [hold(first)], LEASE).lost == [first.execution_id]

    again = bench.one()
    assert (again.job_id, again.deliveries) == ("a", 2)
    assert bench.settle(first, "lost") == "done"
    assert bench.settle(again) == "settled"
    assert [event for event, _ in bench.events()] == ["succeeded"]


def test_lost_children_count_towards_the_reap_cap(bench):
    bench.publish(bench.item())
    for _ in range(5):
        assert bench.settle(bench.one(), "lost") == "settled"
    assert bench.settle(bench.one(), "lost") == "settled"
    assert [event for event, _ in bench.events()] == ["reap_cap"]
    assert bench.draw() == []


def test_a_stored_retry_is_in_the_outcome(bench):
    bench.publish(bench.item())
    delivery = bench.one()
    retry = {"countdown_us": 5 * SECOND, "args": "[1]", "kwargs": "{}", "max_retries": 3}

    assert bench.store.store_retry(LANE, hold(delivery), retry)
    bench.settle(delivery, "retry", runtime_ms=3)

    assert bench.outcomes()[0].detail == {"runtime_ms": 3, "retry": retry}
    assert bench.publish(bench.item(number=2)) == ["published"]


@pytest.mark.parametrize("how", ["the child was killed", "the worker was lost"])
def test_a_retry_that_was_stored_before_the_end_counts(bench, how):
    bench.publish(bench.item())
    delivery = bench.one()
    bench.store.store_retry(LANE, hold(delivery), {"countdown_us": 1})

    if how == "the child was killed":
        assert bench.settle(delivery, "lost") == "settled"
    else:
        bench.advance(LEASE)
        bench.store.reap(LANE, 5, 10)

    (outcome,) = bench.outcomes()
    assert (outcome.event, outcome.detail["retry"]) == ("retry", {"countdown_us": 1})
    assert bench.draw() == []
    assert bench.settle(delivery, "retry") == "done"


def test_a_retry_that_was_stored_is_forgotten_where_the_body_ended_otherwise(bench):
    bench.publish(bench.item())
    delivery = bench.one()
    bench.store.store_retry(LANE, hold(delivery), {"countdown_us": 1})
    bench.settle(delivery, "failed")
    assert bench.outcomes()[0].detail == {}


@pytest.mark.parametrize("how", ["cancelled", "voided", "dropped"])
def test_inv06_a_renewal_says_that_a_delivery_has_ended_without_its_worker(bench, how):
    """Else the worker thinks that it has a lease, and brings it back, with its lock, into a lane that lost its memory."""
    bench.publish(bench.item())
    delivery = bench.one()
    bench.lapse(delivery)
    if how == "cancelled":
        bench.store.cancel(LANE, delivery.execution_id, "job", "acme")
    elif how == "voided":
        bench.store.end_voided(LANE, delivery.execution_id, "job", 2)
    else:
        bench.store.void(LANE, "job", 2)
        assert bench.draw() == []

    assert bench.store.renew(LANE, "w1", [hold(delivery)], LEASE).lost == [delivery.execution_id]


def test_unknown_executions_are_refused(bench):
    unknown = Hold("job:20260102T090000Z:1", "1.1")
    assert bench.store.settle(LANE, "w1", [Settlement(unknown, "succeeded", {})]) == ["refused"]
    assert bench.store.renew(LANE, "w1", [unknown], LEASE).lost == []
    assert bench.store.give_back(LANE, "w1", [unknown]) == 0
    bench.publish(bench.item())
    assert bench.store.settle(LANE, "w1", [Settlement(Hold(bench.item().execution_id, ""), "lost", {})]) == ["refused"]


def test_a_settlement_in_a_lane_without_memory_is_not_answered(bench):
    """The worker keeps it until the lane has been opened again."""
    bench.publish(bench.item())
    delivery = bench.one()
    bench.flush()

    with pytest.raises(QueueUnavailable):
        bench.settle(delivery)
    assert bench.store.renew(LANE, "w1", [hold(delivery)], LEASE).lost == []


def test_rule05_an_outcome_from_a_lost_generation_counts_in_quarantine_only(bench):
    bench.publish(bench.item("a"), bench.item("b"))
    one, two = bench.draw()
    bench.flush()
    bench.store.open_lane(LANE, GENERATION + 1, "second", LEASE)

    assert bench.settle(one) == "settled"
    assert bench.settle(one) == "done"
    bench.advance(LEASE)
    assert bench.settle(two) == "refused"

    (outcome,) = bench.outcomes()
    assert (outcome.event, outcome.execution_id, outcome.generation) == ("succeeded", one.execution_id, GENERATION + 1)
    assert bench.publish(bench.item("a"), bench.item("b"), generation=GENERATION + 1) == ["already", "published"]


def test_started_is_told_once_with_the_time_of_redis(bench):
    bench.publish(bench.item())
    delivery = bench.one()

    bench.store.accept(LANE, "w1", [hold(delivery)])
    bench.store.accept(LANE, "w1", [hold(delivery)])

    (outcome,) = bench.outcomes()
    assert (outcome.event, outcome.worker, outcome.token, outcome.deliveries) == ("started", "w1", delivery.token, 1)
    assert outcome.at_us >= delivery.drawn_us


def test_settle_and_draw_does_both_in_order(bench):
    bench.limit(max_running=1)
    bench.publish(bench.item("a"), bench.item("b"))
    first = bench.one()

    words, drawn = bench.store.settle_and_draw(
        LANE, "w1", [Settlement(hold(first), "succeeded", {})], "chrono", 5, LEASE, [hold(first)])

    assert words == ["settled"]
    assert [d.job_id for d in drawn] == ["b"]
    assert [event for event, _ in bench.events()] == ["started", "succeeded"]
    assert bench.store.settle_and_draw(LANE, "w1", [], "chrono", 0, LEASE) == ([], [])


# -- outcomes ----------------------------------------------------------------------------------------------------------


def test_outcomes_are_read_in_order_until_they_are_acknowledged(bench):
    bench.publish(*(bench.item(n) for n in "abc"))
    for delivery in bench.draw():
        bench.settle(delivery)

    first = bench.store.read_outcomes(LANE, "r", LEASE, 2)
    assert bench.store.read_outcomes(LANE, "r", LEASE, 2) == first
    bench.store.acknowledge(LANE, first)
    bench.store.acknowledge(LANE, first)

    assert [o.job_id for o in first] == ["a", "b"]
    assert [o.job_id for o in bench.store.read_outcomes(LANE, "r", LEASE, 2)] == ["c"]


def test_rule14_one_reader_at_a_time(bench):
    assert bench.store.read_outcomes(LANE, "r1", 5 * SECOND, 10) == []
    assert bench.store.read_outcomes(LANE, "r2", 5 * SECOND, 10) is None
    bench.advance(4 * SECOND)
    assert bench.store.read_outcomes(LANE, "r1", 5 * SECOND, 10) == []
    bench.advance(4 * SECOND)
    assert bench.store.read_outcomes(LANE, "r2", 5 * SECOND, 10) is None
    bench.advance(2 * SECOND)
    assert bench.store.read_outcomes(LANE, "r2", 5 * SECOND, 10) == []
    assert bench.store.read_outcomes(LANE, "r1", 5 * SECOND, 10) is None


# -- waking ------------------------------------------------------------------------------------------------------------


def test_everything_that_makes_work_drawable_leaves_one_token(bench):
    """Otherwise an idle worker would hear of it only when its wait is over."""
    bench.limit(max_running=1)
    assert not bench.wakes()
    bench.publish(bench.item("a"), bench.item("b"))
    assert bench.wakes() and not bench.wakes()
    one = bench.one()
    assert bench.wakes(), "more is left than this worker's credit"
    assert bench.draw() == [] and not bench.wakes(), "nothing can be drawn at the cap"

    bench.store.give_back(LANE, "w1", [hold(one)])
    assert bench.wakes()
    two = bench.one(lease_us=-1)
    bench.wakes(), bench.draw()
    bench.store.reap(LANE, 5, 10)
    assert bench.wakes()
    two = bench.one()
    bench.draw(), bench.wakes()
    bench.settle(two)
    assert bench.wakes()
    two = bench.one()
    bench.draw(), bench.wakes()
    bench.limit(max_running=2)
    bench.draw(), bench.wakes()
    bench.publish(bench.item(two.job_id, number=2, attempt=2))
    assert not bench.wakes()
    bench.settle(two)
    assert bench.wakes(), "the lock was handed over"


def test_publishing_for_a_paused_tenant_wakes_nobody(bench):
    bench.limit(paused=True)
    bench.publish(bench.item("a"))
    bench.draw(), bench.wakes()
    bench.publish(bench.item("b"))
    assert not bench.wakes()
    bench.limit(at=bench.now() + SECOND)
    assert bench.wakes()


def test_a_message_wakes_one_worker(bench):
    bench.store.wake_worker("w1", [LANE], '{"cancel": "x"}')
    bench.store.wake_worker("w1", [LANE])
    bench.store.wake_worker("w2", [LANE])

    assert bench.store.wait_for_work([LANE], ["chrono"], "w1", 0.01) == ['{"cancel": "x"}']
    assert bench.store.wait_for_work([LANE], ["chrono"], "w1", 0.01) == []
    assert bench.store.wait_for_work([LANE], ["chrono"], "w2", 0.01) == []


def test_waiting_for_work_takes_the_token(bench):
    bench.publish(bench.item())
    assert bench.store.wait_for_work([LANE], ["chrono"], "w1", 0.01) == []
    assert not bench.wakes()


def test_dispatchers_are_woken_once_per_call(bench):
    assert not bench.store.wait_for_dispatch(0.01)
    bench.store.wake_dispatchers()
    bench.store.wake_dispatchers()
    assert bench.store.wait_for_dispatch(0.01)
    assert not bench.store.wait_for_dispatch(0.01)
    bench.store.wake_dispatchers()
    assert bench.store.wait_for_dispatch(0.01)


# -- knowing -----------------------------------------------------------------------------------------------------------


def test_workers_are_known_while_they_report(bench):
    reports = [WorkerReport(name, ["chrono"], ["app.task"], 4, "prefork", bench.store.now_us()) for name in ("w2", "w1")]
    bench.store.report_worker(reports[0], 30 * SECOND)
    bench.store.report_worker(reports[1], 90 * SECOND)
    bench.store.report_worker(reports[1], 90 * SECOND)

    assert bench.store.workers() == [reports[1], reports[0]]
    bench.advance(LEASE)
    assert bench.store.workers() == [reports[1]]


def test_backlog_counts_what_waits_for_a_draw(bench):
    bench.limit("b", max_running=1)
    bench.publish(*many(bench, "a", 3), bench.item("a9", tenant="a", priority=0), *many(bench, "b", 2))
    assert bench.store.backlog(LANE, "chrono") == {"a": 4, "b": 2}
    assert bench.store.backlog(LANE, "chrono", "a") == {"a": 4} and bench.store.backlog(LANE, "chrono", "c") == {}
    assert bench.store.running(LANE, "a") == bench.store.running(LANE, "c") == 0

    drawn = bench.draw(3)
    bench.store.give_back(LANE, "w1", [hold(drawn[0])])

    assert sum(bench.store.backlog(LANE, "chrono").values()) == 4
    assert bench.store.running(LANE, "a") + bench.store.running(LANE, "b") == 2
    for delivery in drawn[1:]:
        bench.settle(delivery)
    while drawn := bench.draw():
        for delivery in drawn:
            bench.settle(delivery)
    assert bench.store.backlog(LANE, "chrono") == {}
    assert bench.store.backlog(LANE, "other") == {}


def test_server_facts_are_texts(bench):
    facts = bench.store.server_facts()
    assert set(facts) == {"version", "maxmemory_policy", "replication_id", "mode"}
    assert facts["maxmemory_policy"] == "noeviction"
    assert facts["replication_id"] == bench.store.lane_state(LANE).replication_id


# -- nothing is left ---------------------------------------------------------------------------------------------------


def test_nothing_is_left_when_all_is_over(bench):
    bench.limit("a", max_running=2)
    bench.publish(*many(bench, "a", 5, expires_us=bench.now() + DAY), *many(bench, "b", 5, concurrency="allow"))
    bench.publish(bench.item("a-0", number=2, tenant="a", attempt=2), bench.item("a-1", number=2, tenant="a"))
    bench.store.give_back(LANE, "w1", [hold(d) for d in bench.draw(2)])
    bench.draw(3, lease_us=-1)
    bench.store.reap(LANE, 5, 10)
    while drawn := bench.draw(3):
        for delivery in drawn:
            bench.store.accept(LANE, "w1", [hold(delivery)])
            assert bench.settle(delivery) == "settled"

    bench.record()
    bench.advance(61 * SECOND)

    assert bench.leftovers() == []


def test_rule14_a_retry_is_kept_though_the_lease_ran_out_and_the_copy_was_requeued(bench):
    bench.publish(bench.item())
    delivery = bench.one()
    bench.advance(LEASE)
    bench.store.reap(LANE, 5, 10)

    assert bench.store.store_retry(LANE, hold(delivery), {"countdown_us": 1})
    assert bench.settle(delivery, "retry") == "settled"

    (outcome,) = bench.outcomes()
    assert (outcome.event, outcome.detail["retry"]) == ("retry", {"countdown_us": 1})
    assert bench.draw() == []


def test_a_retry_that_was_asked_for_after_the_reap_ends_the_requeued_copy(bench):
    bench.publish(bench.item())
    delivery = bench.one()
    bench.lapse(delivery)
    bench.store.store_retry(LANE, hold(delivery), {"countdown_us": 1})

    assert bench.draw() == [], "its body has run to its end"

    (outcome,) = bench.outcomes()
    assert (outcome.event, outcome.token, outcome.detail) == ("retry", delivery.token, {"retry": {"countdown_us": 1}})
    assert bench.settle(delivery, "retry") == "done"


def test_a_delivery_that_was_reported_lost_asks_for_no_retry_any_more(bench):
    bench.publish(bench.item())
    delivery = bench.one()
    bench.settle(delivery, "lost")
    assert not bench.store.store_retry(LANE, hold(delivery), {"countdown_us": 1})
    assert len(bench.draw()) == 1
