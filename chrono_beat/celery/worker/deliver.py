"""Hands deliveries to the pool the way Celery does it with a broker's messages: through a strategy, in the right
thread.

The pool's structures, the timer and the worker's state belong to the thread of the event loop. So where there is one,
the I/O thread puts deliveries into an inbox and writes a byte into a pipe that the loop watches. Not
``hub.call_soon``: before kombu 5.7 it does not wake the loop out of its poll, and what is added from the loop's own
thread waits for the next poll, a second.

Without an event loop (gevent; a broker transport that has none) a thread of its own delivers, a greenlet under
gevent, because its pool blocks when it is full, and the I/O thread must go on settling. The solo pool runs the body
where it is delivered, so there it must be Celery's main thread, which looks for such calls at least every 2 s.
"""
from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from celery.exceptions import InvalidTaskError, NotRegistered
from kombu.exceptions import ContentDisallowed, DecodeError
from kombu.serialization import prepare_accept_content

from chrono_beat.celery import never_began
from chrono_beat.celery.context import HEADER
from chrono_beat.celery.worker import endings, pools
from chrono_beat.celery.worker.held import HeldDelivery
from chrono_beat.celery.worker.message import LeasedMessage, Undecodable
from chrono_beat.celery.worker.request import leased
from chrono_beat.core.callback import HTTP_TASK
from chrono_beat.core.errors import InvalidInput, Problem
from chrono_beat.core.field_checks import wrong_celery_task

logger = logging.getLogger(__name__)

PIPE_READ_BYTES = 4096


