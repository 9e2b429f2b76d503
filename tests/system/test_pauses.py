"""Processes that stand still for several leases, or go one after the other: nothing is lost, and only what must be runs twice."""
import signal
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from tests.system.systemkit import Site, eventually, longest

pytestmark = [pytest.mark.system, pytest.mark.redis, pytest.mark.postgres, pytest.mark.celery, pytest.mark.timeout(240)]

LEASE_SECONDS = 3.0
PAUSE_SECONDS = 3 * LEASE_SECONDS + 1
KILL_EVERY_SECONDS = 2.5
ROLES = "dispatch,record,audit,keep"


@pytest.fixture(scope="module")
def running(redis_server, postgres_server):
    site = Site(LEASE_SECONDS)
    yield site
    site.close()


@pytest.fixture
def site(running):
    yield running
    print(running.tails())
    for process in [*running.named("dispatcher"), *running.named("worker"), *running.named("reaper")]:
        process.signal_all(signal.SIGCONT)
        process.kill_all()


def test_inv06_a_worker_and_a_reaper_may_stand_still_for_three_leases(site):
    """The worker's parent is stopped while its children run on: what they had runs again elsewhere, under the same key, and
    what they report afterwards counts for nothing. One of two reapers is stopped as well: the other one does its work."""
    site.celery("dispatcher0", "chrono", "run", "--name", "dispatcher0", "--roles", ROLES)
    reapers = [site.celery(name, "chrono", "run", "--name", name, "--roles", "reap") for name in ("reaper1", "reaper2")]
    sleeper, other = site.start_worker("prefork", 3), site.start_worker("prefork", 3)
    for worker in (sleeper, other):
        worker.says(" ready.")
    for reaper in reapers:
        reaper.says("chrono_beat runs")
    jobs = site.intervals(1, 1, 2, task="shop.slow")

    eventually(lambda: any(worker_of(line) == sleeper.name for line in site.starts()), 20, what="both work")
    sleeper.signal(signal.SIGSTOP)
    reapers[0].signal(signal.SIGSTOP)
    stopped = time.time()
    time.sleep(PAUSE_SECONDS)
    meanwhile = [line for line in site.starts() if line["at"] > stopped + LEASE_SECONDS]
    assert meanwhile and {worker_of(line) for line in meanwhile} == {other.name}
    sleeper.signal(signal.SIGCONT)
    reapers[0].signal(signal.SIGCONT)
    woken = time.time()
    eventually(lambda: any(worker_of(line) == sleeper.name for line in site.starts() if line["at"] > woken), 20,
               what="the sleeper works again")

    until = time.time()
    site.ended(jobs, until, 60)
    rows = {row["id"]: row for row in site.rows(jobs) if row["due_at"].timestamp() <= until}
    site.ask("delete", ids=[job.id for job in jobs])
    assert {row["state"] for row in rows.values()} == {"succeeded"}
    made = Counter((str(row["job_id"]), round(row["scheduled_at"].timestamp() * 1e6)) for row in rows.values())
    assert made == Counter((job.id, instant) for job in jobs for instant in job.instants(until))
    lines = [line for line in site.starts() if line["execution_id"] in rows]
    again = {key: count for key, count in Counter(line["execution_id"] for line in lines).items() if count > 1}
    assert again, "what the sleeper had was run by the other one"
    assert set(again.values()) == {2}, "two reapers, one of which has slept, hand nothing out twice"
    for key in again:
        assert rows[key]["deliveries"] == 2
        assert rows[key]["worker"].startswith(other.name)
        assert len({line["key"] for line in lines if line["execution_id"] == key}) == 1
    refused = sleeper.told().count("refused")
    print(f"{len(rows)} executions, {len(again)} of them again elsewhere; {refused} late outcomes refused")
    assert refused


def test_r082_r109_five_dispatchers_of_which_one_after_the_other_dies_make_exactly_what_the_schedules_say(site):
    """In miniature: 20 jobs each second for a quarter of a minute and a one-off each second beside them, a kill each 2.5 s.
    So one-offs are followed by a kill after 1, 2 and 5 s, too."""
    site.start_worker("prefork", 4).says(" ready.")
    five = site.dispatchers(5)
    jobs = site.intervals(*[1] * 20)
    soon = datetime.now(UTC).replace(microsecond=0)
    for second in range(2, 16):
        jobs += site.one_offs(soon + timedelta(seconds=second), 1)

    for victim in five:
        time.sleep(KILL_EVERY_SECONDS)
        victim.kill()
        site.start_dispatcher()
    site.shared_by(site.named("dispatcher"))

    verdict = site.finish(jobs, 60)
    print(f"{len(verdict)} executions, five dispatchers killed; longest lateness {longest(verdict):.2f} s")
    assert len(verdict) > 20 * 5 * KILL_EVERY_SECONDS


def worker_of(line):
    return line["worker"].partition("@")[0]
