"""The relay: executions of message targets, handed over to a stock queue of the user's broker.

It draws a pool of its own, in small batches under lease like any worker, and sends each execution as an ordinary Celery
message, for workers that know nothing of chrono_beat. When the broker has it, the execution has succeeded, reason
``handed_over``. Of a shadow nothing is sent: that it would have been, and when, is all that is recorded.

- *The broker is away*: nothing is drawn; what was drawn goes back to the front, and the next look comes later each time.
- *Nobody knows whether the broker has it* (the connection broke between send and confirmation): it is handed out again
  as a reap, so it is counted, bounded by the cap, and has the same Celery id.
- *The relay dies between send and settle*: the lease runs out, and the same follows.
- *Redis loses its memory after the settle*: the outcome is kept until it is recorded, and told again (rule 6).

Known weakness: a cancel that comes while its message is being sent comes too late, as it does for any message that a
broker has.
"""
from __future__ import annotations

from collections.abc import Sequence

from chrono_beat.core import eta
from chrono_beat.core.clock import Clock
from chrono_beat.core.config import Config
from chrono_beat.core.deliveries import RAN_LOST, RAN_OK, RAN_REJECTED, Delivery, Hold, Settlement
from chrono_beat.core.errors import BrokerUnavailable, InvalidInput, Problem, QueueUnavailable, StoreUnavailable
from chrono_beat.core.records import ANY_TASK, WorkerReport
from chrono_beat.core.targets import relay_pool
from chrono_beat.ports import JobStore, MessageSender, QueueStore
from chrono_beat.services.service import Service
from chrono_beat.services.unrecorded import Outcomes
from chrono_beat.telemetry import emit

BATCH = 50
"""Executions drawn at once; each has to be on its way within the start window."""

WAIT_SECONDS = 1.0
REPORT_EVERY_US = 5_000_000
REPORT_TTL_US = 30_000_000


