"""What every QueueStore promises of publish, void and draw, on memory and on a real Redis."""
from __future__ import annotations

import pytest

from chrono_beat.core.records import GONE_VERSION
from tests.contract.queues import DAY, GENERATION, LANE, LEASE, SECOND, hold, queue_bench

bench = pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis)])(queue_bench)


# -- publish -----------------------------------------------------------------------------------------------------------


def test_a_published_execution_is_drawn_once_with_its_payload(bench):
    payload = bytes(range(256))

    assert bench.publish(bench.item(payload=payload)) == ["published"]

    (delivery,) = bench.draw()
    assert delivery.payload == payload
    assert delivery[:4] == (bench.item().execution_id, "job", "acme", "chrono")
    assert delivery.deliveries == 1
    assert delivery.lease_expires_us == delivery.drawn_us + LEASE
    assert bench.draw() == []


def test_publishing_again_changes_nothing_at_any_stage(bench):
    """A dispatcher whose reply was lost sends the batch again."""
    item = bench.item()

    assert bench.publish(item, item) == ["published", "already"]
    assert bench.publish(item) == ["already"]
    delivery = bench.one()
    assert bench.publish(item) == ["already"]
    bench.settle(delivery)
    assert bench.publish(item) == ["already"]
    bench.record()
    assert bench.publish(item) == ["already"]
    assert bench.draw() == []


def test_inv01_nothing_is_published_before_its_due_time_on_redis_clock(bench):
    due = bench.now() + 3600 * SECOND
    item = bench.item(due_us=due)

    assert bench.publish(item, bench.item("other")) == ["early", "published"]
    assert bench.ids() == [bench.item("other").execution_id]

    bench.advance(3601 * SECOND)
    assert bench.publish(item) == ["published"]
    assert bench.one().drawn_us >= due


def test_rule03_a_publish_after_its_deadline_is_refused_as_a_whole(bench):
    until = bench.now() - 1

    assert bench.publish(bench.item(), bench.item("b"), valid_until_us=until) == "deadline"

    assert bench.draw() == []
    assert bench.publish(bench.item()) == ["published"]


def test_rule03_a_tombstone_outlives_every_publish_that_is_still_valid(bench):
    item = bench.item()
    bench.publish(item)
    bench.settle(bench.one())
    bench.record()

    bench.advance(59 * SECOND)
    assert bench.publish(item) == ["already"]

    bench.advance(2 * SECOND)
    assert bench.draw() == []
    assert bench.leftovers() == []


def test_rule02_a_tombstone_stays_as_long_as_its_outcome_is_not_recorded(bench):
    item = bench.item()
    bench.publish(item)
    bench.settle(bench.one())

    bench.advance(DAY)

    assert bench.publish(item) == ["already"]


def test_the_acknowledgement_of_an_older_outcome_leaves_a_newer_tombstone(bench):
    item = bench.item()
    bench.publish(item)
    delivery = bench.one()
    bench.store.accept(LANE, "w1", [hold(delivery)])
    started = bench.outcomes()
    bench.settle(delivery)

    bench.store.acknowledge(LANE, started)
    bench.advance(DAY)

    assert bench.publish(item) == ["already"]
    assert [event for event, _ in bench.events()] == ["succeeded"]


def test_rule04_another_generation_is_refused(bench):
    assert bench.publish(bench.item(), generation=GENERATION + 1) == "generation"
    bench.flush()
    assert bench.publish(bench.item()) == "generation"


def test_rule07_a_newer_version_takes_the_place_of_a_copy_that_nobody_has_drawn(bench):
    bench.publish(bench.item(payload=b"old"))

    assert bench.publish(bench.item(version=2, payload=b"new")) == ["published"]

    (delivery,) = bench.draw()
    assert delivery.payload == b"new"
    bench.settle(delivery)
    assert bench.outcomes()[-1].version == 2


def test_rule07_a_copy_that_was_drawn_counts_as_this_occurrence(bench):
    bench.publish(bench.item())
    delivery = bench.one()
    bench.store.void(LANE, "job", 2)

    assert bench.publish(bench.item(version=2)) == ["already"]
    bench.settle(delivery)
    assert bench.publish(bench.item(version=2)) == ["already"]


def test_a_reaped_copy_of_an_old_version_is_replaced_and_its_last_grant_may_settle(bench):
    bench.publish(bench.item())
    first = bench.one()
    bench.lapse(first)

    assert bench.publish(bench.item(version=2, payload=b"new")) == ["published"]
    assert bench.settle(first) == "settled"
    assert bench.draw() == []


