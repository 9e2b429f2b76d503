"""Read the tables of django-celery-beat through its own models, and write none of them."""
from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.apps import apps
from django.conf import settings

from chrono_beat.core import imports
from chrono_beat.core.errors import InvalidInput, Problem
from chrono_beat.core.imports import Entry
from chrono_beat.core.schedule import CeleryCrontab, Interval, Once, Schedule, ScheduleError

ORIGIN = "django_celery_beat:"


def read(timezone: str, now: datetime) -> Iterator[Entry]:
    """Yield an entry for each periodic task.

    Args:
        timezone: IANA key of the app's zone, which crontabs are read in where DJANGO_CELERY_BEAT_TZ_AWARE is False.
        now: from when a task that runs only once is planned.

    Raises:
        InvalidInput: django_celery_beat is not installed.
    """
    if not apps.is_installed("django_celery_beat"):
        raise InvalidInput(Problem("source", "add django_celery_beat to INSTALLED_APPS, so that its tables can be read"))
    tasks = apps.get_model("django_celery_beat", "PeriodicTask").objects.order_by("pk")
    for row in tasks.select_related("crontab", "interval", "solar", "clocked"):
        origin = f"{ORIGIN}{row.pk}"
        try:
            yield _entry(row, origin, timezone, now)
        except ScheduleError as error:
            yield imports.refused(origin, row.name, error.reason)
        except ValueError as error:
            yield imports.refused(origin, row.name, f"args, kwargs or headers are no JSON: {error}; mend them there")


def _entry(row: Any, origin: str, timezone: str, now: datetime) -> Entry:
    warnings = [f"option {name} is dropped" for name in ("exchange", "routing_key") if getattr(row, name)]
    schedule = _schedule(row, timezone)
    if isinstance(schedule, Interval):
        if row.last_run_at is None:
            warnings.append("counts from the import; it never ran there")
        else:
            warnings.append("counts from its last run there, and does not drift")
    over = _is_over(row, schedule, now)
    chosen = row.one_off and not isinstance(schedule, Once)
    if chosen and not over:
        anchored = schedule.anchored(now) if isinstance(schedule, Interval) else schedule
        first = anchored.next_after(now)
        over = first is None
        if first is not None:
            schedule = Once(first, timezone=schedule.timezone)
            warnings.append(f"runs only once: at {first:%Y-%m-%dT%H:%M:%SZ}")
    options = {"queue": row.queue, "priority": row.priority, "expires": row.expire_seconds or None}
    return imports.entry(
        origin, row.name, row.task, schedule, options=options, warnings=warnings,
        once=row.one_off or isinstance(schedule, Once), chosen=chosen, over=over, args=json.loads(row.args or "[]"),
        kwargs=json.loads(row.kwargs or "{}"), headers=json.loads(row.headers or "{}") or None,
        paused=not row.enabled, note=row.description)


def _is_over(row: Any, schedule: Schedule, now: datetime) -> bool:
    """Say whether its beat would never send it again, as that decides."""
    if row.one_off and row.total_run_count:                     # beat disables it when it looks at it next
        return True
    at = schedule.at if isinstance(schedule, Once) else now
    if row.expires is not None and row.expires <= max(now, at):
        return True
    # One whose time has passed is still sent while it is enabled.
    return row.clocked is not None and not row.enabled and at <= now


def _schedule(row: Any, timezone: str) -> Schedule:
    bounds = {"start": row.start_time, "end": row.expires}
    if row.crontab is not None:
        tab = row.crontab
        aware = getattr(settings, "DJANGO_CELERY_BEAT_TZ_AWARE", True)
        return CeleryCrontab(
            tab.minute, tab.hour, tab.day_of_week, tab.day_of_month, tab.month_of_year,
            str(tab.timezone) if aware else timezone, **bounds)
    if row.interval is not None:
        return Interval(row.interval.schedule.run_every, timezone=timezone,
                        anchor=row.last_run_at or row.start_time, **bounds)
    if row.clocked is not None:
        clocked = row.clocked.clocked_time
        return Once(max(clocked, row.start_time or clocked), timezone=timezone)
    if row.solar is not None:
        raise ScheduleError("schedule", imports.NO_SOLAR, code="unsupported")
    raise ScheduleError("schedule", "the row has no schedule; give it one there")
