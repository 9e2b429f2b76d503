"""A hierarchical timer wheel: what is claimed and not yet due waits here.

**Rule.** `advance(now_us)` hands out every entry with ``due_us <= now_us`` and never one with ``due_us > now_us``. The
wheel's ticks are a filing system, not the decision: the decision compares the exact microsecond.

**Theory.** Time is cut into ticks of 10 ms. Read a tick's number as digits: the lowest 8 bits pick one of 256 slots
of the finest ring, the next 6 bits one of 64 slots of the middle ring, the next 6 one of 64 of the coarsest. An entry
is filed on the finest ring on which it can be told from now, that is by the highest digit in which its tick differs
from the current tick; what differs above all rings goes to `_beyond`, by whole turns of the coarsest ring. As time
enters a coarse slot, the slot's entries are filed anew, one ring finer. Entries of ticks that time has reached are
*ripe*: a short list, sorted by due time, from which `advance` takes the front.

=======  ==============  =============
ring     a slot covers   a turn covers
=======  ==============  =============
finest   10 ms           2.56 s
middle   2.56 s          163.84 s
coarse   163.84 s        2.9 h
=======  ==============  =============

**Worked example.** It is 0 s. An entry due at 5.005 s has tick 500 = 1 × 256 + 244, so its middle digit differs: it
goes to middle slot 1. Time reaches 2.56 s (tick 256): middle slot 1 is filed anew, the entry lands in finest slot 244.
Time reaches 5.001 s (tick 500): slot 244 is ripe, but 5.005 s has not come, so nothing fires. At 5.005 s it does.

**Bound.** Adding and cancelling cost O(1). An entry is filed at most four times before it is ripe, and a ripe slot is
sorted once, so firing costs O(1) an entry at an even load. A jump costs the occupied slots it passes, at most
256 + 64 + 64 and the occupied turns beyond, not the ticks it skips. A cancelled entry leaves a husk in its slot; husks
are cleared when they outnumber the live entries, so memory is bounded by twice the live ones (about 150 bytes each
without key and item, most of it the tuple, the due time and the index of keys) and `MAX_HUSKS`.

**Weakness.** A burst in one tick is sorted, so it fires in O(n log n), and something added to a half-fired burst makes
the rest be merged again. Time that goes back a little keeps everything and fires nothing; time that goes back by more
than `BACK_STEP_TICKS` files all entries anew once, so a clock that keeps swinging that far costs O(n) a swing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from operator import itemgetter
from typing import Generic, TypeVar

T = TypeVar("T")

TICK_US = 10_000
"""Microseconds in a tick, the wheel's grain of filing (not of firing)."""

RING_BITS = (8, 6, 6)
"""Bits of a tick's number that pick a slot, ring by ring, finest first: 256, 64 and 64 slots."""

BACK_STEP_TICKS = 256
"""Ticks that time may go back before all entries are filed anew: one turn of the finest ring."""

MAX_HUSKS = 1_024
"""Cancelled entries that may stay in slots whatever the number of live entries."""

_Entry = tuple[int, Hashable, T]  # due_us, key, item

_due_us = itemgetter(0)


class _Ring(Generic[T]):
    """One digit of the tick: a list of entries for each value, and a bit for each list that has some."""

    __slots__ = ("mask", "occupied", "shift", "slots", "turn_ticks")

    def __init__(self, *, shift: int, bits: int) -> None:
        self.shift = shift
        self.mask = (1 << bits) - 1
        self.turn_ticks = 1 << (shift + bits)
        self.slots: list[list[_Entry[T]]] = [[] for _ in range(1 << bits)]
        self.occupied = 0

    def first_occupied(self) -> int:
        """The lowest position that has entries; -1 if none has."""
        return (self.occupied & -self.occupied).bit_length() - 1

    def take(self, position: int) -> list[_Entry[T]]:
        taken, self.slots[position] = self.slots[position], []
        self.occupied &= ~(1 << position)
        return taken

    def clear(self) -> None:
        while self.occupied:
            self.take(self.first_occupied())


