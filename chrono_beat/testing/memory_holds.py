"""What the store keeps of how tenants are held back, in memory: their failing retries, and time spent capped."""
from __future__ import annotations

from collections.abc import Sequence

from chrono_beat.core import lifecycle
from chrono_beat.core.crowding import TenantLoad
from chrono_beat.core.findings import RetryHold
from chrono_beat.core.rollup import merges
from chrono_beat.testing.memory_partitions import MemoryPartitions
from chrono_beat.testing.memory_rollups import add_to, loads, merge_old
from chrono_beat.testing.memory_rows import MemoryExecution, MemoryTenant

_ENDED = (lifecycle.SUCCEEDED, lifecycle.FAILED, lifecycle.DEAD)


class MemoryHolds(MemoryPartitions):
    """The part of JobStore that holds retries back, and notes what a cap has held back."""

    tenants: dict[str, MemoryTenant]
    executions: dict[str, MemoryExecution]

    def hold_retries(self, window_us: int, minimum: int, hold_us: int) -> tuple[list[RetryHold], list[str]]:
        """See JobStore."""
        with self._transaction() as now:
            held, released = [], []
            for tenant in self.tenants.values():
                until = tenant.retries_paused_until_us
                if until is not None and until <= now:
                    released.append(tenant.slug)
                    self._journal.set(tenant, retries_paused_until_us=None, changed_us=now)
                elif until is None and tenant.failure_threshold is not None:
                    failed, ended = self._ended(tenant, now - window_us)
                    if ended >= minimum and failed and failed >= tenant.failure_threshold * ended:
                        held.append(RetryHold(tenant.slug, failed, ended, now + hold_us))
                        self._journal.set(tenant, retries_paused_until_us=now + hold_us, changed_us=now)
            return held, released

    def add_capped(self, spells: Sequence[tuple[str, int, int]]) -> None:
        """See JobStore."""
        with self._transaction():
            add_to("capped_us", self.rollups, self._journal, spells)

    def add_reaps(self, reaps: Sequence[tuple[str, int, int]]) -> None:
        """See JobStore."""
        with self._transaction():
            add_to("reaps", self.rollups, self._journal, reaps)

    def loads(self, now_us: int) -> list[TenantLoad]:
        """See JobStore."""
        with self._transaction():
            objectives = {slug: tenant.lateness_objective_seconds for slug, tenant in self.tenants.items()}
            return loads(self.rollups, objectives, now_us)

    def merge_rollups(self, now_us: int, retention_us: int, limit: int) -> int:
        """See JobStore."""
        with self._transaction():
            return merge_old({"minute": self.rollups, **self.merged}, self._journal, merges(now_us, retention_us), limit)

    def prune(self, now_us: int, retention_us: int, limit: int) -> int:
        """See JobStore. Memory has none of these."""
        return 0

    def _ended(self, tenant: MemoryTenant, since_us: int) -> tuple[int, int]:
        """Count the tenant's runs that failed, and all that ended, since then and since its last change."""
        states = [row.state for row in self.executions.values()
                  if row.tenant == tenant.slug and row.state in _ENDED
                  and (row.finished_us or 0) > max(since_us, tenant.changed_us)]
        return sum(state != lifecycle.SUCCEEDED for state in states), len(states)

    def _held_back(self, row: MemoryExecution, now: int) -> bool:
        """Say whether a row is a retry of a tenant whose retries are held back."""
        tenant = self.tenants.get(row.tenant)
        return row.kind == "retry" and tenant is not None and (tenant.retries_paused_until_us or 0) > now
