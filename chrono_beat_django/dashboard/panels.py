"""What the pages show, read within bounds: rollups, the tables of dispatching, alerts, and what Redis holds just now.

**Bound.** A page lists `MOST_TENANTS` tenants at most and counts open rows and letters up to `MOST_COUNTED`. What is costly
with many tenants (all their rollups, all their schedules, their backlog) is read once a minute and process, not at each
view: the same goes for several people who look at the same time.
"""
from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.core.cache import cache

from chrono_beat.core import ids, lifecycle
from chrono_beat.core.errors import QueueUnavailable
from chrono_beat.core.records import WorkerReport
from chrono_beat.core.targets import relay_pool
from chrono_beat_django import alerts as mutes
from chrono_beat_django import figures, forecasting, wiring
from chrono_beat_django.models import Alert, Dispatcher, Execution, Job, Partition, Tenant
from chrono_beat_django.store import definitions as store
from chrono_beat_django.tenant_usage import known_pools

MOST_TENANTS = 50
MOST_COUNTED = 10_000
MOST_ALERTS = 20
MOST_WORKERS = 100
MOST_PARTITIONS = 1_024
OVERDUE_SECONDS = 60
"""A job that is due so long and not taken up means that the deployment is late."""
FRESH_SECONDS = 60
FORECAST_FRESH_SECONDS = 300
QUEUE_FRESH_SECONDS = 10


class Counted(NamedTuple):
    """A count that stops at a bound."""

    number: int
    more: bool

    def __str__(self) -> str:
        return f"{self.number:,}+" if self.more else f"{self.number:,}"


@dataclass(frozen=True)
class Queue:
    """What Redis holds; with *away* it does not answer and the rest says nothing.

    Args:
        backlog: entries waiting by tenant.
        by_pool: entries waiting by pool.
        capped: tenants that nothing but their cap holds back now, at most MOST_TENANTS of a pool.
        slots: tasks that all live workers together can run at once; what a relay sends takes none.
        skew_seconds: by how much its clock is ahead of this host's.
    """

    away: bool = False
    backlog: dict[str, int] = field(default_factory=dict)
    by_pool: dict[str, int] = field(default_factory=dict)
    capped: list[str] = field(default_factory=list)
    workers: list[WorkerReport] = field(default_factory=list)
    more_workers: int = 0
    slots: int = 0
    skew_seconds: float | None = None

    @property
    def waiting(self) -> int:
        """Return the entries that wait, of all tenants."""
        return sum(self.backlog.values())

    @property
    def fullest(self) -> list[tuple[str, int]]:
        """Return the tenants with the most entries waiting."""
        return sorted(self.backlog.items(), key=lambda item: (-item[1], item[0]))[:10]


class Lease(NamedTuple):
    """A partition, and whether anybody holds it now."""

    number: int
    owner: str
    epoch: int
    loaded: bool
    held: bool
    offered: bool


def now() -> datetime:
    """Return the database's clock."""
    return ids.from_us(wiring.now_us())


def fresh(key: str, seconds: int, read: Callable[[], Any]) -> Any:
    """Return what was read within so many seconds, else read it; a cache that does not answer reads."""
    name = f"chrono_beat:dashboard:{key}"
    try:
        found = cache.get(name)
    except Exception:                                       # whichever library the project's cache is made of
        return read()
    if found is None:
        found = read()
        try:
            cache.set(name, found, seconds)
        except Exception:
            pass
    return found


def series(tenant: str | None, start: datetime, end: datetime) -> list[figures.Figures]:
    """Return points of a chart, one for each minute or hour."""
    span = "minute" if end - start <= timedelta(days=1) else "hour"
    return fresh(f"series:{tenant}:{start.timestamp()}:{end.timestamp()}", FRESH_SECONDS,
                 lambda: figures.series(tenant, start, end, span=span))


def totals(tenant: str | None, start: datetime, end: datetime) -> figures.Figures:
    """Return the sums of a range."""
    return fresh(f"of:{tenant}:{start.timestamp()}:{end.timestamp()}", FRESH_SECONDS,
                 lambda: figures.of(tenant, start, end))


def worst(start: datetime, end: datetime, by: str, limit: int = MOST_TENANTS) -> list[figures.Figures]:
    """Return the tenants that fare worst."""
    return fresh(f"worst:{by}:{limit}:{start.timestamp()}:{end.timestamp()}", FRESH_SECONDS,
                 lambda: figures.worst(start, end, by=by, limit=limit))


