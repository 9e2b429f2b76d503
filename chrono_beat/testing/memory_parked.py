"""The part of MemoryQueueStore for executions that lie aside, since the workers that drew them do not know their task."""
from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from chrono_beat.core.deliveries import Delivery, Hold, Parked
from chrono_beat.testing.memory_copies import QUEUED, RUNNING, Copy
from chrono_beat.testing.memory_lane import Lane
from chrono_beat.testing.memory_recovery import packed


class ParkedInMemory:
    """Mixin of MemoryQueueStore, which has the lanes."""

    def _in(self, number: int) -> AbstractContextManager[Lane]:
        raise NotImplementedError

    def park(self, lane: int, worker: str, parks: Sequence[tuple[Hold, str]]) -> int:
        with self._in(lane) as it:
            laid = 0
            for (id_, token), task in parks if it.generation is not None else ():
                copy = it.copies.get(id_)
                if copy is not None and copy.state == RUNNING and copy.token == token:
                    laid += 1
                    it.unhand(copy)
                    if copy.cancelled:
                        it.cancel(copy)
                        continue
                    if copy.stop_us is not None:
                        it.supersede(copy, copy.stop_for)
                        it.unlock(copy.id, copy.locks)
                        continue
                    it.release_grant(copy)
                    copy.state, copy.front, copy.parked = QUEUED, False, task
                    copy.parked_us = it.now if copy.parked_us is None else copy.parked_us
            return laid

    def parked(self, lane: int, limit: int) -> list[Parked]:
        with self._in(lane) as it:
            return [_told(copy) for copy in _lying(it)[:limit]]

    def draw_parked(self, lane: int, worker: str, execution_ids: Sequence[str], lease_us: int) -> list[Delivery]:
        with self._in(lane) as it:
            if it.generation is None or it.now < it.quarantine_until:
                return []                                                      # rules 4 and 5
            expires_us, drawn = it.now + lease_us, []
            for copy in _lying(it):
                if copy.id in execution_ids and it.room(copy.tenant)[1] > 0 and it.may_run(copy):
                    it.sign(copy, worker, expires_us)
                    drawn.append(copy)
            return [
                Delivery(c.id, c.job, c.tenant, c.pool, c.token, c.given, it.now, expires_us, c.payload, packed(c))
                for c in drawn
            ]

    def end_parked(self, lane: int, patience_us: int, limit: int) -> list[Parked]:
        with self._in(lane) as it:
            ended = []
            for copy in _lying(it)[:limit] if it.generation is not None else []:
                if not copy.plain and it.may_run(copy) and (copy.parked_us or 0) <= it.now - patience_us:
                    ended.append(_told(copy))
                    message = f"no worker of {copy.pool} knew the task {copy.parked}"
                    error = {"type": "NoWorkerForTask", "message": message, "traceback": ""}
                    it.conclude(copy, "no_worker", {"error": error})
                    it.unlock(copy.id, copy.locks)
            return ended


def _lying(it: Lane) -> list[Copy]:
    found = [copy for copy in it.copies.values() if copy.state == QUEUED and copy.parked]
    return sorted(found, key=lambda copy: (copy.parked_us or 0, copy.id))


def _told(copy: Copy) -> Parked:
    return Parked(copy.id, copy.job, copy.tenant, copy.pool, copy.parked, copy.parked_us or 0)
