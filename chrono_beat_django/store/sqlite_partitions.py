"""Members, leases of partitions and lanes on SQLite."""
from __future__ import annotations

from collections.abc import Iterable, Mapping

from chrono_beat.core.ids import lane_of
from chrono_beat.core.records import LaneRecord, PartitionLease
from chrono_beat_django.store.sqlite_sql import SqliteSession, listed, now_us, owned, query, text, us

FORGOTTEN_AFTER_US = 3_600_000_000
LEASES = """SELECT number, owner, epoch, CAST(expires_at AS TEXT), offered FROM chrono_partition ORDER BY number"""
LIVE = "SELECT member FROM chrono_dispatcher WHERE expires_at > %s AND NOT leaving"
TAKE = """UPDATE chrono_partition SET owner = %s, epoch = epoch + 1, expires_at = %s, offered = 0 WHERE number = %s"""
LANE = """SELECT number, generation, replication_id, CAST(began_at AS TEXT), has_plain_tasks FROM chrono_lane WHERE number = %s"""
RAISE_GENERATION = """UPDATE chrono_lane SET generation = generation + 1, replication_id = %s, began_at = %s
    WHERE number = %s AND generation = %s"""
NOTE_PLAIN_TASKS = "UPDATE chrono_lane SET has_plain_tasks = %s WHERE number = %s AND generation = %s"
WAITING_TENANTS = """SELECT DISTINCT tenant FROM chrono_execution WHERE state IN ('scheduled', 'queued', 'running')
    AND "partition" IN (SELECT number FROM chrono_partition) AND due_at < %s"""


class SqlitePartitions(SqliteSession):
    """The part of JobStore about who owns what."""

    def now_us(self) -> int:
        """See JobStore. SQLite has no clock: this is the host's, asked for through no connection."""
        return now_us()

    def join(self, member: str, lease_us: int) -> list[str]:
        """See JobStore."""
        def work(cursor):
            now = now_us()
            known = query(cursor, "SELECT leaving FROM chrono_dispatcher WHERE member = %s AND expires_at > %s", member,
                          text(now))
            cursor.execute("DELETE FROM chrono_dispatcher WHERE member = %s OR expires_at < %s",
                           [member, text(now - FORGOTTEN_AFTER_US)])
            cursor.execute("INSERT INTO chrono_dispatcher (member, expires_at, leaving) VALUES (%s, %s, %s)",
                           [member, text(now + lease_us), known[0][0] if known else 0])
            return query(cursor, LIVE, text(now))

        return sorted(row[0] for row in self.write(work))

    def leave(self, member: str, *, gone: bool) -> None:
        """See JobStore."""
        change = "DELETE FROM chrono_dispatcher" if gone else "UPDATE chrono_dispatcher SET leaving = 1"
        self.write(lambda cursor: cursor.execute(f"{change} WHERE member = %s", [member]))

    def partitions(self) -> list[PartitionLease]:
        """See JobStore."""
        return [_lease(row) for row in self.rows(LEASES)]

    def take_partitions(self, member: str, wanted: Iterable[int], lease_us: int) -> dict[int, int]:
        """See JobStore."""
        numbers = set(wanted)

        def work(cursor):
            now = now_us()
            free = [p for p in map(_lease, query(cursor, LEASES)) if p.partition in numbers
                    and (p.owner in ("", member) or p.expires_us <= now or p.offered)]
            cursor.executemany(TAKE, [(member, text(now + lease_us), p.partition) for p in free])
            return {p.partition: p.epoch + 1 for p in free}

        return self.write(work)

    def renew_partitions(self, member: str, epochs: Mapping[int, int], lease_us: int) -> set[int]:
        """See JobStore."""
        return self._change(member, epochs, "expires_at = %s", lambda: text(now_us() + lease_us))

    def offer_partitions(self, member: str, epochs: Mapping[int, int]) -> None:
        """See JobStore."""
        self._change(member, epochs, "offered = %s", lambda: 1)

    def release_partitions(self, member: str, epochs: Mapping[int, int]) -> None:
        """See JobStore."""
        self._change(member, epochs, "offered = 0, owner = '', expires_at = %s", lambda: text(now_us()))

    def _change(self, member: str, epochs: Mapping[int, int], change: str, value) -> set[int]:
        def work(cursor):
            mine = {number for number, (_, owner) in owned(cursor, epochs).items() if owner == member}
            cursor.execute(f"UPDATE chrono_partition SET {change} WHERE number IN (SELECT value FROM json_each(%s))",
                           [value(), listed(mine)])
            return mine

        return self.write(work)

    def lane(self, lane: int) -> LaneRecord:
        """See JobStore."""
        found = self.rows(LANE, lane)
        if not found:
            self.write(lambda cursor: cursor.execute("INSERT OR IGNORE INTO chrono_lane (number) VALUES (%s)", [lane]))
            found = self.rows(LANE, lane)
        number, generation, replication_id, began_at, has_plain_tasks = found[0]
        return LaneRecord(number, generation, replication_id, us(began_at) or 0, bool(has_plain_tasks))

    def raise_generation(self, lane: int, seen: int, replication_id: str) -> LaneRecord:
        """See JobStore."""
        self.lane(lane)
        self.write(lambda cursor: cursor.execute(RAISE_GENERATION, [replication_id, text(now_us()), lane, seen]))
        return self.lane(lane)

    def note_plain_tasks(self, lane: int, generation: int, there: bool) -> None:
        """See JobStore."""
        self.write(lambda cursor: cursor.execute(NOTE_PLAIN_TASKS, [int(there), lane, generation]))

    def may_be_running(self, lane: int, lanes: int) -> bool:
        """See JobStore."""
        return any(lane_of(tenant, lanes) == lane for tenant, in self.rows(WAITING_TENANTS, text(now_us())))


def _lease(row: tuple) -> PartitionLease:
    number, owner, epoch, expires_at, offered = row
    return PartitionLease(number, owner, epoch, us(expires_at) or 0, bool(offered))
