"""A move locks all jobs of a tenant; a claim locks some of them in another order."""
from __future__ import annotations

import threading

import pytest
from django.db import OperationalError, connections

from chrono_beat.testing.patience import eventually
from chrono_beat_django import tenant_limits
from chrono_beat_django.models import Job, Tenant
from chrono_beat_django.store import definitions

ADVANCE = "UPDATE chrono_job SET next_run_at = clock_timestamp() + interval '1 hour' WHERE id = %s"
BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.mark.postgres
def test_a_move_that_was_ended_for_a_deadlock_with_a_claim_is_made_again(postgres_bench, monkeypatch):
    """The claim has the later job and wants the earlier one; the move's connection looks for deadlocks first, so it is the
    one that the server ends. Where this machine is too slow for that the claim is ended, which the store repeats."""
    alias = postgres_bench.alias
    monkeypatch.setattr(definitions, "alias", lambda: alias)
    monkeypatch.setattr(tenant_limits, "_tell_moved", lambda slug: None)
    postgres_bench.add_tenant("acme")
    low, high = sorted(postgres_bench.add_job(name, tenant="acme") for name in "ab")
    has_one, done, ended = threading.Event(), threading.Event(), []

    def claim():
        connection = connections[alias]
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET deadlock_timeout = '20s'")
                cursor.execute("BEGIN")
                cursor.execute(ADVANCE, [high])
                has_one.set()
                eventually(lambda: cursor.execute(BLOCKED).fetchone()[0], 20, what="the move waits for the claim")
                cursor.execute(ADVANCE, [low])
                cursor.execute("COMMIT")
        except OperationalError as error:
            ended.append(error)
        finally:
            connection.close()
            done.set()

    thread = threading.Thread(target=claim)
    thread.start()
    assert has_one.wait(20)
    postgres_bench.execute("SET deadlock_timeout = '1500ms'")
    try:
        tenant_limits.update("acme", pool="chrono.gold")
    finally:
        postgres_bench.execute("RESET deadlock_timeout")
        thread.join(30)

    assert done.is_set()
    assert Tenant.objects.using(alias).get(slug="acme").pool == "chrono.gold"
    assert set(Job.objects.using(alias).values_list("version", flat=True)) == {2}
    assert len(ended) <= 1


@pytest.mark.postgres
def test_within_a_callers_transaction_a_deadlock_is_the_callers(postgres_bench, monkeypatch):
    """What the caller has done before is undone, too: only the caller can do it again."""
    monkeypatch.setattr(definitions, "alias", lambda: postgres_bench.alias)
    calls = []

    @definitions.repeated_after_deadlock
    def work():
        calls.append(1)
        error = OperationalError("deadlock detected")
        error.__cause__ = type("DeadlockDetected", (Exception,), {"sqlstate": "40P01"})()
        raise error

    with pytest.raises(OperationalError):
        work()
    assert len(calls) == definitions.ATTEMPTS

    connection = connections[postgres_bench.alias]
    monkeypatch.setattr(connection, "in_atomic_block", True)
    with pytest.raises(OperationalError):
        work()
    assert len(calls) == definitions.ATTEMPTS + 1
