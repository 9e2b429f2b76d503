"""The host's own clocks, and how to read a server's against them."""
from __future__ import annotations

import time
from collections.abc import Callable

from chrono_beat.core.clock import Clock, Reading, Signal

MAX_WAIT_US = 3_600_000_000
"""Microseconds of the longest single sleep; whoever wants to sleep longer looks at its work once an hour."""


class SystemClock:
    """The clocks of this host; keeps `chrono_beat.core.clock.Clock`."""

    def wall_us(self) -> int:
        """Return the host's wall clock, in microseconds since 1970 UTC."""
        return time.time_ns() // 1_000

    def monotonic_us(self) -> int:
        """Return the host's monotonic clock, in microseconds since an instant of its own."""
        return time.monotonic_ns() // 1_000

    def wait(self, event: Signal, timeout_us: int) -> bool:
        """Sleep until the event is set.

        Args:
            event: what ends the sleep.
            timeout_us: microseconds after which to wake anyway; at most `MAX_WAIT_US`, none if it is not positive.

        Returns:
            Whether the event is set.
        """
        return event.wait(min(max(timeout_us, 0), MAX_WAIT_US) / 1_000_000)


def take_reading(clock: Clock, server_now_us: Callable[[], int]) -> Reading:
    """Ask a server for its time and note the monotonic clock on both sides.

    Args:
        clock: the host's clocks.
        server_now_us: asks the server; returns microseconds since 1970 UTC. What it raises goes through.

    Returns:
        The reading, for `ServerClock.observe`.
    """
    asked_us = clock.monotonic_us()
    server_us = server_now_us()
    return Reading(asked_us, server_us, clock.monotonic_us())
