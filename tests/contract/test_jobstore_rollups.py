"""What every JobStore adds to the minutes of tenants when outcomes are recorded: once, whatever is repeated."""
from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from chrono_beat.core.errors import StoreUnavailable
from chrono_beat.core.records import Ending, Start
from chrono_beat.core.rollup import histogram, percentile
from chrono_beat_django import figures

SECOND = 1_000_000
MINUTE = 60 * SECOND
NOON = 1_767_355_200 * SECOND


def ending(key: str, state: str = "succeeded", at_us: int = NOON + 30 * SECOND, deliveries: int = 1) -> Ending:
    return Ending(key, state, "", at_us, "w1", deliveries, "")


@pytest.fixture
def key(bench) -> str:
    """An execution of the tenant acme, due at noon."""
    bench.add_tenant("acme")
    return bench.add_execution(bench.add_job("late", tenant="acme"), NOON)


def test_a_run_counts_in_the_minutes_in_which_it_started_and_ended(bench, store, key):
    store.mark_queued([(key, NOON + 5 * SECOND)])
    store.record([Start(key, NOON + 20 * SECOND, "w1", 1)], [], [])
    store.record([], [ending(key, at_us=NOON + 80 * SECOND, deliveries=3)], [])

    nothing = dict.fromkeys(("failed", "dead", "skipped", "cancelled", "expired", "missed"), 0)
    assert bench.rollups() == {
        ("acme", NOON): {
            "started": 1, "succeeded": 0, **nothing, "deliveries": 0, "duplicates": 0, "lateness_max_us": 20 * SECOND,
            "lateness": histogram([20 * SECOND]), "publish_lateness": "", "duration": "", "capped_us": 0, "reaps": 0},
        ("acme", NOON + MINUTE): {
            "started": 0, "succeeded": 1, **nothing, "deliveries": 3, "duplicates": 2, "lateness_max_us": 0,
            "lateness": "", "publish_lateness": histogram([5 * SECOND]), "duration": histogram([60 * SECOND]),
            "capped_us": 0, "reaps": 0},
    }


def test_what_is_recorded_twice_counts_once(bench, store, key):
    for _ in range(2):
        store.record([Start(key, NOON + SECOND, "w1", 1)], [ending(key)], [])
    once = bench.rollups()

    store.record([Start(key, NOON + 2 * SECOND, "w2", 2)], [ending(key, "dead")], [])

    assert bench.rollups() == once
    assert (once["acme", NOON]["started"], once["acme", NOON]["succeeded"]) == (1, 1)


def test_only_the_first_start_of_an_execution_counts(bench, store, key):
    first = store.record([Start(key, NOON + SECOND, "w1", 1), Start(key, NOON + 9 * SECOND, "w2", 2)], [], [])
    second = store.record([Start(key, NOON + 40 * SECOND, "w3", 3)], [], [])

    minute = bench.rollups()["acme", NOON]
    assert (minute["started"], minute["lateness"]) == (1, histogram([SECOND]))
    assert (first.started, second.started) == ([("acme", SECOND)], [])
    assert bench.rows()[0].deliveries == 3


def test_a_tenants_minute_adds_up_over_many_transactions_and_stays_short(bench, store):
    job = bench.add_job("many", concurrency="allow")
    for number in range(1_200):
        key = bench.add_execution(job, NOON + number)
        if number % 100 == 0:
            keys = []
        keys.append((key, NOON + number + (number + 1) * 40_000))
        if number % 100 == 99:
            store.record([Start(key, at_us, "w", 1) for key, at_us in keys], [ending(key) for key, _ in keys], [])

    minute = bench.rollups()["default", NOON]
    assert (minute["started"], minute["succeeded"]) == (1_200, 1_200)
    assert percentile(minute["lateness"], 0.5) == pytest.approx(24 * SECOND, rel=0.021)


