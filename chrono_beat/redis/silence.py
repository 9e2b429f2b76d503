"""A Redis that takes calls and does not answer, seen by those whom somebody waits for.

One that is down refuses a call at once. One that hangs (stopped, swapped out, behind a network that drops packets) costs
each call its whole time-out, and a request, an admin's page or a command makes several. What they tell Redis is a hint:
the database has it, and dispatchers, which wait longer, tell it again. So after one time-out nobody asks for a while, and
each call is refused at once, as if Redis were down. Then one call asks for all.

**Weakness.** Refused is also what comes within that while of Redis' return. A server that does answer, but each time just
within the time-out, is not noticed.
"""
from __future__ import annotations

import math
import time
from collections.abc import Callable

from chrono_beat.core.errors import QueueUnavailable

ASK_AGAIN_SECONDS = 5.0
"""Longer than a time-out, or every request would wait for one; short, since those who are refused do without Redis."""


class Silence:
    """Remembers that a server did not answer; shared by all threads of a process.

    It has no lock: where two threads ask in the same instant, both wait for a time-out, and nothing else comes of it.

    Args:
        clock: returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: float | None = None

    def check(self) -> None:
        """Let a call pass, unless the server has not answered lately.

        Raises:
            QueueUnavailable: nobody asks it now.
        """
        until = self._until
        if until is None:
            return
        now = self._clock()
        if now < until:
            raise QueueUnavailable(f"Redis: no answer a moment ago; it is asked again in {math.ceil(until - now)} s")
        self._until = now + ASK_AGAIN_SECONDS              # the others wait for what this call hears

    def begin(self) -> None:
        """Note that a call was not answered in time."""
        self._until = self._clock() + ASK_AGAIN_SECONDS

    def end(self) -> None:
        """Note that the server answers, or refuses: neither takes long."""
        self._until = None
