"""A clock that stands still until a test moves it."""
from __future__ import annotations

import heapq
import threading
from collections.abc import Callable

from chrono_beat.core.clock import Signal

DEFAULT_WALL_US = 1_767_344_400_000_000
"""Where a ManualClock's wall clock stands if nothing else is said: 2026-01-02 09:00:00 UTC, in microseconds."""

DEFAULT_MONOTONIC_US = 1_000_000_000
"""Where its monotonic clock stands, in microseconds; far from the wall clock, so that a mix-up shows."""


class ManualClock:
    """A host's clocks for tests: time passes when the test says so, and when someone sleeps.

    A loop that sleeps by `wait` runs through hours in no time and in one thread: its sleep moves the clock on by what
    it wanted to sleep. What has to happen meanwhile is planned with `call_at` or `call_in`, also the end of the loop::

        clock = ManualClock()
        stop = threading.Event()
        clock.call_in(stop.set, seconds=60)
        run_some_loop(clock, stop)

    Any thread may use it; but threads that sleep on one ManualClock push the same time ahead together, in no order.

    Args:
        wall_us: the wall clock's start, in microseconds since 1970 UTC.
        monotonic_us: the monotonic clock's start, in microseconds.
    """

    def __init__(self, *, wall_us: int = DEFAULT_WALL_US, monotonic_us: int = DEFAULT_MONOTONIC_US) -> None:
        self._lock = threading.RLock()
        self._monotonic_us = monotonic_us
        self._wall_ahead_us = wall_us - monotonic_us
        self._planned: list[tuple[int, int, Callable[[], object]]] = []
        self._plans = 0

    def wall_us(self) -> int:
        """Return the wall clock, in microseconds since 1970 UTC."""
        with self._lock:
            return self._monotonic_us + self._wall_ahead_us

    def monotonic_us(self) -> int:
        """Return the monotonic clock, in microseconds."""
        with self._lock:
            return self._monotonic_us

    def advance(self, *, seconds: float = 0, us: int = 0) -> None:
        """Let time pass on both clocks; planned calls are made on the way, each at its own instant.

        Args:
            seconds: how long, in seconds.
            us: and so many microseconds.

        Raises:
            ValueError: time would go back; `step_wall` is what can.
        """
        passed_us = _in_us(seconds, us)
        if passed_us < 0:
            raise ValueError(f"time can't pass by {passed_us} µs; step_wall() sets the wall clock back")
        self._pass_until(self.monotonic_us() + passed_us, None)

    def step_wall(self, us: int) -> None:
        """Set the wall clock alone, as a correction or an operator would.

        Args:
            us: microseconds ahead, or back if negative.
        """
        with self._lock:
            self._wall_ahead_us += us

    def wait(self, event: Signal, timeout_us: int) -> bool:
        """Let the time pass that the caller wants to sleep, or what goes by until a planned call sets the event.

        Args:
            event: what ends the sleep.
            timeout_us: microseconds; none pass if it is not positive, or if the event is set already.

        Returns:
            Whether the event is set.
        """
        if not event.is_set():
            self._pass_until(self.monotonic_us() + max(timeout_us, 0), event)
        return event.is_set()

    def call_at(self, monotonic_us: int, call: Callable[[], object]) -> None:
        """Plan a call for an instant of the monotonic clock, in microseconds; a past one is made when time passes next.

        The call runs in the thread that lets the time pass, may plan further calls, and its exception goes to there.
        """
        with self._lock:
            self._plans += 1
            heapq.heappush(self._planned, (monotonic_us, self._plans, call))

    def call_in(self, call: Callable[[], object], *, seconds: float = 0, us: int = 0) -> None:
        """Plan a call for so many seconds and microseconds from now."""
        self.call_at(self.monotonic_us() + _in_us(seconds, us), call)

    def _pass_until(self, end_us: int, event: Signal | None) -> None:
        while True:
            with self._lock:
                if event is not None and event.is_set():
                    return
                if not self._planned or self._planned[0][0] > end_us:
                    self._monotonic_us = max(self._monotonic_us, end_us)
                    return
                at_us, _, call = heapq.heappop(self._planned)
                self._monotonic_us = max(self._monotonic_us, at_us)
            call()


def _in_us(seconds: float, us: int) -> int:
    return round(seconds * 1_000_000) + us
