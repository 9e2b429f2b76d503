"""The bootstep: where Celery starts, stops and shuts down chrono_beat's part of a worker.

The order of a warm shutdown: Celery clears its waiting requests and the pool's outgoing buffer, calls ``stop`` here,
joins the pool (as long as the longest task), then calls ``shutdown``. ``stop`` is also called at every loss of the
broker's connection, with ``start`` after it. A cold shutdown cancels requests in its signal handler, before ``stop``.

So ``stop`` gives back what has not begun, and nothing else: what Celery has just cleared would vanish without a word,
while its lease was renewed for ever. Renewals and settlements go on until ``shutdown``, and where bodies still run,
after it.
"""
from __future__ import annotations

import _thread
import atexit
import logging
from collections.abc import Sequence
from typing import Any

from celery import bootsteps, signals
from celery.worker import state

from chrono_beat.celery import never_began
from chrono_beat.celery.worker import aside, pools
from chrono_beat.celery.worker.deliver import Deliverer
from chrono_beat.celery.worker.held import Ending, HeldDelivery
from chrono_beat.celery.worker.io import WorkerIO
from chrono_beat.celery.worker.renewer import Renewer
from chrono_beat.celery.worker.stops import Stops
from chrono_beat.core.deliveries import CANCEL, RAN_REVOKED
from chrono_beat.core.field_checks import is_pool
from chrono_beat.core.targets import relay_pool

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 5.0


