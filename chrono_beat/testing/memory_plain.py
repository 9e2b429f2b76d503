"""The part of MemoryQueueStore for plain tasks; ``redis/lua/delays.lua`` has the same in Redis."""
from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from chrono_beat.core.plain import PlainTask
from chrono_beat.core.records import ALREADY, PUBLISHED
from chrono_beat.testing.memory_copies import DELAYED, QUEUED, RUNNING, Copy
from chrono_beat.testing.memory_lane import Lane


class PlainInMemory:
    """Mixin of MemoryQueueStore, which has the lanes."""

    def _in(self, number: int) -> AbstractContextManager[Lane]:
        raise NotImplementedError

    def publish_plain(self, lane: int, tasks: Sequence[PlainTask]) -> list[str]:
        with self._in(lane) as it:
            it.has_plain_tasks = True
            replies = []
            for id_, tenant, pool, priority, payload, due_us, countdown_us in tasks:
                if id_ in it.copies:
                    replies.append(ALREADY)
                    continue
                copy = Copy(id_, QUEUED, 0, "", tenant, pool, priority, payload=payload, plain=True)
                it.copies[id_] = copy
                it.await_due(copy, max(due_us, it.now + countdown_us))
                replies.append(PUBLISHED)
            return replies


def laid_by(lane: Lane, lease_us: int) -> dict[str, Copy]:
    """Return the plain tasks that a new generation takes over: they wait, and those that a worker had until that worker
    would have lost its lease (rule 4)."""
    plain = {copy.id: copy for copy in lane.copies.values() if copy.plain}
    for copy in plain.values():
        if copy.state in (QUEUED, RUNNING):
            copy.due_us = lane.now + lease_us if copy.state == RUNNING else lane.now
            copy.state, copy.front, copy.parked, copy.parked_us = DELAYED, False, "", None
    return plain
