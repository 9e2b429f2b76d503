"""Create, change and run jobs: the functions behind the admin, the commands and the decorators.

Each is one transaction that writes the job, raises its version and leaves a line in the audit. What must be known at
once outside the database, that copies of older versions are void and that there is something to plan, is told to Redis
when that transaction has committed, also where it is part of a larger one.
"""
from __future__ import annotations

import difflib
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db import transaction

from chrono_beat.core import definition as definitions
from chrono_beat.core import ids, targets
from chrono_beat.core.definition import JobDefinition
from chrono_beat.core.deliveries import Running
from chrono_beat.core.errors import InvalidInput, Problem, StaleVersion
from chrono_beat.core.records import GONE_VERSION
from chrono_beat.core.retry import Retry
from chrono_beat.core.schedule import Schedule
from chrono_beat_django import control, edits, wiring
from chrono_beat_django.backfill import DEFAULT_LIMIT, backfill, check_missed, fill_pauses
from chrono_beat_django.control import cancel
from chrono_beat_django.dead_letters import replay
from chrono_beat_django.edits import Edit, preview_edit
from chrono_beat_django.lookup import executions, get, history, list
from chrono_beat_django.models import SOURCES, Execution, Job, new_job_id
from chrono_beat_django.preview import Preview, preview, spread_proposal
from chrono_beat_django.store import definitions as store
from chrono_beat_django.store import quotas

__all__ = [
    "Changed", "Edit", "Preview", "backfill", "cancel", "change", "create", "create_from", "crowding_for", "definition_of",
    "delete", "executions", "get", "history", "list", "pause", "preview", "preview_edit", "rehearse", "replay", "resume",
    "trigger", "update", "warnings_for",
]

_WAYS = ("cron", "every", "at", "schedule")
_CHANGEABLE = frozenset(definitions.FIELDS) - {"tenant"}
_DEFAULT = JobDefinition(name="", task="", schedule_kind="", expression="")


class Changed(NamedTuple):
    """A job after a change.

    Args:
        job: as it is now.
        columns: names of what changed; empty where it was so already.
        running: deliveries of older versions that have begun and go on; filled in when the change has committed.
    """

    job: Job
    columns: frozenset[str]
    running: Sequence[Running] = ()


def create(
    *,
    tenant: str | None = None,
    name: str,
    task: str = "",
    url: str = "",
    timeout: object = None,
    queue: str = "",
    cron: str | None = None,
    every: object = None,
    at: datetime | str | None = None,
    schedule: Schedule | None = None,
    timezone: str | None = None,
    start: datetime | str | None = None,
    end: datetime | str | None = None,
    args: Sequence[Any] | str = (),
    kwargs: Mapping[str, Any] | str | None = None,
    headers: Mapping[str, Any] | str | None = None,
    pool: str = _DEFAULT.pool,
    priority: int = _DEFAULT.priority,
    soft_limit: object = _DEFAULT.soft_limit,
    max_duration: object = _DEFAULT.max_duration,
    expires_after: object = _DEFAULT.expires_after,
    concurrency: str = _DEFAULT.concurrency,
    exclusion_group: str = _DEFAULT.exclusion_group,
    misfire: str = _DEFAULT.misfire,
    misfire_cap: int | None = _DEFAULT.misfire_cap,
    grace: object = _DEFAULT.grace,
    spread: object = _DEFAULT.spread,
    max_occurrences: int | None = _DEFAULT.max_occurrences,
    retry: Retry = _DEFAULT.retry,
    idempotent: str | bool = _DEFAULT.idempotent,
    key_scope: str = _DEFAULT.key_scope,
    paused: bool = False,
    note: str = "",
    source: str = "api",
    actor: str | None = None,
) -> Job:
    """Create a job and plan its first run.

    Args:
        tenant: slug of the tenant; None for the default one.
        name: unique among the tenant's unfinished jobs.
        task: name of the Celery task.
        url: instead of a task: where the kwargs are posted to as JSON.
        timeout: seconds that one such call takes at most; None for 30.
        queue: of a task that runs on stock workers: the Celery queue that its message is sent to.
        cron, every, at, schedule: exactly one: a cron text; a timedelta, seconds or an Interval; an aware datetime or
            its ISO text; any schedule value.
        timezone: IANA name of the zone that *cron* is read in; UTC unless given.
        source: where the definition comes from, one of models.SOURCES.
        actor: who does it, for the audit.

    The other arguments are those of :class:`chrono_beat.core.definition.JobDefinition`.

    Raises:
        InvalidInput: with everything that is wrong; UnknownTenant is one.
        QuotaExceeded: the tenant has as many jobs as it may have, or creates them too fast.
        Conflict: the tenant has an unfinished job of that name.
    """
    when = _when({"cron": cron, "every": every, "at": at, "schedule": schedule, "timezone": timezone, "start": start,
                  "end": end})
    return create_from(JobDefinition(
        name=name, task=task, target_kind=targets.kind_of_target(url=url, queue=queue), url=url, timeout=timeout,
        queue=queue, tenant=tenant, args=args, kwargs=kwargs, headers=headers, pool=pool, priority=priority,
        soft_limit=soft_limit, max_duration=max_duration, expires_after=expires_after, concurrency=concurrency,
        exclusion_group=exclusion_group, misfire=misfire, misfire_cap=misfire_cap, grace=grace, spread=spread,
        max_occurrences=max_occurrences, retry=retry, idempotent=idempotent, key_scope=key_scope, paused=paused,
        note=note, **when,
    ), source=source, actor=actor)


