"""What is stored: tenants, jobs, executions, and who owns which slice of the due index.

Every column has its default in the database too, so that a row put in by SQL needs no more than what it is about. Jobs
and executions name their tenant (and executions their job) in plain text: history outlives deletion, and the tables
may live in different databases. Dispatchers, recorders and the audit write through :mod:`chrono_beat_django.store`
alone; an edit of a job raises ``version``, and a trigger does so for edits that go around the store.
"""
from __future__ import annotations

import secrets
import time
import uuid
from typing import Any

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models.functions import Now
from django.utils.timezone import now

from chrono_beat.core import ids, lifecycle, records

FIRST_INSTANT = ids.from_us(0)
END_OF_TIME = ids.from_us(253_370_764_800 * 1_000_000)      # 9999-01-01: before that every database and Python agree
SOURCES = ("api", "decorator", "admin", "import")
KEY_SCOPES = ("occurrence", "attempt")
TARGET_KINDS = ("task",)
HANDLED = ("replayed", "discarded")
DEFAULT_MAX_DURATION_SECONDS = 21_600


def new_job_id() -> uuid.UUID:
    """Return an id for a new job; ids grow with time, so that the newest jobs lie together in the index."""
    return uuid.UUID(ids.new_job_id(time.time_ns() // 1000, secrets.randbits(74)))


def _both(value: Any) -> dict[str, Any]:
    """Give a column the same default in Python and in the database."""
    return {"default": value, "db_default": value}


def _choices(words: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(word, word) for word in words]


def _instant(**options: Any) -> models.DateTimeField[Any, Any]:
    return models.DateTimeField(null=True, blank=True, **options)


class Tenant(models.Model):
    """Whose jobs they are: a share of the workers, a cap, and who is told when things go wrong."""

    slug = models.SlugField(primary_key=True, max_length=63)
    name = models.CharField(max_length=255, blank=True, **_both(""))
    weight = models.PositiveIntegerField(
        validators=[MinValueValidator(1), MaxValueValidator(1000)],
        help_text="Share of the workers among tenants with work.", **_both(1))
    max_running = models.PositiveIntegerField(help_text="Executions that may run at the same time.", **_both(20))
    pool = models.CharField(max_length=100, blank=True, help_text="Celery queue of jobs that name none.", **_both(""))
    max_jobs = models.PositiveIntegerField(**_both(10_000))
    create_rate = models.FloatField(help_text="Jobs created per second, in the long run.", **_both(100.0))
    failure_threshold = models.FloatField(
        null=True, blank=True,
        help_text="Share of failures (0 to 1) from which on retries are held back; empty: never.")
    retries_paused_until = _instant()
    paused = models.BooleanField(**_both(False))
    paused_at = _instant(
        editable=False, help_text="Since when it is paused; set by the database, empty where it is not.")
    spread_seconds = models.PositiveIntegerField(
        help_text="Spread of jobs that set none: each starts at its own offset within so many seconds.", **_both(0))
    retention_days = models.PositiveIntegerField(null=True, blank=True)
    alert_email = models.TextField(blank=True, **_both(""))
    alert_url = models.TextField(blank=True, **_both(""))
    created_at = models.DateTimeField(default=now, db_default=Now(), editable=False)
    updated_at = models.DateTimeField(auto_now=True, db_default=Now())

    class Meta:
        db_table = "chrono_tenant"
        ordering = ["slug"]

    def __str__(self) -> str:
        return self.slug


class JobQuerySet(models.QuerySet["Job"]):
    """Jobs, asked for in words."""

    def unfinished(self) -> JobQuerySet:
        """Keep the jobs that hold their name: all but one-offs and ended schedules that are over."""
        return self.filter(finished_at__isnull=True)

    def of(self, tenant: str) -> JobQuerySet:
        """Keep one tenant's jobs."""
        return self.filter(tenant=tenant)


class Job(models.Model):
    """A stored definition: schedule, target, policies, tenant.

    ``next_run_at`` is the due index: null when paused, quarantined or over. ``replan`` asks the claim to compute the
    next run anew from now instead of firing.
    """

    # What the claim reads and writes comes first: fixed widths, found without walking through the texts.
    id = models.UUIDField(primary_key=True, default=new_job_id, editable=False)
    partition = models.IntegerField(editable=False, **_both(0))
    version = models.IntegerField(editable=False, **_both(1))
    plan_version = models.IntegerField(
        editable=False, help_text="Version of the last edit that planned anew: older rows are not carried over.",
        **_both(1))
    paused = models.BooleanField(**_both(False))
    replan = models.BooleanField(editable=False, **_both(False))
    next_run_at = _instant(editable=False)
    tenant = models.CharField(max_length=63, **_both("default"))
    name = models.CharField(max_length=255)
    schedule_kind = models.CharField(max_length=16, choices=_choices(records.SCHEDULE_KINDS), **_both("cron"))
    expression = models.TextField(**_both(""))
    timezone = models.CharField(max_length=64, **_both("UTC"))
    start_at = _instant()
    end_at = _instant()
    anchor_at = _instant(help_text="Where an interval counts from.")
    max_occurrences = models.PositiveIntegerField(null=True, blank=True)
    spread_seconds = models.PositiveIntegerField(null=True, blank=True, help_text="Empty: the tenant's.")
    target_kind = models.CharField(max_length=16, choices=_choices(TARGET_KINDS), **_both("task"))
    task = models.CharField(max_length=255, **_both(""))
    args = models.TextField(blank=True, help_text="A JSON array, kept byte for byte.", **_both("[]"))
    kwargs = models.TextField(blank=True, help_text="A JSON object, kept byte for byte.", **_both("{}"))
    headers = models.TextField(blank=True, help_text="A JSON object of further message headers.", **_both(""))
    pool = models.CharField(max_length=100, blank=True, help_text="Celery queue; empty: the tenant's.", **_both(""))
    priority = models.PositiveSmallIntegerField(
        validators=[MaxValueValidator(9)], help_text="0 is drawn first, 9 last.", **_both(5))
    soft_limit_seconds = models.FloatField(null=True, blank=True)
    max_duration_seconds = models.FloatField(null=True, blank=True, **_both(float(DEFAULT_MAX_DURATION_SECONDS)))
    idempotent = models.CharField(max_length=8, choices=_choices(records.IDEMPOTENT), **_both("unknown"))
    max_attempts = models.PositiveIntegerField(null=True, blank=True, help_text="Empty: 3 where idempotent, else 1.")
    retry_base_seconds = models.FloatField(**_both(30.0))
    retry_factor = models.FloatField(**_both(2.0))
    retry_maximum_seconds = models.FloatField(**_both(3600.0))
    retry_jitter = models.FloatField(**_both(0.2))
    concurrency = models.CharField(max_length=16, choices=_choices(records.CONCURRENCY_POLICIES), **_both("forbid"))
    exclusion_group = models.CharField(max_length=100, blank=True, **_both(""))
    expires_after_seconds = models.FloatField(null=True, blank=True)
    misfire = models.CharField(max_length=16, choices=_choices(records.MISFIRE_POLICIES), **_both("latest"))
    misfire_cap = models.PositiveIntegerField(null=True, blank=True)
    grace_seconds = models.FloatField(null=True, blank=True)
    key_scope = models.CharField(max_length=16, choices=_choices(KEY_SCOPES), **_both("occurrence"))
    quarantined_reason = models.TextField(blank=True, editable=False, **_both(""))
    flagged_reason = models.TextField(
        blank=True, editable=False, help_text="What is likely to go wrong at the next run; it stays planned.",
        **_both(""))
    paused_at = _instant(editable=False, help_text="Since when it is paused; empty where it is not.")
    note = models.TextField(blank=True, **_both(""))
    source = models.CharField(max_length=16, choices=_choices(SOURCES), editable=False, **_both("api"))
    finished_at = _instant(editable=False)
    created_at = models.DateTimeField(default=now, db_default=Now(), editable=False)
    updated_at = models.DateTimeField(auto_now=True, db_default=Now())
    created_by = models.CharField(max_length=255, blank=True, editable=False, **_both(""))

    objects = JobQuerySet.as_manager()

    class Meta:
        db_table = "chrono_job"
        ordering = ["tenant", "name"]
        # Few indexes on purpose: each claim writes an entry into every one of them.
        indexes = [
            models.Index(fields=["partition", "next_run_at"], name="chrono_job_due",
                         condition=models.Q(next_run_at__isnull=False)),
            models.Index(fields=["finished_at"], name="chrono_job_finished",
                         condition=models.Q(finished_at__isnull=False)),
        ]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "name"], name="chrono_job_name",
                                    condition=models.Q(finished_at__isnull=True)),
            *(models.CheckConstraint(
                name=f"chrono_job_{field}_range",
                condition=models.Q(**{f"{field}__gte": FIRST_INSTANT, f"{field}__lt": END_OF_TIME}),
            ) for field in ("next_run_at", "start_at", "end_at", "anchor_at")),
        ]

    def __str__(self) -> str:
        return f"{self.tenant}/{self.name}"


