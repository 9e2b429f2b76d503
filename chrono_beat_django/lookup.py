"""Find jobs: one by its name, many by what is asked for, and what was done to one."""
from __future__ import annotations

import uuid

from django.db.models import Q, QuerySet
from django.db.models.functions import Left

from chrono_beat.core.errors import NotFound
from chrono_beat_django.models import Execution, ExecutionQuerySet, Job, JobEvent, JobQuerySet


def get(tenant: str, name: str) -> Job:
    """Return a tenant's unfinished job by its name.

    Raises:
        NotFound: there is none.
    """
    found = Job.objects.unfinished().of(tenant).filter(name=name).first()
    if found is None:
        raise NotFound(f'tenant {tenant} has no job named "{name}"')
    return found


def list(
    tenant: str | None = None, *, paused: bool | None = None, task: str | None = None, source: str | None = None,
    finished: bool | None = False, prefix: str = "", troubled: bool = False, after: tuple[str, str] | None = None,
) -> JobQuerySet:
    """Return jobs, by tenant and name, as a queryset to filter, slice and count.

    Args:
        tenant, task, source: exact values; None for all.
        paused: only those that are, or are not; None for both.
        finished: only those that are over, or are not; None for both.
        prefix: what their names begin with.
        troubled: only those that are quarantined, or flagged since no live worker knows their task.
        after: tenant and name of the last job of the page before.
    """
    exact = {"tenant": tenant, "paused": paused, "task": task, "source": source}
    found = Job.objects.filter(**{field: value for field, value in exact.items() if value is not None})
    if finished is not None:
        found = found.filter(finished_at__isnull=not finished)
    if prefix:
        beginning = Left("name", len(prefix))               # SQLite's LIKE takes e for E
        found = found.alias(beginning=beginning).filter(name__startswith=prefix, beginning=prefix)
    if troubled:
        found = found.exclude(quarantined_reason="", flagged_reason="")
    if after is not None:
        found = found.filter(Q(tenant__gt=after[0]) | Q(tenant=after[0], name__gt=after[1]))
    return found


def executions(job: Job) -> ExecutionQuerySet:
    """Return a job's executions, the newest occurrence first, as a queryset to filter and slice."""
    return Execution.objects.of_job(job.id)


def history(job: Job | uuid.UUID | str) -> QuerySet[JobEvent]:
    """Return who did what to a job, the last first, as a queryset to filter and slice; also of one that was deleted.

    Raises:
        NotFound: the text is no id of a job.
    """
    try:
        job_id = job.id if isinstance(job, Job) else uuid.UUID(str(job))
    except ValueError:
        raise NotFound(f"{str(job)[:100]!r} is no id of a job") from None
    return JobEvent.objects.filter(job_id=job_id).order_by("-at", "-id")
