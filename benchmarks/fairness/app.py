"""The Celery app of both sites: chrono_beat's, and the stock one with a single queue for all."""
import os
import time

from celery import Celery

from chrono_beat import current
from chrono_beat.celery import ChronoBeat

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.fairness.settings")

WORK_SECONDS = 0.02
STARTED = os.environ.get("FAIRNESS_STARTED", "")

app = Celery("fairness")
app.config_from_object("django.conf:settings", namespace="CELERY")
if not os.environ.get("FAIRNESS_STOCK"):
    ChronoBeat(app)


@app.task(name="fairness.work")
def work():
    """Keep a slot busy."""
    time.sleep(WORK_SECONDS)


@app.task(name="fairness.probe")
def probe(due_at=None):
    """Write down how late it started.

    Args:
        due_at: seconds since the epoch; None where the execution knows.
    """
    now = time.time()
    due = current().due_at.timestamp() if due_at is None else due_at
    file = os.open(STARTED, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, f'{{"due": {due!r}, "late": {now - due!r}}}\n'.encode())
    finally:
        os.close(file)
