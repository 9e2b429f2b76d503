"""Who floods the look-ahead, so that a look in between leaves them out and finds what the others have.

Scans go by due time: a tenant with 500,000 rows overdue stands before everybody who became due a second later, and a
scan takes a batch of them at a time.

**Rule.** A tenant with more than its share of a full batch floods, until a look finds less than a batch. While somebody
floods, one look each *every_us* leaves these tenants out; all other looks are as ever.

**Bound.** What is due of a tenant that does not flood is found within *every_us* and one look, however much others have.
Where what is left fills a batch as well, those who fill it flood, too; whoever is left has no more than the share.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

SHARE = 0.25
"""Of a batch; with more than that, a tenant floods."""


class Floods:
    """Which tenants flood now, and when the next look without them is due.

    Args:
        every_us: microseconds between two looks that leave them out.
        limit: rows of a full batch.
    """

    def __init__(self, every_us: int, limit: int) -> None:
        self._every_us = every_us
        self._limit = limit
        self._next_us = 0
        self._tenants: set[str] = set()

    def left_out(self, now_us: int) -> list[str]:
        """Return the tenants that the look of now leaves out: mostly nobody."""
        if not self._tenants or now_us < self._next_us:
            return []
        self._next_us = now_us + self._every_us
        return sorted(self._tenants)

    def note(self, batches: Iterable[Iterable[str]], *, all_of_them: bool) -> None:
        """Remember what a look has found.

        Args:
            batches: the tenants of the rows of each scan, one for each row.
            all_of_them: whether the look left nobody out; only such a one shows that a flood is over.
        """
        counts = [Counter(tenants) for tenants in batches]
        full = [found for found in counts if found.total() >= self._limit]
        if all_of_them and not full:
            self._tenants.clear()
        for found in full:
            self._tenants.update(tenant for tenant, count in found.items() if count > self._limit * SHARE)
