"""Holding back the retries of tenants that fail too often, on SQLite."""
from __future__ import annotations

from chrono_beat.core.findings import RetryHold
from chrono_beat_django.store.sqlite_edits import SqliteEdits
from chrono_beat_django.store.sqlite_sql import now_us, query, text

HELD = "SELECT slug FROM chrono_tenant WHERE retries_paused_until <= %s"
RELEASE = "UPDATE chrono_tenant SET retries_paused_until = NULL WHERE retries_paused_until <= %s"
# From a tenant's last change on (a hold, its end, an edit: a trigger dates it) failures are counted anew.
FAILING = """SELECT slug, failed, ended FROM (
    SELECT t.slug, t.failure_threshold, SUM(e.state <> 'succeeded') AS failed, COUNT(*) AS ended
    FROM chrono_tenant t CROSS JOIN chrono_execution e
    WHERE t.failure_threshold IS NOT NULL AND t.retries_paused_until IS NULL
        AND e.tenant = t.slug AND e.state IN ('succeeded', 'failed', 'dead') AND e.finished_at > MAX(%s, t.updated_at)
    GROUP BY t.slug, t.failure_threshold
) WHERE ended >= %s AND failed > 0 AND failed >= failure_threshold * ended"""
HOLD = "UPDATE chrono_tenant SET retries_paused_until = %s WHERE slug = %s AND retries_paused_until IS NULL"


class SqliteHolds(SqliteEdits):
    """The part of JobStore that holds retries back."""

    def hold_retries(self, window_us: int, minimum: int, hold_us: int) -> tuple[list[RetryHold], list[str]]:
        """See JobStore. The write lock is taken only if there is something to write."""
        def find(cursor):
            now = now_us()
            released = [row[0] for row in query(cursor, HELD, text(now))]
            failing = query(cursor, FAILING, text(now - window_us), minimum)
            return [RetryHold(*row, now + hold_us) for row in failing], released

        def work(cursor):
            held, released = find(cursor)
            cursor.execute(RELEASE, [text(now_us())])
            cursor.executemany(HOLD, [(text(hold.until_us), hold.tenant) for hold in held])
            return held, released

        return self.write(work) if any(self.statement(find)) else ([], [])
