"""What edits leave behind, on PostgreSQL: voids that Redis may not know of, rows of old plans, requests to cancel."""
from __future__ import annotations

from collections.abc import Sequence

from chrono_beat.core.records import GONE_VERSION, CancelRequest, Void
from chrono_beat_django.store.postgres_days import PostgresDays
from chrono_beat_django.store.postgres_sql import array, unnest, us

# Rule 8, from the few jobs that were edited to their rows. Where nobody edits, no execution is looked at. The limit
# inside keeps the planner from joining the other way round, from all rows that are due.
SUPERSEDED = f"""SELECT e.id, v.job_id::text, e.tenant, COALESCE(j.version, {GONE_VERSION})
FROM chrono_pending_void v LEFT JOIN chrono_job j ON j.id = v.job_id CROSS JOIN LATERAL (
    SELECT e.id, e.tenant FROM chrono_execution e
    WHERE e.partition = v.partition AND e.job_id = v.job_id AND e.state IN ('scheduled', 'queued', 'running')
        AND (%s OR e.state <> 'running') AND e.due_at <= statement_timestamp()
        AND (j.id IS NULL OR e.job_version < j.plan_version AND (e.kind <> 'schedule'
            OR j.paused OR j.next_run_at IS NULL OR j.next_run_at > e.scheduled_at))
    LIMIT %s
) e WHERE v.partition = ANY (%s::int[]) LIMIT %s"""

PENDING = """SELECT job_id::text, tenant, version FROM chrono_pending_void WHERE NOT told
    ORDER BY created_at LIMIT %s"""
TOLD = f"""UPDATE chrono_pending_void v SET told = true FROM {unnest("k", job_id="uuid", version="int")}
    WHERE v.job_id = k.job_id AND v.version = k.version"""
DONE_WITH = """DELETE FROM chrono_pending_void v WHERE v.told AND NOT EXISTS (
    SELECT 1 FROM chrono_execution e WHERE e.partition = v.partition AND e.job_id = v.job_id
        AND e.job_version < v.version AND e.state IN ('scheduled', 'queued', 'running') OFFSET 0)"""

CANCELS = f"""SELECT id, job_id::text, tenant, state, {us("due_at")} FROM chrono_execution
    WHERE state IN ('scheduled', 'queued', 'running') AND cancel_requested_at IS NOT NULL AND partition = ANY (%s::int[])
    ORDER BY cancel_requested_at LIMIT %s"""


class PostgresEdits(PostgresDays):
    """The part of JobStore for what has been edited."""

    def superseded(
        self, partitions: Sequence[int], limit: int, *, running: bool = False,
    ) -> list[tuple[str, str, str, int]]:
        """See JobStore."""
        return self._rows(SUPERSEDED, running, limit, array(partitions), limit)

    def pending_voids(self, limit: int) -> list[Void]:
        """See JobStore."""
        return [Void(*row) for row in self._rows(PENDING, limit)]

    def void_done(self, voids: Sequence[Void]) -> None:
        """See JobStore."""
        def work(cursor):
            if voids:
                cursor.execute(TOLD, [array(void.job_id for void in voids), array(void.version for void in voids)])
            cursor.execute(DONE_WITH)

        self.statement(work)

    def cancel_requests(self, partitions: Sequence[int], limit: int) -> list[CancelRequest]:
        """See JobStore."""
        return [CancelRequest(*row) for row in self._rows(CANCELS, array(partitions), limit)]
