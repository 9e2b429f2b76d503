"""What a tenant uses of its limits, now and within the last hour.

What runs and waits is counted by Redis, at a cost that does not grow with either; the rest is read from rollups and from the
index that keeps the names of jobs.
"""
from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from chrono_beat.core import ids
from chrono_beat.core.errors import QueueUnavailable
from chrono_beat.core.records import WorkerReport
from chrono_beat_django import figures, wiring
from chrono_beat_django.models import Tenant
from chrono_beat_django.store import definitions as store
from chrono_beat_django.store import quotas

USAGE_SPAN = timedelta(hours=1)
MOST_POOLS = 20


class Usage(NamedTuple):
    """What a tenant uses of what it may.

    Args:
        paused: none of its executions is started until it is resumed.
        jobs, max_jobs: jobs that are not over, and how many there may be.
        create_tokens, create_burst: jobs that it may create at once now, and after a pause.
        create_rate: jobs that it may create a second in the long run.
        running, max_running: executions that workers have now, and how many they may have.
        waiting: those that a worker can draw, plain tasks among them, in the pools that are known: those of tenants and
            of live workers. Both are None where Redis does not answer.
        since: since when the following was summed up.
        started, duplicates: executions that started, and deliveries beyond the first of an execution.
        capped_seconds: time for which its cap held back its work.
        lateness_max_seconds: the longest from due to started.
        lateness_p50_seconds, lateness_p99_seconds: its median and 99th percentile; None where nothing started.
    """

    paused: bool
    jobs: int
    max_jobs: int
    create_tokens: float
    create_burst: int
    create_rate: float
    running: int | None
    max_running: int
    waiting: int | None
    since: datetime
    started: int
    duplicates: int
    capped_seconds: float
    lateness_max_seconds: float
    lateness_p50_seconds: float | None
    lateness_p99_seconds: float | None


def usage(tenant: Tenant | str) -> Usage:
    """Say what a tenant uses of its limits now, and what became of its executions within the last hour.

    Raises:
        UnknownTenant: there is none.
    """
    slug = tenant.slug if isinstance(tenant, Tenant) else str(tenant)
    found = Tenant.objects.using(store.alias()).filter(slug=slug).first()
    if found is None:
        raise store.UnknownTenant(slug)
    now_us = wiring.now_us()
    running, waiting = _in_redis(slug)
    since = ids.from_us(now_us) - USAGE_SPAN
    summed = figures.of(slug, since, ids.from_us(now_us + 1))
    return Usage(
        paused=found.paused, jobs=quotas.unfinished(slug), max_jobs=found.max_jobs,
        create_tokens=quotas.bucket_of(found).at(now_us).tokens or 0.0, create_burst=found.create_burst,
        create_rate=found.create_rate, running=running, max_running=found.max_running,
        waiting=waiting, since=since, started=summed.started, duplicates=summed.duplicates,
        capped_seconds=summed.capped_seconds, lateness_max_seconds=summed.lateness_max_seconds,
        # Read from buckets, a percentile may be 2 % too high.
        lateness_p50_seconds=_at_most(summed.lateness.p50, summed.lateness_max_seconds),
        lateness_p99_seconds=_at_most(summed.lateness.p99, summed.lateness_max_seconds),
    )


def _at_most(seconds: float | None, most: float) -> float | None:
    return None if seconds is None else min(seconds, most or seconds)


def known_pools(workers: Sequence[WorkerReport]) -> list[str]:
    """Return the default pool, those that live workers drain, and those of tenants; MOST_POOLS at most."""
    named = Tenant.objects.using(store.alias()).exclude(pool="").order_by().values_list("pool", flat=True).distinct()
    pools = [wiring.config().default_pool, *(pool for worker in workers for pool in worker.pools), *named[:MOST_POOLS]]
    return list(dict.fromkeys(pools))[:MOST_POOLS]


def _in_redis(slug: str) -> tuple[int | None, int | None]:
    """Return how many executions of a tenant run, and how many wait."""
    queue, lane = wiring.queue(), ids.lane_of(slug, wiring.config().lanes)
    try:
        running = queue.running(lane, slug)
        return running, sum(queue.backlog(lane, pool, slug).get(slug, 0) for pool in known_pools(queue.workers()))
    except QueueUnavailable:
        return None, None
