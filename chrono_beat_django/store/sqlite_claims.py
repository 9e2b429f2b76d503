"""From the due index to the stream on SQLite.

A writer holds the only write lock, so what it has read stays true until it commits: it reads, decides in Python and
writes.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from chrono_beat.core import lifecycle
from chrono_beat.core.ids import execution_id
from chrono_beat.core.records import Claim, DueJob, Occurrence, ScheduledExecution
from chrono_beat.core.rollup import Tallies
from chrono_beat_django.store import rollups
from chrono_beat_django.store.eta_tasks import NO_JOB, OWN, without_job
from chrono_beat_django.store.retries import HELD_BACK
from chrono_beat_django.store.sqlite_partitions import SqlitePartitions
from chrono_beat_django.store.sqlite_sql import (
    CONTENT,
    Unreadable,
    bare,
    checked,
    content,
    dashed,
    listed,
    now_us,
    owned,
    query,
    text,
    us,
)

# CAST hides the column's type: Django's converter would raise at an instant that is none, for the whole result.
JOB = f"""j.id, j."partition", CAST(j.next_run_at AS TEXT), j.version, j.schedule_kind, j.expression, j.timezone,
    CAST(j.start_at AS TEXT), CAST(j.end_at AS TEXT), CAST(j.anchor_at AS TEXT),
    COALESCE(j.spread_seconds, t.spread_seconds, 0), j.misfire, j.misfire_cap, j.grace_seconds, j.replan <> 0,
    {CONTENT.format(args="j.args", kwargs="j.kwargs")}
FROM chrono_job j LEFT JOIN chrono_tenant t ON t.slug = j.tenant"""
DUE = f"""SELECT {JOB} WHERE j."partition" = %s AND j.next_run_at <= %s
    AND j.tenant NOT IN (SELECT value FROM json_each(%s)) ORDER BY j.next_run_at, j.id LIMIT %s"""
_DUE_TYPES = (int, (str, type(None)), int, str, str, str, (str, type(None)), (str, type(None)), (str, type(None)), int, str,
              (int, type(None)), (int, float, type(None)), int)
SPOILED = "UPDATE chrono_job SET next_run_at = NULL, replan = 0, quarantined_reason = %s WHERE id = %s"
QUARANTINE = SPOILED + " AND version = %s"

READ_JOBS = """SELECT id, "partition", version, CAST(next_run_at AS TEXT), tenant, name FROM chrono_job
    WHERE id IN (SELECT value FROM json_each(%s))"""
ADVANCE = "UPDATE chrono_job SET next_run_at = %s, replan = 0 WHERE id = %s"
# A backfill's row is there and will run by itself, one that is to be cancelled will not: both are left alone.
READ_STATES = """SELECT id, CASE WHEN cancel_requested_at IS NOT NULL THEN 'cancelled' WHEN kind = 'schedule' THEN state
    ELSE kind END FROM chrono_execution WHERE id IN (SELECT value FROM json_each(%s))"""
WRITE = """INSERT INTO chrono_execution (job_version, holder_epoch, job_name, due_at, first_due_at, state, reason,
    finished_at, missed_count, first_missed_at, id, job_id, tenant, "partition", scheduled_at)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"""
TAKE_OVER_WAITING = """UPDATE chrono_execution SET job_version = %s, holder_epoch = %s, job_name = %s, due_at = %s,
    first_due_at = %s, state = %s, reason = %s, finished_at = %s, missed_count = %s, first_missed_at = %s
    WHERE id = %s"""
TAKE_OVER_PUBLISHED = "UPDATE chrono_execution SET job_version = %s, holder_epoch = %s, job_name = %s WHERE id = %s"
# A job whose schedule is over and whose last execution has ended lets go of its name.
FINISH = """UPDATE chrono_job SET finished_at = %s WHERE id IN (SELECT value FROM json_each(%s)) AND next_run_at IS NULL
    AND finished_at IS NULL AND NOT paused AND quarantined_reason = '' AND NOT EXISTS (
        SELECT 1 FROM chrono_execution e
        WHERE e.job_id = chrono_job.id AND e.state IN ('scheduled', 'queued', 'running'))"""

SCHEDULED = f"""SELECT e.id, e.job_id, e."partition", CAST(e.scheduled_at AS TEXT), CAST(e.due_at AS TEXT),
    CAST(e.first_due_at AS TEXT), e.attempt, e.retries, e.kind, COALESCE(j.version, e.job_version),
    {CONTENT.format(args="COALESCE(e.args, j.args)", kwargs="COALESCE(e.kwargs, j.kwargs)")}, e.state = 'queued',
    {OWN}
FROM chrono_execution e LEFT JOIN chrono_job j ON j.id = e.job_id AND e.task IS NULL
    LEFT JOIN chrono_tenant t ON t.slug = j.tenant