class TimerWheel(Generic[T]):
    """Entries waiting for their due time; see the module's text for how.

    Not safe for concurrent use: one thread, or the caller's lock. The wheel has no clock; time is what `advance` is
    told, in microseconds since the epoch, or since any other zero that all its callers share.

    Args:
        now_us: Where time stands. A wrong value costs one more filing of each entry and changes no answer.
    """

    def __init__(self, *, now_us: int = 0) -> None:
        rings = []
        shift = 0
        for bits in RING_BITS:
            rings.append(_Ring[T](shift=shift, bits=bits))
            shift += bits
        self._rings: tuple[_Ring[T], ...] = tuple(rings)
        self._beyond_shift = shift
        self._beyond: dict[int, list[_Entry[T]]] = {}
        self._tick = max(0, now_us // TICK_US)
        # In the order of adding, which is the order of firing at the same due time.
        self._index: dict[Hashable, _Entry[T]] = {}
        self._husks = 0
        self._ripe: list[_Entry[T]] = []
        self._sorted = 0                              # so many ripe entries, from the first on, are in order

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, key: object) -> bool:
        return key in self._index

    def add(self, key: Hashable, due_us: int, item: T) -> None:
        """Let an item wait for its due time, in place of what waits under the same key.

        Args:
            key: Names the entry for `cancel`.
            due_us: Microseconds. In the past means due at the next `advance`; there is no latest value.
            item: What `advance` returns.
        """
        if key in self._index:
            self.cancel(key)
        entry = (due_us, key, item)
        self._index[key] = entry
        self._file((entry,))

    def cancel(self, key: Hashable) -> T | None:
        """Forget an entry.

        Args:
            key: As given to `add`.

        Returns:
            Its item, or None if nothing waits under that key (it may have fired).
        """
        entry = self._index.pop(key, None)
        if entry is None:
            return None
        self._husks += 1
        if self._husks > max(MAX_HUSKS, len(self._index)):
            self._file_all_anew(self._tick)
        return entry[2]

    def clear(self) -> None:
        """Forget all entries; time stays where it was."""
        self._index.clear()
        self._file_all_anew(self._tick)

    def advance(self, now_us: int, *, limit: int | None = None) -> list[T]:
        """Take out what has become due.

        Args:
            now_us: The time, in microseconds. It may jump ahead by any span, and may go back: nothing fires twice.
            limit: The most items to return, so that a burst can be taken in pieces; the rest is returned by the next
                calls. None: no limit.

        Returns:
            The items with ``due_us <= now_us``, ordered by due time, then by the order in which they were added.

        Raises:
            ValueError: The limit is less than 1.
        """
        if limit is not None and limit < 1:
            raise ValueError(f"limit must be at least 1, not {limit}")
        tick = max(0, now_us // TICK_US)
        if tick > self._tick:
            self._turn_to(tick)
        elif tick < self._tick - BACK_STEP_TICKS:
            self._file_all_anew(tick)
        return self._take_due(now_us, limit) if self._ripe else []

    def next_due_us(self) -> int | None:
        """Say until when a caller may sleep, without looking at more than the first entries.

        Returns:
            Microseconds; no entry is due before. It is exact once time has reached the entry's tick and else the
            start of the slot that holds it, so a sleeper wakes a few times (once a ring) before a far entry fires.
            None if nothing waits.
        """
        if not self._index:
            return None
        self._sort_ripe()
        if self._ripe:
            return self._ripe[0][0]
        for ring in self._rings:
            if ring.occupied:
                turn_start = self._tick // ring.turn_ticks * ring.turn_ticks
                return (turn_start + (ring.first_occupied() << ring.shift)) * TICK_US
        return (min(self._beyond) << self._beyond_shift) * TICK_US

    def _file(self, entries: Iterable[_Entry[T]]) -> None:
        """Put each entry where the current tick says: with the ripe ones, on a ring, or beyond."""
        now = self._tick
        rings = self._rings
        for entry in entries:
            tick = entry[0] // TICK_US
            if tick <= now:
                self._ripe.append(entry)
                continue
            differing = tick ^ now
            for ring in rings:
                if differing < ring.turn_ticks:
                    position = (tick >> ring.shift) & ring.mask
                    slot = ring.slots[position]
                    if not slot:
                        ring.occupied |= 1 << position
                    slot.append(entry)
                    break
            else:
                self._beyond.setdefault(tick >> self._beyond_shift, []).append(entry)

    def _turn_to(self, tick: int) -> None:
        """Move time ahead, so that every entry is ripe or filed where `_file` would put it now."""
        differing = tick ^ self._tick
        self._tick = tick
        for ring in self._rings:
            same_turn = differing < ring.turn_ticks
            last = (tick >> ring.shift) & ring.mask if same_turn else ring.mask
            while ring.occupied and (position := ring.first_occupied()) <= last:
                self._pass(ring.take(position), wholly=not same_turn or position < last or ring.shift == 0)
            if same_turn:
                return
        last_turn = tick >> self._beyond_shift
        for turn in sorted(turn for turn in self._beyond if turn <= last_turn):
            self._pass(self._beyond.pop(turn), wholly=turn < last_turn)

    def _pass(self, entries: list[_Entry[T]], *, wholly: bool) -> None:
        """Deal with a slot that time has passed wholly (its entries are ripe) or entered (they move a ring finer)."""
        if wholly:
            self._ripe += entries
            return
        if self._husks:
            index = self._index
            live = [entry for entry in entries if index.get(entry[1]) is entry]
            self._husks -= len(entries) - len(live)
            entries = live
        self._file(entries)

    def _take_due(self, now_us: int, limit: int | None) -> list[T]:
        self._sort_ripe()
        index = self._index
        fired: list[T] = []
        seen = 0
        for entry in self._ripe:
            due_us, key, item = entry
            if due_us > now_us or len(fired) == limit:
                break
            seen += 1
            # Looking a key up costs more than all the rest here, so it is done only where there are husks at all.
            if not self._husks or index.get(key) is entry:
                del index[key]
                fired.append(item)
            else:
                self._husks -= 1
        del self._ripe[:seen]
        self._sorted -= seen
        return fired

    def _sort_ripe(self) -> None:
        if self._sorted == len(self._ripe):
            return
        # Entries of the same due time lie in the order of adding, because one slot held them all and what came after the
        # slot was passed is behind them; the sort is stable, so no serial number is stored. What ripens while a burst is
        # taken in pieces is mostly due later than all of it, and then only that has to be sorted.
        fresh = sorted(self._ripe[self._sorted:], key=_due_us)
        if self._sorted and fresh[0][0] < self._ripe[self._sorted - 1][0]:
            self._ripe.sort(key=_due_us)
        else:
            self._ripe[self._sorted:] = fresh
        self._sorted = len(self._ripe)

    def _file_all_anew(self, tick: int) -> None:
        self._tick = tick
        self._husks = 0
        self._ripe = []
        self._sorted = 0
        self._beyond.clear()
        for ring in self._rings:
            ring.clear()
        self._file(self._index.values())
