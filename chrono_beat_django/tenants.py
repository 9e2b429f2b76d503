"""Create, change, pause, resume, move and delete a tenant.

Each is one call for all its jobs, as prompt as one for a single job (invariant 7).

A pause stops the tenant's draws: Redis is told in the call. Its jobs go on being planned, and what was published waits in
its streams; a resume voids that and plans every job from now, while the tenant is still paused, and only then lets draws
go on. So what fell into a pause is fired only where the resume asks for it. Jobs that are paused themselves stay so. Plain
tasks, which have no job, wait through a pause and run after it.
"""
from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from django.db import connections, transaction
from django.db.models import QuerySet

from chrono_beat.core import ids, lifecycle
from chrono_beat.core.deliveries import Running
from chrono_beat.core.errors import Conflict, NotYetVoidedWarning, QueueUnavailable
from chrono_beat.core.records import GONE_VERSION, Void
from chrono_beat_django import backfill, control, wiring
from chrono_beat_django.edits import plan_anew
from chrono_beat_django.models import Execution, Job, PendingVoid, Tenant
from chrono_beat_django.store import definitions as store
from chrono_beat_django.tenant_limits import create, lane_of, remove, tell_limits, update
from chrono_beat_django.tenant_usage import Usage, usage

__all__ = ["Usage", "create", "delete", "every", "move", "pause", "resume", "update", "usage"]

BATCH = 200
"""Jobs that are written in one transaction."""


def every() -> QuerySet[Tenant]:
    """Return all tenants by slug, as a queryset."""
    return Tenant.objects.using(store.alias()).order_by("slug")


def pause(tenant: Tenant | str) -> Sequence[Running]:
    """Stop drawing a tenant's work until it is resumed.

    Returns:
        The deliveries that are running and go on, filled in when the change has committed; no other one starts.

    Raises:
        UnknownTenant: there is none.
    """
    running: list[Running] = []
    with transaction.atomic(using=store.alias()):
        found = _set_paused(_slug(tenant), True)
        transaction.on_commit(lambda: _stop_draws(found, running), using=store.alias())
    return running


def resume(
    tenant: Tenant | str, *, missed: str | None = None, limit: int = backfill.DEFAULT_LIMIT, actor: str | None = None,
) -> None:
    """Let a tenant's jobs fire again from now on; what fell into the pause is not made up for unless asked.

    Where Redis cannot be reached the tenant stays paused, with a NotYetVoidedWarning: call again. Within a transaction
    all this happens when that has committed.

    Args:
        missed: None to look forward only; "latest" to run the newest occurrence of each job that fell into the pause,
            "all" to run the newest *limit* of each: as a backfill, held back by the tenant's cap.
        limit: how many of a job "all" runs at most, 1 to 10,000.
        actor: who does it, for the audit of its jobs.

    Raises:
        UnknownTenant: there is none.
        InvalidInput: *missed* or *limit* is none of these.
    """
    backfill.check_missed(missed, limit)
    slug = _slug(tenant)
    with transaction.atomic(using=store.alias()):
        since = store.lock_tenant(slug).paused_at
        back = None if missed is None or since is None else _LookBack(since, missed, limit)
        transaction.on_commit(lambda: _resume(slug, back, actor), using=store.alias())


@store.repeated_after_deadlock
def move(tenant: Tenant | str, pool: str) -> Sequence[Running]:
    """Let the workers of another pool run a tenant's jobs, those excepted that name a pool of their own.

    Nothing is lost and nothing runs twice: this is an edit of each of these jobs that leaves its schedule alone, so what
    waits, wherever it is, is drawn from the new pool, in its order. What has been drawn runs where it is. The same happens
    where ``Tenant.pool`` is changed in the admin or by SQL, within a second. Plain tasks stay in the pool they were sent to.

    Args:
        tenant: the tenant or its slug.
        pool: name of a Celery queue that begins with the default pool's name; "" for the default pool.

    Returns:
        The tenant's deliveries that were drawn before and go on, filled in when the change has committed.

    Raises:
        UnknownTenant: there is none.
        InvalidInput: *pool* is no name of a pool.
    """
    slug, running = _slug(tenant), list[Running]()
    with transaction.atomic(using=store.alias()):
        update(slug, pool=pool)                           # a trigger raises the versions of its jobs
        transaction.on_commit(lambda: _wait_for_drawn(slug, running), using=store.alias())
    return running


def _wait_for_drawn(slug: str, running: list[Running]) -> None:
    """Rule 10, for what was drawn before a move was told; what is drawn meanwhile, of the new pool, is left out."""
    if PendingVoid.objects.using(store.alias()).filter(tenant=slug, told=False).exists():
        return                                            # the caller was warned: the promise has not begun
    drawn: set[str] = set()

    def look() -> list[Running] | None:
        found = wiring.queue().deliveries_of(lane_of(slug), "", None, tenant=slug)
        if found and not drawn:
            drawn.update(delivery.token for delivery in found)
        return found and [delivery for delivery in found if delivery.token in drawn]

    running += control.settled(look)