# -- overlap -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["queued", "running", "given back", "reaped"])
def test_inv09_forbid_skips_an_occurrence_while_its_predecessor_is_active(bench, stage):
    first, second = bench.item(number=1), bench.item(number=2)
    bench.publish(first)
    if stage != "queued":
        delivery = bench.one()
        if stage == "given back":
            bench.store.give_back(LANE, "w1", [hold(delivery)])
        elif stage == "reaped":
            bench.lapse(delivery)

    assert bench.publish(second) == ["skipped"]

    outcome = bench.outcomes()[-1]
    assert (outcome.event, outcome.execution_id, outcome.tenant, outcome.token) == (
        "skipped", second.execution_id, "acme", "")
    assert outcome.detail == {"blocked_by": first.execution_id}
    assert len(bench.ids()) == (0 if stage == "running" else 1)


def test_rule11_a_skip_is_decided_once_even_when_the_lock_has_been_freed_since(bench):
    first, second = bench.item(number=1), bench.item(number=2)
    bench.publish(first)
    bench.publish(second)
    bench.settle(bench.one())

    assert bench.publish(second) == ["already"]
    assert [event for event, _ in bench.events()] == ["skipped", "succeeded"]
    bench.record()
    assert bench.publish(second) == ["already"]
    assert bench.draw() == []


def test_two_occurrences_in_one_batch_overlap_like_any_others(bench):
    assert bench.publish(bench.item(number=1), bench.item(number=2)) == ["published", "skipped"]


def test_forbid_ends_with_the_settle(bench):
    bench.publish(bench.item(number=1))
    bench.settle(bench.one())
    assert bench.publish(bench.item(number=2)) == ["published"]


def test_allow_overlaps(bench):
    items = [bench.item(number=n, concurrency="allow") for n in (1, 2, 3)]
    assert bench.publish(*items) == ["published"] * 3
    assert bench.ids() == [item.execution_id for item in items]


def test_a_queued_predecessor_past_its_expiry_is_expired_and_stands_in_nobodys_way(bench):
    first = bench.item(number=1, expires_us=bench.now() + 10 * SECOND)
    bench.publish(first)
    bench.advance(10 * SECOND)

    assert bench.publish(bench.item(number=2)) == ["published"]

    assert bench.events() == [("expired", first.execution_id)]
    assert bench.ids() == [bench.item(number=2).execution_id]


def test_a_running_predecessor_past_its_expiry_still_stands_in_the_way(bench):
    bench.publish(bench.item(number=1, expires_us=bench.now() + 10 * SECOND))
    bench.one()
    bench.advance(10 * SECOND)
    assert bench.publish(bench.item(number=2)) == ["skipped"]


def test_rule09_a_voided_predecessor_stands_in_nobodys_way(bench):
    bench.publish(bench.item(number=1))
    bench.store.void(LANE, "job", 2)

    assert bench.publish(bench.item(number=2, version=2)) == ["published"]

    assert bench.ids() == [bench.item(number=2).execution_id]
    assert bench.events() == []


def test_rule12_what_was_due_before_a_lost_generation_waits_instead_of_being_skipped(bench):
    early = [bench.item(number=n) for n in (1, 2)]
    bench.flush()
    bench.store.open_lane(LANE, GENERATION + 1, "second", LEASE)
    bench.advance(LEASE)

    assert bench.publish(*early, bench.item(number=3), generation=GENERATION + 1) == ["published", "waiting", "skipped"]

    for item in early:
        assert bench.settle(bench.one()) == "settled", item


# -- waiters -----------------------------------------------------------------------------------------------------------


def test_rule13_a_retry_waits_behind_the_lock_and_goes_before_the_next_occurrence(bench):
    running, retry, later = bench.item(number=2), bench.item(number=1, attempt=2), bench.item(number=3)
    bench.publish(running)
    delivery = bench.one()

    assert bench.publish(retry, retry) == ["waiting", "already"]
    assert bench.draw() == []
    bench.settle(delivery)
    assert bench.publish(later) == ["skipped"]

    (drawn,) = bench.draw()
    assert drawn.execution_id == retry.execution_id
    assert drawn.payload == retry.payload


def test_rule13_waiters_get_the_lock_in_their_order(bench):
    bench.publish(bench.item(number=9))
    waiting = [bench.item(number=n, attempt=2) for n in (3, 1, 2)]
    assert bench.publish(*waiting) == ["waiting"] * 3

    order = []
    for _ in range(4):
        delivery = bench.one()
        order.append(delivery.execution_id)
        bench.settle(delivery)

    assert order[1:] == [item.execution_id for item in waiting]
    assert bench.publish(bench.item(number=10)) == ["published"]


