"""What every JobStore promises about edits: taking over in place, the sweep, voids that are not told yet, cancels."""
from __future__ import annotations

import pytest

from chrono_beat.core.records import GONE_VERSION, Start, Void
from chrono_beat_django.store.postgres_edits import SUPERSEDED
from tests.contract.test_jobstore import ALL, MINUTE, claimed, due, epochs, past  # noqa: F401

KINDS = ("schedule", "retry", "manual", "backfill", "replay")


def load(store, epochs, limit=100):  # noqa: F811
    return store.load_scheduled(epochs, store.now_us(), limit)


# -- rule 7 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("before", ["free", "held", "queued"])
def test_rule07_a_row_that_has_not_begun_is_taken_over_in_place_with_the_new_content(
        bench, store, epochs, past, kind, before):  # noqa: F811
    job_id = bench.add_job("j", next_run_us=past + 10 * MINUTE)
    key = bench.add_execution(job_id, past, kind=kind)
    if before != "free":
        assert [row.version for row in load(store, epochs)] == [1]
    if before == "queued":
        store.mark_queued([(key, past)])

    bench.edit(job_id, args="[2]", name="renamed")
    found = load(store, epochs)

    assert [(row.execution_id, row.version, row.kind, row.content.args, row.queued) for row in found] == [
        (key, 2, kind, "[2]", before == "queued")]
    assert (bench.rows(job_id)[0].job_version, bench.rows(job_id)[0].job_name) == (2, "renamed")
    assert load(store, epochs) == []
    assert store.superseded(ALL, 10) == []


def test_rule07_all_that_wait_are_taken_over_under_misfire_latest_and_none_that_runs(
        bench, store, epochs, past):  # noqa: F811
    """Several in a stream, one in a wheel, one of them running: no claim judges them anew."""
    job_id = bench.add_job("j", next_run_us=past + 10 * MINUTE, misfire="latest")
    keys = [bench.add_execution(job_id, past - minutes * MINUTE, kind="schedule") for minutes in (4, 3, 2, 1)]
    assert len(load(store, epochs)) == 4
    store.mark_queued([(key, past) for key in keys[:3]])
    store.record([Start(keys[1], past, "w", 1)], [], [])

    bench.edit(job_id, args="[2]")
    found = load(store, epochs)

    assert [(row.execution_id, row.content.args) for row in found] == [(key, "[2]") for key in (keys[0], *keys[2:])]
    assert [row.job_version for row in bench.rows(job_id)] == [2, 1, 2, 2]
    assert due(store) == []
    assert store.superseded(ALL, 10, running=True) == []
    assert store.load_scheduled(epochs, store.now_us() + 60 * MINUTE, 10) == []


def test_rule07_what_was_claimed_ahead_is_taken_over_when_the_scan_reaches_it(bench, store, epochs, past):  # noqa: F811
    job_id = bench.add_job("j", next_run_us=past + 60 * MINUTE)
    key = bench.add_execution(job_id, past + 30 * MINUTE, kind="schedule")
    assert len(store.load_scheduled(epochs, past + 30 * MINUTE, 10)) == 1
    bench.edit(job_id, args="[2]")

    assert store.load_scheduled(epochs, past + 30 * MINUTE - 1, 10) == []
    found = store.load_scheduled(epochs, past + 30 * MINUTE, 10)

    assert [(row.execution_id, row.version, row.content.args) for row in found] == [(key, 2, "[2]")]


def test_rule07_a_run_that_redis_has_lost_is_published_anew_with_the_new_content(bench, store, epochs, past):  # noqa: F811
    job_id = bench.add_job("j", next_run_us=past + 10 * MINUTE)
    key = bench.add_execution(job_id, past, kind="schedule")
    store.record([Start(key, past, "w", 1)], [], [])
    bench.edit(job_id, args="[2]")

    assert [(row.execution_id, row.version, row.content.args) for row in store.load_open([key])] == [(key, 2, "[2]")]
    assert bench.rows(job_id)[0].job_version == 2


