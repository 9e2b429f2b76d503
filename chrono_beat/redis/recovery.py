"""The part of QueueStore on Redis that notices a lost memory, and puts back what it can (rules 4 to 6)."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chrono_beat.core.deliveries import Hold
from chrono_beat.core.recovery import LostGrant, Recorded, Renewed


class Recovery:
    """Mixed into RedisQueueStore."""

    def _run(self, name: str, lane: int, *args: Any) -> Any:
        raise NotImplementedError

    def lacking(self, lane: int, generation: int, execution_ids: Sequence[str]) -> list[str] | None:
        found = self._run("lacking", lane, generation, *execution_ids)
        return None if found is None else [id_.decode() for id_ in found]

    def renew(self, lane: int, worker: str, holds: Sequence[Hold], lease_us: int) -> Renewed:
        expires_us, lost, unknown = self._run(
            "renew", lane, worker, lease_us, *(part for hold in holds for part in hold))
        return Renewed(int(expires_us), [id_.decode() for id_ in lost], [id_.decode() for id_ in unknown])

    def bring_back(self, lane: int, worker: str, grants: Sequence[LostGrant], lease_us: int) -> list[str]:
        flat: list[Any] = []
        for hold, expires_us, grant in grants:
            flat += (*hold, expires_us, grant)
        return [id_.decode() for id_ in self._run("bring_back", lane, worker, lease_us, *flat)]

    def recorded(self, lane: int, generation: str, holds: Sequence[Hold]) -> Recorded:
        now, done, gone = self._run("recorded", lane, generation, *(part for hold in holds for part in hold))
        return Recorded(now.decode(), [id_.decode() for id_ in done], [id_.decode() for id_ in gone])