class Relay(Service):
    """Draws and hands over, all lanes.

    Args:
        store: the database, for the queues.
        queue: Redis.
        sender: the way to the user's broker.
        clock: the host's clocks.
        config: lanes, lease, start window, name of the pool.
        member: a name that no other process has.
    """

    def __init__(
        self, store: JobStore, queue: QueueStore, sender: MessageSender, clock: Clock, config: Config, *, member: str,
    ) -> None:
        super().__init__("relay", clock)
        self._store = store
        self._queue = queue
        self._sender = sender
        self._worker = f"relay@{member}"
        self._pool = relay_pool(config)
        self._lanes = range(config.lanes)
        self._lease_us = round(config.lease_ttl * 1_000_000)
        self._window_us = round(config.start_window * 1_000_000)
        self._renew_every_us = round(config.renew_every * 1_000_000)
        self._unsettled: dict[int, list[Settlement]] = {lane: [] for lane in self._lanes}
        self._outcomes = Outcomes(self._lanes)
        self._next_report_us = self._next_look_us = 0
        self._may_hold = True                               # what Redis granted and this one has lost sight of

    def step(self, now_us: int) -> int:
        """Hand over what is there; where nothing is, wait for it."""
        for lane in self._lanes:
            self._settle(lane)                              # before anything is given back that was sent
        self._keep_up(now_us)
        if self._may_hold:
            for lane in self._lanes:
                self._queue.recover(lane, self._worker, [])
            self._may_hold = False
        self._sender.connect()                              # nothing is drawn that cannot go on
        found = 0
        for lane in self._lanes:
            try:
                found += self._hand_over(lane)
            except QueueUnavailable:
                self._may_hold = True
                raise
        if found:
            return 0
        self._queue.wait_for_work(self._lanes, [self._pool], self._worker, WAIT_SECONDS)
        return 0

    def drain(self, now_us: int) -> int | None:
        """Settle what was sent; say goodbye."""
        for lane in self._lanes:
            self._settle(lane)
        self._queue.report_worker(WorkerReport(self._worker, [], [], 0, "", self._queue.now_us()), 0)
        self._sender.close()
        return None

    def _keep_up(self, now_us: int) -> None:
        """Tell that there is a relay, and tell again what a lane lost before it was recorded."""
        if now_us >= self._next_report_us:
            report = WorkerReport(self._worker, [self._pool], [ANY_TASK], BATCH, "relay", self._queue.now_us())
            self._queue.report_worker(report, REPORT_TTL_US)
            self._next_report_us = now_us + REPORT_EVERY_US
        if now_us >= self._next_look_us:
            for lane in self._lanes:
                self._outcomes.settle_again(self._queue, lane, self._worker)
            self._next_look_us = now_us + self._renew_every_us

    def _hand_over(self, lane: int) -> int:
        """Draw once and send it all; returns how much there was."""
        begin_by_us = self.clock.monotonic_us() + self._window_us      # rule 10: counted from before the draw
        drawn = self._queue.draw(lane, self._pool, BATCH, self._worker, self._lease_us)
        if not drawn:
            return 0
        try:
            queues = self._store.message_queues(sorted({delivery.job_id for delivery in drawn}))
        except StoreUnavailable:
            self._give_back(lane, drawn)
            raise
        sent = 0
        for number, delivery in enumerate(drawn):
            if self.clock.monotonic_us() >= begin_by_us:
                self._give_back(lane, drawn[number:])
                break
            try:
                of_job = delivery.job_id in queues           # else an ETA task, whose message says where it goes
                self._send(lane, delivery, queues[delivery.job_id] if of_job else eta.queue_of(delivery.payload))
            except BrokerUnavailable as error:
                left = drawn[number:]
                if error.perhaps_sent:
                    self._settle(lane, Settlement(_hold(delivery), RAN_LOST, _error(error)))
                    emit("relay_uncertain", lane=lane, execution_id=delivery.execution_id)
                    left = drawn[number + 1:]
                self._give_back(lane, left)
                raise
            sent += 1
        self._settle(lane)
        if sent:
            emit("relayed", lane=lane, count=sent)
        return len(drawn)

    def _send(self, lane: int, delivery: Delivery, queue: str | None) -> None:
        """Begin, send, and note the end, which goes to Redis together with the next one's beginning."""
        hold = _hold(delivery)
        self._begin(lane, hold)
        if queue is None:
            self._unsettled[lane].append(Settlement(hold, RAN_OK, {"shadow": True}))
            return
        try:
            if not queue:
                raise InvalidInput(Problem("queue", "the job has none any more: it was deleted, or its target changed"))
            self._sender.send(queue, delivery.payload)
        except InvalidInput as refused:
            self._unsettled[lane].append(Settlement(hold, RAN_REJECTED, _error(refused)))
        else:
            self._unsettled[lane].append(Settlement(hold, RAN_OK, {"handed_over": queue}))

    def _begin(self, lane: int, hold: Hold) -> None:
        ended = self._unsettled[lane]
        self._queue.settle_and_draw(lane, self._worker, ended, self._pool, 0, self._lease_us, [hold])
        self._told(lane)

    def _settle(self, lane: int, *more: Settlement) -> None:
        self._unsettled[lane] += more
        if self._unsettled[lane]:
            self._queue.settle(lane, self._worker, self._unsettled[lane])
            self._told(lane)

    def _told(self, lane: int) -> None:
        for settlement in self._unsettled[lane]:
            self._outcomes.add(lane, settlement)
        self._unsettled[lane] = []

    def _give_back(self, lane: int, deliveries: Sequence[Delivery]) -> None:
        self._settle(lane)
        if deliveries:
            self._queue.give_back(lane, self._worker, [_hold(delivery) for delivery in deliveries])


def _hold(delivery: Delivery) -> Hold:
    return Hold(delivery.execution_id, delivery.token)


def _error(error: Exception) -> dict[str, object]:
    return {"error": {"type": type(error).__name__, "message": str(error)[:1_000], "traceback": ""}}
