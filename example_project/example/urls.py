"""Pages of the example: the admin, and the dashboard with the API under /chrono/."""
from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

urlpatterns = [
    path("admin/", admin.site.urls),
    path("chrono/", include("chrono_beat_django.urls")),
    path("", RedirectView.as_view(url="admin/")),
]
