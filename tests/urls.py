"""The root URLconf of the tests: what a project would include."""
import importlib.util

from django.contrib import admin
from django.urls import include, path

urlpatterns = [path("admin/", admin.site.urls)]
if importlib.util.find_spec("chrono_beat_django.urls"):
    urlpatterns.append(path("chrono/", include("chrono_beat_django.urls")))
