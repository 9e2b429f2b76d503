"""How long the cap of each tenant held back work of it: looked at each second, written each ten.

A look asks Redis whose work nothing but a cap holds back at that moment, and counts for the time since the last look. So
the figures are off by a look at the beginning and at the end of a spell, draws pay nothing for them, and a lost memory
costs them nothing. Whoever records a lane looks at it: one process at a time. What was not written when it dies is lost,
ten seconds at most.
"""
from __future__ import annotations

from collections import Counter

from chrono_beat.core.errors import QueueUnavailable
from chrono_beat.core.rollup import MINUTE_US
from chrono_beat.ports import JobStore, QueueStore
from chrono_beat.telemetry import emit

LOOK_EVERY_US = 1_000_000
LONGEST_SPELL_US = 5_000_000
"""Microseconds since the last look for which one counts at most: what was in between longer than that nobody knows."""

WRITE_EVERY_US = 10_000_000
MOST_TENANTS = 1_000
"""Capped tenants of one pool that a look counts."""


class CappedTime:
    """Counts time spent capped, of all lanes.

    Args:
        store: where it is written.
        queue: is asked.
    """

    def __init__(self, store: JobStore, queue: QueueStore) -> None:
        self._store = store
        self._queue = queue
        self._pools: list[str] = []
        self._pools_at_us = -WRITE_EVERY_US
        self._looked: dict[int, tuple[int, int]] = {}            # lane: (host's monotonic µs, Redis' µs) of the last look
        self._spent: Counter[tuple[str, int]] = Counter()        # (tenant, minute in Redis' µs): µs
        self._wrote_at_us: int | None = None

    def look(self, lane: int, now_us: int) -> None:
        """Look at a lane that this process records, if it is time to.

        Args:
            now_us: the host's monotonic clock.

        Raises:
            QueueUnavailable, StoreUnavailable: asked again at the next look; nothing is counted twice.
        """
        before = self._looked.get(lane)
        if before is not None and now_us - before[0] < LOOK_EVERY_US:
            return
        if now_us - self._pools_at_us >= WRITE_EVERY_US:
            self._pools = sorted({pool for report in self._queue.workers() for pool in report.pools})
            self._pools_at_us = now_us
        if self._pools:
            self._count(lane, now_us, before)
        if self._wrote_at_us is None:
            self._wrote_at_us = now_us
        elif now_us - self._wrote_at_us >= WRITE_EVERY_US:
            self._write()
            self._wrote_at_us = now_us

    def leave(self, lane: int) -> None:
        """Note that another process records the lane."""
        self._looked.pop(lane, None)

    def _count(self, lane: int, now_us: int, before: tuple[int, int] | None) -> None:
        try:
            at_us, tenants = self._queue.capped(lane, self._pools, MOST_TENANTS)
        except QueueUnavailable:
            self.leave(lane)
            raise
        self._looked[lane] = (now_us, at_us)
        if before is None or not 0 < at_us - before[1] <= LONGEST_SPELL_US:
            return
        for start_us, end_us in by_minutes(before[1], at_us):
            for tenant in tenants:
                self._spent[tenant, start_us - start_us % MINUTE_US] += end_us - start_us

    def _write(self) -> None:
        if not self._spent:
            return
        self._store.add_capped([(*key, us) for key, us in self._spent.items()])
        total: Counter[str] = Counter()
        for (tenant, _), us in self._spent.items():
            total[tenant] += us
        self._spent.clear()
        emit("capped", tenants=list(total), spent_us=list(total.values()))


def by_minutes(start_us: int, end_us: int) -> list[tuple[int, int]]:
    """Cut a span at the full minutes that lie in it; instants in microseconds."""
    cuts = range(start_us - start_us % MINUTE_US + MINUTE_US, end_us, MINUTE_US)
    edges = [start_us, *cuts, end_us]
    return list(zip(edges, edges[1:], strict=False))