class ChronoStep(bootsteps.StartStopStep):
    """Consumer bootstep: draws chrono_beat's pools beside the broker's queues."""

    requires = ("celery.worker.consumer.tasks:Tasks",)
    label = "chrono_beat"

    def __init__(self, c: Any, **kwargs: Any) -> None:
        self._beat = c.app.chrono_beat
        self._consumer = c
        self._io: WorkerIO | None = None
        _consume_default_pool(c.app, self._beat.config.default_pool)
        super().__init__(c, **kwargs)

    def start(self, c: Any) -> None:
        self._consumer = c
        if self._io is None:
            self._deliverer = Deliverer(c)
            self._io = WorkerIO(
                self._beat, c.hostname, free_slots=self._free_slots, pools=self._pools, deliver=self._deliver,
                hear=self._hear, knows=lambda task: task in self._consumer.app.tasks)
            self._stops = Stops(
                self._io.find, self._interrupt, self._io.counts, can_kill=lambda: pools.is_prefork(self._consumer.pool),
                grace_seconds=self._beat.config.stop_grace, never_began=self._on_never_began)
            self._renewer = Renewer(
                self._io, self._beat, describe=self._describe, on_lost=self._on_lost, on_overdue=self._on_overdue)
            self._beat.worker = self._io
            # Bodies in threads may end after the shutdown, while the interpreter waits for them.
            atexit.register(self._io.flush, FLUSH_SECONDS)
            signals.worker_shutting_down.connect(self._on_shutting_down)
        else:
            self._deliverer.restart(c)
        if relay_pool(self._beat.config) in c.app.amqp.queues.consume_from:
            logger.warning("chrono_beat: %s is not drawn: it is the relay's, which `chrono run` has",
                           relay_pool(self._beat.config))
        if not self._pools():
            logger.warning("chrono_beat: this worker draws nothing: none of its queues is %r or begins with %r",
                           self._beat.config.default_pool, self._beat.config.default_pool + ".")
        if not pools.can_end_bodies(c.pool):
            logger.info("chrono_beat: this pool cannot end a body: one that is cancelled, replaced or over its "
                        "max_duration is settled without it, and runs on until it looks at current().cancelled; use "
                        "prefork where that matters")
        pools.notice_deaths(c.pool)
        self._renewer.start()
        self._io.start()

    def register_with_event_loop(self, c: Any, hub: Any) -> None:
        if self._io is not None:
            self._deliverer.register(hub)

    def stop(self, c: Any) -> None:
        if self._io is None:
            return
        self._io.stop_drawing()
        self._deliverer.loop_ends()
        for held in self._deliverer.take_back():
            held.give_back()
        for held in self._io.held():
            if held.ended:
                continue
            if not held.submitted or pools.never_began(held, c.pool):
                held.give_back()
            else:
                pools.keep(held, c.pool)
        self._io.flush(FLUSH_SECONDS)

    def _on_shutting_down(self, sender: Any = None, **kwargs: Any) -> None:
        # Sent from a signal handler, up to some seconds before ``stop``: gevent's loop looks at its stop flag every
        # 2 s, solo's when its body has ended. The interrupted thread may hold any lock, so nothing here may take one.
        if sender == self._consumer.hostname and self._io is not None:
            self._io.stop_drawing()
            _thread.start_new_thread(self._give_back_unbegun, ())

    def _give_back_unbegun(self) -> None:
        for held in self._io.held():
            if not held.submitted:
                held.give_back()

    def terminate(self, c: Any) -> None:
        self.stop(c)

    def shutdown(self, c: Any) -> None:
        if self._io is None:
            return
        self.stop(c)                                 # not called before where the worker ended while it started
        if pools.is_prefork(c.pool):
            # The children are gone. What has not reported an end has none, or nobody heard of it.
            for held in self._io.held():
                held.hand_back("the worker ended")
        # Elsewhere a body may still run: it keeps its lease, which expires if the process ends before it.
        self._io.flush(FLUSH_SECONDS)
        self._io.close()
        self._renewer.close()
        self._deliverer.close()

    def info(self, c: Any) -> dict[str, Any]:
        """What ``inspect stats`` shows."""
        if self._io is None:
            return {}
        counts = {name: getattr(self._io.counts, name) for name in self._io.counts.__slots__}
        held = len(self._io.held())
        return {"chrono_beat": {"worker": self._io.worker, "pools": self._pools(), "held": held, **counts}}

    # -- called from the I/O and renewal threads

    def _pools(self) -> list[str]:
        """Return the pools to draw, read anew each time: ``control add_consumer`` and ``cancel_consumer`` change
        them."""
        default, relay = self._beat.config.default_pool, relay_pool(self._beat.config)
        names = list(self._consumer.app.amqp.queues.consume_from)
        # What lies in the relay's pool is to be sent, or of a shadow not even that: no worker runs it.
        return sorted(name for name in names if is_pool(name, default) and name != relay)

    def _free_slots(self, own: int, own_accepted: int) -> int:
        """Return how many more deliveries the pool can begin at once.

        Args:
            own: deliveries in this worker that have not ended.
            own_accepted: how many of them the pool has accepted.
        """
        others = max(0, len(state.active_requests) - own_accepted)
        return pools.slots(self._consumer.controller, self._consumer.pool) - own - others

    def _describe(self) -> tuple[list[str], list[str], int, str]:
        c = self._consumer
        tasks = sorted(name for name in list(c.app.tasks) if not name.startswith("celery."))
        pool = type(c.pool)
        return self._pools(), tasks, pools.slots(c.controller, c.pool), f"{pool.__module__}:{pool.__qualname__}"

    def _on_lost(self, held: HeldDelivery) -> None:
        assert self._io is not None
        self._io.counts.lost_leases += 1
        self._deliverer.stop(held)

    def _on_overdue(self, held: HeldDelivery) -> Ending | None:
        return self._stops.overdue(held, self._kill)

    def _kill(self, held: HeldDelivery) -> None:
        # Not by way of the event loop: it would have kept the limit if it turned.
        if held.request is not None:
            held.request.stop(self._consumer.pool)

    # -- called from the I/O and waiting threads

    def _deliver(self, helds: Sequence[HeldDelivery]) -> None:
        for held in helds:
            self._stops.meet(held)
        self._deliverer.put(helds)

    def _hear(self, message: str) -> None:
        assert self._io is not None
        if message == aside.MESSAGE:
            self._io.look_aside()
        else:
            self._stops.hear(message)

    def _interrupt(self, held: HeldDelivery) -> None:
        pool = self._consumer.pool
        if pools.is_prefork(pool):
            self._deliverer.stop(held)
        elif pools.never_began(held, pool):
            held.end(RAN_REVOKED, {})                # its end was fixed by whoever stopped it
            if held.stopping == CANCEL:
                self._on_never_began(held)

    def _on_never_began(self, held: HeldDelivery) -> None:
        never_began.tell_from_worker(self._consumer.app, held.delivery.payload)


def _consume_default_pool(app: Any, pool: str) -> None:
    """Add the default pool to what a worker without -Q consumes.

    It becomes one of its queues, so that ``inspect active_queues`` lists it and ``control cancel_consumer`` ends it;
    the broker's queue of that name stays empty.
    """
    queues = app.amqp.queues
    if getattr(queues, "_consume_from", None) is None and pool not in queues:
        queues.select_add(pool)
