"""The part of QueueStore for executions that lie aside, since the workers that drew them do not know their task."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chrono_beat.core.deliveries import Delivery, Hold, Parked


class ParkedOnRedis:
    """Mixin of RedisQueueStore, which runs the scripts."""

    def _run(self, name: str, lane: int, *args: Any) -> Any:
        raise NotImplementedError

    def park(self, lane: int, worker: str, parks: Sequence[tuple[Hold, str]]) -> int:
        return int(self._run("park", lane, *(part for hold, task in parks for part in (*hold, task))))

    def parked(self, lane: int, limit: int) -> list[Parked]:
        return _parked(self._run("parked", lane, limit))

    def draw_parked(self, lane: int, worker: str, execution_ids: Sequence[str], lease_us: int) -> list[Delivery]:
        reply = self._run("draw_parked", lane, worker, lease_us, *execution_ids)
        now_us, expires_us = reply[0], reply[1]
        return [
            Delivery(reply[i].decode(), reply[i + 1].decode(), reply[i + 2].decode(), reply[i + 6].decode(),
                     reply[i + 3].decode(), int(reply[i + 4]), now_us, expires_us, reply[i + 5], reply[i + 7])
            for i in range(2, len(reply), 8)
        ]

    def end_parked(self, lane: int, patience_us: int, limit: int) -> list[Parked]:
        return _parked(self._run("end_parked", lane, patience_us, limit))


def _parked(flat: list[Any]) -> list[Parked]:
    return [
        Parked(*(flat[i + k].decode() for k in range(5)), since_us=int(flat[i + 5])) for i in range(0, len(flat), 6)
    ]
