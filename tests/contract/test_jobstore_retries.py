"""What every JobStore promises about retries: their kind, and that a tenant's may be held back."""
from __future__ import annotations

import pytest

from chrono_beat.core.records import Claim, Ending, NewAttempt, Occurrence

SECOND = 1_000_000
MINUTE = 60 * SECOND
ALL = list(range(8))


@pytest.fixture
def past(store) -> int:
    """A whole second, one minute ago."""
    return store.now_us() // SECOND * SECOND - MINUTE


@pytest.fixture
def epochs(store) -> dict[int, int]:
    """All partitions, taken by the member "a"."""
    return store.take_partitions("a", ALL, 600 * SECOND)


def ending(key: str, state: str, at_us: int = 1_767_344_460_000_000) -> Ending:
    return Ending(key, state, "" if state == "succeeded" else "error", at_us, "w1", 1, "")


@pytest.mark.parametrize(("kind", "following"), [
    ("schedule", "retry"), ("manual", "retry"), ("retry", "retry"), ("backfill", "backfill"), ("replay", "replay")])
def test_what_was_asked_for_keeps_its_kind_in_its_next_attempts(bench, store, past, kind, following):
    """R151: number, count and due time are the attempt's own; the rest is the occurrence's."""
    key = bench.add_execution(bench.add_job("job"), past, kind=kind, attempt=4)
    bench.set_row(key, args="[7]", first_due_us=past - MINUTE)

    store.record([], [ending(key, "failed")], [NewAttempt(key, 5, 1, past + 30 * SECOND)])

    first, second = bench.rows()
    assert (second.kind, second.attempt, second.retries, second.due_us) == (following, 5, 1, past + 30 * SECOND)
    for same in ("scheduled_us", "first_due_us", "job_version", "args", "kwargs", "tenant", "partition"):
        assert getattr(second, same) == getattr(first, same)


def test_a_claim_leaves_a_backfill_of_the_same_instant_alone(bench, store, past, epochs):
    """It is open and will run by itself: the claim must neither run it twice nor call it missed."""
    job_id = bench.add_job("job", next_run_us=past)
    key = bench.add_execution(job_id, past, kind="backfill")
    [job] = store.due_jobs(ALL, store.now_us(), 10)

    claimed = store.claim("a", [Claim(
        job_id, job.partition, job.version, past, epochs[job.partition], past + 3 * MINUTE,
        [Occurrence(past, past, "missed", 3, past - 2 * MINUTE), Occurrence(past + MINUTE, past + MINUTE)], job.content)])

    assert [row.scheduled_us for row in claimed] == [past + MINUTE]
    first, second = bench.rows()
    assert (first.execution_id, first.kind, first.state, first.holder_epoch) == (key, "backfill", "scheduled", 0)
    assert (second.kind, second.state) == ("schedule", "scheduled")


# -- holding back -----------------------------------------------------------------------------------------------------

WINDOW, HOLD = 300 * SECOND, 300 * SECOND


@pytest.fixture
def failing(bench, store):
    """A tenant that holds at three quarters, and a job of it; a function adds ended runs."""
    bench.add_tenant("acme", failure_threshold=0.75)
    job_id = bench.add_job("job", tenant="acme")
    count = iter(range(1, 10_000))
    begun = store.now_us() // SECOND * SECOND - 86_400 * SECOND

    def end(state, times, after_us=SECOND):
        for _ in range(times):
            key = bench.add_execution(job_id, begun + next(count) * SECOND)
            store.record([], [ending(key, state, store.now_us() + after_us)], [])

    end.job_id = job_id
    return end


def hold(store, minimum=20):
    return store.hold_retries(WINDOW, minimum, HOLD)


def test_retries_are_held_back_from_the_threshold_on_and_once(store, failing):
    failing("succeeded", 5)
    failing("failed", 10)
    failing("dead", 4)
    assert hold(store) == ([], [])                                    # 14 of 19: too few to mean something
    failing("dead", 1)

    [(tenant, failed, ended, until_us)], released = hold(store)

    assert (tenant, failed, ended, released) == ("acme", 15, 20, [])
    assert abs(until_us - store.now_us() - HOLD) < 60 * SECOND
    assert hold(store) == ([], [])


@pytest.mark.parametrize(("states", "threshold"), [
    ({"succeeded": 6, "failed": 14}, 0.75), ({"succeeded": 20}, 0.0), ({"failed": 30}, None), ({"missed": 30}, 0.5)])
def test_retries_go_on_below_the_threshold(bench, store, failing, states, threshold):
    bench.add_tenant("acme", failure_threshold=threshold)
    for state, times in states.items():
        failing(state, times)

    assert hold(store) == ([], [])


def test_what_ended_before_the_window_or_the_tenants_last_change_does_not_count(bench, store, failing):
    failing("failed", 30, after_us=-2 * WINDOW)
    assert hold(store) == ([], [])
    failing("failed", 30, after_us=-SECOND)

    bench.add_tenant("acme", failure_threshold=0.75, weight=2)

    assert hold(store) == ([], [])


def test_a_hold_that_is_over_is_released_once_and_failures_are_counted_anew(bench, store, failing, past):
    failing("failed", 30, after_us=-SECOND)
    bench.add_tenant("acme", failure_threshold=0.75, retries_paused_until_us=past)

    assert hold(store) == ([], ["acme"])
    assert hold(store) == ([], [])
    failing("failed", 20)
    assert [held.tenant for held in hold(store)[0]] == ["acme"]


def test_while_a_tenant_is_held_only_its_retries_stay_where_they_are(bench, store, failing, past, epochs):
    bench.add_tenant("acme", retries_paused_until_us=store.now_us() + HOLD)
    others = bench.add_job("others")
    for number, kind in enumerate(("manual", "backfill", "replay", "retry")):
        bench.add_execution(failing.job_id, past + number, kind=kind)
    bench.add_execution(others, past, kind="retry")

    loaded = store.load_scheduled(epochs, store.now_us(), 100)

    assert sorted(row.kind for row in loaded) == ["backfill", "manual", "replay", "retry"]
    assert [row.job_id for row in loaded if row.kind == "retry"] == [others]
    bench.add_tenant("acme", retries_paused_until_us=None)                # by hand
    assert [row.kind for row in store.load_scheduled(epochs, store.now_us(), 100)] == ["retry"]


def test_retries_that_a_dead_dispatcher_held_wait_as_well(bench, store, failing, past, epochs):
    key = bench.add_execution(failing.job_id, past, kind="retry")
    assert store.load_scheduled(epochs, store.now_us(), 100)
    store.release_partitions("a", epochs)
    later = store.take_partitions("b", ALL, 600 * SECOND)

    bench.add_tenant("acme", retries_paused_until_us=store.now_us() + HOLD)
    assert store.load_scheduled(later, store.now_us(), 100) == []
    bench.add_tenant("acme", retries_paused_until_us=None)

    assert [row.execution_id for row in store.load_scheduled(later, store.now_us(), 100)] == [key]
