"""Control calls by the rules of `chrono_beat_django.jobs`: commit, tell Redis, wait, return; any of it may fail."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from chrono_beat.core.errors import QueueUnavailable, StoreUnavailable
from chrono_beat.core.ids import from_us, lane_of, to_us
from chrono_beat.core.records import GONE_VERSION, Void
from chrono_beat.core.schedule import schedule_from_parts
from chrono_beat.services.audit import cancel
from chrono_beat.testing.history import Called, Committed, Plan, Returned
from chrono_beat.testing.memory_jobs import MemoryJob, MemoryJobStore
from chrono_beat.testing.simulation.witness import Witness
from chrono_beat.testing.simulation.worker import START_WINDOW_US

PLANNED_BY = {"schedule_kind", "expression", "timezone", "start_us", "end_us", "anchor_us", "paused"}
LOOK_US = 100_000
PATIENCE_US = START_WINDOW_US + 1_000_000


class Call:
    """One control call; `turn` does its next piece.

    Args:
        number: of the call.
        action: one of history.ACTIONS.
        job_id: of which job.
        values: columns that an edit changes.
        store: the database behind the wire, for what a transaction reads.
        wired: the database, as the caller reaches it.
        queue: Redis, as the caller reaches it.
    """

    def __init__(
        self, number: int, action: str, job_id: str, values: Mapping[str, Any], *, store: MemoryJobStore, wired: Any,
        queue: Any, witness: Witness, lanes: int, execution_id: str = "",
    ) -> None:
        self.number, self.action, self.job_id, self.values = number, action, job_id, dict(values)
        self._store, self._wired, self._queue, self._witness, self._lanes = store, wired, queue, witness, lanes
        self._execution_id = execution_id
        self._made = ""
        self._version = self._lane = 0
        self._tenant = ""
        self._phase = "called"
        self._until_us = 0
        self.over = False

    def turn(self, now_us: int) -> int:
        """Do the next piece; returns microseconds until the one after it."""
        if self.over:
            return 3_600_000_000
        try:
            return self._piece(now_us)
        except (StoreUnavailable, QueueUnavailable):
            if self._phase == "waiting":
                return LOOK_US                                     # nobody can know: the whole window is waited
            self._return(promised=False)
            return 1

    def _return(self, *, promised: bool) -> None:
        self.over = True
        self._witness.expire()
        self._witness.add(Returned(self._witness.now_us(), self.number, promised, self._made))

    def _piece(self, now_us: int) -> int:
        if self._phase == "called":
            self._witness.add(Called(self._witness.now_us(), self.number, self.action, self.job_id, self._execution_id))
            self._phase = "committing"
        elif self._phase == "committing":
            if self.job_id not in self._store.jobs:
                self._return(promised=False)
                return 1
            self._wired.control(self)
            self._phase = "telling"
        elif self._phase == "telling":
            self._tell()
            self._phase, self._until_us = "waiting", now_us + PATIENCE_US
        elif now_us < self._until_us and not self._is_settled():
            return LOOK_US
        else:
            self._return(promised=True)
        return 1

    def commit(self) -> None:
        """Do what the transaction does; called behind the wire, so that its reply may be lost."""
        job = self._store.jobs[self.job_id]
        self._tenant = job.tenant
        self._lane = lane_of(job.tenant, self._lanes)
        if self.action == "cancel":
            self._store.executions[self._execution_id].cancel_requested_us = self._store.now_us()
            self._commit(job.version, None, anew=False)
        elif self.action == "trigger":
            now = self._store.now_us()
            while any(row.job_id == self.job_id and row.scheduled_us == now for row in self._store.executions.values()):
                now += 1
            self._made = self._store.add_execution(self.job_id, now)
            self._commit(job.version, None, anew=False)
        elif self.action == "delete":
            self._store.delete_job(self.job_id)
            self._version = GONE_VERSION
            self._commit(GONE_VERSION, None, anew=True)
        else:
            values = {"pause": {"paused": True}, "resume": {"paused": False}}.get(self.action, self.values)
            self._edit(job, {name: value for name, value in values.items() if getattr(job, name) != value})

    def _edit(self, job: MemoryJob, values: dict[str, Any]) -> None:
        if not values:
            self._version = job.version                            # so it is already: only Redis is told again
            self._commit(job.version, None, anew=False)
            return
        now = self._store.now_us()
        anew = bool(PLANNED_BY & values.keys())
        if anew:
            if "expression" in values:
                values["anchor_us"] = now
            after = replace(job, **values)
            values["next_run_us"] = None if after.paused else next_run(after, now)
        self._version = self._store.edit_job(job.job_id, values)
        self._commit(self._version, plan_of(job), anew=anew)

    def _commit(self, version: int, plan: Plan | None, *, anew: bool) -> None:
        self._witness.add(Committed(self._witness.now_us(), self.number, version, plan, anew))

    def _tell(self) -> None:
        if self.action == "cancel":
            cancel(self._queue, self._lane, self._execution_id, self.job_id, self._tenant)
            return
        if self._version:
            self._queue.void(self._lane, self.job_id, self._version)
            try:
                self._wired.void_done([Void(self.job_id, self._tenant, self._version)])
            except StoreUnavailable:
                pass                                               # then a dispatcher tells Redis once more
        self._queue.wake_dispatchers()

    def _is_settled(self) -> bool:
        """Say whether nothing of the old plan is drawn and not begun; False where nobody can know."""
        if self.action == "cancel":
            answer = self._queue.cancel(self._lane, self._execution_id, self.job_id, self._tenant)
            return bool(answer.state != "held" or (answer.worker and answer.begun))
        if not self._version:
            return True
        found = self._queue.deliveries_of(self._lane, self.job_id, self._version)
        return found is not None and all(delivery.begun for delivery in found)


def next_run(job: MemoryJob, now_us: int) -> int | None:
    """Return a job's first run after an instant."""
    start, end, anchor = (None if us is None else from_us(us) for us in (job.start_us, job.end_us, job.anchor_us))
    schedule = schedule_from_parts(job.schedule_kind, job.expression, job.timezone, start=start, end=end, anchor=anchor)
    following = schedule.next_after(from_us(now_us))
    return None if following is None else to_us(following)


def plan_of(job: MemoryJob) -> Plan:
    """Return what the history needs to know of a job."""
    return Plan(
        job.schedule_kind, job.expression, job.timezone, job.anchor_us, job.start_us, job.end_us, 0, job.paused, job.tenant,
        job.concurrency, job.exclusion_group, job.expires_after_seconds is not None,
    )