class ExecutionQuerySet(models.QuerySet["Execution"]):
    """Executions, asked for in words."""

    def open(self) -> ExecutionQuerySet:
        """Keep those that have not ended."""
        return self.filter(state__in=lifecycle.OPEN)

    def dead_letters(self) -> ExecutionQuerySet:
        """Keep those whose last attempt failed and that nobody has replayed or discarded."""
        return self.filter(state=lifecycle.DEAD, handled_at__isnull=True)

    def of_job(self, job_id: uuid.UUID | str) -> ExecutionQuerySet:
        """Keep one job's, newest occurrence first, in the order of the database's key."""
        return self.filter(job_id=job_id).order_by("-scheduled_at", "-attempt")


class Execution(models.Model):
    """One attempt at an occurrence. The row is the outbox: what stands here and is open will be run.

    ``args`` and ``kwargs`` are null where they are the job's. On PostgreSQL the table is partitioned by the day of
    ``scheduled_at``; its key there is (job_id, scheduled_at, attempt), and ``id`` has a plain index.
    """

    job_id = models.UUIDField()
    scheduled_at = models.DateTimeField()
    due_at = models.DateTimeField()
    first_due_at = models.DateTimeField()
    holder_epoch = models.BigIntegerField(help_text="Epoch whose wheel holds the row; 0: nobody's.", **_both(0))
    partition = models.IntegerField(**_both(0))
    attempt = models.IntegerField(**_both(1))
    retries = models.IntegerField(**_both(0))
    job_version = models.IntegerField(**_both(1))
    deliveries = models.IntegerField(**_both(0))
    missed_count = models.IntegerField(**_both(0))
    id = models.CharField(primary_key=True, max_length=100)
    tenant = models.CharField(max_length=63)
    job_name = models.CharField(max_length=255, **_both(""))
    kind = models.CharField(max_length=16, choices=_choices(lifecycle.KINDS), **_both("schedule"))
    state = models.CharField(max_length=16, choices=_choices(lifecycle.STATES), **_both(lifecycle.SCHEDULED))
    reason = models.CharField(max_length=16, blank=True, **_both(""))
    cancel_requested_at = _instant()
    handled_at = _instant(help_text="When a dead letter was replayed or discarded.")
    handled_as = models.CharField(max_length=16, blank=True, choices=_choices(HANDLED), **_both(""))
    published_at = _instant()
    started_at = _instant()
    finished_at = _instant()
    worker = models.CharField(max_length=255, blank=True, **_both(""))
    error = models.TextField(blank=True, **_both(""))
    args = models.TextField(null=True, blank=True)
    kwargs = models.TextField(null=True, blank=True)
    first_missed_at = _instant()
    result = models.TextField(blank=True, **_both(""))

    in_the_way: Execution | None = None               # what `jobs.trigger` says of a run it may be skipped for

    objects = ExecutionQuerySet.as_manager()

    class Meta:
        db_table = "chrono_execution"
        indexes = [
            models.Index(fields=["partition", "due_at"], name="chrono_execution_open",
                         condition=models.Q(state__in=lifecycle.OPEN)),
            # What no wheel holds: retries, manual runs, what a dead dispatcher left. Claimed rows never enter it, so
            # the scan of each second costs one descent a day's table and not one a partition.
            models.Index(fields=["due_at"], name="chrono_execution_free",
                         condition=models.Q(state=lifecycle.SCHEDULED, holder_epoch=0)),
            models.Index(fields=["tenant", "state", "finished_at"], name="chrono_execution_ended",
                         condition=models.Q(state__in=lifecycle.TERMINAL)),
            models.Index(fields=["tenant", "finished_at"], name="chrono_execution_letters",
                         condition=models.Q(state=lifecycle.DEAD, handled_at__isnull=True)),
            models.Index(fields=["cancel_requested_at"], name="chrono_execution_cancel",
                         condition=models.Q(state__in=lifecycle.OPEN, cancel_requested_at__isnull=False)),
        ]
        constraints = [
            models.UniqueConstraint(fields=["job_id", "scheduled_at", "attempt"], name="chrono_execution_key"),
        ]

    def __str__(self) -> str:
        return self.id


