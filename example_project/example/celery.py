"""The Celery app of the example: one added line, ``ChronoBeat(app)``."""
import os

from celery import Celery

from chrono_beat.celery import ChronoBeat

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example.settings")

app = Celery("example")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
ChronoBeat(app)
