"""What it costs to remove half of the executions while a dispatcher works: ``python -m benchmarks.retention --json``.

Executions of four days are kept for two. Whole days' tables are dropped; once more with one tenant that keeps its own for
longer, so that those of the others are deleted from the same tables. Meanwhile a dispatcher's statements, each on its own
connection, claim what falls due and mark it as queued. Whatever holds a lock too long shows in their longest time.
"""
from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import threading
import time
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

from benchmarks.machine import yardstick

RETENTION_US = 2 * 86_400_000_000
JOBS, EVERY_SECONDS = 1_000, 10
"""Jobs of the dispatcher, all of which fire so often."""

LOOK_SECONDS = 0.05
QUIET_SECONDS = 10
LONGER = "t001"
"""The tenant that keeps its executions for longer."""

MOST_LOCKED_SECONDS, MOST_MEGABYTES = 1.0, 100


class Dispatching(threading.Thread):
    """What a dispatcher asks of the database, over and over; `seconds` has how long each round took."""

    def __init__(self, store: Any, epochs: dict[int, int]) -> None:
        super().__init__(daemon=True)
        self.seconds: list[float] = []
        self.claimed = 0
        self._broken: Exception | None = None
        self._store, self._epochs, self._stopped = store, epochs, threading.Event()

    def run(self) -> None:
        """Claim what is due, and note it as published, until it is told to stop."""
        try:
            self._rounds()
        except Exception as error:
            self._broken = error

    def _rounds(self) -> None:
        from chrono_beat.core.policy import plan_claim

        store, numbers = self._store, sorted(self._epochs)
        while not self._stopped.wait(LOOK_SECONDS):
            began = time.perf_counter()
            now_us = store.now_us()
            due = store.due_jobs(numbers, now_us, 500)
            rows = store.claim("a", [plan_claim(job, now_us, now_us, self._epochs[job.partition]) for job in due])
            store.load_scheduled(self._epochs, now_us, 500)
            store.mark_queued([(row.execution_id, now_us) for row in rows])
            self.seconds.append(time.perf_counter() - began)
            self.claimed += len(rows)
        store.connection.close()

    def stop(self) -> dict[str, Any]:
        """End; return how long the rounds took. What broke it off is raised."""
        self._stopped.set()
        self.join()
        if self._broken:
            raise self._broken
        seconds = sorted(self.seconds)
        return {"rounds": len(seconds), "claimed": self.claimed, "median_s": round(seconds[len(seconds) // 2], 4),
                "p99_s": round(seconds[len(seconds) * 99 // 100], 4), "longest_s": round(seconds[-1], 4)}


def pruned(store: Any, epochs: dict[int, int]) -> dict[str, Any]:
    """Remove what is past retention as the keeper does, beside a dispatcher; return what that cost."""
    from chrono_beat.services.keeper import KEEP_LIMIT, PAUSE_US

    quiet = Dispatching(store, epochs)
    quiet.start()
    time.sleep(QUIET_SECONDS)
    before = quiet.stop()
    busy = Dispatching(store, epochs)
    busy.start()
    memory, began, steps = _megabytes(), time.perf_counter(), []
    removed = went = KEEP_LIMIT
    total = 0
    while went >= KEEP_LIMIT or removed:
        at = time.perf_counter()
        removed = went = store.keep(store.now_us(), RETENTION_US, KEEP_LIMIT)
        steps.append(time.perf_counter() - at)
        total += removed
        time.sleep(PAUSE_US / 1e6)
    took = time.perf_counter() - began
    time.sleep(1)
    return {"removed": total, "steps": len(steps), "took_s": round(took, 1), "longest_step_s": round(max(steps), 3),
            "more_megabytes": round(_megabytes() - memory, 1), "dispatcher_before": before, "dispatcher_beside": busy.stop()}


def _megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def prepared(jobs: int, executions: int, longer: bool) -> tuple[Any, dict[int, int]]:
    """Fill the migrated database; return the store and what its dispatcher owns."""
    from django.db import connection
    from django.utils.timezone import now

    from benchmarks.admin.load import load
    from chrono_beat_django.models import Job, Tenant
    from chrono_beat_django.store import DjangoJobStore

    load(jobs, executions)
    store = DjangoJobStore()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE chrono_execution SET state = 'succeeded', finished_at = due_at WHERE finished_at IS NULL")
        cursor.execute("UPDATE chrono_job SET next_run_at = NULL, paused = true")
        cursor.execute("DELETE FROM chrono_pending_void")
        cursor.execute("VACUUM ANALYZE chrono_job")
    if longer:
        Tenant.objects.filter(slug=LONGER).update(retention_days=30)
    partitions, _ = store.layout()
    Job.objects.bulk_create(
        Job(tenant="t000", name=f"fires {number}", task="t", schedule_kind="interval", expression=str(EVERY_SECONDS),
            anchor_at=now() + timedelta(seconds=number % EVERY_SECONDS), partition=number % partitions) for number in range(JOBS))
    return store, store.take_partitions("a", range(partitions), 3_600_000_000)


def main() -> None:
    """Measure and print; the last line is JSON, and the exit status says whether all is within bounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executions", type=int, default=2_000_000)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--json", action="store_true", help="print nothing but the last line")
    options = parser.parse_args()
    from chrono_beat.testing.servers import PostgresServer

    found: dict[str, Any] = {"executions": options.executions, "yardstick_ms": yardstick()}
    with ExitStack() as stack:
        server = stack.enter_context(PostgresServer(fsync=False, options={
            "shared_buffers": "512MB", "max_wal_size": "4GB", "jit": "off"}))
        databases = {name: server.create_database(name) for name in ("whole_days", "a_longer_tenant")}
        os.environ.update(BENCHMARK_DATABASE=json.dumps(databases["whole_days"]),
                          BENCHMARK_REDIS_URL="redis://127.0.0.1:1/0", DJANGO_SETTINGS_MODULE="benchmarks.admin.settings")
        import django
        from django.core.management import call_command
        from django.db import connections

        django.setup()
        for name, database in databases.items():
            connections.close_all()
            connections["default"].settings_dict["NAME"] = database["NAME"]
            call_command("migrate", verbosity=0)
            store, epochs = prepared(options.jobs, options.executions, longer=name == "a_longer_tenant")
            found[name] = pruned(store, epochs)
            if not options.json:
                print(name, found[name])
    found["beyond"] = [name for name in databases if found[name]["dispatcher_beside"]["longest_s"] > MOST_LOCKED_SECONDS
                       or found[name]["more_megabytes"] > MOST_MEGABYTES]
    print(json.dumps(found))
    sys.exit(bool(found["beyond"]))


if __name__ == "__main__":
    main()
