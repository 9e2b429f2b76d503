"""Lines of receivers: each is told one alert after another, and all side by side.

One that does not answer holds up what is meant for it and nothing else. Threads are started when there is something to
tell and end when there is not; they take turns between the receivers.

Known weakness: more than `MAX_THREADS` receivers that do not answer at the same time do hold up the others, each for as
long as a sender takes to give up.
"""
from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

logger = logging.getLogger(__name__)

MAX_THREADS = 32
MAX_LINE = 200
"""What waits for one receiver; more is not taken."""


class Lines:
    """Runs what it is given: in order for one name, at the same time for several.

    Args:
        at_end: called in each thread as its last act, for instance to close its connections.
    """

    def __init__(self, at_end: Callable[[], object] = lambda: None) -> None:
        self._at_end = at_end
        self._changed = threading.Condition()
        self._lines: dict[str, deque[Callable[[], object]]] = {}
        self._ready: deque[str] = deque()            # names whose next is to run, and of which nothing runs
        self._threads = 0

    def add(self, name: str, call: Callable[[], object]) -> bool:
        """Run something behind what waits for the same name; False where too much does."""
        with self._changed:
            if name not in self._lines:
                self._lines[name] = deque()
                self._ready.append(name)
            if len(self._lines[name]) >= MAX_LINE:
                return False
            self._lines[name].append(call)
            if self._threads < min(MAX_THREADS, len(self._lines)):
                self._threads += 1
                threading.Thread(target=self._run, name="chrono-alert-line", daemon=True).start()
        return True

    def wait(self, seconds: float) -> bool:
        """Wait until nothing is left to run, so many seconds at most; returns whether nothing is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._lines, seconds)

    def _run(self) -> None:
        try:
            while (name := self._next()) is not None:
                try:
                    self._lines[name][0]()
                except BaseException:                # a receiver in this process may even ask for its end
                    logger.exception("telling %s ended as nobody expected", name)
                finally:
                    self._done(name)
        finally:
            self._at_end()

    def _next(self) -> str | None:
        with self._changed:
            if self._ready:
                return self._ready.popleft()
            self._threads -= 1
            return None

    def _done(self, name: str) -> None:
        with self._changed:
            self._lines[name].popleft()
            if self._lines[name]:
                self._ready.append(name)
            else:
                del self._lines[name]
            self._changed.notify_all()
