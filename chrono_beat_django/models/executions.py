"""Executions: one row an attempt."""
from __future__ import annotations

import uuid
from datetime import timedelta

from django.db import models

from chrono_beat.core import lifecycle
from chrono_beat_django.models.columns import both, choices, instant

HANDLED = ("replayed", "discarded")


class ExecutionQuerySet(models.QuerySet["Execution"]):
    """Executions, asked for in words."""

    def open(self) -> ExecutionQuerySet:
        """Keep those that have not ended."""
        return self.filter(state__in=lifecycle.OPEN)

    def dead_letters(self) -> ExecutionQuerySet:
        """Keep those whose last attempt failed and that nobody has replayed or discarded."""
        return self.filter(state=lifecycle.DEAD, handled_at__isnull=True)

    def started_late(self, seconds: float) -> ExecutionQuerySet:
        """Keep those that started more than so many seconds after they were due."""
        return self.filter(started_at__gt=models.F("due_at") + timedelta(seconds=seconds))

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
    holder_epoch = models.BigIntegerField(help_text="Epoch whose wheel holds the row; 0: nobody's.", **both(0))
    partition = models.IntegerField(**both(0))
    attempt = models.IntegerField(**both(1))
    retries = models.IntegerField(**both(0))
    job_version = models.IntegerField(**both(1))
    deliveries = models.IntegerField(**both(0))
    missed_count = models.IntegerField(**both(0))
    id = models.CharField(primary_key=True, max_length=100)
    tenant = models.CharField(max_length=63)
    job_name = models.CharField(max_length=255, **both(""))
    kind = models.CharField(max_length=16, choices=choices(lifecycle.KINDS), **both("schedule"))
    state = models.CharField(max_length=16, choices=choices(lifecycle.STATES), **both(lifecycle.SCHEDULED))
    reason = models.CharField(max_length=16, blank=True, **both(""))
    cancel_requested_at = instant()
    handled_at = instant(help_text="When a dead letter was replayed or discarded.")
    handled_as = models.CharField(max_length=16, blank=True, choices=choices(HANDLED), **both(""))
    published_at = instant()
    started_at = instant()
    finished_at = instant()
    worker = models.CharField(max_length=255, blank=True, **both(""))
    error = models.TextField(blank=True, **both(""))
    args = models.TextField(null=True, blank=True)
    kwargs = models.TextField(null=True, blank=True)
    task = models.TextField(null=True, blank=True, help_text="Of an execution without a job; empty: the job's.")
    celery_id = models.CharField(max_length=255, blank=True, help_text="Where the Celery task id is another.", **both(""))
    options = models.TextField(null=True, blank=True, help_text="JSON: pool, priority, headers of one without a job.")
    first_missed_at = instant()
    result = models.TextField(blank=True, **both(""))

    in_the_way: Execution | None = None               # what `jobs.trigger` says of a run it may be skipped for

    objects = ExecutionQuerySet.as_manager()

    class Meta:
        db_table = "chrono_execution"
        permissions = [
            ("cancel_execution", "Can cancel executions"), ("replay_execution", "Can replay dead letters"),
            ("discard_execution", "Can discard dead letters"),
        ]
        indexes = [
            models.Index(fields=["partition", "due_at"], name="chrono_execution_open",
                         condition=models.Q(state__in=lifecycle.OPEN)),
            # What no wheel holds: retries, manual runs, what a dead dispatcher left. Claimed rows never enter it, so
            # the scan of each second costs one descent a day's table and not one a partition.
            models.Index(fields=["due_at"], name="chrono_execution_free",
                         condition=models.Q(state=lifecycle.SCHEDULED, holder_epoch=0)),
            models.Index(fields=["tenant", "state", "finished_at"], name="chrono_execution_ended",
                         condition=models.Q(state__in=lifecycle.TERMINAL)),
            # The order of lists. Without open rows: each state that a row goes through would be an entry, and statements
            # that find open rows by their key might take this index instead.
            models.Index(fields=["scheduled_at"], name="chrono_execution_newest",
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
