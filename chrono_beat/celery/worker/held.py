"""A delivery in this worker's hands, from its draw until Redis has taken its end.

Several threads look at it: the hub's thread or a pool thread ends it, the I/O thread sends that end, the renewal
thread keeps its lease. What must happen once, happens under its lock.
"""
from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from chrono_beat.celery.worker.native import native_lock
from chrono_beat.core.deliveries import RAN_LOST, Delivery, Hold
from chrono_beat.core.plain import is_plain

Ending = tuple[str, Mapping[str, Any]]


class HeldDelivery:
    """State of one delivery.

    Attributes:
        lease_expires_us: until when its lease lasts, by Redis' clock, as of the last renewal.
        request: Celery's Request, once there is one.
        job: what the pool returned for it. Celery keeps a weak reference only, and the threads pool nothing else:
            without this one, a queued job could not be cancelled.
        submitted: the pool was given it.
        accepted: the pool said that the body begins.
        ended: its end was decided; a later report changes nothing.
        lost: a newer grant exists; what is reported for it will be refused.
        overrun: it was settled while its body ran on.
        stopping: why it was told to stop (cancel, replace, duration); "" where it was not.
        limit_seconds: how long its body may run; None for ever.
        slack_seconds: how much later it is ended here, where the pool itself ends it at its limit.
        plain: it is a plain task, without an execution row.
        stranded: nobody knows its task, for long enough to say so (a plain task).
        exhausted: it was lost too often: it is not run any more (a plain task).
        begin_by: monotonic clock until which its body may begin (rule 10).
        deadline: monotonic clock at which it is settled whatever its body does; None for never.
    """

    def __init__(self, lane: int, delivery: Delivery, io: Any, begin_by: float) -> None:
        self.lane = lane
        self.delivery = delivery
        self.lease_expires_us = delivery.lease_expires_us
        self.hold = Hold(delivery.execution_id, delivery.token)
        self.begin_by = begin_by
        self.request: Any = None
        self.job: Any = None
        self.submitted = self.accepted = self.ended = self.lost = self.overrun = False
        self.plain = is_plain(delivery.execution_id)
        self.stranded = self.exhausted = False
        self.task_name = self.stopping = ""
        self.limit_seconds: float | None = None
        self.slack_seconds = 0.0
        self.deadline: float | None = None
        self._claimed: Ending | None = None
        self._io = io
        self._lock = native_lock()

    @property
    def cancelled(self) -> bool:
        """Whether the body should end: it was told to stop, or somebody else has its lease."""
        return bool(self.stopping) or self.lost

    def begin(self) -> bool:
        """Say whether the pool may be given it: not if it was given back, has ended, or went to somebody else; nor if its
        start window is over: then it is drawn anew, and delivered again."""
        with self._lock:
            if self.ended:
                return False
            if self.lost:
                self.ended = True
                self._io.forget(self)
                return False
            if time.monotonic() > self.begin_by:                    # rule 10
                self._io.redraw(self)
                return False
            self.submitted = True
            return True

    def renew(self, delivery: Delivery, begin_by: float) -> None:
        """Take the new grant of a delivery that was drawn anew."""
        with self._lock:
            self.hold = Hold(delivery.execution_id, delivery.token)
            self.lease_expires_us = delivery.lease_expires_us
            self.delivery = self.delivery._replace(
                token=delivery.token, deliveries=delivery.deliveries, drawn_us=delivery.drawn_us,
                lease_expires_us=delivery.lease_expires_us)
            self.begin_by = begin_by

    def end_unbegun(self) -> None:
        """Note that it went back to its tenant, or to somebody else, before it began."""
        with self._lock:
            self.ended = True

    def accept(self, at: float) -> bool:
        """Note that the body begins.

        Args:
            at: monotonic clock of the process that runs it.

        Returns:
            Whether it is in time; if not, the body will find so itself.
        """
        with self._lock:
            if at > self.begin_by:                                  # rule 10: no history of a start
                return False
            if self.accepted or self.ended:
                return True
            self.accepted = True
            if self.limit_seconds is not None and self.deadline is None:
                self.deadline = time.monotonic() + self.limit_seconds + self.slack_seconds
        self._io.accepted(self)
        return True

    @property
    def claimed(self) -> bool:
        """Whether its end was fixed ahead."""
        return self._claimed is not None

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

    def stop(self, why: str, ending: Ending, deadline: float) -> bool:
        """Tell it to stop: from now on it ends as *ending*, whatever its body does, at *deadline* at the latest.

        One that the pool was not given yet has ended with this.

        Args:
            why: for whom it may concern; not empty.
            ending: result and detail of its settlement.
            deadline: on the monotonic clock.

        Returns:
            Whether this was the first word to stop, and in time.
        """
        with self._lock:
            if self.ended or self.stopping:
                return False
            self.stopping, self._claimed = why, self._claimed or ending
            self.deadline = deadline
            if self.submitted:
                return True
        self.end(*ending)
        return True

    def end(self, result: str, detail: Mapping[str, Any], *, settle_after_seconds: float = 0.0) -> None:
        """Settle it, once; later calls change nothing (a hard limit is reported twice).

        Args:
            result, detail: as in a Settlement; a claim goes before them.
            settle_after_seconds: hold the settlement back until the body is really gone.
        """
        with self._lock:
            if self.ended:
                if self.overrun:
                    self.overrun = False
                    self._io.late(self, result)
                return
            self.ended = True
            result, detail = self._claimed or (result, detail)
        self._io.settle(self, result, detail, settle_after_seconds)

    def end_overrun(self) -> Ending | None:
        """Settle a delivery that was told to stop while its body goes on; what that reports later is refused
        (invariant 6).

        Returns:
            How it was settled; None where it had ended before.
        """
        with self._lock:
            if self.ended or self._claimed is None:
                return None
            self.ended = self.overrun = True
            ending = self._claimed
        self._io.settle(self, *ending)
        return ending

    def give_back(self) -> None:
        """Return it to the front of its tenant: its body has not begun and will not."""
        with self._lock:
            if self.ended:
                return
            self.ended = True
        self._io.give_back(self)

    def park(self) -> None:
        """Lay it aside: this worker does not know its task."""
        with self._lock:
            if self.ended:
                return
            self.ended = True
        self._io.park(self)

    def hand_back(self, why: str) -> None:
        """End it as lost: its body has begun, or may have, and was ended with the worker."""
        self.end(RAN_LOST, {"error": {"type": "WorkerLostError", "message": why, "traceback": ""}})

    def stop_drawing(self) -> None:
        """Let the worker draw nothing more until it is started again."""
        self._io.stop_drawing()

    def release(self) -> None:
        """Let go of Celery's objects: Redis has taken the end."""
        self.request = self.job = None
