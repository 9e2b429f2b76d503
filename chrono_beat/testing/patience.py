"""Patience with a bound, for what watches real processes. Tests below them have no need of it: they move a clock."""
from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(check: Callable[[], T], seconds: float = 10.0, step: float = 0.02, what: object = "") -> T:
    """Return the first true value of a function.

    Args:
        check: asked again and again.
        seconds: for how long.
        step: seconds between two questions.
        what: names the wait in the error.

    Raises:
        AssertionError: the time is over.
    """
    deadline = time.monotonic() + seconds
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what or check}; last value {value!r}")
        time.sleep(step)
