"""The rows of the JobStore in memory, and the journal that undoes what a failed transaction did to them."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from chrono_beat.core.records import RetryPolicy


@dataclass(slots=True, kw_only=True)
class MemoryTenant:
    """A tenant: what the store and the draw need of it."""

    slug: str
    weight: int = 1
    max_running: int = 20
    paused: bool = False
    pool: str = ""
    spread_seconds: int = 0
    failure_threshold: float | None = None
    retries_paused_until_us: int | None = None
    lateness_objective_seconds: float | None = None
    retention_days: int | None = None
    changed_us: int = 0


@dataclass(slots=True, kw_only=True)
class MemoryJob:
    """A job; *job_id* and *partition* are filled in by add_job where they are left out."""

    name: str
    next_run_us: int | None = None
    job_id: str = ""
    tenant: str = "default"
    partition: int | None = None
    schedule_kind: str = "interval"
    expression: str = "60"
    timezone: str = "UTC"
    start_us: int | None = None
    end_us: int | None = None
    anchor_us: int | None = None
    spread_seconds: int | None = None
    misfire: str = "latest"
    misfire_cap: int | None = None
    grace_seconds: float | None = None
    task: str = "tests.noop"
    target_kind: str = "task"
    queue: str = ""
    args: str = "[]"
    kwargs: str = "{}"
    headers: str = ""
    pool: str = ""
    priority: int = 5
    soft_limit_seconds: float | None = None
    max_duration_seconds: float | None = 21_600
    expires_after_seconds: float | None = None
    concurrency: str = "forbid"
    key_scope: str = "occurrence"
    exclusion_group: str = ""
    retry: RetryPolicy = RetryPolicy(1, False, 30.0, 2.0, 3600.0, 0.2)
    paused: bool = False
    version: int = 1
    plan_version: int = 1
    replan: bool = False
    quarantined_reason: str = ""
    flagged_reason: str = ""
    finished_us: int | None = None


@dataclass(slots=True, kw_only=True)
class MemoryExecution:
    """An execution row."""

    execution_id: str
    job_id: str
    tenant: str
    job_name: str
    partition: int
    scheduled_us: int
    due_us: int
    first_due_us: int
    attempt: int
    retries: int
    kind: str
    state: str
    job_version: int
    holder_epoch: int = 0
    reason: str = ""
    cancel_requested_us: int | None = None
    published_us: int | None = None
    started_us: int | None = None
    finished_us: int | None = None
    worker: str = ""
    deliveries: int = 0
    error: str = ""
    result: str = ""
    args: str | None = None
    kwargs: str | None = None
    task: str | None = None
    options: str | None = None
    celery_id: str = ""
    missed_count: int = 0
    first_missed_us: int | None = None


@dataclass(slots=True)
class MemoryRollup:
    """What became of one tenant's executions within a minute."""

    started: int = 0
    succeeded: int = 0
    failed: int = 0
    dead: int = 0
    skipped: int = 0
    cancelled: int = 0
    expired: int = 0
    missed: int = 0
    deliveries: int = 0
    duplicates: int = 0
    lateness_max_us: int = 0
    lateness: str = ""
    publish_lateness: str = ""
    duration: str = ""
    capped_us: int = 0
    reaps: int = 0


@dataclass(slots=True)
class MemoryPartition:
    """The lease on a slice of the due index."""

    owner: str = ""
    epoch: int = 0
    expires_us: int = 0
    offered: bool = False


@dataclass(slots=True)
class MemoryMember:
    """A member's heartbeat."""

    expires_us: int
    leaving: bool = False


@dataclass(slots=True)
class MemoryLane:
    """A lane's generation."""

    generation: int = 0
    replication_id: str = ""
    began_us: int = 0
    has_plain_tasks: bool = False


@dataclass(slots=True)
class Journal:
    """What undoes a transaction, last step first."""

    steps: list[tuple[Any, str, Any]] = field(default_factory=list)

    def set(self, row: Any, **values: Any) -> None:
        """Change columns of a row."""
        for name, value in values.items():
            self.steps.append((row, name, getattr(row, name)))
            setattr(row, name, value)

    def put(self, table: dict[Any, Any], key: Any, row: Any) -> None:
        """Write a row into a table, a new one or over an old one; None removes it."""
        self.steps.append((table, key, table.get(key)))
        if row is None:
            table.pop(key, None)
        else:
            table[key] = row

    def roll_back(self) -> None:
        """Undo everything."""
        for owner, name, old in reversed(self.steps):
            if isinstance(owner, dict):
                owner.pop(name, None) if old is None else owner.__setitem__(name, old)
            else:
                setattr(owner, name, old)
