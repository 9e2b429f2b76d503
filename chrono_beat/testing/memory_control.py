"""The part of QueueStore in memory for control: what a worker holds, what a cap holds back, cancelling, drawing anew."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chrono_beat.core.deliveries import Cancelled, Delivery, Hold, Running
from chrono_beat.core.fairness import PRIORITIES
from chrono_beat.testing.memory_copies import DECIDED, DROPPED, RUNNING, SETTLED, Copy


class MemoryControl:
    """Mixed into MemoryQueueStore, which knows the lanes."""

    _in: Any
    _held: Any

    def deliveries_of(
        self, lane: int, job_id: str, below_version: int | None, *, tenant: str = "",
    ) -> list[Running] | None:
        """See QueueStore."""
        with self._in(lane) as it:
            if it.generation is None or it.now < it.quarantine_until:
                return None
            return [Running(c.id, c.token, c.worker, c.begun == c.token) for c in it.copies.values()
                    if c.state == RUNNING
                    and (c.job == job_id if job_id else c.tenant == tenant)
                    and (below_version is None or c.version < below_version)]

    def cancel(self, lane: int, execution_id: str, job_id: str, tenant: str) -> Cancelled:
        """See QueueStore."""
        with self._in(lane) as it:
            if it.generation is None or it.now < it.quarantine_until:
                return Cancelled("held", "", "", False)
            copy = it.copies.get(execution_id)
            if copy is not None and copy.state == RUNNING:
                copy.cancelled = True
                return Cancelled("held", copy.worker, copy.token, copy.begun == copy.token)
            if copy is not None and copy.state in (SETTLED, DECIDED):
                return Cancelled("done", "", "", False)
            it.cancel(copy or Copy(execution_id, DROPPED, 0, job_id, tenant))
            return Cancelled("ended", "", "", False)

    def capped(self, lane: int, pools: Sequence[str], limit: int) -> tuple[int, list[str]]:
        """See QueueStore."""
        with self._in(lane) as it:
            if it.generation is None or it.now < it.quarantine_until:
                return it.now, []
            found: dict[str, None] = {}
            for pool in pools:
                line = it.lines[pool].capped
                for tenant in sorted(line, key=lambda name: (line[name], name.encode()))[:limit]:
                    waits = it.fronts.get((pool, tenant)) or any(
                        it.streams.get((pool, tenant, priority)) for priority in range(PRIORITIES))
                    if waits and not (tenant in it.limits and it.limits[tenant].paused):
                        found[tenant] = None
            return it.now, list(found)

    def running(self, lane: int, tenant: str) -> int:
        """See QueueStore."""
        with self._in(lane) as it:
            return len(it.running.get(tenant, ()))

    def redraw(self, lane: int, worker: str, hold: Hold, lease_us: int) -> Delivery | None:
        """See QueueStore."""
        with self._in(lane) as it:
            copy = self._held(it, hold) if it.now >= it.quarantine_until else None
            if copy is None or copy.worker != worker or copy.begun == hold.token:
                return None
            limits = it.limits.get(copy.tenant)
            if (copy.cancelled or copy.stop_us is not None or it.is_voided(copy) or it.is_expired(copy)
                    or limits is not None and limits.paused):
                it.give_back(copy)
                return None
            it.counter += 1
            copy.token = f"{it.generation}.{it.counter}"                       # invariant 6
            it.leases[copy.id] = it.now + lease_us
            return Delivery(copy.id, copy.job, copy.tenant, "", copy.token, copy.given, it.now, it.now + lease_us, b"")
