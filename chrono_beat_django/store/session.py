"""The way to the database: one unit of work at a time, on the calling thread's Django connection.

Everything of a unit is committed or nothing is. What PostgreSQL breaks off to resolve a deadlock is tried again; a
broken connection is closed, so that the next call opens a new one, and the caller gets StoreUnavailable. After
StoreUnavailable the unit may or may not have been committed: the answer can be lost after the commit as well as
before.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from django.db import DatabaseError, InterfaceError, OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from chrono_beat.core.errors import StoreUnavailable

Cursor = Any        # Django's cursor wrapper has no public type
Answer = TypeVar("Answer")

ATTEMPTS = 3
_DEADLOCK_OR_SERIALIZATION = {"40P01", "40001"}


class Session:
    """Units of work on one database.

    Args:
        alias: name of the database in Django's settings.
    """

    def __init__(self, alias: str = "default") -> None:
        self.alias = alias

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """The calling thread's connection."""
        return connections[self.alias]

    def statement(self, work: Callable[[Cursor], Answer]) -> Answer:
        """Run one statement, or several that only read, each committed by the server itself.

        A client that is stopped in the middle keeps no lock: what it had sent is finished without it.
        """
        return self._attempt(lambda: self._on_cursor(work))

    def transaction(self, work: Callable[[Cursor], Answer]) -> Answer:
        """Run several statements in one transaction."""
        def in_transaction() -> Answer:
            with transaction.atomic(using=self.alias):
                return self._on_cursor(work)

        return self._attempt(in_transaction)

    def _on_cursor(self, work: Callable[[Cursor], Answer]) -> Answer:
        with self.connection.cursor() as cursor:
            return work(cursor)

    def _attempt(self, unit: Callable[[], Answer]) -> Answer:
        nested = self.connection.in_atomic_block
        for left in reversed(range(ATTEMPTS)):
            try:
                return unit()
            except (OperationalError, InterfaceError) as broken:
                if nested:
                    raise StoreUnavailable(_text(broken)) from broken
                if not is_deadlock(broken):
                    self._close()
                    raise StoreUnavailable(_text(broken)) from broken
                if not left:
                    raise StoreUnavailable(_text(broken)) from broken
        raise AssertionError("unreachable")

    def _close(self) -> None:
        try:
            self.connection.close()
        except DatabaseError:       # it was broken; Django has let go of it nevertheless
            pass


def is_deadlock(error: Exception) -> bool:
    """Say whether the server ended the transaction for the sake of another one, so that it may be repeated."""
    return getattr(error.__cause__, "sqlstate", None) in _DEADLOCK_OR_SERIALIZATION


def _text(error: Exception) -> str:
    return f"the database broke off: {' '.join(str(error).split())}"
