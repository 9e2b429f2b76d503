"""What the API answers, as the OpenAPI schema has it."""
from datetime import datetime
from typing import Any
from uuid import UUID

from ninja import Schema
from pydantic import ConfigDict, Field

NOON = "2026-01-07T12:00:00Z"
JOB_ID = "6f9a1f0e-3d52-4f0b-9c3e-0a4c5b6d7e8f"
EXECUTION_ID = f"{JOB_ID}:20260107T120000Z:1"



def example(**values: Any) -> ConfigDict:
    """Return the configuration of a schema with an example."""
    return ConfigDict(json_schema_extra={"example": values})


_RETRY = {"max_attempts": None, "base": 30.0, "factor": 2.0, "maximum": 3600.0, "jitter": 0.2}
_JOB: dict[str, Any] = {
    "id": JOB_ID, "name": "report", "version": 1, "target_kind": "task", "task": "shop.report", "url": "", "queue": "",
    "timeout_seconds": None, "headers": {"Authorization": "********"}, "schedule_kind": "cron",
    "expression": "0 9 * * mon-fri", "timezone": "Europe/London", "start_at": None, "end_at": None,
    "next_run_at": "2026-01-08T09:00:00Z", "paused": False, "paused_at": None, "args": [], "kwargs": {"shop": 7}, "pool": "",
    "priority": 5, "soft_limit_seconds": None, "max_duration_seconds": 3600, "expires_after_seconds": None,
    "concurrency": "forbid", "exclusion_group": "", "misfire": "latest", "misfire_cap": None, "grace_seconds": 60,
    "spread_seconds": 0, "idempotent": "yes", "key_scope": "occurrence", "max_attempts": None, "retry": _RETRY, "note": "",
    "source": "api",
    "flagged": "", "quarantined": "", "finished_at": None, "created_at": NOON, "updated_at": NOON,
}
_RUN: dict[str, Any] = {
    "id": EXECUTION_ID, "job_id": JOB_ID, "job_name": "report", "kind": "schedule", "state": "dead", "reason": "error",
    "attempt": 1, "deliveries": 1, "scheduled_at": NOON, "due_at": NOON, "published_at": NOON,
    "started_at": "2026-01-07T12:00:01Z", "finished_at": "2026-01-07T12:00:03Z", "cancel_requested_at": None,
    "worker": "worker@host", "error": "ValueError: no such shop", "missed_count": 0, "handled_as": "",
    "lateness_seconds": 1.0,
}
_DELIVERY = {"execution_id": EXECUTION_ID, "token": "3f-1", "worker": "worker@host", "begun": True}
_PLAIN_CONTROL = {"still_running": [_DELIVERY], "not_yet_voided": False, "warnings": []}


class RetryOut(Schema):
    """Attempts after a plain failure; with ``max_attempts`` null 3 where it is idempotent or an HTTP call, else 1."""

    model_config = example(**_RETRY)
    max_attempts: int | None
    base: float = Field(description="Seconds before the second attempt; before each further one *factor* times more.")
    factor: float
    maximum: float = Field(description="Seconds at most.")
    jitter: float = Field(description="Share by which a delay is varied.")


class JobFacts(Schema):
    """A job, as lists have it."""

    model_config = example(**_JOB)
    id: UUID
    name: str
    version: int = Field(description="Rises with every change; the ETag, and what If-Match takes.")
    target_kind: str = Field(description="task, http, message or shadow.")
    task: str
    url: str
    queue: str
    timeout_seconds: float | None = Field(description="Bound of one call of the URL; null for 30.")
    headers: Any = Field(description="Secrets in them are masked; a mask that is sent back keeps the secret.")
    schedule_kind: str
    expression: str
    timezone: str
    start_at: datetime | None
    end_at: datetime | None
    next_run_at: datetime | None
    paused: bool
    paused_at: datetime | None
    args: Any = Field(description="A JSON array.")
    kwargs: Any = Field(description="A JSON object.")
    pool: str
    priority: int
    soft_limit_seconds: float | None
    max_duration_seconds: float | None
    expires_after_seconds: float | None
    concurrency: str
    exclusion_group: str
    misfire: str
    misfire_cap: int | None
    grace_seconds: float | None
    spread_seconds: int | None
    idempotent: str
    key_scope: str
    max_attempts: int | None
    retry: RetryOut
    note: str
    source: str
    flagged: str = Field(description='Why no live worker can run it; "" where one can.')
    quarantined: str = Field(description='Why it is not fired; "" where it is.')
    finished_at: datetime | None
    created_at: datetime
    updated_at: datetime


class DeliveryOut(Schema):
    """A delivery that a worker has."""

    model_config = example(**_DELIVERY)
    execution_id: str
    token: str
    worker: str
    begun: bool = Field(description="Its body has begun, as far as Redis has heard.")


class WarningOut(Schema):
    """What is allowed but likely to hurt."""

    model_config = example(
        field="concurrency", mend='the job is marked as not idempotent, yet with "allow" two runs may be active at once. Set '
        'concurrency to "forbid"', code="not_idempotent")
    field: str
    mend: str
    code: str


