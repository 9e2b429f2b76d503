"""The keeper: makes room. Finished executions past retention go, and the engine's coming partitions are prepared."""
from __future__ import annotations

from chrono_beat.core.clock import Clock
from chrono_beat.core.config import Config
from chrono_beat.ports import JobStore
from chrono_beat.services.service import Service
from chrono_beat.telemetry import emit

KEEP_EVERY_US = 3_600_000_000
KEEP_LIMIT = 5_000
"""Rows that one step removes, so that no transaction is long."""

MERGE_LIMIT = 1_000
"""Minutes and hours of tenants that one step merges."""

PAUSE_US = 50_000
"""Microseconds between two steps that removed all they might, so that others get at the tables."""


class Keeper(Service):
    """Keeps the tables to what retention allows.

    Args:
        store: the database.
        clock: the host's clocks.
        config: how long finished executions are kept.
    """

    def __init__(self, store: JobStore, clock: Clock, config: Config) -> None:
        super().__init__("keeper", clock, longest_wait_us=KEEP_EVERY_US)
        self._store = store
        self._retention_us = config.retention_days * 86_400_000_000

    def step(self, now_us: int) -> int:
        """Remove one batch, and merge one."""
        at_us = self._store.now_us()
        removed = self._store.keep(at_us, self._retention_us, KEEP_LIMIT)
        if removed:
            emit("kept", removed=removed)
        merged = self._store.merge_rollups(at_us, self._retention_us, MERGE_LIMIT)
        pruned = self._store.prune(at_us, self._retention_us, KEEP_LIMIT)
        return PAUSE_US if max(removed, pruned) >= KEEP_LIMIT or merged >= MERGE_LIMIT else KEEP_EVERY_US
