"""From the due index to the stream on PostgreSQL: the scan, the claim, and what a wheel holds."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from django.db import IntegrityError

from chrono_beat.core.records import Claim, Content, DueJob, ScheduledExecution
from chrono_beat_django.store import postgres_claim
from chrono_beat_django.store.eta_tasks import NO_JOB, OWN, without_job
from chrono_beat_django.store.keys import split
from chrono_beat_django.store.postgres_partitions import PostgresPartitions
from chrono_beat_django.store.postgres_sql import (
    BY_KEY,
    CONTENT,
    KEY_COLUMNS,
    LIMIT_IDLE,
    array,
    at,
    bounds,
    held,
    held_parameters,
    key_parameters,
    unnest,
    us,
)
from chrono_beat_django.store.retries import HELD_BACK

# One range of chrono_job_due a partition. "partition = ANY (…)" reads the whole table under a generic plan.
#
# Bound and limit hide in subselects, so that the planner can't count what they let in. With the true numbers it would
# rather fetch all that is due by a bitmap and sort it: for each batch anew, and past every row that was claimed since
# the last vacuum, as only a plain index scan remembers which of its entries are dead.
JOB = f"""j.id::text, j.partition, {us("j.next_run_at")}, j.version, j.schedule_kind, j.expression, j.timezone,
    {us("j.start_at")}, {us("j.end_at")}, {us("j.anchor_at")}, COALESCE(j.spread_seconds, t.spread_seconds, 0),
    j.misfire, j.misfire_cap, j.grace_seconds, j.replan, {CONTENT.format(args="j.args", kwargs="j.kwargs")}"""
DUE = f"""SELECT {JOB} FROM (
    SELECT job.* FROM unnest(%s::int[]) AS wanted(number) CROSS JOIN LATERAL (
        SELECT * FROM chrono_job WHERE partition = wanted.number AND next_run_at <= (SELECT {at("%s")})
            AND tenant <> ALL (%s::text[]) ORDER BY next_run_at LIMIT (SELECT %s::bigint)
    ) job LIMIT %s
) j LEFT JOIN chrono_tenant t ON t.slug = j.tenant
ORDER BY j.partition, j.next_run_at, j.id"""

QUARANTINE = """UPDATE chrono_job SET next_run_at = NULL, replan = false, quarantined_reason = %s
    WHERE id = %s AND version = %s"""

# Whether there is anything to load at all: the usual answer of an idle second, one descent a day's table.
SOMETHING_FREE = f"""SELECT EXISTS (SELECT 1 FROM chrono_execution WHERE state = 'scheduled' AND holder_epoch = 0
    AND due_at <= {at("%s")} AND scheduled_at <= {at("%s")}), EXISTS (SELECT 1 FROM chrono_pending_void)"""
NOT_LOADED = f"""SELECT p.number, p.epoch FROM {unnest("mine", number="int", epoch="bigint")}
    JOIN chrono_partition p ON p.number = mine.number AND p.epoch = mine.epoch WHERE p.loaded_epoch < p.epoch"""
TAKEN_OVER = "e.job_version < j.version AND e.job_version >= j.plan_version"
_SAME = f"(j.version = e.job_version OR {TAKEN_OVER})"
_SAME_OR_NO_JOB = f"({NO_JOB} OR {_SAME})"
# What may be loaded is decided row by row, in the order of the index, until there are enough: a join that could be turned
# round would fetch all that is due and sort it, for each batch anew. The limit hides as above.
_OLDEST = f"""e.due_at <= (SELECT {at("%s")}) AND e.scheduled_at <= (SELECT {at("%s")}) AND e.tenant <> ALL (%s::text[])
        AND e.cancel_requested_at IS NULL AND ({NO_JOB} OR (SELECT {_SAME} FROM chrono_job j WHERE j.id = e.job_id))
        AND NOT ({HELD_BACK.format(now="clock_timestamp()")})
    ORDER BY e.due_at LIMIT (SELECT %s::bigint)"""
_FREE = f"""held h JOIN (SELECT * FROM chrono_execution e
    WHERE e.state = 'scheduled' AND e.holder_epoch = 0 AND e.partition = ANY (ARRAY(SELECT number FROM held)) AND {_OLDEST}
    ) e ON h.number = e.partition"""
_LEFT_BEHIND = f"""held h CROSS JOIN LATERAL (SELECT * FROM chrono_execution e
    WHERE e.partition = h.number AND e.state IN ('scheduled', 'queued', 'running') AND e.state = 'scheduled'
        AND e.holder_epoch > 0 AND e.holder_epoch < h.epoch AND {_OLDEST}) e"""
# Rule 7: what an edit meets before it has begun is taken over by the scan, also from a wheel or a stream, unless the plan
# itself has changed since. The limit keeps the planner from beginning with all rows that are due.
_EDITED = f"""held h JOIN chrono_pending_void v ON v.partition = h.number CROSS JOIN LATERAL (
        SELECT * FROM chrono_execution x WHERE x.partition = v.partition AND x.job_id = v.job_id
            AND x.due_at <= {at("%s")} AND x.state IN ('scheduled', 'queued', 'running') AND x.state <> 'running'
            AND x.job_version < v.version LIMIT 1000
    ) e WHERE true"""
_LOAD = f"""WITH {held(by_member=False)}, picked AS (
    SELECT e.job_id, e.scheduled_at, e.attempt, e.holder_epoch AS was, e.epoch, e.job_version AS old,
        COALESCE(j.version, e.job_version) AS version, COALESCE(j.name, e.job_name) AS name
    FROM (SELECT e.*, h.epoch FROM {{source}}) e
    LEFT JOIN chrono_job j ON j.id = e.job_id AND e.task IS NULL
    WHERE {{same}} AND e.cancel_requested_at IS NULL AND e.scheduled_at <= {at("%s")}
        AND NOT ({HELD_BACK.format(now="clock_timestamp()")})
    ORDER BY e.due_at, e.id LIMIT %s
), loaded AS (
    UPDATE chrono_execution e SET holder_epoch = p.epoch, job_version = p.version, job_name = p.name FROM picked p
    WHERE e.job_id = p.job_id AND e.scheduled_at = p.scheduled_at AND e.attempt = p.attempt
        AND e.state IN {{states}} AND e.holder_epoch = p.was AND e.job_version = p.old
    RETURNING e.*
)
SELECT e.id, e.job_id::text, e.partition, {us("e.scheduled_at")}, {us("e.due_at")}, {us("e.first_due_at")}, e.attempt,
    e.retries, e.kind, e.job_version,
    {CONTENT.format(args="COALESCE(e.args, j.args)", kwargs="COALESCE(e.kwargs, j.kwargs)")}, e.state = 'queued', {OWN}
