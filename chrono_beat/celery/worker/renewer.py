"""The thread that renews leases, ends deliveries whose time is over, and reports the worker. No task body can hold it
up for long.

It runs from the worker's start until the process ends: also while the pool is joined in a warm shutdown, which can
take as long as the longest task, and while the broker is away. Stopping it in either would let leases of running
bodies expire.

Under gevent an ordinary thread is a greenlet, and a body that does not yield would stop the renewals. So the thread
is a native one there, with a queue of its own, since a gevent socket belongs to the thread that made it. It neither
logs nor sets events, which are gevent's as well; it sets ``HeldDelivery.lost``, and the I/O thread says so.

Known weakness: code that holds the interpreter's lock (GIL) for longer than the lease stops this thread, too. Only
prefork, where bodies are other processes, is safe from that.
"""
from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from chrono_beat.celery.worker.held import Ending, HeldDelivery
from chrono_beat.celery.worker.io import WorkerIO
from chrono_beat.celery.worker.native import native_sleep, native_thread_starter
from chrono_beat.core.deliveries import Settlement
from chrono_beat.core.errors import QueueUnavailable
from chrono_beat.core.records import WorkerReport
from chrono_beat.core.recovery import LostGrant

logger = logging.getLogger(__name__)

REPORT_EVERY_SECONDS = 5.0
REPORT_TTL_SECONDS = 15.0
RETRY_SECONDS = 1.0
STEP_SECONDS = 0.5               # how often to look for deliveries whose time is over
MAX_HOLDS = 500                  # renewed in one script call


class Renewer:
    """Renews what a WorkerIO holds.

    Args:
        io: the worker's I/O.
        beat: the app's ChronoBeat.
        describe: returns pools, task names, concurrency and the pool's class, for the report.
        on_lost: called with a delivery for which a newer grant exists; from this thread.
        on_overdue: called with a delivery whose deadline has passed; from this thread. Returns how it was settled, None
            where it was not yet. It neither logs nor waits.
    """

    def __init__(
        self,
        io: WorkerIO,
        beat: Any,
        *,
        describe: Callable[[], tuple[list[str], list[str], int, str]],
        on_lost: Callable[[HeldDelivery], None],
        on_overdue: Callable[[HeldDelivery], Ending | None],
    ) -> None:
        self._io, self._beat = io, beat
        self._describe, self._on_lost, self._on_overdue = describe, on_lost, on_overdue
        self._every = beat.config.renew_every
        self._native = native_thread_starter()
        self._ending = threading.Event()
        self._started = False
        self._closed = False

    def start(self) -> None:
        """Renew from now on; a second call changes nothing."""
        if self._started:
            return
        self._started = True
        if self._native:
            self._native(self._run, ())
        else:
            threading.Thread(target=self._run, name="chrono-renew", daemon=True).start()

    def close(self) -> None:
        """End with the last delivery; say at once that this worker draws no more, instead of when its report is old."""
        self._closed = True
        if self._started:
            self._try(self._say_goodbye, self._io.queue)
        if not self._native:
            self._ending.set()

    def _run(self) -> None:
        queue = self._beat.new_queue() if self._native else self._io.queue
        next_renewal, next_report = time.monotonic() + self._every, time.monotonic()
        while not self._io.finished:
            now = time.monotonic()
            self._try(self._end_overdue, queue)
            if now >= next_renewal:
                next_renewal = now + (self._every if self._try(self._renew, queue) else min(RETRY_SECONDS, self._every))
            if now >= next_report:
                next_report = now + (REPORT_EVERY_SECONDS if self._try(self._report, queue) else RETRY_SECONDS)
            self._pause(min(next_renewal, next_report) - time.monotonic())

    def _pause(self, seconds: float) -> None:
        if self._native:
            native_sleep(max(0.01, min(seconds, STEP_SECONDS)))
        elif self._ending.wait(max(0.0, min(seconds, STEP_SECONDS))):
            time.sleep(min(max(0.0, seconds), STEP_SECONDS))             # ending, but a body may still run

    def _try(self, action: Callable[[Any], None], queue: Any) -> bool:
        try:
            action(queue)
        except QueueUnavailable:
            return False
        except Exception:
            if not self._native:
                logger.exception("chrono_beat: a renewal failed; it goes on")
            return False
        return True

    def _renew(self, queue: Any) -> None:
        closed = False
        for lane in self._io.lanes:
            helds = [held for held in self._io.held() if held.lane == lane and not held.lost]
            for start in range(0, len(helds), MAX_HOLDS):
                part = helds[start:start + MAX_HOLDS]
                renewed = queue.renew(lane, self._io.worker, [held.hold for held in part], self._io.lease_us)
                closed = closed or not renewed.expires_us
                for held in part:
                    if held.hold.execution_id in renewed.lost:
                        held.lost = True
                        self._on_lost(held)
                    elif renewed.expires_us and held.hold.execution_id not in renewed.unknown:
                        held.lease_expires_us = renewed.expires_us
                self._bring_back(queue, lane, [h for h in part if h.hold.execution_id in renewed.unknown])
            self._io.outcomes.settle_again(queue, lane, self._io.worker)
        if closed:
            raise QueueUnavailable("a lane has no generation: its memory was lost")     # soon again

    def _bring_back(self, queue: Any, lane: int, helds: list[HeldDelivery]) -> None:
        """Rule 5: tell a lane that has lost its memory what this worker has of it."""
        if not helds:
            return
        grants = [LostGrant(held.hold, held.lease_expires_us, held.delivery.grant) for held in helds]
        back = set(queue.bring_back(lane, self._io.worker, grants, self._io.lease_us))
        begun = [h.hold for h in helds if h.accepted and h.hold.execution_id in back]
        if begun:
            queue.accept(lane, self._io.worker, begun)     # that they had started may not have been recorded
        self._io.counts.brought_back += len(back)

    def _end_overdue(self, queue: Any) -> None:
        now = time.monotonic()
        for held in self._io.held():
            if held.deadline is not None and held.deadline <= now and not held.ended:
                ending = self._on_overdue(held)
                if ending is not None and self._native:
                    # The greenlet that sends may be held up by the very body that is over its time. It sends the same
                    # again when it gets to it, which changes nothing.
                    queue.settle(held.lane, self._io.worker, [Settlement(held.hold, *ending)])

    def _report(self, queue: Any) -> None:
        if self._closed:
            return
        pools, tasks, concurrency, pool_class = self._describe()
        report = WorkerReport(self._io.worker, pools, tasks, concurrency, pool_class, queue.now_us())
        queue.report_worker(report, round(REPORT_TTL_SECONDS * 1_000_000))
        self._io.look_aside()                        # now that this worker is known to be there

    def _say_goodbye(self, queue: Any) -> None:
        queue.report_worker(WorkerReport(self._io.worker, [], [], 0, "", queue.now_us()), 0)
