"""What the audit and the planner need of a JobStore after something was lost."""
from __future__ import annotations

import pytest

from chrono_beat.core.records import Ending

SECOND = 1_000_000
MINUTE = 60 * SECOND
ALL = list(range(8))


@pytest.fixture
def store(bench):
    return bench.store


@pytest.fixture
def past(bench):
    """An instant that has passed, a whole second."""
    return bench.store.now_us() // SECOND * SECOND - 10 * MINUTE


def test_a_row_that_is_recorded_as_missed_counts_itself(bench, store, past):
    job_id = bench.add_job("j", next_run_us=None, paused=True)
    key = bench.add_execution(job_id, past, kind="schedule")
    assert store.open_executions([key])[key].due_us == past

    assert store.record([], [Ending(key, "missed", "misfire", past + SECOND, "", 0, "")], []).ended == [key]

    row, = bench.rows()
    assert (row.state, row.reason, row.missed_count, row.first_missed_us) == ("missed", "misfire", 1, past)


# -- pages of open rows -----------------------------------------------------------------------------------------------


def pages(store, partitions, limit):
    found, after = [], None
    while True:
        numbers = [n for n in partitions if after is None or n >= after.partition]
        page = store.open_page(numbers, after, 5 * SECOND, limit)
        found += page
        if len(page) < limit:
            return found
        after = page[-1]


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_every_open_row_that_is_overdue_stands_on_one_page(bench, store, past, limit):
    keys = []
    for partition in (0, 3, 5):
        job_id = bench.add_job(f"j{partition}", next_run_us=None, paused=True, partition=partition)
        keys += [bench.add_execution(job_id, past - n * MINUTE) for n in (2, 1)]
        other = bench.add_job(f"k{partition}", next_run_us=None, paused=True, partition=partition)
        keys.append(bench.add_execution(other, past - MINUTE))            # at the same instant
        ended = bench.add_execution(job_id, past - 5 * MINUTE)
        bench.set_row(ended, state="succeeded", finished_us=past)
        bench.add_execution(job_id, store.now_us() + MINUTE)              # not due
        bench.add_execution(job_id, store.now_us() // SECOND * SECOND)    # due only just now
    bench.set_row(keys[0], state="queued")
    bench.set_row(keys[1], state="running")

    found = pages(store, [0, 1, 3], limit)

    assert sorted(row.execution_id for row in found) == sorted(keys[:6])
    assert [(row.partition, row.due_us) for row in found] == sorted((row.partition, row.due_us) for row in found)
    by_id = {row.execution_id: row for row in found}
    assert by_id[keys[0]] == (keys[0], "default", 0, past - 2 * MINUTE, "queued")
    assert by_id[keys[1]].state == "running"


def test_rule08_open_rows_come_with_what_their_message_needs_unless_nobody_may_publish_them(bench, store, past):
    job_id = bench.add_job("j", next_run_us=None, paused=True, args="[1]", kwargs='{"a": 1}')
    plain, own, ended, cancelled = (bench.add_execution(job_id, past - n * MINUTE) for n in (4, 3, 2, 1))
    bench.set_row(plain, state="running")
    bench.set_row(own, state="queued", args="[2]")
    bench.set_row(ended, state="dead", finished_us=past)
    bench.set_row(cancelled, cancel_requested_us=past)
    edited = bench.add_job("edited", next_run_us=None, paused=True)
    old = bench.add_execution(edited, past, kind="schedule")
    bench.edit(edited, priority=3)
    gone = bench.add_job("gone", next_run_us=None, paused=True)
    left = bench.add_execution(gone, past)
    bench.delete(gone)

    found = store.load_open([own, plain, ended, cancelled, old, left, "no such id"])

    assert [(row.execution_id, row.content.args, row.content.kwargs) for row in found] == [
        (plain, "[1]", '{"a": 1}'), (own, "[2]", '{"a": 1}'), (old, "[]", "{}")]
    assert (found[0].job_id, found[0].version, found[0].due_us) == (job_id, 1, past - 4 * MINUTE)
    assert store.load_open([]) == []


def test_rule07_what_no_claim_meets_is_taken_over_also_where_it_ran(bench, store, past):
    """An edit of its content dropped the copy that a reaped worker had left; the row still says running."""
    job_id = bench.add_job("j", next_run_us=None, paused=True)
    retry, plain = bench.add_execution(job_id, past, kind="retry", attempt=2), bench.add_execution(
        job_id, past - MINUTE, kind="schedule")
    other = bench.add_execution(job_id, past - 2 * MINUTE, kind="retry", attempt=2)
    for key in (retry, plain):
        bench.set_row(key, state="running")
    bench.edit(job_id, priority=3)

    assert [(row.execution_id, row.version, row.content.priority) for row in store.load_open([retry, plain])] == [
        (plain, 2, 3), (retry, 2, 3)]
    versions = {row.execution_id: row.job_version for row in bench.rows()}
    assert versions == {retry: 2, plain: 2, other: 1}


def test_a_hold_that_is_let_go_is_loaded_again(bench, store, past):
    epochs = store.take_partitions("a", ALL, MINUTE)
    job_id = bench.add_job("j", next_run_us=None, paused=True)
    key, queued = (bench.add_execution(job_id, past - n * MINUTE) for n in (1, 2))
    assert len(store.load_scheduled(epochs, past, 10)) == 2
    bench.set_row(queued, state="queued")
    assert store.load_scheduled(epochs, past, 10) == []

    assert store.let_go([key, queued, "no such id"]) == 1

    assert [row.execution_id for row in store.load_scheduled(epochs, past, 10)] == [key]
    assert store.let_go([]) == 0


def test_plans_are_those_of_the_jobs_that_exist(bench, store, past):
    due = bench.add_job("due", next_run_us=past, misfire="all", misfire_cap=7)
    paused = bench.add_job("paused", next_run_us=None, paused=True)

    found = store.plans([due, paused, "00000000-0000-7000-8000-00000000ffff"])

    assert set(found) == {due, paused}
    assert (found[due].next_run_us, found[due].misfire, found[due].misfire_cap) == (past, "all", 7)
    assert (found[paused].next_run_us, found[paused].content.name) == (0, "paused")
    assert store.plans([]) == {}
