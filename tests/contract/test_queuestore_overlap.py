"""Replace, exclusion groups, and who waits for whom: on memory and on a real Redis."""
from __future__ import annotations

import pytest

from chrono_beat.core.deliveries import Settlement
from chrono_beat.core.records import Stop
from chrono_beat.core.recovery import LostGrant
from tests.contract.queues import GENERATION, LANE, LEASE, SECOND, hold, queue_bench

bench = pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis)])(queue_bench)

GRACE = 30 * SECOND


def replacing(bench, number, job="job", **values):
    return bench.item(job, number, concurrency="replace", **values)


def grouped(bench, job, number=1, **values):
    return bench.item(job, number, group="billing", **values)


def sent(bench, *items):
    """Publish; returns the words and the deliveries that are to stop."""
    result = bench.store.publish(LANE, GENERATION, bench.now() + LEASE, items)
    assert not result.refused
    return list(result.replies), list(result.stops)


def tend(bench):
    return bench.store.tend_locks(LANE, 100)


def ended(bench):
    return [(o.event, o.execution_id, o.detail.get("blocked_by")) for o in bench.outcomes()]


# -- forbid ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["forbid", "replace"])
def test_rule12_what_a_worker_had_waits_when_an_edit_has_it_published_again(bench, policy):
    """Its row may say that it runs, and no row that runs becomes skipped: it would stay open for ever."""
    first, second = (bench.item("job", number, concurrency=policy) for number in (1, 2))
    bench.publish(first)
    bench.lapse(bench.one())
    bench.store.void(LANE, "job", 2)
    assert bench.draw() == []
    assert bench.publish(second._replace(version=2)) == ["published"]

    assert bench.publish(first._replace(version=2)) == ["waiting"]

    bench.settle(bench.one())
    assert bench.ids() == [first.execution_id]


# -- replace -----------------------------------------------------------------------------------------------------------


def test_inv09_r155_replace_of_a_queued_predecessor_leaves_one(bench):
    first, second = replacing(bench, 1), replacing(bench, 2)
    bench.publish(first)

    assert sent(bench, second, second) == (["published", "already"], [])

    assert ended(bench) == [("superseded", first.execution_id, second.execution_id)]
    assert bench.publish(first) == ["already"]
    assert bench.ids() == [second.execution_id]


def test_inv09_r155_replace_tells_the_running_one_once_and_waits_for_its_end(bench):
    first, second = replacing(bench, 1), replacing(bench, 2)
    bench.publish(first)
    old = bench.one("w7")

    assert sent(bench, second) == (["waiting"], [Stop(first.execution_id, old.token, "w7")])
    assert sent(bench, second) == (["already"], [])
    assert bench.draw() == []
    assert tend(bench) == [Stop(first.execution_id, old.token, "w7", False)]

    assert bench.settle(old, "superseded", "w7") == "settled"
    assert bench.settle(old, "superseded", "w7") == "done"

    assert ended(bench) == [("superseded", first.execution_id, second.execution_id)]
    assert bench.ids() == [second.execution_id]
    assert tend(bench) == []


def test_inv06_r155_after_the_grace_the_lease_is_withdrawn_and_the_old_result_is_refused(bench):
    first, second = replacing(bench, 1), replacing(bench, 2)
    bench.publish(first)
    old = bench.one()
    bench.publish(second)

    bench.advance(GRACE - SECOND)
    assert tend(bench) == [Stop(first.execution_id, old.token, "w1", False)]
    assert bench.draw() == []
    bench.advance(SECOND)
    assert tend(bench) == [Stop(first.execution_id, old.token, "w1", True)]

    new = bench.one("w2")
    assert new.execution_id == second.execution_id
    assert not bench.store.still_held(LANE, hold(old))
    assert bench.store.renew(LANE, "w1", [hold(old)], LEASE).lost == [first.execution_id]
    assert [bench.settle(old, result) for result in ("succeeded", "superseded", "retry")] == ["refused"] * 3
    assert bench.settle(new, worker="w2") == "settled"
    assert ended(bench) == [
        ("superseded", first.execution_id, second.execution_id), ("succeeded", second.execution_id, None)]
    assert bench.draw() == []
    bench.record()
    bench.advance(61 * SECOND)
    assert bench.leftovers() == []


