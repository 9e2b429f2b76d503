"""Several dispatchers at once, and what becomes of the occurrences when one of them, Redis or the database goes away.

Real processes throughout. Each test judges from the rows and from the workers' own log: every instant that a schedule
names has its row, every row ran exactly once, none early.
"""
import signal
import time
from datetime import UTC, datetime, timedelta

import pytest

from chrono_beat.core import ids
from chrono_beat.testing.patience import eventually
from tests.system.systemkit import PARTITIONS, longest

pytestmark = [pytest.mark.system, pytest.mark.redis, pytest.mark.postgres, pytest.mark.celery, pytest.mark.timeout(180)]

LEASE_SECONDS = 5.0
SLACK_SECONDS = 4.0                    # for a machine with more to do than these tests
HANDOVER_SECONDS = 2.0


def in_seconds(seconds):
    return datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=seconds)


def test_members_share_the_partitions_and_a_third_takes_its_share(site):
    two = site.dispatchers(2)
    assert sum(site.owners().values()) == PARTITIONS
    jobs = [*site.intervals(2, 2, 3), *site.one_offs(in_seconds(7), 20)]
    time.sleep(3)

    site.dispatchers(3)
    joined = time.time()
    assert {*site.owners()} > {process.name for process in two}
    eventually(lambda: time.time() > joined + 4, 6)

    verdict = site.finish(jobs)
    print(f"longest lateness while a third joined: {longest(verdict):.3f} s")
    assert longest(verdict) < HANDOVER_SECONDS


def test_a_killed_one_is_replaced_within_its_lease_and_all_overdue_is_found(site):
    """R104, R112: it dies with claims committed and nothing published, three seconds before they are due."""
    victim, other = site.dispatchers(2)
    jobs = [*site.intervals(2, 2, 3), *site.one_offs(in_seconds(8), 20)]
    time.sleep(5)

    victim.kill()
    killed = time.time()
    site.shared_by([other], LEASE_SECONDS + SLACK_SECONDS)
    took = time.time() - killed
    eventually(lambda: time.time() > killed + took + 3, 10)

    verdict = site.finish(jobs)
    print(f"taken over {took:.2f} s after the kill, longest lateness {longest(verdict):.2f} s")
    assert longest(verdict) < LEASE_SECONDS + SLACK_SECONDS


def test_one_that_is_asked_to_end_hands_over_without_a_gap(site):
    """R104, by TERM."""
    leaver, other = site.dispatchers(2)
    jobs = [*site.intervals(2, 2, 3), *site.one_offs(in_seconds(7), 20)]
    time.sleep(5)

    asked = time.time()
    assert leaver.stop() == 0
    took = time.time() - asked
    assert {*site.owners()} == {other.name}
    eventually(lambda: time.time() > asked + took + 3, 10)

    verdict = site.finish(jobs)
    print(f"handed over in {took:.2f} s, longest lateness {longest(verdict):.3f} s")
    assert longest(verdict) < HANDOVER_SECONDS


def test_one_that_was_paused_for_longer_than_its_lease_does_no_harm_when_it_wakes(site):
    """R098, R107: it holds claimed occurrences in memory, and for all it knows the time of its lease has not passed; the
    pause is three leases long, in place of ninety seconds."""
    sleeper, other = site.dispatchers(2)
    jobs = [*site.intervals(2, 2, 3), *site.one_offs(in_seconds(10), 50)]
    time.sleep(3)

    sleeper.signal(signal.SIGSTOP)
    stopped = time.time()
    site.shared_by([other], LEASE_SECONDS + SLACK_SECONDS)
    took = time.time() - stopped
    eventually(lambda: time.time() > stopped + 15, 20)
    before = {row["id"]: row for row in site.rows(jobs) if row["finished_at"]}
    epochs = {row["number"]: row["epoch"] for row in site.sql("SELECT number, epoch FROM chrono_partition")}
    sleeper.signal(signal.SIGCONT)
    site.shared_by([sleeper, other], 15)
    eventually(lambda: time.time() > stopped + 20, 10)

    verdict = site.finish(jobs)
    after = {row["id"]: row for row in site.rows(jobs)}
    assert {key: after[key] for key in before} == before, "what had ended stays as it was"
    now = {row["number"]: row["epoch"] for row in site.sql("SELECT number, epoch FROM chrono_partition")}
    assert all(now[number] >= epoch for number, epoch in epochs.items())
    assert sleeper.alive
    print(f"taken over {took:.2f} s after the pause, longest lateness {longest(verdict):.2f} s")
    assert longest(verdict) < LEASE_SECONDS + SLACK_SECONDS


