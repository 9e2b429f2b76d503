"""The database behind :class:`chrono_beat.ports.JobStore`: the only place with queries that lock.

PostgreSQL and SQLite have a family of modules each, since what is fast and safe differs: on PostgreSQL single
statements over arrays, so that a stopped client leaves no lock; on SQLite one writer that reads, decides and writes.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from chrono_beat_django.store import layout
from chrono_beat_django.store.eta_tasks import EtaTasks
from chrono_beat_django.store.message_targets import MessageTargets
from chrono_beat_django.store.postgres_audit import PostgresAudit
from chrono_beat_django.store.postgres_flags import PostgresFlags
from chrono_beat_django.store.postgres_holds import PostgresHolds
from chrono_beat_django.store.sqlite_audit import SqliteAudit
from chrono_beat_django.store.sqlite_flags import SqliteFlags
from chrono_beat_django.store.sqlite_holds import SqliteHolds
from chrono_beat_django.store.streaks import SkipStreaks

if TYPE_CHECKING:
    from chrono_beat.ports import JobStore

__all__ = ["DjangoJobStore"]


class DjangoJobStore:
    """JobStore on one of Django's databases; what is made is the store of that database's engine.

    It may be shared by threads: each works on its own connection. It opens connections when needed, and a broken one is
    given up, so a caller that got StoreUnavailable just calls again later.

    Args:
        alias: name of the database in Django's settings.
    """

    def __new__(cls, alias: str = "default") -> JobStore:  # type: ignore[misc]
        """Choose the engine.

        Raises:
            ImproperlyConfigured: the engine is neither PostgreSQL nor SQLite.
        """
        vendor = connections[alias].vendor
        if vendor == "postgresql":
            return PostgresJobStore(alias)
        if vendor == "sqlite":
            return SqliteJobStore(alias)
        raise ImproperlyConfigured(f"chrono_beat keeps its jobs in PostgreSQL or SQLite, not in {vendor} ({alias!r})")


class _Layout:
    alias: str

    def layout(self) -> tuple[int, int]:
        """Return how many partitions and lanes the database was made for; (0, 0) before the first migrate."""
        return layout.read(self.alias)


class PostgresJobStore(_Layout, MessageTargets, PostgresFlags, PostgresHolds, PostgresAudit, EtaTasks, SkipStreaks):
    """JobStore on PostgreSQL."""


class SqliteJobStore(_Layout, MessageTargets, SqliteFlags, SqliteHolds, SqliteAudit, EtaTasks, SkipStreaks):
    """JobStore on SQLite: one dispatcher, no other server."""
