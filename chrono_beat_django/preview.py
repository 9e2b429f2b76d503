"""The next runs of a job, for people who are about to save or to wait."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from chrono_beat.core import definition as definitions
from chrono_beat.core import forecast, ids
from chrono_beat.core.definition import JobDefinition
from chrono_beat.core.errors import InvalidInput, Problem
from chrono_beat.core.schedule import Schedule, preview_notes
from chrono_beat.core.schedule import preview as core_preview
from chrono_beat.words import words
from chrono_beat_django import wiring
from chrono_beat_django.models import Job
from chrono_beat_django.store import definitions as store

MAX_PREVIEW = 1_000

MOST_COUNTED = 10_000
"""Jobs that are counted of a crowded minute."""


class Preview(NamedTuple):
    """The next runs of a schedule.

    Args:
        runs: aware UTC instants, oldest first; fewer than asked for where the schedule ends.
        timezone: the zone that people read them in.
        notes: what to know about this schedule, a sentence each.
        words: what the schedule means.
        run_notes: what to know about single runs, by their instant; it stands in the notes, too.
        warnings: the notes that are about the schedule as a whole.
    """

    runs: tuple[datetime, ...]
    timezone: str
    notes: tuple[str, ...]
    words: str
    run_notes: Mapping[datetime, tuple[str, ...]]
    warnings: tuple[str, ...]


def preview(job: Job | JobDefinition, count: int = 10) -> Preview:
    """Return the next runs of a job or a definition, as if it were not paused.

    Raises:
        InvalidInput: the definition is wrong, or *count* is not from 1 to 1,000.
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_PREVIEW:
        raise InvalidInput(Problem("count", f"must be a whole number from 1 to {MAX_PREVIEW:,}"))
    now = ids.from_us(wiring.now_us())
    if isinstance(job, Job):
        return preview_of(store.definition_of(job), now, count)
    return preview_of(definitions.validate(job, now_us=ids.to_us(now), config=wiring.config(), planned=True), now, count)


def preview_of(valid: JobDefinition, now: datetime, count: int) -> Preview:
    """Return the next *count* runs of a valid definition as of *now*.

    Raises:
        ScheduleError: what is stored is no schedule.
    """
    schedule = valid.schedule(now)
    runs: tuple[datetime, ...] = ()
    following = definitions.first_run(schedule, valid.schedule_kind, now)
    while following is not None and len(runs) < count:
        runs += (following,)
        following = schedule.next_after(following)
    seen = core_preview(schedule, now)
    crowded = _crowded(valid, schedule, runs)
    return Preview(
        runs, valid.timezone, (*preview_notes(schedule, now), *crowded), words(schedule),
        {run.at: run.notes for run in seen.runs if run.notes}, (*(warning.message for warning in seen.warnings), *crowded))


def _crowded(valid: JobDefinition, schedule: Schedule, runs: Sequence[datetime]) -> tuple[str, ...]:
    """Propose a spread where the next run falls into a crowded minute. It asks the due index, up to a bound."""
    if not runs or valid.schedule_kind not in ("cron", "celery") or valid.spread is not None:
        return ()
    minute = runs[0].replace(second=0, microsecond=0)
    due = Job.objects.using(store.alias()).filter(
        partition__in=range(wiring.config().partitions), next_run_at__gte=minute,
        next_run_at__lt=minute + timedelta(minutes=1), paused=False)[:MOST_COUNTED].count()
    following = runs[1] if len(runs) > 1 else schedule.next_after(runs[0])
    said = forecast.advice(due, minute, None if following is None else following - runs[0])
    return () if said is None else (said,)
