"""The claim on PostgreSQL: one statement that advances due jobs and writes their execution rows.

Invariant 2 rests on it: epoch, next run and version are compared and the rows written in one go, or not at all. The
server commits the statement by itself: one round trip, and no lock that outlives a client which is stopped in the
middle.

There are two forms, since 20,000 claims a second leave 50 µs each. PLAIN is for batches in which every job fires
once, as nearly all do. It can't meet a row that is there already: that happens after an edit has moved next_run back,
ends in a violated key, and is done again by GENERAL, which can do everything: several occurrences or none, missed
ones, taking over an open row in place (but never a backfill's: it will run by itself), and the end of a schedule.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence

from chrono_beat.core import lifecycle
from chrono_beat.core.ids import format_instant, to_us
from chrono_beat.core.records import Claim, Occurrence, ScheduledExecution
from chrono_beat_django.models import END_OF_TIME
from chrono_beat_django.store.postgres_sql import array, at, held, unnest

_END_OF_TIME_US = to_us(END_OF_TIME)
_JOB = {"job_id": "uuid", "number": "int", "epoch": "bigint", "version": "int", "old_us": "bigint", "new_us": "bigint"}
_GUARD = f"""j.id = w.job_id AND j.partition = w.number AND j.version = w.version
        AND j.next_run_at = {at("w.old_us")}"""

PLAIN = f"""WITH {held(by_member=True)}, advanced AS (
    UPDATE chrono_job j SET next_run_at = {at("w.new_us")}, replan = false
    FROM {unnest("w", **_JOB, instant="text", scheduled_us="bigint", due_us="bigint")}
    JOIN held ON held.number = w.number AND held.epoch = w.epoch
    WHERE {_GUARD}
    RETURNING j.id, j.tenant, j.name, j.partition, j.version, held.epoch, w.instant,
        {at("w.scheduled_us")} AS scheduled_at, {at("w.due_us")} AS due_at
)
INSERT INTO chrono_execution (id, job_id, tenant, job_name, partition, scheduled_at, due_at, first_due_at, job_version,
    holder_epoch)
