"""A delivery in this worker's hands, from its draw until Redis has taken its end.

Several threads look at it: the hub's thread or a pool thread ends it, the I/O thread sends that end, the renewal
thread keeps its lease. What must happen once, happens under its lock.
"""
from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from chrono_beat.core.records import RAN_LOST, Delivery, Hold

Ending = tuple[str, Mapping[str, Any]]


class HeldDelivery:
    """State of one delivery.

    Attributes:
        request: Celery's Request, once there is one.
        job: what the pool returned for it. Celery keeps a weak reference only, and the threads pool nothing else:
            without this one, a queued job could not be cancelled.
        submitted: the pool was given it.
        accepted: the pool said that the body begins.
        ended: its end was decided; a later report changes nothing.
        lost: a newer grant exists; what is reported for it will be refused.
    """

    def __init__(self, lane: int, delivery: Delivery, io: Any) -> None:
        self.lane = lane
        self.delivery = delivery
        self.hold = Hold(delivery.execution_id, delivery.token)
        self.request: Any = None
        self.job: Any = None
        self.submitted = self.accepted = self.ended = self.lost = False
        self.task_name = ""
        self._claimed: Ending | None = None
        self._io = io
        self._lock = threading.Lock()

    def begin(self) -> bool:
        """Say whether the pool may be given it: not if it was given back, has ended, or went to somebody else.

        A start window (a delivery not begun within so many seconds of its draw is given back) has its place here and,
        since a pool may hold a job before its body begins, at the top of the body's process.
        """
        with self._lock:
            if self.ended:
                return False
            if self.lost:
                self.ended = True
                self._io.forget(self)
                return False
            self.submitted = True
            return True

    def accept(self) -> None:
        """Note that the body begins."""
        with self._lock:
            if self.accepted or self.ended:
                return
            self.accepted = True
        self._io.accepted(self)

    def claim(self, result: str, detail: Mapping[str, Any]) -> bool:
        """Fix the result ahead of the end: whoever kills a body says so first, since its pool may report another story.

        Returns:
            Whether this was the first claim.
        """
        with self._lock:
            if self.ended or self._claimed:
                return False
            self._claimed = result, detail
            return True

    def unclaim(self) -> None:
        """Take the claim back: the pool cannot kill, the body goes on."""
        with self._lock:
            self._claimed = None

    def end(self, result: str, detail: Mapping[str, Any], *, settle_after_seconds: float = 0.0) -> None:
        """Settle it, once; later calls change nothing (a hard limit is reported twice).

        Args:
            result, detail: as in a Settlement; a claim goes before them.
            settle_after_seconds: hold the settlement back until the body is really gone.
        """
        with self._lock:
            if self.ended:
                return
            self.ended = True
            result, detail = self._claimed or (result, detail)
        self._io.settle(self, result, detail, settle_after_seconds)

    def give_back(self) -> None:
        """Return it to the front of its tenant: its body has not begun and will not."""
        with self._lock:
            if self.ended:
                return
            self.ended = True
        self._io.give_back(self)

    def hand_back(self, why: str) -> None:
        """End it as lost: its body has begun, or may have, and was ended with the worker."""
        self.end(RAN_LOST, {"error": {"type": "WorkerLostError", "message": why, "traceback": ""}})

    def stop_drawing(self) -> None:
        """Let the worker draw nothing more until it is started again."""
        self._io.stop_drawing()

    def release(self) -> None:
        """Let go of Celery's objects: Redis has taken the end."""
        self.request = self.job = None
