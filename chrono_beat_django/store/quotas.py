"""What a tenant may have and create: checked and counted under the tenant's lock, in the transaction that creates.

So of callers at the same time none gets one too many, and what is rolled back has cost nothing.
"""
from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from chrono_beat.core import ids
from chrono_beat.core.errors import Problem, QuotaExceeded
from chrono_beat.core.quotas import Bucket
from chrono_beat_django.models import Job, Tenant
from chrono_beat_django.store import definitions as store

MANY = 10_000
RECOUNTED_AFTER = timedelta(minutes=1)


def unfinished(tenant: str, at_most: int | None = None) -> int:
    """Return how many jobs count against a tenant's quota: entries of one index, *at_most* so many are looked at."""
    rows = Job.objects.using(store.alias()).unfinished().of(tenant).order_by().values("tenant")    # index only
    return rows.count() if at_most is None else rows[:at_most].count()


def bucket_of(tenant: Tenant) -> Bucket:
    """Return what is stored of a tenant's creations."""
    counted = None if tenant.create_counted_at is None else ids.to_us(tenant.create_counted_at)
    return Bucket(rate=tenant.create_rate, burst=tenant.create_burst, tokens=tenant.create_tokens, counted_us=counted)


def room_for(tenant: Tenant, now_us: int, wanted: int) -> int:
    """Return how many of *wanted* more jobs the tenant, which is locked, may have.

    To count takes 0.1 ms for each 1,000 jobs. So of a tenant with MANY the last count is kept and raised by each job that is
    created. What is deleted or ends makes it too high, and where it reaches the limit all are counted. What comes
    into the table by SQL makes it too low: after RECOUNTED_AFTER all are counted as well.
    """
    known, counted_at, now = tenant.jobs_at_most, tenant.jobs_counted_at, ids.from_us(now_us)
    fresh = counted_at is not None and timedelta(0) <= now - counted_at < RECOUNTED_AFTER
    if known is None or not fresh or known + wanted > tenant.max_jobs:
        known = tenant.jobs_at_most = unfinished(tenant.slug, tenant.max_jobs)
        tenant.jobs_counted_at = now
    return max(0, min(wanted, tenant.max_jobs - known))


def full(tenant: Tenant) -> QuotaExceeded:
    """Return what is told to a tenant that has as many jobs as it may have."""
    return QuotaExceeded(
        Problem(
            "tenant",
            f"{tenant.slug} has {tenant.max_jobs:,} jobs, which is its limit; delete some or raise max_jobs",
            "quota",
        ),
        limit=tenant.max_jobs, usage=max(tenant.max_jobs, unfinished(tenant.slug)),
    )


def check_room(tenant: Tenant, now_us: int, wanted: int = 1) -> None:
    """Refuse *wanted* more jobs where the tenant, which is locked, may not have so many; else count them.

    Raises:
        QuotaExceeded: it may not.
    """
    if room_for(tenant, now_us, wanted) < wanted:
        raise full(tenant)
    _write(tenant, _counted(tenant, wanted))


def admit(tenant: Tenant, now_us: int, wanted: int) -> tuple[int, QuotaExceeded | None]:
    """Return how many of *wanted* jobs the tenant, which is locked, may create now, and why not more; None where all.

    Nothing is counted: that does :func:`count`, in the same transaction, of those that were written.
    """
    room, tokens = room_for(tenant, now_us, wanted), bucket_of(tenant).whole(now_us)
    if min(room, tokens) >= wanted:
        return wanted, None
    return (tokens, _too_fast(tenant, now_us, tokens)) if tokens < room else (room, full(tenant))


def count(tenant: Tenant, now_us: int, made: int) -> None:
    """Count jobs that were admitted and written."""
    _write(tenant, _charged(tenant, now_us, made) | _counted(tenant, made))


def charge(tenant: Tenant, now_us: int) -> None:
    """Count one creation, of no job, by a tenant that is locked.

    Raises:
        QuotaExceeded: it has created too many in the last while; the error says when to try again.
    """
    _write(tenant, _charged(tenant, now_us, 1))


def _charged(tenant: Tenant, now_us: int, made: int) -> dict[str, Any]:
    left = bucket_of(tenant).take(now_us, made)
    if left is None:
        raise _too_fast(tenant, now_us)
    return {"create_tokens": left.tokens, "create_counted_at": ids.from_us(left.counted_us or now_us)}


def _counted(tenant: Tenant, made: int) -> dict[str, Any]:
    if tenant.jobs_at_most is None or tenant.jobs_at_most < MANY:
        return {}
    return {"jobs_at_most": tenant.jobs_at_most + made, "jobs_counted_at": tenant.jobs_counted_at}


def _write(tenant: Tenant, columns: Mapping[str, Any]) -> None:
    if columns:
        Tenant.objects.using(store.alias()).filter(slug=tenant.slug).update(**columns)


def _too_fast(tenant: Tenant, now_us: int, taken: int = 0) -> QuotaExceeded:
    """Return what is told to a tenant that creates too fast.

    Args:
        taken: what it may create still, and will, before the one that is refused.
    """
    bucket = bucket_of(tenant).take(now_us, taken) or bucket_of(tenant)
    seconds = bucket.wait_seconds(now_us)
    when = "raise create_rate" if seconds is None else f"try again in {seconds:.3f} seconds, or raise create_rate"
    return QuotaExceeded(
        Problem(
            "tenant",
            f"{tenant.slug} may create {tenant.create_rate:g} jobs a second and {tenant.create_burst:,} at once; {when}",
            "rate",
        ),
        limit=tenant.create_burst, usage=tenant.create_burst, retry_after_seconds=seconds,
    )


def lock_tenants_of_finished(job_ids: Sequence[uuid.UUID]) -> dict[str, Tenant]:
    """Return the tenants of those jobs that are over, locked, by slug.

    The order of locks is tenant, then job, so they have to be known before the jobs are locked.
    """
    over = Job.objects.using(store.alias()).filter(id__in=job_ids, finished_at__isnull=False)
    return store.lock_tenants(set(over.values_list("tenant", flat=True)))