def test_minutes_of_different_tenants_stay_apart(bench, store, key):
    bench.add_tenant("other")
    theirs = bench.add_execution(bench.add_job("theirs", tenant="other"), NOON)

    store.record([], [ending(key, "skipped", deliveries=0), ending(theirs, "expired", deliveries=0)], [])

    found = bench.rollups()
    assert found["acme", NOON]["skipped"] == found["other", NOON]["expired"] == 1
    assert found["acme", NOON]["expired"] == found["other", NOON]["skipped"] == 0


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_transaction_that_breaks_off_counts_nothing_and_its_repetition_all(bench, store, key, when):
    broken = 0
    for step in range(1, 12):
        try:
            with bench.fault(step, when=when):
                store.record([Start(key, NOON + SECOND, "w1", 1)], [ending(key)], [])
        except StoreUnavailable:
            broken += 1

    store.record([Start(key, NOON + SECOND, "w1", 1)], [ending(key)], [])

    minute = bench.rollups()["acme", NOON]
    assert broken and (minute["started"], minute["succeeded"]) == (1, 1)


def test_time_spent_capped_is_added_to_the_minutes_it_lies_in(bench, store, key):
    store.add_capped([("acme", NOON, 20 * SECOND), ("acme", NOON + MINUTE, 5 * SECOND)])
    store.record([Start(key, NOON + 20 * SECOND, "w1", 1)], [], [])
    store.add_capped([("acme", NOON, 7 * SECOND)])

    found = bench.rollups()
    assert [(found["acme", at]["capped_us"], found["acme", at]["started"]) for at in (NOON, NOON + MINUTE)] == [
        (27 * SECOND, 1), (5 * SECOND, 0)]


def test_inv10_reaps_are_added_to_the_minutes_of_their_tenants_and_read_with_their_loads(bench, store):
    hour_ago = NOON - 20 * MINUTE
    store.add_reaps([("acme", NOON - MINUTE, 2), ("acme", hour_ago, 7), ("globex", NOON - MINUTE, 1)])
    store.add_reaps([("acme", NOON - MINUTE, 3)])

    assert {key: row["reaps"] for key, row in bench.rollups().items()} == {
        ("acme", NOON - MINUTE): 5, ("acme", hour_ago): 7, ("globex", NOON - MINUTE): 1}
    assert [(load.tenant, load.recent.reaps, load.usual.reaps) for load in store.loads(NOON)] == [
        ("acme", 5, 7), ("globex", 1, 0)]


