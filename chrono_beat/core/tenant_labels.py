"""Which tenants a metric names: the busiest few, so that a label has a bounded number of values however many tenants there are.

The first tenants that come get a name while there is room. After each `RANK_EVERY` counted executions a nameless tenant that
had twice as many as a named one, and not too few, takes its name; the factor keeps two that are alike from taking it in
turns. Counts are halved then, so that what counts is of late. The watched are bounded as well: beyond twice
`WATCHED_FOR_ONE_NAME` for each name the lesser half is forgotten, so a tenant far below is found only by becoming busier.
"""
from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping

OTHER = "other"
"""The label of all tenants without a name of their own; also of one that is really called so."""

RANK_EVERY = 10_000
"""Executions after which names are given anew."""

WATCHED_FOR_ONE_NAME = 10
FACTOR = 2
LEAST_SHARE = 10
"""A newcomer has at least one in so many of what would be each name's equal part: below that it is noise."""


class TenantLabels:
    """The names in use. Not safe for threads.

    Args:
        limit: tenants that are named at most; 0 for none.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._named: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._since = 0

    def of(self, tenant: str) -> str:
        """Return the label of a tenant."""
        return tenant if tenant in self._named else OTHER

    def note(self, executions: Mapping[str, int]) -> list[str]:
        """Count a batch.

        Args:
            executions: tenant to how many; "" for one that nobody knows.

        Returns:
            The tenants that lost their names by it.
        """
        for tenant, count in executions.items():
            if tenant in ("", OTHER):
                continue
            self._counts[tenant] += count
            self._since += count
            if len(self._named) < self._limit:
                self._named.add(tenant)
        if len(self._counts) > 2 * WATCHED_FOR_ONE_NAME * max(1, self._limit):
            self._counts = Counter(dict(self._counts.most_common(WATCHED_FOR_ONE_NAME * max(1, self._limit))))
        return self._rank() if self._since >= RANK_EVERY else []

    def _rank(self) -> list[str]:
        lost = []
        counts = self._counts
        ranked = heapq.nlargest(self._limit, counts, key=lambda tenant: (counts[tenant], tenant))
        least = sorted(self._named, key=lambda tenant: (counts[tenant], tenant))
        for newcomer, named in zip([tenant for tenant in ranked if tenant not in self._named], least, strict=False):
            if counts[newcomer] <= FACTOR * counts[named] or counts[newcomer] * LEAST_SHARE * self._limit < RANK_EVERY:
                break
            self._named.remove(named)
            self._named.add(newcomer)
            lost.append(named)
        self._counts = Counter({tenant: count // 2 for tenant, count in counts.items() if count > 1})
        self._since = 0
        return lost


def top(figures: Mapping[str, int], limit: int) -> dict[str, int]:
    """Return the greatest figures by tenant, and the sum of the rest as `OTHER` where there is a rest."""
    named = heapq.nlargest(limit, (tenant for tenant in figures if tenant not in ("", OTHER)),
                           key=lambda tenant: (figures[tenant], tenant))
    found = {tenant: figures[tenant] for tenant in named}
    if len(found) < len(figures):
        found[OTHER] = sum(figures.values()) - sum(found.values())
    return found
