"""What the audit and the misfire policy read on PostgreSQL: open rows by pages, and what a row needs to be published."""
from __future__ import annotations

from collections.abc import Sequence

from chrono_beat.core.records import DueJob, ScheduledExecution
from chrono_beat.core.recovery import OpenRow
from chrono_beat_django.store.eta_tasks import NO_JOB, OWN
from chrono_beat_django.store.keys import split
from chrono_beat_django.store.postgres_claims import JOB, TAKEN_OVER, due_job, scheduled
from chrono_beat_django.store.postgres_edits import PostgresEdits
from chrono_beat_django.store.postgres_sql import (
    BY_KEY,
    CONTENT,
    KEY_COLUMNS,
    array,
    at,
    bounds,
    key_parameters,
    texts,
    unnest,
    us,
)

# One range of chrono_execution_open a partition, in the order of the array, until there are enough rows. As in the scan
# of the due index, bound and limit hide from the planner.
PAGE = f"""SELECT e.id, e.tenant, e.partition, {us("e.due_at")}, e.state FROM (
    SELECT x.* FROM {unnest("w", number="int", after_us="bigint", after_id="text")} CROSS JOIN LATERAL (
        SELECT id, tenant, partition, due_at, state FROM chrono_execution
        WHERE partition = w.number AND state IN ('scheduled', 'queued', 'running') AND due_at >= {at("w.after_us")}
            AND due_at <= (SELECT statement_timestamp() - %s::bigint * interval '1 microsecond')
            AND (due_at > {at("w.after_us")} OR id > w.after_id)
        ORDER BY due_at, id LIMIT (SELECT %s::bigint)
    ) x LIMIT %s
) e ORDER BY e.partition, e.due_at, e.id"""

# Rule 8: nobody publishes a row older than its job's version.
LOAD_OPEN = f"""SELECT e.id, e.job_id::text, e.partition, {us("e.scheduled_at")}, {us("e.due_at")}, {us("e.first_due_at")},
    e.attempt, e.retries, e.kind, e.job_version,
    {CONTENT.format(args="COALESCE(e.args, j.args)", kwargs="COALESCE(e.kwargs, j.kwargs)")}, false, {OWN}
FROM {unnest("k", **KEY_COLUMNS)} JOIN chrono_execution e ON {BY_KEY}
    LEFT JOIN chrono_job j ON j.id = e.job_id AND e.task IS NULL AND j.version = e.job_version
    LEFT JOIN chrono_tenant t ON t.slug = j.tenant
WHERE ({NO_JOB} OR j.id IS NOT NULL) AND e.state IN ('scheduled', 'queued', 'running') AND e.cancel_requested_at IS NULL
ORDER BY e.due_at, e.id"""

TAKE_OVER = f"""UPDATE chrono_execution e SET job_version = j.version, job_name = j.name
    FROM {unnest("k", **KEY_COLUMNS)}, chrono_job j
    WHERE {BY_KEY} AND j.id = e.job_id AND e.state IN ('scheduled', 'queued', 'running') AND {TAKEN_OVER}"""

LET_GO = f"""UPDATE chrono_execution e SET holder_epoch = 0 FROM {unnest("k", **KEY_COLUMNS)}
    WHERE {BY_KEY} AND e.state = 'scheduled' AND e.holder_epoch <> 0"""

PLANS = f"""SELECT {JOB.replace(us("j.next_run_at"), f"COALESCE({us('j.next_run_at')}, 0)")}
FROM {unnest("w", id="uuid")} JOIN chrono_job j ON j.id = w.id LEFT JOIN chrono_tenant t ON t.slug = j.tenant"""


class PostgresAudit(PostgresEdits):
    """The part of JobStore that looks for what was lost."""

    def open_page(
        self, partitions: Sequence[int], after: OpenRow | None, age_us: int, limit: int,
    ) -> list[OpenRow]:
        """See JobStore."""
        starts = [(after.due_us, after.execution_id) if after and number == after.partition else (0, "")
                  for number in partitions]
        return [OpenRow(*row) for row in self._rows(
            PAGE, array(partitions), array(us_ for us_, _ in starts), texts(id_ for _, id_ in starts), age_us, limit,
            limit)]

    def load_open(self, execution_ids: Sequence[str]) -> list[ScheduledExecution]:
        """See JobStore."""
        keys = split(execution_ids)
        if not keys:
            return []
        parameters = [*key_parameters(keys.values()), *bounds(keys.values())]
        self.statement(lambda cursor: cursor.execute(TAKE_OVER, parameters))
        return [scheduled(row) for row in self._rows(LOAD_OPEN, *parameters)]

    def let_go(self, execution_ids: Sequence[str]) -> int:
        """See JobStore."""
        keys = split(execution_ids)

        def work(cursor):
            cursor.execute(LET_GO, [*key_parameters(keys.values()), *bounds(keys.values())])
            return cursor.rowcount

        return self.statement(work) if keys else 0

    def plans(self, job_ids: Sequence[str]) -> dict[str, DueJob]:
        """See JobStore."""
        return {row[0]: due_job(row) for row in self._rows(PLANS, array(job_ids))}
