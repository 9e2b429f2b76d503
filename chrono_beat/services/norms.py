"""The norms: each minute every tenant's last minutes are compared with its hour before, and what is out of norm is told.

It is told once in an hour while it lasts, and again that it is over. What was told is known to this process only: after a restart
it is told anew, and of several keepers each tells it; an alert is one row all the same.
"""
from __future__ import annotations

from chrono_beat.core.clock import Clock
from chrono_beat.core.crowding import DEPLOYMENT, ENDS, Finding, TenantLoad, find, is_over, together
from chrono_beat.ports import JobStore
from chrono_beat.services.service import Service
from chrono_beat.telemetry import emit

LOOK_EVERY_US = 60_000_000
TELL_EVERY_US = 3_600_000_000


class Norms(Service):
    """Tells what is out of the norm of tenants.

    Args:
        store: the database.
        clock: the host's clocks.
    """

    def __init__(self, store: JobStore, clock: Clock) -> None:
        super().__init__("norms", clock, longest_wait_us=LOOK_EVERY_US)
        self._store = store
        self._told: dict[tuple[str, str], Finding] = {}
        self._again_us: dict[tuple[str, str], int] = {}

    def step(self, now_us: int) -> int:
        """Look once."""
        loads = self._store.loads(self._store.now_us())
        active = {load.tenant: load for load in loads} | {DEPLOYMENT: together(loads)}
        for key, finding in list(self._told.items()):
            if is_over(finding, active.get(finding.tenant, TenantLoad(finding.tenant))):
                del self._told[key], self._again_us[key]
                emit(ENDS[finding.event], tenant=finding.tenant)
        for finding in find(loads):
            self._told.setdefault((finding.event, finding.tenant), finding)
        for key, finding in self._told.items():
            if now_us >= self._again_us.get(key, now_us):
                self._again_us[key] = now_us + TELL_EVERY_US
                emit(finding.event, tenant=finding.tenant, **finding.fields)
        return LOOK_EVERY_US
