"""``healthz``: is the deployment well, for a probe of a load balancer. Four cheap looks, no figures of tenants, no secrets."""
from __future__ import annotations

from collections.abc import Callable

import django.db
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from chrono_beat.core import ids
from chrono_beat.core.errors import ChronoError
from chrono_beat_django import wiring
from chrono_beat_django.dashboard import panels
from chrono_beat_django.models import Dispatcher
from chrono_beat_django.store import definitions as store


@never_cache
@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    """Answer 200 where all is well and 503 where something is not, each check with "ok" or what is wrong."""
    checks = {name: _made(check) for name, check in
              (("database", _database), ("redis", _redis), ("dispatcher", _dispatcher), ("lateness", _lateness))}
    well = all(found == "ok" for found in checks.values())
    return JsonResponse({"status": "ok" if well else "failing", "checks": checks}, status=200 if well else 503)


def _made(check: Callable[[], str]) -> str:
    try:
        return check()
    except (ChronoError, django.db.Error):
        return "away"                                       # an error's text may name hosts and users


def _database() -> str:
    wiring.store().now_us()
    return "ok"


def _redis() -> str:
    wiring.queue().now_us()
    return "ok"


def _dispatcher() -> str:
    alive = Dispatcher.objects.using(store.alias()).filter(expires_at__gt=ids.from_us(wiring.now_us()), leaving=False)
    return "ok" if alive.exists() else "none alive"


def _lateness() -> str:
    late = panels.overdue(panels.now()).order_by().exists()
    return f"a job is due for more than {panels.OVERDUE_SECONDS} s" if late else "ok"
