"""Judge a run from two witnesses that know nothing of each other: the database's history and the workers' own log."""
import json
import time
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.utils import timezone

from chrono_beat.core.schedule import schedule_from_parts
from chrono_beat_django.models import Execution, Job, Tenant

DRAIN_SECONDS = 30
OPEN = ("scheduled", "queued", "running")
MOST_EXPECTED_PER_JOB = 100_000


def percentile(values: list[float], share: float) -> float | None:
    """Return the nearest-rank percentile of sorted values, rounded to 0.1; None of none."""
    if not values:
        return None
    rank = max(0, min(len(values) - 1, int(len(values) * share + 0.999999) - 1))
    return round(values[rank], 1)


def drain(cutoff: datetime) -> None:
    """Wait until everything due by *cutoff* has ended, or the time for it is over."""
    until = time.monotonic() + DRAIN_SECONDS
    while time.monotonic() < until and Execution.objects.filter(due_at__lte=cutoff, state__in=OPEN).exists():
        time.sleep(0.2)


def never_made(cutoff: datetime) -> int:
    """Count instants that schedules name, from a job's creation to *cutoff*, for which no execution row exists."""
    missing = 0
    for job in Job.objects.filter(paused=False):
        schedule = schedule_from_parts(
            job.schedule_kind, job.expression, job.timezone, start=job.start_at, end=job.end_at, anchor=job.anchor_at,
        )
        made = set(Execution.objects.filter(job_id=job.id, attempt=1).values_list("scheduled_at", flat=True))
        instant = schedule.next_after(job.created_at - timedelta(microseconds=1))
        for _ in range(MOST_EXPECTED_PER_JOB):
            if instant is None or instant > cutoff:
                break
            missing += instant not in made
            instant = schedule.next_after(instant)
    return missing


def judge(worker_log: Path) -> dict[str, Any]:
    """Return the figures of the run up to now; see the README for what each one means."""
    cutoff = timezone.now() - timedelta(seconds=1)            # what is due this very moment may still be on its way
    drain(cutoff)
    rows = list(Execution.objects.filter(due_at__lte=cutoff).exclude(state__in=("missed",)))
    lines = [json.loads(line) for line in worker_log.read_text().splitlines()] if worker_log.exists() else []
    starts = Counter(line["execution_id"] for line in lines)
    states = Counter(row.state for row in rows)
    ran = [row for row in rows if row.state in ("succeeded", "failed", "dead")]
    unwitnessed = sum(1 for row in ran if row.id not in starts)
    still_open = sum(states[state] for state in OPEN)
    late = sorted((row.started_at - row.due_at) / timedelta(milliseconds=1) for row in rows if row.started_at)
    return {
        "executions": len(rows) - still_open,
        "succeeded": states["succeeded"],
        "failed": states["failed"] + states["dead"],
        "skipped": states["skipped"],
        "early": sum(1 for line in lines if line["at"] < line["due_at"]),
        "duplicates": sum(count - 1 for count in starts.values()),
        "lost": still_open + unwitnessed + never_made(cutoff),
        "lateness_ms": {"p50": percentile(late, 0.50), "p99": percentile(late, 0.99), "max": percentile(late, 1.0)},
        "tenants": Tenant.objects.filter(slug__in={row.tenant for row in rows}).count(),
        "jobs": Job.objects.count(),
    }
