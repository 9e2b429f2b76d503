"""ETA tasks: executions without a job, and how they are told apart where rows are read together with their jobs."""
from __future__ import annotations

from django.db import IntegrityError, transaction

from chrono_beat.core import eta, lifecycle
from chrono_beat.core.errors import Conflict
from chrono_beat.core.ids import execution_id, from_us
from chrono_beat.core.records import Content
from chrono_beat_django.models import Execution
from chrono_beat_django.store.session import Session

NO_JOB = "e.task IS NOT NULL"
"""Whether a row is one without a job, in SQL. It is joined to no job, whatever its job id."""

OWN = "e.task, e.options, e.celery_id, e.tenant, e.job_name, e.args, e.kwargs"
"""What `without_job` needs of a row, in SQL, the task first."""

MAX_INSTANTS_TRIED = 1_000


def without_job(
    task: str, queued: bool, options: str | None, celery_id: str, tenant: str, name: str, args: str | None,
    kwargs: str | None,
) -> tuple[Content, bool, str, str]:
    """Return the last fields of a ScheduledExecution, from its content on, of the columns of OWN."""
    return eta.content(tenant, name, task, args, kwargs), bool(queued), options or "", celery_id


class EtaTasks(Session):
    """The part of JobStore that lets messages wait; the same on every engine, whose own clock it uses."""

    def now_us(self) -> int:
        """See JobStore."""
        raise NotImplementedError

    def add_eta_task(self, task: eta.EtaTask) -> str:
        """See JobStore. Within a transaction of the caller's the row is part of it."""
        due_us = task.due_us or self.now_us() + task.countdown_us
        return self._attempt(lambda: self._add(task, eta.job_id_of(task.task_id), due_us))

    def _add(self, task: eta.EtaTask, job_id: str, due_us: int) -> str:
        rows = Execution.objects.using(self.alias)
        if task.retries:
            there = rows.open().filter(job_id=job_id, tenant=task.tenant, retries=task.retries, task=task.task)
            if (found := there.values_list("id", flat=True).first()) is not None:
                return found
        for us in range(due_us, due_us + MAX_INSTANTS_TRIED):
            key = execution_id(job_id, us, 1)
            try:
                with transaction.atomic(using=self.alias):              # a savepoint in the caller's transaction
                    rows.create(
                        id=key, job_id=job_id, tenant=task.tenant, job_name=task.task[:255], partition=task.partition,
                        scheduled_at=from_us(us), due_at=from_us(due_us), first_due_at=from_us(due_us), kind=eta.KIND,
                        state=lifecycle.SCHEDULED, retries=task.retries, task=task.task, args=task.args,
                        kwargs=task.kwargs, options=task.options, celery_id=task.task_id)
            except IntegrityError:                                      # the same task id was sent for that instant
                continue
            return key
        raise Conflict(f"the task {task.task_id[:80]} was sent too often for the same instant")
