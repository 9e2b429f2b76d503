"""What tenants do beside their jobs: they send plain tasks into pools, and somebody moves them from pool to pool."""
from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from chrono_beat.core.errors import QueueUnavailable, StoreUnavailable
from chrono_beat.core.ids import lane_of
from chrono_beat.core.plain import DEFAULT_PRIORITY, PlainTask, copy_id
from chrono_beat.core.records import Void
from chrono_beat.testing.history import Called, Committed, Returned
from chrono_beat.testing.memory_jobs import MemoryJobStore
from chrono_beat.testing.simulation.control import plan_of
from chrono_beat.testing.simulation.witness import Witness

AGAIN_US = 500_000
IDLE_US = 3_600_000_000


class Send:
    """Sends plain tasks as ``apply_async`` does; one whose reply was lost is sent again, as the same message.

    Args:
        number: of the call; part of the tasks' ids.
        queue: Redis, as the caller reaches it.
        tenant, pool, task: whose they are, where they run, and what.
        count: how many.
        countdown_us: how long they wait first.
    """

    def __init__(
        self, number: int, queue: Any, *, lanes: int, tenant: str, pool: str, task: str, count: int, countdown_us: int = 0,
    ) -> None:
        self._queue, self._lane = queue, lane_of(tenant, lanes)
        self._left = [
            PlainTask(copy_id(f"{number}-{one}", "1"), tenant, pool, DEFAULT_PRIORITY,
                      json.dumps({"headers": {"task": task, "id": f"{number}-{one}"}}).encode(), 0, countdown_us)
            for one in range(count)]

    def turn(self, now_us: int) -> int:
        """Send one; returns microseconds until the next one."""
        if not self._left:
            return IDLE_US
        try:
            self._queue.publish_plain(self._lane, self._left[:1])
        except QueueUnavailable:
            return AGAIN_US
        self._left.pop(0)
        return 1


class Move:
    """Moves a tenant to another pool by the rules of `chrono_beat_django.tenants.move`: in one transaction its pool and a new
    version of each job without a pool of its own, then Redis is told. To the judges each is an edit of a job.

    Args:
        numbers: gives the calls their numbers.
        store: the database behind the wire, for what a transaction reads.
        wired: the database, as the caller reaches it.
        queue: Redis, as the caller reaches it.
    """

    def __init__(
        self, numbers: Any, *, tenant: str, pool: str, store: MemoryJobStore, wired: Any, queue: Any, witness: Witness,
        lanes: int,
    ) -> None:
        self._tenant, self._pool, self._lane = tenant, pool, lane_of(tenant, lanes)
        self._store, self._wired, self._queue, self._witness = store, wired, queue, witness
        self._calls = {job.job_id: next(numbers) for job in store.jobs.values() if job.tenant == tenant and not job.pool}
        self._voids: list[Void] = []
        self._called = self._over = False

    def turn(self, now_us: int) -> int:
        """Do the next piece; returns microseconds until the one after it."""
        if self._over:
            return IDLE_US
        at_us = self._witness.now_us()
        if not self._called:
            self._called = True
            for job_id, number in self._calls.items():
                self._witness.add(Called(at_us, number, "edit", job_id))
            return 1
        try:
            self._wired.control(self)
            for void in self._voids:
                self._queue.void(self._lane, void.job_id, void.version)
            self._wired.void_done(self._voids)
        except (StoreUnavailable, QueueUnavailable):
            pass                                           # then a dispatcher tells Redis
        self._over = True
        for number in self._calls.values():
            self._witness.add(Returned(self._witness.now_us(), number, promised=False))
        return 1

    def commit(self) -> None:
        """Do what the transaction does; called behind the wire, so that its reply may be lost."""
        self._store.tenants[self._tenant] = replace(self._store.tenants[self._tenant], pool=self._pool)
        for job_id, number in self._calls.items():
            if job_id in self._store.jobs:
                version = self._store.edit_job(job_id, {})
                self._voids.append(Void(job_id, self._tenant, version))
                self._witness.add(Committed(self._witness.now_us(), number, version, plan_of(self._store.jobs[job_id])))