def test_a_further_occurrence_does_not_prolong_the_grace(bench):
    bench.publish(replacing(bench, 1))
    bench.one()
    bench.publish(replacing(bench, 2))
    bench.advance(20 * SECOND)

    assert sent(bench, replacing(bench, 3)) == (["waiting"], [])
    bench.advance(10 * SECOND)

    assert [stop.withdrawn for stop in tend(bench)] == [True]
    assert bench.ids() == [replacing(bench, 3).execution_id]


def test_one_that_was_told_to_stop_and_succeeds_has_succeeded(bench):
    bench.publish(replacing(bench, 1))
    old = bench.one()
    bench.publish(replacing(bench, 2))

    bench.settle(old)

    assert [event for event, *_ in ended(bench)] == ["succeeded"]
    assert bench.ids() == [replacing(bench, 2).execution_id]


@pytest.mark.parametrize("how", ["failed", "timeout", "retry", "lost", "revoked", "given back", "reaped", "recovered"])
def test_one_that_was_told_to_stop_is_not_tried_again(bench, how):
    first, second = replacing(bench, 1), replacing(bench, 2)
    bench.publish(first)
    old = bench.one()
    bench.publish(second)
    if how == "retry":
        bench.store.store_retry(LANE, hold(old), {"countdown_us": 1})

    if how == "given back":
        bench.store.give_back(LANE, "w1", [hold(old)])
    elif how == "recovered":
        bench.store.recover(LANE, "w1", [])
    elif how == "reaped":
        bench.advance(LEASE + SECOND)
        assert bench.store.reap(LANE, 5, 10) == []
    else:
        bench.settle(old, how)

    assert ended(bench) == [("superseded", first.execution_id, second.execution_id)]
    assert bench.ids() == [second.execution_id]
    assert tend(bench) == []


def test_only_the_newest_waiter_of_a_replace_job_stays(bench):
    items = [replacing(bench, n) for n in (1, 2, 3, 4)]
    retry = replacing(bench, 0, attempt=2, kind="retry")
    bench.publish(items[0])
    old = bench.one()

    assert bench.publish(items[1], retry, items[2], items[3]) == ["waiting"] * 4

    by = {id_: by for event, id_, by in ended(bench) if event == "superseded"}
    assert by == {items[1].execution_id: items[2].execution_id, retry.execution_id: items[2].execution_id,
                  items[2].execution_id: items[3].execution_id}
    bench.settle(old, "superseded")
    assert bench.ids() == [items[3].execution_id]
    assert ended(bench)[-1] == ("superseded", items[0].execution_id, items[3].execution_id)


def test_an_older_occurrence_that_comes_late_does_not_replace_a_newer_one(bench):
    """As text a whole second would come after its own fractions."""
    newer = replacing(bench, 5, execution_id="job:20260102T090005.5Z:1")
    bench.publish(newer)
    bench.one()

    assert sent(bench, replacing(bench, 5)) == (["skipped"], [])

    assert ended(bench) == [("superseded", replacing(bench, 5).execution_id, newer.execution_id)]


def test_rule12_what_was_due_before_a_lost_generation_is_never_called_cancelled(bench):
    """It may have run before. Superseded, it is marked as unknown; too old to replace what runs, it waits."""
    items = [replacing(bench, n) for n in (1, 2, 3)]
    bench.flush()
    bench.store.open_lane(LANE, GENERATION + 1, "second", LEASE)
    bench.advance(LEASE)

    assert bench.publish(*items, generation=GENERATION + 1) == ["published"] * 3
    assert [(o.event, o.detail.get("unknown")) for o in bench.outcomes()] == [("superseded", True)] * 2
    running = bench.one()
    assert bench.publish(replacing(bench, 0, due_us=bench.now() - 2 * LEASE), generation=GENERATION + 1) == ["waiting"]
    bench.settle(running)
    assert bench.ids() == [replacing(bench, 0).execution_id]


