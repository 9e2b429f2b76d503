"""The part of QueueStore on Redis for control: what a worker holds, what a cap holds back, cancelling, drawing anew."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chrono_beat.core.deliveries import Cancelled, Delivery, Hold, Running

SCAN_COUNT = 1000                # keys or leases looked at by one step of a scan
CAPPED_TENANTS = 20              # of a pool that one look at capped ones mends
MAX_IDS = 4000                   # execution ids of one script call


class RedisControl:
    """Mixed into RedisQueueStore, which knows keys, connection and scripts."""

    keys: Any
    _connection: Any
    _run: Any
    _tidied: dict[tuple[int, str], int]                  # lane, kind of key -> where its next look for pools begins

    def deliveries_of(
        self, lane: int, job_id: str, below_version: int | None, *, tenant: str = "",
    ) -> list[Running] | None:
        """See QueueStore."""
        wanted = [f"tenant:{tenant}"]
        if job_id:
            # A scan of what is leased now: noted nowhere else, so that draws need not write it.
            with self._connection.reaching():
                found = self._connection.client.zscan_iter(
                    self.keys.of(lane, "lease"), match=f"{job_id}:*", count=SCAN_COUNT)
                wanted = sorted({name.decode() for name, _ in found}) or [f"{job_id}:"]
        running: list[Running] = []
        for start in range(0, len(wanted), MAX_IDS):
            flat = self._run("deliveries_of", lane, "" if below_version is None else below_version,
                             *wanted[start:start + MAX_IDS])
            if flat is None:
                return None
            running += [Running(flat[i].decode(), flat[i + 1].decode(), flat[i + 2].decode(), bool(flat[i + 3]))
                        for i in range(0, len(flat), 4)]
        return running

    def cancel(self, lane: int, execution_id: str, job_id: str, tenant: str) -> Cancelled:
        """See QueueStore."""
        state, worker, token, begun = self._run("cancel", lane, execution_id, job_id, tenant)
        return Cancelled(state.decode(), worker.decode(), token.decode(), bool(begun))

    def capped(self, lane: int, pools: Sequence[str], limit: int) -> tuple[int, list[str]]:
        """See QueueStore."""
        now_us, *tenants = self._run("capped", lane, limit, *pools)
        return int(now_us), [tenant.decode() for tenant in tenants]

    def tidy(self, lane: int, limit: int) -> int:
        """See QueueStore."""
        for pool in self._pools_with(lane, "capped"):
            self._run("mend_capped", lane, pool, CAPPED_TENANTS, limit)
        return sum(int(self._run("tidy", lane, pool, limit)) for pool in self._pools_with(lane, "ready"))

    def _pools_with(self, lane: int, kind: str) -> list[str]:
        """Return the pools with a key of a kind in the next part of the lane."""
        begin, place = self.keys.of(lane, kind, ""), (lane, kind)
        with self._connection.reaching():
            self._tidied[place], names = self._connection.client.scan(
                self._tidied.get(place, 0), match=f"{begin}*", count=SCAN_COUNT)
        return sorted({name.decode("utf-8", "replace").removeprefix(begin) for name in names})

    def redraw(self, lane: int, worker: str, hold: Hold, lease_us: int) -> Delivery | None:
        """See QueueStore."""
        reply = self._run("redraw", lane, worker, lease_us, *hold)
        if len(reply) < 3:
            return None
        id_, job, tenant, token = (part.decode() for part in reply[2:6])
        return Delivery(id_, job, tenant, "", token, int(reply[6]), reply[0], reply[1], b"")