@pytest.mark.parametrize("engine", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_what_was_recorded_is_read_as_figures_on_each_engine(engine, request, monkeypatch):
    bench = request.getfixturevalue(f"{engine}_bench")
    monkeypatch.setattr("chrono_beat_django.store.definitions.alias", lambda: bench.alias)
    bench.add_tenant("acme")
    job = bench.add_job("late", tenant="acme", concurrency="allow")
    for number in range(3):
        key = bench.add_execution(job, NOON + number)
        bench.store.record([Start(key, NOON + (number * 60 + 20) * SECOND, "w1", 1)], [ending(key)], [])
    start, end = (datetime.fromtimestamp(us / 1e6, UTC) for us in (NOON, NOON + 60 * MINUTE))

    found, (worst,), points = figures.of("acme", start, end), figures.worst(start, end), figures.series(None, start, end)

    assert (found.started, found.succeeded, worst.tenant, worst.lateness) == (3, 3, "acme", found.lateness)
    assert found.lateness.p50 == pytest.approx(80, rel=0.021)
    assert [(point.start.minute, point.started) for point in points] == [(0, 1), (1, 1), (2, 1)]


DAY = 24 * 60 * MINUTE
MONTH = 30 * DAY


def fill(store, minutes, *, tenant="acme", spent=SECOND):
    store.add_capped([(tenant, NOON + minute * MINUTE, spent) for minute in minutes])


def capped(bench, span):
    return {start_us: row["capped_us"] for (_, start_us), row in bench.rollups(span).items()}


def test_minutes_become_hours_after_two_days_and_hours_days_after_the_retention(bench, store, key):
    store.record([Start(key, NOON + 20 * SECOND, "w1", 1)], [ending(key, at_us=NOON + 80 * SECOND, deliveries=3)], [])
    fill(store, [0, 59, 60])

    assert store.merge_rollups(NOON + 2 * DAY + 59 * MINUTE, MONTH, 100) == 0
    assert store.merge_rollups(NOON + 2 * DAY + 60 * MINUTE, MONTH, 100) == 3
    assert capped(bench, "minute") == {NOON + 60 * MINUTE: SECOND}
    hour = bench.rollups("hour")["acme", NOON]
    assert (hour["started"], hour["succeeded"], hour["duplicates"], hour["capped_us"]) == (1, 1, 2, 2 * SECOND)
    assert (hour["lateness_max_us"], hour["lateness"], hour["duration"]) == (
        20 * SECOND, histogram([20 * SECOND]), histogram([60 * SECOND]))

    store.merge_rollups(NOON + MONTH + 2 * DAY, MONTH, 100)
    store.merge_rollups(NOON + MONTH + 2 * DAY, MONTH, 100)

    assert (bench.rollups("minute"), bench.rollups("hour")) == ({}, {})
    day = bench.rollups("day")["acme", NOON - NOON % DAY]
    assert (day["started"], day["capped_us"], day["lateness"]) == (1, 3 * SECOND, histogram([20 * SECOND]))
    assert store.merge_rollups(NOON + 900 * DAY, MONTH, 100) == 0


def test_merging_goes_in_batches_and_adds_to_the_hour_that_is_there(bench, store):
    fill(store, range(60))

    merged = [store.merge_rollups(NOON + 3 * DAY, MONTH, 25) for _ in range(4)]

    assert merged == [25, 25, 10, 0]
    assert capped(bench, "hour") == {NOON: 60 * SECOND}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_merge_that_breaks_off_at_any_statement_loses_and_doubles_nothing(bench, store, when):
    fill(store, range(10))

    for step in range(1, 6):
        try:
            with bench.fault(step, when=when):
                store.merge_rollups(NOON + 3 * DAY, MONTH, 2)
        except StoreUnavailable:
            pass
        assert sum(capped(bench, "minute").values()) + sum(capped(bench, "hour").values()) == 10 * SECOND

    while store.merge_rollups(NOON + 3 * DAY, MONTH, 2):
        pass
    assert capped(bench, "hour") == {NOON: 10 * SECOND}


def test_loads_are_the_last_five_minutes_and_the_hour_before(bench, store, key):
    bench.add_tenant("acme", lateness_objective_seconds=2.5)
    store.record([Start(key, NOON + 20 * SECOND, "w1", 1)], [ending(key, deliveries=3)], [])
    fill(store, [0, -1, -61], tenant="quiet")

    now_us = NOON + 5 * MINUTE + 30 * SECOND
    acme, quiet = store.loads(now_us)
    (later, _) = store.loads(now_us + MINUTE)

    assert (acme.tenant, acme.objective_us, quiet.tenant, quiet.objective_us) == ("acme", 2_500_000, "quiet", None)
    assert acme.recent == later.usual == type(acme.recent)(1, 3, 2, histogram([20 * SECOND]))
    assert (acme.usual, later.recent) == (type(acme.recent)(), type(acme.recent)())
    assert store.loads(NOON + 2 * DAY) == []


@pytest.mark.postgres
def test_recorders_at_the_same_time_count_exactly_and_wait_for_each_other_in_no_circle(postgres_bench):
    bench = postgres_bench
    keys = []
    for number in range(12):
        bench.add_tenant(f"t-{number}")
        job = bench.add_job("j", tenant=f"t-{number}", concurrency="allow")
        keys += [bench.add_execution(job, NOON + step) for step in range(8)]

    def record(own):
        try:
            for first in range(0, len(own), 12):
                part = own[first:first + 12]
                bench.store.record([Start(key, NOON + SECOND, "w", 1) for key in part], [ending(key) for key in part], [])
        finally:
            bench.connection.close()

    # Each takes every fourth row, so that all of them add to the minutes of all tenants, in different orders.
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(record, keys[offset::4][::1 - 2 * (offset % 2)]) for offset in range(4)]:
            done.result()

    assert [(row["started"], row["succeeded"]) for row in bench.rollups().values()] == [(8, 8)] * 12