WHERE {{same}} AND {{which}} AND e.due_at <= %s AND e.cancel_requested_at IS NULL
    AND NOT ({HELD_BACK.format(now="STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now')")}) ORDER BY e.due_at, e.id LIMIT %s"""
# Rule 7: what an edit meets before it has begun is taken over by the scan, unless the plan itself has changed since.
TAKEN_OVER = "e.job_version < j.version AND e.job_version >= j.plan_version"
_SAME = f"({NO_JOB} OR j.version = e.job_version OR {TAKEN_OVER})"
EDITED = SCHEDULED.format(same=TAKEN_OVER, which="""e.state IN ('scheduled', 'queued') AND e.rowid IN (
    SELECT x.rowid FROM chrono_pending_void v CROSS JOIN chrono_execution x
    WHERE v."partition" IN (SELECT value FROM json_each(%s)) AND x."partition" = v."partition" AND x.job_id = v.job_id
        AND x.state IN ('scheduled', 'queued', 'running') AND x.job_version < v.version)""")
FREE = SCHEDULED.format(same=_SAME, which="e.state = 'scheduled' AND e.holder_epoch = 0 "
                               "AND e.\"partition\" IN (SELECT value FROM json_each(%s)) "
                               "AND e.tenant NOT IN (SELECT value FROM json_each(%s))")
_LEFT = """state IN ('scheduled', 'queued', 'running') AND state = 'scheduled'
    AND holder_epoch > 0 AND holder_epoch < %s"""
LEFT_BEHIND = SCHEDULED.format(same=_SAME, which=f'e."partition" = %s AND e.{_LEFT.replace("AND ", "AND e.")} '
                                                  'AND e.tenant NOT IN (SELECT value FROM json_each(%s))')
NOT_LOADED = "SELECT number FROM chrono_partition WHERE loaded_epoch < epoch"
MARK_LOADED = f"""UPDATE chrono_partition SET loaded_epoch = epoch WHERE number = %s AND NOT EXISTS (
    SELECT 1 FROM chrono_execution WHERE "partition" = %s AND {_LEFT})"""
HOLD = "UPDATE chrono_execution SET holder_epoch = %s, job_version = %s, job_name = %s WHERE id = %s"
FORGET = """UPDATE chrono_execution SET holder_epoch = 0
    WHERE "partition" = %s AND holder_epoch = %s AND state IN ('scheduled', 'queued', 'running')
        AND state = 'scheduled'"""

MARK_QUEUED = "UPDATE chrono_execution SET state = 'queued', published_at = %s WHERE id = %s AND state = 'scheduled'"
DATE_PUBLISHED = "UPDATE chrono_execution SET published_at = %s WHERE id = %s AND published_at IS NULL"


class SqliteClaims(SqlitePartitions):
    """The part of JobStore from the due index to the stream."""

    def due_jobs(
        self, partitions: Sequence[int], until_us: int, limit: int, without: Sequence[str] = (),
    ) -> list[DueJob]:
        """See JobStore. A row that can't even be read is quarantined on the spot."""
        found: list[DueJob] = []
        spoiled: list[tuple[str, object]] = []
        for partition in partitions:
            for row in self.rows(DUE, partition, text(until_us), listed(without), limit - len(found)):
                try:
                    found.append(due_job(row))
                except Unreadable as problem:
                    spoiled.append((f"the row can't be read: {problem}", row[0]))
            if len(found) >= limit:
                break
        if spoiled:
            self.write(lambda cursor: cursor.executemany(SPOILED, spoiled))
        return found

    def claim(self, member: str, claims: Sequence[Claim]) -> list[ScheduledExecution]:
        """See JobStore. A job is claimed once in a batch; what repeats it is ignored."""
        once: dict[str, Claim] = {}
        for claim in claims:
            once.setdefault(claim.job_id, claim)
        batch = list(once.values())

        def work(cursor):
            now = now_us()
            held = owned(cursor, {c.partition: c.epoch for c in batch})
            jobs = {row[0]: row[1:] for row in query(cursor, READ_JOBS, listed(bare(c.job_id) for c in batch))}
            won = [c for c in batch if held.get(c.partition) == (c.epoch, member)
                   and _as_read(jobs.get(bare(c.job_id)), c)]
            cursor.executemany(ADVANCE, [(text(c.new_next_run_us), bare(c.job_id)) for c in won])
            claimed = _write_rows(cursor, won, jobs, now)
            over = [bare(c.job_id) for c in won if c.new_next_run_us is None
                    and all(o.state != lifecycle.SCHEDULED for o in c.occurrences)]
            if over:
                cursor.execute(FINISH, [text(now), listed(over)])
            return claimed

        return self.write(work) if batch else []

    def quarantine(self, job_id: str, version: int, reason: str) -> bool:
        """See JobStore."""
        def work(cursor):
            cursor.execute(QUARANTINE, [reason, bare(job_id), version])
            return cursor.rowcount == 1

        return self.write(work)

    def load_scheduled(
        self, epochs: Mapping[int, int], until_us: int, limit: int, without: Sequence[str] = (),
    ) -> list[ScheduledExecution]:
        """See JobStore. The write lock is taken only if there is something to load."""
        def find(cursor):
            held = owned(cursor, epochs)
            not_loaded = {row[0] for row in query(cursor, NOT_LOADED)} & set(held)
            rows = []
            for number in sorted(not_loaded):
                rows += query(
                    cursor, LEFT_BEHIND, number, epochs[number], listed(without), text(until_us), limit - len(rows))
            rows += query(cursor, FREE, listed(held), listed(without), text(until_us), limit - len(rows))
            known = {row[0] for row in rows}
            edited = query(cursor, EDITED, listed(held), text(until_us), limit - len(rows))
            return not_loaded, rows + [row for row in edited if row[0] not in known]

        def work(cursor):
            not_loaded, rows = find(cursor)
            found = [scheduled(row) for row in rows]
            cursor.executemany(HOLD, [
                (epochs[row.partition], row.version, row.content.name, row.execution_id) for row in found])
            cursor.executemany(MARK_LOADED, [(number, number, epochs[number]) for number in not_loaded])
            return found

        if not any(self.statement(find)):
            return []
        return sorted(self.write(work), key=lambda row: (row.due_us, row.execution_id))

    def forget_holds(self, epochs: Mapping[int, int]) -> None:
        """See JobStore."""
        self.write(lambda cursor: cursor.executemany(FORGET, list(epochs.items())))

    def mark_queued(self, published: Sequence[tuple[str, int]]) -> int:
        """See JobStore. A row that is further on already only learns when it was published."""
        rows = [(text(at_us), key) for key, at_us in published]

        def work(cursor):
            cursor.executemany(MARK_QUEUED, rows)
            moved = cursor.rowcount
            cursor.executemany(DATE_PUBLISHED, rows)
            return moved

        return self.write(work) if rows else 0


