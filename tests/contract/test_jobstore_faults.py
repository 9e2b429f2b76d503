"""R106: a fault between any two statements: all or nothing is visible, the caller is told, and the next call works."""
from __future__ import annotations

from datetime import datetime

import pytest

from chrono_beat.core.errors import StoreUnavailable
from chrono_beat.core.ids import to_us
from chrono_beat.core.records import Claim, Ending, NewAttempt, Occurrence, Start

SECOND = 1_000_000
MINUTE = 60 * SECOND
ALL = list(range(8))
JOB = "01900000-0000-7000-8000-00000000000{}"


def prepare(bench):
    """Fill the store so that each operation has something to do; the same every time but for the clock.

    An operation returns what to call, and the instant that its rows are counted from.
    """
    bench.clean()
    store = bench.store
    now = store.now_us() // SECOND * SECOND
    epochs = store.take_partitions("a", ALL, 600 * SECOND)
    for number in range(4):
        bench.add_job(f"job {number}", job_id=JOB.format(number), next_run_us=now - MINUTE)

    def claims(occurrences=None, next_us=now):
        return [
            Claim(job.job_id, job.partition, job.version, job.next_run_us, epochs[job.partition], next_us,
                  occurrences or [Occurrence(job.next_run_us, job.next_run_us)], job.content)
            for job in store.due_jobs(ALL, now, 10)
        ]

    return now, epochs, claims


def claim_plain(bench):
    now, _, claims = prepare(bench)
    batch = claims()
    return (lambda: bench.store.claim("a", batch)), now


def claim_taking_over(bench):
    now, _, claims = prepare(bench)
    bench.store.claim("a", claims())
    for number in range(2):
        bench.edit(JOB.format(number), next_run_us=now - MINUTE)
    batch = claims()
    return (lambda: bench.store.claim("a", batch)), now


def claim_at_the_end(bench):
    now, _, claims = prepare(bench)
    batch = claims([Occurrence(now - MINUTE, now - MINUTE, "missed", 3, now - 3 * MINUTE)], None)
    return (lambda: bench.store.claim("a", batch)), now


def record(bench):
    now, _, claims = prepare(bench)
    keys = [row.execution_id for row in bench.store.claim("a", claims(next_us=None))]
    starts = [Start(key, now, "w", 1) for key in keys]
    endings = [Ending(keys[0], "succeeded", "", now, "w", 1, ""), Ending(keys[1], "failed", "error", now, "w", 1, "E")]
    guarded = Ending(keys[2], "skipped", "overlap", now, "", 0, "", if_version=1, if_generation=0)
    return (lambda: bench.store.record(starts[:2], [*endings, guarded], [NewAttempt(keys[1], 2, 1, now + MINUTE)])), now


def take(bench):
    now, *_ = prepare(bench)
    bench.pass_time(700 * SECOND)
    return (lambda: bench.store.take_partitions("b", ALL, 60 * SECOND)), now


def load(bench):
    now, _, claims = prepare(bench)
    bench.store.claim("a", claims())
    bench.add_execution(JOB.format(1), now - 5 * MINUTE)
    bench.pass_time(700 * SECOND)
    epochs = bench.store.take_partitions("b", ALL, 60 * SECOND)
    return (lambda: bench.store.load_scheduled(epochs, now, 100)), now


def quarantine(bench):
    now, *_ = prepare(bench)
    return (lambda: bench.store.quarantine(JOB.format(1), 1, "bad")), now


def raise_generation(bench):
    now, *_ = prepare(bench)
    return (lambda: bench.store.raise_generation(0, 0, "r")), now


OPERATIONS = [claim_plain, claim_taking_over, claim_at_the_end, record, take, load, quarantine, raise_generation]


def comparable(value, now):
    """Make snapshots of two runs comparable: instants count from the run's own now, and ids go without theirs."""
    if isinstance(value, dict):
        return {key: comparable(item, now) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(comparable(item, now) for item in value)
    if isinstance(value, datetime):
        return to_us(value) - now
    if isinstance(value, str) and value.startswith("01900000-") and ":" in value:
        return value.split(":")[0], value.split(":")[2]
    return value - now if isinstance(value, int) and value > 10**12 else value


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_r106_r115_a_fault_at_any_statement_shows_all_or_nothing_and_the_next_call_works(bench, operation, when):
    def begin():
        run, now = operation(bench)
        return run, lambda: comparable(bench.snapshot(), now)

    run, seen = begin()
    nothing = seen()
    run()
    everything = seen()
    assert everything != nothing

    told = []
    for number in range(1, 30):
        run, seen = begin()
        try:
            with bench.fault(number, when=when):
                run()
        except StoreUnavailable:
            told.append(number)
        assert seen() in (nothing, everything), f"half of it is visible after a fault at statement {number}"
        run()
        if number not in told:
            break
    assert told == list(range(1, number))
    assert told


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_fault_is_told_as_what_it_is(bench, when):
    with bench.fault(1, when=when), pytest.raises(StoreUnavailable, match="asked for"):
        bench.store.due_jobs(ALL, 0, 10)
    assert bench.store.due_jobs(ALL, 0, 10) == []