class Partition(models.Model):
    """A slice of the due index and the lease on it. ``epoch`` grows with every new owner and never shrinks.

    ``loaded_epoch`` is the epoch under which all rows that earlier owners held have been found.
    """

    number = models.PositiveIntegerField(primary_key=True)
    owner = models.CharField(max_length=255, blank=True, **_both(""))
    epoch = models.BigIntegerField(**_both(0))
    loaded_epoch = models.BigIntegerField(**_both(0))
    expires_at = models.DateTimeField(default=FIRST_INSTANT, db_default=FIRST_INSTANT)
    offered = models.BooleanField(**_both(False))

    class Meta:
        db_table = "chrono_partition"
        ordering = ["number"]

    def __str__(self) -> str:
        return str(self.number)


class Lane(models.Model):
    """A slice of the Redis key space: its generation, and which server's memory that generation began with."""

    number = models.PositiveIntegerField(primary_key=True)
    generation = models.BigIntegerField(**_both(0))
    replication_id = models.CharField(max_length=100, blank=True, **_both(""))
    began_at = models.DateTimeField(default=FIRST_INSTANT, db_default=FIRST_INSTANT)

    class Meta:
        db_table = "chrono_lane"
        ordering = ["number"]

    def __str__(self) -> str:
        return str(self.number)


