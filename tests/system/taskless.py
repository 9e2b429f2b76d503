"""A Celery app for dispatchers alone: nothing of what runs is imported here."""
import os

from celery import Celery

from chrono_beat.celery import ChronoBeat

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.fairness.settings")

app = Celery("taskless")
app.config_from_object("django.conf:settings", namespace="CELERY")
ChronoBeat(app)
