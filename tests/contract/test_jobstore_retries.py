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