@pytest.mark.parametrize("how", ["voided", "expired", "reap cap", "lost void"])
def test_rule13_the_lock_is_handed_over_whichever_way_its_holder_goes(bench, how):
    bench.publish(bench.item(number=1, expires_us=bench.now() + 10 * SECOND))
    bench.publish(bench.item(number=0, attempt=2, version=2))

    if how == "voided":
        bench.store.void(LANE, "job", 2)
    elif how == "lost void":
        bench.store.end_voided(LANE, bench.item(number=1).execution_id, "job", 2)
    elif how == "expired":
        bench.advance(10 * SECOND)
    else:
        bench.one(lease_us=-1)
        bench.store.reap(LANE, 0, 10)

    assert bench.ids() == [bench.item(number=0, attempt=2).execution_id]


def test_a_waiter_that_was_voided_or_has_expired_is_passed_over(bench):
    bench.publish(bench.item(number=1, version=2))
    bench.publish(
        bench.item(number=2, attempt=2, version=1),
        bench.item(number=3, attempt=2, version=2, expires_us=bench.now() + SECOND),
        bench.item(number=4, attempt=2, version=2),
    )
    delivery = bench.one()
    bench.store.void(LANE, "job", 2)
    bench.advance(2 * SECOND)

    bench.settle(delivery)

    assert bench.ids() == [bench.item(number=4, attempt=2).execution_id]
    assert ("expired", bench.item(number=3, attempt=2).execution_id) in bench.events()


def test_rule13_a_reap_keeps_the_lock(bench):
    bench.publish(bench.item(number=1))
    bench.publish(bench.item(number=2, attempt=2))
    bench.lapse(bench.one())
    assert bench.ids() == [bench.item(number=1).execution_id]


# -- void --------------------------------------------------------------------------------------------------------------


def test_inv07_a_void_stops_what_is_queued_and_what_comes_later(bench):
    bench.publish(bench.item(number=1))

    bench.store.void(LANE, "job", 2)

    assert bench.draw() == []
    assert bench.publish(bench.item(number=1), bench.item(number=2)) == ["voided", "voided"]
    assert bench.events() == []
    assert bench.publish(bench.item(number=1, version=2)) == ["published"]


def test_a_void_is_never_lowered(bench):
    bench.store.void(LANE, "job", 3)
    bench.store.void(LANE, "job", 2)
    assert bench.publish(bench.item(version=2)) == ["voided"]


def test_a_copy_is_never_drawn_after_the_void_that_concerns_it_was_forgotten(bench):
    bench.publish(bench.item())
    bench.store.void(LANE, "job", 2)

    bench.advance(9 * DAY)

    assert bench.draw() == []
    assert bench.publish(bench.item()) == ["published"]          # what is still open the audit publishes again


def test_rule09_the_draw_drops_a_voided_copy_with_its_lock_and_without_an_outcome(bench):
    bench.publish(bench.item(number=1))
    bench.store.void(LANE, "job", 2)

    assert bench.draw() == []

    assert bench.leftovers() == []
    assert bench.outcomes() == []


def test_rule08_the_audit_ends_a_row_of_an_old_plan_once(bench):
    item = bench.item()
    bench.publish(item)

    assert bench.store.end_voided(LANE, item.execution_id, "job", 2) == "ended"
    assert bench.store.end_voided(LANE, item.execution_id, "job", 2) == "done"

    (outcome,) = bench.record()
    assert (outcome.event, outcome.version, outcome.token, outcome.tenant) == ("voided", 2, "", "acme")
    assert bench.draw() == []
    assert bench.publish(bench.item()) == ["already"]
    bench.advance(61 * SECOND)
    assert bench.publish(bench.item()) == ["voided"]
    assert bench.publish(bench.item(version=2)) == ["published"]


def test_the_audit_ends_a_row_without_a_copy_and_a_dropped_one(bench):
    bench.publish(bench.item("b"))
    bench.store.void(LANE, "b", GONE_VERSION)
    bench.draw()

    assert bench.store.end_voided(LANE, bench.item("a").execution_id, "a", GONE_VERSION, "acme") == "ended"
    assert bench.store.end_voided(LANE, bench.item("b").execution_id, "b", GONE_VERSION, "acme") == "ended"

    assert [(o.event, o.job_id, o.version, o.tenant) for o in bench.outcomes()] == [
        ("voided", "a", GONE_VERSION, "acme"), ("voided", "b", GONE_VERSION, "acme")]


def test_the_audit_leaves_what_a_worker_has_and_what_the_new_plan_took_over(bench):
    bench.publish(bench.item("a"))
    bench.one()
    bench.publish(bench.item("b", version=2))

    assert bench.store.end_voided(LANE, bench.item("a").execution_id, "a", 2) == "held"
    assert bench.store.end_voided(LANE, bench.item("b").execution_id, "b", 2) == "done"


