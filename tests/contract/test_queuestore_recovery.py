"""A lost memory: what lacks in a lane, what holders bring back, and outcomes that are told once more."""
from __future__ import annotations

import pytest

from chrono_beat.core.deliveries import Settlement
from chrono_beat.core.recovery import LostGrant
from tests.contract.queues import GENERATION, LANE, LEASE, SECOND, hold, queue_bench

NEXT = GENERATION + 1
bench = pytest.fixture(queue_bench, params=["memory", "redis"])


def lose_memory(bench, quarantine_us=LEASE):
    bench.flush()
    assert bench.store.open_lane(LANE, NEXT, bench.store.lane_state(LANE).replication_id, quarantine_us)


def grant(delivery, expires_us=None):
    return LostGrant(hold(delivery), delivery.lease_expires_us if expires_us is None else expires_us, delivery.grant)


def bring_back(bench, *deliveries, worker="w1", **values):
    return bench.store.bring_back(LANE, worker, [grant(d, **values) for d in deliveries], LEASE)


# -- lacking ----------------------------------------------------------------------------------------------------------


def test_lacking_are_those_without_copy_grant_marker_or_outcome(bench):
    queued, running, settled, never = (bench.item(name) for name in ("q", "r", "s", "n"))
    skipped, waiting = bench.item("r", 2), bench.item("r", 3, attempt=2)
    bench.publish(running, settled)
    drawn = {delivery.job_id: delivery for delivery in bench.draw()}
    bench.settle(drawn["s"])
    assert bench.publish(queued, skipped, waiting) == ["published", "skipped", "waiting"]
    ids = [item.execution_id for item in (queued, running, settled, never, skipped, waiting)]

    assert bench.store.lacking(LANE, GENERATION, ids) == [never.execution_id]

    bench.record()
    assert bench.store.lacking(LANE, GENERATION, ids) == [never.execution_id]      # tombstones are still there
    assert [d.execution_id for d in bench.draw()] == [queued.execution_id]         # and nothing came twice


def test_nothing_is_said_of_another_generation_or_in_quarantine(bench):
    assert bench.store.lacking(LANE, NEXT, ["a"]) is None
    lose_memory(bench)
    assert bench.store.lacking(LANE, GENERATION, ["a"]) is None
    assert bench.store.lacking(LANE, NEXT, ["a"]) is None
    bench.advance(LEASE)
    assert bench.store.lacking(LANE, NEXT, ["a"]) == ["a"]
    assert bench.store.lacking(LANE, NEXT, []) == []


# -- renew and bring_back ---------------------------------------------------------------------------------------------


def test_a_renewal_names_what_the_lane_does_not_know_and_says_until_when_it_holds(bench):
    bench.publish(bench.item("a"))
    delivery = bench.one()
    renewed = bench.store.renew(LANE, "w1", [hold(delivery)], LEASE)
    assert (renewed.lost, renewed.unknown) == ([], [])
    assert renewed.expires_us >= delivery.lease_expires_us

    bench.flush()
    assert bench.store.renew(LANE, "w1", [hold(delivery)], LEASE) == (0, [], [])    # closed: nothing is known
    bench.store.open_lane(LANE, NEXT, bench.store.lane_state(LANE).replication_id, LEASE)

    renewed = bench.store.renew(LANE, "w1", [hold(delivery)], LEASE)
    assert (renewed.lost, renewed.unknown) == ([], [delivery.execution_id])


def test_rule05_a_grant_that_is_brought_back_has_lease_slot_lock_and_token_again(bench):
    bench.limit(max_running=1)
    bench.publish(bench.item("a"), bench.item("b"))
    delivery = bench.one()
    lose_memory(bench)
    bench.limit(max_running=1)

    assert bring_back(bench, delivery) == [delivery.execution_id]
    assert bring_back(bench, delivery) == [delivery.execution_id]                  # repeated after a lost reply
    bench.store.accept(LANE, "w1", [hold(delivery)])

    assert bench.store.still_held(LANE, hold(delivery))
    assert bench.store.renew(LANE, "w1", [hold(delivery)], 3 * LEASE).unknown == []
    bench.advance(LEASE)
    later, other = bench.item("a", 2), bench.item("b")
    assert bench.publish(later, other, generation=NEXT) == ["skipped", "published"]
    assert bench.draw() == []                                                      # the slot is taken
    assert bench.settle(delivery) == "settled"
    assert bench.ids() == [other.execution_id]
    assert [(o.event, o.job_id, o.version, o.tenant) for o in bench.outcomes()] == [
        ("started", "a", 1, "acme"), ("skipped", "a", 1, "acme"), ("succeeded", "a", 1, "acme")]


