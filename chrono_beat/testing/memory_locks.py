"""Overlap locks of a lane in memory, and who waits for them: the same steps as ``locks.lua`` and ``publish.lua``."""
from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from chrono_beat.core.overlap import REPLACES, SKIPPED, is_older
from chrono_beat.core.records import Stop
from chrono_beat.testing.memory_copies import DECIDED, QUEUED, RUNNING, WAITING, Copy


class Locks:
    """The part of a lane that decides about overlap (invariant 9)."""

    now: int
    copies: dict[str, Copy]
    locks: dict[str, str]
    waiters: dict[str, deque[str]]
    stops: set[str]
    ends: dict[str, int]

    forget: Any
    conclude: Any
    supersede: Any
    drop_voided: Any
    expire: Any
    finish: Any
    append: Any
    tombstone: Any
    add_entry: Any
    is_voided: Any
    is_expired: Any

    # -- waiting ----------------------------------------------------------------------------------------------------

    def stand_behind(self, copy: Copy, lock: str, holder: str) -> None:
        """Wait at the end of a lock's list."""
        copy.waits_at = lock
        self.waiters[lock].append(copy.id)
        other = self.copies.get(holder)
        if other is not None and other.expires_us is not None and other.state != RUNNING:
            self.ends[holder] = other.expires_us

    def stand_no_more(self, copy: Copy) -> None:
        """Leave the list in which the copy waits."""
        queue = self.waiters[copy.waits_at]
        queue.remove(copy.id)
        if not queue:
            del self.waiters[copy.waits_at]
        copy.waits_at = ""

    def take_locks(self, copy: Copy) -> bool:
        """Take the locks that the copy lacks; False where it has to wait for one (rule 13: its job's first)."""
        for lock in copy.locks:
            holder = self.locks.setdefault(lock, copy.id)
            if holder != copy.id:
                self.stand_behind(copy, lock, holder)
                return False
        return True

    def release(self, id_: str, locks: Sequence[str]) -> list[str]:
        """Let go of those of the locks that the execution holds; returns them."""
        freed = [lock for lock in locks if self.locks.get(lock) == id_]
        for lock in freed:
            del self.locks[lock]
        return freed

    def unlock(self, id_: str, locks: Sequence[str]) -> None:
        """Free what a copy holds; the first waiter that may still run goes on."""
        freed = deque(self.release(id_, locks))
        while freed:
            freed += self.hand_over(freed.popleft())

    def hand_over(self, lock: str) -> list[str]:
        """Let the first waiter of a free lock go on; returns further locks that became free."""
        freed: list[str] = []
        while lock not in self.locks and self.waiters.get(lock):
            copy = self.copies[self.waiters[lock][0]]
            self.stand_no_more(copy)
            locks = copy.locks
            if self.is_voided(copy):
                self.forget(copy)
                freed += self.release(copy.id, locks)
            elif self.is_expired(copy):
                self.conclude(copy, "expired")
                freed += self.release(copy.id, locks)
            elif self.take_locks(copy):
                self.add_entry(copy)
        return freed

    # -- publish ----------------------------------------------------------------------------------------------------

    def other_holder(self, lock: str, id_: str) -> str | None:
        """Return who else holds a lock, after a holder that stands in nobody's way has been taken out of it."""
        holder = self.locks.get(lock)
        if holder in (None, id_):
            return None
        copy = self.copies[str(holder)]
        if copy.state in (QUEUED, WAITING):
            if self.is_voided(copy):
                self.drop_voided(copy)                                 # rule 9
            elif self.is_expired(copy):
                self.expire(copy)
        holder = self.locks.get(lock)
        return None if holder == id_ else holder

    def wait(self, copy: Copy, lock: str, holder: str) -> str:
        """Let a copy wait for a lock."""
        copy.state = WAITING
        self.stand_behind(copy, lock, holder)
        if copy.expires_us is not None:
            self.ends[copy.id] = copy.expires_us
        return "w"

    def make_room(self, copy: Copy, lock: str, holder: str, grace_us: int, stops: list[Stop]) -> str:
        """Policy replace: only the newest of a job stays. Returns "" where the way is free, else the reply's letter."""
        waiting, newest = list(self.waiters.get(lock, ())), holder
        for other in waiting:
            newest = other if is_older(newest, other) else newest
        if is_older(copy.id, newest):
            if copy.unknown:
                return self.wait(copy, lock, holder)                   # rule 12
            self.supersede(copy, newest)
            return "s"
        for other in waiting:
            self.supersede(self.copies[other], copy.id)
        active = self.copies[holder]
        if active.state != RUNNING:
            self.supersede(active, copy.id)
            self.unlock(holder, active.locks)
            self.locks[lock] = copy.id
            return ""
        active.stop_for = copy.id
        if active.stop_us is None:
            active.stop_us = self.now + grace_us
            self.stops.add(holder)
            stops.append(Stop(holder, active.token, active.worker))
        return self.wait(copy, lock, holder)

    def overlap(self, copy: Copy, way: str, lock: str, holder: str, grace_us: int, stops: list[Stop]) -> str:
        """Decide what becomes of a copy while another of its job is active."""
        if way == REPLACES:
            return self.make_room(copy, lock, holder, grace_us, stops)
        if way == SKIPPED and not copy.unknown:
            # Rule 11: decided once. Rule 12: what may have run in a lost generation waits instead.
            self.tombstone(copy, DECIDED, self.append("skipped", copy, {"blocked_by": holder}))
            return "s"
        return self.wait(copy, lock, holder)

    def take_locks_or(self, copy: Copy, way: str, grace_us: int, stops: list[Stop]) -> str:
        """Take the locks that a copy needs; returns "" where it has them, else the reply's letter."""
        for lock in copy.locks:
            holder = self.other_holder(lock, copy.id)
            if holder is not None:
                letter = (self.wait(copy, lock, holder) if lock.startswith("@")
                          else self.overlap(copy, way, lock, holder, grace_us, stops))
                if letter:
                    return letter
            self.locks[lock] = copy.id
        return ""

    # -- time -------------------------------------------------------------------------------------------------------

    def tend(self, limit: int) -> list[Stop]:
        """Withdraw grants whose grace is over, and end what waits past its expiry."""
        told = sorted((self.copies[id_].stop_us or 0, id_) for id_ in self.stops)[:limit]
        found = []
        for until, id_ in told:
            copy = self.copies[id_]
            found.append(Stop(id_, copy.token, copy.worker, until <= self.now))
            if until <= self.now:
                self.supersede(copy, copy.stop_for)
                self.unlock(id_, copy.locks)
        for _, id_ in sorted((until, id_) for id_, until in self.ends.items() if until <= self.now)[:limit]:
            self.ends.pop(id_, None)
            waiter = self.copies.get(id_)
            if waiter is None or waiter.state not in (QUEUED, WAITING):
                continue
            if self.is_voided(waiter):
                self.drop_voided(waiter)
            elif waiter.retry is not None:
                self.finish(waiter, "retry", {})
            elif self.is_expired(waiter):
                self.expire(waiter)
        return found
