"""What a tenant may have and create: checked and counted under the tenant's lock, in the transaction that creates.

So of callers at the same time none gets one too many, and what is rolled back has cost nothing.
"""
from __future__ import annotations

import uuid
from datetime import timedelta

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


def check_room(tenant: Tenant, now_us: int) -> None:
    """Refuse one more job where the tenant, which is locked, has as many as it may have; else count it.

    To count takes 0.1 ms for each 1,000 jobs. So of a tenant with MANY the last count is kept and raised by each job that is
    created. What is deleted or ends makes it too high, and where it reaches the limit all are counted. What comes
    into the table by SQL makes it too low: after RECOUNTED_AFTER all are counted as well.

    Raises:
        QuotaExceeded: it has.
    """
    rows = Tenant.objects.using(store.alias()).filter(slug=tenant.slug)
    known, counted_at, now = tenant.jobs_at_most, tenant.jobs_counted_at, ids.from_us(now_us)
    if known is not None and counted_at is not None and known < tenant.max_jobs and (
            timedelta(0) <= now - counted_at < RECOUNTED_AFTER):
        rows.update(jobs_at_most=known + 1)
        return
    used = unfinished(tenant.slug, tenant.max_jobs)
    if used < tenant.max_jobs:
        if used >= MANY:
            rows.update(jobs_at_most=used + 1, jobs_counted_at=now)
        return
    raise QuotaExceeded(
        Problem(
            "tenant",
            f"{tenant.slug} has {tenant.max_jobs:,} jobs, which is its limit; delete some or raise max_jobs",
            "quota",
        ),
        limit=tenant.max_jobs, usage=unfinished(tenant.slug),
    )


def charge(tenant: Tenant, now_us: int) -> None:
    """Count one creation of a tenant, which is locked.

    Raises:
        QuotaExceeded: it has created too many in the last while; the error says when to try again.
    """
    bucket = bucket_of(tenant)
    left = bucket.take(now_us)
    if left is None:
        seconds = bucket.wait_seconds(now_us)
        when = "raise create_rate" if seconds is None else f"try again in {seconds:.3f} seconds, or raise create_rate"
        raise QuotaExceeded(
            Problem(
                "tenant",
                f"{tenant.slug} may create {tenant.create_rate:g} jobs a second and {tenant.create_burst:,} at once; {when}",
                "rate",
            ),
            limit=tenant.create_burst, usage=tenant.create_burst, retry_after_seconds=seconds,
        )
    counted_at = ids.from_us(left.counted_us or now_us)
    Tenant.objects.using(store.alias()).filter(slug=tenant.slug).update(
        create_tokens=left.tokens, create_counted_at=counted_at)


def lock_tenant_of_finished(job_id: uuid.UUID | str) -> Tenant | None:
    """Return the tenant of a job that is over, locked; None for any other job.

    The order of locks is tenant, then job, so it has to be known before the job is locked.
    """
    over = Job.objects.using(store.alias()).filter(id=job_id, finished_at__isnull=False).values_list("tenant", flat=True)
    slug = over.first()
    return None if slug is None else store.lock_tenant(slug)
