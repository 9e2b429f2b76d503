"""The two sites that are flooded: one with chrono_beat, and beside it one FIFO queue of stock Celery for everybody."""
from __future__ import annotations

import json
import threading
import time
import uuid
from typing import Any

from celery import Celery
from redis import Redis

from benchmarks.fairness.app import WORK_SECONDS
from benchmarks.site import PARTITIONS, ROOT, Deployment, Process, lines_of
from chrono_beat.core import ids
from chrono_beat.testing.patience import eventually

PATIENCE_SECONDS = 300
COUNT_EVERY_SECONDS = 1.0                # each count reads many rows
QUEUE = "everybody"
BACKLOG_A_SLOT = 2
"""Tasks of the busy tenant that wait in the stock queue for each slot: none is ever idle, and no more stand in the way."""

JOB = """
INSERT INTO chrono_job (id, tenant, name, partition, schedule_kind, expression, anchor_at, task, concurrency, next_run_at)
VALUES (%s, %s, %s, %s, 'interval', %s, to_timestamp(%s), %s, 'allow', to_timestamp(%s))
"""
# Rows as a trigger or a backfill writes them: in nobody's wheel, found by the look-ahead within the minute before they
# are due.
EXECUTIONS = """
WITH given AS (SELECT %s::text AS job, %s::text AS tenant, %s::int AS partition, to_timestamp(%s) AS due)
INSERT INTO chrono_execution (id, job_id, tenant, job_name, partition, scheduled_at, due_at, first_due_at, kind, state)
SELECT job || ':' || rtrim(to_char(at AT TIME ZONE 'UTC', 'YYYYMMDD"T"HH24MISS.US'), '0') || 'Z:1', job::uuid, tenant,
       'work', partition, at, due, due, 'manual', 'scheduled'
FROM given, LATERAL (SELECT due + n * interval '1 microsecond' AS at FROM generate_series(1, %s) AS n) AS instants
"""
MOST_AT_ONCE = 999_999
FAR_OFF_SECONDS = 1_000_000_000


class ChronoSite(Deployment):
    """PostgreSQL, Redis, a dispatcher with all services and a worker."""

    def __init__(self) -> None:
        super().__init__("benchmarks.fairness.app", ROOT)

    def variables(self) -> dict[str, str]:
        """Return where servers and files are."""
        self.started = self.directory / "started.jsonl"
        self.started.touch()
        return {
            "DJANGO_SETTINGS_MODULE": "benchmarks.fairness.settings", "FAIRNESS_DATABASE": json.dumps(self.database),
            "FAIRNESS_REDIS": self.redis.url.rsplit("/", 1)[0], "FAIRNESS_STARTED": str(self.started),
        }

    def start(self, pool: str, slots: int) -> None:
        """Start the processes and wait until they work."""
        self.start_dispatcher()
        self.start_worker(pool, slots)
        eventually(self.owners, PATIENCE_SECONDS, what="the partitions have an owner")
        self.named("worker")[0].says(" ready.")

    def add_tenant(self, slug: str, max_running: int) -> None:
        """Add a tenant of weight 1."""
        self.sql("INSERT INTO chrono_tenant (slug, max_running) VALUES (%s, %s)", slug, max_running)

    def add_job(self, tenant: str, name: str, task: str, every: int, first_at: float) -> str:
        """Add a job; returns its id."""
        job = str(uuid.uuid4())
        partition = ids.partition_of(tenant, job, PARTITIONS)
        self.sql(JOB, job, tenant, name, partition, str(every), first_at, task, first_at)
        return job

    def put(self, tenant: str, count: int, due_at: float) -> None:
        """Put that many executions of 20 ms work of a tenant into the due index, all due at one instant."""
        job = self.add_job(tenant, f"work {due_at}", "fairness.work", FAR_OFF_SECONDS, time.time() + FAR_OFF_SECONDS)
        self.sql(EXECUTIONS, job, tenant, ids.partition_of(tenant, job, PARTITIONS), due_at, count)

    def count(self, tenant: str, *states: str) -> int:
        """Return how many rows a tenant has in these states."""
        return int(self.sql("SELECT count(*) AS n FROM chrono_execution WHERE tenant = %s AND state = ANY(%s)",
                            tenant, list(states))[0]["n"])

    def wait_until(self, tenant: str, count: int, *states: str) -> None:
        """Wait until so many rows of a tenant are in these states."""
        eventually(lambda: self.count(tenant, *states) >= count, PATIENCE_SECONDS, step=COUNT_EVERY_SECONDS,
                   what=f"{tenant}: {count} {states}")


class StockSite:
    """The peer: the same worker and tasks, one queue on the same Redis, no dispatcher (a thread sends on time).

    Args:
        site: whose Redis and files are used; its own processes are gone by now.
    """

    def __init__(self, site: ChronoSite) -> None:
        self.site = site
        self.started = site.directory / "stock.jsonl"
        self.started.touch()
        self.broker = site.redis.url_of(2)
        self.app = Celery("stock", broker=self.broker, set_as_current=False)
        self.redis = Redis.from_url(self.broker)
        self._over = threading.Event()

    def start(self, pool: str, slots: int) -> None:
        """Start the worker, the thread that keeps it busy and wait until it works."""
        self.slots = slots
        environment = {
            **self.site.environment, "FAIRNESS_STOCK": "1", "FAIRNESS_STARTED": str(self.started),
            "CELERY_BROKER_URL": self.broker,
        }
        worker = Process(
            "stock", ["-m", "celery", "-A", self.site.app, "-b", self.broker, "worker", "-P", pool, "-c", str(slots), "-Q",
                      QUEUE, "-l", "INFO", "-n", "stock@%h", "--without-gossip", "--without-mingle",
                      "--without-heartbeat"],
            environment, self.site.directory / "stock.log", self.site.root)
        self.site.processes.append(worker)
        worker.says(" ready.")
        self._threads = [threading.Thread(target=self._keep_busy, daemon=True)]
        self._threads[0].start()

    def send_probes(self, tenants: int, start: float, seconds: int) -> None:
        """Send each tenant's probe each second, on time, from a thread of its own."""
        def send() -> None:
            for number in range(tenants * seconds):
                due = start + number / tenants
                time.sleep(max(0.0, due - time.time()))
                self.app.send_task("fairness.probe", (due,), queue=QUEUE, ignore_result=True)

        self._threads.append(threading.Thread(target=send, daemon=True))
        self._threads[-1].start()

    def flood(self, count: int) -> None:
        """Put that many tasks into the queue at once: one message, copied, so that sending does not take minutes."""
        self.app.send_task("fairness.work", queue="template", ignore_result=True)
        message = self.redis.lpop("template")
        for begin in range(0, count, 1_000):
            self.redis.lpush(QUEUE, *[message] * min(1_000, count - begin))

    def stop(self) -> None:
        """End the threads that send."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _keep_busy(self) -> None:
        while not self._over.is_set():
            for _ in range(self.slots * BACKLOG_A_SLOT - int(self.redis.llen(QUEUE))):
                self.app.send_task("fairness.work", queue=QUEUE, ignore_result=True)
            self._over.wait(WORK_SECONDS / 2)


def lateness_ms(path: Any, start: float, end: float) -> list[float]:
    """Return how late the probes that were due in a span started, in ms, sorted."""
    return sorted(line["late"] * 1000 for line in lines_of(path) if start <= line["due"] < end)