class Dispatcher(models.Model):
    """The heartbeat of a member that shares the partitions."""

    member = models.CharField(primary_key=True, max_length=255)
    expires_at = models.DateTimeField()
    leaving = models.BooleanField(**_both(False))

    class Meta:
        db_table = "chrono_dispatcher"
        ordering = ["member"]

    def __str__(self) -> str:
        return self.member


class JobEvent(models.Model):
    """The audit of changes: who did what to which job, and which version came of it."""

    id = models.BigAutoField(primary_key=True)
    at = models.DateTimeField(default=now, db_default=Now())
    job_id = models.UUIDField()
    tenant = models.CharField(max_length=63)
    job_name = models.CharField(max_length=255, **_both(""))
    version = models.PositiveIntegerField(**_both(0))
    action = models.CharField(max_length=32)
    actor = models.CharField(max_length=255, blank=True, **_both(""))
    detail = models.TextField(blank=True, help_text="JSON: what changed, from what to what.", **_both(""))

    class Meta:
        db_table = "chrono_job_event"
        indexes = [models.Index(fields=["job_id", "at"], name="chrono_job_event_job")]

    def __str__(self) -> str:
        return f"{self.action} {self.tenant}/{self.job_name}"


class PendingVoid(models.Model):
    """An edit that is not finished with: written by a trigger in the edit's own transaction, one a job.

    No copy of the job below *version* may be published or drawn. Until *told*, Redis may not know it yet; after that
    the row says which jobs may have rows of an older plan, and goes with the last of these.
    """

    job_id = models.UUIDField(primary_key=True)
    tenant = models.CharField(max_length=63)
    partition = models.IntegerField(**_both(0))
    version = models.IntegerField()
    told = models.BooleanField(**_both(False))
    created_at = models.DateTimeField(default=now, db_default=Now())

    class Meta:
        db_table = "chrono_pending_void"
        ordering = ["created_at"]

    def __str__(self) -> str:
        return f"{self.job_id} below {self.version}"


class Deployment(models.Model):
    """The one row that fixes the numbers of partitions and lanes at the first migrate."""

    id = models.PositiveSmallIntegerField(primary_key=True, **_both(1))
    partitions = models.PositiveIntegerField()
    lanes = models.PositiveIntegerField()
    created_at = models.DateTimeField(default=now, db_default=Now())

    class Meta:
        db_table = "chrono_deployment"
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="chrono_deployment_single")]

    def __str__(self) -> str:
        return f"{self.partitions} partitions, {self.lanes} lanes"
