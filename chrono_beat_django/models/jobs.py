"""Jobs, the audit of their changes, and the edits that are not finished with."""
from __future__ import annotations

import secrets
import time
import uuid

from django.core.validators import MaxValueValidator
from django.db import models
from django.db.models.functions import Now
from django.utils.timezone import now

from chrono_beat.core import ids, records
from chrono_beat.core.records import KEY_SCOPES
from chrono_beat.core.targets import TARGET_KINDS
from chrono_beat_django.models.columns import END_OF_TIME, FIRST_INSTANT, both, choices, instant

SOURCES = ("api", "decorator", "admin", "import")
DEFAULT_MAX_DURATION_SECONDS = 21_600


def new_job_id() -> uuid.UUID:
    """Return an id for a new job; ids grow with time, so that the newest jobs lie together in the index."""
    return uuid.UUID(ids.new_job_id(time.time_ns() // 1000, secrets.randbits(74)))


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
    partition = models.IntegerField(editable=False, **both(0))
    version = models.IntegerField(editable=False, **both(1))
    plan_version = models.IntegerField(
        editable=False, help_text="Version of the last edit that planned anew: older rows are not carried over.",
        **both(1))
    paused = models.BooleanField(**both(False))
    replan = models.BooleanField(editable=False, **both(False))
    next_run_at = instant(editable=False)
    tenant = models.CharField(max_length=63, **both("default"))
    name = models.CharField(max_length=255)
    schedule_kind = models.CharField(max_length=16, choices=choices(records.SCHEDULE_KINDS), **both("cron"))
    expression = models.TextField(**both(""))
    timezone = models.CharField(max_length=64, **both("UTC"))
    start_at = instant()
    end_at = instant()
    anchor_at = instant(help_text="Where an interval counts from.")
    max_occurrences = models.PositiveIntegerField(null=True, blank=True)
    spread_seconds = models.PositiveIntegerField(null=True, blank=True, help_text="Empty: the tenant's.")
    target_kind = models.CharField(max_length=16, choices=choices(TARGET_KINDS), **both("task"))
    task = models.CharField(max_length=255, **both(""))
    url = models.TextField(blank=True, help_text="Where an HTTP target is.", **both(""))
    queue = models.CharField(max_length=255, blank=True, help_text="Stock queue of a message target.", **both(""))
    timeout_seconds = models.FloatField(null=True, blank=True, help_text="Of one HTTP request.")
    args = models.TextField(blank=True, help_text="A JSON array, kept byte for byte.", **both("[]"))
    kwargs = models.TextField(blank=True, help_text="A JSON object, kept byte for byte.", **both("{}"))
    headers = models.TextField(blank=True, help_text="A JSON object of further message headers.", **both(""))
    pool = models.CharField(max_length=100, blank=True, help_text="Celery queue; empty: the tenant's.", **both(""))
    priority = models.PositiveSmallIntegerField(
        validators=[MaxValueValidator(9)], help_text="0 is drawn first, 9 last.", **both(5))
    soft_limit_seconds = models.FloatField(null=True, blank=True)
    max_duration_seconds = models.FloatField(null=True, blank=True, **both(float(DEFAULT_MAX_DURATION_SECONDS)))
    idempotent = models.CharField(max_length=8, choices=choices(records.IDEMPOTENT), **both("unknown"))
    max_attempts = models.PositiveIntegerField(null=True, blank=True, help_text="Empty: 3 where idempotent, else 1.")
    retry_base_seconds = models.FloatField(**both(30.0))
    retry_factor = models.FloatField(**both(2.0))
    retry_maximum_seconds = models.FloatField(**both(3600.0))
    retry_jitter = models.FloatField(**both(0.2))
    concurrency = models.CharField(max_length=16, choices=choices(records.CONCURRENCY_POLICIES), **both("forbid"))
    exclusion_group = models.CharField(max_length=100, blank=True, **both(""))
    expires_after_seconds = models.FloatField(null=True, blank=True)
    misfire = models.CharField(max_length=16, choices=choices(records.MISFIRE_POLICIES), **both("latest"))
    misfire_cap = models.PositiveIntegerField(null=True, blank=True)
    grace_seconds = models.FloatField(null=True, blank=True)
    key_scope = models.CharField(max_length=16, choices=choices(KEY_SCOPES), **both("occurrence"))
    quarantined_reason = models.TextField(blank=True, editable=False, **both(""))
    flagged_reason = models.TextField(
        blank=True, editable=False, help_text="What is likely to go wrong at the next run; it stays planned.",
        **both(""))
    paused_at = instant(editable=False, help_text="Since when it is paused; empty where it is not.")
    note = models.TextField(blank=True, **both(""))
    source = models.CharField(max_length=16, choices=choices(SOURCES), editable=False, **both("api"))
    origin = models.CharField(
        max_length=255, blank=True, editable=False, help_text="What it was imported from, so that it is found again.",
        **both(""))
    finished_at = instant(editable=False)
    created_at = models.DateTimeField(default=now, db_default=Now(), editable=False)
    updated_at = models.DateTimeField(auto_now=True, db_default=Now())
    created_by = models.CharField(max_length=255, blank=True, editable=False, **both(""))

    objects = JobQuerySet.as_manager()

    class Meta:
        db_table = "chrono_job"
        ordering = ["tenant", "name"]
        # For people who may operate jobs and not edit them; whoever may change a job may do these, too.
        permissions = [
            ("pause_job", "Can pause jobs"), ("resume_job", "Can resume jobs"), ("trigger_job", "Can run jobs now"),
            ("backfill_job", "Can run what jobs missed"),
        ]
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


class JobEvent(models.Model):
    """The audit of changes: who did what to which job, and which version came of it."""

    id = models.BigAutoField(primary_key=True)
    at = models.DateTimeField(default=now, db_default=Now())
    job_id = models.UUIDField()
    tenant = models.CharField(max_length=63)
    job_name = models.CharField(max_length=255, **both(""))
    version = models.PositiveIntegerField(**both(0))
    action = models.CharField(max_length=32)
    actor = models.CharField(max_length=255, blank=True, **both(""))
    detail = models.TextField(blank=True, help_text="JSON: what changed, from what to what.", **both(""))

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
    partition = models.IntegerField(**both(0))
    version = models.IntegerField()
    told = models.BooleanField(**both(False))
    created_at = models.DateTimeField(default=now, db_default=Now())

    class Meta:
        db_table = "chrono_pending_void"
        ordering = ["created_at"]

    def __str__(self) -> str:
        return f"{self.job_id} below {self.version}"
