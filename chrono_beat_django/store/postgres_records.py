"""Record on PostgreSQL: starts, endings and next attempts in bulk.

One transaction of a few statements. Should the client be stopped in the middle, the server ends the transaction soon,
so that what waits for its rows goes on.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence

from chrono_beat.core import lifecycle
from chrono_beat.core.ids import execution_id
from chrono_beat.core.records import Ending, NewAttempt, OpenExecution, RecordResult, Start
from chrono_beat.core.rollup import Tallies
from chrono_beat_django.store import retries, rollups
from chrono_beat_django.store.keys import Key, split
from chrono_beat_django.store.postgres_claims import PostgresClaims
from chrono_beat_django.store.postgres_sql import (
    BY_KEY,
    KEY_COLUMNS,
    LIMIT_IDLE,
    array,
    at,
    bounds,
    key_parameters,
    texts,
    unnest,
    us,
)
from chrono_beat_django.store.rounds import first_of_each

LONGEST_WORKER = 255
GENERATIONS = f"""SELECT l.number, l.generation FROM {unnest("w", number="int")}
    JOIN chrono_lane l ON l.number = w.number ORDER BY l.number FOR SHARE OF l"""

OPEN = f"""SELECT e.id, e.job_id::text, e.tenant, e.partition, {us("e.scheduled_at")}, {us("e.first_due_at")},
    e.attempt, e.retries, e.state, e.job_version, j.max_attempts,
    {retries.IDEMPOTENT}, j.retry_base_seconds, j.retry_factor,
    j.retry_maximum_seconds, j.retry_jitter, {us("e.due_at")}
FROM {unnest("k", **KEY_COLUMNS)} JOIN chrono_execution e ON {BY_KEY} LEFT JOIN chrono_job j ON j.id = e.job_id
WHERE e.state IN ('scheduled', 'queued', 'running')"""

# A start that comes after the end, or after a later delivery's, only fills in what nobody knew.
_LIVE = "e.state IN ('scheduled', 'queued', 'running')"
_NEWER = f"{_LIVE} AND k.deliveries >= e.deliveries"
START = f"""UPDATE chrono_execution e SET
    state = CASE WHEN e.state IN ('scheduled', 'queued') THEN 'running' ELSE e.state END,
    started_at = CASE WHEN {_NEWER} OR e.started_at IS NULL THEN {at("k.started_us")} ELSE e.started_at END,
    worker = CASE WHEN {_NEWER} THEN k.worker ELSE e.worker END,
    deliveries = CASE WHEN {_NEWER} THEN k.deliveries ELSE e.deliveries END
FROM {unnest("k", **KEY_COLUMNS, started_us="bigint", worker="text", deliveries="int")}
WHERE {BY_KEY} AND {{which}}"""
# The first start of an execution counts in its tenant's minute, and only once: of two transactions the second finds
# started_at set.
FIRST_START = START.format(which="e.started_at IS NULL") + f" RETURNING e.id, e.tenant, {us('e.due_at')}"
LATER_START = START.format(which=f"e.started_at IS NOT NULL AND {_LIVE}")

# Protocol rule 1: an end names the states it may leave, straight from the table of transitions.
_MOVES = ",".join(f"{source}>{target}" for target in lifecycle.TERMINAL for source in lifecycle.sources(target))
END = f"""UPDATE chrono_execution e SET state = k.state, reason = k.reason, finished_at = {at("k.finished_us")},
    worker = CASE k.worker WHEN '' THEN e.worker ELSE k.worker END, deliveries = GREATEST(e.deliveries, k.deliveries),
    error = k.error, result = CASE k.result WHEN '' THEN e.result ELSE k.result END,
    missed_count = CASE k.state WHEN 'missed' THEN 1 ELSE e.missed_count END,
    first_missed_at = CASE k.state WHEN 'missed' THEN e.scheduled_at ELSE e.first_missed_at END
FROM {unnest("k", **KEY_COLUMNS, state="text", reason="text", finished_us="bigint", worker="text", deliveries="int",
             error="text", result="text", if_version="int")}
