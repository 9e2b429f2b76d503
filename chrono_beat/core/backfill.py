"""Which instants a backfill creates: those that a schedule named in a stretch of the past.

**Bound.** One evaluation of the schedule for each instant that is created, and one count for what is left out, which
costs by clock changes and months (see `Schedule.count_between`); nothing walks through instants that nobody asked for.
"""
from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from chrono_beat.core.schedule import Schedule
from chrono_beat.core.schedule_base import MAX_COUNT_LIMIT

_MICROSECOND = timedelta(microseconds=1)


class Stretch(NamedTuple):
    """The first instants of a stretch.

    Args:
        instants: oldest first.
        left_out: how many more the stretch has; 1,000,001 for more than a million.
        go_on_from: the first of these; None where nothing is left out.
    """

    instants: Sequence[datetime]
    left_out: int = 0
    go_on_from: datetime | None = None


def oldest_between(schedule: Schedule, start: datetime, end: datetime, limit: int) -> Stretch:
    """Return the first *limit* runs in [start, end), and how many follow them.

    Args:
        schedule: any schedule.
        start, end: aware datetimes; *start* included, *end* not.
        limit: at least 1.
    """
    found: list[datetime] = []
    following = schedule.next_after(start - _MICROSECOND)
    while following is not None and following < end:
        if len(found) == limit:
            return Stretch(found, schedule.count_between(following, end, MAX_COUNT_LIMIT), following)
        found.append(following)
        following = schedule.next_after(following)
    return Stretch(found)


def newest_between(schedule: Schedule, start: datetime, end: datetime, limit: int) -> list[datetime]:
    """Return the last *limit* runs in [start, end), oldest first."""
    found: list[datetime] = []
    before = schedule.previous_before(end)
    while before is not None and before >= start and len(found) < limit:
        found.append(before)
        before = schedule.previous_before(before)
    return found[::-1]
