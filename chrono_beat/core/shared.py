"""Compiled cron schedules and their answers, shared by all jobs with the same meaning in the same zone.

**Theory.** A million jobs ``0 9 * * *`` have one next run, so it should be computed once. What is known about a
schedule is kept as *gaps*: pairs of neighbouring instants with nothing between them. Whoever asks from inside a known
gap is answered by bisection. A question outside costs the instants on its two sides, or the later one only if it was
asked from the end of a known gap, which is how a dispatcher walks.

**Bound.** `MAX_COMPILED` schedules with `MAX_GAPS` gaps each: about 7 kB a schedule when full. The oldest gap goes
first, the least recently used schedule too.

**Threads.** Readers look at one immutable snapshot and take no lock; writers replace it under a lock. Two threads that
ask the same new question both compute it, and agree.
"""
from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache

from chrono_beat.core.calendar import Fields
from chrono_beat.core.celery_text import parse_celery
from chrono_beat.core.cron_text import ParsedText, parse_cron
from chrono_beat.core.instants import Instants
from chrono_beat.core.zones import forget_zones, from_seconds, timeline, to_seconds

MAX_COMPILED = 8_192
"""Compiled schedules kept, and texts kept of each kind."""

MAX_GAPS = 32
"""Known gaps kept for a schedule."""

_DAWN = datetime.min.replace(tzinfo=UTC)

_Gap = tuple[datetime | None, datetime | None]  # neighbouring instants; None: there is none on that side

_count_lock = threading.Lock()
_computed = 0


def computations() -> int:
    """Return how many instants have been computed in this process, rather than answered from what was known."""
    return _computed


class SharedInstants:
    """The instants of one meaning in one zone, as aware UTC datetimes, with a memory."""

    def __init__(self, instants: Instants) -> None:
        self.instants = instants
        self._write = threading.Lock()
        self._order: list[datetime] = []  # starts of gaps, oldest first
        self._known: tuple[list[datetime], list[_Gap]] = ([], [])  # starts of gaps, sorted; the gaps themselves

    def next_after(self, t: datetime) -> datetime | None:
        """Return the first instant later than *t*."""
        starts, gaps = self._known
        index = bisect_right(starts, t) - 1
        known = gaps[index][1] if index >= 0 else t
        if known is None or t < known:
            return known
        at_end_of_gap = index >= 0 and known == t
        later = self._compute(self.instants.first_from, to_seconds(t)[0] + 1)
        earlier = t if at_end_of_gap else self._compute(self.instants.last_before, to_seconds(t)[0] + 1)
        self._remember((earlier, later))
        return later

    def previous_before(self, t: datetime) -> datetime | None:
        """Return the last instant earlier than *t*."""
        starts, gaps = self._known
        index = bisect_left(starts, t) - 1
        if index >= 0:
            end = gaps[index][1]
            if end is None or t <= end:
                return gaps[index][0]
        second, fraction = to_seconds(t)
        edge = second + fraction
        at_start_of_gap = index + 1 < len(starts) and gaps[index + 1][0] == t
        earlier = self._compute(self.instants.last_before, edge)
        later = t if at_start_of_gap else self._compute(self.instants.first_from, edge)
        self._remember((earlier, later))
        return earlier

    def count_between(self, start: datetime, end: datetime, limit: int) -> int:
        """Count the instants in [start, end), ``limit + 1`` if there are more than *limit*."""
        first, first_fraction = to_seconds(start)
        last, last_fraction = to_seconds(end)
        return self.instants.count(first + first_fraction, last + last_fraction, limit)

    def _compute(self, search: Callable[[int], int | None], utc: int) -> datetime | None:
        global _computed
        with _count_lock:
            _computed += 1
        found = search(utc)
        return None if found is None else from_seconds(found)

    def _remember(self, gap: _Gap) -> None:
        start = gap[0] or _DAWN
        with self._write:
            known = dict(zip(*self._known, strict=True))
            if start not in known:
                self._order.append(start)
            known[start] = gap
            if len(self._order) > MAX_GAPS:
                del known[self._order.pop(0)]
            starts = sorted(known)
            self._known = (starts, [known[start] for start in starts])


@lru_cache(maxsize=MAX_COMPILED)
def parsed_cron(text: str) -> ParsedText:
    """Return the meaning of cron text, kept."""
    return parse_cron(text)


@lru_cache(maxsize=MAX_COMPILED)
def parsed_celery(texts: tuple[str, ...]) -> Fields:
    """Return the meaning of Celery's five fields, kept."""
    return parse_celery(texts)


@lru_cache(maxsize=MAX_COMPILED)
def shared_instants(fields: Fields, zone: str) -> SharedInstants:
    """Return the one compiled schedule of this meaning and zone."""
    return SharedInstants(Instants(fields, timeline(zone)))


def forget_shared() -> None:
    """Drop everything compiled and known, zones included; call it when the zone data have changed."""
    shared_instants.cache_clear()
    parsed_cron.cache_clear()
    parsed_celery.cache_clear()
    forget_zones()
