"""From an execution row to what is published of it: one way for the planner and for the audit."""
from __future__ import annotations

from chrono_beat.core import eta, lifecycle
from chrono_beat.core.envelope import Templates
from chrono_beat.core.records import Ending, PublishItem, ScheduledExecution
from chrono_beat.ports import JobStore
from chrono_beat.telemetry import emit

MAX_REASON_CHARACTERS = 500


def publish_item(templates: Templates, row: ScheduledExecution) -> PublishItem:
    """Build the message of a row, and what the lane must know of it.

    Raises:
        InvalidContent: no message can be made of it.
    """
    if row.options is not None:
        return eta.publish_item(row, templates.config)
    content = row.content
    made = templates.of(content)
    payload = made.build(
        row.execution_id, row.job_id, row.scheduled_us, row.due_us, row.attempt, row.retries, row.kind)
    expires_us = None
    if content.expires_after_seconds is not None:
        expires_us = row.first_due_us + round(content.expires_after_seconds * 1_000_000)
    return PublishItem(
        row.execution_id, row.job_id, content.tenant, row.version, row.attempt, row.kind, made.pool, made.priority,
        row.due_us, expires_us, made.concurrency, payload, content.exclusion_group,
    )


def bury(store: JobStore, row: ScheduledExecution, reason: str, at_us: int) -> None:
    """End a row that makes no message: a dead letter, unless a newer version of the job has it by now."""
    ending = Ending(row.execution_id, lifecycle.DEAD, "invalid", at_us, "", 0, reason[:MAX_REASON_CHARACTERS],
                    if_version=row.version)
    if store.record([], [ending], []).ended:
        emit("dead_lettered", tenant=row.content.tenant, reason=ending.reason, count=1)
