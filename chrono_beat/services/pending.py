"""Executions that are claimed and not yet published, with their messages built: the one thing that threads share.

The look-ahead adds, the firing thread takes; both hold a small lock for as long as the wheel needs. An entry carries
the epoch of its partition and the generation of its lane as they were when its row was read. Whoever takes it compares
them with those of now, so an entry left behind by a change does no harm; `drop` and `clear` only free its memory.

What a tenant has at one instant waits in the wheel as one *bunch* and leaves it as one. So the instant at which a flood
becomes due costs its neighbours no more than any other, however large the flood (invariant 8).
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


Bunch = tuple[int, int, str]
"""Names entries that go together: due in microseconds, lane, tenant."""

MAX_HUSKS = 1_024
"""Replaced entries that may stay in memory, whatever the number of those that wait."""


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
        self._index: dict[str, Entry] = {}            # by execution; an entry that is not here is a husk
        self._husks = 0
        self._bunches: dict[Bunch, list[Entry]] = {}
        self._wheel: TimerWheel[Bunch] = TimerWheel()
        self._due: tuple[Turns[Entry], ...] = tuple(Turns(_tenant_of) for _ in range(lanes))

    def __len__(self) -> int:
        return len(self._index)

    def due_count(self) -> int:
        """Return how many are due and not yet taken."""
        return sum(map(len, self._due))

    def add(self, entries: Iterable[Entry], not_before_us: int = 0) -> None:
        """Let entries wait for their due time, or longer; one of the same execution is replaced."""
        with self._lock:
            index, bunches = self._index, self._bunches
            for entry in entries:
                item = entry.item
                self._husks += item.execution_id in index
                index[item.execution_id] = entry
                name = (max(item.due_us, not_before_us), entry.lane, item.tenant)
                bunch = bunches.get(name)
                if bunch is None:
                    bunches[name] = [entry]
                    self._wheel.add(name, name[0], name)
                else:
                    bunch.append(entry)
            if self._husks > max(MAX_HUSKS, len(index)):
                self._clear_husks()

    def advance(self, reached_us: int, limit: int) -> bool:
        """Move what has become due, at most *limit* bunches, to the queues of their lanes; says whether that was all."""
        with self._lock:
            due = self._wheel.advance(reached_us, limit=limit)
            for name in due:
                self._due[name[1]].extend(self._bunches.pop(name))
        return len(due) < limit

    def lanes_due(self) -> list[int]:
        """Return the lanes with something to take."""
        return [lane for lane, queue in enumerate(self._due) if queue]

    def take(self, lane: int, limit: int, without: Collection[str] = ()) -> list[Entry]:
        """Take due entries of the lane, its tenants in turn but for those to be left out, each tenant's oldest first."""
        live: list[Entry] = []
        with self._lock:
            while not live and (taken := self._due[lane].take(limit, without)):
                live = [entry for entry in taken if self._waits(entry)]
                self._husks -= len(taken) - len(live)
            for entry in live:
                del self._index[entry.item.execution_id]
        return live

    def waiting(self, lane: int, tenant: str) -> int:
        """Return how many due entries of the lane a tenant has that were not taken."""
        return self._due[lane].waiting(tenant)

    def put_back(self, lane: int, entries: Sequence[Entry], edition: int) -> None:
        """Return what was taken under an edition, so that it is taken before what is due of the same tenants.

        What was added of the same executions meanwhile is newer and stands in its place.
        """
        with self._lock:
            if edition != self.edition:
                return
            missing = [entry for entry in entries if entry.item.execution_id not in self._index]
            self._index.update((entry.item.execution_id, entry) for entry in missing)
            self._due[lane].put_back(missing)

    def next_due_us(self) -> int | None:
        """Return until when nothing in the wheel is due; None where it is empty."""
        with self._lock:
            return self._wheel.next_due_us()

    def drop(self, partitions: Iterable[int]) -> int:
        """Let go of everything of these partitions; returns how many entries that were."""
        gone = set(partitions)
        with self._lock:
            before = len(self._index)
            self._index = {key: entry for key, entry in self._index.items() if entry.partition not in gone}
            self._clear_husks()
            return before - len(self._index)

    def clear(self) -> int:
        """Let go of everything; returns how many entries that were."""
        with self._lock:
            dropped = len(self._index)
            self.edition += 1
            self._index.clear()
            self._clear_husks()
        return dropped

    def _waits(self, entry: Entry) -> bool:
        return self._index.get(entry.item.execution_id) is entry

    def _clear_husks(self) -> None:
        for name, bunch in list(self._bunches.items()):
            bunch[:] = filter(self._waits, bunch)
            if not bunch:
                del self._bunches[name]
                self._wheel.cancel(name)
        for queue in self._due:
            queue.keep(self._waits)
        self._husks = 0
