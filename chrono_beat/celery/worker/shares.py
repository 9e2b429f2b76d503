"""How a worker shares its credit over several lanes and pools: by the weights of the tenants that are ready in each.

Weights act within a line of tenants, which is one pool in one lane (core/fairness.py). So that a tenant gets the same
whatever lane its name fell into, a line is asked for as much as its ready tenants weigh together. This is the fair
queueing of tenants once more, with lines in their place: each has a virtual time, the least one is asked next, and
each execution it is asked for moves it on by 1 / weight. It is moved on by what it was asked for, not by what it had:
a line that has nothing saves nothing up. What it leaves the others get at once, and they owe nothing for it.

The weights are looked up once in REFRESH_SECONDS while the worker draws, however much it draws. A line that had none
counts as one tenant of weight 1 until then, so new work is found before it is weighed.
"""
from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

REFRESH_SECONDS = 1.0


class Line(NamedTuple):
    """The tenants of one pool in one lane."""

    lane: int
    pool: str


class Shares:
    """Whose turn it is among lines."""

    def __init__(self) -> None:
        self._times: dict[Line, float] = {}
        self._weights: dict[Line, int] = {}
        self._due = 0.0

    def weigh(self, weights: Mapping[Line, int], now_seconds: float) -> None:
        """Note what the lines weigh now."""
        self._weights = dict(weights)
        self._due = now_seconds + REFRESH_SECONDS

    def is_due(self, lines: Sequence[Line], now_seconds: float) -> bool:
        """Say whether the weights should be looked up: there are several lines, and it has been a while."""
        return len(lines) > 1 and now_seconds >= self._due

    def allot(self, lines: Sequence[Line], credit: int, *, lent: bool = False) -> dict[Line, int]:
        """Share a credit over lines; of equal ones the first is first.

        Args:
            lines: that may have work.
            credit: executions.
            lent: it is what others have left.

        Returns:
            How many to ask each line for; those that are asked for none are left out.
        """
        if not lent:
            least = min((self._times[line] for line in lines if line in self._times), default=0.0)
            self._times = {line: self._times.get(line, least) - least for line in lines}
        turns = [(self._times[line], nth) for nth, line in enumerate(lines)]
        heapq.heapify(turns)
        asked: Counter[Line] = Counter()
        for _ in range(credit if turns else 0):
            time, nth = turns[0]
            asked[lines[nth]] += 1
            heapq.heapreplace(turns, (time + 1 / max(1, self._weights.get(lines[nth], 1)), nth))
        if not lent:
            self._times.update({lines[nth]: time for time, nth in turns})
        return dict(asked)
