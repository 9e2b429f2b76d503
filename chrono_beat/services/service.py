"""The only loop: a thread that takes step after step, and sleeps as long as the last one said.

A service has one short method, `Service.step`: it looks at the world, does a bounded piece of work and answers how long
nothing needs to be done. Everything that loops tend to get wrong is here, once:

- *Database or Redis away*: the step is tried again after 0.1 s, 0.2 s, … 5 s, for ever. A scheduler that gives up while
  its database restarts has to be woken by a person.
- *An error that nobody expected*: logged with its traceback, counted, and tried again likewise. A thread that ends in
  silence while the process lives is the worst of all outcomes; so none ends, and `Service.healthy` says since when no
  step has gone well.
- *Waking*: `Service.wake` ends a sleep. A wake during a step is not lost: the next sleep ends at once.
- *Stopping*: `Service.drain` is called until it has nothing left to do or its time is over.

Steps get the time as an argument and may be called without any thread, which is how tests do it.
"""
from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Sequence

from chrono_beat.core.clock import Clock
from chrono_beat.core.errors import BrokerUnavailable, QueueUnavailable, StoreUnavailable
from chrono_beat.telemetry import emit

logger = logging.getLogger(__name__)

SHORTEST_BACKOFF_US = 100_000
LONGEST_BACKOFF_US = 5_000_000
LONGEST_WAIT_US = 1_000_000
HEALTHY_WITHIN_US = 30_000_000
"""Microseconds by which a good step may be overdue before the service counts as unhealthy."""

LOG_EVERY_FAILURES = 20
"""An outage is logged at its first failure and then every so many, not at each."""

COLLECT_AFTER = 50_000
"""Objects that may be made before Python looks for cycles again. Services keep 100,000s of records in memory, none of
them in a cycle; looking through them every 700 objects takes a third of the time in which they are claimed."""

DRAIN_US = 5_000_000
JOIN_SECONDS = 20.0


