"""Figures of the whole deployment, for Prometheus: what waits, runs, is dead or held back now, and whether anybody fires.

They are those of the database and of Redis, so whoever is asked answers the same: a dashboard takes the greatest, not the sum.

**Bound.** A look costs six queries and what the overview page asks of Redis, at most each `FRESH_SECONDS`. Running executions
and dead letters are counted up to `panels.MOST_COUNTED`, all tenants together; beyond that the figure stays there. Tenants
are named up to METRICS_TENANTS, the greatest, and the rest are one.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import django.db

from chrono_beat.core import ids, lifecycle
from chrono_beat.core.errors import ChronoError
from chrono_beat.core.tenant_labels import top
from chrono_beat_django import wiring
from chrono_beat_django.dashboard import panels
from chrono_beat_django.models import Dispatcher, Execution, Partition
from chrono_beat_django.store import definitions as store

FRESH_SECONDS = 10

FIGURES = {
    "chrono_backlog": ("Executions and plain tasks that wait in Redis for a worker.", "tenant"),
    "chrono_running": ("Executions that run, as far as is recorded.", "tenant"),
    "chrono_dead_letters": ("Executions that failed for good and that nobody has handled.", "tenant"),
    "chrono_capped_tenants": ("Tenants whose work nothing but their cap holds back now.", ""),
    "chrono_partitions_unowned": ("Partitions that nobody fires now.", ""),
    "chrono_dispatchers": ("Processes that fire.", ""),
    "chrono_workers": ("Workers that draw.", ""),
    "chrono_worker_slots": ("Tasks that these can run at once.", ""),
    "chrono_reachable": ("Whether a server answers this process, 1 or 0.", "of"),
}
"""Name to what it means and its label, "" for none."""


class Figure(NamedTuple):
    """A gauge: its values by the value of its label, which is "" where it has none."""

    name: str
    meaning: str
    label: str
    values: Mapping[str, float]


def figures() -> list[Figure]:
    """Return those that can be had: where a server does not answer its figures are left out, and it is said so."""
    found = panels.fresh("deployment", FRESH_SECONDS, _look)
    return [Figure(name, *FIGURES[name], values) for name, values in found.items()]


def _look() -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    reachable = dict.fromkeys(("database", "redis"), 0)
    try:
        found |= _in_database()
        reachable["database"] = 1
        redis = panels.queue()
    except (ChronoError, django.db.Error):
        return {"chrono_reachable": reachable}
    if not redis.away:
        reachable["redis"] = 1
        found |= {
            "chrono_backlog": _top(redis.backlog), "chrono_capped_tenants": {"": len(redis.capped)},
            "chrono_workers": {"": len(redis.workers) + redis.more_workers}, "chrono_worker_slots": {"": redis.slots},
        }
    return found | {"chrono_reachable": reachable}


def _in_database() -> dict[str, dict[str, float]]:
    at = ids.from_us(wiring.now_us())
    rows = Execution.objects.using(store.alias())
    owned = Partition.objects.using(store.alias()).exclude(owner="").filter(expires_at__gt=at).count()
    alive = Dispatcher.objects.using(store.alias()).filter(expires_at__gt=at).count()
    return {
        "chrono_running": _by_tenant(rows.filter(state=lifecycle.RUNNING)),
        "chrono_dead_letters": _by_tenant(rows.dead_letters()),
        "chrono_partitions_unowned": {"": wiring.config().partitions - owned},
        "chrono_dispatchers": {"": alive},
    }


def _by_tenant(rows: Any) -> dict[str, float]:
    return _top(Counter(rows.order_by().values_list("tenant", flat=True)[:panels.MOST_COUNTED]))


def _top(counts: Mapping[str, int]) -> dict[str, float]:
    return {**top(counts, wiring.config().metrics_tenants)} if counts else {"other": 0}
