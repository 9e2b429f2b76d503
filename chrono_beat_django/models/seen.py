"""What is seen of tenants over time, and what somebody is to be told of."""
from __future__ import annotations

import json

from django.db import models
from django.db.models.functions import Now
from django.utils.timezone import now

from chrono_beat.core.alerts import Receipt
from chrono_beat_django.models.columns import both, choices, instant

SPANS = ("minute", "hour", "day")


class Rollup(models.Model):
    """What became of one tenant's executions within a minute, an hour or a day. It outlives the executions.

    Histograms are texts of :mod:`chrono_beat.core.rollup`; they can be added up, and percentiles read from them.
    """

    id = models.BigAutoField(primary_key=True)
    tenant = models.CharField(max_length=63)
    span = models.CharField(max_length=8, choices=choices(SPANS))
    start = models.DateTimeField()
    started = models.BigIntegerField(**both(0))
    succeeded = models.BigIntegerField(**both(0))
    failed = models.BigIntegerField(**both(0))
    dead = models.BigIntegerField(**both(0))
    skipped = models.BigIntegerField(**both(0))
    cancelled = models.BigIntegerField(**both(0))
    expired = models.BigIntegerField(**both(0))
    missed = models.BigIntegerField(help_text="Occurrences, not rows.", **both(0))
    deliveries = models.BigIntegerField(**both(0))
    duplicates = models.BigIntegerField(help_text="Deliveries beyond the first of an execution.", **both(0))
    capped_us = models.BigIntegerField(help_text="Time for which its cap held back work of the tenant.", **both(0))
    reaps = models.BigIntegerField(help_text="Leases that ran out.", **both(0))
    lateness_max_us = models.BigIntegerField(**both(0))
    lateness = models.TextField(blank=True, help_text="Histogram: due to started.", **both(""))
    publish_lateness = models.TextField(blank=True, help_text="Histogram: due to published.", **both(""))
    duration = models.TextField(blank=True, help_text="Histogram: started to finished.", **both(""))

    class Meta:
        db_table = "chrono_rollup"
        permissions = [("view_dashboard", "Can see the dashboard")]
        ordering = ["tenant", "span", "start"]
        constraints = [models.UniqueConstraint(fields=["tenant", "span", "start"], name="chrono_rollup_key")]
        indexes = [models.Index(fields=["span", "start"], name="chrono_rollup_start")]

    def __str__(self) -> str:
        return f"{self.tenant} {self.span} {self.start:%Y-%m-%dT%H:%MZ}"


class Alert(models.Model):
    """Something that somebody should know: one row from the first time it was noticed until it is over."""

    id = models.BigAutoField(primary_key=True)
    kind = models.CharField(max_length=32)
    tenant = models.CharField(max_length=63, blank=True, help_text="Empty: it is about the deployment.", **both(""))
    subject = models.CharField(max_length=255, blank=True, help_text="Job, partition, task … it is about.", **both(""))
    text = models.TextField(**both(""))
    detail = models.TextField(blank=True, help_text="JSON.", **both(""))
    count = models.PositiveIntegerField(help_text="How often it was noticed.", **both(1))
    first_at = models.DateTimeField(default=now, db_default=Now())
    last_at = models.DateTimeField(default=now, db_default=Now())
    told_at = instant(help_text="When it was last sent.")
    told_count = models.PositiveIntegerField(editable=False, help_text="The count that was sent.", **both(0))
    told_to = models.TextField(
        blank=True, editable=False, help_text="JSON: how far each receiver is, and when it is told again.", **both(""))
    again_at = instant(editable=False, help_text="When what is new is sent at the earliest.")
    retry_at = instant(editable=False, help_text="When the next receiver that failed is tried again.")
    attempts = models.PositiveIntegerField(editable=False, help_text="Most attempts at one receiver that failed.", **both(0))
    claimed_until = instant(editable=False, help_text="Until then a process sends it.")
    closed_at = instant(help_text="When it was over, or somebody said so.")

    muted_by: AlertMute | None = None                 # what `alerts.complete` found

    class Meta:
        db_table = "chrono_alert"
        ordering = ["-last_at"]
        constraints = [models.UniqueConstraint(fields=["kind", "tenant", "subject"], name="chrono_alert_open",
                                               condition=models.Q(closed_at__isnull=True))]
        indexes = [models.Index(fields=["tenant", "last_at"], name="chrono_alert_tenant"),
                   models.Index(fields=["last_at"], name="chrono_alert_age")]

    def __str__(self) -> str:
        return " ".join(filter(None, (self.kind, self.tenant, self.subject)))

    @property
    def receipts(self) -> dict[str, Receipt]:
        """How far its receivers are, by the names of their senders."""
        return {name: Receipt(**receipt) for name, receipt in json.loads(self.told_to or "{}").items()}


class AlertMute(models.Model):
    """Alerts that are noted and not sent: of a kind, a tenant, a subject; what is empty stands for all."""

    id = models.BigAutoField(primary_key=True)
    kind = models.CharField(max_length=32, blank=True, **both(""))
    tenant = models.CharField(max_length=63, blank=True, **both(""))
    subject = models.CharField(max_length=255, blank=True, **both(""))
    until = instant(help_text="Empty: until it is removed.")
    note = models.TextField(blank=True, **both(""))
    created_at = models.DateTimeField(default=now, db_default=Now(), editable=False)
    created_by = models.CharField(max_length=255, blank=True, editable=False, **both(""))

    class Meta:
        db_table = "chrono_alert_mute"

    def __str__(self) -> str:
        return " ".join(filter(None, (self.kind, self.tenant, self.subject))) or "all"


class BeatWatch(models.Model):
    """A span in which all that one ``celery beat`` of another scheduler sent was noted. What is outside is not known."""

    id = models.BigAutoField(primary_key=True)
    scheduler = models.CharField(max_length=255, help_text="Its class.")
    host = models.CharField(max_length=255, help_text="Where it ran.", **both(""))
    began_at = models.DateTimeField()
    seen_until = models.DateTimeField(help_text="All that was sent before is noted.")
    ended = models.BooleanField(help_text="Its beat was stopped then; one that was killed may have sent more.", **both(False))

    class Meta:
        db_table = "chrono_beat_watch"

    def __str__(self) -> str:
        return f"{self.scheduler} on {self.host}"


class BeatFire(models.Model):
    """A message that ``celery beat`` sent for an entry of its schedule; kept as long as executions."""

    id = models.BigAutoField(primary_key=True)
    origin = models.CharField(max_length=255, help_text="The entry as an import names it.")
    name = models.CharField(max_length=255, help_text="The entry as beat names it.")
    task = models.CharField(max_length=255)
    sent_at = models.DateTimeField(help_text="By the database's clock.")

    class Meta:
        db_table = "chrono_beat_fire"
        indexes = [models.Index(fields=["sent_at"], name="chrono_beat_fire_sent")]

    def __str__(self) -> str:
        return f"{self.name} {self.sent_at:%Y-%m-%dT%H:%M:%SZ}"