def create_from(definition: JobDefinition, *, source: str = "api", actor: str | None = None) -> Job:
    """Create a job from a definition; see :func:`create`."""
    if source not in SOURCES:
        raise ValueError(f"source must be one of {', '.join(SOURCES)}")
    now_us = wiring.now_us()
    valid = definitions.validate(definition, now_us=now_us, config=wiring.config())
    with transaction.atomic(using=store.alias()):
        tenant = store.lock_tenant(str(valid.tenant))
        quotas.check_room(tenant, now_us)
        quotas.charge(tenant, now_us)
        job = Job(id=new_job_id(), source=source, created_by=(actor or "")[:255])
        store.take_over(job, valid)
        plan_anew(job, valid, now_us)
        store.insert(job)
        store.write_event(job, "create", actor, now_us, {"after": _said(valid)})
        transaction.on_commit(wiring.wake_dispatchers, using=store.alias())
    return job


def rehearse(definition: JobDefinition) -> Job:
    """Return the job that :func:`create_from` would create now, and leave nothing of it; raises what that would raise."""
    with transaction.atomic(using=store.alias()):
        job = create_from(definition)
        transaction.set_rollback(True, using=store.alias())
    return job


def update(
    job: Job | uuid.UUID | str, *, actor: str | None = None, expected_version: int | None = None, **changes: Any,
) -> Job:
    """Change a job; the changed content applies to occurrences that have not begun.

    A change of schedule, zone or pause plans anew from now, and an interval begins anew at the change. Any other change
    leaves the plan alone. What is asked for and is so already changes nothing.

    Args:
        job: the job or its id.
        actor: who does it, for the audit.
        expected_version: the version that the caller has seen; None to change whatever is there.
        changes: arguments of :func:`create` other than tenant, source and actor.

    Returns:
        The job as it is now, with ``still_running``: the deliveries of its old content that have begun and go on. No
        other one of them starts any more, once this call, and a transaction around it, has returned.

    Raises:
        InvalidInput: with everything that is wrong.
        QuotaExceeded: the job is over and would run again, and the tenant has as many others as it may have.
        Conflict: the job is no longer at *expected_version*, or the new name is taken.
        NotFound: there is no such job.
    """
    return change(job, "update", actor, changes, expected_version).job


def pause(job: Job | uuid.UUID | str, *, note: str = "", actor: str | None = None) -> Job:
    """Stop firing a job until it is resumed; it may still be triggered.

    Args:
        note: why, for people; "" leaves the note as it is.

    Raises:
        NotFound: there is no such job.
    """
    return change(job, "pause", actor, {"paused": True} | ({"note": note} if note else {})).job


