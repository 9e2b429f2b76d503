"""What a worker is told while it works: a control message says which delivery to stop, and why.

    {"stop": "<execution id>", "token": "<token>", "why": "cancel" | "replace" | "duration"}

Cancel, replace and max_duration all end a delivery in the same way. One whose body has not begun is settled without
running. A prefork child is ended: SIGTERM, and SIGKILL a second later; the delivery is settled when it is gone. Other
pools cannot end a body: ``current().cancelled`` tells it, and what it reports then counts for nothing. It has a grace
time to return by itself; after that, or at once where it has run for max_duration, the delivery is settled without
it. Lease, slot and lock are free then, while the body may still be finishing.

A delivery that is told to stop ends as that, also if its body returns as if nothing had been.

Known weakness: under gevent the message is heard when running bodies yield.
"""
from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from chrono_beat.celery.worker import endings
from chrono_beat.celery.worker.held import HeldDelivery
from chrono_beat.core.deliveries import CANCEL, DURATION, RAN_REVOKED, RAN_SUPERSEDED, REPLACE

logger = logging.getLogger(__name__)

MAX_EARLY = 1_000                   # stops that are kept for deliveries whose draw has not been answered yet
EARLY_SECONDS = 60.0
KILL_PATIENCE_SECONDS = 5.0         # how long the pool may take to report a child that was killed
MAX_MESSAGE_CHARACTERS = 2_000


class Stop(NamedTuple):
    """A control message that was understood."""

    execution_id: str
    token: str
    why: str


def parse(message: str) -> Stop:
    """Return what a control message says.

    Raises:
        ValueError: it is none. The text does not repeat what was sent.
    """
    if len(message) > MAX_MESSAGE_CHARACTERS:
        raise ValueError("longer than any message that is known")
    try:
        document = json.loads(message)
    except (ValueError, RecursionError):
        raise ValueError("no JSON") from None
    if not isinstance(document, dict):
        raise ValueError("no JSON object")
    values = [document.get(name) for name in ("stop", "token", "why")]
    if not all(isinstance(value, str) and value for value in values):
        raise ValueError("stop, token or why is missing or no text")
    stop = Stop(*values)
    if stop.why not in (CANCEL, REPLACE, DURATION):
        raise ValueError("an unknown reason")
    return stop


def ending(why: str, limit_seconds: float | None = None) -> endings.Ending:
    """Return how a delivery that was stopped is settled."""
    if why == DURATION:
        return endings.hard_timeout(limit_seconds)
    if why == REPLACE:
        error = {"type": "Superseded", "message": "a newer occurrence took its place", "traceback": ""}
        return RAN_SUPERSEDED, {"error": error}
    return RAN_REVOKED, {"error": {"type": "Cancelled", "message": "cancelled while it ran", "traceback": ""}}


class Stops:
    """Hears control messages, and has deliveries stopped.

    Args:
        find: returns a held delivery by execution id and token.
        interrupt: ends a body that has been given to the pool, or takes it back from there, where the pool can.
        counts: the worker's Counts.
        can_kill: says whether the pool ends single bodies.
        grace_seconds: how long a body that cannot be ended has to return by itself.
        never_began: told of a delivery that was cancelled and will not begin.
    """

    def __init__(
        self,
        find: Callable[[str, str], HeldDelivery | None],
        interrupt: Callable[[HeldDelivery], None],
        counts: Any,
        can_kill: Callable[[], bool],
        grace_seconds: float,
        never_began: Callable[[HeldDelivery], None],
    ) -> None:
        self._find, self._interrupt, self._counts, self._can_kill = find, interrupt, counts, can_kill
        self._grace, self._never_began = grace_seconds, never_began
        self._early: dict[tuple[str, str], tuple[float, str]] = {}
        self._lock = threading.Lock()

    def hear(self, message: str) -> None:
        """Do what a control message says; one that is none is counted."""
        try:
            stop = parse(message)
        except ValueError as error:
            self._counts.bad_messages += 1
            logger.warning("chrono_beat: a control message was let go: %s", error)
            return
        with self._lock:
            held = self._find(stop.execution_id, stop.token)
            if held is None:
                self._remember(stop)
        if held is not None:
            self.stop(held, stop.why)

    def meet(self, held: HeldDelivery) -> None:
        """Look at a delivery that was just drawn: the word to stop it may have come before the draw's reply."""
        if self._early:
            with self._lock:
                _, why = self._early.pop((held.hold.execution_id, held.hold.token), (0.0, ""))
            if why:
                self.stop(held, why)

    def stop(self, held: HeldDelivery, why: str) -> None:
        """Stop one delivery; a second time, or after its end, changes nothing."""
        if self._tell(held, why, self._grace if why != DURATION else self._patience()):
            logger.info("chrono_beat: %s is stopped: %s", held.hold.execution_id, why)
            if not held.ended:
                self._interrupt(held)
            elif why == CANCEL:
                self._never_began(held)

    def overdue(self, held: HeldDelivery, kill: Callable[[HeldDelivery], None]) -> endings.Ending | None:
        """Do what is due at a delivery's deadline.

        Where nobody has told it to stop, it has run for max_duration. A prefork pool ends it then by itself, but only
        while its event loop turns: not while it is joined in a warm shutdown.

        Args:
            held: the delivery.
            kill: ends its body, where the pool can.

        Returns:
            How it was settled, with its body still running; None where the body is being ended.
        """
        if not held.stopping and self._tell(held, DURATION, self._patience()) and self._can_kill():
            kill(held)
            return None
        return held.end_overrun()

    def _tell(self, held: HeldDelivery, why: str, seconds: float) -> bool:
        told = held.stop(why, ending(why, held.limit_seconds), time.monotonic() + seconds)
        self._counts.stopped += told
        return told

    def _patience(self) -> float:
        return KILL_PATIENCE_SECONDS if self._can_kill() else 0.0

    def _remember(self, stop: Stop) -> None:
        now = time.monotonic()
        if len(self._early) >= MAX_EARLY:
            self._early = {key: early for key, early in self._early.items() if early[0] > now}
        if len(self._early) < MAX_EARLY:
            self._early[stop.execution_id, stop.token] = (now + EARLY_SECONDS, stop.why)
