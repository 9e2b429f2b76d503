"""A JobStore in memory: the same promises as the database's, in plain Python under one lock.

For tests of services and for simulations. Every method is a transaction: a fault between two of its steps (see
:meth:`MemoryJobStore.fail_at`) leaves nothing behind. Scans go through all rows, so it is made for thousands of jobs.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from chrono_beat.core import lifecycle
from chrono_beat.core.ids import execution_id, partition_of
from chrono_beat.core.records import (
    GONE_VERSION,
    CancelRequest,
    Claim,
    Content,
    DueJob,
    Ending,
    NewAttempt,
    Occurrence,
    OpenExecution,
    RecordResult,
    RetryPolicy,
    ScheduledExecution,
    Start,
    TenantLimits,
    Void,
)
from chrono_beat.core.rollup import DAY_US, Tallies
from chrono_beat.testing.memory_audit import MemoryAudit
from chrono_beat.testing.memory_eta import MemoryEta, scheduled_without_job
from chrono_beat.testing.memory_flags import MemoryFlags
from chrono_beat.testing.memory_holds import MemoryHolds
from chrono_beat.testing.memory_rollups import add as add_rollups
from chrono_beat.testing.memory_rows import MemoryExecution, MemoryJob, MemoryTenant

__all__ = ["MemoryExecution", "MemoryJob", "MemoryJobStore", "MemoryTenant"]

_WAITING = (lifecycle.SCHEDULED, lifecycle.QUEUED)
NO_RETRY = RetryPolicy(1, True, 30.0, 2.0, 3600.0, 0.2)
ASKED_FOR = NO_RETRY._replace(explicit=False)         # of what never had a job
PLAN = frozenset({"schedule_kind", "expression", "timezone", "start_us", "end_us", "anchor_us", "spread_seconds",
                  "paused"})
TENANT_OVERLAP_US = 5_000_000       # a change may be committed later than it is dated; it is told again for so long


class MemoryJobStore(MemoryFlags, MemoryHolds, MemoryAudit, MemoryEta):
    """JobStore in memory.

    Args:
        clock: its ``wall_us()`` is the store's clock.
        partitions: slices of the due index.
        lanes: slices of the Redis key space.

    Tests look into ``tenants``, ``jobs`` and ``executions``, dicts by slug and id; rows may be changed there before the
    services run. ``unavailable = True`` makes every call raise StoreUnavailable.
    """

    # -- for tests --------------------------------------------------------------------------------------------------

    def add_tenant(self, tenant: MemoryTenant) -> None:
        """Add or replace a tenant, changed now."""
        with self._lock:
            tenant.changed_us = self._clock.wall_us()
            self.tenants[tenant.slug] = tenant

    def add_job(self, job: MemoryJob) -> str:
        """Add a job; returns its id."""
        with self._lock:
            job.job_id = job.job_id or f"00000000-0000-7000-8000-{len(self.jobs) + 1:012d}"
            if job.partition is None:
                job.partition = partition_of(job.tenant, job.job_id, len(self._partitions))
            self.jobs[job.job_id] = job
            return job.job_id

    def edit_job(self, job_id: str, values: Mapping[str, Any]) -> int:
        """Change a job as an edit does: the version grows by one. Returns the new version."""
        with self._lock:
            job = self.jobs[job_id]
            for name, value in values.items():
                setattr(job, name, value)
            job.version += 1
            if not PLAN.isdisjoint(values):
                job.plan_version = job.version
            self.voids[job_id] = Void(job_id, job.tenant, job.version)
            return job.version

    def delete_job(self, job_id: str) -> None:
        """Remove a job; its rows stay."""
        with self._lock:
            self.voids[job_id] = Void(job_id, self.jobs.pop(job_id).tenant, GONE_VERSION)

    def add_execution(self, job_id: str, scheduled_us: int, *, kind: str = "manual", attempt: int = 1) -> str:
        """Add an open row that no wheel holds, due when scheduled, as a trigger or a backfill does; returns its id."""
        with self._lock:
            row = self._new_row(self.jobs[job_id], Occurrence(scheduled_us, scheduled_us), 0)
            row = replace(row, execution_id=execution_id(job_id, scheduled_us, attempt), attempt=attempt, kind=kind)
            self.executions[row.execution_id] = row
            return row.execution_id

    def rows(self, job_id: str | None = None) -> list[MemoryExecution]:
        """Return execution rows, all or one job's, by scheduled instant and attempt."""
        with self._lock:
            found = [row for row in self.executions.values() if job_id in (None, row.job_id)]
            return sorted(found, key=lambda row: (row.scheduled_us, row.job_id, row.attempt))

    # -- claim ------------------------------------------------------------------------------------------------------

    def due_jobs(
        self, partitions: Sequence[int], until_us: int, limit: int, without: Sequence[str] = (),
    ) -> list[DueJob]:
        """See JobStore."""
        with self._transaction():
            due = [(job.partition, job.next_run_us, job.job_id, job) for job in self.jobs.values()
                   if job.next_run_us is not None and job.partition in partitions and job.next_run_us <= until_us
                   and job.tenant not in without]
            due.sort(key=lambda entry: entry[:3])
            return [self._due(job) for *_, job in due[:limit]]

    def _due(self, job: MemoryJob) -> DueJob:
        tenant = self.tenants.get(job.tenant)
        spread = job.spread_seconds if job.spread_seconds is not None else tenant.spread_seconds if tenant else 0
        return DueJob(
            job.job_id, job.partition or 0, job.next_run_us or 0, job.version, job.schedule_kind, job.expression,
            job.timezone, job.start_us, job.end_us, job.anchor_us, spread, job.misfire, job.misfire_cap,
            job.grace_seconds, self._content(job), job.replan,
        )

    def _content(self, job: MemoryJob, row: MemoryExecution | None = None) -> Content:
        tenant = self.tenants.get(job.tenant)
        return Content(
            job.tenant, job.name, job.task,
            row.args if row and row.args is not None else job.args,
            row.kwargs if row and row.kwargs is not None else job.kwargs,
            job.headers, job.pool or (tenant.pool if tenant else ""), job.priority, job.soft_limit_seconds,
            job.max_duration_seconds, job.expires_after_seconds, job.concurrency, job.key_scope,
            job.exclusion_group,
        )

    def claim(self, member: str, claims: Sequence[Claim]) -> list[ScheduledExecution]:
        """See JobStore. A job is claimed once in a batch; what repeats it is ignored."""
        with self._transaction() as now:
            claimed: list[ScheduledExecution] = []
            once: dict[str, Claim] = {}
            for claim in claims:
                once.setdefault(claim.job_id, claim)
            for claim in once.values():
                job = self.jobs.get(claim.job_id)
                if job is None or not self._owned(member, {claim.partition: claim.epoch}):
                    continue
                if (job.partition, job.version, job.next_run_us) != (claim.partition, claim.version, claim.next_run_us):
                    continue
                self._step()
                self._journal.set(job, next_run_us=claim.new_next_run_us, replan=False)
                for occurrence in claim.occurrences:
                    row = self._write(job, occurrence, claim.epoch, now)
                    if row.kind != "schedule" or row.cancel_requested_us is not None:
                        continue                    # a backfill's will run by itself; the other one will not
                    if row.state in _WAITING and row.holder_epoch == claim.epoch:
                        claimed.append(self._scheduled(row, claim.content))
                self._finish(job, now)
            return claimed

    def _new_row(self, job: MemoryJob, occurrence: Occurrence, epoch: int) -> MemoryExecution:
        return MemoryExecution(
            execution_id=execution_id(job.job_id, occurrence.scheduled_us, 1), job_id=job.job_id, tenant=job.tenant,
            job_name=job.name, partition=job.partition or 0, scheduled_us=occurrence.scheduled_us,
            due_us=occurrence.due_us, first_due_us=occurrence.due_us, attempt=1, retries=0, kind="schedule",
            state=lifecycle.SCHEDULED, job_version=job.version, holder_epoch=epoch,
        )

    def _write(self, job: MemoryJob, occurrence: Occurrence, epoch: int, now: int) -> MemoryExecution:
        """Write an occurrence's row; an open one is taken over in place, one that has ended is left alone (rule 7)."""
        row = self.executions.get(execution_id(job.job_id, occurrence.scheduled_us, 1))
        if row is None:
            row = self._new_row(job, occurrence, epoch)
            self._journal.put(self.executions, row.execution_id, row)
        elif row.kind != "schedule" or row.cancel_requested_us is not None:
            return row
        elif row.state in lifecycle.OPEN:
            self._journal.set(row, job_version=job.version, holder_epoch=epoch, job_name=job.name)
            if row.state == lifecycle.SCHEDULED:
                self._journal.set(row, due_us=occurrence.due_us, first_due_us=occurrence.due_us)
        if row.state == lifecycle.SCHEDULED and occurrence.state != lifecycle.SCHEDULED:
            lifecycle.move(row.state, occurrence.state)
            self._journal.set(row, state=occurrence.state, reason="misfire", finished_us=now,
                              missed_count=occurrence.missed_count, first_missed_us=occurrence.first_missed_us)
            tallies = Tallies()
            tallies.miss(row.tenant, now, occurrence.missed_count)
            add_rollups(self.rollups, self._journal, tallies)
        return row

    def _job_of(self, row: MemoryExecution) -> MemoryJob | None:
        """Return the job whose attempt a row is; what an ETA task asks for itself is looked at like a job's version."""
        if row.task is None:
            return self.jobs.get(row.job_id)
        return MemoryJob(name=row.job_name, version=row.job_version, plan_version=row.job_version, retry=ASKED_FOR)

    def _scheduled(self, row: MemoryExecution, content: Content) -> ScheduledExecution:
        if row.task is not None:
            return scheduled_without_job(row)
        return ScheduledExecution(
            row.execution_id, row.job_id, row.partition, row.scheduled_us, row.due_us, row.first_due_us, row.attempt,
            row.retries, row.kind, row.job_version, content,
        )

    def _finish(self, job: MemoryJob, now: int) -> None:
        """Let a job go whose schedule is over and whose last execution has ended: its name is free."""
        idle = job.next_run_us is None and not job.paused and not job.quarantined_reason and job.finished_us is None
        if idle and not any(row.state in lifecycle.OPEN for row in self.rows(job.job_id)):
            self._journal.set(job, finished_us=now)

    def quarantine(self, job_id: str, version: int, reason: str) -> bool:
        """See JobStore."""
        with self._transaction():
            job = self.jobs.get(job_id)
            if job is None or job.version != version:
                return False
            self._journal.set(job, next_run_us=None, replan=False, quarantined_reason=reason)
            return True

    def load_scheduled(
        self, epochs: Mapping[int, int], until_us: int, limit: int, without: Sequence[str] = (),
    ) -> list[ScheduledExecution]:
        """See JobStore."""
        with self._transaction() as now:
            found = []
            for row in self.executions.values():
                epoch, job = epochs.get(row.partition, 0), self._job_of(row)
                if (row.state not in _WAITING or row.due_us > until_us or not self._holds(row.partition, epoch)
                        or row.cancel_requested_us is not None or job is None or self._held_back(row, now)):
                    continue
                taken_over = job.plan_version <= row.job_version < job.version                        # rule 7
                if taken_over or (row.state == lifecycle.SCHEDULED and row.holder_epoch < epoch and row.tenant not in without
                                  and job.version == row.job_version):
                    found.append((row, job))
            found.sort(key=lambda pair: (pair[0].due_us, pair[0].execution_id))
            self._step()
            for row, job in found[:limit]:
                self._journal.set(row, holder_epoch=epochs[row.partition], job_version=job.version, job_name=job.name)
            return [self._scheduled(row, self._content(job, row))._replace(queued=row.state == lifecycle.QUEUED)
                    for row, job in found[:limit]]

    def forget_holds(self, epochs: Mapping[int, int]) -> None:
        """See JobStore."""
        with self._transaction():
            for row in self.executions.values():
                if row.state == lifecycle.SCHEDULED and row.holder_epoch == epochs.get(row.partition, -1):
                    self._journal.set(row, holder_epoch=0)

    def mark_queued(self, published: Sequence[tuple[str, int]]) -> int:
        """See JobStore. A row that is further on already only learns when it was published."""
        with self._transaction():
            moved = 0
            for key, at_us in published:
                row = self.executions.get(key)
                if row is None:
                    continue
                if row.published_us is None:
                    self._journal.set(row, published_us=at_us)
                if row.state == lifecycle.SCHEDULED:
                    self._journal.set(row, state=lifecycle.QUEUED)
                    moved += 1
            return moved

    # -- record -----------------------------------------------------------------------------------------------------

    def open_executions(self, execution_ids: Sequence[str]) -> dict[str, OpenExecution]:
        """See JobStore."""
        with self._transaction():
            found = {}
            for key in execution_ids:
                row = self.executions.get(key)
                if row is not None and row.state in lifecycle.OPEN:
                    job = self._job_of(row)
                    found[key] = OpenExecution(
                        key, row.job_id, row.tenant, row.partition, row.scheduled_us, row.first_due_us, row.attempt,
                        row.retries, row.state, row.job_version, job.retry if job else NO_RETRY,
                        row.due_us,
                    )
            return found

    def record(
        self, starts: Sequence[Start], endings: Sequence[Ending], attempts: Sequence[NewAttempt],
    ) -> RecordResult:
        """See JobStore."""
        with self._transaction() as now:
            tallies = Tallies()
            for start in starts:
                self._start(start, tallies)
            self._step()
            ended = [ending.execution_id for ending in endings if self._end(ending, tallies)]
            ignored = [ending.execution_id for ending in endings if ending.execution_id not in ended]
            self._step()
            for attempt in attempts:
                if attempt.after in ended:
                    self._add_attempt(attempt)
            self._step()
            for job_id in {self.executions[key].job_id for key in ended}:
                if job_id in self.jobs:
                    self._finish(self.jobs[job_id], now)
            add_rollups(self.rollups, self._journal, tallies)
            return RecordResult(ended, ignored, tallies.started())

    def _start(self, start: Start, tallies: Tallies) -> None:
        row = self.executions.get(start.execution_id)
        if row is None:
            return
        if row.started_us is None:
            tallies.start(row.tenant, row.due_us, start.started_us)
        if row.state in lifecycle.sources(lifecycle.RUNNING):
            self._journal.set(row, state=lifecycle.RUNNING)
        if row.state == lifecycle.RUNNING and start.deliveries >= row.deliveries:
            self._journal.set(row, started_us=start.started_us, worker=start.worker, deliveries=start.deliveries)
        elif row.started_us is None:
            self._journal.set(row, started_us=start.started_us)

    def _end(self, ending: Ending, tallies: Tallies) -> bool:
        row = self.executions.get(ending.execution_id)
        if row is None or row.state not in lifecycle.sources(ending.state):
            return False
        if ending.if_version is not None and row.job_version != ending.if_version:
            return False
        if ending.if_generation is not None and self._lane_record(ending.lane).generation != ending.if_generation:
            return False
        self._journal.set(
            row, state=ending.state, reason=ending.reason, finished_us=ending.finished_us, error=ending.error,
            result=ending.result or row.result, worker=ending.worker or row.worker,
            deliveries=max(row.deliveries, ending.deliveries),
        )
        if ending.state == lifecycle.MISSED:
            self._journal.set(row, missed_count=1, first_missed_us=row.scheduled_us)
        tallies.end(row.tenant, row.state, ending.finished_us, due_us=row.due_us, published_us=row.published_us,
                    started_us=row.started_us, deliveries=row.deliveries)
        return True

    def _add_attempt(self, attempt: NewAttempt) -> None:
        before = self.executions[attempt.after]
        key = execution_id(before.job_id, before.scheduled_us, attempt.attempt)
        if key in self.executions:
            return
        self._journal.put(self.executions, key, MemoryExecution(
            execution_id=key, job_id=before.job_id, tenant=before.tenant, job_name=before.job_name,
            partition=before.partition, scheduled_us=before.scheduled_us, due_us=attempt.due_us,
            first_due_us=before.first_due_us, attempt=attempt.attempt, retries=attempt.retries,
            kind=lifecycle.kind_after(before.kind), state=lifecycle.SCHEDULED, job_version=before.job_version,
            args=before.args if attempt.args is None else attempt.args,
            kwargs=before.kwargs if attempt.kwargs is None else attempt.kwargs,
            task=before.task, options=before.options, celery_id=before.celery_id,
        ))

    # -- keeping ----------------------------------------------------------------------------------------------------

    def superseded(
        self, partitions: Sequence[int], limit: int, *, running: bool = False,
    ) -> list[tuple[str, str, str, int]]:
        """See JobStore."""
        with self._transaction() as now:
            found = []
            for row in self.rows():
                if (row.state not in (lifecycle.OPEN if running else _WAITING) or row.partition not in partitions
                        or row.due_us > now):
                    continue
                job = self._job_of(row)
                if job is None:
                    found.append((row.execution_id, row.job_id, row.tenant, GONE_VERSION))
                elif row.job_version < job.plan_version and (
                        row.kind != "schedule" or job.paused or job.next_run_us is None
                        or job.next_run_us > row.scheduled_us):
                    found.append((row.execution_id, row.job_id, row.tenant, job.version))
            return found[:limit]

    def pending_voids(self, limit: int) -> list[Void]:
        """See JobStore."""
        with self._transaction():
            return list(self.voids.values())[:limit]

    def void_done(self, voids: Sequence[Void]) -> None:
        """See JobStore. Here the rows themselves tell the sweep where to look."""
        with self._transaction():
            for void in voids:
                if self.voids.get(void.job_id) == void:
                    self._journal.put(self.voids, void.job_id, None)

    def cancel_requests(self, partitions: Sequence[int], limit: int) -> list[CancelRequest]:
        """See JobStore."""
        with self._transaction():
            asked = [row for row in self.rows() if row.cancel_requested_us is not None and row.state in lifecycle.OPEN
                     and row.partition in partitions]
            asked.sort(key=lambda row: row.cancel_requested_us or 0)
            return [CancelRequest(r.execution_id, r.job_id, r.tenant, r.state, r.due_us) for r in asked[:limit]]

    def tenant_limits(self, changed_since_us: int) -> list[TenantLimits]:
        """See JobStore. A change is told again for five seconds."""
        with self._transaction():
            return [
                TenantLimits(t.slug, t.weight, t.max_running, t.paused, t.changed_us)
                for t in sorted(self.tenants.values(), key=lambda t: t.slug)
                if (t.changed_us > changed_since_us - TENANT_OVERLAP_US if changed_since_us
                    else (t.weight, t.max_running, t.paused) != (1, 20, False))
            ]

    def tenant_limits_after(self, slug: str, limit: int) -> list[TenantLimits]:
        """See JobStore."""
        return [limits for limits in self.tenant_limits(0) if limits.tenant > slug][:limit]

    def keep(self, now_us: int, retention_us: int, limit: int) -> int:
        """See JobStore."""
        with self._transaction():
            before = now_us - retention_us
            own = {t.slug: now_us - t.retention_days * DAY_US for t in self.tenants.values() if t.retention_days}
            rows = [key for key, row in self.executions.items()
                    if row.state in lifecycle.TERMINAL and (row.finished_us or 0) < own.get(row.tenant, before)][:limit]
            for key in rows:
                self._journal.put(self.executions, key, None)
            over = [key for key, job in self.jobs.items() if job.finished_us is not None and job.finished_us < before]
            for key in over[:limit]:
                self._journal.put(self.jobs, key, None)
            return len(rows)
