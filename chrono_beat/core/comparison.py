"""Two schedulers side by side: what one really sent, and what a shadow of each entry would have sent.

Both sides are known within spans only: ours while the job was a shadow of this plan, theirs while somebody watched. A fire
counts as missing on the other side only where its counterpart, if there were one, would lie within what is known of that
side. So the ends of spans, a restart of the other beat and a gap in the watch are no differences.

Fires are paired in their order within a tolerance of half the shortest gap of the plan, a minute at most: each fire then has
one counterpart at most that is meant. An interval counts from another instant on each side, for the rest alike. The phase
between the sides, the difference of their circular means, is taken out first and told apart; a beat that drifts by more than
the interval within the span has really fired less often, and that is told as fires of one side.

Worked example: every 30 s, theirs at 5, 35, 65, 95, ours at 0, 30, 60, 90: the phase is 5 s, all are paired, 0 s apart.
Known weakness: a late fire of an entry with a short gap has no counterpart within half of that; a tolerance that is given
overrides it, and one above half the gap may pair neighbours.
"""
from __future__ import annotations

import cmath
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

from chrono_beat.core.shadow import compare

LONGEST_TOLERANCE = timedelta(seconds=60)


class Span(NamedTuple):
    """From *start* up to *end*."""

    start: datetime
    end: datetime


class Judged(NamedTuple):
    """What is to be said of one entry.

    Args:
        old: fires of the other scheduler in what both sides know.
        shadow: fires of ours there.
        matched: pairs.
        only_old: instants without a counterpart of ours.
        only_shadow: instants without a counterpart of theirs.
        furthest_seconds: the furthest apart of a pair, beside the phase.
        phase_seconds: how much later an interval fires there than here, in the last span.
    """

    old: int = 0
    shadow: int = 0
    matched: int = 0
    only_old: tuple[datetime, ...] = ()
    only_shadow: tuple[datetime, ...] = ()
    furthest_seconds: float = 0.0
    phase_seconds: float = 0.0

    @property
    def differs(self) -> bool:
        """Say whether anything stands alone."""
        return bool(self.only_old or self.only_shadow)


def united(spans: Iterable[Span]) -> list[Span]:
    """Return spans in their order, those that touch as one."""
    found: list[Span] = []
    for span in sorted(spans):
        if found and span.start <= found[-1].end:
            found[-1] = Span(found[-1].start, max(found[-1].end, span.end))
        else:
            found.append(span)
    return found


def tolerance_of(planned: Sequence[datetime], period: timedelta | None) -> timedelta:
    """Return how far two fires of one occurrence may be apart.

    Args:
        planned: instants that the schedule named, in their order.
        period: of an interval; None for other schedules.
    """
    gaps = [following - instant for instant, following in pairwise(planned)] if period is None else [period]
    return min(min(gaps, default=LONGEST_TOLERANCE * 2) / 2, LONGEST_TOLERANCE)


def judge(
    ours: Sequence[datetime], known_of_ours: Span, theirs: Sequence[datetime], known_of_theirs: Sequence[Span], *,
    tolerance: timedelta, period: timedelta | None = None,
) -> Judged:
    """Hold fires against each other.

    Args:
        ours: fires of the shadow, in their order.
        known_of_ours: when all fires of the shadow are among *ours*.
        theirs: fires of the other scheduler, in their order.
        known_of_theirs: spans in which all of these are among *theirs*, apart and in their order.
        tolerance: two fires that are no further apart are a pair.
        period: of an interval; None for other schedules.
    """
    total = Judged()
    for watch in known_of_theirs:
        total = _added(total, _in_one_watch(ours, known_of_ours, theirs, watch, tolerance, period))
    return total


def _in_one_watch(
    ours: Sequence[datetime], known: Span, theirs: Sequence[datetime], watch: Span, tolerance: timedelta,
    period: timedelta | None,
) -> Judged:
    here = _within(ours, known)
    there = _within(theirs, watch)
    phase = _phase(here, there, period) if period else timedelta(0)
    found = compare([at + phase for at in here], there, tolerance)

    def judged(at: datetime, side: Span) -> bool:
        """Would a counterpart at this instant lie in what is known of the other side?"""
        return side.start <= at - tolerance and at + tolerance <= side.end

    missing = tuple(at for at in found.missing if judged(at - phase, known))
    extra = tuple(at - phase for at in found.extra if judged(at, watch))
    return Judged(found.agreed + len(missing), found.agreed + len(extra), found.agreed, missing, extra, found.offset_seconds,
                  phase.total_seconds())


def _within(instants: Sequence[datetime], span: Span) -> list[datetime]:
    return list(instants[bisect_left(instants, span.start):bisect_right(instants, span.end)])


def _phase(ours: Sequence[datetime], theirs: Sequence[datetime], period: timedelta) -> timedelta:
    """Return by how much theirs come after ours, within half a period either way."""
    if not ours or not theirs:
        return timedelta(0)
    turn = 2 * math.pi / period.total_seconds()
    first = min(ours[0], theirs[0])

    def mean(instants: Sequence[datetime]) -> complex:
        return sum(cmath.exp(1j * turn * (at - first).total_seconds()) for at in instants)

    return timedelta(seconds=cmath.phase(mean(theirs) * mean(ours).conjugate()) / turn)


def _added(one: Judged, other: Judged) -> Judged:
    return Judged(
        one.old + other.old, one.shadow + other.shadow, one.matched + other.matched, one.only_old + other.only_old,
        one.only_shadow + other.only_shadow, max(one.furthest_seconds, other.furthest_seconds),
        other.phase_seconds if other.matched else one.phase_seconds)
