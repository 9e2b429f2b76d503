"""What becomes of a planned occurrence when the zone data change under its schedule.

**Rule.** An occurrence is a promise about a wall clock, so where the clock moves the occurrence moves with it: to the
instant of the schedule that is nearest by now, the later one of two that are as near. One planned occurrence stays one,
so none is lost and none is doubled: where the new instant has passed already, it is due at once.

**Worked example.** "9:00" was planned for 08:00Z; a government keeps winter time. By the new data 9:00 is 09:00Z, the
next instant before it 23 hours away: it moves to 09:00Z. Taking "the next run from now" instead would run a second time
today if 08:00Z had been run already, and would drop today's run if the clock had moved the other way past now.

**Weakness.** Which instant is whose cannot be told where a schedule runs more often than twice the change: of "9:00 and
10:00" moved by an hour an instant that both plans name stands for either. Such a day may have one run more or less.
"""
from __future__ import annotations

import re
from datetime import datetime

from chrono_beat.core.schedule import Schedule

WALL_KINDS = ("cron", "celery")
"""Kinds of schedule that are read on a wall clock; intervals and single instants are not moved by zone data."""

_RELEASE = re.compile(r"[0-9]{4}[a-z]{1,2}")


def moved(schedule: Schedule, planned: datetime) -> datetime:
    """Return the instant that an occurrence has by the zone data in use; *planned* itself where none is left."""
    if schedule.matches(planned):
        return planned
    before, after = schedule.previous_before(planned), schedule.next_after(planned)
    if before is None or after is None:
        return before or after or planned
    return before if planned - before < after - planned else after


def is_older(here: str, stored: str) -> bool:
    """Say whether a release of the zone data came before another; releases are called like 2026a."""
    known = _RELEASE.fullmatch(here) and _RELEASE.fullmatch(stored)
    return bool(known) and (here[:4], len(here), here) < (stored[:4], len(stored), stored)