def due_job(row: tuple) -> DueJob:
    """Build a DueJob of the columns of JOB.

    Raises:
        Unreadable: a value is none that its column is meant for.
    """
    checked(row[1:15], _DUE_TYPES)
    return DueJob(
        dashed(row[0]), row[1], us(row[2]) or 0, *row[3:7], us(row[7]), us(row[8]), us(row[9]), *row[10:14],
        content(row[15:]), bool(row[14]),
    )


def scheduled(row: tuple) -> ScheduledExecution:
    """Build a ScheduledExecution of what the loading queries return."""
    of_job, queued, (task, *own) = row[10:24], bool(row[24]), row[25:]
    return ScheduledExecution(
        row[0], dashed(row[1]), row[2], us(row[3]) or 0, us(row[4]) or 0, us(row[5]) or 0, *row[6:10],
        *((content(of_job), queued) if task is None else without_job(task, queued, *own)),
    )


def _as_read(row: tuple | None, claim: Claim) -> bool:
    """Say whether a job still is what the claim has read."""
    return row is not None and (row[0], row[1], us(row[2])) == (claim.partition, claim.version, claim.next_run_us)


def _write_rows(cursor, claims: Sequence[Claim], jobs: Mapping[str, tuple], now: int) -> list[ScheduledExecution]:
    """Write the execution rows; an open one is taken over in place, one that has ended is left alone (rule 7)."""
    wanted: dict[str, tuple[Claim, Occurrence]] = {}
    for claim in claims:
        for occurrence in claim.occurrences:
            wanted.setdefault(execution_id(claim.job_id, occurrence.scheduled_us, 1), (claim, occurrence))
    states = dict(query(cursor, READ_STATES, listed(wanted)))
    new, waiting, published, claimed = [], [], [], []
    tallies = Tallies()
    for key, (c, o) in wanted.items():
        state = states.get(key)
        head = (c.version, c.epoch, jobs[bare(c.job_id)][4])
        if state is None:
            new.append((*head, *_course(o, now), key, bare(c.job_id), jobs[bare(c.job_id)][3], c.partition,
                        text(o.scheduled_us)))
        elif state == lifecycle.SCHEDULED:
            waiting.append((*head, *_course(o, now), key))
        elif state in lifecycle.OPEN:
            published.append((*head, key))
        if o.state == lifecycle.MISSED and state in (None, lifecycle.SCHEDULED):
            tallies.miss(jobs[bare(c.job_id)][3], now, o.missed_count)
        if state == lifecycle.QUEUED or state in (None, lifecycle.SCHEDULED) and o.state == lifecycle.SCHEDULED:
            claimed.append(ScheduledExecution(
                key, c.job_id, c.partition, o.scheduled_us, o.due_us, o.due_us, 1, 0, "schedule", c.version, c.content))
    cursor.executemany(WRITE, new)
    cursor.executemany(TAKE_OVER_WAITING, waiting)
    cursor.executemany(TAKE_OVER_PUBLISHED, published)
    rollups.add(cursor, tallies)
    return claimed


def _course(occurrence: Occurrence, now: int) -> tuple:
    """Return the columns from due_at to first_missed_at."""
    due, waits = text(occurrence.due_us), occurrence.state == lifecycle.SCHEDULED
    return (due, due, occurrence.state, "" if waits else "misfire", None if waits else text(now),
            occurrence.missed_count, text(occurrence.first_missed_us))
