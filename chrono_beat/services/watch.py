"""The watch: jobs that will soon be due and whose task no live worker knows are flagged, so that somebody can act in time.

It compares what is due in the next minutes with the workers' reports. A worker that knows the task but does not draw the
job's pool is no help. A flag changes nothing about the job: it is planned and published as ever, and where a worker comes
in time it runs. The flag goes when a worker knows the task.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

from chrono_beat.core.clock import Clock
from chrono_beat.core.config import Config
from chrono_beat.core.records import ANY_TASK
from chrono_beat.ports import JobStore, QueueStore
from chrono_beat.services.service import Service
from chrono_beat.telemetry import emit

LOOK_EVERY_US = 5_000_000
AHEAD_US = 600_000_000
"""Microseconds before its due time from which on a job may be flagged."""

MISSING_US = 30_000_000
"""Microseconds for which a task must have been unknown: workers that are restarted are away for a moment."""

FLAG_LIMIT = 1_000
"""Jobs flagged by one call; the others follow at the next look."""

EVERY_WORKER_HAS = "celery."
"""Tasks with this beginning are Celery's own; workers do not report them."""


class Watch(Service):
    """Flags jobs.

    Args:
        store: the database.
        queue: Redis, for the workers' reports.
        clock: the host's clocks.
        config: number of partitions, name of the default pool.
        partitions: says which partitions to look at; None for all. Several watches do no harm.
    """

    def __init__(
        self, store: JobStore, queue: QueueStore, clock: Clock, config: Config, *,
        partitions: Callable[[], Sequence[int]] | None = None,
    ) -> None:
        super().__init__("watch", clock, longest_wait_us=LOOK_EVERY_US)
        self._store = store
        self._queue = queue
        self._default_pool = config.default_pool
        self._partitions = partitions or (lambda: range(config.partitions))
        self._missing_since: dict[tuple[str, str], int] = {}

    def step(self, now_us: int) -> int:
        """Look once."""
        known = {(pool, task) for report in self._queue.workers() for pool in report.pools for task in report.tasks}
        until_us = self._store.now_us() + AHEAD_US
        partitions = self._partitions()
        upcoming = self._store.upcoming_tasks(partitions, until_us) if partitions else []
        missing = [place for place in upcoming if not self._is_known(place, known)]
        self._missing_since = {place: self._missing_since.get(place, now_us) for place in missing}
        for (pool, task), since_us in self._missing_since.items():
            if now_us - since_us >= MISSING_US:
                reason = f"no live worker of the pool {pool or self._default_pool} knows the task {task}"
                jobs = self._store.flag_jobs(pool, task, reason, until_us, FLAG_LIMIT)
                if jobs:
                    emit("no_worker", pool=pool or self._default_pool, task=task, jobs=jobs)
        for place in self._store.flagged_tasks():
            if self._is_known(place, known):
                jobs = self._store.flag_jobs(*place, "", until_us, FLAG_LIMIT)
                emit("worker_found", pool=place[0] or self._default_pool, task=place[1], jobs=jobs)
        return LOOK_EVERY_US

    def _is_known(self, place: tuple[str, str], known: set[tuple[str, str]]) -> bool:
        pool, task = place
        drawn = pool or self._default_pool
        return (drawn, task) in known or (drawn, ANY_TASK) in known or task.startswith(EVERY_WORKER_HAS)
