"""Plain tasks: Celery tasks that were sent into a pool without a job.

They join their tenant's stream and get its fairness, cap and leases. There is no execution row behind one, so what Redis
loses of it is lost (invariants 2 to 4 do not hold), and how it ended is told by Celery's result backend alone.
"""
from __future__ import annotations

from typing import NamedTuple

from chrono_beat.core.records import shown_without

TENANT_HEADER = "chrono_tenant"
"""Message header that names the tenant of a plain task."""

PREFIX = "plain:"
"""What the ids of their copies begin with; no execution id does, since those begin with a job's UUID."""

DEFAULT_PRIORITY = 5
"""As that of jobs."""


class PlainTask(NamedTuple):
    """A plain task on its way into its tenant's stream.

    Args:
        copy_id: see :func:`copy_id`.
        tenant: slug of its tenant.
        pool: name of the pool, never empty.
        priority: 0 (first) to 9.
        payload: the Celery message, a JSON document in UTF-8.
        due_us: nobody may read it before this instant, by Redis' clock; 0 for at once.
        countdown_us: nor before it has been in Redis for so long.
    """

    copy_id: str
    tenant: str
    pool: str
    priority: int
    payload: bytes
    due_us: int = 0
    countdown_us: int = 0

    def __repr__(self) -> str:
        return shown_without(self, "payload")


def copy_id(task_id: str, nonce: str) -> str:
    """Return the id under which Redis keeps one message of a Celery task.

    Args:
        task_id: Celery's; any text.
        nonce: the message's own: what is sent again with the same Celery id (by a caller, or ``Task.replace``) is another
            message, while a repeat of one whose reply was lost has the same.
    """
    return f"{PREFIX}{task_id}:{nonce}"


def task_id_of(copy_id: str) -> str:
    """Return the Celery id that :func:`copy_id` was given; "" where the text is none of its ids."""
    task_id, _, nonce = copy_id.removeprefix(PREFIX).rpartition(":")
    return task_id if is_plain(copy_id) and nonce else ""


def is_plain(execution_id: str) -> bool:
    """Say whether the id of a delivery is that of a plain task."""
    return execution_id.startswith(PREFIX)
