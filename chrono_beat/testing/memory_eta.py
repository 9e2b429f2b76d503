"""The part of the JobStore in memory that lets Celery messages wait: executions without a job."""
from __future__ import annotations

from contextlib import AbstractContextManager

from chrono_beat.core import eta, lifecycle
from chrono_beat.core.ids import execution_id
from chrono_beat.core.records import ScheduledExecution
from chrono_beat.testing.memory_rows import Journal, MemoryExecution


class MemoryEta:
    """Mixed into MemoryJobStore."""

    executions: dict[str, MemoryExecution]
    _journal: Journal

    def _transaction(self) -> AbstractContextManager[int]:
        raise NotImplementedError

    def _step(self) -> None:
        raise NotImplementedError

    def add_eta_task(self, task: eta.EtaTask) -> str:
        """See JobStore."""
        with self._transaction() as now:
            job_id = eta.job_id_of(task.task_id)
            for row in self.executions.values() if task.retries else ():
                same = (row.job_id, row.tenant, row.retries, row.task) == (job_id, task.tenant, task.retries, task.task)
                if same and row.state in lifecycle.OPEN:
                    return row.execution_id
            due_us = at_us = task.due_us or now + task.countdown_us
            while (key := execution_id(job_id, at_us, 1)) in self.executions:
                at_us += 1
            self._step()
            self._journal.put(self.executions, key, MemoryExecution(
                execution_id=key, job_id=job_id, tenant=task.tenant, job_name=task.task, partition=task.partition,
                scheduled_us=at_us, due_us=due_us, first_due_us=due_us, attempt=1, retries=task.retries, kind=eta.KIND,
                state=lifecycle.SCHEDULED, job_version=1, task=task.task, args=task.args, kwargs=task.kwargs,
                options=task.options, celery_id=task.task_id,
            ))
            return key


def scheduled_without_job(row: MemoryExecution) -> ScheduledExecution:
    """Return the row of an ETA task as its publisher gets it."""
    return ScheduledExecution(
        row.execution_id, row.job_id, row.partition, row.scheduled_us, row.due_us, row.first_due_us, row.attempt,
        row.retries, row.kind, row.job_version, eta.content(row.tenant, row.job_name, row.task or "", row.args, row.kwargs),
        False, row.options or "", row.celery_id,
    )