def test_a_forgotten_generation_forgets_who_was_told(bench):
    bench.publish(replacing(bench, 1))
    bench.one()
    bench.publish(replacing(bench, 2))

    bench.store.open_lane(LANE, GENERATION + 1, "second", 0)

    assert tend(bench) == []
    assert bench.leftovers() == []


# -- who waits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", ["forbid", "replace"])
@pytest.mark.parametrize("kind", ["retry", "replay"])
def test_retries_and_replays_wait_whatever_their_attempt(bench, kind, concurrency):
    bench.publish(bench.item(number=1))
    running = bench.one()

    assert bench.publish(bench.item(number=0, kind=kind, concurrency=concurrency)) == ["waiting"]

    bench.settle(running)
    assert bench.ids() == [bench.item(number=0).execution_id]


def test_a_manual_run_is_skipped_under_forbid_with_the_id_in_the_way(bench):
    bench.publish(bench.item(number=1))

    assert bench.publish(bench.item(number=2, kind="manual")) == ["skipped"]

    assert ended(bench) == [("skipped", bench.item(number=2).execution_id, bench.item(number=1).execution_id)]


@pytest.mark.parametrize("concurrency", ["forbid", "replace"])
def test_backfills_run_one_after_another_beside_the_schedule(bench, concurrency):
    past = [bench.item(number=n, kind="backfill", concurrency=concurrency) for n in (1, 2, 3)]
    live = [bench.item(number=n, concurrency=concurrency) for n in (10, 11)]

    assert bench.publish(*past) == ["published", "waiting", "waiting"]
    assert bench.publish(live[0]) == ["published"]
    drawn = {d.execution_id: d for d in bench.draw()}
    assert drawn.keys() == {past[0].execution_id, live[0].execution_id}
    bench.settle(drawn[live[0].execution_id])
    assert bench.publish(live[1]) == ["published"]
    bench.settle(drawn[past[0].execution_id])
    assert set(bench.ids()) == {past[1].execution_id, live[1].execution_id}


def test_backfills_of_a_job_that_allows_overlap_do_not_wait(bench):
    past = [bench.item(number=n, kind="backfill", concurrency="allow") for n in (1, 2)]
    assert bench.publish(*past) == ["published", "published"]


def test_a_waiter_past_its_expiry_goes_while_the_lock_is_still_held(bench):
    waiter = bench.item(number=2, attempt=2, expires_us=bench.now() + 10 * SECOND)
    bench.publish(bench.item(number=1))
    running = bench.one()
    bench.publish(waiter)
    bench.advance(9 * SECOND)
    assert (tend(bench), bench.events()) == ([], [])

    bench.advance(SECOND)
    tend(bench)

    assert bench.events() == [("expired", waiter.execution_id)]
    bench.settle(running)
    assert bench.draw() == []
    bench.record()
    bench.advance(61 * SECOND)
    assert bench.leftovers() == []


def test_a_holder_that_expired_unread_makes_room_for_who_waits(bench):
    """Nobody draws its pool."""
    bench.publish(grouped(bench, "a", pool="chrono.dead", expires_us=bench.now() + 10 * SECOND))
    bench.publish(grouped(bench, "b"))

    bench.advance(10 * SECOND)
    tend(bench)

    assert bench.events() == [("expired", grouped(bench, "a").execution_id)]
    assert bench.ids() == [grouped(bench, "b").execution_id]


