"""Somebody who works on the jobs of the example project while it runs: one request a line, one answer a line, in JSON.

A process of its own, because the tests' process has other settings of Django; it stays, because starting one for each
request would take longer than most tests wait.
"""
import json
import sys
from datetime import datetime

import django


def main() -> None:
    """Answer requests until the input ends."""
    django.setup()
    from django.db import close_old_connections, transaction

    from chrono_beat.core.errors import Conflict
    from chrono_beat_django import control, jobs, shadowing
    from chrono_beat_django.models import Job
    from example.celery import app

    def create(definitions):
        with transaction.atomic():
            made = [jobs.create(**definition) for definition in definitions]
        return [{"id": str(job.id), "anchor": job.anchor_at and job.anchor_at.timestamp()} for job in made]

    def create_at(names, at, **others):
        instant = datetime.fromisoformat(at)
        return create([{"name": name, "at": instant, **others} for name in names])

    def delete(ids):
        for job_id in ids:
            jobs.delete(job_id)

    def backfill(job, start, end):
        return jobs.backfill(job, start, end).created

    def trigger(job):
        return jobs.trigger(job).id

    def update(job, **changes):
        return jobs.update(job, **changes).version

    def go_live(job):
        try:
            return shadowing.go_live(Job.objects.get(id=job)).target_kind
        except Conflict:
            return ""                                      # an occurrence is near

    def replay(letter):
        return jobs.replay(letter).id

    def cancel(execution):
        return len(control.cancel(execution).still_running)

    def send(task, subject, queue, seconds):
        return app.send_task(task, [subject], countdown=seconds, queue=queue).id

    def told(task_id):
        result = app.AsyncResult(task_id)
        return [result.state, result.result if result.ready() else None]

    requests = {
        "create": create, "create_at": create_at, "delete": delete, "backfill": backfill, "trigger": trigger,
        "update": update, "go_live": go_live, "replay": replay, "cancel": cancel, "send": send, "told": told,
    }
    for line in sys.stdin:
        request, arguments = json.loads(line)
        close_old_connections()
        try:
            answer = {"is": requests[request](**arguments)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
