"""What every JobStore promises about members, partitions and lanes, also to several at the same time."""
from __future__ import annotations

import threading

import pytest
from django.db import connections

from chrono_beat.core.records import Claim, Occurrence, PartitionLease

SECOND = 1_000_000
LEASE = 5 * SECOND
ALL = list(range(8))


def at_once(*works):
    """Run functions in threads that start together; returns their answers in order."""
    gate = threading.Barrier(len(works))
    answers: dict[int, object] = {}

    def run(number, work):
        try:
            gate.wait(10)
            answers[number] = work()
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return [answers[number] for number in range(len(works))]


# -- partitions -------------------------------------------------------------------------------------------------------


def test_partitions_start_with_no_owner(store):
    assert [(p.partition, p.owner, p.epoch, p.offered) for p in store.partitions()] == [(n, "", 0, False) for n in ALL]
    assert store.layout() == (8, 1)


def test_taking_raises_the_epoch_and_holds_against_others(store):
    assert store.take_partitions("a", [0, 1, 99], LEASE) == {0: 1, 1: 1}
    assert store.take_partitions("b", [0, 2], LEASE) == {2: 1}
    assert store.take_partitions("a", [0], LEASE) == {0: 2}
    assert store.take_partitions("a", [], LEASE) == {}

    first = store.partitions()[0]
    assert first == PartitionLease(0, "a", 2, first.expires_us, False)
    assert 0 < first.expires_us - store.now_us() <= LEASE


def test_a_lease_that_ran_out_is_free_for_all(bench, store):
    store.take_partitions("a", [0], LEASE)
    bench.pass_time(LEASE)

    assert store.take_partitions("b", [0], LEASE) == {0: 2}
    assert store.renew_partitions("a", {0: 1}, LEASE) == set()


def test_renewing_prolongs_only_what_is_still_ones_own(bench, store):
    mine = store.take_partitions("a", [0, 1, 2], LEASE)
    store.release_partitions("a", {2: mine[2]})
    bench.pass_time(4 * SECOND)

    assert store.renew_partitions("a", {0: 1, 1: 7, 2: 1, 3: 0, 99: 1}, LEASE) == {0}
    bench.pass_time(4 * SECOND)

    assert store.take_partitions("b", [0, 1, 2], LEASE) == {1: 2, 2: 2}
    assert store.renew_partitions("a", {}, LEASE) == set()


def test_a_lease_that_ran_out_can_be_renewed_while_nobody_took_it(bench, store):
    store.take_partitions("a", [0], LEASE)
    bench.pass_time(2 * LEASE)

    assert store.renew_partitions("a", {0: 1}, LEASE) == {0}
    assert store.take_partitions("b", [0], LEASE) == {}


def test_an_offered_partition_stays_its_owners_until_it_is_taken(store):
    store.take_partitions("a", [0, 1], LEASE)
    store.offer_partitions("a", {0: 1, 1: 9})

    assert [p.offered for p in store.partitions()[:2]] == [True, False]
    assert store.renew_partitions("a", {0: 1}, LEASE) == {0}
    assert store.take_partitions("b", [0, 1], LEASE) == {0: 2}
    assert store.partitions()[0][:3] == (0, "b", 2)
    assert not store.partitions()[0].offered


def test_a_released_partition_keeps_its_epoch(store):
    store.take_partitions("a", [0, 1], LEASE)
    store.release_partitions("b", {0: 1})
    store.release_partitions("a", {1: 1})

    assert [(p.owner, p.epoch) for p in store.partitions()[:2]] == [("a", 1), ("", 1)]
    assert store.take_partitions("b", [1], LEASE) == {1: 2}


def test_members_that_take_at_once_share_without_a_quarrel(store):
    for _ in range(5):
        for partition in store.partitions():
            store.release_partitions(partition.owner, {partition.partition: partition.epoch})
        taken = at_once(*(lambda name=name: store.take_partitions(name, ALL, LEASE) for name in "abc"))

        assert sorted(number for answer in taken for number in answer) == ALL
        for name, answer in zip("abc", taken, strict=True):
            assert answer == {p.partition: p.epoch for p in store.partitions() if p.owner == name}


# -- members ----------------------------------------------------------------------------------------------------------


def test_members_see_each_other_until_their_heartbeat_ends(bench, store):
    assert store.join("b", LEASE) == ["b"]
    assert store.join("a", 3 * LEASE) == ["a", "b"]
    bench.pass_time(2 * LEASE)
    assert store.join("c", LEASE) == ["a", "c"]


