"""A queue in which tenants take turns: whoever has little waits for little, however much another one has.

**Rule.** Entries of one tenant leave in the order in which they came. A batch is shared evenly among the tenants that
have something; what one of them does not need goes to the others, so a batch is full while anything is left. Whoever
was served goes to the end of the line.

**Bound.** With *n* tenants in line and batches of *b*, a tenant's next entry leaves within ceil(n / b) batches. One that
stands alone gets whole batches.

**Cost.** A batch looks at no more tenants than it has room for, so 100,000 tenants with an entry each cost what one
tenant with 100,000 does, but for an entry in a dictionary.
"""
from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """Entries by tenant, and whose turn it is.

    Args:
        tenant_of: returns the tenant of an entry.
    """

    def __init__(self, tenant_of: Callable[[T], str]) -> None:
        self._tenant_of = tenant_of
        self._queues: dict[str, deque[T]] = {}        # in the order of their turns
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def extend(self, entries: Sequence[T]) -> None:
        """Put entries of one tenant behind those it has; a tenant that had none goes to the end of the line.

        However many they are, they go as one: the others in line do not wait for it.
        """
        tenant = self._tenant_of(entries[0])
        queue = self._queues.get(tenant)
        if queue is None:
            self._queues[tenant] = deque(entries)
        else:
            queue.extend(entries)
        self._count += len(entries)

    def put_back(self, entries: Sequence[T]) -> None:
        """Put entries that were taken in this order before those of their tenants, and these tenants first in line."""
        tenants = dict.fromkeys(map(self._tenant_of, entries))
        first = {tenant: self._queues.pop(tenant, deque()) for tenant in tenants}
        for entry in reversed(entries):
            first[self._tenant_of(entry)].appendleft(entry)
        self._queues = first | self._queues
        self._count += len(entries)

    def take(self, limit: int, without: Collection[str] = ()) -> list[T]:
        """Take up to *limit* entries, shared among the tenants in line.

        Args:
            without: tenants that are passed over this time; they keep their turn.
        """
        passed = {tenant: self._queues.pop(tenant) for tenant in without if tenant in self._queues}
        taken: list[T] = []
        while self._queues and len(taken) < limit:
            room = limit - len(taken)
            share = max(1, room // len(self._queues))
            for tenant in list(islice(self._queues, room)):
                queue = self._queues.pop(tenant)
                taken += [queue.popleft() for _ in range(min(share, len(queue)))]
                if queue:
                    self._queues[tenant] = queue
        if passed:
            self._queues = passed | self._queues
        self._count -= len(taken)
        return taken

    def waiting(self, tenant: str) -> int:
        """Return how many entries a tenant has."""
        return len(self._queues.get(tenant, ()))

    def keep(self, wanted: Callable[[T], bool]) -> int:
        """Let go of the entries that are not wanted; returns how many that were."""
        before = self._count
        for tenant, queue in list(self._queues.items()):
            kept = deque(entry for entry in queue if wanted(entry))
            if kept:
                self._queues[tenant] = kept
            else:
                del self._queues[tenant]
        self._count = sum(map(len, self._queues.values()))
        return before - self._count

    def clear(self) -> None:
        """Let go of everything."""
        self._queues.clear()
        self._count = 0
