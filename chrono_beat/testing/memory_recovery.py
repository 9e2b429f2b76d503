"""The part of the QueueStore in memory that notices a lost memory, and puts back what it can (rules 4 to 6)."""
from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager

from chrono_beat.core.deliveries import Hold
from chrono_beat.core.plain import is_plain
from chrono_beat.core.recovery import LostGrant, Recorded, Renewed
from chrono_beat.testing import memory_lane
from chrono_beat.testing.memory_copies import DELAYED
from chrono_beat.testing.memory_lane import Copy, Lane


def packed(copy: Copy) -> bytes:
    """Return a copy without its payload, to be handed to the worker that has it; a plain task's has its payload."""
    kept = copy.payload.decode("latin-1") if copy.plain else ""
    return json.dumps({**dataclasses.asdict(copy), "payload": kept, "lost_entry": not copy.plain}).encode()


class MemoryRecovery:
    """Mixed into MemoryQueueStore."""

    repl: str

    def _in(self, number: int) -> AbstractContextManager[Lane]:
        raise NotImplementedError

    def lacking(self, lane: int, generation: int, execution_ids: Sequence[str]) -> list[str] | None:
        with self._in(lane) as it:
            if it.generation != generation or it.now < it.quarantine_until:
                return None
            copies = {id_: it.copies.get(id_) for id_ in execution_ids}
            return [id_ for id_, copy in copies.items() if copy is None or not it.is_there(copy, copy.version)]

    def renew(self, lane: int, worker: str, holds: Sequence[Hold], lease_us: int) -> Renewed:
        with self._in(lane) as it:
            lost: list[str] = []
            unknown: list[str] = []
            if it.generation is None:
                return Renewed(0, lost, unknown)
            for id_, token in holds:
                copy = it.copies.get(id_)
                if copy is None:
                    unknown.append(id_)
                elif copy.token != token or copy.lost == token or copy.state in (memory_lane.DECIDED, memory_lane.DROPPED) or (
                        copy.state in (memory_lane.QUEUED, DELAYED) and it.cap_room(copy.tenant) < 1):    # invariant 8
                    lost.append(id_)
                elif copy.state in (memory_lane.RUNNING, memory_lane.QUEUED, DELAYED):
                    if copy.state != memory_lane.RUNNING:                       # requeued, not granted again: taken back
                        it.remove_entry(copy)
                        copy.state, copy.front = memory_lane.RUNNING, False
                    self._hold(it, copy, worker, it.now + lease_us)
            return Renewed(it.now + lease_us, lost, unknown)

    def _hold(self, it: Lane, copy: Copy, worker: str, until_us: int) -> None:
        copy.worker = worker
        it.leases[copy.id] = until_us
        it.running[copy.tenant].add(copy.id)
        it.owned[worker].add(copy.id)

    def bring_back(self, lane: int, worker: str, grants: Sequence[LostGrant], lease_us: int) -> list[str]:
        with self._in(lane) as it:
            if it.generation is None:
                return []
            back = []
            for grant in grants:
                id_ = grant.hold.execution_id
                # Rule 5. Nobody publishes a plain task anew, so it comes back at any time.
                if (it.now < it.quarantine_until or is_plain(id_)) and self._bring_back(it, worker, grant, lease_us):
                    back.append(id_)
            return back

    def _bring_back(self, it: Lane, worker: str, grant: LostGrant, lease_us: int) -> bool:
        (id_, token), expires_us, text = grant
        known = it.copies.get(id_)
        if known is not None and known.token == token:
            return known.state == memory_lane.RUNNING                          # a repeat of this call
        if expires_us <= it.now:
            return False
        if known is not None:
            if known.state != memory_lane.RUNNING or _order(known.token) > _order(token):
                return False                                                   # a newer grant, or an outcome
            it.owned[known.worker].discard(id_)
        known_of_it = json.loads(text)
        copy = Copy(**{**known_of_it, "payload": known_of_it["payload"].encode("latin-1")})
        if copy.token != token:
            return False
        for lock in copy.locks:
            it.locks.setdefault(lock, id_)
        it.copies[id_] = copy
        it.has_plain_tasks = it.has_plain_tasks or copy.plain
        self._hold(it, copy, worker, it.now + lease_us)
        return True

    def recorded(self, lane: int, generation: str, holds: Sequence[Hold]) -> Recorded:
        with self._in(lane) as it:
            if it.replication_id != self.repl:
                return Recorded("", [], [])                                    # rule 4
            if it.generation is None or str(it.generation) != generation:
                return Recorded("" if it.generation is None else str(it.generation), [], [])
            done, gone = [], []
            for id_, token in holds:
                copy = it.copies.get(id_)
                kept = copy is not None and copy.state == memory_lane.SETTLED and copy.token == token
                if copy is None or not kept or copy.goes_us is not None:
                    done.append(id_)
                elif not it.is_known(copy):
                    gone.append(id_)
            return Recorded(generation, done, gone)


def _order(token: str) -> tuple[int, int]:
    generation, counter = token.split(".")
    return int(generation), int(counter)
