"""The part of QueueStore on Redis for plain tasks."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chrono_beat.core.plain import PlainTask
from chrono_beat.core.records import ALREADY, PUBLISHED


class PlainOnRedis:
    """Mixed into RedisQueueStore, which runs the scripts."""

    def _run(self, name: str, lane: int, *args: Any) -> Any:
        raise NotImplementedError

    def publish_plain(self, lane: int, tasks: Sequence[PlainTask]) -> list[str]:
        """See QueueStore."""
        flat: list[Any] = []
        for id_, tenant, pool, priority, payload, due_us, countdown_us in tasks:
            flat += (id_, tenant, pool, priority, due_us, countdown_us, payload)
        letters = self._run("publish_plain", lane, *flat)
        return [PUBLISHED if letter == "p" else ALREADY for letter in letters.decode()]