def resume(
    job: Job | uuid.UUID | str, *, missed: str | None = None, limit: int = DEFAULT_LIMIT, note: str | None = None,
    actor: str | None = None,
) -> Job:
    """Fire a paused job again from now on; what fell into the pause is not made up for unless asked.

    Args:
        missed: None to look forward only; "latest" to run the newest occurrence that fell into the pause, "all" to run
            the newest *limit* of them: as a backfill, under the tenant's cap.
        limit: how many "all" runs at most, 1 to 10,000.
        note: a new note; None leaves it as it is.

    Raises:
        NotFound: there is no such job.
        InvalidInput: *missed* or *limit* is none of these.
    """
    check_missed(missed, limit)
    with transaction.atomic(using=store.alias()):
        since = store.lock_job(control.job_id_of(job)).paused_at
        changed = change(job, "resume", actor, {"paused": False} | ({} if note is None else {"note": note}))
        if missed is not None and since is not None and "paused" in changed.columns:
            now_us = wiring.now_us()
            made = fill_pauses([(changed.job, since)], missed, limit=limit, now=ids.from_us(now_us))
            if made and changed.job.finished_at is not None:
                store.reopen(changed.job)           # a one-off: over when its late run has ended
            store.write_event(changed.job, "backfill", actor, now_us, {
                "start": since, "end": ids.from_us(now_us), "missed": missed, "created": made})
    return changed.job


def delete(job: Job | uuid.UUID | str, *, actor: str | None = None) -> Sequence[Running]:
    """Remove a job; its history stays. What has not begun is dropped.

    Returns:
        The deliveries that are running and go on; filled in at the commit of a transaction around this call.

    Raises:
        NotFound: there is no such job.
    """
    with transaction.atomic(using=store.alias()):
        found = store.lock_job(control.job_id_of(job))
        found.version += 1
        before = _said(store.definition_of(found))
        store.write_event(found, "delete", actor, wiring.now_us(), {"before": before})
        running = control.tell(found, GONE_VERSION)
        Job.objects.using(store.alias()).filter(id=found.id).delete()
    return running


def trigger(job: Job | uuid.UUID | str, *, token: str | None = None, actor: str | None = None) -> Execution:
    """Run a job now, with all its options, beside its schedule.

    Args:
        token: the request's own name. A second call with the same token within seven days returns the first one's
            execution instead of making another.

    Returns:
        The execution, with ``in_the_way``: one of the job that runs, because of which this one may be skipped (forbid),
        or which it will end (replace); None where none is recorded, or the job allows it.

    Raises:
        NotFound: there is no such job.
        InvalidInput: the token is not a text of 1 to 200 characters.
    """
    store.check_token(token)
    with transaction.atomic(using=store.alias()):
        found = store.lock_job(control.job_id_of(job))
        now_us = wiring.now_us()
        if token is not None and (earlier := store.triggered(found, token, now_us)) is not None:
            return earlier
        execution = store.insert_manual(found, now_us)
        execution.in_the_way = None if found.concurrency == "allow" else store.running(found)
        detail = {"execution": execution.id} | ({} if token is None else {"token": token})
        store.write_event(found, "trigger", actor, now_us, detail)
        transaction.on_commit(wiring.wake_dispatchers, using=store.alias())
    return execution


def definition_of(job: Job) -> JobDefinition:
    """Return what is stored of a job as a definition; its headers hold their secrets."""
    return store.definition_of(job)


def warnings_for(job: Job | JobDefinition) -> Sequence[Problem]:
    """Return what is allowed but likely to hurt about a job or a valid definition."""
    return definitions.warnings_for(store.definition_of(job) if isinstance(job, Job) else job)


def crowding_for(job: Job) -> Sequence[Problem]:
    """Return the spread that a job's preview proposes, as its tenant may know it, like a warning; empty where none would
    help."""
    said = spread_proposal(job, ids.from_us(wiring.now_us()))
    return () if said is None else (Problem("spread", said, "crowded"),)


