"""Shadows: jobs that fire beside another scheduler without sending anything, until they go live."""
from __future__ import annotations

from datetime import timedelta

from django.db import transaction
from django.db.models import QuerySet

from chrono_beat.core import ids, lifecycle
from chrono_beat.core.errors import Conflict
from chrono_beat_django import control, jobs, wiring
from chrono_beat_django.models import Execution, Job
from chrono_beat_django.shadow_report import report
from chrono_beat_django.store import definitions as store

__all__ = ["QUIET", "go_live", "report", "shadows"]

QUIET = timedelta(seconds=10)
"""How far away the next occurrence must be, so that it is plain which of the two schedulers sends it."""


def shadows(tenant: str) -> QuerySet[Job]:
    """Return the shadows of a tenant that have not finished, by name."""
    return Job.objects.using(store.alias()).unfinished().filter(tenant=tenant, target_kind="shadow").order_by("name")


def go_live(job: Job, *, actor: str | None = None) -> Job:
    """Let a shadow send its task, from its next occurrence on.

    Occurrences that are due already, and have not been drawn, are cancelled: the other scheduler has sent them. Those that
    were claimed ahead and are due later are sent.

    Args:
        job: the shadow.
        actor: who does it, for the audit.

    Returns:
        The job as it is now.

    Raises:
        Conflict: it is no shadow, or an occurrence is less than `QUIET` away.
        InvalidInput: what it would be is not allowed (any more): its task, its pool.
        NotFound: there is no such job.
    """
    with transaction.atomic(using=store.alias()):
        found = store.lock_job(control.job_id_of(job))
        if found.target_kind != "shadow":
            raise Conflict(f"{found} is no shadow: it sends already")
        now = ids.from_us(wiring.now_us())
        rows = Execution.objects.using(store.alias()).filter(job_id=found.id, state__in=lifecycle.OPEN)
        instants = [*rows.filter(scheduled_at__gt=now).values_list("scheduled_at", flat=True), found.next_run_at]
        soonest = min((at for at in instants if at is not None), default=None)
        if soonest is not None and soonest - now < QUIET:
            raise Conflict(f"{found} fires at {soonest:%H:%M:%S}Z: let it go live later than that, and {QUIET.seconds} s or "
                           "more before the one that follows")
        for row in rows.filter(scheduled_at__lte=now):
            control.cancel(row, actor=actor)
        return jobs.change(found, "go_live", actor, {"target_kind": "task", "pool": found.queue, "queue": ""}).job
