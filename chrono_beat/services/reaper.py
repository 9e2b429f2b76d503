"""The reaper: deliveries whose lease has run out go back to the front of their tenant, under the same id.

Nobody notices a worker's death; its leases just stop being renewed. A reap is counted, and after a number of them the
execution is dead-lettered instead (invariant 6). That budget is apart from the attempts. The scripts are atomic, so any
number of reapers may run.

It also does what time asks for at the overlap locks: one that was told to make room (policy replace) is told again at
each look, and its lease is withdrawn when its grace is over. The instant is kept in Redis, so no crash loses it.

It lets the lines of pools go that nobody draws any more, after a move or with the last worker, once nothing waits there.

And it ends what has lain aside for too long, because no worker came that knows its task.
"""
from __future__ import annotations

from chrono_beat.core.clock import Clock
from chrono_beat.core.config import Config
from chrono_beat.core.errors import QueueUnavailable
from chrono_beat.ports import QueueStore
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
    """

    def __init__(self, queue: QueueStore, clock: Clock, config: Config) -> None:
        super().__init__("reaper", clock, longest_wait_us=max(1_000_000, round(config.reap_every * 1_000_000)))
        self._queue = queue
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
                more |= len(reaped) >= REAP_LIMIT
                capped = [each for each in reaped if each.capped]
                if capped:
                    emit("reap_capped", lane=lane, reaped=capped)
            if stranded:
                emit("stranded", lane=lane, executions=stranded)
                more |= len(stranded) >= REAP_LIMIT
        if failure is not None and not more:
            raise failure
        return 0 if more else self._every_us

    def _tend(self, lane: int) -> None:
        stops = self._queue.tend_locks(lane, REAP_LIMIT)
        tell(self._queue, lane, [stop for stop in stops if not stop.withdrawn])
        withdrawn = [stop for stop in stops if stop.withdrawn]
        if withdrawn:
            emit("withdrawn", lane=lane, stops=withdrawn)
