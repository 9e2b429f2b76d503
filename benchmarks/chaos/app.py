"""The Celery app that is tormented. Its tasks and its services write down what they do, each line at once."""
import json
import os
import time

from celery import Celery

from chrono_beat import current, telemetry
from chrono_beat.celery import ChronoBeat

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.chaos.settings")

app = Celery("chaos")
app.config_from_object("django.conf:settings", namespace="CELERY")
ChronoBeat(app)

BREATH_SECONDS = 0.1
"""How often a running body says that it is still there: one that is killed ends at its last word."""

TOLD = frozenset({
    "reaped", "lane_opened", "partitions_lost", "publish_refused", "outcome_unknown", "quarantined", "missed",
    "service_failed", "clock_stepped", "marks_dropped",
})


def note(path, **fields):
    """Append a line to a file; one write, so that processes do not mix theirs."""
    line = json.dumps({"at": time.time(), **fields}, default=str) + "\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def tell(event, fields):
    """Write down the events of services that a verdict may need."""
    if event in TOLD:
        note(os.environ["CHAOS_EVENTS"], event=event, pid=os.getpid(), **fields)


telemetry.subscribe(tell)


class Mishap(Exception):
    """What a task raises that is meant to."""


@app.task(name="chaos.work", bind=True)
def work(self, seconds=0.0, fails=0, mark=""):
    """Take some time, then fail on the first attempts.

    Args:
        seconds: how long the body runs.
        fails: attempts that raise.
        mark: changed by edits; says which edit a body belongs to.
    """
    now = current()
    path = os.environ["CHAOS_BODIES"]
    known = {
        "execution_id": now.execution_id, "key": now.idempotency_key, "token": now.token, "attempt": now.attempt,
        "job_id": now.job_id, "pid": os.getpid(), "worker": self.request.hostname, "due_at": now.due_at.timestamp(),
    }
    note(path, what="begin", mark=mark, job=now.job_name, **known)
    end = time.monotonic() + seconds
    how = "killed"
    try:
        while time.monotonic() < end:
            time.sleep(min(BREATH_SECONDS, max(0.0, end - time.monotonic())))
            note(path, what="breath", execution_id=now.execution_id, token=now.token, due_at=known["due_at"])
            if now.cancelled:
                how = "cancelled"
                return
        how = "failed" if now.attempt <= fails else "succeeded"
        if how == "failed":
            raise Mishap(f"attempt {now.attempt} of {now.execution_id}")
    finally:
        note(path, what="end", how=how, **known)
