"""Tasks of a made-up shop. Each writes one line to the workers' log as soon as its body starts."""
import json
import os
import time
from pathlib import Path

from celery import current_task, shared_task

from chrono_beat import current, scheduled


def log_start() -> None:
    """Append who started what and when; one write of one line, so processes do not mix them."""
    path = os.environ.get("EXAMPLE_WORKER_LOG")
    now = current()
    if not path or now is None:
        return
    line = json.dumps({
        "at": time.time(), "execution_id": now.execution_id, "key": now.idempotency_key, "job_id": now.job_id,
        "job": now.job_name, "tenant": now.tenant, "attempt": now.attempt, "due_at": now.due_at.timestamp(),
        "pid": os.getpid(), "worker": current_task.request.hostname, "monotonic": time.monotonic(),
    })
    with Path(path).open("a", encoding="utf-8") as log:
        log.write(line + "\n")


@shared_task(name="shop.report")
def report(subject: str = "") -> str:
    log_start()
    time.sleep(0.05)
    return f"report on {subject} written"


@shared_task(name="shop.clean_up")
def clean_up(subject: str = "") -> str:
    log_start()
    return f"{subject}: nothing left to clean"


@shared_task(name="shop.notify")
def notify(subject: str = "") -> str:
    log_start()
    return f"{subject} sent"


@shared_task(name="shop.synchronise")
def synchronise(subject: str = "") -> str:
    log_start()
    time.sleep(0.02)
    return f"{subject} is up to date"


@shared_task(name="shop.slow")
def slow(subject: str = "", seconds: float = 2.0) -> str:
    log_start()
    time.sleep(seconds)
    return f"{subject} took its time"


@shared_task(name="shop.flaky", bind=True, max_retries=3)
def flaky(self, subject: str = "") -> str:
    """Fail on the first attempt, ask for another in a second, then succeed: one result under one task id."""
    log_start()
    if self.request.retries == 0:
        raise self.retry(countdown=1, exc=ConnectionError("the supplier hung up"))
    return f"{subject} came through on attempt {self.request.retries + 1}"


@shared_task(name="shop.remind")
def remind(who: str) -> str:
    log_start()
    return f"reminded {who}"


@shared_task(name="shop.minutely_summary")
@scheduled("* * * * *", tenant="acme", name="minutely summary")
def minutely_summary() -> str:
    log_start()
    return "summed up"
