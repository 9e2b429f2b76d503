"""The tables of single days on PostgreSQL, and how old ones go.

Every day of ``scheduled_at`` has its table ``chrono_execution_20260102``; what lies outside of the days that have one
is in ``chrono_execution_default``. Preparing a day moves its rows out of there first. Whoever needs a strong lock
waits for it LOCK_TIMEOUT_MS at most and otherwise leaves the work to the next call, since everybody else queues up
behind it.

A day goes in two steps. It is looked through without a lock, and taken out of the table under a lock of everything, which
costs a look into one small index; then nobody else sees it, and it may take its time to count its rows and to drop it.
``chrono_execution_past_20260102`` is one between the steps. What ended in it between look and lock is moved back.
"""
from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

from django.db import OperationalError

from chrono_beat.core import lifecycle
from chrono_beat.core.crowding import TenantLoad
from chrono_beat.core.ids import from_us
from chrono_beat.core.records import TenantLimits
from chrono_beat.core.rollup import DAY_US
from chrono_beat_django.store import old_rows, rollups
from chrono_beat_django.store.postgres_records import PostgresRecords
from chrono_beat_django.store.postgres_sql import CLOCK_US, at, us
from chrono_beat_django.store.tenants import OVERLAP_US

TABLE = "chrono_execution"
DAYS_AHEAD = 7
LOCK_TIMEOUT_MS = 800
"""Less than a second together with the work (R167), and than PostgreSQL waits before it looks for deadlocks."""

ADVISORY_KEY = 0x6368726F6E6F     # "chrono"
PAST = f"{TABLE}_past_"
_DAY_TABLE = re.compile(rf"{TABLE}_(\d{{4}})(\d\d)(\d\d)")

TENANTS = f"""SELECT slug, weight, max_running, paused, {us("updated_at")} FROM chrono_tenant
    WHERE {{which}} ORDER BY slug"""
CHANGED = TENANTS.format(which=f"updated_at > {at('%s')}")
NOT_DEFAULT = TENANTS.format(which="weight <> 1 OR max_running <> 20 OR paused")
NEXT_NOT_DEFAULT = TENANTS.format(which="slug > %s AND (weight <> 1 OR max_running <> 20 OR paused)") + " LIMIT %s"

TABLES = """SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = %s::regclass ORDER BY c.relname"""
# Of each row its tenant's retention; {table} is one of the days'. A subselect in its place would look for the tenant of each
# row anew: 14 µs a row among a hundred tenants. Parameters of what is past: now, and before which those of tenants without a
# retention of their own are, in µs.
_ROWS = "{table} e LEFT JOIN chrono_tenant t ON t.slug = e.tenant"
_BEFORE = f"COALESCE({at('%s')} - make_interval(days => t.retention_days::int), {at('%s')})"
_OPEN = "e.state IN ('scheduled', 'queued', 'running')"
_KEPT = f"{_OPEN} OR e.finished_at IS NULL OR e.finished_at >= {_BEFORE}"
IN_USE = f"SELECT EXISTS (SELECT 1 FROM {_ROWS} WHERE {_KEPT})"
SOMETHING_OPEN = f"SELECT EXISTS (SELECT 1 FROM {{table}} e WHERE {_OPEN})"
PAST_TABLES = r"""SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'chrono\_execution\_past\_%%'
    AND pg_table_is_visible(oid) ORDER BY relname"""
MOVE_BACK = f"INSERT INTO {TABLE} SELECT e.* FROM {_ROWS} WHERE {_KEPT}"
DELETE_ROWS = f"""DELETE FROM {{table}} WHERE ctid = ANY (ARRAY(SELECT e.ctid FROM {_ROWS}
    WHERE NOT {_OPEN} AND e.finished_at < {_BEFORE} LIMIT %s))"""
SHORTER = "SELECT slug, retention_days FROM chrono_tenant WHERE retention_days < %s ORDER BY slug"
DELETE_OF_TENANT = f"""DELETE FROM {TABLE} WHERE id = ANY (ARRAY(SELECT id FROM {TABLE} WHERE tenant = %s
    AND state IN ({', '.join(f"'{state}'" for state in lifecycle.TERMINAL)}) AND finished_at < {at("%s")} LIMIT %s))"""
DELETE_JOBS = f"""DELETE FROM chrono_job WHERE id = ANY (ARRAY(
    SELECT id FROM chrono_job WHERE finished_at < {at("%s")} ORDER BY finished_at LIMIT %s))"""


