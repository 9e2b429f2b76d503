"""How the deployment stands at this moment, for somebody who looks at it all the time: ``chrono top``.

It is put together from what the dashboard shows, read anew at each call. **Bound.** At most `MOST_TENANTS` tenants: one
query of rollups for the worst and one for those that stand out otherwise, and a look into Redis for each.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import django.db
from django.db import connections
from django.db.models import Count

from chrono_beat.core import field_checks as checks
from chrono_beat.core import ids, lifecycle
from chrono_beat.core.errors import InvalidInput, Problem, QueueUnavailable, StoreUnavailable
from chrono_beat_django import figures, wiring
from chrono_beat_django.dashboard import panels
from chrono_beat_django.models import Execution, Tenant
from chrono_beat_django.store import definitions as store

MOST_TENANTS = panels.MOST_TENANTS
MINUTES = 5
"""For how long figures are summed up, and the minute that has begun."""


@dataclass(frozen=True, kw_only=True)
class TenantRow:
    """A tenant: what it has now, and what became of its executions lately.

    Args:
        backlog: executions that wait in Redis.
        running, max_running: slots that it holds, None where Redis does not answer; its cap.
        capped: nothing but its cap holds back work.
        paused: it is.
        lateness_p50, lateness_p99: due to started, in seconds; None where nothing started.
        started_per_second, failed_per_second: of the minutes that are looked at; failed ones and dead letters.
        dead, skipped, duplicates: how many in these minutes.
        capped_seconds: for how long of them nothing but its cap held back work.
    """

    tenant: str
    backlog: int
    running: int | None
    max_running: int | None
    capped: bool
    paused: bool
    lateness_p50: float | None
    lateness_p99: float | None
    started_per_second: float
    failed_per_second: float
    dead: int
    skipped: int
    duplicates: int
    capped_seconds: float


@dataclass(frozen=True, kw_only=True)
class PoolRow:
    """A pool: its live workers, the executions that they can run at once, and what waits for them."""

    pool: str
    workers: int
    slots: int
    waiting: int


@dataclass(frozen=True, kw_only=True)
class DispatcherRow:
    """A live dispatcher and how many partitions it owns."""

    name: str
    partitions: int
    leaving: bool


@dataclass(frozen=True, kw_only=True)
class Overview:
    """How the deployment stands.

    Args:
        at: the database's clock.
        minutes: for how long figures are summed up.
        by: in which order tenants are.
        redis_away: Redis does not answer, so that backlog, caps and workers are not known.
        tenants: at most as many as were asked for.
        dispatchers: the live ones.
        partitions: how many there are.
        without_owner: numbers of those that no live dispatcher owns.
        pools: by name; a worker that draws several is counted in each.
        waiting: executions of all tenants that wait in Redis.
        dead_letters: that nobody has handled; with *more_dead_letters* at least so many.
        open_alerts: at most 20 are counted.
    """

    at: datetime
    minutes: int
    by: str
    redis_away: bool
    tenants: Sequence[TenantRow]
    dispatchers: Sequence[DispatcherRow]
    partitions: int
    without_owner: Sequence[int]
    pools: Sequence[PoolRow]
    waiting: int
    dead_letters: int
    more_dead_letters: bool
    open_alerts: int


ORDERS: dict[str, Callable[[TenantRow], float]] = {
    "lateness": lambda row: row.lateness_p99 or 0.0,
    "backlog": lambda row: row.backlog,
    "running": lambda row: row.running or 0,
    "started": lambda row: row.started_per_second,
    "capped": lambda row: row.capped_seconds,
    "failed": lambda row: row.failed_per_second,
    "dead": lambda row: row.dead,
}
"""By what tenants can be ordered, the most first."""


def read(*, by: str = "lateness", limit: int = 20, minutes: int = MINUTES) -> Overview:
    """Look at everything once.

    Args:
        by: one of `ORDERS`.
        limit: how many tenants, 1 to `MOST_TENANTS`.
        minutes: for how long figures are summed up, 1 to 1,440.

    Raises:
        InvalidInput: an argument is none of these.
        StoreUnavailable: the database does not answer; the next call tries anew.
    """
    problems = [Problem("by", wrong, "unknown")] if (wrong := checks.not_one_of(by, tuple(ORDERS))) else []
    for name, given, most in (("limit", limit, MOST_TENANTS), ("minutes", minutes, 1_440)):
        if wrong := checks.number(given, checks.Number(1, most, "", whole=True, optional=False))[1]:
            problems.append(Problem(name, wrong))
    if problems:
        raise InvalidInput(*problems)
    try:
        return _read(by, limit, minutes)
    except (django.db.OperationalError, django.db.InterfaceError) as error:
        connections.close_all()                             # a broken one would fail for ever
        raise StoreUnavailable(" ".join(str(error).split())) from error


def _read(by: str, limit: int, minutes: int) -> Overview:
    at, queue = panels.now(), panels.queue_now()
    leases, letters = panels.partitions(at), panels.letters()
    owned = Counter(lease.owner for lease in leases if lease.held)
    tenants = sorted(_tenants(at, queue, by, limit, minutes), key=lambda row: (-ORDERS[by](row), -row.backlog, row.tenant))
    return Overview(
        at=at, minutes=minutes, by=by, redis_away=queue.away, tenants=tenants[:limit],
        dispatchers=[DispatcherRow(name=found.member, partitions=owned[found.member], leaving=found.leaving)
                     for found in panels.dispatchers(at)],
        partitions=len(leases), without_owner=[lease.number for lease in leases if not lease.held],
        pools=pools(queue), waiting=queue.waiting, dead_letters=letters.number, more_dead_letters=letters.more,
        open_alerts=len(panels.alerts()),
    )


def _tenants(at: datetime, queue: panels.Queue, by: str, limit: int, minutes: int) -> list[TenantRow]:
    start = at.replace(second=0, microsecond=0) - timedelta(minutes=minutes)
    found = {row.tenant: row for row in figures.worst(start, at, by=by if by in figures.ORDERS else "started", limit=limit)}
    fullest = sorted(queue.backlog, key=lambda slug: -queue.backlog[slug])[:limit]
    others = {*fullest, *queue.capped[:limit], *(_busiest(limit) if by == "running" else ())} - found.keys()
    if others:
        found |= {row.tenant: row for row in figures.worst(start, at, by="started", limit=len(others), among=others)}
    slugs = [*found, *(others - found.keys())]
    stored = {tenant.slug: tenant for tenant in Tenant.objects.using(store.alias()).filter(slug__in=slugs)}
    nothing = figures.Figures(tenant=None, start=start, seconds=max(1, round((at - start).total_seconds())))
    return [_row(str(slug), stored.get(str(slug)), found.get(slug, nothing), queue) for slug in slugs]


def _busiest(limit: int) -> list[str]:
    """Return the tenants that run most, as far as is recorded."""
    rows = Execution.objects.using(store.alias()).filter(state=lifecycle.RUNNING).order_by().values("tenant")
    return [row["tenant"] for row in rows.annotate(running=Count("pk")).order_by("-running")[:limit]]


def _row(slug: str, tenant: Tenant | None, seen: figures.Figures, queue: panels.Queue) -> TenantRow:
    return TenantRow(
        tenant=slug, backlog=queue.backlog.get(slug, 0), running=_running(slug, queue), capped=slug in queue.capped,
        max_running=None if tenant is None else tenant.max_running, paused=tenant is not None and tenant.paused,
        lateness_p50=seen.lateness.p50, lateness_p99=seen.lateness.p99, started_per_second=seen.started / seen.seconds,
        failed_per_second=(seen.failed + seen.dead) / seen.seconds, dead=seen.dead, skipped=seen.skipped,
        duplicates=seen.duplicates, capped_seconds=seen.capped_seconds,
    )


def _running(slug: str, queue: panels.Queue) -> int | None:
    if queue.away:
        return None
    try:
        return wiring.queue().running(ids.lane_of(slug, wiring.config().lanes), slug)
    except QueueUnavailable:
        return None


def pools(queue: panels.Queue) -> list[PoolRow]:
    """Return every pool that is known, by name; a worker that draws several is counted in each."""
    return [
        PoolRow(pool=pool, workers=len(drawn), slots=sum(worker.concurrency for worker in drawn), waiting=waiting)
        for pool, waiting in sorted(queue.by_pool.items())
        for drawn in [[worker for worker in queue.workers if pool in worker.pools]]
    ]