def delete(tenant: Tenant | str, *, actor: str | None = None) -> Sequence[Running]:
    """Delete a tenant with all its jobs. What has not begun never begins; history stays.

    The tenant is paused first, its jobs go in batches, itself last: where this breaks off, call again. So does one whose
    Redis cannot be reached, with a NotYetVoidedWarning: it stays without jobs. Plain tasks that still wait in its streams
    run.

    Args:
        actor: who does it, for the audit of its jobs.

    Returns:
        The deliveries that are running and go on.

    Raises:
        UnknownTenant: there is none.
        Conflict: it is the tenant of jobs that name none; or this was called within a transaction.
    """
    slug = _slug(tenant)
    if slug == wiring.config().default_tenant:
        raise Conflict(f"{slug} is the tenant of jobs that name none (setting DEFAULT_TENANT)")
    if connections[store.alias()].in_atomic_block:
        raise Conflict("a tenant is deleted in several transactions; call this outside of one")
    running = list(pause(slug))
    while True:
        for batch in _batches(slug, finished=True):
            _delete_jobs(batch, actor)
        _cancel_eta_tasks(slug, actor)
        with transaction.atomic(using=store.alias()):
            found = store.lock_tenant(slug)               # jobs are created under this lock
            if not Job.objects.using(store.alias()).filter(tenant=slug).exists():
                _cancel_eta_tasks(slug, actor)
                try:
                    remove(found)
                except QueueUnavailable as error:
                    warnings.warn(
                        f"tenant {slug} has no jobs any more, but stays, paused: Redis could not be told ({error}); delete it "
                        "again",
                        NotYetVoidedWarning,
                        stacklevel=2,
                    )
                break
    # Its copies are void: the draw drops them, and the streams go with the last one.
    return running


def _cancel_eta_tasks(slug: str, actor: str | None) -> None:
    """Cancel what waits without a job."""
    waiting = Execution.objects.using(store.alias()).filter(
        tenant=slug, state__in=lifecycle.OPEN, cancel_requested_at=None, task__gt="")
    while batch := waiting[:BATCH]:
        for execution in batch:
            with contextlib.suppress(Conflict):           # it has ended meanwhile
                control.cancel(execution, actor=actor)


def _slug(tenant: Tenant | str) -> str:
    return tenant.slug if isinstance(tenant, Tenant) else str(tenant)


def _set_paused(slug: str, paused: bool) -> Tenant:
    found = store.lock_tenant(slug)
    Tenant.objects.using(store.alias()).filter(slug=slug).update(paused=paused)
    found.refresh_from_db()                               # dated by the database
    return found


def _stop_draws(tenant: Tenant, running: list[Running]) -> None:
    if tell_limits(tenant):
        lane = lane_of(tenant.slug)
        running += control.settled(lambda: wiring.queue().deliveries_of(lane, "", None, tenant=tenant.slug))


class _LookBack(NamedTuple):
    """What a resume makes up for: since when, "latest" or "all", how many of a job."""

    since: datetime
    missed: str
    limit: int


def _resume(slug: str, back: _LookBack | None, actor: str | None) -> None:
    size = BATCH if back is None or back.missed == "latest" else max(1, min(BATCH, backfill.MAX_BACKFILL // back.limit))
    try:
        for batch in _batches(slug, finished=False, size=size):
            voids = _plan_from_now(batch, back, actor)
            for void in voids:
                wiring.queue().void(lane_of(slug), void.job_id, void.version)
            wiring.store().void_done(voids)
            if back is not None:
                _look_back(voids, back)
    except QueueUnavailable as error:
        warnings.warn(
            f"tenant {slug} stays paused: Redis could not be told what is void ({error}); resume it again",
            NotYetVoidedWarning,
            stacklevel=2,
        )
        return
    with transaction.atomic(using=store.alias()):
        found = _set_paused(slug, False)
    tell_limits(found)
    wiring.wake_dispatchers()


def _batches(slug: str, *, finished: bool, size: int = BATCH) -> Iterator[list[Job]]:
    """Yield a tenant's jobs in batches, each read in a transaction of its own; with *finished* also those that are over."""
    last = None
    while True:
        rows = Job.objects.using(store.alias()).filter(tenant=slug).order_by("id")
        if not finished:
            rows = rows.filter(finished_at__isnull=True, paused=False, quarantined_reason="")
        batch = list((rows if last is None else rows.filter(id__gt=last))[:size])
        if not batch:
            return
        yield batch
        last = batch[-1].id


@store.repeated_after_deadlock
def _plan_from_now(batch: Sequence[Job], back: _LookBack | None, actor: str | None) -> list[Void]:
    now_us, voids = wiring.now_us(), []
    with transaction.atomic(using=store.alias()):
        locked = Job.objects.using(store.alias()).select_for_update().filter(id__in=[job.id for job in batch])
        for job in locked.order_by("id"):
            if job.paused or job.finished_at is not None:
                continue                                  # meanwhile
            plan_anew(job, store.definition_of(job), now_us)
            job.plan_version = job.version + 1
            store.save(job)
            detail = {} if back is None else {"missed": back.missed, "start": back.since}
            store.write_event(job, "resume", actor, now_us, {"tenant": job.tenant, **detail})
            voids.append(Void(str(job.id), job.tenant, job.version))
    return voids


def _look_back(voids: Sequence[Void], back: _LookBack) -> None:
    """Make up for what fell into the pause, once it is void. Where this breaks off, the tenant is paused still."""
    now = ids.from_us(wiring.now_us())
    with transaction.atomic(using=store.alias()):
        locked = Job.objects.using(store.alias()).select_for_update().filter(id__in=[void.job_id for void in voids])
        resumed = [(job, max(back.since, job.created_at)) for job in locked.order_by("id") if not job.paused]
        backfill.fill_pauses(resumed, back.missed, limit=back.limit, now=now)


@store.repeated_after_deadlock
def _delete_jobs(batch: Sequence[Job], actor: str | None) -> None:
    now_us = wiring.now_us()
    with transaction.atomic(using=store.alias()):
        for job in batch:
            job.version += 1
            store.write_event(job, "delete", actor, now_us, {"tenant": job.tenant})
        Job.objects.using(store.alias()).filter(id__in=[job.id for job in batch]).delete()
    control.say([Void(str(job.id), job.tenant, GONE_VERSION) for job in batch])
