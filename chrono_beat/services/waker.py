"""Wakes the planner when somebody has changed a plan."""
from __future__ import annotations

from collections.abc import Callable

from chrono_beat.core.clock import Clock
from chrono_beat.ports import QueueStore
from chrono_beat.services.service import Service

WAKE_WAIT_SECONDS = 1.0


class Waker(Service):
    """Waits for calls that change plans, and wakes the planner at each.

    Args:
        queue: Redis.
        clock: the host's clocks.
        wake: called at each.
    """

    def __init__(self, queue: QueueStore, clock: Clock, wake: Callable[[], object]) -> None:
        super().__init__("waker", clock)
        self._queue = queue
        self._wake_planner = wake

    def step(self, now_us: int) -> int:
        """Wait, which is this service's work."""
        if self._queue.wait_for_dispatch(WAKE_WAIT_SECONDS):
            self._wake_planner()
        return 0
