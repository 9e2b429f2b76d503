"""The figures at the top of a page as texts with their units, each leading to the rows that it counts."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from chrono_beat_django import wiring
from chrono_beat_django.dashboard.panels import Counted, Lease, Queue
from chrono_beat_django.figures import Figures
from chrono_beat_django.models import Dispatcher, Tenant

NONE = "–"


class Tile(NamedTuple):
    """A figure.

    Args:
        name: what it is.
        value: with its unit.
        url: where its rows are shown; "" for nowhere.
        bad: somebody has to do something about it.
    """

    name: str
    value: str
    url: str = ""
    bad: bool = False


def of_deployment(
    queue: Queue, running: Counted, letters: Counted, overdue: Counted, members: Sequence[Dispatcher],
    leases: Sequence[Lease], links: Mapping[str, str],
) -> list[Tile]:
    """Return how the deployment stands now."""
    unowned = sum(not lease.held for lease in leases)
    return [
        Tile("Overdue jobs", str(overdue), bad=overdue.number > 0),
        Tile("Waiting", _known(queue, f"{queue.waiting:,}")),
        Tile("Running", str(running), links.get("running", "")),
        Tile("Capped tenants", _known(queue, f"{len(queue.capped):,}")),
        Tile("Worker slots", _known(queue, f"{queue.slots:,}"), bad=not queue.away and not queue.slots),
        Tile("Dead letters", str(letters), links.get("letters", "")),
        Tile("Dispatchers", f"{len(members):,}", bad=not members),
        Tile("Partitions unowned", f"{unowned:,} of {len(leases):,}", bad=unowned > 0),
    ]


def of_tenant(tenant: Tenant, queue: Queue, running: Counted, letters: Counted, links: Mapping[str, str]) -> list[Tile]:
    """Return how a tenant stands now."""
    return [
        Tile("Waiting", _known(queue, f"{queue.backlog.get(tenant.slug, 0):,}")),
        Tile("Running", f"{running} of {tenant.max_running:,}", links.get("running", "")),
        Tile("Held back by its cap", _known(queue, "yes" if tenant.slug in queue.capped else "no")),
        Tile("Dead letters", str(letters), links.get("letters", "")),
        Tile("Weight", f"{tenant.weight:,}"),
        Tile("Pool", tenant.pool or wiring.config().default_pool),
    ]


def of_range(figures: Figures, links: Mapping[str, str]) -> list[Tile]:
    """Return what became of the executions of a range."""
    lateness = figures.lateness
    return [
        Tile("Lateness p50", _seconds(lateness.p50)),
        Tile("Lateness p99", _seconds(lateness.p99), "" if lateness.p99 is None else links.get("late", "")),
        Tile("Started", f"{figures.started:,}"),
        *(Tile(name.capitalize(), f"{getattr(figures, name):,}", links.get(name, ""))
          for name in ("failed", "dead", "skipped", "missed")),
        Tile("Duplicate deliveries", f"{figures.duplicates:,}"),
        Tile("Lost workers (reaps)", f"{figures.reaps:,}"),
        Tile("Time capped", f"{figures.capped_seconds:,.0f} s"),
    ]


def _known(queue: Queue, text: str) -> str:
    return "unknown" if queue.away else text


def _seconds(value: float | None) -> str:
    return NONE if value is None else f"{value:,.2f} s"