WHERE {BY_KEY} AND e.state || '>' || k.state = ANY ('{{{_MOVES}}}'::text[])
    AND (k.if_version IS NULL OR k.if_version = e.job_version)
RETURNING e.id, e.job_id::text, e.tenant, {us("e.due_at")}, {us("e.published_at")}, {us("e.started_at")},
    e.deliveries"""

NEXT_ATTEMPTS = f"""INSERT INTO chrono_execution (id, job_id, tenant, job_name, partition, scheduled_at, due_at,
    first_due_at, attempt, retries, kind, state, job_version, args, kwargs, task, options, celery_id)
SELECT k.id, e.job_id, e.tenant, e.job_name, e.partition, e.scheduled_at, {at("k.due_us")}, e.first_due_at, k.next,
    k.retries, {retries.KIND_AFTER.format(kind="e.kind")}, 'scheduled', e.job_version, COALESCE(k.args, e.args),
    COALESCE(k.kwargs, e.kwargs), e.task, e.options, e.celery_id
FROM {unnest("k", **KEY_COLUMNS, id="text", next="int", retries="int", due_us="bigint", args="text", kwargs="text")}
JOIN chrono_execution e ON {BY_KEY}
ON CONFLICT (job_id, scheduled_at, attempt) DO NOTHING"""

# A job whose schedule is over and whose last execution has ended lets go of its name. Its row is locked before it is
# looked for open rows: of two transactions that each end one of the last two, the second sees what the first did.
LOCK_OVER = f"""SELECT j.id::text FROM {unnest("w", id="uuid")} JOIN chrono_job j ON j.id = w.id
    WHERE j.next_run_at IS NULL AND j.finished_at IS NULL AND NOT j.paused AND j.quarantined_reason = ''
    ORDER BY j.id FOR NO KEY UPDATE OF j"""
FINISH = f"""UPDATE chrono_job j SET finished_at = clock_timestamp() FROM {unnest("w", id="uuid")}
    WHERE j.id = w.id AND NOT EXISTS (
        SELECT 1 FROM chrono_execution e WHERE e.job_id = j.id AND e.state IN ('scheduled', 'queued', 'running'))"""


class PostgresRecords(PostgresClaims):
    """The part of JobStore that writes what became of executions."""

    def open_executions(self, execution_ids: Sequence[str]) -> dict[str, OpenExecution]:
        """See JobStore."""
        keys = split(execution_ids)
        if not keys:
            return {}
        rows = self._rows(OPEN, *key_parameters(keys.values()), *bounds(keys.values()))
        return {row[0]: OpenExecution(*row[:10], retries.policy(*row[10:-1]), row[-1]) for row in rows}

    def record(
        self, starts: Sequence[Start], endings: Sequence[Ending], attempts: Sequence[NewAttempt],
    ) -> RecordResult:
        """See JobStore. The jobs whose last execution ended by this are finished in the same transaction."""
        def work(cursor):
            cursor.execute(LIMIT_IDLE)
            tallies = Tallies()
            _start(cursor, starts, tallies)
            jobs: dict[str, str] = {}
            for batch in first_of_each(_with_generation(cursor, endings)):
                jobs.update(_end(cursor, [ending for ending in batch if ending.execution_id not in jobs], tallies))
            _add_attempts(cursor, [attempt for attempt in attempts if attempt.after in jobs])
            _finish(cursor, set(jobs.values()))
            rollups.add_at_once(cursor, tallies)
            ended = list(dict.fromkeys(e.execution_id for e in endings if e.execution_id in jobs))
            ignored = [e.execution_id for e in endings if e.execution_id not in jobs]
            return RecordResult(ended, ignored, tallies.started())

        return self.transaction(work) if starts or endings else RecordResult([], [])

    def add_capped(self, spells: Sequence[tuple[str, int, int]]) -> None:
        """See JobStore."""
        self.transaction(lambda cursor: rollups.add_to(cursor, "capped_us", spells))

    def add_reaps(self, reaps: Sequence[tuple[str, int, int]]) -> None:
        """See JobStore."""
        self.transaction(lambda cursor: rollups.add_to(cursor, "reaps", reaps))


def _in_order(keys: dict[str, Key]) -> dict[str, Key]:
    """Sort rows by key: whoever updates many locks them in this order, so that nobody waits in a circle."""
    return dict(sorted(keys.items(), key=lambda item: item[1]))


def _start(cursor, starts: Iterable[Start], tallies: Tallies) -> None:
    first: dict[str, Start] = {}
    latest: dict[str, Start] = {}
    for start in starts:
        first.setdefault(start.execution_id, start)
        known = latest.get(start.execution_id)
        if known is None or start.deliveries >= known.deliveries:
            latest[start.execution_id] = start
    keys = _in_order(split(latest))
    if not keys:
        return
    cursor.execute(FIRST_START, _start_parameters(keys, latest))
    started = cursor.fetchall()
    for key, tenant, due_us in started:
        tallies.start(tenant, due_us, first[key].started_us)
    if len(started) < len(keys):
        again = {key: keys[key] for key in keys.keys() - {row[0] for row in started}}
        cursor.execute(LATER_START, _start_parameters(_in_order(again), latest))


def _start_parameters(keys: dict[str, Key], latest: dict[str, Start]) -> list[object]:
    rows = [latest[key] for key in keys]
    return [
        *key_parameters(keys.values()), array(row.started_us for row in rows),
        texts(row.worker[:LONGEST_WORKER] for row in rows), array(row.deliveries for row in rows),
        *bounds(keys.values()),
    ]


def _with_generation(cursor, endings: Sequence[Ending]) -> list[Ending]:
    """Drop what was decided under a generation that is over, and keep those that count from being raised (rule 11)."""
    lanes = {ending.lane for ending in endings if ending.if_generation is not None}
    if not lanes:
        return list(endings)
    cursor.execute(GENERATIONS, [array(lanes)])
    now = dict(cursor.fetchall())
    return [e for e in endings if e.if_generation is None or e.if_generation == now.get(e.lane, 0)]


def _end(cursor, endings: Sequence[Ending], tallies: Tallies) -> list[tuple[str, str]]:
    """Write endings, one a row; returns (execution id, job id) of the rows that ended."""
    wanted = {ending.execution_id: ending for ending in endings}
    keys = _in_order(split(wanted))
    if not keys:
        return []
    rows = [wanted[key] for key in keys]
    cursor.execute(END, [
        *key_parameters(keys.values()), array(row.state for row in rows), array(row.reason or '""' for row in rows),
        array(row.finished_us for row in rows), texts(row.worker[:LONGEST_WORKER] for row in rows),
        array(row.deliveries for row in rows), texts(row.error for row in rows),
        texts(row.result for row in rows), array(row.if_version for row in rows),
        *bounds(keys.values()),
    ])
    ended = cursor.fetchall()
    for key, _, tenant, due_us, published_us, started_us, deliveries in ended:
        row = wanted[key]
        tallies.end(tenant, row.state, row.finished_us, due_us=due_us, published_us=published_us, started_us=started_us,
                    deliveries=deliveries)
    return [row[:2] for row in ended]


def _add_attempts(cursor, attempts: Sequence[NewAttempt]) -> None:
    wanted = {attempt.after: attempt for attempt in attempts}
    keys = _in_order(split(wanted))
    if keys:
        rows = [wanted[key] for key in keys]
        ids = [execution_id(k.job_id, k.scheduled_us, row.attempt) for k, row in zip(keys.values(), rows, strict=True)]
        cursor.execute(NEXT_ATTEMPTS, [
            *key_parameters(keys.values()), array(ids), array(row.attempt for row in rows),
            array(row.retries for row in rows), array(row.due_us for row in rows), texts(row.args for row in rows),
            texts(row.kwargs for row in rows), *bounds(keys.values()),
        ])


def _finish(cursor, job_ids: set[str]) -> None:
    if job_ids:
        cursor.execute(LOCK_OVER, [array(sorted(job_ids))])
        over = [row[0] for row in cursor.fetchall()]
        if over:
            cursor.execute(FINISH, [array(over)])
