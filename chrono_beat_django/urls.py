"""Include this under ``chrono/``: the API with its documentation."""
from django.urls import path, re_path
from django.views.decorators.csrf import csrf_exempt

from chrono_beat_django.api import api
from chrono_beat_django.api.problems import guarded, unknown_route

_routes, _app_name, _namespace = api.urls
for _route in _routes:
    _route.callback = guarded(_route.callback)

urlpatterns = [
    path("api/v1/", (_routes, _app_name, _namespace)),
    # No cookie is looked at, so there is nothing to forge.
    re_path(r"^api/v1(?:/.*)?$", csrf_exempt(unknown_route)),
]