def test_rule12_a_voided_copy_that_was_granted_keeps_its_token_in_the_outcome(bench):
    bench.publish(bench.item())
    delivery = bench.one()
    bench.lapse(delivery)

    assert bench.store.end_voided(LANE, delivery.execution_id, "job", 2) == "lost"

    (outcome,) = bench.outcomes()
    assert (outcome.event, outcome.token, outcome.deliveries) == ("voided", delivery.token, 1)


# -- expiry ------------------------------------------------------------------------------------------------------------


def test_an_execution_exactly_at_its_expiry_is_expired_by_the_draw(bench):
    item = bench.item(expires_us=bench.now() + 3600 * SECOND)
    bench.publish(item, bench.item("other"))
    bench.advance(3600 * SECOND)

    assert bench.ids() == [bench.item("other").execution_id]

    assert bench.events() == [("expired", item.execution_id)]
    assert bench.publish(item) == ["already"]
    assert bench.publish(bench.item(number=2)) == ["published"]


@pytest.mark.parametrize("told", [True, False], ids=["told", "could not tell"])
def test_what_may_have_begun_and_expired_before_it_was_drawn_again_was_lost(bench, told):
    """A worker that dies just after a body began has not said so; the history must not say that it never ran."""
    item = bench.item(expires_us=bench.now() + 10 * SECOND)
    bench.publish(item)
    delivery = bench.one()
    if told:
        bench.store.accept(LANE, "w1", [hold(delivery)])
    bench.lapse(delivery)

    assert bench.draw() == []

    outcome = bench.outcomes()[-1]
    assert (outcome.event, outcome.token, outcome.detail) == ("lost", delivery.token, {"expired": True})


# -- lanes -------------------------------------------------------------------------------------------------------------


def test_lane_state_tells_the_generation(bench):
    state = bench.store.lane_state(LANE)
    assert (state.generation, state.opened_replication_id) == (GENERATION, state.replication_id)
    assert state.quarantine_until_us <= state.now_us

    bench.flush()
    assert bench.store.lane_state(LANE).generation is None


def test_rule04_a_new_generation_clears_copies_leases_and_locks_and_keeps_the_rest(bench):
    bench.limit(max_running=1)
    bench.publish(bench.item("a"), bench.item("b"), bench.item("b", 2, attempt=2), bench.item("c"))
    bench.settle(bench.one())
    running = bench.one()
    bench.store.void(LANE, "v", 2)

    assert bench.store.open_lane(LANE, GENERATION + 1, "second", 0)

    assert bench.store.lane_state(LANE).opened_replication_id == "second"
    assert [event for event, _ in bench.events()] == ["succeeded"]
    assert bench.draw() == []
    assert bench.settle(running) == "refused"
    assert not bench.store.still_held(LANE, hold(running))
    items = [bench.item("a"), bench.item("b"), bench.item("c"), bench.item("v")]
    assert bench.publish(*items, generation=GENERATION + 1) == ["already", "published", "published", "voided"]
    drawn = bench.draw()
    assert len(drawn) == 1, "the tenant's limit is still known"
    assert drawn[0].token.startswith(f"{GENERATION + 1}.")


def test_a_lane_is_opened_once_per_generation(bench):
    assert not bench.store.open_lane(LANE, GENERATION, "again", 0)
    assert not bench.store.open_lane(LANE, GENERATION - 1, "again", 0)
    assert bench.publish(bench.item()) == ["published"]


def test_rule05_in_quarantine_nothing_is_published_drawn_or_swept(bench):
    item = bench.item()
    bench.store.open_lane(LANE, GENERATION + 1, "second", LEASE)

    assert bench.publish(item, generation=GENERATION + 1) == "quarantine"
    assert bench.draw() == []
    assert bench.store.end_voided(LANE, item.execution_id, "job", 2) == "held"

    bench.advance(LEASE)
    assert bench.publish(bench.item(version=2), generation=GENERATION + 1) == ["published"]
    assert len(bench.draw()) == 1


def test_inv06_tokens_grow_also_over_a_lost_redis(bench):
    bench.publish(bench.item("a"), bench.item("b"))
    tokens = [tuple(map(int, d.token.split("."))) for d in bench.draw()]
    bench.flush()
    bench.store.open_lane(LANE, GENERATION + 1, "second", 0)
    bench.publish(bench.item("a"), bench.item("b"), generation=GENERATION + 1)
    tokens += [tuple(map(int, d.token.split("."))) for d in bench.draw()]
    assert len(tokens) == 4
    assert tokens == sorted(set(tokens))