class PostgresDays(PostgresRecords):
    """The part of JobStore for the keeper."""

    def loads(self, now_us: int) -> list[TenantLoad]:
        """See JobStore."""
        return self.statement(lambda cursor: rollups.loads(cursor, now_us))

    def merge_rollups(self, now_us: int, retention_us: int, limit: int) -> int:
        """See JobStore."""
        return self.transaction(lambda cursor: rollups.merge(cursor, now_us, retention_us, limit))

    def tenant_limits(self, changed_since_us: int) -> list[TenantLimits]:
        """See JobStore. A change is told again for some seconds: it may be committed later than it is dated."""
        rows = self._rows(CHANGED, changed_since_us - OVERLAP_US) if changed_since_us else self._rows(NOT_DEFAULT)
        return [TenantLimits(*row) for row in rows]

    def tenant_limits_after(self, slug: str, limit: int) -> list[TenantLimits]:
        """See JobStore."""
        return [TenantLimits(*row) for row in self._rows(NEXT_NOT_DEFAULT, slug, limit)]

    def keep(self, now_us: int, retention_us: int, limit: int) -> int:
        """See JobStore. A day's table goes as a whole, once nothing in it is open or younger than the retention.

        Where a tenant keeps its rows for longer the others' are deleted from the table instead, and so are the rows of a
        tenant that keeps them for less.
        """
        before_us = now_us - retention_us
        self.prepare_days(now_us)
        went = self._drop_past(now_us, before_us)          # what an earlier call has left
        for table, day in self.days().items():
            ended = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
            if went < limit and ended < from_us(before_us):
                in_use = self._value(IN_USE.format(table=table), now_us, before_us)
                went += (self._delete(table, now_us, before_us, limit - went) if in_use
                         else self._drop(table, now_us, before_us))
        for tenant, days in self._rows(SHORTER, retention_us // DAY_US):
            if went < limit:
                went += self._removed(DELETE_OF_TENANT, tenant, now_us - days * DAY_US, limit - went)
        self._removed(DELETE_JOBS, before_us, limit)
        return went + self._delete(f"{TABLE}_default", now_us, before_us, max(limit - went, 0))

    def prune(self, now_us: int, retention_us: int, limit: int) -> int:
        """See JobStore."""
        return self.transaction(lambda cursor: old_rows.prune(cursor, now_us, retention_us, limit, from_us))

    def days(self) -> dict[str, date]:
        """Return {table: day} of all days that have a table, oldest first."""
        found = (_DAY_TABLE.fullmatch(row[0]) for row in self._rows(TABLES, TABLE))
        return {m.group(): date(*(int(part) for part in m.groups())) for m in found if m}

    def prepare_days(self, now_us: int | None = None) -> None:
        """Make the tables of yesterday, today and the coming days, where they are missing."""
        first = from_us(now_us if now_us is not None else int(self._value(f"SELECT {CLOCK_US}"))).date()
        present = set(self.days().values())
        for day in (first + timedelta(days=n) for n in range(-1, DAYS_AHEAD + 1)):
            if day not in present:
                self._patiently(lambda cursor, day=day: _make_day(cursor, day))

    def _delete(self, table: str, now_us: int, before_us: int, limit: int) -> int:
        return self._removed(DELETE_ROWS.format(table=table), now_us, before_us, limit)

    def _removed(self, sql: str, *parameters: object) -> int:
        def work(cursor):
            cursor.execute(sql, parameters)
            return cursor.rowcount

        return self.statement(work)

    def _drop(self, table: str, now_us: int, before_us: int) -> int:
        taken_out = self._patiently(lambda cursor: _take_out(cursor, table))
        return self._drop_past(now_us, before_us) if taken_out else 0

    def _drop_past(self, now_us: int, before_us: int) -> int:
        """Drop the days that have been taken out; returns how many rows went."""
        def work(cursor, table):
            cursor.execute(MOVE_BACK.format(table=table), [now_us, before_us])
            stayed = cursor.rowcount
            cursor.execute(f"SELECT count(*) FROM {table}")
            rows = cursor.fetchone()[0]
            cursor.execute(f"DROP TABLE {table}")
            return rows - stayed

        tables = [row[0] for row in self._rows(PAST_TABLES)]
        return sum(self._patiently(lambda cursor, table=table: work(cursor, table)) or 0 for table in tables)

    def _patiently(self, work):
        """Run a transaction that needs strong locks; None where it did not get them, or another keeper is at it."""
        def limited(cursor):
            cursor.execute(f"SELECT set_config('lock_timeout', '{LOCK_TIMEOUT_MS}', true)")
            cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [ADVISORY_KEY])
            if not cursor.fetchone()[0]:
                return None
            try:
                return work(cursor)
            except OperationalError as error:
                if getattr(error.__cause__, "sqlstate", "") == "55P03":     # lock_not_available
                    raise _LockNotGiven from error
                raise

        try:
            return self.transaction(limited)
        except _LockNotGiven:
            return None


class _LockNotGiven(Exception):
    """The lock was not given in time; the transaction is rolled back and the work left to the next call."""


def _take_out(cursor, table: str) -> bool:
    """Take a day's table out of the whole, within a transaction; returns whether, since what is open stays."""
    # An analyze of this day ends before anybody waits for us. Then the whole before the day, as everybody locks them.
    cursor.execute(f"LOCK TABLE {table} IN SHARE UPDATE EXCLUSIVE MODE")
    cursor.execute(f"LOCK TABLE ONLY {TABLE} IN ACCESS EXCLUSIVE MODE")
    cursor.execute(SOMETHING_OPEN.format(table=table))
    if cursor.fetchone()[0]:
        return False
    cursor.execute(f"ALTER TABLE {TABLE} DETACH PARTITION {table}")
    cursor.execute(f"ALTER TABLE {table} RENAME TO {PAST}{table.removeprefix(f'{TABLE}_')}")
    return True


def _make_day(cursor, day: date) -> None:
    table = f"{TABLE}_{day:%Y%m%d}"
    first, last = (f"'{d.isoformat()} 00:00:00+00'" for d in (day, day + timedelta(days=1)))
    cursor.execute(f"LOCK TABLE {TABLE}_default IN ACCESS EXCLUSIVE MODE")
    cursor.execute(f"CREATE TABLE {table} (LIKE {TABLE} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)")
    cursor.execute(f"""WITH moved AS (
        DELETE FROM {TABLE}_default WHERE scheduled_at >= {first} AND scheduled_at < {last} RETURNING *
    ) INSERT INTO {table} SELECT * FROM moved""")
    cursor.execute(f"ALTER TABLE {TABLE} ATTACH PARTITION {table} FOR VALUES FROM ({first}) TO ({last})")
