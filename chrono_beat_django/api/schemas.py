"""What goes in and out, as the OpenAPI schema has it. What a value may be is decided by the one validator of jobs."""
import json
import re
from datetime import datetime
from typing import Annotated, Any, Literal

from django.http import HttpRequest
from ninja import Schema
from ninja.parser import Parser
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, Strict

from chrono_beat.core import callback, payload
from chrono_beat.core.field_checks import unstorable
from chrono_beat.core.retry import Retry
from chrono_beat_django.api.outputs import EXECUTION_ID
from chrono_beat_django.models import Execution, Job
from chrono_beat_django.store.definitions import RETRY_COLUMNS


class Bodies(Parser):
    """Reads bodies as strictly as what is stored of them."""

    def parse_body(self, request: HttpRequest) -> Any:
        """Return what a body says.

        Raises:
            Unreadable: it is no JSON, or could be understood in different ways.
        """
        return payload.read(request.body)


def _storable(text: str) -> str:
    if wrong := unstorable(text):
        raise ValueError(wrong)
    return text


def _number(value: Any) -> Any:
    if isinstance(value, str | bool):
        raise ValueError("must be a number, without quotes")
    return value


def _instant_text(value: Any) -> Any:
    if not isinstance(value, str | None) or _NUMBER.fullmatch(value or ""):
        raise ValueError("must be a text such as 2026-01-02T09:00:00Z")
    return value


_NUMBER = re.compile(r"\s*[+-]?[0-9.]+\s*")
"""What pydantic would take for seconds since the epoch."""

Text = Annotated[str, AfterValidator(_storable)]
Number = Annotated[float, BeforeValidator(_number)]
Whole = Annotated[int, BeforeValidator(_number)]
Flag = Annotated[bool, Strict()]
Instant = Annotated[datetime, BeforeValidator(_instant_text)]
Token = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_storable)]
Missed = Literal["nothing", "latest", "all"]


class RetryIn(Schema):
    """Attempts after a plain failure."""

    model_config = ConfigDict(extra="forbid")
    max_attempts: Whole | None = None
    base: Number = Retry().base
    factor: Number = Retry().factor
    maximum: Number = Retry().maximum
    jitter: Number = Retry().jitter


class JobChanges(Schema):
    """What may be changed of a job; what is not given stays."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"cron": "30 9 * * mon-fri"}})
    name: Text | None = None
    task: Text | None = None
    url: Text | None = None
    queue: Text | None = None
    timeout: Number | None = Field(None, description="Seconds of one HTTP call.")
    cron: Text | None = None
    every: Number | None = Field(None, description="Seconds.")
    at: Instant | None = Field(None, description="With an offset.")
    timezone: Text | None = None
    start: Instant | None = None
    end: Instant | None = None
    args: list[Any] | None = None
    kwargs: dict[str, Any] | None = None
    headers: dict[str, Any] | None = None
    pool: Text | None = None
    priority: Whole | None = None
    soft_limit: Number | None = None
    max_duration: Number | None = None
    expires_after: Number | None = None
    concurrency: Text | None = None
    exclusion_group: Text | None = None
    misfire: Text | None = None
    misfire_cap: Whole | None = None
    grace: Number | None = None
    spread: Whole | None = None
    idempotent: Text | Flag | None = None
    key_scope: Text | None = None
    retry: RetryIn | None = None
    paused: Flag | None = None
    note: Text | None = None

    def given(self, stored: Job | None = None) -> dict[str, Any]:
        """Return what was given, as arguments of ``jobs.create`` and ``jobs.update``."""
        values = self.model_dump(exclude_unset=True)
        if self.retry is not None:
            said = self.retry.model_dump(exclude_unset=True)
            before = {} if stored is None else {field: getattr(stored, column) for field, column in RETRY_COLUMNS.items()}
            values["retry"] = Retry(**{**before, **said})
        return values


class JobIn(JobChanges):
    """A new job: a name, a task or a URL, and exactly one of cron, every and at."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={
        "example": {"name": "report", "task": "shop.report", "cron": "0 9 * * mon-fri", "timezone": "Europe/London"}})
    name: Text


def job_facts(job: Job) -> dict[str, Any]:
    """Return what the API says of a job."""
    same = ("name", "version", "target_kind", "task", "url", "queue", "timeout_seconds", "schedule_kind", "expression",
            "timezone", "start_at", "end_at", "next_run_at", "paused", "paused_at", "pool", "priority", "soft_limit_seconds",
            "max_duration_seconds", "expires_after_seconds", "concurrency", "exclusion_group", "misfire", "misfire_cap",
            "grace_seconds", "spread_seconds", "idempotent", "key_scope", "max_attempts", "note", "source", "finished_at",
            "created_at", "updated_at")
    return {"id": str(job.id), **{name: getattr(job, name) for name in same}, "args": _decoded(job.args),
            "kwargs": _decoded(job.kwargs), "headers": _decoded(callback.masked(job.headers) or "{}"),
            "retry": {field: getattr(job, column) for field, column in RETRY_COLUMNS.items()},
            "flagged": job.flagged_reason, "quarantined": job.quarantined_reason}


def _decoded(text: str) -> Any:
    """Return what a stored text says; the text itself where it is no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def execution_facts(row: Execution) -> dict[str, Any]:
    """Return what the API says of an execution."""
    same = ("id", "job_name", "kind", "state", "reason", "attempt", "deliveries", "scheduled_at", "due_at", "published_at",
            "started_at", "finished_at", "cancel_requested_at", "worker", "error", "missed_count", "handled_as")
    late = None if row.started_at is None else (row.started_at - row.due_at).total_seconds()
    return {"job_id": str(row.job_id), **{name: getattr(row, name) for name in same}, "lateness_seconds": late}


class ResumeIn(Schema):
    """What of the missed ones?"""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"missed": "latest"}})
    missed: Missed = "nothing"
    limit: Whole = 1_000
    note: Text | None = None


class NoteIn(Schema):
    """Why, for people."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"note": "while the shop moves"}})
    note: Text = ""


class TriggerIn(Schema):
    """A request of its own name."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"token": "order-7"}})
    token: Token | None = None


class BackfillIn(Schema):
    """A stretch of the past, [start, end)."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={
        "example": {"start": "2026-01-01T00:00:00Z", "end": "2026-01-03T00:00:00Z"}})
    start: Instant
    end: Instant
    limit: Whole = 1_000
    pace: Number | None = None
    token: Token | None = None


class LettersIn(Schema):
    """Dead letters by id."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"ids": [EXECUTION_ID]}})
    ids: list[Text] = Field(min_length=1, max_length=1_000)
