"""Members, leases of partitions and lanes on PostgreSQL.

Each call is one statement that the server commits by itself: a dispatcher that is stopped in the middle of a call
must not keep a lock that a takeover waits for. Time is the server's, read when the row is locked.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping

from chrono_beat.core.ids import lane_of
from chrono_beat.core.records import LaneRecord, PartitionLease
from chrono_beat_django.store.postgres_sql import CLOCK_US, array, held_parameters, unnest, us
from chrono_beat_django.store.session import Session

FORGOTTEN_AFTER = "1 hour"
_IN = "clock_timestamp() + %s * interval '1 microsecond'"
_MINE = f"""WITH mine AS (
    SELECT p.number FROM {unnest("wanted", number="int", epoch="bigint")}
    JOIN chrono_partition p ON p.number = wanted.number AND p.epoch = wanted.epoch
    WHERE p.owner = %s ORDER BY p.number FOR NO KEY UPDATE OF p
) UPDATE chrono_partition p SET {{change}} FROM mine WHERE p.number = mine.number RETURNING p.number"""

JOIN = f"""WITH heart AS (
    INSERT INTO chrono_dispatcher AS d (member, expires_at) VALUES (%s, {_IN})
    ON CONFLICT (member) DO UPDATE SET expires_at = EXCLUDED.expires_at,
        leaving = d.leaving AND d.expires_at > clock_timestamp()
    RETURNING member, leaving
), gone AS (
    DELETE FROM chrono_dispatcher WHERE expires_at < clock_timestamp() - interval '{FORGOTTEN_AFTER}'
        AND member <> ALL (SELECT member FROM heart)
)
SELECT member FROM heart WHERE NOT leaving
UNION SELECT d.member FROM chrono_dispatcher d
    WHERE d.expires_at > clock_timestamp() AND NOT d.leaving AND d.member <> ALL (SELECT member FROM heart)"""

TAKE = f"""WITH free AS (
    SELECT p.number FROM chrono_partition p WHERE p.number = ANY (%s::int[])
        AND (p.owner IN ('', %s) OR p.expires_at <= clock_timestamp() OR p.offered)
    ORDER BY p.number FOR NO KEY UPDATE
) UPDATE chrono_partition p SET owner = %s, epoch = p.epoch + 1, expires_at = {_IN}, offered = false
FROM free WHERE p.number = free.number RETURNING p.number, p.epoch"""

RAISE_GENERATION = """UPDATE chrono_lane
    SET generation = generation + 1, replication_id = %s, began_at = clock_timestamp()
    WHERE number = %s AND generation = %s"""
NOTE_PLAIN_TASKS = "UPDATE chrono_lane SET has_plain_tasks = %s WHERE number = %s AND generation = %s"

# One index range a partition; a partition that has such a row gives each of its tenants once.
WAITING_TENANTS = """SELECT DISTINCT e.tenant FROM chrono_partition p CROSS JOIN LATERAL (
    SELECT tenant FROM chrono_execution WHERE partition = p.number AND state IN ('scheduled', 'queued', 'running')
        AND due_at < statement_timestamp()
) e"""
ANY_WAITING = WAITING_TENANTS.replace("SELECT DISTINCT e.tenant", "SELECT e.tenant") + " LIMIT 1"


class PostgresPartitions(Session):
    """The part of JobStore about who owns what."""

    def now_us(self) -> int:
        """See JobStore."""
        return int(self._value(f"SELECT {CLOCK_US}"))

    def join(self, member: str, lease_us: int) -> list[str]:
        """See JobStore."""
        return sorted(row[0] for row in self._rows(JOIN, member, lease_us))

    def leave(self, member: str, *, gone: bool) -> None:
        """See JobStore."""
        change = "DELETE FROM chrono_dispatcher" if gone else "UPDATE chrono_dispatcher SET leaving = true"
        self.statement(lambda cursor: cursor.execute(f"{change} WHERE member = %s", [member]))

    def partitions(self) -> list[PartitionLease]:
        """See JobStore."""
        sql = f"SELECT number, owner, epoch, {us('expires_at')}, offered FROM chrono_partition ORDER BY number"
        return [PartitionLease(*row) for row in self._rows(sql)]

    def take_partitions(self, member: str, wanted: Iterable[int], lease_us: int) -> dict[int, int]:
        """See JobStore."""
        numbers = array(wanted)
        return dict(self._rows(TAKE, numbers, member, member, lease_us))

    def renew_partitions(self, member: str, epochs: Mapping[int, int], lease_us: int) -> set[int]:
        """See JobStore."""
        sql = _MINE.format(change=f"expires_at = {_IN}")
        return {row[0] for row in self._rows(sql, *held_parameters(epochs), member, lease_us)}

    def offer_partitions(self, member: str, epochs: Mapping[int, int]) -> None:
        """See JobStore."""
        self._rows(_MINE.format(change="offered = true"), *held_parameters(epochs), member)

    def release_partitions(self, member: str, epochs: Mapping[int, int]) -> None:
        """See JobStore."""
        change = "owner = '', expires_at = clock_timestamp(), offered = false"
        self._rows(_MINE.format(change=change), *held_parameters(epochs), member)

    def lane(self, lane: int) -> LaneRecord:
        """See JobStore."""
        sql = f"SELECT number, generation, replication_id, {us('began_at')}, has_plain_tasks FROM chrono_lane WHERE number = %s"
        found = self._rows(sql, lane)
        if not found:
            make = "INSERT INTO chrono_lane (number) VALUES (%s) ON CONFLICT DO NOTHING"
            self.statement(lambda cursor: cursor.execute(make, [lane]))
            found = self._rows(sql, lane)
        return LaneRecord(*found[0])

    def raise_generation(self, lane: int, seen: int, replication_id: str) -> LaneRecord:
        """See JobStore."""
        self.lane(lane)
        self.statement(lambda cursor: cursor.execute(RAISE_GENERATION, [replication_id, lane, seen]))
        return self.lane(lane)

    def note_plain_tasks(self, lane: int, generation: int, there: bool) -> None:
        """See JobStore."""
        self.statement(lambda cursor: cursor.execute(NOTE_PLAIN_TASKS, [there, lane, generation]))

    def may_be_running(self, lane: int, lanes: int) -> bool:
        """See JobStore."""
        rows = self._rows(ANY_WAITING if lanes == 1 else WAITING_TENANTS)
        return any(lane_of(tenant, lanes) == lane for tenant, in rows)

    def _rows(self, sql: str, *parameters: object) -> list[tuple]:
        def work(cursor):
            cursor.execute(sql, parameters)
            return cursor.fetchall()

        return self.statement(work)

    def _value(self, sql: str, *parameters: object) -> object:
        return self._rows(sql, *parameters)[0][0]