class JobOut(JobFacts):
    """A job, and what a control call did; ``not_yet_voided``: Redis could not be told yet (then the status is 202)."""

    model_config = example(**_JOB, **_PLAIN_CONTROL)
    still_running: list[DeliveryOut]
    not_yet_voided: bool
    warnings: list[WarningOut]


class JobDeleted(JobOut):
    """The job that was deleted."""

    model_config = example(**_JOB, **_PLAIN_CONTROL, deleted=True)
    deleted: bool


class JobPage(Schema):
    """A page of jobs."""

    model_config = example(items=[_JOB], next_cursor=None)
    items: list[JobFacts]
    next_cursor: str | None = Field(description="Give it as ``cursor`` for the next page; null on the last one.")


class ExecutionOut(Schema):
    """One attempt at an occurrence."""

    model_config = example(**_RUN)
    id: str
    job_id: UUID
    job_name: str
    kind: str
    state: str
    reason: str
    attempt: int
    deliveries: int = Field(description="How often a worker was given it.")
    scheduled_at: datetime
    due_at: datetime
    published_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    cancel_requested_at: datetime | None
    worker: str
    error: str = Field(description="Type, message and the tail of the traceback.")
    missed_count: int
    handled_as: str = Field(description='A dead letter: replayed, discarded, or "" while nobody has handled it.')
    lateness_seconds: float | None = Field(description="From due to started.")


class ExecutionPage(Schema):
    """A page of executions, the newest occurrence first."""

    model_config = example(items=[_RUN], next_cursor=None)
    items: list[ExecutionOut]
    next_cursor: str | None


class AttemptOut(Schema):
    """What became of one attempt at the occurrence."""

    model_config = example(execution_id=EXECUTION_ID, attempt=1, kind="schedule", state="dead", reason="error",
                           deliveries=1, worker="worker@host",
                           finished_at=NOON, error="ValueError: no such shop")
    execution_id: str
    attempt: int
    kind: str
    state: str
    reason: str
    deliveries: int
    worker: str
    finished_at: datetime | None
    error: str


class ExecutionShown(ExecutionOut):
    """An execution with every attempt at its occurrence, the first one first."""

    model_config = example(**_RUN, attempts=[AttemptOut.model_config["json_schema_extra"]["example"]])  # type: ignore[index]
    attempts: list[AttemptOut]


class Triggered(ExecutionOut):
    """The execution that was asked for; ``in_the_way``: the id of one that runs and that the job's policy looks at."""

    model_config = example(**_RUN, in_the_way=None)
    in_the_way: str | None


class Cancelled(ExecutionOut):
    """The execution; ``not_yet_told``: Redis could not be told, so it may still start (then the status is 202)."""

    model_config = example(**_RUN, still_running=[_DELIVERY], not_yet_told=False)
    still_running: list[DeliveryOut]
    not_yet_told: bool


class BackfillOut(Schema):
    """What a backfill did."""

    model_config = example(created=2, existing=0, left_out=0, go_on_from=None, end="2026-01-03T00:00:00Z")
    created: int
    existing: int
    left_out: int
    go_on_from: datetime | None
    end: datetime | None


class PreviewOut(Schema):
    """The next runs."""

    model_config = example(words="at 09:00, Monday to Friday", runs=["2026-01-08T09:00:00Z"], timezone="Europe/London",
                           notes=[])
    words: str
    runs: list[datetime]
    timezone: str
    notes: list[str]


class RefusedLetter(Schema):
    """A letter that could not be handled, and the mend."""

    model_config = example(id=EXECUTION_ID, mend="it was replayed already")
    id: str
    mend: str


class LettersOut(Schema):
    """The replays, or the letters that were discarded."""

    model_config = example(executions=[_RUN], refused=[])
    executions: list[ExecutionOut]
    refused: list[RefusedLetter]


class UsageOut(Schema):
    """What the tenant uses of its limits now, and what became of its executions since *since*."""

    model_config = example(
        paused=False, jobs=12, max_jobs=10_000, create_tokens=99.0, create_burst=100, create_rate=10.0, running=2,
        max_running=100, waiting=5, since="2026-01-07T11:00:00Z", started=420, duplicates=0, capped_seconds=1.5,
        lateness_max_seconds=0.9, lateness_p50_seconds=0.05, lateness_p99_seconds=0.7)
    paused: bool = Field(description="None of its executions is started until an operator resumes it.")
    jobs: int
    max_jobs: int
    create_tokens: float = Field(description="Jobs that may be created at once now.")
    create_burst: int
    create_rate: float
    running: int | None = Field(description="null where Redis does not answer.")
    max_running: int
    waiting: int | None = Field(description="What a worker can draw now; null where Redis does not answer.")
    since: datetime
    started: int
    duplicates: int
    capped_seconds: float = Field(description="Time for which nothing but the cap held back work.")
    lateness_max_seconds: float = Field(description="From due to started; the percentiles likewise, null where nothing started.")
    lateness_p50_seconds: float | None
    lateness_p99_seconds: float | None
