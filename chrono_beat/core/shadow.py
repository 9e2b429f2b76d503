"""Shadow: what a job would fire beside what the scheduler that it comes from fires. Nothing is sent.

The other side runs on a virtual clock: its own schedule object is asked as its own loop asks it, at the instants at
which that loop would wake, so a span of a day takes moments.
"""
from __future__ import annotations

import copy
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from chrono_beat.core import definition as definitions
from chrono_beat.core.definition import JobDefinition

MAX_FIRES = 10_000
"""Fires of one entry that are compared; where it has more, the span ends with the last of them."""

MAX_WAKES = 4 * MAX_FIRES
SHORTEST_SLEEP = timedelta(milliseconds=10)


class Fire(NamedTuple):
    """A message that another scheduler sent.

    Args:
        at_us: when, in microseconds since the epoch.
        origin: the entry as an import names it.
        name: the entry as the scheduler names it.
        task: what it runs.
    """

    at_us: int
    origin: str
    name: str
    task: str


class Compared(NamedTuple):
    """Fires of both sides in a span.

    Args:
        agreed: those that both have.
        missing: instants that only the other scheduler fires.
        extra: instants that only this one fires.
        offset_seconds: the furthest apart of two that agree.
    """

    agreed: int
    missing: tuple[datetime, ...]
    extra: tuple[datetime, ...]
    offset_seconds: float


def compare(ours: Sequence[datetime], theirs: Sequence[datetime], tolerance: timedelta) -> Compared:
    """Pair the fires of both sides in their order; those further apart than *tolerance* stand alone."""
    agreed, missing, extra, offset, at = 0, [], [], timedelta(0), 0
    for instant in theirs:
        while at < len(ours) and ours[at] < instant - tolerance:
            extra.append(ours[at])
            at += 1
        if at < len(ours) and ours[at] <= instant + tolerance:
            agreed, offset, at = agreed + 1, max(offset, abs(ours[at] - instant)), at + 1
        else:
            missing.append(instant)
    return Compared(agreed, tuple(missing), (*extra, *ours[at:]), offset.total_seconds())


def our_fires(definition: JobDefinition, start: datetime, end: datetime) -> list[datetime]:
    """Return the runs that a job created at *start* has until *end*."""
    schedule = definition.schedule(start)
    found: list[datetime] = []
    following = definitions.first_run(schedule, definition.schedule_kind, start)
    while following is not None and following < end and len(found) < MAX_FIRES:
        found.append(following)
        following = schedule.next_after(following)
    return found


def celery_fires(schedule: Any, app: Any, start: datetime, end: datetime) -> list[datetime]:
    """Return the instants at which Celery's loop would send an entry that it knows from *start* on.

    Args:
        schedule: an object of ``celery.schedules``; it is copied.
        app: the Celery app, whose zone crontabs are read in.
    """
    now = last = start
    asked = copy.copy(schedule)
    # As app.now() does: before 5.7 a crontab is read in the zone of the instants that it is given.
    asked.app, asked.nowfun = app, lambda: now.astimezone(app.timezone)
    found: list[datetime] = []
    for _ in range(MAX_WAKES):
        due, seconds = asked.is_due(last.astimezone(app.timezone))
        if due:
            found.append(now)
            last = now
        now += max(timedelta(seconds=seconds), SHORTEST_SLEEP)
        if now >= end or len(found) >= MAX_FIRES:
            break
    return found
