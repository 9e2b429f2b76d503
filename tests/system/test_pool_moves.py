"""A tenant that goes from pool to pool and back under load, with a worker for each."""
import time
from datetime import UTC, datetime, timedelta

import pytest

from tests.system.systemkit import eventually

pytestmark = [pytest.mark.system, pytest.mark.redis, pytest.mark.postgres, pytest.mark.celery, pytest.mark.timeout(180)]

POOLS = ("chrono.gold", "")
MOVES = 6
SECONDS_APART = 1.5


def test_inv02_inv03_a_tenant_moved_to_and_fro_under_load_runs_everything_once(site):
    """More is due than the workers get done at once, so there is work in streams and wheels at each move. By SQL, so that
    the database's own trigger is what moves it."""
    site.dispatchers(1)
    site.celery("gold", "worker", "-Q", "chrono.gold", "-c", "2", "-l", "INFO", "-n", "gold@%h", "--without-gossip",
                "--without-mingle", "--without-heartbeat").says(" ready.")
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=3)
    jobs = [*site.one_offs(at, 300), *site.intervals(1, 1, 1)]
    eventually(lambda: site.starts(), 30, what="the first one begins")

    for move in range(MOVES):
        site.sql("UPDATE chrono_tenant SET pool = %s WHERE slug = 'default'", POOLS[move % 2])
        time.sleep(SECONDS_APART)
    until = time.time()
    site.ended(jobs, until, 60)
    site.ask("delete", ids=[job.id for job in jobs[300:]])

    rows = {row["id"]: row for row in site.rows(jobs) if row["scheduled_at"].timestamp() <= until}
    assert {row["state"] for row in rows.values()} == {"succeeded"}
    lines = [line["execution_id"] for line in site.starts() if line["execution_id"] in rows]
    assert sorted(lines) == sorted(rows), "each execution ran exactly once"
    assert len({row["worker"].partition("@")[0] for row in rows.values()}) == 2, "both have worked"
    site.sql("UPDATE chrono_tenant SET pool = '' WHERE slug = 'default'")