# -- exclusion groups --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", ["forbid", "allow"])
def test_inv09_of_a_group_one_is_active_and_the_others_wait_in_order(bench, concurrency):
    items = [grouped(bench, job, concurrency=concurrency) for job in ("a", "b", "c")]

    assert bench.publish(*items) == ["published", "waiting", "waiting"]

    for item in items:
        (delivery,) = bench.draw()
        assert delivery.execution_id == item.execution_id
        bench.settle(delivery)
    assert bench.events() == [("succeeded", item.execution_id) for item in items]
    bench.record()
    bench.advance(61 * SECOND)
    assert bench.leftovers() == []


def test_groups_of_two_tenants_are_two_groups(bench):
    assert bench.publish(*(grouped(bench, t, tenant=t) for t in ("a", "b"))) == ["published", "published"]


def test_a_waiter_holds_no_slot(bench):
    bench.limit("acme", max_running=2)
    bench.publish(*(grouped(bench, job) for job in ("a", "b", "c")), bench.item("free"))
    assert len(bench.draw()) == 2


def test_rule13_one_that_waits_for_its_group_is_active_for_its_job(bench):
    bench.publish(grouped(bench, "a"))
    assert bench.publish(grouped(bench, "b", 1), grouped(bench, "b", 2)) == ["waiting", "skipped"]
    assert ended(bench) == [("skipped", grouped(bench, "b", 2).execution_id, grouped(bench, "b", 1).execution_id)]


def test_rule13_who_gets_its_jobs_lock_goes_on_to_wait_for_its_group(bench):
    bench.publish(bench.item("b", 1), grouped(bench, "a"))
    running = {d.job_id: d for d in bench.draw()}
    assert bench.publish(grouped(bench, "b", 0, attempt=2), grouped(bench, "c")) == ["waiting", "waiting"]

    bench.settle(running["b"])
    assert bench.draw() == []
    assert bench.publish(grouped(bench, "b", 2)) == ["skipped"], "the retry has the job's lock"
    bench.settle(running["a"])

    order = []
    while drawn := bench.draw():
        order += [d.job_id for d in drawn]
        bench.settle(*drawn)
    assert order == ["c", "b"]


def test_rule13_a_reap_keeps_both_locks(bench):
    bench.publish(grouped(bench, "a", 1))
    bench.lapse(bench.one())

    assert bench.publish(grouped(bench, "b"), grouped(bench, "a", 2)) == ["waiting", "skipped"]
    assert bench.ids() == [grouped(bench, "a", 1).execution_id]


@pytest.mark.parametrize("how", ["drawn", "published over", "end_voided"])
def test_rule09_whoever_drops_a_voided_copy_frees_both_locks(bench, how):
    bench.publish(grouped(bench, "a", 1))
    bench.publish(grouped(bench, "b"))
    bench.store.void(LANE, "a", 2)

    if how == "end_voided":
        assert bench.store.end_voided(LANE, grouped(bench, "a", 1).execution_id, "a", 2) == "ended"
    elif how == "published over":
        assert bench.publish(grouped(bench, "a", 2, version=2)) == ["waiting"], "b was there before it"

    assert [d.job_id for d in bench.draw()] == ["b"]


@pytest.mark.parametrize("how", ["end_voided", "expired", "handed on"])
def test_a_waiter_that_goes_frees_the_lock_it_has_already(bench, how):
    """It waits for its group with its job's lock in hand."""
    bench.publish(grouped(bench, "a"))
    waiter = grouped(bench, "b", 1, expires_us=bench.now() + 10 * SECOND)
    bench.publish(waiter, bench.item("b", 0, attempt=2, version=2))
    running = bench.one()

    if how == "end_voided":
        assert bench.store.end_voided(LANE, waiter.execution_id, "b", 2) == "ended"
    elif how == "expired":
        bench.advance(10 * SECOND)
        tend(bench)
    else:
        bench.store.void(LANE, "b", 2)
        bench.settle(running)

    assert bench.ids() == [bench.item("b", 0, attempt=2).execution_id]


