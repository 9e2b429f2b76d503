"""Record, audit and keeping on SQLite: read under the write lock, decide by the table of transitions, write."""
from __future__ import annotations

from collections.abc import Iterable, Sequence

from chrono_beat.core import lifecycle
from chrono_beat.core.crowding import TenantLoad
from chrono_beat.core.ids import execution_id
from chrono_beat.core.records import Ending, NewAttempt, OpenExecution, RecordResult, Start, TenantLimits
from chrono_beat.core.rollup import Tallies
from chrono_beat_django.store import old_rows, retries, rollups
from chrono_beat_django.store.sqlite_claims import FINISH, SqliteClaims
from chrono_beat_django.store.sqlite_sql import dashed, listed, now_us, query, text, us
from chrono_beat_django.store.tenants import OVERLAP_US

OPEN = f"""SELECT e.id, e.job_id, e.tenant, e."partition", CAST(e.scheduled_at AS TEXT), CAST(e.first_due_at AS TEXT),
    e.attempt, e.retries, e.state, e.job_version, j.max_attempts,
    {retries.IDEMPOTENT}, j.retry_base_seconds, j.retry_factor,
    j.retry_maximum_seconds, j.retry_jitter, CAST(e.due_at AS TEXT)
FROM chrono_execution e LEFT JOIN chrono_job j ON j.id = e.job_id
WHERE e.id IN (SELECT value FROM json_each(%s)) AND e.state IN ('scheduled', 'queued', 'running')"""

READ = """SELECT id, state, job_version, deliveries, job_id, CAST(scheduled_at AS TEXT), tenant, CAST(due_at AS TEXT),
    CAST(published_at AS TEXT), CAST(started_at AS TEXT) FROM chrono_execution
    WHERE id IN (SELECT value FROM json_each(%s))"""
RUN = "UPDATE chrono_execution SET state = 'running' WHERE id = %s"
START = "UPDATE chrono_execution SET started_at = %s, worker = %s, deliveries = %s WHERE id = %s"
FILL_START = "UPDATE chrono_execution SET started_at = %s WHERE id = %s AND started_at IS NULL"
END = """UPDATE chrono_execution SET missed_count = CASE %s WHEN 'missed' THEN 1 ELSE missed_count END,
    first_missed_at = CASE %s WHEN 'missed' THEN scheduled_at ELSE first_missed_at END, state = %s, reason = %s, finished_at = %s,
    worker = COALESCE(NULLIF(%s, ''), worker), deliveries = MAX(deliveries, %s), error = %s,
    result = COALESCE(NULLIF(%s, ''), result) WHERE id = %s"""
NEXT_ATTEMPT = f"""INSERT INTO chrono_execution (id, job_id, tenant, job_name, "partition", scheduled_at, due_at,
    first_due_at, attempt, retries, kind, state, job_version, args, kwargs, task, options, celery_id)
SELECT %s, job_id, tenant, job_name, "partition", scheduled_at, %s, first_due_at, %s, %s,
    {retries.KIND_AFTER.format(kind="kind")}, 'scheduled', job_version, COALESCE(%s, args), COALESCE(%s, kwargs),
    task, options, celery_id
FROM chrono_execution WHERE id = %s AND TRUE ON CONFLICT DO NOTHING"""
GENERATIONS = "SELECT number, generation FROM chrono_lane"

NOT_DEFAULT = "weight <> 1 OR max_running <> 20 OR paused"
TENANTS = "SELECT slug, weight, max_running, paused, CAST(updated_at AS TEXT) FROM chrono_tenant"
DELETE_JOBS = "DELETE FROM chrono_job WHERE id IN (SELECT id FROM chrono_job WHERE finished_at < %s LIMIT %s)"
DELETE_ROWS = """DELETE FROM chrono_execution WHERE id IN (SELECT id FROM chrono_execution
    WHERE state NOT IN ('scheduled', 'queued', 'running') AND finished_at < COALESCE(
        (SELECT STRFTIME('%%Y-%%m-%%d %%H:%%M:%%S', %s, '-' || t.retention_days || ' days') FROM chrono_tenant t
         WHERE t.slug = chrono_execution.tenant AND t.retention_days IS NOT NULL), %s) LIMIT %s)"""