def named(text: str, after: str) -> tuple[list[str], str]:
    """Return the slugs that contain a text, in order, and the one after which the next page begins, empty for none.

    Args:
        text: empty for all tenants.
        after: the last slug of the page before.
    """
    rows = Tenant.objects.using(store.alias()).filter(slug__gt=after)
    if text:
        rows = rows.filter(slug__icontains=text)
    slugs = list(rows.order_by("slug").values_list("slug", flat=True)[:MOST_TENANTS + 1])
    return slugs[:MOST_TENANTS], slugs[MOST_TENANTS - 1] if len(slugs) > MOST_TENANTS else ""


def running(tenant: str | None = None) -> Counted:
    """Count executions that run as far as is recorded; the index of open rows has them."""
    rows = Execution.objects.using(store.alias()).filter(state=lifecycle.RUNNING)
    return counted(rows if tenant is None else rows.filter(tenant=tenant))


def letters(tenant: str | None = None) -> Counted:
    """Count dead letters that nobody has handled; the index of letters has them."""
    rows = Execution.objects.using(store.alias()).dead_letters()
    return counted(rows if tenant is None else rows.filter(tenant=tenant))


def overdue(at: datetime) -> Any:
    """Return the jobs that have been due for more than `OVERDUE_SECONDS` and that nobody has taken up."""
    asleep = Tenant.objects.using(store.alias()).filter(paused=True).values("slug")
    # By partition, since the due index begins with it.
    return Job.objects.using(store.alias()).filter(
        partition__in=range(wiring.config().partitions), next_run_at__lt=at - timedelta(seconds=OVERDUE_SECONDS), paused=False,
    ).exclude(tenant__in=asleep)


def counted(rows: Any) -> Counted:
    """Count rows, `MOST_COUNTED` at most."""
    found = rows.order_by()[:MOST_COUNTED + 1].count()
    return Counted(min(found, MOST_COUNTED), found > MOST_COUNTED)


def alerts(tenant: str | None = None) -> list[Alert]:
    """Return open alerts, the latest first, each with what mutes it."""
    rows = Alert.objects.using(store.alias()).filter(closed_at__isnull=True).defer("detail")
    found = list((rows if tenant is None else rows.filter(tenant=tenant)).order_by("-last_at")[:MOST_ALERTS])
    mutes.complete(found)
    return found


def dispatchers(at: datetime) -> list[Dispatcher]:
    """Return the live members."""
    return list(Dispatcher.objects.using(store.alias()).filter(expires_at__gt=at)[:MOST_WORKERS])


def partitions(at: datetime) -> list[Lease]:
    """Return every partition with its owner."""
    return [Lease(row.number, row.owner, row.epoch, row.loaded_epoch == row.epoch,
                  bool(row.owner) and row.expires_at > at, row.offered)
            for row in Partition.objects.using(store.alias())[:MOST_PARTITIONS]]


def database_skew() -> float:
    """Return by how many seconds the database's clock is ahead of this host's."""
    before = time.time()
    there = wiring.store().now_us()
    return there / 1e6 - (before + time.time()) / 2


def queue() -> Queue:
    """Return what Redis holds, a few seconds old at most."""
    found = fresh("queue", QUEUE_FRESH_SECONDS, queue_now)
    return found


def queue_now() -> Queue:
    """Return what Redis holds at this moment."""
    side = wiring.queue()
    try:
        before = time.time()
        skew = side.now_us() / 1e6 - (before + time.time()) / 2
        workers = sorted(side.workers())
        pools = known_pools(workers)
        backlog: dict[str, int] = {}
        by_pool = dict.fromkeys(pools, 0)
        capped: set[str] = set()
        for lane in range(wiring.config().lanes):
            for pool in pools:
                for tenant, waiting in side.backlog(lane, pool).items():
                    backlog[tenant] = backlog.get(tenant, 0) + waiting
                    by_pool[pool] = by_pool.get(pool, 0) + waiting
            capped.update(side.capped(lane, pools, MOST_TENANTS)[1])
    except QueueUnavailable:
        return Queue(away=True)
    relay = relay_pool(wiring.config())
    return Queue(
        backlog={tenant: waiting for tenant, waiting in backlog.items() if waiting > 0}, by_pool=by_pool, capped=sorted(capped),
        workers=workers[:MOST_WORKERS], more_workers=max(0, len(workers) - MOST_WORKERS),
        slots=sum(worker.concurrency for worker in workers if relay not in worker.pools), skew_seconds=skew)


def ahead(tenant: str | None) -> forecasting.Ahead:
    """Return the executions of the next 24 h, counted anew every five minutes."""
    return fresh(f"ahead:{tenant}", FORECAST_FRESH_SECONDS, lambda: forecasting.busiest(tenant, MOST_TENANTS))
