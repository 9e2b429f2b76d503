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
