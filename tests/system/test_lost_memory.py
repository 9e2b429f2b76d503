"""Redis loses its memory under real work: nothing is lost, nothing runs twice, and work goes on after the quarantine."""
import time
from datetime import UTC, datetime, timedelta

import pytest
import redis

from chrono_beat.testing.patience import eventually

pytestmark = [pytest.mark.system, pytest.mark.redis, pytest.mark.postgres, pytest.mark.celery, pytest.mark.timeout(240)]

LEASE_SECONDS = 10.0                   # of the site's deliveries, and so of its quarantines
NOTICED_SECONDS = 10.0
BUSY = 50
BEHIND = 300


def in_seconds(seconds):
    return datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=seconds)


def tenant(site, slug, max_running):
    site.sql("INSERT INTO chrono_tenant (slug, max_running) VALUES (%s, %s) RETURNING slug", slug, max_running)
    return slug


def started(site, jobs):
    ids = {job.id for job in jobs}
    return [line for line in site.starts() if line["job_id"] in ids]


def test_inv04_r125_flushall_while_fifty_run_and_many_wait(site):
    """What runs is brought back by its worker and counts; what waited is published again; each runs once."""
    site.dispatchers(2)
    many = site.start_worker("threads", BUSY).says(" ready.")
    due = in_seconds(8)
    busy = site.one_offs(due, BUSY, task="shop.slow", kwargs={"seconds": 3 * LEASE_SECONDS}, tenant=tenant(site, "busy", BUSY))
    behind = site.one_offs(due, BEHIND, task="shop.report", tenant=tenant(site, "behind", 1))
    eventually(lambda: len(started(site, busy)) == BUSY, 30, what="fifty run")
    time.sleep(0.5)

    with redis.Redis.from_url(site.redis.url) as client:
        client.flushall()
    flushed = time.time()
    waiting = BEHIND - len(started(site, behind))
    assert waiting > 50
    site.ended([*busy, *behind], time.time(), 120)

    site.judge([*busy, *behind], time.time())
    again = min(line["at"] for line in started(site, behind) if line["at"] > flushed + 1)
    rows = site.rows(busy)
    print(f"flushed with {BUSY} running and {waiting} waiting: drawn again {again - flushed:.1f} s later, of which "
          f"{LEASE_SECONDS:.0f} s are the quarantine; the last of those running ended "
          f"{max(row['finished_at'].timestamp() for row in rows) - flushed:.1f} s after it")
    assert LEASE_SECONDS <= again - flushed < LEASE_SECONDS + NOTICED_SECONDS
    many.stop()


def test_r123_a_worker_that_idled_through_a_restart_of_redis_draws_again_at_once(site):
    """Nothing can be running, so there is no quarantine."""
    site.dispatchers(1)
    eventually(lambda: not site.sql("SELECT id FROM chrono_execution WHERE state = ANY(%s) AND due_at < now()",
                                    ["scheduled", "queued", "running"]), 30)

    site.redis.kill()
    time.sleep(1)
    site.redis.restart()
    back = time.time()
    jobs = site.one_offs(in_seconds(3), 5)
    eventually(lambda: len(started(site, jobs)) == 5, 30, what="all five run")

    took = max(line["at"] for line in started(site, jobs)) - back
    print(f"an idle worker drew again {took:.1f} s after the restart (the jobs were due after 3 s)")
    assert took < NOTICED_SECONDS
    site.finish(jobs)


def test_r123_a_busy_worker_survives_a_restart_of_redis(site):
    site.dispatchers(1)
    busy = site.one_offs(in_seconds(4), 3, task="shop.slow", kwargs={"seconds": 6.0})
    eventually(lambda: len(started(site, busy)) == 3, 30, what="three run")

    site.redis.kill()
    site.redis.restart()
    back = time.time()
    later = site.one_offs(in_seconds(2), 5)
    eventually(lambda: len(started(site, later)) == 5, 60, what="all five run")

    took = max(line["at"] for line in started(site, later)) - back
    print(f"a busy worker drew again {took:.1f} s after the restart")
    assert took < LEASE_SECONDS + NOTICED_SECONDS
    site.finish([*busy, *later])
