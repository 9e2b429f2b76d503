"""Create, change and run jobs: the functions behind the admin, the commands and the decorators.

Each is one transaction that writes the job, raises its version and leaves a line in the audit. What must be known at
once outside the database, that copies of older versions are void and that there is something to plan, is told to Redis
when that transaction has committed, also where it is part of a larger one.
"""
from __future__ import annotations

import difflib
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from django.db import transaction

from chrono_beat.core import definition as definitions
from chrono_beat.core import ids, targets
from chrono_beat.core.definition import JobDefinition
from chrono_beat.core.deliveries import Running
from chrono_beat.core.errors import ChronoError, InvalidInput, Problem, QuotaExceeded
from chrono_beat.core.retry import Retry
from chrono_beat.core.schedule import Schedule
from chrono_beat_django import batches, control, edits, wiring
from chrono_beat_django.backfill import DEFAULT_LIMIT, backfill, check_missed, fill_pauses
from chrono_beat_django.batches import Changed
from chrono_beat_django.control import cancel
from chrono_beat_django.dead_letters import replay
from chrono_beat_django.edits import Edit, preview_edit
from chrono_beat_django.lookup import executions, get, history, list
from chrono_beat_django.models import Execution, Job
from chrono_beat_django.preview import Preview, preview, spread_proposal
from chrono_beat_django.store import definitions as store

__all__ = [
    "Changed", "Edit", "Preview", "backfill", "cancel", "change", "create", "create_from", "create_many", "crowding_for",
    "definition_of", "delete", "executions", "get", "history", "list", "pause", "preview", "preview_edit", "rehearse",
    "replay", "resume", "trigger", "update", "warnings_for",
]

_WAYS = ("cron", "every", "at", "schedule")
_CHANGEABLE = frozenset(definitions.FIELDS) - {"tenant"}
_CREATABLE = frozenset(definitions.FIELDS) - {"schedule_kind", "expression", "anchor", "written_as", "target_kind"} | {*_WAYS}
_DEFAULT = edits.DEFAULTS

MAX_TOGETHER = 1_000
"""Jobs that one call of :func:`create_many` may create."""

Outcome = TypeVar("Outcome")


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
    return _only(batches.create_each([definition], source=source, actor=actor))


def create_many(
    wanted: Iterable[Mapping[str, Any]], *, source: str = "api", actor: str | None = None,
) -> Sequence[Job]:
    """Create jobs in one transaction, in a few statements: all of them or none.

    Args:
        wanted: for each job the arguments of :func:`create` by name, other than source and actor; MAX_TOGETHER at most.
        source: where the definitions come from, one of models.SOURCES.
        actor: who does it, for the audit.

    Returns:
        The jobs, in the order of *wanted*.

    Raises:
        InvalidInput: with everything that is wrong, each field after the number of its job, from 0: ``3: cron``.
        QuotaExceeded: a tenant may not have so many more jobs, or not create so many at once.
        Conflict: a tenant has an unfinished job of one of the names, or two have the same.
    """
    given = [*wanted]
    if len(given) > MAX_TOGETHER:
        raise InvalidInput(Problem("wanted", f"may have {MAX_TOGETHER:,} jobs; this has {len(given):,}: create them in parts"))
    with transaction.atomic(using=store.alias()):
        outcomes: dict[int, Any] = {number: _defined(arguments) for number, arguments in enumerate(given)}
        read = {number: found for number, found in outcomes.items() if isinstance(found, JobDefinition)}
        outcomes |= zip(read, batches.create_each([*read.values()], source=source, actor=actor), strict=True)
        refused = {number: found for number, found in outcomes.items() if isinstance(found, ChronoError)}
        if refused:
            raise _all_of(refused)
    return [outcomes[number] for number in range(len(given))]


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
        return batches.delete_each([store.lock_job(control.job_id_of(job))], actor)


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
    _check_names(given, _CHANGEABLE)
    changed = _only(batches.change_each([batches.Wanted(job, given, expected_version)], action, actor))
    changed.job.still_running = changed.running     # type: ignore[attr-defined]
    return changed


def _only(outcomes: Sequence[Outcome | ChronoError]) -> Outcome:
    """Return what came of a batch of one, or raise it."""
    [outcome] = outcomes
    if isinstance(outcome, ChronoError):
        raise outcome
    return outcome


def _all_of(refused: Mapping[int, ChronoError]) -> ChronoError:
    """Return one error for several jobs, by their numbers: all that is wrong, else what stands in the way of the first."""
    wrong = {number: error for number, error in refused.items()
             if isinstance(error, InvalidInput) and not isinstance(error, QuotaExceeded)}
    if not wrong:
        return next(iter(refused.values()))
    return InvalidInput(*(Problem(f"{number}: {problem.field}", problem.message, problem.code)
                          for number, error in wrong.items() for problem in error.problems))


def _check_names(given: Mapping[str, Any], known: Collection[str]) -> None:
    unknown = sorted(given.keys() - known)
    if unknown:
        raise InvalidInput(*(_unknown_field(name) for name in unknown))


def _unknown_field(name: str) -> Problem:
    if name == "tenant":
        return Problem("tenant", "a job stays with its tenant; create it anew under the other one and delete this")
    near = difflib.get_close_matches(name, (*_WAYS, *_CHANGEABLE), n=1)
    return Problem(name, "a job has no such field" + (f"; did you mean {near[0]}?" if near else ""), "unknown")


def _defined(arguments: Mapping[str, Any]) -> JobDefinition | InvalidInput:
    """Return what the arguments of :func:`create` define, not yet validated; or what is wrong with them as such."""
    try:
        _check_names(arguments, _CREATABLE)
        given = _when(arguments)
    except InvalidInput as error:
        return error
    kind = targets.kind_of_target(url=given.get("url", ""), queue=given.get("queue", ""))
    return JobDefinition(**{"name": "", "task": "", "target_kind": kind} | given)


def _when(given: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the way in which a schedule was given by the fields of a definition; what is not of it stays."""
    ways = {way: given.get(way) for way in _WAYS}
    found = definitions.schedule_fields(**ways, timezone=given.get("timezone"))
    others = {key: value for key, value in given.items() if key not in (*_WAYS, "timezone") and
              not (key in ("start", "end") and value is None and found.get(key) is not None)}
    return found | others
