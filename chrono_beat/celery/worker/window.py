"""The start window (protocol rule 10): a delivery begins within so many seconds of its draw, or not at all.

A pause, an edit or a cancel waits that long for what was drawn before it, so nothing may begin later: not in a pool that
was busy, a child that was stopped, or after Celery's rate limit has held a task back. Three places look at the clock:

- before the pool is given it: then Redis is asked to grant it anew, in one script (void checked, new token, new window),
  which a rate limit needs, since a delivery that went back would wait for its turn again and again;
- when the pool says that the body begins: one that is too late is not called started;
- in the process, thread or greenlet that runs the body, right before it: then the delivery goes back to the front of its
  tenant, as if it had never been handed out.

The window begins where the worker sent its draw, on the monotonic clock, which all processes of a host share. Known
weakness: a process that is stopped between that last look and the body's first line begins late. And one that is
stopped between the last two looks is reported as started, though its body does not run.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

NOT_BEGUN = (0, "chrono_beat: its start window was over", -1.0)
"""What the pool returns for a body that did not begin: no trace has a negative running time."""


def begin_in_time(begin_by: float, trace: Callable[..., Any], *args: Any) -> Any:
    """Run a task unless its window is over; in the place where its body runs.

    Args:
        begin_by: on the monotonic clock, in seconds.
        trace: Celery's function that runs a task.
        args: its arguments.
    """
    if time.monotonic() > begin_by:                  # rule 10
        return NOT_BEGUN
    return trace(*args)


def is_not_begun(returned: Sequence[Any]) -> bool:
    """Say whether what the pool returned stands for a body that did not begin."""
    return tuple(returned[1:]) == NOT_BEGUN[1:]


class WindowedPool:
    """A pool that runs what it is given only in time.

    Args:
        pool: Celery's.
        begin_by: on the monotonic clock, in seconds.
    """

    def __init__(self, pool: Any, begin_by: float) -> None:
        self._pool, self._begin_by = pool, begin_by

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def apply_async(self, target: Callable[..., Any], args: Sequence[Any] = (), **options: Any) -> Any:
        """Hand a body to the pool."""
        return self._pool.apply_async(begin_in_time, args=(self._begin_by, target, *args), **options)
