"""PostgreSQL or Redis gone for long, connections that break in the middle: work goes on by itself soon after."""
import threading
import time

import psycopg
import pytest

from benchmarks.site import DATABASE
from tests.system.systemkit import eventually

pytestmark = [pytest.mark.system, pytest.mark.redis, pytest.mark.postgres, pytest.mark.celery, pytest.mark.timeout(240)]

DATABASE_AWAY_SECONDS = 30.0
REDIS_AWAY_SECONDS = 15.0
BACK_WITHIN_SECONDS = 30.0
RATE = 100
"""Occurrences a second while Redis is away."""

GROWTH_MB = 50.0


class Cutter(threading.Thread):
    """Ends all connections to the database again and again, idle ones and those in the middle of a transaction."""

    def __init__(self, site, every_seconds):
        super().__init__(daemon=True)
        self._dsn, self._every, self._over = site.postgres.dsn_of("postgres"), every_seconds, threading.Event()
        self.cut = {"idle": 0, "in work": 0}
        self.start()

    def run(self):
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._over.wait(self._every):
                for state, _ in connection.execute(
                        "SELECT state, pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [DATABASE]):
                    self.cut["idle" if state == "idle" else "in work"] += 1

    def stop(self):
        self._over.set()
        self.join()


def bodies_begun(site, since):
    return [line for line in site.starts() if line["at"] > since]


def test_r114_r115_the_database_may_be_away_for_half_a_minute_and_then_break_connections_in_the_middle(site):
    """Dispatching goes on within 30 s, without a restart, and no claim is half done."""
    two = site.dispatchers(2)
    jobs = site.intervals(1, 1, 2, 3)
    time.sleep(3)

    site.postgres.kill()
    time.sleep(DATABASE_AWAY_SECONDS)
    site.postgres.restart()
    back = time.time()
    eventually(lambda: bodies_begun(site, back), BACK_WITHIN_SECONDS, what="something runs again")
    took = time.time() - back
    cutter = Cutter(site, 0.4)
    time.sleep(5)
    cutter.stop()
    healed = time.time()
    eventually(lambda: bodies_begun(site, healed), BACK_WITHIN_SECONDS, what="something runs after the last cut")
    site.shared_by(two, BACK_WITHIN_SECONDS)
    time.sleep(1)

    # Every instant of half a minute without a database has its run: these jobs ask for that.
    site.finish(jobs, 60, forgive="OperationalError")
    print(f"running again {took:.1f} s after the database was back; cut {cutter.cut}")
    assert took < BACK_WITHIN_SECONDS
    assert cutter.cut["idle"] and cutter.cut["in work"]
    assert all(process.alive for process in two)


def test_r132_a_hundred_occurrences_a_second_without_redis_pile_up_in_nobodys_memory(site):
    [dispatcher] = site.dispatchers(1)
    worker = site.named("worker")[0]
    site.ask("create", definitions=[
        {"name": f"each second, number {number}", "task": "shop.clean_up", "every": 1, "concurrency": "allow"}
        for number in range(RATE)])
    eventually(lambda: site.sql("SELECT count(*) AS rows FROM chrono_execution")[0]["rows"] > 30 * RATE, 30,
               what="they are claimed ahead")
    before = dispatcher.rss_mb(), worker.rss_mb()

    site.redis.kill()
    time.sleep(REDIS_AWAY_SECONDS)
    after = dispatcher.rss_mb(), worker.rss_mb()
    site.redis.restart()
    back = time.time()

    eventually(lambda: len(bodies_begun(site, back)) > RATE, 60, what="they run again")
    took = time.time() - back
    growth = [later - earlier for earlier, later in zip(before, after, strict=True)]
    print(f"{REDIS_AWAY_SECONDS * RATE:.0f} occurrences while Redis was away: the dispatcher grew by {growth[0]:.1f} MB from "
          f"{before[0]:.0f}, the worker by {growth[1]:.1f} MB from {before[1]:.0f}; {RATE} ran within {took:.1f} s of its return")
    assert max(growth) < GROWTH_MB
    assert dispatcher.alive and worker.alive
