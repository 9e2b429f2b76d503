"""The dashboard's pages. Each reads a bounded number of rows with a bounded number of queries, whatever there is."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import wraps
from typing import Any

from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import NoReverseMatch, reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from chrono_beat_django import figures
from chrono_beat_django.dashboard import panels
from chrono_beat_django.dashboard.charts import Chart, chart
from chrono_beat_django.forecasting import Ahead
from chrono_beat_django.models import Tenant
from chrono_beat_django.store import definitions as store

PERMISSION = "chrono_beat.view_dashboard"
HOURS = (1, 6, 24, 168)
POLICY = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; " \
    "form-action 'self'; frame-ancestors 'self'"
"""Nothing from outside, nothing inline: what a tenant's name might smuggle in would not run either."""

ORDERS = (("lateness", "Lateness p99"), ("capped", "Capped"), ("failed", "Failed"), ("dead", "Dead"),
          ("skipped", "Skipped"), ("duplicates", "Duplicates"), ("missed", "Missed"), ("started", "Started"))

View = Callable[..., HttpResponse]


def for_staff(view: View) -> View:
    """Let in staff who may see the dashboard; others are asked to log in, or refused."""
    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        user = request.user
        if not user.is_authenticated:
            try:
                return redirect_to_login(request.get_full_path(), reverse("admin:login"))
            except NoReverseMatch:
                return redirect_to_login(request.get_full_path())
        if not (user.is_active and user.is_staff and user.has_perm(PERMISSION)):
            raise PermissionDenied
        response = view(request, *args, **kwargs)
        response.setdefault("Content-Security-Policy", POLICY)
        response.setdefault("Referrer-Policy", "same-origin")
        return response
    checked: View = require_safe(never_cache(guarded))
    return checked


@for_staff
def overview(request: HttpRequest) -> HttpResponse:
    """Show the deployment as a whole."""
    now, start, end, hours = _range(request)
    leases = panels.partitions(now)
    return _page(request, "overview", now, {
        "hours": hours, "all_hours": HOURS, "queue": panels.queue(), "running": panels.running(),
        "letters": panels.letters(), "alerts": panels.alerts(), "figures": panels.totals(None, start, end),
        "charts": _charts(panels.series(None, start, end), start, end),
        "worst": panels.worst(start, end, "lateness", 10), "dispatchers": panels.dispatchers(now),
        "partitions": len(leases), "unowned": sum(not lease.held for lease in leases),
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
    queue = panels.queue()
    return _page(request, "tenant", now, {
        "tenant": found, "hours": hours, "all_hours": HOURS, "queue": queue, "waiting": queue.backlog.get(slug, 0),
        "capped": slug in queue.capped, "running": panels.running(slug), "letters": panels.letters(slug),
        "alerts": panels.alerts(slug), "figures": panels.totals(slug, start, end),
        "charts": [*_charts(panels.series(slug, start, end), start, end), _forecast(ahead)], "ahead": ahead,
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
    return _page(request, "partitions", now, {
        "leases": leases, "unowned": sum(not lease.held for lease in leases), "dispatchers": panels.dispatchers(now),
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


def _charts(points: Sequence[figures.Figures], start: datetime, end: datetime) -> list[Chart]:
    return [
        chart("lateness", "Lateness: due to started", "s", start, end, [
            ("p50", [(point.start, point.lateness.p50) for point in points]),
            ("p99", [(point.start, point.lateness.p99) for point in points])]),
        chart("load", "Executions per minute", "executions", start, end, [
            ("started", _per_minute(points, "started")), ("succeeded", _per_minute(points, "succeeded"))]),
        chart("trouble", "Trouble per minute", "executions", start, end, [
            ("failed", _per_minute(points, "failed")), ("dead", _per_minute(points, "dead")),
            ("skipped", _per_minute(points, "skipped")), ("duplicates", _per_minute(points, "duplicates"))]),
        chart("capped", "Held back by caps alone", "s", start, end, [
            ("seconds per minute", _per_minute(points, "capped_seconds"))]),
    ]


def _per_minute(points: Sequence[figures.Figures], name: str) -> list[tuple[datetime, float | None]]:
    return [(point.start, getattr(point, name) / (point.seconds / 60)) for point in points]


def _forecast(ahead: Ahead) -> Chart:
    minutes = [(ahead.start + timedelta(minutes=index), number) for index, number in enumerate(ahead.total)]
    end = ahead.start + timedelta(minutes=len(ahead.total))
    return chart("forecast", "Executions to come, per minute", "executions", ahead.start, end, [("due", minutes)])
