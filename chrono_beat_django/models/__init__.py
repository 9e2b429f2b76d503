"""What is stored: tenants, jobs, executions, and who owns which slice of the due index.

Every column has its default in the database too, so that a row put in by SQL needs no more than what it is about. Jobs
and executions name their tenant (and executions their job) in plain text: history outlives deletion, and the tables
may live in different databases. Dispatchers, recorders and the audit write through :mod:`chrono_beat_django.store`
alone; an edit of a job raises ``version``, and a trigger does so for edits that go around the store.
"""
from chrono_beat_django.models.columns import END_OF_TIME, FIRST_INSTANT
from chrono_beat_django.models.dispatching import Deployment, Dispatcher, Lane, Partition
from chrono_beat_django.models.executions import HANDLED, Execution, ExecutionQuerySet
from chrono_beat_django.models.jobs import (
    DEFAULT_MAX_DURATION_SECONDS,
    KEY_SCOPES,
    SOURCES,
    TARGET_KINDS,
    Job,
    JobEvent,
    JobQuerySet,
    PendingVoid,
    new_job_id,
)
from chrono_beat_django.models.seen import SPANS, Alert, AlertMute, BeatFire, BeatWatch, Rollup
from chrono_beat_django.models.tenants import ApiKey, StoredAnswer, Tenant

__all__ = [
    "DEFAULT_MAX_DURATION_SECONDS", "END_OF_TIME", "FIRST_INSTANT", "HANDLED", "KEY_SCOPES", "SOURCES", "SPANS",
    "TARGET_KINDS", "Alert", "AlertMute", "ApiKey", "BeatFire", "BeatWatch", "Deployment", "Dispatcher", "Execution",
    "ExecutionQuerySet", "Job", "JobEvent", "JobQuerySet", "Lane", "Partition", "PendingVoid", "Rollup", "StoredAnswer",
    "Tenant", "new_job_id",
]
