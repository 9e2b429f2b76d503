"""Retries on every pool: what a body asks for, what the job allows, and what is left in Redis afterwards."""
import pytest

from chrono_beat.core import ids
from chrono_beat.core.outcomes import decide_end
from chrono_beat.core.records import OpenExecution, RetryPolicy
from chrono_beat.redis.keys import Keys
from chrono_beat.testing.patience import eventually

pytestmark = pytest.mark.celery

AT_ONCE = RetryPolicy(3, True, 0.0, 1.0, 0.0, 0.0)
UNSAID = RetryPolicy(1, False, 0.0, 1.0, 0.0, 0.0)
ONCE = RetryPolicy(1, True, 0.0, 1.0, 0.0, 0.0)


def decided(eid, outcome, policy, retries):
    """Return what the recorder makes of an outcome: the row's end and its next attempt."""
    parts = ids.parse_execution_id(eid)
    row = OpenExecution(eid, parts.job_id, "acme", 0, parts.scheduled_us, parts.scheduled_us, parts.attempt, retries,
                        "running", 1, policy)
    ending, attempt, _ = decide_end(row, outcome, outcome.at_us, lambda: 0.5)
    return ending, attempt


def held_in_redis(site):
    """Return the keys that a lane has only while something waits or runs; markers of what has ended stay for a while."""
    keys = Keys(site.prefix)
    found = [key.decode() if isinstance(key, bytes) else key for key in site.redis.scan_iter(f"{site.prefix}*", count=1000)]
    return [key for key in found if keys.is_swept(0, key) and not key.startswith(keys.of(0, "x:"))]


@pytest.mark.parametrize(("way", "policy"), [("own", UNSAID), ("own", AT_ONCE), ("plain", AT_ONCE)])
def test_two_retries_under_forbid_end_well_and_leave_neither_lock_nor_slot(pool_site, way, policy):
    """R151: every attempt has the occurrence's key, and a count that grows."""
    job = f"lucky-{pool_site.workers[0].pool}-{way}-{policy.max_attempts}"
    scheduled_us = pool_site.queue.now_us() // 1_000_000 * 1_000_000
    states, retries, number = [], 0, 1
    while number:
        eid = pool_site.publish("third_time_lucky", way, job=job, attempt=number, retries=retries, scheduled_us=scheduled_us,
                                kind="retry" if retries else "schedule")
        outcome = pool_site.ending(eid)
        ending, attempt = (None, None) if outcome.event == "succeeded" else decided(eid, outcome, policy, retries)
        states.append(ending.state if ending else outcome.event)
        number, retries = (attempt.attempt, attempt.retries) if attempt else (0, retries)

    assert states == ["failed", "failed", "succeeded"]
    tries = [note for note in pool_site.journal("try") if note["key"] == ids.occurrence_key(job, scheduled_us)]
    assert [(note["retries"], note["attempt"]) for note in tries] == [(0, 1), (1, 2), (2, 3)]
    pool_site.outcomes()
    eventually(lambda: not held_in_redis(pool_site), 5, what="a lane in which nothing waits or runs")


@pytest.mark.parametrize(("task", "arguments"), [("again", [0]), ("auto", [])])
def test_one_attempt_ends_the_tasks_own_retries_only_where_the_job_says_so(pool_site, task, arguments):
    """``Retry(max_attempts=1)`` is "no automatic retry", also for ``self.retry()`` and ``autoretry_for``."""
    eid = pool_site.publish(task, *arguments)
    outcome = pool_site.ending(eid)

    ending, attempt = decided(eid, outcome, ONCE, 0)
    assert (outcome.event, ending.state, ending.reason, attempt) == ("retry", "dead", "error", None)
    ending, attempt = decided(eid, outcome, UNSAID, 0)
    assert (ending.state, attempt.attempt) == ("failed", 2)
