"""What the audit and the misfire policy read on SQLite: open rows by pages, and what a row needs to be published."""
from __future__ import annotations

from collections.abc import Sequence

from chrono_beat.core.records import DueJob, ScheduledExecution
from chrono_beat.core.recovery import OpenRow
from chrono_beat_django.store.eta_tasks import NO_JOB
from chrono_beat_django.store.sqlite_claims import JOB, SCHEDULED, due_job, scheduled
from chrono_beat_django.store.sqlite_edits import SqliteEdits
from chrono_beat_django.store.sqlite_sql import Unreadable, bare, dashed, listed, now_us, query, text, us

PAGE = """SELECT id, tenant, "partition", CAST(due_at AS TEXT), state FROM chrono_execution
    WHERE "partition" = %s AND state IN ('scheduled', 'queued', 'running') AND due_at >= %s AND due_at <= %s
        AND (due_at > %s OR id > %s)
    ORDER BY due_at, id LIMIT %s"""
# Rule 8: nobody publishes a row older than its job's version.
LOAD_OPEN = SCHEDULED.format(
    same=f"({NO_JOB} OR j.version = e.job_version)",
    which="e.id IN (SELECT value FROM json_each(%s)) AND e.state IN ('scheduled', 'queued', 'running')")
TAKE_OVER = """UPDATE chrono_execution
    SET (job_version, job_name) = (SELECT j.version, j.name FROM chrono_job j WHERE j.id = job_id)
    WHERE id IN (SELECT value FROM json_each(%s)) AND state IN ('scheduled', 'queued', 'running')
        AND EXISTS (SELECT 1 FROM chrono_job j WHERE j.id = chrono_execution.job_id
            AND chrono_execution.job_version < j.version AND chrono_execution.job_version >= j.plan_version)"""
LET_GO = """UPDATE chrono_execution SET holder_epoch = 0
    WHERE id IN (SELECT value FROM json_each(%s)) AND state = 'scheduled' AND holder_epoch <> 0"""
PLANS = f"SELECT {JOB} WHERE j.id IN (SELECT value FROM json_each(%s))"
FIRST, LAST = "0001-01-01", "9999-12-31"


class SqliteAudit(SqliteEdits):
    """The part of JobStore that looks for what was lost."""

    def open_page(
        self, partitions: Sequence[int], after: OpenRow | None, age_us: int, limit: int,
    ) -> list[OpenRow]:
        """See JobStore."""
        found: list[OpenRow] = []
        until = text(now_us() - age_us)
        for number in partitions:
            since, last_id = (text(after.due_us), after.execution_id) if after and number == after.partition else (FIRST, "")
            rows = self.rows(PAGE, number, since, until, since, last_id, limit - len(found))
            found += [OpenRow(*row[:3], us(row[3]) or 0, row[4]) for row in rows]
            if len(found) >= limit:
                break
        return found

    def load_open(self, execution_ids: Sequence[str]) -> list[ScheduledExecution]:
        """See JobStore."""
        def work(cursor):
            cursor.execute(TAKE_OVER, [listed(execution_ids)])
            return query(cursor, LOAD_OPEN, listed(execution_ids), LAST, len(execution_ids))

        return [scheduled(row) for row in self.write(work)] if execution_ids else []

    def let_go(self, execution_ids: Sequence[str]) -> int:
        """See JobStore."""
        def work(cursor):
            cursor.execute(LET_GO, [listed(execution_ids)])
            return cursor.rowcount

        return self.write(work) if execution_ids else 0

    def plans(self, job_ids: Sequence[str]) -> dict[str, DueJob]:
        """See JobStore. A row that can't be read is left out: the due index quarantines it."""
        found = {}
        for row in self.rows(PLANS, listed(bare(job_id) for job_id in job_ids)):
            try:
                found[dashed(row[0])] = due_job(row)
            except Unreadable:
                continue
        return found
