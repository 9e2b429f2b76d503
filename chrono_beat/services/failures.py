"""The failure watch: where a tenant's runs fail too often, its retries wait.

A target that is down makes every run fail and every failure a retry, until the retries keep it down. A tenant with a
`failure_threshold` is looked at each few seconds: is the share of failures among the runs that ended within the window
not below it, and are they enough to mean something, then retries are left in the database until an instant
(``retries_paused_until`` of the tenant, to be cleared by hand at any time). First attempts, replays and backfills go on;
the first tell when the target is back.

**Weakness.** What a wheel holds already, retries due within HORIZON, starts all the same.
"""
from __future__ import annotations

from chrono_beat.core.clock import Clock
from chrono_beat.core.config import Config
from chrono_beat.ports import JobStore
from chrono_beat.services.service import Service
from chrono_beat.telemetry import emit

LOOK_EVERY_US = 15_000_000


class FailureWatch(Service):
    """Holds back and releases the retries of failing tenants.

    Args:
        store: the database.
        clock: the host's clocks.
        config: the window, how many runs it takes, and how long a hold lasts.
    """

    def __init__(self, store: JobStore, clock: Clock, config: Config) -> None:
        super().__init__("failures", clock, longest_wait_us=LOOK_EVERY_US)
        self._store = store
        self._window_us = round(config.failure_window * 1_000_000)
        self._minimum = config.failure_minimum
        self._hold_us = round(config.retry_hold * 1_000_000)

    def step(self, now_us: int) -> int:
        """Look once. The database's update decides, so of several watches one tells of a hold."""
        held, released = self._store.hold_retries(self._window_us, self._minimum, self._hold_us)
        for hold in held:
            emit("retries_held", tenant=hold.tenant, failed=hold.failed, ended=hold.ended, until_us=hold.until_us)
        for tenant in released:
            emit("retries_released", tenant=tenant)
        return LOOK_EVERY_US
