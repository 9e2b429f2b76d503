"""How values travel to SQLite and back, and transactions that can't be refused half-way.

Instants are Django's text (``2026-01-02 09:00:00`` and a fraction if it is not zero, UTC), so they sort as text; ids
of jobs are 32 hexadecimal digits. SQLite takes any value in any column, so what is read is checked: a row that can't
be read raises Unreadable and must not stop its neighbours. SQLite has no clock of its own: time is the host's.
"""
from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from chrono_beat.core.ids import from_us, to_us
from chrono_beat.core.records import Content
from chrono_beat_django.store.session import Answer, Cursor, Session


class Unreadable(ValueError):
    """A row holds something that its column is not meant for."""


def now_us() -> int:
    """Return the host's clock, which is SQLite's."""
    return time.time_ns() // 1000


def text(us: int | None) -> str | None:
    """Write an instant as Django does."""
    return None if us is None else str(from_us(us).replace(tzinfo=None))


def us(written: object) -> int | None:
    """Read an instant.

    Raises:
        Unreadable: it is none.
    """
    if written is None:
        return None
    try:
        return to_us(datetime.fromisoformat(str(written)).replace(tzinfo=UTC))
    except ValueError:
        raise Unreadable(f"not an instant: {str(written)[:40]!r}") from None


def dashed(hexadecimal: object) -> str:
    """Return a job's id as text with dashes.

    Raises:
        Unreadable: it is not a UUID.
    """
    try:
        return str(uuid.UUID(hex=str(hexadecimal)))
    except ValueError:
        raise Unreadable(f"not a job's id: {str(hexadecimal)[:40]!r}") from None


def bare(job_id: str) -> str:
    """Return a job's id as the table has it."""
    return job_id.replace("-", "")


def checked(row: Iterable[Any], kinds: Iterable[type | tuple[type, ...]]) -> None:
    """Compare values with the types that their columns are meant for; None passes where NoneType is named.

    Raises:
        Unreadable: one is of another type.
    """
    for value, kind in zip(row, kinds, strict=True):
        if not isinstance(value, kind):
            raise Unreadable(f"a value of the wrong type: {str(value)[:40]!r}")


def listed(values: Iterable[object]) -> str:
    """Write a list parameter for ``IN (SELECT value FROM json_each(%s))``."""
    return json.dumps(list(values))


# The content of a job, as a ScheduledExecution and a DueJob carry it; j is the job, t its tenant.
CONTENT = """j.tenant, j.name, j.task, {args}, {kwargs}, j.headers, COALESCE(NULLIF(j.pool, ''), t.pool, ''),
    j.priority, j.soft_limit_seconds, j.max_duration_seconds, j.expires_after_seconds, j.concurrency, j.key_scope,
    j.exclusion_group"""
_NUMBER = (int, float, type(None))
CONTENT_TYPES = (str, str, str, str, str, str, str, int, _NUMBER, _NUMBER, _NUMBER, str, str, str)


def content(row: tuple) -> Content:
    """Build a Content of the columns of CONTENT.

    Raises:
        Unreadable: a value has the wrong type.
    """
    checked(row, CONTENT_TYPES)
    return Content._make(row)


class SqliteSession(Session):
    """Units of work on SQLite, which has one writer at a time."""

    def write(self, work: Callable[[Cursor], Answer]) -> Answer:
        """Run a transaction that holds the write lock from its first statement on.

        A transaction that began with a read would be refused with "database is locked", busy time-out or not, if
        somebody else had written meanwhile.
        """
        connection: Any = self.connection
        if connection.in_atomic_block:
            return self.transaction(work)
        self.statement(lambda cursor: None)        # connects, and reads the configured mode
        configured = connection.transaction_mode
        connection.transaction_mode = "IMMEDIATE"
        try:
            return self.transaction(work)
        finally:
            connection.transaction_mode = configured

    def rows(self, sql: str, *parameters: object) -> list[tuple]:
        """Run one query."""
        return self.statement(lambda cursor: query(cursor, sql, *parameters))


def query(cursor: Cursor, sql: str, *parameters: object) -> list[tuple]:
    """Run a query within a unit of work."""
    cursor.execute(sql, parameters)
    return cursor.fetchall()


def owned(cursor: Cursor, epochs: Mapping[int, int]) -> dict[int, tuple[int, str]]:
    """Return {partition: (epoch, owner)} of those that somebody owns under the given epoch."""
    rows = query(cursor, "SELECT number, epoch, owner FROM chrono_partition WHERE owner <> ''")
    return {number: (epoch, owner) for number, epoch, owner in rows if epochs.get(number) == epoch}