def test_a_thousand_at_one_instant_run_beside_rows_that_make_no_sense(site):
    """R118, with twice its second for a machine that has more to do."""
    site.dispatchers(2)
    jobs = site.one_offs_by_sql(in_seconds(12), 1000)
    due = jobs[0].first
    broken = {
        "wrong expression": {"schedule_kind": "cron", "expression": "61 25 * * *", "args": "[]"},
        "never comes": {"schedule_kind": "cron", "expression": "0 0 31 4 *", "args": "[]"},
        "wrong zone": {"schedule_kind": "cron", "expression": "* * * * *", "timezone": "UTC+3x", "args": "[]"},
        "broken arguments": {"schedule_kind": "interval", "expression": "1", "args": "[1,"},
    }
    for name, columns in broken.items():
        job_id = ids.new_job_id(time.time_ns() // 1000, 0)
        row = {"id": job_id, "tenant": "default", "name": name, "task": "shop.clean_up",
               "partition": ids.partition_of("default", job_id, PARTITIONS), **columns}
        site.sql(f"INSERT INTO chrono_job ({', '.join(row)}) VALUES ({', '.join(['%s'] * len(row))})", *row.values())
    with_reason = "SELECT name, quarantined_reason, next_run_at FROM chrono_job WHERE quarantined_reason <> ''"
    found = eventually(lambda: len(rows := site.sql(with_reason)) >= len(broken) and rows, 20, what="quarantined rows")
    assert {row["name"] for row in found} == {*broken}
    assert all(row["next_run_at"] is None for row in found)
    print({row["name"]: row["quarantined_reason"] for row in found})

    site.ended(jobs, due, max(due - time.time(), 0) + 60)

    verdict = site.judge(jobs, due)
    published = [row["published_at"].timestamp() - due for row in site.rows(jobs)]
    print(f"1,000 at once: last published after {max(published):.3f} s, last started after {longest(verdict):.2f} s")
    assert max(published) < HANDOVER_SECONDS
    names = {line["job"] for line in site.starts()}
    assert not names & {*broken}
    site.sql("DELETE FROM chrono_job WHERE quarantined_reason <> ''")


def test_redis_may_be_gone_for_a_while(site):
    """Nothing runs meanwhile; afterwards everything does, once, and late by what the outage and the lease demand."""
    site.dispatchers(2)
    jobs = [*site.intervals(4, 4), *site.one_offs(in_seconds(8), 10)]
    time.sleep(5)

    site.redis.kill()
    killed = time.time()
    eventually(lambda: time.time() > killed + 5, 6)
    site.redis.restart()
    back = time.time()
    during = [job for job in jobs if job.every is None]
    site.ended(during, back, 60)

    verdict = site.finish(jobs, 60)
    print(f"longest lateness with Redis gone for {back - killed:.1f} s: {longest(verdict):.2f} s")
    assert len(site.sql("SELECT number FROM chrono_lane")) == 1


def test_the_database_may_be_restarted(site):
    two = site.dispatchers(2)
    jobs = [*site.intervals(2, 3), *site.one_offs(in_seconds(8), 20)]
    time.sleep(5)

    site.postgres.restart()
    back = time.time()
    site.shared_by(two, 30)
    eventually(lambda: time.time() > back + 8, 40)

    # A body that ends while the database is away cannot store its result there; Celery counts it as failed.
    verdict = site.finish(jobs, forgive="OperationalError")
    print(f"longest lateness with the database restarted: {longest(verdict):.2f} s")
    assert longest(verdict) < 30
    assert all(process.alive for process in two)
