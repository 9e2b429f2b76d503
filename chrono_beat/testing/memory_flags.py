"""The part of MemoryJobStore for flags: what is likely to go wrong at a job's next run."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chrono_beat.core.findings import JobName
from chrono_beat.testing.memory_rows import MemoryExecution, MemoryJob


class MemoryFlags:
    """Mixin of MemoryJobStore, which has the rows."""

    jobs: dict[str, MemoryJob]
    tenants: dict[str, Any]
    executions: dict[str, MemoryExecution]
    _transaction: Any
    _journal: Any

    def _place(self, job: MemoryJob) -> tuple[str, str]:
        tenant = self.tenants.get(job.tenant)
        return job.pool or (tenant.pool if tenant is not None else ""), job.task

    def upcoming_tasks(self, partitions: Sequence[int], until_us: int) -> list[tuple[str, str]]:
        """See JobStore."""
        with self._transaction():
            return sorted({
                self._place(job) for job in self.jobs.values()
                if job.partition in partitions and job.next_run_us is not None and job.next_run_us <= until_us
                and not job.flagged_reason
            })

    def message_queues(self, job_ids: Sequence[str]) -> dict[str, str | None]:
        """See JobStore."""
        with self._transaction():
            found = (self.jobs[job_id] for job_id in job_ids if job_id in self.jobs)
            return {job.job_id: None if job.target_kind == "shadow" else job.queue for job in found
                    if job.target_kind == "shadow" or (job.target_kind == "message" and job.queue)}

    def skips_in_a_row(self, job_ids: Sequence[str], most: int) -> dict[str, int]:
        """See JobStore."""
        with self._transaction():
            found = dict.fromkeys(job_ids, 0)
            over = set()
            for row in sorted(self.executions.values(), key=lambda row: (row.scheduled_us, row.attempt), reverse=True):
                if row.job_id not in found or row.job_id in over:
                    continue
                if row.started_us is not None:
                    over.add(row.job_id)
                elif (row.state, row.reason) == ("skipped", "overlap"):
                    found[row.job_id] = min(found[row.job_id] + 1, most)
            return found

    def flagged_tasks(self) -> list[tuple[str, str]]:
        """See JobStore."""
        with self._transaction():
            return sorted({self._place(job) for job in self.jobs.values() if job.flagged_reason})

    def flag_jobs(self, pool: str, task: str, reason: str, until_us: int, limit: int) -> list[JobName]:
        """See JobStore."""
        with self._transaction():
            found = [
                job for job in self.jobs.values() if self._place(job) == (pool, task) and (
                    not job.flagged_reason and job.next_run_us is not None and job.next_run_us <= until_us
                    if reason else job.flagged_reason)
            ][:limit]
            for job in found:
                self._journal.set(job, flagged_reason=reason)
            return [JobName(job.job_id, job.tenant, job.name) for job in found]
