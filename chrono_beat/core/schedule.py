"""Schedules: cron text, Celery's crontab, intervals and single instants, all asked in the same way.

**Rule.** A schedule is a set of instants, fixed by its parts and the zone data alone: no clock and no memory of earlier
answers. ``next_after(t)`` is the smallest instant later than *t*, strictly; it may be asked from anywhere, also from
inside a repeated hour. `start` is the first instant that may run, `end` the first that may not.

=============  =========================  =================================================
kind           class                      stored expression
=============  =========================  =================================================
``cron``       :class:`Cron`              ``0 9 * * mon-fri``
``interval``   :class:`Interval`          seconds as decimal text, ``90`` or ``1.5``
``once``       :class:`Once`              an ISO 8601 instant, ``2026-01-02T09:00:00Z``
``celery``     :class:`CeleryCrontab`     a JSON list of Celery's five fields
=============  =========================  =================================================

This module is the door; behind it are the kinds in `schedule_kinds`, text in `cron_text` and `celery_text`, the naming
of wall minutes in `calendar`, clock changes in `zones` and `instants`, sharing in `shared`, notes for people in
`preview`.
"""
from __future__ import annotations

import re
from datetime import datetime
from decimal import Decimal

from chrono_beat.core.celery_text import split_stored
from chrono_beat.core.preview import Preview, PreviewRun, ScheduleWarning, preview, preview_notes, warnings_of
from chrono_beat.core.schedule_base import Schedule, ScheduleParts
from chrono_beat.core.schedule_error import ScheduleError, shown
from chrono_beat.core.schedule_kinds import CeleryCrontab, Cron, Interval, Once
from chrono_beat.core.shared import computations, forget_shared
from chrono_beat.core.zones import zone_keys

__all__ = [
    "KINDS",
    "CeleryCrontab",
    "Cron",
    "Interval",
    "Once",
    "Preview",
    "PreviewRun",
    "Schedule",
    "ScheduleError",
    "ScheduleParts",
    "ScheduleWarning",
    "computations",
    "forget_shared",
    "preview",
    "preview_notes",
    "schedule_from_parts",
    "warnings_of",
    "zone_keys",
]

LONGEST_EXPRESSION = 4_096
"""Characters of a stored expression that are looked at, whatever the kind."""

_SECONDS_TEXT = re.compile(r"[0-9]{1,14}(\.[0-9]{1,6})?")

KINDS: dict[str, type[Schedule]] = {kind.kind: kind for kind in (Cron, Interval, Once, CeleryCrontab)}
"""The kinds of schedule by the name that is stored."""


def schedule_from_parts(
    kind: str, expression: str, timezone: str, *, start: datetime | None = None, end: datetime | None = None,
    anchor: datetime | None = None,
) -> Schedule:
    """Build a schedule from what is stored; the inverse of :meth:`Schedule.to_parts`.

    Args:
        kind: ``"cron"``, ``"interval"``, ``"once"`` or ``"celery"``.
        expression: cron text; seconds as decimal text; an ISO 8601 instant; a JSON list of Celery's five fields in
            the order minute, hour, day_of_week, day_of_month, month_of_year.
        timezone: an exact IANA key.
        start: the first instant that may run.
        end: the first instant that may not run any more.
        anchor: the first run of an interval, *start* if not given; the other kinds ignore it.

    Raises:
        ScheduleError: a part is refused; `field` says which, `reason` how to mend it.
    """
    if not isinstance(kind, str) or kind not in KINDS:
        raise ScheduleError("kind", f"{shown(kind)} is none; choose from {', '.join(KINDS)}", code="unknown")
    if not isinstance(expression, str):
        raise ScheduleError("expression", f"an expression is text, not {shown(expression)}")
    if len(expression) > LONGEST_EXPRESSION:
        raise ScheduleError("expression", f"longer than {LONGEST_EXPRESSION} characters", code="too_large")
    if kind == "cron":
        return Cron(expression, timezone, start=start, end=end)
    if kind == "celery":
        minute, hour, day_of_week, day_of_month, month_of_year = split_stored(expression)
        return CeleryCrontab(
            minute, hour, day_of_week, day_of_month, month_of_year, timezone, start=start, end=end)
    if kind == "once":
        return Once(_read_iso(expression), timezone=timezone, start=start, end=end)
    return Interval(_read_seconds(expression), anchor=anchor, timezone=timezone, start=start, end=end)


def _read_seconds(text: str) -> Decimal:
    if not _SECONDS_TEXT.fullmatch(text):
        raise ScheduleError("expression", f"{shown(text)} is no number of seconds, such as 90 or 1.5")
    return Decimal(text)


def _read_iso(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ScheduleError(
            "expression", f"{shown(text)} is no ISO 8601 instant such as 2026-01-02T09:00:00Z") from None
