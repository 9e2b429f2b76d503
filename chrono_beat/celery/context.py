"""``current()``: what a running task may know of the occurrence it works for."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from celery import _state

from chrono_beat.core import ids
from chrono_beat.core.deliveries import Hold

HEADER = "chrono"


@dataclass(frozen=True, slots=True)
class CurrentExecution:
    """The delivery that the running task works for.

    Args:
        job_id, job_name, tenant: whose work it is.
        scheduled_at: the instant that the schedule named; aware UTC.
        due_at: from when on it could be read; for a retry the time after back-off.
        attempt: number of this attempt at the occurrence, from 1.
        execution_id: id of this attempt; the same at a repeat delivery.
        idempotency_key: what a target should remember to recognise a repeat.
        token: fencing token of this delivery; greater at every delivery of the execution.
    """

    job_id: str
    job_name: str
    tenant: str
    scheduled_at: datetime
    due_at: datetime
    attempt: int
    execution_id: str
    idempotency_key: str
    token: str
    _beat: Any = field(default=None, repr=False, compare=False)

    def still_held(self) -> bool:
        """Ask Redis whether this delivery still holds its lease.

        False says that somebody else may be running this execution by now: stop before the next effect that counts.

        Raises:
            QueueUnavailable: Redis could not be asked.
        """
        lane = ids.lane_of(self.tenant, self._beat.config.lanes)
        return self._beat.queue.still_held(lane, Hold(self.execution_id, self.token))

    @property
    def cancelled(self) -> bool:
        """Whether the task should end now, without another effect: it was cancelled or replaced, is over its
        max_duration, or somebody else has its lease. What it reports counts for nothing then.

        A body that runs for long looks at this now and then; it costs nothing. On prefork it is always False: there
        the worker ends the child (SIGTERM, which raises SystemExit in the body, and SIGKILL a second later).
        """
        worker = self._beat.worker
        if worker is None:                                     # a prefork child
            return False
        held = worker.find(self.execution_id, self.token)
        return held is None or held.cancelled


def current() -> CurrentExecution | None:
    """Return what the running task works for; None outside of chrono_beat's work."""
    running = running_request()
    if running is None:
        return None
    task, _, header = running
    return CurrentExecution(
        job_id=header["job"],
        job_name=header.get("name", ""),
        tenant=header["tenant"],
        scheduled_at=_instant(header["scheduled_at"]),
        due_at=_instant(header["due_at"]),
        attempt=int(header["attempt"]),
        execution_id=header["eid"],
        idempotency_key=header["key"],
        token=header["token"],
        _beat=task.app.chrono_beat,
    )


def running_request() -> tuple[Any, Any, Mapping[str, Any]] | None:
    """Return (task, request, chrono header) of the delivery that this thread or greenlet runs.

    A task that calls another one as a function, or itself, pushes a request without headers: the delivery's lies
    below it.
    """
    for task in reversed(_state._task_stack.stack or ()):
        for request in reversed(task.request_stack.stack or ()):
            header = request.get(HEADER)
            if isinstance(header, Mapping) and "eid" in header and "token" in header:
                return task, request, header
    return None


def _instant(value: str | int) -> datetime:
    if isinstance(value, int):
        return ids.from_us(value)
    try:
        return ids.from_us(ids.parse_instant(value))
    except ValueError:
        return datetime.fromisoformat(value)
