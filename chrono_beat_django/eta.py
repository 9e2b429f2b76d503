"""ETA tasks in the database: written where they are sent, ended where they are revoked.

A row is written in the transaction of the caller, where one is open on that database: a message that belongs to an order
that is rolled back is never sent, and one that belongs to an order that is saved cannot get lost.
"""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from django.db import InterfaceError, OperationalError, transaction

from chrono_beat.celery import never_began
from chrono_beat.core.errors import Conflict, NotFound, StoreUnavailable
from chrono_beat.core.eta import EtaTask, job_id_of
from chrono_beat_django import control, executions, wiring
from chrono_beat_django.models import Execution
from chrono_beat_django.store import definitions as store
from chrono_beat_django.store import quotas


def add(task: EtaTask) -> str:
    """Let a Celery message wait for its time; returns the id of its execution. It counts as one creation of its tenant,
    unless it is a retry.

    Raises:
        UnknownTenant: there is no such tenant.
        QuotaExceeded: the tenant creates too fast.
        StoreUnavailable: the database could not be reached; whether the message was kept is not known.
    """
    with _typed(), transaction.atomic(using=store.alias()):
        if not task.retries:
            quotas.charge(store.lock_tenant(task.tenant), wiring.now_us())
        return wiring.store().add_eta_task(task)


def tell(row: Execution) -> None:
    """Tell Celery that what waited here was cancelled before it began: its result, and the chord that it is in."""
    never_began.tell(row)


def ended_by_audit(execution_id: str) -> None:
    """Tell Celery the same of an execution that the audit has ended; nothing is done where nobody waits for it.

    Raises:
        StoreUnavailable: the database could not be reached.
    """
    with _typed(), contextlib.suppress(NotFound):
        row = executions.get(execution_id)
        if control.is_awaited(row):
            tell(row)


def revoke(task_ids: Iterable[str], ended: Callable[[Execution], None]) -> int:
    """Cancel the executions of Celery tasks that waited here and have not begun.

    Args:
        task_ids: Celery's; those of other tasks are passed over.
        ended: told of each that certainly never runs, when Redis has ended it.

    Returns:
        How many were cancelled.

    Raises:
        StoreUnavailable: the database could not be reached.
    """
    done = 0
    with _typed():
        for task_id in task_ids:
            waiting = Execution.objects.using(store.alias()).filter(
                job_id=job_id_of(task_id), celery_id=task_id, task__isnull=False, state__in=control.NOT_BEGUN)
            for row in waiting:
                with contextlib.suppress(Conflict):         # it has ended meanwhile
                    control.cancel(row, actor="revoke", never_began=ended)
                    done += 1
    return done


@contextmanager
def _typed() -> Iterator[None]:
    try:
        yield
    except (OperationalError, InterfaceError) as error:
        raise StoreUnavailable(f"the database broke off: {' '.join(str(error).split())}") from error