FROM loaded e LEFT JOIN chrono_job j ON j.id = e.job_id AND e.task IS NULL LEFT JOIN chrono_tenant t ON t.slug = j.tenant"""
LOAD_FREE = _LOAD.format(source=_FREE, same=_SAME_OR_NO_JOB, states="('scheduled')")
LOAD_LEFT_BEHIND = _LOAD.format(source=_LEFT_BEHIND, same=_SAME_OR_NO_JOB, states="('scheduled')")
LOAD_EDITED = _LOAD.format(source=_EDITED, same=TAKEN_OVER, states="('scheduled', 'queued')")
MARK_LOADED = f"""UPDATE chrono_partition p SET loaded_epoch = p.epoch
    FROM {unnest("mine", number="int", epoch="bigint")}
    WHERE p.number = mine.number AND p.epoch = mine.epoch AND NOT EXISTS (
        SELECT 1 FROM chrono_execution e WHERE e.partition = p.number AND e.state IN ('scheduled', 'queued', 'running')
            AND e.state = 'scheduled' AND e.holder_epoch > 0 AND e.holder_epoch < p.epoch)"""

FORGET = f"""UPDATE chrono_execution e SET holder_epoch = 0 FROM {unnest("mine", number="int", epoch="bigint")}
    WHERE e.partition = mine.number AND e.holder_epoch = mine.epoch AND e.state = 'scheduled'"""

MARK_QUEUED = f"""UPDATE chrono_execution e SET state = 'queued', published_at = {at("k.at_us")}
    FROM {unnest("k", **KEY_COLUMNS, at_us="bigint")} WHERE {BY_KEY} AND e.state = 'scheduled'"""
# The outcome overtook the bulk mark: the row keeps its state and only learns when it was published.
DATE_PUBLISHED = f"""UPDATE chrono_execution e SET published_at = {at("k.at_us")}
    FROM {unnest("k", **KEY_COLUMNS, at_us="bigint")} WHERE {BY_KEY} AND e.published_at IS NULL"""


def due_job(row: tuple) -> DueJob:
    """Build a DueJob of the columns of JOB."""
    return DueJob(*row[:14], Content._make(row[15:]), row[14])


def scheduled(row: tuple) -> ScheduledExecution:
    """Build a ScheduledExecution of what the loading queries return."""
    of_job, queued, (task, *own) = row[10:24], row[24], row[25:]
    return ScheduledExecution(
        *row[:10], *((Content._make(of_job), queued) if task is None else without_job(task, queued, *own)))


class PostgresClaims(PostgresPartitions):
    """The part of JobStore from the due index to the stream."""

    def due_jobs(
        self, partitions: Sequence[int], until_us: int, limit: int, without: Sequence[str] = (),
    ) -> list[DueJob]:
        """See JobStore."""
        return [due_job(row) for row in self._rows(DUE, array(partitions), until_us, list(without), limit, limit)]

    def claim(self, member: str, claims: Sequence[Claim]) -> list[ScheduledExecution]:
        """See JobStore. A job is claimed once in a batch; what repeats it is ignored."""
        batch = postgres_claim.Batch(member, claims)
        if not batch.claims:
            return []
        if batch.is_plain and not self.connection.in_atomic_block:
            try:
                return batch.answer(self._rows(postgres_claim.PLAIN, *batch.plain_parameters()))
            except IntegrityError:      # a row of one of these occurrences is there already, and is to be taken over
                pass
        return batch.answer(self._rows(postgres_claim.GENERAL, *batch.general_parameters()))

    def quarantine(self, job_id: str, version: int, reason: str) -> bool:
        """See JobStore."""
        def work(cursor):
            cursor.execute(QUARANTINE, [reason, job_id, version])
            return cursor.rowcount == 1

        return self.statement(work)

    def load_scheduled(
        self, epochs: Mapping[int, int], until_us: int, limit: int, without: Sequence[str] = (),
    ) -> list[ScheduledExecution]:
        """See JobStore. What earlier owners held is looked for until none of it is left, then never again."""
        old = dict(self._rows(NOT_LOADED, *held_parameters(epochs)))
        loaded: list[tuple] = []
        if old:
            def work(cursor):
                cursor.execute(LIMIT_IDLE)
                cursor.execute(LOAD_LEFT_BEHIND, load_parameters(old, until_us, without, limit))
                rows = cursor.fetchall()
                if len(rows) < limit:
                    cursor.execute(MARK_LOADED, held_parameters(old))
                    cursor.execute(LOAD_FREE, load_parameters(epochs, until_us, without, limit - len(rows)))
                    rows += cursor.fetchall()
                return rows

            loaded = self.transaction(work)
        free, edited = self._rows(SOMETHING_FREE, until_us, until_us)[0]
        if free and not old:
            loaded = self._rows(LOAD_FREE, *load_parameters(epochs, until_us, without, limit))
        if edited and len(loaded) < limit:
            loaded += self._rows(LOAD_EDITED, *held_parameters(epochs), until_us, until_us, limit - len(loaded))
        return sorted(map(scheduled, loaded), key=lambda row: (row.due_us, row.execution_id))

    def forget_holds(self, epochs: Mapping[int, int]) -> None:
        """See JobStore."""
        self.statement(lambda cursor: cursor.execute(FORGET, held_parameters(epochs)))

    def mark_queued(self, published: Sequence[tuple[str, int]]) -> int:
        """See JobStore. A row that is further on already only learns when it was published."""
        instants = dict(published)
        keys = split(instants)
        if not keys:
            return 0
        parameters = [*key_parameters(keys.values()), array(instants[key] for key in keys), *bounds(keys.values())]

        def work(cursor):
            cursor.execute(MARK_QUEUED, parameters)
            moved = cursor.rowcount
            if moved < len(keys):
                cursor.execute(DATE_PUBLISHED, parameters)
            return moved

        return self.statement(work)


def load_parameters(epochs: Mapping[int, int], until_us: int, without: Sequence[str], limit: int) -> list[object]:
    """Return the parameters of LOAD_FREE and LOAD_LEFT_BEHIND."""
    return [*held_parameters(epochs), until_us, until_us, list(without), limit, until_us, limit]
