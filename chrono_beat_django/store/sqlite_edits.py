"""What edits leave behind, on SQLite: voids that Redis may not know of, rows of old plans, requests to cancel."""
from __future__ import annotations

from collections.abc import Sequence

from chrono_beat.core.records import GONE_VERSION, CancelRequest, Void
from chrono_beat_django.store.sqlite_records import SqliteRecords
from chrono_beat_django.store.sqlite_sql import bare, dashed, listed, now_us, query, text, us

# Rule 8. CROSS JOIN fixes the order: from the few jobs that were edited to their rows.
SUPERSEDED = f"""SELECT e.id, e.job_id, e.tenant, COALESCE(j.version, {GONE_VERSION})
FROM chrono_pending_void v CROSS JOIN chrono_execution e LEFT JOIN chrono_job j ON j.id = v.job_id
WHERE v."partition" IN (SELECT value FROM json_each(%s)) AND e."partition" = v."partition" AND e.job_id = v.job_id
    AND e.state IN ('scheduled', 'queued', 'running') AND (%s OR e.state <> 'running') AND e.due_at <= %s
    AND (j.id IS NULL OR e.job_version < j.plan_version AND (e.kind <> 'schedule'
        OR j.paused OR j.next_run_at IS NULL OR j.next_run_at > e.scheduled_at))
LIMIT %s"""

PENDING = "SELECT job_id, tenant, version FROM chrono_pending_void WHERE NOT told ORDER BY created_at LIMIT %s"
TOLD = "UPDATE chrono_pending_void SET told = 1 WHERE job_id = %s AND version = %s"
DONE_WITH = """DELETE FROM chrono_pending_void WHERE told AND NOT EXISTS (
    SELECT 1 FROM chrono_execution e WHERE e."partition" = chrono_pending_void."partition"
        AND e.job_id = chrono_pending_void.job_id AND e.job_version < chrono_pending_void.version
        AND e.state IN ('scheduled', 'queued', 'running'))"""

CANCELS = """SELECT id, job_id, tenant, state, CAST(due_at AS TEXT) FROM chrono_execution
    WHERE state IN ('scheduled', 'queued', 'running') AND cancel_requested_at IS NOT NULL
        AND "partition" IN (SELECT value FROM json_each(%s)) ORDER BY cancel_requested_at LIMIT %s"""


class SqliteEdits(SqliteRecords):
    """The part of JobStore for what has been edited."""

    def superseded(
        self, partitions: Sequence[int], limit: int, *, running: bool = False,
    ) -> list[tuple[str, str, str, int]]:
        """See JobStore."""
        found = self.rows(SUPERSEDED, listed(partitions), int(running), text(now_us()), limit)
        return [(key, dashed(job_id), tenant, version) for key, job_id, tenant, version in found]

    def pending_voids(self, limit: int) -> list[Void]:
        """See JobStore."""
        return [Void(dashed(job_id), tenant, version) for job_id, tenant, version in self.rows(PENDING, limit)]

    def void_done(self, voids: Sequence[Void]) -> None:
        """See JobStore. The write lock is taken only if there is something to note."""
        def work(cursor):
            cursor.executemany(TOLD, [(bare(void.job_id), void.version) for void in voids])
            cursor.execute(DONE_WITH)

        if voids or self.statement(lambda cursor: query(cursor, "SELECT 1 FROM chrono_pending_void WHERE told LIMIT 1")):
            self.write(work)

    def cancel_requests(self, partitions: Sequence[int], limit: int) -> list[CancelRequest]:
        """See JobStore."""
        return [CancelRequest(key, dashed(job_id), tenant, state, us(due) or 0)
                for key, job_id, tenant, state, due in self.rows(CANCELS, listed(partitions), limit)]
