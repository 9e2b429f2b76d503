"""Include this under ``chrono/``: the dashboard, ``healthz``, ``metrics``, and the API with its documentation."""
from django.urls import include, path, re_path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET

from chrono_beat_django.api import api
from chrono_beat_django.api.problems import guarded, unknown_route
from chrono_beat_django.dashboard import views
from chrono_beat_django.dashboard.health import healthz
from chrono_beat_django.dashboard.prometheus import metrics

_routes, _app_name, _namespace = api.urls
_as_it_is = {"openapi-json": require_GET, "openapi-view": require_GET, "api-root": lambda view: unknown_route}
for _route in _routes:
    _route.callback = csrf_exempt(guarded(_as_it_is.get(_route.name, lambda view: view)(_route.callback)))

_pages = [
    path("", views.overview, name="overview"),
    path("tenants/", views.tenants, name="tenants"),
    path("tenants/<slug:slug>/", views.tenant, name="tenant"),
    path("forecast/", views.forecast, name="forecast"),
    path("partitions/", views.partitions, name="partitions"),
]

urlpatterns = [
    path("", include((_pages, "chrono_dashboard"))),
    path("healthz", healthz),
    path("metrics", metrics),
    path("api/v1/", (_routes, _app_name, _namespace)),
    re_path(r"^api/v1(?:/|$)", csrf_exempt(unknown_route)),           # also with a line end in it, which .* stops at
]
