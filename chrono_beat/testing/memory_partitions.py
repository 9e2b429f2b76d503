"""The half of the JobStore in memory that knows time, faults, leases of partitions, and lanes."""
from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from chrono_beat.core import lifecycle
from chrono_beat.core.errors import StoreUnavailable
from chrono_beat.core.ids import lane_of
from chrono_beat.core.records import LaneRecord, PartitionLease, Void
from chrono_beat.testing.memory_rows import (
    Journal,
    MemoryExecution,
    MemoryJob,
    MemoryLane,
    MemoryMember,
    MemoryPartition,
    MemoryRollup,
    MemoryTenant,
)


class WallClock(Protocol):
    """What the store asks for the time; a ManualClock is one."""

    def wall_us(self) -> int:
        """Return microseconds since the epoch, UTC."""


class MemoryPartitions:
    """Transactions, leases and lanes; MemoryJobStore adds jobs and executions."""

    def __init__(self, clock: WallClock, *, partitions: int = 8, lanes: int = 1) -> None:
        self.tenants: dict[str, MemoryTenant] = {"default": MemoryTenant(slug="default")}
        self.jobs: dict[str, MemoryJob] = {}
        self.executions: dict[str, MemoryExecution] = {}
        self.voids: dict[str, Void] = {}
        self.rollups: dict[tuple[str, int], MemoryRollup] = {}
        self.merged: dict[str, dict[tuple[str, int], MemoryRollup]] = {"hour": {}, "day": {}}
        self.unavailable = False
        self._clock = clock
        self._partitions = {number: MemoryPartition() for number in range(partitions)}
        self._lanes = {number: MemoryLane() for number in range(lanes)}
        self._members: dict[str, MemoryMember] = {}
        self._lock = threading.RLock()
        self._journal = Journal()
        self._steps_left: int | None = None

    def layout(self) -> tuple[int, int]:
        """Return the numbers of partitions and lanes."""
        return len(self._partitions), len(self._lanes)

    def now_us(self) -> int:
        """Return the clock."""
        with self._transaction() as now:
            return now

    # -- transactions and faults ------------------------------------------------------------------------------------

    def fail_at(self, step: int | None) -> None:
        """Let the *step*-th step from now (1 is the next) raise StoreUnavailable, once; None lets all pass.

        A step is what a database would do in one statement: each call has one before it reads, one before each kind of
        write and one before the commit.
        """
        with self._lock:
            self._steps_left = step

    @contextmanager
    def _transaction(self) -> Iterator[int]:
        """Hold the lock and yield the clock; undo everything if anything fails."""
        with self._lock:
            self._journal = Journal()
            try:
                self._step()
                yield self._clock.wall_us()
                self._step()
            except BaseException:
                self._journal.roll_back()
                raise

    def _step(self) -> None:
        if self._steps_left is not None:
            self._steps_left -= 1
            if self._steps_left <= 0:
                self._steps_left = None
                raise StoreUnavailable("the connection broke off (a fault that was asked for)")
        if self.unavailable:
            raise StoreUnavailable("the database is down (a fault that was asked for)")

    # -- partitions -------------------------------------------------------------------------------------------------

    def join(self, member: str, lease_us: int) -> list[str]:
        """See JobStore."""
        with self._transaction() as now:
            known = self._members.get(member)
            leaving = known is not None and known.leaving and known.expires_us > now
            self._journal.put(self._members, member, MemoryMember(now + lease_us, leaving))
            return sorted(name for name, m in self._members.items() if m.expires_us > now and not m.leaving)

    def leave(self, member: str, *, gone: bool) -> None:
        """See JobStore."""
        with self._transaction():
            if gone:
                self._journal.put(self._members, member, None)
            elif member in self._members:
                self._journal.set(self._members[member], leaving=True)

    def partitions(self) -> list[PartitionLease]:
        """See JobStore."""
        with self._transaction():
            return [PartitionLease(number, p.owner, p.epoch, p.expires_us, p.offered)
                    for number, p in sorted(self._partitions.items())]

    def take_partitions(self, member: str, wanted: Iterable[int], lease_us: int) -> dict[int, int]:
        """See JobStore."""
        with self._transaction() as now:
            taken = {}
            for number in sorted(set(wanted) & set(self._partitions)):
                p = self._partitions[number]
                if p.owner in ("", member) or p.expires_us <= now or p.offered:
                    self._journal.set(p, owner=member, epoch=p.epoch + 1, expires_us=now + lease_us, offered=False)
                    taken[number] = p.epoch
            return taken

    def renew_partitions(self, member: str, epochs: Mapping[int, int], lease_us: int) -> set[int]:
        """See JobStore."""
        with self._transaction() as now:
            mine = self._owned(member, epochs)
            for p in mine.values():
                self._journal.set(p, expires_us=now + lease_us)
            return set(mine)

    def offer_partitions(self, member: str, epochs: Mapping[int, int]) -> None:
        """See JobStore."""
        with self._transaction():
            for p in self._owned(member, epochs).values():
                self._journal.set(p, offered=True)

    def release_partitions(self, member: str, epochs: Mapping[int, int]) -> None:
        """See JobStore."""
        with self._transaction():
            for p in self._owned(member, epochs).values():
                self._journal.set(p, owner="", expires_us=0, offered=False)

    def _owned(self, member: str, epochs: Mapping[int, int]) -> dict[int, MemoryPartition]:
        return {number: self._partitions[number] for number, epoch in epochs.items()
                if self._holds(number, epoch) and self._partitions[number].owner == member}

    def _holds(self, number: int, epoch: int) -> bool:
        """Say whether the partition is owned under that very epoch."""
        p = self._partitions.get(number)
        return p is not None and p.owner != "" and p.epoch == epoch

    # -- lanes ------------------------------------------------------------------------------------------------------

    def lane(self, lane: int) -> LaneRecord:
        """See JobStore."""
        with self._transaction():
            return self._lane_record(lane)

    def raise_generation(self, lane: int, seen: int, replication_id: str) -> LaneRecord:
        """See JobStore."""
        with self._transaction() as now:
            if self._lane_record(lane).generation == seen:
                self._journal.set(self._lanes[lane], generation=seen + 1, replication_id=replication_id, began_us=now)
            return self._lane_record(lane)

    def note_plain_tasks(self, lane: int, generation: int, there: bool) -> None:
        """See JobStore."""
        with self._transaction():
            if self._lane_record(lane).generation == generation:
                self._journal.set(self._lanes[lane], has_plain_tasks=there)

    def _lane_record(self, lane: int) -> LaneRecord:
        if lane not in self._lanes:
            self._journal.put(self._lanes, lane, MemoryLane())
        row = self._lanes[lane]
        return LaneRecord(lane, row.generation, row.replication_id, row.began_us, row.has_plain_tasks)

    def may_be_running(self, lane: int, lanes: int) -> bool:
        """See JobStore."""
        with self._transaction() as now:
            return any(row.state in lifecycle.OPEN and row.due_us < now and lane_of(row.tenant, lanes) == lane
                       for row in self.executions.values())
