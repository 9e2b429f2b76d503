"""Executions that are claimed and not yet published, with their messages built: the one thing that threads share.

The look-ahead adds, the firing thread takes; both hold a small lock for as long as the wheel needs. An entry carries
the epoch of its partition and the generation of its lane as they were when its row was read. Whoever takes it compares
them with those of now, so an entry left behind by a change does no harm; `drop` and `clear` only free its memory.
"""
from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from chrono_beat.core.records import PublishItem
from chrono_beat.core.turns import Turns
from chrono_beat.core.wheel import TimerWheel


class Entry(NamedTuple):
    """An execution on its way, and what must still be true when it goes."""

    item: PublishItem
    partition: int
    epoch: int
    lane: int
    generation: int
    again_until_us: int = 0          # offered once more, at Redis' time until then; 0: for the first time


def _tenant_of(entry: Entry) -> str:
    return entry.item.tenant


class Pending:
    """The wheel, and behind it, for each lane, what has become due: there tenants take turns (invariant 8).

    Args:
        lanes: how many lanes there are.
    """

    def __init__(self, lanes: int) -> None:
        self.edition = 0
        """Grows with every `clear`; what was taken under an earlier one is not put back."""
        self.reload_wanted = ""
        """Why everything has to be read from the database anew; "" for no need."""
        self._lock = threading.Lock()
        self._wheel: TimerWheel[Entry] = TimerWheel()
        self._keys: dict[int, set[str]] = {}
        self._due: tuple[Turns[Entry], ...] = tuple(Turns(_tenant_of) for _ in range(lanes))

    def __len__(self) -> int:
        return len(self._wheel) + self.due_count()

    def due_count(self) -> int:
        """Return how many are due and not yet taken."""
        return sum(map(len, self._due))

    def add(self, entries: Iterable[Entry], not_before_us: int = 0) -> None:
        """Let entries wait for their due time, or longer; one of the same execution is replaced."""
        with self._lock:
            add, keys = self._wheel.add, self._keys
            for entry in entries:
                key = entry.item.execution_id
                add(key, max(entry.item.due_us, not_before_us), entry)
                known = keys.get(entry.partition)
                if known is None:
                    known = keys[entry.partition] = set()
                known.add(key)

    def advance(self, reached_us: int, limit: int) -> None:
        """Move what has become due, at most *limit* entries, to the queues of their lanes."""
        with self._lock:
            for entry in self._wheel.advance(reached_us, limit=limit):
                self._keys[entry.partition].discard(entry.item.execution_id)
                self._due[entry.lane].append(entry)

    def lanes_due(self) -> list[int]:
        """Return the lanes with something to take."""
        return [lane for lane, queue in enumerate(self._due) if queue]

    def take(self, lane: int, limit: int, without: Collection[str] = ()) -> list[Entry]:
        """Take due entries of the lane, its tenants in turn but for those to be left out, each tenant's oldest first."""
        with self._lock:
            return self._due[lane].take(limit, without)

    def waiting(self, lane: int, tenant: str) -> int:
        """Return how many due entries of the lane a tenant has that were not taken."""
        return self._due[lane].waiting(tenant)

    def put_back(self, lane: int, entries: Sequence[Entry], edition: int) -> None:
        """Return what was taken under an edition, so that it is taken before what is due of the same tenants."""
        with self._lock:
            if edition == self.edition:
                self._due[lane].put_back(entries)

    def next_due_us(self) -> int | None:
        """Return until when nothing in the wheel is due; None where it is empty."""
        with self._lock:
            return self._wheel.next_due_us()

    def drop(self, partitions: Iterable[int]) -> int:
        """Let go of everything of these partitions; returns how many entries that were."""
        gone = set(partitions)
        dropped = 0
        with self._lock:
            for partition in gone:
                for key in self._keys.pop(partition, ()):
                    self._wheel.cancel(key)
                    dropped += 1
            for queue in self._due:
                dropped += queue.keep(lambda entry: entry.partition not in gone)
        return dropped

    def clear(self) -> int:
        """Let go of everything; returns how many entries that were."""
        with self._lock:
            dropped = len(self._wheel) + self.due_count()
            self.edition += 1
            self._wheel.clear()
            self._keys.clear()
            for queue in self._due:
                queue.clear()
        return dropped