def test_replacing_one_that_waits_for_its_group_takes_its_place_at_the_end(bench):
    bench.publish(grouped(bench, "a"))
    first, second = (grouped(bench, "b", n, concurrency="replace") for n in (1, 2))
    assert sent(bench, first, grouped(bench, "c"), second) == (["waiting"] * 3, [])
    assert ended(bench) == [("superseded", first.execution_id, second.execution_id)]

    order = []
    while drawn := bench.draw():
        order += [d.job_id for d in drawn]
        bench.settle(*drawn)
    assert order == ["a", "c", "b"]


def test_replacing_one_that_has_its_group_hands_the_group_on(bench):
    first, second = (grouped(bench, "b", n, concurrency="replace") for n in (1, 2))
    bench.publish(first, grouped(bench, "c"))

    assert sent(bench, second) == (["waiting"], [])

    order = []
    while drawn := bench.draw():
        order += [d.execution_id for d in drawn]
        bench.settle(*drawn)
    assert order == [grouped(bench, "c").execution_id, second.execution_id]


def test_rule07_a_newer_version_with_another_group_leaves_the_old_ones_locks(bench):
    """Holding its group and waiting for its job would close a circle."""
    bench.publish(grouped(bench, "a", concurrency="allow"), grouped(bench, "b"))
    assert bench.publish(bench.item("a", version=2, group="other")) == ["published"]

    assert sorted(d.job_id for d in bench.draw()) == ["a", "b"]


def test_a_settle_without_its_reply_hands_a_group_on_once(bench):
    bench.publish(*(grouped(bench, job) for job in "abc"))
    delivery = bench.one()
    settlement = Settlement(hold(delivery), "succeeded", {})

    assert bench.store.settle(LANE, "w1", [settlement]) == ["settled"]
    assert bench.store.settle(LANE, "w1", [settlement]) == ["done"]

    assert [d.job_id for d in bench.draw()] == ["b"]


def test_inv04_a_deleted_lock_or_list_strands_nobody(bench):
    """The audit publishes open rows again."""
    items = [grouped(bench, job) for job in "abc"]
    bench.publish(*items)
    running = bench.one()
    if hasattr(bench, "client"):
        bench.client.delete(bench.key("lockwait", "@acme:billing"))
        bench.publish(*items)
        bench.client.delete(bench.key("lock", "@acme:billing"), bench.key("lock", "a"))

    bench.settle(running)
    order = []
    while drawn := bench.draw():
        order += [d.job_id for d in drawn]
        bench.settle(*drawn)
    assert order == ["b", "c"]


def test_rule05_a_grant_that_is_brought_back_has_its_locks_again(bench):
    """Its job's and its group's, and that of its job's backfills."""
    past = [bench.item("c", n, kind="backfill") for n in (1, 2)]
    bench.publish(grouped(bench, "a", 1), past[0])
    drawn = bench.draw()
    waiting = grouped(bench, "b", 1)
    bench.publish(waiting)
    bench.flush()
    bench.store.open_lane(LANE, GENERATION + 1, "second", LEASE)

    grants = [LostGrant(hold(d), d.lease_expires_us, d.grant) for d in drawn]
    assert len(bench.store.bring_back(LANE, "w1", grants, 2 * LEASE)) == 2
    bench.advance(LEASE)

    later = grouped(bench, "a", 2, due_us=bench.now())
    replies = bench.publish(waiting, later, past[1], bench.item("c", 3), generation=GENERATION + 1)
    assert replies == ["waiting", "skipped", "waiting", "published"]
    for delivery in drawn:
        bench.settle(delivery)
    assert {d.execution_id for d in bench.draw()} == {
        waiting.execution_id, past[1].execution_id, bench.item("c", 3).execution_id}


def test_end_voided_voids_also_what_it_finds_held(bench):
    bench.publish(bench.item(number=1))
    bench.one()

    assert bench.store.end_voided(LANE, bench.item(number=1).execution_id, "job", 2) == "held"

    assert bench.publish(bench.item(number=2)) == ["voided"]
