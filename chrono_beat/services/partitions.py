"""Which partitions this dispatcher owns: membership, an even share without a leader, leases with epochs.

**Rule.** A partition is owned by lease, in the database, under an epoch that grows with every change of owner. The
claim checks the epoch in its own transaction, so whoever was deposed changes nothing there (invariant 2). Redis cannot
see the lease; it is told until when a publish counts, reckoned from the start of the last confirmed renewal (rule 3).

Every member asks each second who is alive and works out the same shares. What it should have and nobody holds it takes;
what it holds beyond its share it offers, and fires on until the other takes it. So partitions change hands without a
gap, and for up to a renewal two members fire the same rows, which the publish recognises by their ids.
"""
from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from chrono_beat.core.assignment import owned_by
from chrono_beat.core.clock import Clock
from chrono_beat.core.config import Config
from chrono_beat.ports import JobStore
from chrono_beat.telemetry import emit

_NOTHING: Mapping[int, int] = MappingProxyType({})


class Holding(NamedTuple):
    """What a member holds at an instant; never changed, only replaced, so that other threads read it without a lock.

    Args:
        epochs: {partition: epoch under which it is held}.
        renewed_us: the host's monotonic clock just before the oldest of the renewals that these leases rest on, in µs.
    """

    epochs: Mapping[int, int]
    renewed_us: int


class Change(NamedTuple):
    """What a renewal brought: partitions whose rows must be read, and those whose rows are no longer ours."""

    taken: frozenset[int]
    lost: frozenset[int]


class Partitions:
    """This member's part in sharing the partitions. One thread calls the methods; any thread may read `holding`.

    Args:
        store: keeps members and leases.
        clock: the host's clocks.
        member: a name that no other process has.
        config: number of partitions, and how long their leases last.
    """

    def __init__(self, store: JobStore, clock: Clock, member: str, config: Config) -> None:
        self.member = member
        self.holding = Holding(_NOTHING, 0)
        self.others: list[str] = []
        self.leaving = False
        self._store = store
        self._clock = clock
        self._count = config.partitions
        self._lease_us = round(config.partition_lease_ttl * 1_000_000)
        self._offered: set[int] = set()

    def renew(self) -> Change:
        """Prolong the leases, look who is there, and take or offer what the shares say.

        Raises:
            StoreUnavailable: nothing can be said; what is held runs out by itself unless a later renewal is confirmed.
        """
        before = dict(self.holding.epochs)
        started_us = self._clock.monotonic_us()
        kept = self._store.renew_partitions(self.member, before, self._lease_us) if before else set()
        lost = frozenset(before.keys() - kept)
        self._offered &= kept
        self._hold({p: before[p] for p in before if p in kept}, started_us)
        if lost:
            emit("partitions_lost", member=self.member, partitions=sorted(lost))
        members = self._store.join(self.member, self._lease_us)
        self.others = [other for other in members if other != self.member]
        taken = frozenset() if self.leaving else self._balance(set(owned_by(self.member, members, self._count)))
        emit("partitions_owned", member=self.member, count=len(self.holding.epochs))
        return Change(taken, lost)

    def _balance(self, share: set[int]) -> frozenset[int]:
        held = self.holding.epochs
        # One that was offered and is wanted again is taken from ourselves, under a new epoch: that ends the offer.
        wanted = (share - held.keys()) | (share & self._offered)
        taken: dict[int, int] = {}
        if wanted:
            started_us = self._clock.monotonic_us()
            taken = self._store.take_partitions(self.member, wanted, self._lease_us)
            self._offered -= taken.keys()
            self._hold({**held, **taken}, min(self.holding.renewed_us, started_us) if held else started_us)
        surplus = self.holding.epochs.keys() - share - self._offered
        if surplus:
            self._offer(surplus)
        if taken:
            emit("partitions_taken", member=self.member, partitions=sorted(taken))
        return frozenset(taken)

    def _offer(self, numbers: set[int]) -> None:
        self._store.offer_partitions(self.member, {number: self.holding.epochs[number] for number in numbers})
        self._offered |= numbers
        emit("partitions_offered", member=self.member, partitions=sorted(numbers))

    def leave(self) -> None:
        """Ask the others to take everything; what they have not taken yet is still ours to fire."""
        self.leaving = True
        self._store.leave(self.member, gone=False)
        if surplus := self.holding.epochs.keys() - self._offered:
            self._offer(set(surplus))

    def release(self) -> None:
        """Give up what nobody took, and be gone."""
        epochs = dict(self.holding.epochs)
        self._hold({}, 0)
        if epochs:
            self._store.release_partitions(self.member, epochs)
        self._store.leave(self.member, gone=True)

    def _hold(self, epochs: Mapping[int, int], renewed_us: int) -> None:
        self.holding = Holding(MappingProxyType(dict(epochs)), renewed_us)
