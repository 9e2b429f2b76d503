"""The dashboard's pages. Each reads a bounded number of rows with a bounded number of queries, whatever there is."""
from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import wraps
from typing import Any

import django.db
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import NoReverseMatch, reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from chrono_beat_django import figures
from chrono_beat_django.dashboard import links, panels, tiles
from chrono_beat_django.dashboard.charts import Chart, chart
from chrono_beat_django.forecasting import Ahead
from chrono_beat_django.models import Alert, Tenant
from chrono_beat_django.overview import PoolRow, pools
from chrono_beat_django.store import definitions as store

PERMISSION = "chrono_beat.view_dashboard"
HOURS = (1, 6, 24, 168)
MOST_POOLS = 20
POLICY = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; " \
    "form-action 'self'; frame-ancestors 'self'"
"""Nothing from outside, nothing inline: what a tenant's name might smuggle in would not run either."""

ORDERS = (("lateness", "Lateness p99"), ("capped", "Capped"), ("failed", "Failed"), ("dead", "Dead"),
          ("skipped", "Skipped"), ("duplicates", "Duplicates"), ("missed", "Missed"), ("started", "Started"))

View = Callable[..., HttpResponse]
logger = logging.getLogger(__name__)


def for_staff(view: View) -> View:
    """Let in staff who may see the dashboard; others are asked to log in, or refused."""
    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            response = _let_in(request) or view(request, *args, **kwargs)
        except (django.db.OperationalError, django.db.InterfaceError):   # its text may name hosts and users
            logger.exception("the dashboard cannot read the database")
            response = render(request, "chrono_beat/dashboard/away.html", status=503)
        response.setdefault("Content-Security-Policy", POLICY)
        response.setdefault("Referrer-Policy", "same-origin")
        return response
    checked: View = require_safe(never_cache(guarded))
    return checked


def _let_in(request: HttpRequest) -> HttpResponse | None:
    user = request.user
    if not user.is_authenticated:
        try:
            return redirect_to_login(request.get_full_path(), reverse("admin:login"))
        except NoReverseMatch:
            return redirect_to_login(request.get_full_path())
    if not (user.is_active and user.is_staff and user.has_perm(PERMISSION)):
        raise PermissionDenied
    return None


@for_staff
def overview(request: HttpRequest) -> HttpResponse:
    """Show the deployment as a whole."""
    now, start, end, hours = _range(request)
    queue, members, sums = panels.queue(), panels.dispatchers(now), panels.totals(None, start, end)
    leading = links.links(request, "", hours, sums.lateness.p99)
    return _page(request, "overview", now, {
        "hours": hours, "all_hours": HOURS, "queue": queue, "dispatchers": members, "pools": _pools(queue),
        "tiles": tiles.of_deployment(queue, panels.running(), panels.letters(), panels.counted(panels.overdue(now)), members,
                                     panels.partitions(now), leading),
        "figures": tiles.of_range(sums, leading), "links": leading, "alerts": _alerts(request, panels.alerts()),
        "charts": _charts(panels.series(None, start, end), start, end, now),
        "worst": panels.worst(start, end, "lateness", 10),
    })


@for_staff
def tenants(request: HttpRequest) -> HttpResponse:
    """List tenants, those that fare worst first, or those whose name has some text, by name."""
    now, start, end, hours = _range(request)
    by = request.GET.get("by", "")
    by = by if by in figures.ORDERS else "lateness"
    search, after, following = request.GET.get("q"), request.GET.get("after", ""), ""
    if search is None:
        found = panels.worst(start, end, by)
    else:
        slugs, following = panels.named(search, after)
        found = figures.each_of(slugs, start, end)
    queue = panels.queue()
    rows = [(each, queue.backlog.get(each.tenant or "", 0), each.tenant in queue.capped) for each in found]
    return _page(request, "tenants", now, {
        "hours": hours, "all_hours": HOURS, "by": by, "orders": ORDERS, "rows": rows, "queue": queue,
        "most": panels.MOST_TENANTS, "search": search, "after": after, "following": following,
    })