@pytest.mark.parametrize("edit", [{"expression": "90"}, {"timezone": "Asia/Tokyo"}, {"paused": True, "next_run_us": None}])
@pytest.mark.parametrize("kind", KINDS)
def test_rule08_rows_of_an_older_plan_are_left_to_the_sweep(bench, store, epochs, past, edit, kind):  # noqa: F811
    job_id = bench.add_job("j", next_run_us=past + 10 * MINUTE)
    key = bench.add_execution(job_id, past, kind=kind)
    bench.edit(job_id, **edit)
    bench.edit(job_id, args="[2]")

    assert load(store, epochs) == []
    assert store.superseded(ALL, 10) == [(key, job_id, "default", 3)]


def test_rule08_rows_of_an_older_plan_wait_for_the_sweep_until_they_are_due(bench, store, epochs, past):  # noqa: F811
    """A claim may still meet the occurrence; and what is not due hurts nobody."""
    job_id = bench.add_job("j", next_run_us=past + 10 * MINUTE)
    bench.add_execution(job_id, past + 60 * MINUTE, kind="retry")
    bench.edit(job_id, expression="90")

    assert store.superseded(ALL, 10) == []


def test_a_manual_run_that_was_asked_for_after_the_pause_runs_also_after_a_later_edit(
        bench, store, epochs, past):  # noqa: F811
    job_id = bench.add_job("j", next_run_us=past + MINUTE)
    bench.edit(job_id, paused=True, next_run_us=None)
    key = bench.add_execution(job_id, past)
    assert [row.execution_id for row in load(store, epochs)] == [key]

    bench.edit(job_id, args="[2]")

    assert [(row.execution_id, row.version) for row in load(store, epochs)] == [(key, 3)]


@pytest.mark.parametrize("state", ["scheduled", "queued", "running"])
def test_rule07_a_claim_gives_back_for_publishing_what_it_takes_over_unless_it_runs(
        bench, store, epochs, past, state):  # noqa: F811
    """The copy in the stream is of the older version; a publish replaces it where no worker has it."""
    job_id = bench.add_job("j", next_run_us=past)
    key = claimed(store, epochs)[0].execution_id
    if state != "scheduled":
        store.mark_queued([(key, past)])
    if state == "running":
        store.record([Start(key, past, "w", 1)], [], [])
    bench.edit(job_id, args="[2]", next_run_us=past)

    again = claimed(store, epochs)

    assert [(row.execution_id, row.version, row.content.args) for row in again] == (
        [] if state == "running" else [(key, 2, "[2]")])
    assert (bench.rows(job_id)[0].state, bench.rows(job_id)[0].job_version) == (state, 2)


def test_a_row_whose_cancellation_was_asked_for_is_not_taken_over(bench, store, epochs, past):  # noqa: F811
    job_id = bench.add_job("j", next_run_us=past + MINUTE)
    key = bench.add_execution(job_id, past)
    bench.set_row(key, cancel_requested_us=past)
    bench.edit(job_id, args="[2]")

    assert load(store, epochs) == []


def test_a_claim_does_not_take_over_what_is_to_be_cancelled(bench, store, epochs, past):  # noqa: F811
    job_id = bench.add_job("j", next_run_us=past)
    key = claimed(store, epochs)[0].execution_id
    bench.set_row(key, cancel_requested_us=past)
    bench.edit(job_id, args="[2]", next_run_us=past)

    assert claimed(store, epochs) == []
    assert bench.rows(job_id)[0].job_version == 1


# -- voids ------------------------------------------------------------------------------------------------------------


def test_every_edit_and_deletion_leaves_a_void_until_redis_knows_it(bench, store, past):  # noqa: F811
    one, two = bench.add_job("one", next_run_us=past), bench.add_job("two", next_run_us=past)
    assert store.pending_voids(10) == []

    bench.edit(one, args="[2]")
    bench.edit(one, args="[3]")
    bench.delete(two)

    assert sorted(store.pending_voids(10)) == sorted([Void(one, "default", 3), Void(two, "default", GONE_VERSION)])
    assert len(store.pending_voids(1)) == 1


