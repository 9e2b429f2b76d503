"""What is likely to go wrong at a job's next run, on SQLite."""
from __future__ import annotations

from collections.abc import Sequence

from chrono_beat.core.findings import JobName
from chrono_beat_django.store.sqlite_edits import SqliteEdits
from chrono_beat_django.store.sqlite_sql import dashed, listed, query, text

POOL = "COALESCE(NULLIF(j.pool, ''), t.pool, '')"
UPCOMING = f"""SELECT DISTINCT {POOL}, j.task FROM chrono_job j LEFT JOIN chrono_tenant t ON t.slug = j.tenant
    WHERE j."partition" IN (SELECT value FROM json_each(%s)) AND j.next_run_at <= %s AND j.flagged_reason = ''"""
FLAGGED = f"""SELECT DISTINCT {POOL}, j.task FROM chrono_job j LEFT JOIN chrono_tenant t ON t.slug = j.tenant
    WHERE j.flagged_reason <> ''"""
FOUND = f"""SELECT j.id, j.tenant, j.name FROM chrono_job j LEFT JOIN chrono_tenant t ON t.slug = j.tenant
    WHERE j.task = %s AND {POOL} = %s
        AND CASE WHEN %s THEN j.next_run_at <= %s AND j.flagged_reason = '' ELSE j.flagged_reason <> '' END
    LIMIT %s"""
FLAG = "UPDATE chrono_job SET flagged_reason = %s WHERE id IN (SELECT value FROM json_each(%s))"


class SqliteFlags(SqliteEdits):
    """The part of JobStore for flags."""

    def upcoming_tasks(self, partitions: Sequence[int], until_us: int) -> list[tuple[str, str]]:
        """See JobStore."""
        return self.rows(UPCOMING, listed(partitions), text(until_us))

    def flagged_tasks(self) -> list[tuple[str, str]]:
        """See JobStore."""
        return self.rows(FLAGGED)

    def flag_jobs(self, pool: str, task: str, reason: str, until_us: int, limit: int) -> list[JobName]:
        """See JobStore."""
        def work(cursor):
            found = query(cursor, FOUND, task, pool, bool(reason), text(until_us), limit)
            cursor.execute(FLAG, [reason, listed(row[0] for row in found)])
            return found

        return [JobName(dashed(job_id), tenant, name) for job_id, tenant, name in self.write(work)]
