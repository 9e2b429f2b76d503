"""How fast a tenant may create jobs: a token bucket.

A creation takes a token. Tokens come back at ``rate`` a second up to ``burst``, so after a pause ``burst`` jobs can be
created at once, and in the long run ``rate`` a second. Example: rate 100, burst 1,000, all taken at noon: the next one is
possible 10 ms later, 1,000 at once ten seconds later.

Instants may come out of order, since a caller reads the clock before it has waited for the tenant's lock. Then nothing
comes back for the time in between: the bucket gives too few rather than one too many. Only a clock that was set back by
more than a minute is believed.
"""
from __future__ import annotations

from dataclasses import dataclass, replace

MAX_STEP_BACK_US = 60_000_000
SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """What a tenant may still create.

    Args:
        rate: tokens that come back each second.
        burst: tokens at most; at least one.
        tokens: what was left at *counted_us*; None for all.
        counted_us: when, in microseconds since the epoch; None for never.
    """

    rate: float
    burst: int
    tokens: float | None = None
    counted_us: int | None = None

    def at(self, now_us: int) -> Bucket:
        """Return the bucket with what has come back by now."""
        most = float(max(self.burst, 1))
        if self.tokens is None or self.counted_us is None:
            return replace(self, tokens=most, counted_us=now_us)
        if self.counted_us - now_us > MAX_STEP_BACK_US:
            return replace(self, tokens=min(most, self.tokens), counted_us=now_us)
        since_us = max(0, now_us - self.counted_us)
        tokens = min(most, self.tokens + since_us * max(self.rate, 0.0) / SECOND_US)
        return replace(self, tokens=tokens, counted_us=self.counted_us + since_us)

    def take(self, now_us: int, count: int = 1) -> Bucket | None:
        """Return the bucket with *count* tokens less; None where it has not so many."""
        filled = self.at(now_us)
        left = filled.tokens or 0.0
        return replace(filled, tokens=left - count) if left >= count else None

    def whole(self, now_us: int) -> int:
        """Return how many tokens can be taken at once."""
        return int(self.at(now_us).tokens or 0.0)

    def wait_seconds(self, now_us: int) -> float | None:
        """Return the seconds until there is a token; None where none comes back."""
        left = self.at(now_us).tokens or 0.0
        if left >= 1:
            return 0.0
        return (1 - left) / self.rate if self.rate > 0 else None
