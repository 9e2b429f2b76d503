"""What is likely to go wrong at a job's next run, on PostgreSQL."""
from __future__ import annotations

from collections.abc import Sequence

from chrono_beat.core.findings import JobName
from chrono_beat_django.store.postgres_edits import PostgresEdits
from chrono_beat_django.store.postgres_sql import array, at

POOL = "COALESCE(NULLIF(j.pool, ''), t.pool, '')"
UPCOMING = f"""SELECT DISTINCT {POOL}, j.task FROM chrono_job j LEFT JOIN chrono_tenant t ON t.slug = j.tenant
    WHERE j.partition = ANY (%s::int[]) AND j.next_run_at <= {at("%s")} AND j.flagged_reason = ''"""
FLAGGED = f"""SELECT DISTINCT {POOL}, j.task FROM chrono_job j LEFT JOIN chrono_tenant t ON t.slug = j.tenant
    WHERE j.flagged_reason <> ''"""
# Rows that a claim has locked are left for the next time: neither waits for the other. MATERIALIZED: as the inner side of
# a loop the look would be made once a row, and each time find as many as the limit allows.
FLAG = f"""WITH found AS MATERIALIZED (
    SELECT j.id FROM chrono_job j LEFT JOIN chrono_tenant t ON t.slug = j.tenant
    WHERE j.task = %s AND {POOL} = %s
        AND CASE WHEN %s THEN j.next_run_at <= {at("%s")} AND j.flagged_reason = '' ELSE j.flagged_reason <> '' END
    LIMIT %s FOR UPDATE OF j SKIP LOCKED
) UPDATE chrono_job f SET flagged_reason = %s FROM found WHERE f.id = found.id RETURNING f.id::text, f.tenant, f.name"""


class PostgresFlags(PostgresEdits):
    """The part of JobStore for flags."""

    def upcoming_tasks(self, partitions: Sequence[int], until_us: int) -> list[tuple[str, str]]:
        """See JobStore."""
        return self._rows(UPCOMING, array(partitions), until_us)

    def flagged_tasks(self) -> list[tuple[str, str]]:
        """See JobStore."""
        return self._rows(FLAGGED)

    def flag_jobs(self, pool: str, task: str, reason: str, until_us: int, limit: int) -> list[JobName]:
        """See JobStore."""
        return [JobName(*row) for row in self._rows(FLAG, task, pool, bool(reason), until_us, limit, reason)]
