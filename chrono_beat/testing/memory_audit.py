"""The part of the JobStore in memory that looks for what was lost."""
from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from chrono_beat.core import lifecycle
from chrono_beat.core.records import DueJob, ScheduledExecution
from chrono_beat.core.recovery import OpenRow
from chrono_beat.testing.memory_rows import Journal, MemoryExecution, MemoryJob


class MemoryAudit:
    """Mixed into MemoryJobStore."""

    jobs: dict[str, MemoryJob]
    executions: dict[str, MemoryExecution]
    _journal: Journal
    _scheduled: Any
    _content: Any
    _job_of: Any
    _due: Any

    def _transaction(self) -> AbstractContextManager[int]:
        raise NotImplementedError

    def open_page(
        self, partitions: Sequence[int], after: OpenRow | None, age_us: int, limit: int,
    ) -> list[OpenRow]:
        """See JobStore."""
        with self._transaction() as now:
            rows = [OpenRow(row.execution_id, row.tenant, row.partition, row.due_us, row.state)
                    for row in self.executions.values()
                    if row.state in lifecycle.OPEN and row.partition in partitions and row.due_us <= now - age_us]
            behind = () if after is None else _place(after)
            return sorted((row for row in rows if _place(row) > behind), key=_place)[:limit]

    def load_open(self, execution_ids: Sequence[str]) -> list[ScheduledExecution]:
        """See JobStore."""
        with self._transaction():
            found = []
            for key in dict.fromkeys(execution_ids):
                row = self.executions.get(key)
                job = self._job_of(row) if row else None
                if row is None or job is None or row.state not in lifecycle.OPEN:
                    continue
                if job.plan_version <= row.job_version < job.version:
                    self._journal.set(row, job_version=job.version, job_name=job.name)                # rule 7
                if row.job_version == job.version and row.cancel_requested_us is None:                # rule 8
                    found.append(self._scheduled(row, self._content(job, row)))
            return sorted(found, key=lambda row: (row.due_us, row.execution_id))

    def let_go(self, execution_ids: Sequence[str]) -> int:
        """See JobStore."""
        with self._transaction():
            rows = [row for key in execution_ids if (row := self.executions.get(key)) is not None
                    and row.state == lifecycle.SCHEDULED and row.holder_epoch]
            for row in rows:
                self._journal.set(row, holder_epoch=0)
            return len(rows)

    def plans(self, job_ids: Sequence[str]) -> dict[str, DueJob]:
        """See JobStore."""
        with self._transaction():
            return {job_id: self._due(self.jobs[job_id]) for job_id in job_ids if job_id in self.jobs}


def _place(row: OpenRow) -> tuple[int, int, str]:
    return row.partition, row.due_us, row.execution_id
