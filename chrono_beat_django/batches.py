"""Create and change some hundreds of jobs together: one transaction, and one word to Redis when it has committed.

Each job keeps what it has when it comes alone: it is validated, counted against its tenant's limits under the tenant's lock,
and leaves a line in the audit. One that is refused takes no other with it. A process that ends in between leaves whole
batches. To create or change one job is to do so with a batch of one.

Order of locks: tenants by slug, then jobs by id.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from django.db import transaction

from chrono_beat.core import definition as definitions
from chrono_beat.core.definition import JobDefinition
from chrono_beat.core.deliveries import Running
from chrono_beat.core.errors import ChronoError, InvalidInput, NotFound, QuotaExceeded, StaleVersion
from chrono_beat.core.records import GONE_VERSION, Void
from chrono_beat_django import control, edits, wiring
from chrono_beat_django.models import SOURCES, Job, JobEvent, Tenant, new_job_id
from chrono_beat_django.store import definitions as store
from chrono_beat_django.store import quotas

BATCH = 200
"""Jobs that are written in one transaction: dispatchers may have to wait for as long as that takes."""

WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 60.0
"""How long to wait at least and at most for a tenant that creates too fast; who would wait longer is refused."""

FRUITLESS_WAITS = 5
"""Waits in a row, others being faster, after which what is left is refused."""


class Changed(NamedTuple):
    """A job after a change.

    Args:
        job: as it is now.
        columns: names of what changed; empty where it was so already.
        running: deliveries of older versions that have begun and go on, of the whole batch; filled in when the change
            has committed.
    """

    job: Job
    columns: frozenset[str]
    running: Sequence[Running] = ()


class Wanted(NamedTuple):
    """A change that is asked for.

    Args:
        job: the job, or its id.
        changes: fields of JobDefinition by name.
        expected_version: the version that the caller has seen; None to change whatever is there.
    """

    job: Any
    changes: Mapping[str, Any]
    expected_version: int | None = None


def create_each(
    wanted: Sequence[JobDefinition], *, source: str, actor: str | None, origins: Sequence[str] | None = None,
) -> list[Job | ChronoError]:
    """Create jobs in one transaction; each is created, or refused by itself.

    Args:
        wanted: at most some hundreds.
        source: one of models.SOURCES.
        actor: who does it, for the audit.
        origins: of each what it was imported from; None where they were not.

    Returns:
        For each its job, or what :func:`chrono_beat_django.jobs.create` raises. Where a tenant's limits have room for a
        part, the first ones are created.
    """
    if source not in SOURCES:
        raise ValueError(f"source must be one of {', '.join(SOURCES)}")
    now_us = wiring.now_us()
    valid, refused = _validated(wanted, now_us)
    with transaction.atomic(using=store.alias()):
        tenants = store.lock_tenants(str(definition.tenant) for definition in valid.values())
        refused |= _homeless_or_named_twice(valid, tenants)
        refused |= _beyond_limits(_without(valid, refused), tenants, now_us)
        made = {}
        for number, definition in _without(valid, refused).items():
            made[number] = job = Job(id=new_job_id(), source=source, created_by=(actor or "")[:255],
                                     origin=origins[number] if origins else "")
            store.take_over(job, definition)
            edits.plan_anew(job, definition, now_us)
        written = store.insert_all([*made.values()]) if made else []
        refused |= {number: error for number, error in zip(made, written, strict=True) if error is not None}
        made = _without(made, refused)
        for slug, count in Counter(job.tenant for job in made.values()).items():
            quotas.count(tenants[slug], now_us, count)
        store.write_events([
            store.event(job, "create", actor, now_us, {"after": edits.said(valid[number])}) for number, job in made.items()])
        if made:
            transaction.on_commit(wiring.wake_dispatchers, using=store.alias())
    outcomes: dict[int, Job | ChronoError] = {**made, **refused}
    return [outcomes[number] for number in range(len(wanted))]


def create_paced(
    wanted: Sequence[JobDefinition], *, source: str, actor: str | None, origins: Sequence[str] | None = None,
) -> list[Job | ChronoError]:
    """Create jobs as :func:`create_each` does, as fast as their tenants may: who creates too fast is waited for.

    Each pause is followed by a transaction of its own.
    """
    outcomes = create_each(wanted, source=source, actor=actor, origins=origins)
    left, fruitless = _too_fast(outcomes), 0
    while left and fruitless < FRUITLESS_WAITS:
        wiring.wait(max(WAIT_SECONDS, *left.values()))
        again = create_each([wanted[number] for number in left], source=source, actor=actor,
                            origins=origins and [origins[number] for number in left])
        for number, outcome in zip(left, again, strict=True):
            outcomes[number] = outcome
        before, left = left, _too_fast(outcomes)
        fruitless = fruitless + 1 if len(left) == len(before) else 0
    return outcomes


def change_each(wanted: Sequence[Wanted], action: str, actor: str | None) -> list[Changed | ChronoError]:
    """Change jobs in one transaction as :func:`chrono_beat_django.jobs.update` changes one; each is changed, or refused by
    itself.

    Args:
        wanted: at most some hundreds, each job once.
        action: what the audit calls it; "update" that pauses or resumes is called so.
        actor: who does it, for the audit.

    Returns:
        For each the change, or what ``update`` raises.
    """
    try:
        return _change_together(wanted, action, actor)
    except ChronoError as refused:
        if len(wanted) == 1:
            return [refused]
    # One of them is in the way of all: halves find it in few transactions.
    half = len(wanted) // 2
    return [*change_each(wanted[:half], action, actor), *change_each(wanted[half:], action, actor)]


@store.repeated_after_deadlock
def delete_each(jobs: Sequence[Job], actor: str | None) -> Sequence[Running]:
    """Remove jobs in one transaction; those that are gone already are passed over.

    Returns:
        The deliveries that are running and go on; filled in at the commit of a transaction around this call.
    """
    now_us = wiring.now_us()
    with transaction.atomic(using=store.alias()):
        found = store.lock_jobs([job.id for job in jobs])
        for job in found.values():
            job.version += 1
        store.write_events([
            store.event(job, "delete", actor, now_us, {"before": edits.said(store.definition_of(job))})
            for job in found.values()])
        running = control.tell([Void(key, job.tenant, GONE_VERSION) for key, job in found.items()])
        Job.objects.using(store.alias()).filter(id__in=found).delete()
    return running


class _Edited(NamedTuple):
    """A job with a change that is not written yet.

    Args:
        changed: before and after by column.
        to_write: whether there is something to write, be it that the job is planned anew as it was.
        revived: it was over and runs again, so it is one more to its tenant.
    """

    job: Job
    changed: Mapping[str, tuple[Any, Any]]
    to_write: bool
    revived: bool


def _validated(
    wanted: Sequence[JobDefinition], now_us: int,
) -> tuple[dict[int, JobDefinition], dict[int, ChronoError]]:
    valid: dict[int, JobDefinition] = {}
    refused: dict[int, ChronoError] = {}
    for number, definition in enumerate(wanted):
        try:
            valid[number] = definitions.validate(definition, now_us=now_us, config=wiring.config())
        except InvalidInput as error:
            refused[number] = error
    return valid, refused


def _without(found: Mapping[int, Any], refused: Collection[int]) -> dict[int, Any]:
    return {number: value for number, value in found.items() if number not in refused}


def _homeless_or_named_twice(
    valid: Mapping[int, JobDefinition], tenants: Mapping[str, Tenant],
) -> dict[int, ChronoError]:
    names = {number: (str(definition.tenant), definition.name) for number, definition in valid.items()}
    taken = store.names_taken({*names.values()})
    refused: dict[int, ChronoError] = {}
    for number, (tenant, name) in names.items():
        if tenant not in tenants:
            refused[number] = store.UnknownTenant(tenant)
        elif (tenant, name) in taken:
            refused[number] = store.name_is_taken(tenant, name)
        taken.add((tenant, name))
    return refused


def _beyond_limits(
    valid: Mapping[int, JobDefinition], tenants: Mapping[str, Tenant], now_us: int,
) -> dict[int, ChronoError]:
    refused: dict[int, ChronoError] = {}
    for slug, tenant in tenants.items():
        numbers = [number for number, definition in valid.items() if definition.tenant == slug]
        granted, error = quotas.admit(tenant, now_us, len(numbers))
        if error is not None:
            refused |= dict.fromkeys(numbers[granted:], error)
    return refused


def _too_fast(outcomes: Sequence[Job | ChronoError]) -> dict[int, float]:
    """Return seconds to wait by number, of those that are worth waiting for."""
    return {
        number: outcome.retry_after_seconds for number, outcome in enumerate(outcomes)
        if isinstance(outcome, QuotaExceeded) and outcome.retry_after_seconds is not None
        and outcome.retry_after_seconds <= LONGEST_WAIT_SECONDS
    }


@store.repeated_after_deadlock
def _change_together(wanted: Sequence[Wanted], action: str, actor: str | None) -> list[Changed | ChronoError]:
    """Change all that are right by themselves.

    Raises:
        ChronoError: the database or a tenant's limit refuses some of them, and nothing was written.
    """
    with transaction.atomic(using=store.alias()):
        keys = [str(control.job_id_of(one.job)) for one in wanted]
        # A job that is over and gets runs again counts as one more. Its tenant is locked first, as everywhere.
        tenants = quotas.lock_tenants_of_finished(keys)
        found = store.lock_jobs(keys)
        now_us = wiring.now_us()
        outcomes = [_edited(found.get(key), one, now_us) for key, one in zip(keys, wanted, strict=True)]
        right = [outcome for outcome in outcomes if isinstance(outcome, _Edited)]
        for slug, count in sorted(Counter(edited.job.tenant for edited in right if edited.revived).items()):
            quotas.check_room(tenants.get(slug) or store.lock_tenant(slug), now_us, count)
        written = [edited for edited in right if edited.to_write]
        if written:
            store.save_all([edited.job for edited in written], {c for edited in written for c in edited.changed}, now_us)
            store.write_events([_event(edited, action, actor, now_us) for edited in written])
        # What is so already is told, too: the call that made it so may have failed to tell Redis.
        running = control.tell([Void(str(edited.job.id), edited.job.tenant, edited.job.version) for edited in right])
    return [outcome if isinstance(outcome, ChronoError) else Changed(outcome.job, frozenset(outcome.changed), running)
            for outcome in outcomes]


def _edited(job: Job | None, wanted: Wanted, now_us: int) -> _Edited | ChronoError:
    """Set what is wanted on a job that is locked, or return why not."""
    if job is None:
        return NotFound(f"there is no job {control.job_id_of(wanted.job)}")
    seen = wanted.expected_version
    if seen is not None and job.version != seen:
        return StaleVersion(f"the job is at version {job.version}, not {seen}: it was changed meanwhile")
    try:
        definition, same_schedule = edits.wanted(store.definition_of(job), wanted.changes)
        valid = definitions.validate(definition, now_us=now_us, config=wiring.config(), planned=same_schedule)
    except InvalidInput as error:
        return error
    was_over, was_quarantined = job.finished_at is not None, bool(job.quarantined_reason)
    changed = store.take_over(job, valid)
    if changed.keys() & edits.PLANNED_BY or was_quarantined:
        edits.plan_anew(job, valid, now_us)
        job.plan_version = job.version + 1              # rule 7: what is of an older plan is not carried over
    return _Edited(job, changed, bool(changed) or was_quarantined, was_over and job.finished_at is None)


def _event(edited: _Edited, action: str, actor: str | None, now_us: int) -> JobEvent:
    job, changed = edited.job, edited.changed
    if action == "update" and "paused" in changed:
        action = "pause" if job.paused else "resume"
    return store.event(job, action, actor, now_us, {
        "before": {column: before for column, (before, _) in changed.items()},
        "after": {column: after for column, (_, after) in changed.items()},
    })
