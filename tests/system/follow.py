"""Follow occurrences through every stage, in the example project; prints one JSON object.

The services run in this process, so their events can be listened to; the worker is an ordinary Celery worker process
that was started by the test. Each stage is noted with the monotonic clock of this machine and with what was seen of
it.
"""
import json
import sys
import time
from datetime import timedelta

import django

PATIENCE_SECONDS = 40.0


def main() -> None:
    """Create the jobs, run the services until both occurrences have ended, print what was seen."""
    django.setup()
    from django.utils import timezone
    from django_celery_results.models import TaskResult

    from chrono_beat import telemetry
    from chrono_beat_django import jobs, wiring
    from chrono_beat_django.models import Execution, Job

    events: list[str] = []
    telemetry.subscribe(lambda event, fields: events.append(event))
    due = timezone.now() + timedelta(seconds=6)
    plain = jobs.create(tenant="default", name="followed", task="shop.remind", kwargs={"who": "Ada"}, at=due)
    flaky = jobs.create(tenant="default", name="retried", task="shop.flaky", kwargs={"subject": "feed"}, at=due)
    stages: dict[str, float] = {"defined": time.monotonic()}
    runner = wiring.services()
    runner.start()
    queue = wiring.queue()
    until = time.monotonic() + PATIENCE_SECONDS

    def note(stage: str, reached: object) -> None:
        if reached and stage not in stages:
            stages[stage] = time.monotonic()

    while time.monotonic() < until and Execution.objects.filter(state__in=("succeeded",)).count() < 2:
        row = Execution.objects.filter(job_id=plain.id).first()
        note("claimed", row)
        note("readable", row and (queue.backlog(0, "chrono") or row.state != "scheduled"))
        note("running", row and row.started_at)
        note("ended", row and row.state == "succeeded")
        time.sleep(0.005)
    runner.stop()
    row = Execution.objects.get(job_id=plain.id)
    json.dump({
        "stages": stages,
        "events": events,
        "row": {
            "id": row.id, "state": row.state, "attempt": row.attempt, "deliveries": row.deliveries,
            "worker": row.worker,
            "scheduled_at": row.scheduled_at.timestamp(), "due_at": row.due_at.timestamp(),
            "published_at": row.published_at and row.published_at.timestamp(),
            "started_at": row.started_at.timestamp(), "finished_at": row.finished_at.timestamp(),
        },
        "due": due.timestamp(),
        "attempts": list(Execution.objects.filter(job_id=flaky.id).order_by("attempt").values_list(
            "attempt", "state", "reason", "retries")),
        "results": list(TaskResult.objects.order_by("task_id").values_list("task_id", "status", "result")),
        "jobs_finished": Job.objects.filter(finished_at__isnull=False).count(),
        "keys_left": sorted(key.decode() for key in left_in_redis()),
    }, sys.stdout)


def left_in_redis() -> list[bytes]:
    """Return the keys of work that are left: streams, leases, locks, running sets."""
    from django.conf import settings
    from redis import Redis

    client = Redis.from_url(settings.CHRONO_BEAT["REDIS_URL"])
    kinds = (b":s:", b":front:", b":lease", b":run:", b":lock:", b":ready:", b":capped:")
    return [key for key in client.scan_iter("chrono:*") if any(kind in key for kind in kinds)]


if __name__ == "__main__":
    main()