def test_rule05_only_in_quarantine_and_only_while_the_lease_would_have_lasted(bench):
    bench.publish(bench.item("a"), bench.item("b"))
    one, two = bench.draw()
    lose_memory(bench)

    assert bring_back(bench, one, expires_us=bench.now()) == []
    bench.advance(LEASE)
    assert bring_back(bench, two, expires_us=bench.now() + LEASE) == []
    assert bench.store.lacking(LANE, NEXT, [one.execution_id, two.execution_id]) == [
        one.execution_id, two.execution_id]


def test_rule05_the_newer_of_two_grants_is_the_one_that_holds(bench):
    bench.publish(bench.item("a"))
    old = bench.one("slow")
    bench.lapse(old)
    new = bench.one("w1")
    until = bench.now() + LEASE
    lose_memory(bench)

    assert bring_back(bench, old, worker="slow", expires_us=until) == [old.execution_id]
    assert bring_back(bench, new) == [new.execution_id]
    assert bring_back(bench, old, worker="slow", expires_us=until) == []

    assert bench.store.renew(LANE, "slow", [hold(old)], LEASE).lost == [old.execution_id]
    assert bench.settle(old, worker="slow") == "refused"
    assert bench.store.recover(LANE, "slow", []) == 0
    assert bench.settle(new) == "settled"


def test_rule05_what_has_ended_is_not_brought_back(bench):
    bench.publish(bench.item("a"))
    delivery = bench.one()
    lose_memory(bench)
    assert bench.settle(delivery) == "settled"

    assert bring_back(bench, delivery) == []
    assert bench.leftovers() and not bench.store.still_held(LANE, hold(delivery))


def test_rule05_a_settle_of_an_unknown_grant_frees_nothing_of_others(bench):
    """Nobody knows what it held; what others have brought back is theirs."""
    bench.publish(bench.item("a", 1))
    first = bench.one()
    bench.store.reap(LANE, 5, 10)
    bench.publish(bench.item("b"))
    other = bench.one("w2")
    lose_memory(bench)
    assert bring_back(bench, other, worker="w2") == [other.execution_id]

    assert bench.settle(first) == "settled"

    assert bench.store.still_held(LANE, hold(other))
    bench.advance(LEASE)
    assert bench.publish(bench.item("b", 2), bench.item("a", 2), generation=NEXT) == ["skipped", "published"]


def test_a_grant_that_was_brought_back_and_lost_again_is_published_again(bench):
    """Its message went with the stream."""
    item = bench.item("a")
    bench.publish(item)
    delivery = bench.one()
    lose_memory(bench)
    bring_back(bench, delivery)
    bench.advance(LEASE + SECOND)
    assert [r.execution_id for r in bench.store.reap(LANE, 5, 10)] == [item.execution_id]

    assert bench.store.lacking(LANE, NEXT, [item.execution_id]) == [item.execution_id]
    assert bench.publish(item, generation=NEXT) == ["published"]
    again = bench.one("w2")
    assert (again.deliveries, again.payload) == (2, item.payload)
    assert bench.settle(delivery) == "refused"
    assert bench.settle(again) == "settled"


# -- recorded ---------------------------------------------------------------------------------------------------------


def test_rule06_an_outcome_is_kept_until_it_is_recorded(bench):
    bench.publish(bench.item("a"), bench.item("b"))
    one, two = bench.draw()
    bench.settle(one)
    ask = lambda: bench.store.recorded(LANE, str(GENERATION), [hold(one)])      # noqa: E731

    assert ask() == (str(GENERATION), [], [])
    bench.record()
    assert ask().done == [one.execution_id]
    bench.advance(2 * LEASE)                                                       # its tombstone has gone
    assert ask().done == [one.execution_id]
    assert two.execution_id not in ask().done


