"""Tenants, and the keys with which their own programs come in."""
from __future__ import annotations

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models.functions import Now
from django.utils.timezone import now

from chrono_beat_django.models.columns import both, instant


class Tenant(models.Model):
    """Whose jobs they are: a share of the workers, a cap, and who is told when things go wrong."""

    slug = models.SlugField(primary_key=True, max_length=63)
    name = models.CharField(max_length=255, blank=True, **both(""))
    weight = models.PositiveIntegerField(
        validators=[MinValueValidator(1), MaxValueValidator(1000)],
        help_text="Share of the workers among tenants with work.", **both(1))
    max_running = models.PositiveIntegerField(help_text="Executions that may run at the same time.", **both(20))
    pool = models.CharField(max_length=100, blank=True, help_text="Celery queue of jobs that name none.", **both(""))
    max_jobs = models.PositiveIntegerField(**both(10_000))
    create_rate = models.FloatField(help_text="Jobs created per second, in the long run.", **both(100.0))
    create_burst = models.PositiveIntegerField(help_text="Jobs created at once after a pause.", **both(1000))
    create_tokens = models.FloatField(null=True, editable=False, help_text="What is left of the burst; empty: all.")
    create_counted_at = instant(editable=False, help_text="When create_tokens was counted last.")
    jobs_at_most = models.PositiveIntegerField(
        null=True, editable=False, help_text="Jobs at the last count and since created; empty: never counted, or few.")
    jobs_counted_at = instant(editable=False, help_text="When jobs_at_most was counted.")
    failure_threshold = models.FloatField(
        null=True, blank=True,
        help_text="Share of failures (0 to 1) from which on retries are held back; empty: never.")
    retries_paused_until = instant()
    paused = models.BooleanField(**both(False))
    paused_at = instant(
        editable=False, help_text="Since when it is paused; set by the database, empty where it is not.")
    spread_seconds = models.PositiveIntegerField(
        help_text="Spread of jobs that set none: each starts at its own offset within so many seconds.", **both(0))
    lateness_objective_seconds = models.FloatField(
        null=True, blank=True, help_text="An alert is raised when the 99th percentile of lateness passes it; empty: never.")
    retention_days = models.PositiveIntegerField(null=True, blank=True)
    alert_email = models.TextField(blank=True, **both(""))
    alert_url = models.TextField(blank=True, **both(""))
    webhook_secret = models.CharField(max_length=255, blank=True, editable=False, **both(""))
    webhook_secret_before = models.CharField(
        max_length=255, blank=True, editable=False, help_text="Signs beside the present one while it is replaced.",
        **both(""))
    created_at = models.DateTimeField(default=now, db_default=Now(), editable=False)
    updated_at = models.DateTimeField(auto_now=True, db_default=Now())

    class Meta:
        db_table = "chrono_tenant"
        ordering = ["slug"]

    def __str__(self) -> str:
        return self.slug


class ApiKey(models.Model):
    """A right to use the HTTP API as a tenant. The key itself is shown once; what is kept cannot be turned back."""

    id = models.BigAutoField(primary_key=True)
    tenant = models.CharField(max_length=63)
    name = models.CharField(max_length=255, blank=True, **both(""))
    prefix = models.CharField(max_length=16, unique=True, help_text="First part of the key, by which it is found.")
    secret_hash = models.CharField(max_length=128, editable=False)
    scopes = models.CharField(max_length=100, help_text="Of read, write, operate, with spaces between.", **both("read"))
    created_at = models.DateTimeField(default=now, db_default=Now(), editable=False)
    created_by = models.CharField(max_length=255, blank=True, editable=False, **both(""))
    expires_at = instant()
    revoked_at = instant()
    last_used_at = instant(editable=False)

    class Meta:
        db_table = "chrono_api_key"
        verbose_name = "API key"
        ordering = ["tenant", "id"]
        indexes = [models.Index(fields=["tenant"], name="chrono_api_key_tenant")]

    def __str__(self) -> str:
        return f"{self.tenant}/{self.prefix}"


class StoredAnswer(models.Model):
    """What a request with an Idempotency-Key was answered, so that its repetition gets the same and does nothing."""

    id = models.BigAutoField(primary_key=True)
    tenant = models.CharField(max_length=63)
    key = models.CharField(max_length=255)
    fingerprint = models.CharField(max_length=64, help_text="Of method, path and body: another request is refused.")
    status = models.PositiveSmallIntegerField(help_text="0 while the first one is carried out.", **both(0))
    body = models.TextField(blank=True, **both(""))
    created_at = models.DateTimeField(default=now, db_default=Now())

    class Meta:
        db_table = "chrono_stored_answer"
        constraints = [models.UniqueConstraint(fields=["tenant", "key"], name="chrono_stored_answer_key")]
        indexes = [models.Index(fields=["created_at"], name="chrono_stored_answer_age")]

    def __str__(self) -> str:
        return f"{self.tenant}: {self.key}"