@for_staff
def tenant(request: HttpRequest, slug: str) -> HttpResponse:
    """Show one tenant."""
    found = Tenant.objects.using(store.alias()).filter(slug=slug).first()
    if found is None:
        raise Http404(f"no tenant {slug!r}")
    now, start, end, hours = _range(request)
    ahead = panels.ahead(slug)
    queue, sums = panels.queue(), panels.totals(slug, start, end)
    leading = links.links(request, slug, hours, sums.lateness.p99)
    return _page(request, "tenant", now, {
        "tenant": found, "hours": hours, "all_hours": HOURS, "queue": queue,
        "tiles": tiles.of_tenant(found, queue, panels.running(slug), panels.letters(slug), leading),
        "figures": tiles.of_range(sums, leading), "links": leading, "alerts": _alerts(request, panels.alerts(slug)),
        "charts": [*_charts(panels.series(slug, start, end), start, end, now), _forecast(ahead)], "ahead": ahead,
        "sum": sum(ahead.total),
    })


@for_staff
def forecast(request: HttpRequest) -> HttpResponse:
    """Show executions to come within a day, and what spreading would do to the fullest minutes."""
    ahead = panels.ahead(None)
    return _page(request, "forecast", panels.now(), {"ahead": ahead, "charts": [_forecast(ahead)], "sum": sum(ahead.total)})


@for_staff
def partitions(request: HttpRequest) -> HttpResponse:
    """Show who owns which partition, who is alive, and how far clocks are apart."""
    now = panels.now()
    leases, queue = panels.partitions(now), panels.queue()
    owned = Counter(lease.owner for lease in leases if lease.held)
    return _page(request, "partitions", now, {
        "leases": leases, "unowned": sum(not lease.held for lease in leases),
        "members": [(member, owned[member.member]) for member in panels.dispatchers(now)],
        "queue": queue, "skews": (("Database", panels.database_skew()), ("Redis", queue.skew_seconds)),
    })


def _page(request: HttpRequest, name: str, now: datetime, context: dict[str, Any]) -> HttpResponse:
    return render(request, f"chrono_beat/dashboard/{name}.html", {"page": name, "now": now, **context})


def _range(request: HttpRequest) -> tuple[datetime, datetime, datetime, int]:
    """Return now, and the range that a page looks at: whole minutes, so that what was read serves for one."""
    given = request.GET.get("hours", "")
    hours = int(given) if given in map(str, HOURS) else HOURS[0]
    now = panels.now()
    end = now.replace(second=0, microsecond=0) + timedelta(minutes=1)
    return now, end - timedelta(hours=hours), end, hours


def _pools(queue: panels.Queue) -> list[PoolRow]:
    """Return the pools that anybody draws or waits for, those that nobody draws first."""
    rows = [pool for pool in pools(queue) if pool.workers or pool.waiting]
    return sorted(rows, key=lambda pool: (pool.workers > 0, -pool.waiting, pool.pool))[:MOST_POOLS]


def _alerts(request: HttpRequest, found: Sequence[Alert]) -> list[tuple[Alert, str]]:
    return [(alert, links.job(request, alert.subject)) for alert in found]


def _charts(points: Sequence[figures.Figures], start: datetime, end: datetime, now: datetime) -> list[Chart]:
    def per_minute(name: str) -> list[tuple[datetime, float | None]]:
        return [(point.start, _per_minute(point, name, now)) for point in points]

    return [
        chart("lateness", "Lateness: due to started", "s", start, end, [
            ("p50", [(point.start, point.lateness.p50) for point in points]),
            ("p99", [(point.start, point.lateness.p99) for point in points])]),
        chart("load", "Executions per minute", "executions", start, end, [
            ("started", per_minute("started")), ("succeeded", per_minute("succeeded"))]),
        chart("trouble", "Trouble per minute", "executions", start, end, [
            ("failed", per_minute("failed")), ("dead", per_minute("dead")),
            ("skipped", per_minute("skipped")), ("duplicates", per_minute("duplicates"))]),
        chart("capped", "Held back by caps alone", "s", start, end, [
            ("seconds per minute", per_minute("capped_seconds"))]),
    ]


def _per_minute(point: figures.Figures, name: str, now: datetime) -> float | None:
    """Return a rate by the time that has passed; None for a minute that is not over, which would look like a standstill."""
    seconds = min(float(point.seconds), (now - point.start).total_seconds())
    number: float = getattr(point, name)
    return None if seconds < 60 else number / seconds * 60


def _forecast(ahead: Ahead) -> Chart:
    minutes = [(ahead.start + timedelta(minutes=index), number) for index, number in enumerate(ahead.total)]
    end = ahead.start + timedelta(minutes=len(ahead.total))
    return chart("forecast", "Executions to come, per minute", "executions", ahead.start, end, [("due", minutes)])
