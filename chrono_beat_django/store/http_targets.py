"""What a worker reads when it calls an HTTP target: all of one moment, and nothing of it is kept."""
from __future__ import annotations

import contextlib
from typing import Any

from django.db import DatabaseError, InterfaceError, connections, router, transaction

from chrono_beat.core.callback import DEFAULT_TIMEOUT_SECONDS, HttpTarget
from chrono_beat.core.errors import StoreUnavailable
from chrono_beat_django.models import Execution, Job, Tenant


def read(job_id: str, execution_id: str) -> HttpTarget | None:
    """Return the HTTP target of a job; None where it has none (any more).

    Args:
        job_id: which job.
        execution_id: whose own arguments go before the job's.

    Raises:
        StoreUnavailable: the database could not be asked.
    """
    alias = router.db_for_write(Job)
    try:
        return _read(alias, job_id, execution_id)
    except (DatabaseError, InterfaceError) as error:
        with contextlib.suppress(DatabaseError):
            connections[alias].close()                     # the next attempt opens a new one
        raise StoreUnavailable(f"{type(error).__name__}: {error}") from error


def _read(alias: str, job_id: str, execution_id: str) -> HttpTarget | None:
    with transaction.atomic(using=alias):
        job: Any = Job.objects.using(alias).filter(id=job_id, target_kind="http").first()
        if job is None:
            return None
        own = Execution.objects.using(alias).filter(id=execution_id).values_list("kwargs", flat=True).first()
    secrets = Tenant.objects.using(router.db_for_read(Tenant)).filter(slug=job.tenant).values_list(
        "webhook_secret", "webhook_secret_before").first() or ()
    return HttpTarget(
        url=job.url, body=own or job.kwargs or "{}", headers=job.headers, secrets=tuple(filter(None, secrets)),
        timeout_seconds=job.timeout_seconds or DEFAULT_TIMEOUT_SECONDS,
    )
