"""Celery's Request with a lease: every way in which a task can end is reported to the delivery it belongs to.

Celery builds a subclass of a task's Request for each strategy, and that subclass *replaces* ``on_success`` and
``execute_using_pool`` without calling ``super()``. A Request class of one's own would hear of failures and never of a
success: leases would be renewed for ever, or expire and every successful task run again. So the mixin wraps the
methods of every class that is derived from it, at the moment the class is made.
"""
from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

from celery import signals
from celery.exceptions import TaskRevokedError, WorkerLostError
from celery.utils.imports import symbol_by_name
from celery.worker import state

from chrono_beat.celery import never_began
from chrono_beat.celery.context import HEADER, on_behalf_of
from chrono_beat.celery.worker import endings, pools
from chrono_beat.celery.worker.held import HeldDelivery
from chrono_beat.celery.worker.window import WindowedPool, is_not_begun
from chrono_beat.core.callback import HTTP_TASK
from chrono_beat.core.deliveries import CANCEL

logger = logging.getLogger(__name__)

# A prefork child at its hard limit gets SIGTERM after the report, and SIGKILL 0.1 s later: until then its body may
# still run, and the lock of its job must not be free.
KILL_SECONDS = 0.25

# Where the pool keeps time limits by itself, it gets this much time to do so before the delivery is ended without it.
OWN_LIMIT_SLACK_SECONDS = 2.0