def test_a_leaving_member_is_counted_no_more_though_its_heart_beats(bench, store):
    store.join("a", LEASE)
    store.join("b", LEASE)

    store.leave("a", gone=False)
    assert store.join("a", LEASE) == ["b"]
    store.leave("a", gone=True)
    store.leave("never heard of", gone=False)

    assert store.join("a", LEASE) == ["a", "b"]


# -- lanes ------------------------------------------------------------------------------------------------------------


def test_a_lanes_generation_is_raised_once_by_all_that_saw_the_same(store):
    before = store.lane(0)
    assert (before.lane, before.generation, before.replication_id) == (0, 0, "")

    raised = at_once(*(lambda name=name: store.raise_generation(0, 0, name) for name in ("x", "y")))

    assert raised[0] == raised[1] == store.lane(0)
    assert (raised[0].generation, raised[0].replication_id in "xy") == (1, True)
    assert abs(raised[0].began_us - store.now_us()) < 30 * SECOND
    assert store.raise_generation(0, 0, "late") == raised[0]


def test_a_lane_without_a_row_gets_one(store):
    assert store.lane(3)[:2] == (3, 0)
    assert store.raise_generation(5, 0, "r")[:3] == (5, 1, "r")


def test_that_a_lane_has_plain_tasks_is_kept_over_its_generations_and_noted_under_the_newest_only(store):
    store.raise_generation(0, 0, "x")
    assert not store.lane(0).has_plain_tasks

    store.note_plain_tasks(0, 1, True)
    assert store.raise_generation(0, 1, "y").has_plain_tasks
    store.note_plain_tasks(0, 1, False)                      # by somebody who has not seen the new one
    assert store.lane(0).has_plain_tasks and not store.lane(1).has_plain_tasks

    store.note_plain_tasks(0, 2, False)
    assert not store.lane(0).has_plain_tasks


def test_something_may_be_running_if_an_open_row_was_due(bench, store):
    past = store.now_us() - 60 * SECOND
    job_id = bench.add_job("j", next_run_us=None, paused=True, tenant="acme")
    assert not store.may_be_running(0, 1)

    key = bench.add_execution(job_id, past + 3600 * SECOND)
    assert not store.may_be_running(0, 1)
    bench.set_row(key, due_us=past, state="running")

    assert store.may_be_running(0, 1)
    assert sorted(store.may_be_running(lane, 2) for lane in (0, 1)) == [False, True]
    bench.set_row(key, state="dead")
    assert not store.may_be_running(0, 1)


# -- at the same time -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [40])
def test_inv02_two_threads_that_claim_the_same_jobs_write_each_row_once(bench, store, jobs):
    """Both hold the same epoch, as a dispatcher's look-ahead and its takeover might; the order of the jobs differs."""
    past = store.now_us() // SECOND * SECOND
    for number in range(jobs):
        bench.add_job(f"job {number}", next_run_us=past)
    epochs = store.take_partitions("a", ALL, 60 * SECOND)
    claims = [
        Claim(job.job_id, job.partition, job.version, past, epochs[job.partition], past + SECOND,
              [Occurrence(past, past)], job.content)
        for job in store.due_jobs(ALL, past, jobs)
    ]

    won = at_once(lambda: store.claim("a", claims), lambda: store.claim("a", claims[::-1]))

    assert sorted(row.job_id for answer in won for row in answer) == sorted(claim.job_id for claim in claims)
    assert len(bench.rows()) == jobs


def test_inv02_a_takeover_and_a_claim_at_once_leave_one_winner(bench, store):
    """Whatever comes first: a row exists if and only if the claim was answered with it."""
    past = store.now_us() // SECOND * SECOND
    for turn in range(6):
        job_id = bench.add_job(f"job {turn}", next_run_us=past)
        epochs = store.take_partitions("a", ALL, LEASE)
        job = next(job for job in store.due_jobs(ALL, past, 10) if job.job_id == job_id)
        claim = Claim(job_id, job.partition, 1, past, epochs[job.partition], past + 3600 * SECOND,
                      [Occurrence(past, past)], job.content)
        bench.pass_time(2 * LEASE)

        claimed, taken = at_once(lambda claim=claim: store.claim("a", [claim]),
                                 lambda: store.take_partitions("b", ALL, LEASE))

        assert len(taken) == 8
        assert len(claimed) == len(bench.rows(job_id))
        assert store.claim("a", [claim]) == []
        bench.pass_time(2 * LEASE)
