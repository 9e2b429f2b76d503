"""``current()``: what a running task may know of the occurrence it works for."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from celery import _state

from chrono_beat.core import ids
from chrono_beat.core.deliveries import Hold
from chrono_beat.core.plain import is_plain

HEADER = "chrono"
_on_behalf: ContextVar[Mapping[str, Any] | None] = ContextVar("chrono_on_behalf", default=None)


@dataclass(frozen=True, slots=True)
class CurrentExecution:
    """The delivery that the running task works for.

    Args:
        job_id, job_name, tenant: whose work it is; a plain task has no job: None and "".
        scheduled_at: the instant that the schedule named; aware UTC. None for a plain task.
        due_at: from when on it could be read; for a retry the time after back-off. None for a plain task.
        attempt: number of this attempt at the occurrence, from 1; of a plain task its retries and one.
        execution_id: id of this attempt; the same at a repeat delivery. Of a plain task an id in Redis only.
        idempotency_key: what a target should remember to recognise a repeat; of a plain task its Celery id.
        token: fencing token of this delivery; greater at every delivery of the execution.
    """

    job_id: str | None
    job_name: str
    tenant: str
    scheduled_at: datetime | None
    due_at: datetime | None
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
    task, request, header = running
    if is_plain(header["eid"]):
        return CurrentExecution(
            job_id=None, job_name="", tenant=header["tenant"], scheduled_at=None, due_at=None,
            attempt=(request.retries or 0) + 1, execution_id=header["eid"], idempotency_key=request.id,
            token=header["token"], _beat=task.app.chrono_beat,
        )
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


def running_header() -> Mapping[str, Any] | None:
    """Return the chrono header of the delivery that this thread or greenlet works for: it runs its body, or, in a worker's
    main process, sends what its end asks for, such as errbacks."""
    running = running_request()
    return running[2] if running is not None else _on_behalf.get()


@contextmanager
def on_behalf_of(header: Mapping[str, Any]) -> Iterator[None]:
    """Let what is sent meanwhile belong to that delivery's tenant."""
    token = _on_behalf.set(header)
    try:
        yield
    finally:
        _on_behalf.reset(token)


def _instant(value: str | int) -> datetime:
    if isinstance(value, int):
        return ids.from_us(value)
    try:
        return ids.from_us(ids.parse_instant(value))
    except ValueError:
        return datetime.fromisoformat(value)