class LeasedRequest:
    """Mixin in front of a Request class; its message is a LeasedMessage."""

    held: HeldDelivery

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "execute_using_pool" in cls.__dict__:
            cls.execute_using_pool = _leased_execute(cls.__dict__["execute_using_pool"])
        if "on_success" in cls.__dict__:
            cls.on_success = _leased_success(cls.__dict__["on_success"])

    def __init__(self, message: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(message, *args, **kwargs)
        self.held = message.held
        self.held.request = self
        self.request_dict["eta"] = message.eta        # for the body; the message had none for Celery's timer
        self.pool: Any = None

    def on_accepted(self, pid: Any, time_accepted: float) -> None:
        if not self.held.accept(time_accepted):
            return
        super().on_accepted(pid, time_accepted)
        if self.held.stopping:                       # told so while the pool had it and no child yet
            self.stop(self.pool)

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        if endings.is_terminated(exc_info) and not self.held.claimed:
            # Whoever ends a body claims its end first. This one stood where another delivery's child was ended, a
            # moment after that one had returned: nobody wanted it to end.
            self._already_cancelled = True
            self.held.hand_back("its child was ended in place of another delivery's")
        result, detail = endings.failure(exc_info)
        if self.held.plain and endings.is_lost(exc_info) and self._runs_again():
            # Its result and its callbacks are not those of a failure: it is handed out again (invariant 6).
            state.task_ready(self)
            logger.warning("chrono_beat: the child that ran %s[%s] is gone; it is handed out again", self.name, self.id)
            return self.held.end(result, detail)
        try:
            with on_behalf_of(self.request_dict[HEADER]):
                return super().on_failure(exc_info, *args, **kwargs)
        finally:
            delay = KILL_SECONDS if detail.get("limit") == "hard" else 0.0
            self.held.end(result, detail, settle_after_seconds=delay)

    def _runs_again(self) -> bool:
        """Say whether a lost child is to be made up for by another delivery: not where the worker wanted it to end, the
        task asks for a retry of its own, or its success is stored."""
        return not (self.held.claimed or self._already_cancelled or self._already_revoked
                    or getattr(self.task, "retry_on_worker_lost", False) or self._was_stored())

    def _was_stored(self) -> bool:
        ask = getattr(super(), "_success_was_stored", None)          # Celery 5.7
        return bool(ask and ask())

    def fail_exhausted(self) -> None:
        """Say that a plain task failed which was lost too often, instead of running it: its workers died, or its body asked
        for another delivery each time."""
        error = WorkerLostError(f"handed out {self.held.delivery.deliveries - 1} times, and lost each time")
        state.task_ready(self)
        try:
            if not self._was_stored():
                logger.error("chrono_beat: %s[%s] is not run any more: %s", self.name, self.id, error)
                with on_behalf_of(self.request_dict[HEADER]):
                    self.task.backend.mark_as_failure(
                        self.id, error, request=self._context, store_result=self.store_errors)
                signals.task_failure.send(
                    sender=self.task, task_id=self.id, exception=error, args=self.args, kwargs=self.kwargs,
                    traceback=None, einfo=None)
                self.send_event("task-failed", exception=repr(error), traceback="")
        finally:
            self.held.end(*endings.lost_too_often(str(error)))

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        try:
            with on_behalf_of(self.request_dict[HEADER]):
                return super().on_timeout(soft, timeout)
        finally:
            if not soft:                             # prefork has called on_failure before; gevent calls this alone
                self.held.end(*endings.hard_timeout(timeout), settle_after_seconds=KILL_SECONDS)

    def terminate(self, pool: Any, signal: Any = None) -> Any:
        # Claimed first: gevent waits for the killed greenlet, which reports itself as successful.
        return self._kill(endings.revoked("terminated"), lambda: super(LeasedRequest, self).terminate(pool, signal))

    def cancel(self, pool: Any, *args: Any, **kwargs: Any) -> Any:
        # A cold shutdown, or the loss of the broker: the body has begun, so the delivery goes back as a reap.
        ending = endings.lost("the worker was told to end at once")
        return self._kill(ending, lambda: super(LeasedRequest, self).cancel(pool, *args, **kwargs))

    def _kill(self, ending: endings.Ending, kill: Callable[[], Any]) -> Any:
        claimed = bool(self.time_start) and self.held.claim(*ending)
        try:
            return kill()
        except NotImplementedError:                  # threads and solo cannot kill: the body goes on to its own end
            if claimed:
                self.held.unclaim()
            raise

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> Any:
        try:
            return super()._announce_revoked(reason, terminated, signum, expired)
        finally:
            if self.time_start:
                self.held.claim(*endings.revoked(reason))      # settled when the pool reports that the body is gone
            else:
                self.held.end(*(endings.too_late() if expired else endings.revoked(reason)))

    def _announce_cancelled(self, *args: Any, **kwargs: Any) -> Any:
        # A cold shutdown cancels requests from its signal handler, before any bootstep hears of it: whoever went on
        # drawing would draw its own hand-backs, and they would die with the worker.
        self.held.stop_drawing()
        return super()._announce_cancelled(*args, **kwargs)

    def _success_was_stored(self) -> Any:
        # Celery 5.7 asks this of a task whose child is lost: it had ended, and its result is in the backend.
        stored = super()._success_was_stored()
        if stored:
            self.held.claim(*endings.success(None))
        return stored

    def stop(self, pool: Any) -> None:
        """End the body of a delivery that was told to stop, where single bodies can be killed."""
        if pools.is_prefork(pool) and self.time_start and not self.held.ended:
            pools.end_child(pool, self.worker_pid)

    def stop_stale(self, pool: Any) -> None:
        """End the body of a delivery for which a newer grant exists, where single bodies can be killed.

        Without a mark in the result backend: the result of the task id is now the newer delivery's.
        """
        if pools.is_prefork(pool) and self.time_start and not self.held.ended:
            self._already_cancelled = True
            pool.terminate_job(self.worker_pid)


def _leased_execute(execute: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(execute)
    def execute_using_pool(self: LeasedRequest, pool: Any, **kwargs: Any) -> Any:
        held = self.held
        if held.exhausted and not held.ended and not self.revoked():
            self.fail_exhausted()
            raise TaskRevokedError(self.id)
        if not held.begin():
            raise TaskRevokedError(self.id)          # the worker frees the slot of the pool for this error
        self.pool = pool
        try:
            held.limit_seconds = self.time_limits[0] or self.task.time_limit
            held.slack_seconds = OWN_LIMIT_SLACK_SECONDS if pools.can_end_bodies(pool) else 0.0
            # The class that Celery derives has the pool in a closure; the method it replaces takes the one it is given.
            windowed = WindowedPool(pool, held.begin_by)
            job = super(LeasedRequest, self).execute_using_pool(windowed, **kwargs)  # type: ignore[misc]
        except TaskRevokedError:
            raise
        except Exception as error:
            # Whether the message is at fault or the pool is not known here. As a reap it is tried again, but not for
            # ever; and the worker frees the slot of the pool for one kind of error only.
            logger.exception("chrono_beat: the pool did not take %s", held.hold.execution_id)
            held.hand_back(f"the pool did not take it: {type(error).__name__}")
            raise TaskRevokedError(self.id) from error
        except BaseException as error:
            if held.accepted:
                held.hand_back(f"the pool broke off: {error!r}")
            else:
                held.give_back()
            raise
        held.job = job
        return job

    return execute_using_pool


def _leased_success(on_success: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(on_success)
    def wrapper(self: LeasedRequest, failed__retval__runtime: Any, **kwargs: Any) -> Any:
        failed, retval, runtime = failed__retval__runtime
        if is_not_begun(failed__retval__runtime):
            state.task_ready(self, successful=False)
            self.held.give_back()
            if self.held.stopping == CANCEL:                       # Redis ends it then, and no worker meets it again
                never_began.tell_from_worker(self.task.app, self.held.delivery.payload)
            return None
        try:
            return on_success(self, failed__retval__runtime, **kwargs)
        finally:
            if failed:
                self.held.end(*endings.failure(retval))        # as on_failure has done, unless the exception ended that
            elif failed is False and runtime is None:
                # What gevent reports of a greenlet that was killed; a body that returned has the number 0 here.
                self.held.end(*endings.lost("the greenlet was killed"))
            else:
                # Celery's pools hand over the representation of what was returned. The user's stays in the backend.
                said = retval.strip("'") if self.task_name == HTTP_TASK and isinstance(retval, str) else ""
                self.held.end(*endings.success(runtime, said))

    return wrapper


def leased(base: Any) -> type:
    """Return the Request class *base* (a class, or its dotted name) with a lease."""
    return type("ChronoRequest", (LeasedRequest, symbol_by_name(base)), {})
