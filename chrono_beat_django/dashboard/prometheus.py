"""``metrics``: the deployment's figures for Prometheus, behind a token of its own.

Prometheus logs in nowhere, so no session is looked at. Without the setting METRICS_TOKENS there is no such page: a figure of
who is a tenant here is nothing to leave open by default, and people of the staff have the dashboard.
"""
from __future__ import annotations

import hmac
from importlib.util import find_spec

from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from chrono_beat_django import wiring
from chrono_beat_django.dashboard import deployment


@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Answer the figures as text; 404 without the setting, 401 with another token, 503 without the library."""
    tokens = wiring.config().metrics_tokens
    if not tokens:
        raise Http404
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    # All are compared, each in constant time: neither how much of one fits nor which one it is can be told by the time.
    matches = [hmac.compare_digest(token.encode(), given.strip().encode()) for token in tokens]
    if scheme.lower() != "bearer" or not any(matches):
        return HttpResponse("a bearer token of METRICS_TOKENS is needed\n", status=401, content_type="text/plain",
                            headers={"WWW-Authenticate": "Bearer"})
    if find_spec("prometheus_client") is None:
        return HttpResponse("pip install 'chrono-beat[metrics]'\n", status=503, content_type="text/plain")
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

    from chrono_beat.metrics import Figures

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Figures(deployment.figures))
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)