class Deliverer:
    """The inbox of one worker.

    Args:
        consumer: Celery's consumer.
    """

    def __init__(self, consumer: Any) -> None:
        self._inbox: deque[HeldDelivery] = deque()
        self._stops: deque[HeldDelivery] = deque()
        self._looping = False
        self._closed = False
        self._arrived = threading.Event()
        self._pipe: tuple[int, int] | None = None
        self._own_thread = consumer.hub is None and not _runs_inline(consumer.pool)
        self.restart(consumer)
        if consumer.hub is not None:
            self._pipe = os.pipe()
            for end in self._pipe:
                os.set_blocking(end, False)
        elif self._own_thread:
            threading.Thread(target=self._run, name="chrono-deliver", daemon=True).start()

    def restart(self, consumer: Any) -> None:
        """Build strategies anew: they keep the event dispatcher of the connection that they were built under, and
        after a reconnect events of ours would go nowhere."""
        self._consumer = consumer
        self._strategies: dict[str, Any] = {}
        self._accept = prepare_accept_content(consumer.app.conf.accept_content)

    def register(self, hub: Any) -> None:
        """Let the event loop watch the pipe. Celery calls this at each start of the loop, which forgets its readers."""
        if self._pipe is not None:
            with contextlib.suppress(KeyError, ValueError, OSError):
                hub.remove_reader(self._pipe[0])
            hub.add_reader(self._pipe[0], self._on_readable, self._pipe[0])
            self._looping = True

    def loop_ends(self) -> None:
        """Note that the event loop turns no more, until it is registered with again."""
        self._looping = False
        self._run_stops()

    def close(self) -> None:
        """End the delivering thread."""
        self._closed = True
        self._arrived.set()

    def put(self, helds: Sequence[HeldDelivery]) -> None:
        """Take deliveries from the I/O thread."""
        self._inbox.extend(helds)
        self._notify()

    def stop(self, held: HeldDelivery) -> None:
        """End the body of a delivery that was told to stop, or that went to somebody else. From any thread: where the
        event loop turns, it does it, since it knows best whose body a child runs."""
        self._stops.append(held)
        if self._looping:
            self._notify()
        elif self._pipe is not None:
            self._run_stops()

    def take_back(self) -> list[HeldDelivery]:
        """Empty the inbox."""
        taken = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self._inbox.popleft())
        return taken

    def _notify(self) -> None:
        if self._pipe is not None:
            with contextlib.suppress(BlockingIOError):         # full: the loop has enough to wake up for
                os.write(self._pipe[1], b"x")
        elif self._own_thread:
            self._arrived.set()
        else:
            self._consumer.call_soon(self.pump)

    def _on_readable(self, fd: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(fd, PIPE_READ_BYTES)
        self.pump()

    def _run(self) -> None:
        while not self._closed:
            self._arrived.wait()
            self._arrived.clear()
            self.pump()

    def pump(self) -> None:
        """Deliver what is in the inbox, in the order in which it was drawn."""
        self._run_stops()
        while self._inbox:
            held = self._inbox.popleft()
            if held.ended:
                continue
            try:
                if held.request is None:
                    self._deliver(held)
                else:
                    self._deliver_again(held)
            except Exception as error:
                logger.exception("chrono_beat: %s cannot be delivered", held.hold.execution_id)
                self._refuse(held, error)

    def _run_stops(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                held = self._stops.popleft()
                request = held.request
                if request is not None:
                    (request.stop_stale if held.lost else request.stop)(self._consumer.pool)

    def _deliver(self, held: HeldDelivery) -> None:
        """Do what Celery does with a message it received, with strategies that know of leases."""
        consumer = self._consumer
        try:
            message = LeasedMessage(held, self._accept)
            self._check_allowed(held.task_name)
        except (Undecodable, InvalidInput) as error:
            logger.error("chrono_beat: %s cannot be run: %s", held.hold.execution_id, error)
            self._refuse(held, error)
            return
        try:
            strategy = self._strategy(held.task_name)
        except NotRegistered as error:
            if held.stranded:
                consumer.on_unknown_task(None, message, error)       # the result backend, an event and the log say so
            else:
                held.park()
            return
        try:
            strategy(message, None, message.ack_log_error, message.reject_log_error, consumer.on_task_message)
        except (InvalidTaskError, ContentDisallowed) as error:
            self._tell_refused(held, error)
            consumer.on_invalid_task(None, message, error)
        except DecodeError as error:
            self._tell_refused(held, error)
            consumer.on_decode_error(message, error)
        if held.request is None and not held.ended:
            raise RuntimeError(f"the Strategy of task {held.task_name} made no Request of the class it was given")

    def _refuse(self, held: HeldDelivery, error: Exception) -> None:
        """End what no task here can run."""
        self._tell_refused(held, error)
        held.end(*endings.rejected(error))

    def _tell_refused(self, held: HeldDelivery, error: Exception) -> None:
        if held.request is None and not held.ended:
            # No text of the error: it may show what is in the message, or in the settings.
            why = "ALLOWED_TASKS of its worker has it not" if isinstance(error, InvalidInput) else (
                f"no task can run its message ({type(error.__cause__ or error).__name__})")
            never_began.refuse_from_worker(self._consumer.app, held.delivery, why)

    def _check_allowed(self, name: str) -> None:
        """Refuse a task that jobs may not run here: whoever sent it may have had other settings, or none.

        Raises:
            InvalidInput: ALLOWED_TASKS has it not.
        """
        if name in self._strategies or name == HTTP_TASK:
            return
        if wrong := wrong_celery_task(name, self._consumer.app.chrono_beat.config.allowed_tasks):
            raise InvalidInput(Problem("task", wrong))

    def _deliver_again(self, held: HeldDelivery) -> None:
        """Hand a delivery that was drawn anew to the pool: rate limits and revokes have had their say."""
        headers = held.request.request_dict
        headers[HEADER] = {**headers[HEADER], "token": held.hold.token, "deliveries": held.delivery.deliveries}
        self._consumer.on_task_request(held.request)

    def _strategy(self, name: str) -> Any:
        """Return the task's strategy with leased requests; made at first use, so that tasks registered later are
        found."""
        found = self._strategies.get(name)
        if found is None:
            task = self._consumer.app.tasks[name]
            own = task.__dict__.get("Request")
            task.Request = leased(task.Request)
            try:
                found = self._strategies[name] = task.start_strategy(self._consumer.app, self._consumer)
            finally:
                if own is None:
                    del task.Request
                else:
                    task.Request = own
        return found


def _runs_inline(pool: Any) -> bool:
    return not pools.is_prefork(pool) and type(pool).__module__.endswith("solo")