def change(
    job: Job | uuid.UUID | str, action: str, actor: str | None, changes: Mapping[str, Any],
    expected_version: int | None = None,
) -> Changed:
    """Change a job as :func:`update` does, under a name of its own in the audit.

    Args:
        action: what the audit calls it; "update" that pauses or resumes is called so.
        changes: arguments of :func:`create` by name.
    """
    given = _when(changes) if changes.keys() & {*_WAYS} else dict(changes)
    unknown = given.keys() - _CHANGEABLE
    if unknown:
        raise InvalidInput(*(_unknown_change(name) for name in sorted(unknown)))
    with transaction.atomic(using=store.alias()):
        # A job that is over and gets runs again counts as one more. Its tenant is locked first, as everywhere.
        tenant = quotas.lock_tenant_of_finished(control.job_id_of(job))
        found = store.lock_job(control.job_id_of(job))
        was_over = found.finished_at is not None
        if expected_version is not None and found.version != expected_version:
            raise StaleVersion(f"the job is at version {found.version}, not {expected_version}: it was changed meanwhile")
        now_us = wiring.now_us()
        wanted, same_schedule = edits.wanted(store.definition_of(found), given)
        valid = definitions.validate(wanted, now_us=now_us, config=wiring.config(), planned=same_schedule)
        changed = store.take_over(found, valid)
        if not changed and not found.quarantined_reason:
            # The call that made it so may have failed to tell Redis.
            return _changed(found, frozenset(), control.tell(found, found.version))
        if changed.keys() & edits.PLANNED_BY or found.quarantined_reason:
            plan_anew(found, valid, now_us)
            found.plan_version = found.version + 1          # rule 7: what is of an older plan is not carried over
            if was_over and found.finished_at is None:
                quotas.check_room(tenant or store.lock_tenant(found.tenant), now_us)
        store.save(found)
        if action == "update" and "paused" in changed:
            action = "pause" if found.paused else "resume"
        store.write_event(found, action, actor, now_us, {
            "before": {column: values[0] for column, values in changed.items()},
            "after": {column: values[1] for column, values in changed.items()},
        })
        running = control.tell(found, found.version)
    return _changed(found, frozenset(changed), running)


def _changed(job: Job, columns: frozenset[str], running: Sequence[Running]) -> Changed:
    job.still_running = running                     # type: ignore[attr-defined]
    return Changed(job, columns, running)


def _unknown_change(name: str) -> Problem:
    if name == "tenant":
        return Problem("tenant", "a job stays with its tenant; create it anew under the other one and delete this")
    near = difflib.get_close_matches(name, (*_WAYS, *_CHANGEABLE), n=1)
    return Problem(name, "a job has no such field" + (f"; did you mean {near[0]}?" if near else ""), "unknown")


def plan_anew(job: Job, definition: JobDefinition, now_us: int) -> None:
    """Set the next run from now on. A schedule that has none left is over, and its name is free when all has ended."""
    now = ids.from_us(now_us)
    if definition.schedule_kind == "interval":
        job.anchor_at = definition.anchor or definition.start or now
    following = definitions.first_run(definition.schedule(now), definition.schedule_kind, now)
    job.next_run_at = None if definition.paused else following
    job.paused_at = (job.paused_at or now) if definition.paused else None
    # A paused job is waited for, unless it was over before it was paused: its name may be another's by now.
    over = following is None and (job.finished_at or not definition.paused) and not store.has_open(job)
    job.finished_at = (job.finished_at or now) if over else None
    job.replan = False
    job.quarantined_reason = ""


def _when(given: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the way in which a schedule was given by the fields of a definition; what is not of it stays."""
    ways = {way: given.get(way) for way in _WAYS}
    found = definitions.schedule_fields(**ways, timezone=given.get("timezone"))
    others = {key: value for key, value in given.items() if key not in (*_WAYS, "timezone") and
              not (key in ("start", "end") and value is None and found.get(key) is not None)}
    return found | others


def _said(definition: JobDefinition) -> dict[str, Any]:
    """Return what differs from the defaults, for the audit."""
    values = {field: getattr(definition, field) for field in definitions.FIELDS if field != "written_as"}
    return {field: value for field, value in values.items() if value != getattr(_DEFAULT, field)}
