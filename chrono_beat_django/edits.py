"""What an edit of a job makes of it: worked out here for the edit itself, and for people who are about to make one."""
from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from chrono_beat.core import callback, ids, lifecycle, targets
from chrono_beat.core import definition as definitions
from chrono_beat.core.definition import JobDefinition
from chrono_beat.core.schedule import ScheduleError
from chrono_beat_django import wiring
from chrono_beat_django.models import Execution, Job
from chrono_beat_django.preview import Preview, preview_of, with_spread_proposed
from chrono_beat_django.store import definitions as store

SCHEDULE_FIELDS = ("schedule_kind", "expression", "timezone", "start", "end", "anchor")
PLANNED_BY = {store.COLUMNS[field] for field in SCHEDULE_FIELDS} | {"paused"}
"""Columns whose change plans anew."""

SOON = timedelta(minutes=1)
"""How far ahead dispatchers claim unless told otherwise, and so how far an edit meets rows that exist already."""

MOST_SOON = 20

DEFAULTS = JobDefinition(name="", task="", schedule_kind="", expression="")


class Soon(NamedTuple):
    """An occurrence within the next minute, and what an edit makes of it.

    Args:
        due_at: when it is to start, an aware UTC instant.
        claimed: whether it has a row already.
        fate: what happens to it, as the end of a sentence.
    """

    due_at: datetime
    claimed: bool
    fate: str


class Edit(NamedTuple):
    """A job before and after an edit that has not been made.

    Args:
        changed: (before, after) by column; secrets masked.
        before: its runs as they are; None where what is stored has none that can be worked out.
        after: its runs as they would be.
        soon: what is due within the next minute.
        now: when it was looked at.
        definition: the job as it would be.
    """

    changed: Mapping[str, tuple[Any, Any]]
    before: Preview | None
    after: Preview
    soon: Sequence[Soon]
    now: datetime
    definition: JobDefinition


def wanted(before: JobDefinition, changes: Mapping[str, Any]) -> tuple[JobDefinition, bool]:
    """Return a definition with changes, not yet validated, and whether it has the schedule that it had.

    Args:
        changes: arguments of JobDefinition by name. A schedule that changes counts anew unless they say from where.
    """
    given = targets.retargeted(changes, before.target_kind)
    if "headers" in given:
        given["headers"] = callback.unmasked(given["headers"], before.headers)
    after = replace(before, **given)
    same_schedule = all(getattr(before, field) == getattr(after, field) for field in SCHEDULE_FIELDS)
    if not same_schedule and "anchor" not in given:
        after = replace(after, anchor=None)
    return after, same_schedule


def preview_edit(job: Job, changes: Mapping[str, Any], count: int = 10, *, operator: bool = False) -> Edit:
    """Say what an edit would change, and what becomes of what is due within the next minute.

    Args:
        job: as it is stored.
        changes: arguments of JobDefinition by name.
        count: how many runs of each to work out.
        operator: as of :func:`chrono_beat_django.preview.preview`.

    Raises:
        InvalidInput: the edit would be refused.
    """
    now_us = wiring.now_us()
    now = ids.from_us(now_us)
    after, same_schedule = wanted(store.definition_of(job), changes)
    valid = definitions.validate(after, now_us=now_us, config=wiring.config(), planned=same_schedule)
    changed = store.take_over(copy.copy(job), valid)
    try:
        before = preview_of(store.definition_of(job), now, count)
    except ScheduleError:
        before = None
    following = with_spread_proposed(preview_of(valid, now, count), valid, now, job_id=job.id, operator=operator)
    anew = bool(changed.keys() & PLANNED_BY or job.quarantined_reason)
    masked = {column: (_masked(column, old), _masked(column, new)) for column, (old, new) in changed.items()}
    return Edit(masked, before, following, _soon(job, valid, following, now, anew) if masked else (), now,
                valid)


def _masked(column: str, value: Any) -> Any:
    return callback.masked(value) if column == "headers" else value


def _soon(job: Job, valid: JobDefinition, following: Preview, now: datetime, anew: bool) -> list[Soon]:
    """Tell by protocol rule 7 what becomes of rows that are claimed, and of a next run that is not yet."""
    rows = Execution.objects.open().filter(
        job_id=job.id, due_at__lte=now + SOON, cancel_requested_at=None).order_by("due_at")[:MOST_SOON]
    found = [Soon(row.due_at, True, _fate(row, valid, following, anew)) for row in rows]
    upcoming = job.next_run_at
    if upcoming is not None and upcoming <= now + SOON and upcoming not in [row.scheduled_at for row in rows]:
        planned = Execution(state=lifecycle.SCHEDULED, scheduled_at=upcoming)
        found.append(Soon(upcoming, False, _fate(planned, valid, following, anew)))
    return found


def _fate(row: Execution, valid: JobDefinition, following: Preview, anew: bool) -> str:
    if row.state == lifecycle.RUNNING:
        return "runs already, and goes on as it began"
    begun = "; if a worker has begun it meanwhile, it goes on as it began" if row.state == lifecycle.QUEUED else ""
    if not anew:
        return f"is carried over: it runs with the new content{begun}"
    if valid.paused:
        return f"is dropped, for the job is paused{begun}"
    if row.kind == "schedule" and row.scheduled_at in following.runs:
        return f"stays, with the new content: the new schedule names that instant, too{begun}"
    return f"is dropped, for it is of the old schedule{begun}"


def plan_anew(job: Job, definition: JobDefinition, now_us: int) -> None:
    """Set the next run from now on. A schedule that has none left is over, and its name is free when all has ended."""
    now = ids.from_us(now_us)
    if definition.schedule_kind == "interval":
        job.anchor_at = definition.anchor or definition.start or now
    following = definitions.first_run(definition.schedule(now), definition.schedule_kind, now)
    job.next_run_at = None if definition.paused else following
    job.paused_at = (job.paused_at or now) if definition.paused else None
    # A paused job is waited for, unless it was over before it was paused: its name may be another's by now.
    over = following is None and (job.finished_at or not definition.paused)
    over = over and (job._state.adding or not store.has_open(job))
    job.finished_at = (job.finished_at or now) if over else None
    job.replan = False
    job.quarantined_reason = ""


def said(definition: JobDefinition) -> dict[str, Any]:
    """Return what differs from the defaults, for the audit."""
    values = {field: getattr(definition, field) for field in definitions.FIELDS if field != "written_as"}
    return {field: value for field, value in values.items() if value != getattr(DEFAULTS, field)}
