"""The next runs of a job, for people who are about to save or to wait."""
from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from chrono_beat.core import definition as definitions
from chrono_beat.core import forecast, ids
from chrono_beat.core.definition import JobDefinition
from chrono_beat.core.errors import InvalidInput, Problem
from chrono_beat.core.schedule import preview as core_preview
from chrono_beat.core.schedule import preview_notes
from chrono_beat.words import words
from chrono_beat_django import wiring
from chrono_beat_django.models import Job, Tenant
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


def preview(job: Job | JobDefinition, count: int = 10, *, operator: bool = False) -> Preview:
    """Return the next runs of a job or a definition, as if it were not paused.

    Args:
        job: its tenant's other jobs are looked at, too, where a spread may help.
        count: how many runs, 1 to 1,000.
        operator: whoever reads it may know figures of the whole deployment. Nothing that a tenant sees says so.

    Raises:
        InvalidInput: the definition is wrong, or *count* is not from 1 to 1,000.
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_PREVIEW:
        raise InvalidInput(Problem("count", f"must be a whole number from 1 to {MAX_PREVIEW:,}"))
    now = ids.from_us(wiring.now_us())
    if isinstance(job, Job):
        return with_spread_proposed(preview_of(store.definition_of(job), now, count), job, now, operator=operator)
    valid = definitions.validate(job, now_us=ids.to_us(now), config=wiring.config(), planned=True)
    return with_spread_proposed(preview_of(valid, now, count), valid, now, operator=operator)


def preview_of(valid: JobDefinition, now: datetime, count: int) -> Preview:
    """Return the next *count* runs of a valid definition as of *now*, by its schedule alone.

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
    return Preview(
        runs, valid.timezone, tuple(preview_notes(schedule, now)), words(schedule),
        {run.at: run.notes for run in seen.runs if run.notes}, tuple(warning.message for warning in seen.warnings))


def with_spread_proposed(
    found: Preview, job: Job | JobDefinition, now: datetime, *, job_id: uuid.UUID | None = None, operator: bool = False,
) -> Preview:
    """Return a preview that also proposes a spread, where one would help; arguments as of :func:`spread_proposal`."""
    said = spread_proposal(job, now, job_id=job_id, operator=operator)
    return found if said is None else found._replace(notes=(*found.notes, said), warnings=(*found.warnings, said))


def spread_proposal(
    job: Job | JobDefinition, now: datetime, *, job_id: uuid.UUID | None = None, operator: bool = False,
) -> str | None:
    """Propose a spread where the next run of a job without one falls into a crowded minute; None where none would help.

    No figure of one tenant may reach another: the jobs that are counted are those of the job's own tenant, except for an
    operator, and then the sentence says so.

    Args:
        job: a job, or a valid definition.
        now: an aware datetime.
        job_id: of the job that a definition is an edit of; it is not counted.
        operator: as of :func:`preview`.

    Raises:
        ScheduleError: what is stored is no schedule.
    """
    valid, own = (store.definition_of(job), job.id) if isinstance(job, Job) else (job, job_id)
    if valid.schedule_kind not in ("cron", "celery") or valid.spread is not None:
        return None
    schedule = valid.schedule(now)
    run = definitions.first_run(schedule, valid.schedule_kind, now)
    if run is None or Tenant.objects.using(store.alias()).filter(slug=valid.tenant, spread_seconds__gt=0).exists():
        return None                                         # its tenant spreads it
    minute = run.replace(second=0, microsecond=0)
    others = _due_unspread(minute, None if operator else str(valid.tenant), own)
    following = schedule.next_after(run)
    return forecast.advice(
        others, minute, None if following is None else following - run,
        "the whole deployment" if operator else "this tenant")


def _due_unspread(minute: datetime, tenant: str | None, other_than: uuid.UUID | None) -> int:
    """Count, up to a bound, the jobs whose next run is due in a minute, as no spread moves it.

    Args:
        minute: its beginning.
        tenant: slug; None for all tenants.
        other_than: a job that is not counted.
    """
    rows = Job.objects.using(store.alias()).unfinished().filter(
        partition__in=range(wiring.config().partitions), next_run_at__gte=minute,
        next_run_at__lt=minute + timedelta(minutes=1), paused=False)
    if tenant is None:
        tenants = Tenant.objects.using(store.alias())
        rows = rows.exclude(tenant__in=tenants.filter(paused=True).values("slug"))
        rows = rows.exclude(spread_seconds=None, tenant__in=tenants.filter(spread_seconds__gt=0).values("slug"))
    else:
        rows = rows.of(tenant)                              # which spreads none of its jobs by default
    return rows.exclude(spread_seconds__gt=0).exclude(id=other_than).order_by()[:MOST_COUNTED].count()