def test_rule06_after_a_lost_memory_it_is_settled_again_and_recorded_once(bench):
    bench.publish(bench.item("a"))
    delivery = bench.one()
    bench.settle(delivery)
    taken = bench.outcomes()                                                       # a recorder has read, not yet acknowledged
    lose_memory(bench)

    assert bench.store.recorded(LANE, str(GENERATION), [hold(delivery)]) == (str(NEXT), [], [])
    assert bench.settle(delivery) == "settled"
    bench.store.acknowledge(LANE, taken)

    # The acknowledgement of the lost one does not clear this one.
    assert bench.store.recorded(LANE, str(NEXT), [hold(delivery)]).done == []
    assert bench.events() == [("succeeded", delivery.execution_id)]
    bench.record()
    assert bench.store.recorded(LANE, str(NEXT), [hold(delivery)]).done == [delivery.execution_id]


def test_rule06_a_server_that_took_over_clears_no_outcome_before_its_lane_is_opened_anew(bench):
    """It may have forgotten the settlement, and look as if nobody needed to say it again."""
    bench.publish(bench.item("a"))
    delivery = bench.one()
    assert bench.store.open_lane(LANE, NEXT, "of another server", LEASE)

    assert bench.store.recorded(LANE, str(NEXT), [hold(delivery)]) == ("", [], [])


def test_a_closed_lane_says_nothing_of_outcomes(bench):
    bench.flush()
    assert bench.store.recorded(LANE, str(GENERATION), []) == ("", [], [])


# -- missed, and what may have run ------------------------------------------------------------------------------------


def test_rule11_a_missed_occurrence_is_decided_once(bench):
    item = bench.item("a")._replace(concurrency="missed")

    assert bench.publish(item) == ["missed"]
    assert bench.publish(item, bench.item("a")) == ["already", "already"]
    assert bench.draw() == []
    assert bench.events() == [("missed", item.execution_id)]


def test_what_is_there_already_is_not_missed(bench):
    bench.publish(bench.item("a"), bench.item("b"))
    running = bench.one()

    assert bench.publish(*(bench.item(n)._replace(concurrency="missed") for n in "ab")) == ["already", "already"]
    assert bench.settle(running) == "settled"
    assert len(bench.draw()) == 1


def test_rule12_decisions_say_what_may_have_run_in_a_lost_generation(bench):
    lose_memory(bench)
    began = bench.store.lane_state(LANE).unknown_before_us
    assert began > 0
    bench.advance(LEASE)
    gone = bench.item("a", expires_us=bench.now() - SECOND)
    bench.publish(gone, generation=NEXT)
    assert bench.draw() == []
    assert bench.store.end_voided(LANE, bench.item("b").execution_id, "b", 2, "acme") == "lost"

    found = bench.outcomes()
    assert [o.event for o in found] == ["expired", "voided"]
    assert [o.detail["unknown_before"] for o in found] == [began, began]


def test_without_a_quarantine_nothing_can_have_run_unseen(bench):
    lose_memory(bench, quarantine_us=0)
    assert bench.store.lane_state(LANE).unknown_before_us == 0
    assert bench.store.end_voided(LANE, bench.item("b").execution_id, "b", 2, "acme") == "ended"
    assert [o.detail for o in bench.outcomes()] == [{}]


def test_settlements_may_be_repeated_after_the_outcome_stream_was_deleted(bench):
    bench.publish(bench.item("a"))
    delivery = bench.one()
    settlement = Settlement(hold(delivery), "succeeded", {})
    assert bench.store.settle(LANE, "w1", [settlement, settlement]) == ["settled", "done"]
    if hasattr(bench, "client"):
        bench.client.delete(bench.key("out"))
    else:
        bench.store.lanes[LANE].outcomes.clear()

    assert bench.store.recorded(LANE, str(GENERATION), [hold(delivery)]).gone == [delivery.execution_id]
    bench.store.settle(LANE, "w1", [settlement])
    assert [o.event for o in bench.outcomes()] == ["succeeded"]
