"""The zone watch: after an update of the zone data what is planned by the old ones is planned by the new ones.

It looks at its start and once an hour, and works through the jobs in batches, so that no transaction is long. A host
with an older release than the one that was planned with changes nothing, or two hosts would move the plans to and fro.
"""
from __future__ import annotations

from collections.abc import Callable

from chrono_beat.core.clock import Clock
from chrono_beat.services.service import Service

LOOK_EVERY_US = 3_600_000_000
PAUSE_US = 20_000
"""Microseconds between two batches, so that others get at the tables."""


class ZoneWatch(Service):
    """Moves plans to the zone data in use.

    Args:
        work: takes one batch; says whether more is to be done.
        clock: the host's clocks.
    """

    def __init__(self, work: Callable[[], bool], clock: Clock) -> None:
        super().__init__("zones", clock, longest_wait_us=LOOK_EVERY_US)
        self._work = work

    def step(self, now_us: int) -> int:
        """Take one batch."""
        return PAUSE_US if self._work() else LOOK_EVERY_US