class Service:
    """A loop around `step`; subclasses write that, and `drain` where stopping takes more than ceasing.

    Args:
        name: for logs, health and the thread.
        clock: the host's clocks, and the way to sleep.
        longest_wait_us: microseconds after which a step is taken whatever the last one answered.
        longest_backoff_us: microseconds that no pause after failures exceeds.
        drain_us: microseconds that draining may take.
    """

    def __init__(
        self, name: str, clock: Clock, *, longest_wait_us: int = LONGEST_WAIT_US,
        longest_backoff_us: int = LONGEST_BACKOFF_US, drain_us: int = DRAIN_US,
    ) -> None:
        self.name = name
        self.clock = clock
        self.failures = 0
        self.errors = 0
        self._longest_wait_us = longest_wait_us
        self._longest_backoff_us = longest_backoff_us
        self._drain_us = drain_us
        self._expected_us = clock.monotonic_us()      # by then a next good step was to be taken
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._at_end: Callable[[], object] | None = None

    # -- for subclasses ---------------------------------------------------------------------------------------------

    def step(self, now_us: int) -> int:
        """Do a bounded piece of work.

        Args:
            now_us: the host's monotonic clock, in microseconds.

        Returns:
            Microseconds until the next step, 0 for at once.
        """
        raise NotImplementedError

    def drain(self, now_us: int) -> int | None:
        """Do a piece of what has to be done before the service ends.

        Args:
            now_us: the host's monotonic clock, in microseconds.

        Returns:
            Microseconds until it is called again; None: done.
        """
        return None

    # -- one turn ---------------------------------------------------------------------------------------------------

    def turn(self, now_us: int) -> int:
        """Take a step, whatever happens in it; returns microseconds until the next."""
        try:
            wait_us = self.step(now_us)
        except (BrokerUnavailable, QueueUnavailable, StoreUnavailable) as error:
            return self._back_off(error, expected=True)
        except Exception as error:
            self.errors += 1
            return self._back_off(error, expected=False)
        wait_us = min(max(wait_us, 0), self._longest_wait_us)
        self._expected_us = self.clock.monotonic_us() + wait_us
        if self.failures:
            emit("service_recovered", service=self.name, failures=self.failures)
            self.failures = 0
        return wait_us

    def _back_off(self, error: Exception, *, expected: bool) -> int:
        if not expected:
            logger.exception("%s: a step failed", self.name)
        elif self.failures % LOG_EVERY_FAILURES == 0:
            logger.warning("%s: %s; trying again", self.name, error)
        self.failures += 1
        event = "service_unavailable" if expected else "service_failed"
        emit(event, service=self.name, error=error, failures=self.failures)
        # Bounded before the power is taken: an outage of days has many failures.
        return min(SHORTEST_BACKOFF_US << min(self.failures - 1, 16), self._longest_backoff_us)

    # -- the loop ---------------------------------------------------------------------------------------------------

    def start(self, at_end: Callable[[], object] | None = None) -> None:
        """Start the thread.

        Args:
            at_end: called in the thread as its last act, for instance to close its connections.
        """
        self._at_end = at_end
        self._expected_us = self.clock.monotonic_us()
        self._thread = threading.Thread(target=self._run, name=f"chrono-{self.name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        emit("service_started", service=self.name)
        try:
            while not self._stopping.is_set():
                self._wake.clear()
                wait_us = self.turn(self.clock.monotonic_us())
                if wait_us:
                    # After a failure only stopping ends the pause: wakes would turn it into a storm.
                    self.clock.wait(self._stopping if self.failures else self._wake, wait_us)
            self._drain()
        finally:
            if self._at_end is not None:
                self._at_end()
        emit("service_stopped", service=self.name)

    def _drain(self) -> None:
        end_us = self.clock.monotonic_us() + self._drain_us
        while (now_us := self.clock.monotonic_us()) < end_us:
            self._wake.clear()
            try:
                wait_us = self.drain(now_us)
            except (QueueUnavailable, StoreUnavailable) as error:
                logger.warning("%s: %s; stopping without it", self.name, error)
                return
            except Exception:
                logger.exception("%s: stopping failed half-way", self.name)
                return
            if wait_us is None:
                return
            self.clock.wait(self._wake, min(wait_us, end_us - now_us))

    def wake(self) -> None:
        """End the current sleep, or the next one if none is going on."""
        self._wake.set()

    def request_stop(self) -> None:
        """Ask the thread to drain and end; returns at once."""
        self._stopping.set()
        self._wake.set()

    def join(self, timeout_seconds: float = JOIN_SECONDS) -> bool:
        """Wait for the thread to end; returns whether it has."""
        if self._thread is None:
            return True
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def stop(self, timeout_seconds: float = JOIN_SECONDS) -> bool:
        """Ask the thread to end and wait for it; returns whether it has."""
        self.request_stop()
        return self.join(timeout_seconds)

    # -- health -----------------------------------------------------------------------------------------------------

    def healthy(self, now_us: int) -> bool:
        """Say whether a step has gone well lately.

        Args:
            now_us: the host's monotonic clock, in microseconds.
        """
        return not self.failed() and now_us - self._expected_us <= HEALTHY_WITHIN_US

    def failed(self) -> bool:
        """Say whether the thread has ended though nobody asked it to."""
        return self._thread is not None and not self._thread.is_alive() and not self._stopping.is_set()


class Runner:
    """A set of services in threads, started and stopped together.

    Args:
        services: in the order in which they stop; they start in the opposite order.
        clock: the host's clocks.
        at_thread_end: called in each service's thread as its last act.
    """

    def __init__(
        self, services: Sequence[Service], clock: Clock, *, at_thread_end: Callable[[], object] | None = None,
    ) -> None:
        self.services = tuple(services)
        self._clock = clock
        self._at_thread_end = at_thread_end

    def start(self) -> None:
        """Start all threads."""
        newest, middle, oldest = gc.get_threshold()
        if 0 < newest < COLLECT_AFTER:
            gc.set_threshold(COLLECT_AFTER, middle, oldest)
        for service in reversed(self.services):
            service.start(self._at_thread_end)

    def stop(self, timeout_seconds: float = JOIN_SECONDS) -> bool:
        """Stop one after the other.

        Args:
            timeout_seconds: how long to wait for each.

        Returns:
            Whether all have ended; those that have not are left to the end of the process.
        """
        ended = True
        for service in self.services:
            if not service.stop(timeout_seconds):
                logger.error("%s: did not stop within %s s; it is left behind", service.name, timeout_seconds)
                ended = False
        return ended

    def failed(self) -> bool:
        """Say whether a service's thread has ended though nobody asked it to: the process should end, too."""
        return any(service.failed() for service in self.services)

    def unhealthy(self) -> list[str]:
        """Return the names of the services without a good step lately."""
        now_us = self._clock.monotonic_us()
        return [service.name for service in self.services if not service.healthy(now_us)]