def test_a_void_is_done_only_for_the_version_that_redis_was_told(bench, store, past):  # noqa: F811
    job_id = bench.add_job("j", next_run_us=past)
    bench.edit(job_id, args="[2]")
    bench.edit(job_id, args="[3]")

    store.void_done([Void(job_id, "default", 2)])
    assert store.pending_voids(10) == [Void(job_id, "default", 3)]
    store.void_done([Void(job_id, "default", 3)])

    assert store.pending_voids(10) == []


def test_the_sweep_finds_rows_also_when_redis_has_been_told(bench, store, epochs, past):  # noqa: F811
    job_id = bench.add_job("j", next_run_us=past)
    key = claimed(store, epochs)[0].execution_id
    bench.delete(job_id)

    store.void_done([Void(job_id, "default", GONE_VERSION)])

    assert store.superseded(ALL, 10) == [(key, job_id, "default", GONE_VERSION)]


# -- cancel -----------------------------------------------------------------------------------------------------------


def test_requests_to_cancel_are_listed_while_their_rows_are_open(bench, store, epochs, past):  # noqa: F811
    job_id = bench.add_job("j", next_run_us=past + MINUTE, partition=3)
    keys = [bench.add_execution(job_id, past + number) for number in range(4)]
    store.record([Start(keys[1], past, "w", 1)], [], [])
    for number, key in enumerate(reversed(keys[:3])):
        bench.set_row(key, cancel_requested_us=past + number)
    bench.set_row(keys[0], state="cancelled", finished_us=past)

    found = store.cancel_requests(ALL, 10)

    assert [(asked.execution_id, asked.job_id, asked.state, asked.due_us) for asked in found] == [
        (keys[2], job_id, "scheduled", past + 2), (keys[1], job_id, "running", past + 1)]
    assert len(store.cancel_requests(ALL, 1)) == 1
    assert store.cancel_requests([0, 1], 10) == []


# -- what it costs ----------------------------------------------------------------------------------------------------


@pytest.mark.postgres
def test_the_sweep_looks_at_no_execution_where_nobody_has_edited(postgres_bench):
    """With 20,000 due rows in the way, as in a burst: it reads the few voids, and from there rows by index."""
    bench = postgres_bench
    store = bench.store
    bench.execute("""INSERT INTO chrono_job (id, name, expression, task, partition, next_run_at)
        SELECT gen_random_uuid(), 'j' || n, '0 9 * * *', 'a.b', n %% 8, '2030-01-01' FROM generate_series(1, 20000) n""")
    bench.execute("""INSERT INTO chrono_execution (id, job_id, tenant, partition, scheduled_at, due_at, first_due_at, state)
        SELECT id::text, id, tenant, partition, now() - interval '1 minute', now() - interval '1 minute', now(), 'queued'
        FROM chrono_job""")
    bench.execute("ANALYZE")

    def plan():
        with bench.connection.cursor() as cursor:
            cursor.execute("EXPLAIN (ANALYZE, FORMAT TEXT) " + SUPERSEDED, [False, 500, "{0,1,2,3,4,5,6,7}", 500])
            return "\n".join(row[0] for row in cursor.fetchall())

    idle = plan()
    bench.execute("UPDATE chrono_job SET paused = true WHERE name IN ('j1', 'j2', 'j3')")

    assert all("never executed" in line for line in idle.splitlines() if "Scan" in line and "chrono_execution" in line)
    assert len(store.superseded(ALL, 10)) == 3


def test_a_finished_job_that_is_cleared_away_leaves_no_void(sqlite_bench, past):  # noqa: F811
    job_id = sqlite_bench.add_job("j", finished_us=past)
    sqlite_bench.delete(job_id)
    assert sqlite_bench.store.pending_voids(10) == []