SELECT id::text || ':' || instant || ':1', id, tenant, name, partition, scheduled_at, due_at, due_at, version, epoch
FROM advanced RETURNING id, 'scheduled'"""

# `finishes`: nothing is left of the schedule, and nothing is written that could still run. A row that this very claim
# turns into a missed one does not count as open, though the statement still sees it so. A row that comes back as missed
# became so just now, since what has ended is not written: so it counts once in its tenant's minute.
GENERAL = f"""WITH {held(by_member=True)}, advanced AS (
    UPDATE chrono_job j SET next_run_at = {at("w.new_us")}, replan = false, finished_at = CASE
        WHEN w.finishes AND NOT EXISTS (
            SELECT 1 FROM chrono_execution e WHERE e.job_id = w.job_id AND e.state IN ('scheduled', 'queued', 'running')
                AND NOT (e.state = 'scheduled' AND e.id = ANY ((SELECT %s::text[])::text[]))
        ) THEN clock_timestamp() ELSE j.finished_at END
    FROM {unnest("w", **_JOB, finishes="bool")}
    JOIN held ON held.number = w.number AND held.epoch = w.epoch
    WHERE {_GUARD}
    RETURNING j.id, j.tenant, j.name, j.partition, j.version, held.epoch
), written AS (
INSERT INTO chrono_execution AS e (id, job_id, tenant, job_name, partition, scheduled_at, due_at, first_due_at, state,
    reason, job_version, holder_epoch, finished_at, missed_count, first_missed_at)
SELECT o.id, a.id, a.tenant, a.name, a.partition, {at("o.scheduled_us")}, {at("o.due_us")}, {at("o.due_us")}, o.state,
    CASE o.state WHEN 'scheduled' THEN '' ELSE 'misfire' END, a.version, a.epoch,
    CASE o.state WHEN 'scheduled' THEN NULL ELSE clock_timestamp() END, o.missed, {at("o.first_us")}
FROM unnest(%s::text[], %s::uuid[], %s::bigint[], %s::bigint[], %s::text[], %s::int[], %s::bigint[])
    AS o(id, job_id, scheduled_us, due_us, state, missed, first_us)
JOIN advanced a ON a.id = o.job_id
ON CONFLICT (job_id, scheduled_at, attempt) DO UPDATE SET
    job_version = EXCLUDED.job_version, holder_epoch = EXCLUDED.holder_epoch, job_name = EXCLUDED.job_name,
    due_at = CASE e.state WHEN 'scheduled' THEN EXCLUDED.due_at ELSE e.due_at END,
    first_due_at = CASE e.state WHEN 'scheduled' THEN EXCLUDED.first_due_at ELSE e.first_due_at END,
    state = CASE e.state WHEN 'scheduled' THEN EXCLUDED.state ELSE e.state END,
    reason = CASE e.state WHEN 'scheduled' THEN EXCLUDED.reason ELSE e.reason END,
    finished_at = CASE e.state WHEN 'scheduled' THEN EXCLUDED.finished_at ELSE e.finished_at END,
    missed_count = CASE e.state WHEN 'scheduled' THEN EXCLUDED.missed_count ELSE e.missed_count END,
    first_missed_at = CASE e.state WHEN 'scheduled' THEN EXCLUDED.first_missed_at ELSE e.first_missed_at END
    WHERE e.state IN ('scheduled', 'queued', 'running') AND e.kind = 'schedule' AND e.cancel_requested_at IS NULL
RETURNING e.id, e.state, e.tenant, e.missed_count
), counted AS (
    INSERT INTO chrono_rollup AS r (tenant, span, start, missed)
    SELECT tenant, 'minute', date_trunc('minute', clock_timestamp()), SUM(missed_count) FROM written
    WHERE state = 'missed' GROUP BY tenant ORDER BY tenant COLLATE "C"          -- as recorders lock them
    ON CONFLICT (tenant, span, start) DO UPDATE SET missed = r.missed + EXCLUDED.missed
)
SELECT id, state FROM written"""


class Batch:
    """A batch of claims on its way into one statement.

    Args:
        member: whose partitions they are.
        claims: at most one of a job counts.
    """

    def __init__(self, member: str, claims: Sequence[Claim]) -> None:
        self.member = member
        once: dict[str, Claim] = {}
        for claim in claims:
            once.setdefault(claim.job_id, claim)
        self.claims = list(once.values())
        self.is_plain = all(
            len(c.occurrences) == 1 and c.occurrences[0].state == lifecycle.SCHEDULED for c in self.claims
        )
        instants = {o.scheduled_us: "" for claim in self.claims for o in claim.occurrences}
        for scheduled_us in instants:
            instants[scheduled_us] = format_instant(scheduled_us)
        self._instants = instants
        self._written = [
            (f"{claim.job_id}:{instants[o.scheduled_us]}:1", claim, o)
            for claim in self.claims for o in (claim.occurrences if self.is_plain else _once(claim.occurrences))
        ]

    def plain_parameters(self) -> list[object]:
        """Return the parameters of PLAIN."""
        occurrences = [claim.occurrences[0] for claim in self.claims]
        return [
            *self._held_parameters(), *self._job_parameters(),
            array([self._instants[o.scheduled_us] for o in occurrences]),
            array([o.scheduled_us for o in occurrences]), array([o.due_us for o in occurrences]),
        ]

    def general_parameters(self) -> list[object]:
        """Return the parameters of GENERAL."""
        finishes = (
            c.new_next_run_us is None and all(o.state != lifecycle.SCHEDULED for o in c.occurrences)
            for c in self.claims
        )
        return [
            *self._held_parameters(),
            array(id_ for id_, _, o in self._written if o.state != lifecycle.SCHEDULED),
            *self._job_parameters(), array("t" if over else "f" for over in finishes),
            array(id_ for id_, _, _ in self._written), array(c.job_id for _, c, _ in self._written),
            array(o.scheduled_us for _, _, o in self._written), array(o.due_us for _, _, o in self._written),
            array(o.state for _, _, o in self._written), array(o.missed_count for _, _, o in self._written),
            array(o.first_missed_us for _, _, o in self._written),
        ]

    def _held_parameters(self) -> list[str]:
        pairs = {(claim.partition, claim.epoch): None for claim in self.claims}
        return [array(number for number, _ in pairs), array(epoch for _, epoch in pairs), self.member]

    def _job_parameters(self) -> list[str]:
        claims = self.claims
        return [
            array([c.job_id for c in claims]), array([c.partition for c in claims]), array([c.epoch for c in claims]),
            array([c.version for c in claims]), array([c.next_run_us for c in claims]),
            array([_storable(c.new_next_run_us) for c in claims]),
        ]

    def answer(self, rows: Iterable[tuple[str, str]]) -> list[ScheduledExecution]:
        """Return what was claimed, in the order of the claims, given (execution id, state) of the rows written."""
        ready = {id_ for id_, state in rows if state in (lifecycle.SCHEDULED, lifecycle.QUEUED)}
        return [
            ScheduledExecution(
                id_, c.job_id, c.partition, o.scheduled_us, o.due_us, o.due_us, 1, 0, "schedule", c.version, c.content)
            for id_, c, o in self._written if id_ in ready
        ]


def _once(occurrences: Sequence[Occurrence]) -> Iterable[Occurrence]:
    """Drop repeated instants; the first one counts."""
    once: dict[int, Occurrence] = {}
    for occurrence in occurrences:
        once.setdefault(occurrence.scheduled_us, occurrence)
    return once.values()


def _storable(us: int | None) -> int | None:
    """Return a next run that the table takes; one after the end of time never comes."""
    return us if us is not None and us < _END_OF_TIME_US else None
