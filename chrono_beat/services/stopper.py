"""The stopper: tells workers which of their running executions are to make room for another one (policy replace).

Publishing decides who is to stop; telling the worker is a call of its own, so it happens here, off the hot path. Nothing
hangs on it: what is not told, since Redis broke off or this process died, is told by the reaper a second later, and
withdrawn when its grace is over.
"""
from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from chrono_beat.core.clock import Clock
from chrono_beat.core.deliveries import REPLACE, Hold, stop_message
from chrono_beat.core.records import Stop
from chrono_beat.ports import QueueStore
from chrono_beat.services.service import Service
from chrono_beat.telemetry import emit

MAX_STOPS = 10_000
"""Stops that wait to be told; the oldest go first, and are told by the reaper."""


class Stopper(Service):
    """Sends the control messages of a firing thread.

    Args:
        queue: Redis.
        clock: the host's clocks.
    """

    def __init__(self, queue: QueueStore, clock: Clock) -> None:
        super().__init__("stopper", clock)
        self._queue = queue
        self._stops: deque[tuple[int, Stop]] = deque(maxlen=MAX_STOPS)

    def add(self, lane: int, stops: Iterable[Stop]) -> None:
        """Have workers told, soon."""
        self._stops.extend((lane, stop) for stop in stops)
        self.wake()

    def step(self, now_us: int) -> int:
        """Tell of all that waits."""
        while self._stops:
            lane, stop = self._stops.popleft()
            tell(self._queue, lane, [stop])
        return self._longest_wait_us


def tell(queue: QueueStore, lane: int, stops: Iterable[Stop]) -> None:
    """Send each worker its control message."""
    told = list(stops)
    for stop in told:
        queue.wake_worker(stop.worker, [lane], stop_message(Hold(stop.execution_id, stop.token), REPLACE))
    if told:
        emit("stop_told", lane=lane, stops=told)