class SqliteRecords(SqliteClaims):
    """The part of JobStore for the recorder, the audit and the keeper."""

    def open_executions(self, execution_ids: Sequence[str]) -> dict[str, OpenExecution]:
        """See JobStore."""
        return {
            row[0]: OpenExecution(row[0], dashed(row[1]), row[2], row[3], us(row[4]) or 0, us(row[5]) or 0, *row[6:10],
                                  retries.policy(*row[10:-1]), us(row[-1]) or 0)
            for row in self.rows(OPEN, listed(execution_ids))
        }

    def record(
        self, starts: Sequence[Start], endings: Sequence[Ending], attempts: Sequence[NewAttempt],
    ) -> RecordResult:
        """See JobStore. The jobs whose last execution ended by this are finished in the same transaction."""
        def work(cursor):
            generations = dict(query(cursor, GENERATIONS))
            rows = _read(cursor, [*(s.execution_id for s in starts), *(e.execution_id for e in endings)])
            tallies = Tallies()
            _write_starts(cursor, starts, rows, tallies)
            ended = {}
            for ending in endings:
                row = rows.get(ending.execution_id)
                if row and _may_end(row, ending, generations):
                    ended[ending.execution_id] = ending
                    row["state"] = ending.state
                    tallies.end(
                        row["tenant"], ending.state, ending.finished_us, due_us=row["due_us"],
                        published_us=row["published_us"], started_us=row["started_us"],
                        deliveries=max(row["deliveries"], ending.deliveries))
            cursor.executemany(END, [
                (e.state, e.state, e.state, e.reason, text(e.finished_us), e.worker, e.deliveries, e.error, e.result, key)
                for key, e in ended.items()])
            cursor.executemany(NEXT_ATTEMPT, [_next_attempt(a, rows[a.after]) for a in attempts if a.after in ended])
            cursor.execute(FINISH, [text(now_us()), listed({rows[key]["job_id"] for key in ended})])
            rollups.add(cursor, tallies)
            ignored = [e.execution_id for e in endings if e.execution_id not in ended]
            return RecordResult(list(ended), ignored, tallies.started())

        return self.write(work) if starts or endings else RecordResult([], [])

    def add_capped(self, spells: Sequence[tuple[str, int, int]]) -> None:
        """See JobStore."""
        self.write(lambda cursor: rollups.add_to(cursor, "capped_us", spells, naive=True))

    def add_reaps(self, reaps: Sequence[tuple[str, int, int]]) -> None:
        """See JobStore."""
        self.write(lambda cursor: rollups.add_to(cursor, "reaps", reaps, naive=True))

    def loads(self, now_us: int) -> list[TenantLoad]:
        """See JobStore."""
        return self.statement(lambda cursor: rollups.loads(cursor, now_us, naive=True))

    def merge_rollups(self, now_us: int, retention_us: int, limit: int) -> int:
        """See JobStore."""
        return self.write(lambda cursor: rollups.merge(cursor, now_us, retention_us, limit, naive=True))

    def tenant_limits(self, changed_since_us: int) -> list[TenantLimits]:
        """See JobStore. A change is told again for some seconds: it may be committed later than it is dated."""
        if changed_since_us:
            rows = self.rows(f"{TENANTS} WHERE updated_at > %s ORDER BY slug", text(changed_since_us - OVERLAP_US))
        else:
            rows = self.rows(f"{TENANTS} WHERE {NOT_DEFAULT} ORDER BY slug")
        return [_limits(*row) for row in rows]

    def tenant_limits_after(self, slug: str, limit: int) -> list[TenantLimits]:
        """See JobStore."""
        rows = self.rows(f"{TENANTS} WHERE slug > %s AND ({NOT_DEFAULT}) ORDER BY slug LIMIT %s", slug, limit)
        return [_limits(*row) for row in rows]

    def keep(self, now_us: int, retention_us: int, limit: int) -> int:
        """See JobStore."""
        before = text(now_us - retention_us)

        def work(cursor):
            cursor.execute(DELETE_JOBS, [before, limit])
            cursor.execute(DELETE_ROWS, [text(now_us), before, limit])
            return cursor.rowcount

        return self.write(work)

    def prune(self, now_us: int, retention_us: int, limit: int) -> int:
        """See JobStore."""
        return self.write(lambda cursor: old_rows.prune(cursor, now_us, retention_us, limit, text))


def _limits(slug: str, weight: int, max_running: int, paused: int, changed: str) -> TenantLimits:
    return TenantLimits(slug, weight, max_running, bool(paused), us(changed) or 0)


def _read(cursor, execution_ids: Iterable[str]) -> dict[str, dict]:
    names = ("state", "version", "deliveries", "job_id", "scheduled_at", "tenant", "due_us", "published_us", "started_us")
    return {
        row[0]: dict(zip(names, (*row[1:7], us(row[7]) or 0, us(row[8]), us(row[9])), strict=True))
        for row in query(cursor, READ, listed(set(execution_ids)))
    }


def _write_starts(cursor, starts: Sequence[Start], rows: dict[str, dict], tallies: Tallies) -> None:
    """A start that comes after the end, or after a later delivery's, only fills in what nobody knew."""
    runs, begun, late = [], [], []
    for start in starts:
        row = rows.get(start.execution_id)
        if row is None:
            continue
        if row["started_us"] is None:
            row["started_us"] = start.started_us
            tallies.start(row["tenant"], row["due_us"], start.started_us)
        if row["state"] in lifecycle.sources(lifecycle.RUNNING):
            row["state"] = lifecycle.RUNNING
            runs.append((start.execution_id,))
        if row["state"] == lifecycle.RUNNING and start.deliveries >= row["deliveries"]:
            row["deliveries"], row["started_us"] = start.deliveries, start.started_us
            begun.append((text(start.started_us), start.worker, start.deliveries, start.execution_id))
        else:
            late.append((text(start.started_us), start.execution_id))
    cursor.executemany(RUN, runs)
    cursor.executemany(START, begun)
    cursor.executemany(FILL_START, late)


def _may_end(row: dict, ending: Ending, generations: dict[int, int]) -> bool:
    """Say whether the row may end so: by the table of transitions (rule 1), by version and generation (rule 11)."""
    if row["state"] not in lifecycle.sources(ending.state) or ending.if_version not in (None, row["version"]):
        return False
    return ending.if_generation in (None, generations.get(ending.lane, 0))


def _next_attempt(attempt: NewAttempt, before: dict) -> tuple:
    key = execution_id(dashed(before["job_id"]), us(before["scheduled_at"]) or 0, attempt.attempt)
    return (key, text(attempt.due_us), attempt.attempt, attempt.retries, attempt.args, attempt.kwargs, attempt.after)
