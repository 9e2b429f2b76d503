"""How fast a flood may go to Redis while others have work: a third of the time, so that everybody else's machines can work.

A tenant with thousands of due executions gains nothing by having the last of them readable at once: workers come to it
after those before. But publishing them without a pause keeps Redis and a core busy for as long as it lasts, and draws,
settles and whatever shares the machine wait for that. So after a batch with executions of a tenant that floods, its rest
is left out for twice the time that the batch took. Others go at once, and nobody waits where there are no others.
"""
from __future__ import annotations

from collections.abc import Callable, Set

FLOOD = 5_000
"""Due executions from which on a tenant floods."""

REST = 2
"""So many times as long as a batch of it took, a flood rests."""

OTHERS_COUNT_US = 10_000_000
"""Microseconds for which others count as having work, after the last of it."""


class Pace:
    """Who floods in one lane, and until when their rest waits. Instants are the host's monotonic clock, µs."""

    def __init__(self) -> None:
        self._flooding: set[str] = set()
        self._until_us = 0
        self._others_at_us: int | None = None

    def left_out(self, now_us: int) -> frozenset[str]:
        """Return the tenants that the next batch leaves out."""
        return frozenset(self._flooding) if now_us < self._until_us else frozenset()

    def rests_us(self, now_us: int) -> int:
        """Return for how long somebody is left out."""
        return max(0, self._until_us - now_us) if self._flooding else 0

    def note(self, tenants: Set[str], waiting: Callable[[str], int], began_us: int, ended_us: int) -> None:
        """Take notice of a batch that was published.

        Args:
            tenants: of its executions.
            waiting: returns how many more of a tenant are due.
            began_us, ended_us: when it was sent and answered.
        """
        flooding = {tenant for tenant in tenants | self._flooding if waiting(tenant) > FLOOD}
        if tenants - flooding:
            self._others_at_us = ended_us
        shared = self._others_at_us is not None and ended_us - self._others_at_us <= OTHERS_COUNT_US
        if not shared:
            self._until_us = 0
        elif flooding & tenants:
            self._until_us = ended_us + REST * (ended_us - began_us)
        self._flooding = flooding
