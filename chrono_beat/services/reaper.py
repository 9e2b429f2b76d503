"""The reaper: deliveries whose lease has run out go back to the front of their tenant, under the same id.

Nobody notices a worker's death; its leases just stop being renewed. A reap is counted, and after a number of them the
execution is dead-lettered instead (invariant 6). That budget is apart from the attempts. The scripts are atomic, so any
number of reapers may run.

It also does what time asks for at the overlap locks: one that was told to make room (policy replace) is told again at
each look, and its lease is withdrawn when its grace is over. The instant is kept in Redis, so no crash loses it.

What it reaped is added to its tenant's minute in the database, once that answers: reaping itself does not wait for it.

It lets the lines of pools go that nobody draws any more, after a move or with the last worker, once nothing waits there;
and it lets tenants back into line whose limits or slots somebody has deleted.

And it ends what has lain aside for too long, because no worker came that knows its task.
"""
from __future__ import annotations

from collections import Counter

from chrono_beat.core.clock import Clock
from chrono_beat.core.config import Config
from chrono_beat.core.errors import QueueUnavailable, StoreUnavailable
from chrono_beat.core.rollup import MINUTE_US
from chrono_beat.ports import JobStore, QueueStore
from chrono_beat.services.service import Service
from chrono_beat.services.stopper import tell
from chrono_beat.telemetry import emit

REAP_LIMIT = 500
"""Leases that one call looks at."""


class Reaper(Service):
    """Reaps all lanes.

    Args:
        queue: Redis.
        clock: the host's clocks.
        config: number of lanes, cap of reaps, how often to look.
        store: the database, for the counts of reaps; None where nobody counts.
    """

    def __init__(self, queue: QueueStore, clock: Clock, config: Config, store: JobStore | None = None) -> None:
        super().__init__("reaper", clock, longest_wait_us=max(1_000_000, round(config.reap_every * 1_000_000)))
        self._queue = queue
        self._store = store
        self._uncounted: Counter[tuple[str, int]] = Counter()
        self._lanes = config.lanes
        self._cap = config.reap_cap
        self._patience_us = round(config.no_worker_after * 1_000_000)
        self._every_us = round(config.reap_every * 1_000_000)

    def step(self, now_us: int) -> int:
        """Reap each lane once."""
        failure: QueueUnavailable | None = None
        more = False
        for lane in range(self._lanes):
            try:
                reaped = self._queue.reap(lane, self._cap, REAP_LIMIT)
                self._tend(lane)
                self._queue.tidy(lane, REAP_LIMIT)
                stranded = self._queue.end_parked(lane, self._patience_us, REAP_LIMIT)
            except QueueUnavailable as error:
                failure = error
                continue
            if reaped:
                emit("reaped", lane=lane, reaped=reaped)
                minute_us = self._queue.now_us() // MINUTE_US * MINUTE_US
                self._uncounted.update((each.tenant, minute_us) for each in reaped)
                more |= len(reaped) >= REAP_LIMIT
                capped = [each for each in reaped if each.capped]
                if capped:
                    emit("reap_capped", lane=lane, reaped=capped)
            if stranded:
                emit("stranded", lane=lane, executions=stranded)
                more |= len(stranded) >= REAP_LIMIT
        self._count()
        if failure is not None and not more:
            raise failure
        return 0 if more else self._every_us

    def _count(self) -> None:
        """Invariant 10: reaps are a number per tenant."""
        if self._store is None:
            self._uncounted.clear()
        elif self._uncounted:
            try:
                self._store.add_reaps([(*key, count) for key, count in sorted(self._uncounted.items())])
            except StoreUnavailable:
                return                                     # with those of the next look
            self._uncounted.clear()

    def _tend(self, lane: int) -> None:
        stops = self._queue.tend_locks(lane, REAP_LIMIT)
        tell(self._queue, lane, [stop for stop in stops if not stop.withdrawn])
        withdrawn = [stop for stop in stops if stop.withdrawn]
        if withdrawn:
            emit("withdrawn", lane=lane, stops=withdrawn)
