"""The worker's dealings with Redis: one thread sends and draws, another waits for work.

No other thread of the worker calls Redis to draw or settle; the hub's thread never waits for the network. What ends
is put into ``_todo`` and the I/O thread is woken; it sends accepts, settlements and draws in one round trip. An
operation stays in ``_todo`` until Redis has answered, and all of them may be repeated, so a broken connection loses
nothing. A draw may not: its reply may be lost after it ran. Then ``recover`` gives back what Redis thinks this worker
holds and the worker does not know of.

Between the two threads stands a mode:

    DRAW    there may be work: the I/O thread draws next
    IDLE    the last draw left slots free: the other thread waits for the pools' wake tokens, and nobody polls
    FULL    no free slot: it waits for control messages only, since a token it took would be missing to an idle worker

Known weakness: a worker whose slots are filled by tasks of ordinary queues while it waits in IDLE takes one token
that it cannot use. Idle workers then draw when their own wait is over, after WAIT_SECONDS at most.
"""
from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from chrono_beat.celery.worker.aside import Aside
from chrono_beat.celery.worker.held import HeldDelivery
from chrono_beat.celery.worker.native import native_thread_starter
from chrono_beat.celery.worker.operations import (
    ACCEPT,
    FORGET,
    GIVE_BACK,
    PARK,
    REDRAW,
    SETTLE,
    Counts,
    LaneWork,
    Operation,
)
from chrono_beat.celery.worker.shares import Line, Shares
from chrono_beat.core.deliveries import RAN_REJECTED, REFUSED, Delivery, Settlement
from chrono_beat.core.errors import QueueUnavailable
from chrono_beat.services.unrecorded import Outcomes
from chrono_beat.telemetry import emit

logger = logging.getLogger(__name__)

WAIT_SECONDS = 5.0                  # longest wait for a token; then one draw in case a token was lost
BUSY_LOOK_SECONDS = 0.1             # how often to look, without Redis, whether tasks of other queues have left a slot
BACK_OFF_SECONDS = (0.2, 0.5, 1.0, 2.0)
FLUSH_STEP_SECONDS = 0.01
MAX_SETTLEMENTS = 500               # sent in one script call

DRAW, IDLE, FULL = "draw", "idle", "full"


class WorkerIO:
    """Draws, accepts, settles and gives back for one worker.

    Args:
        beat: the app's ChronoBeat, for settings and queue.
        hostname: the worker's node name. A random part is added: a worker that was killed and its successor of the
            same name must not take each other's leases for their own.
        free_slots: returns how many more deliveries the pool can take, given how many of ours it has and how many of
            these it has accepted.
        pools: returns the names of the pools to draw from, as they are now.
        deliver: takes drawn deliveries; called by the I/O thread.
        hear: takes control messages; called by the thread that waits.
        knows: says whether a task of that name can be run here.
    """

    def __init__(
        self,
        beat: Any,
        hostname: str,
        *,
        free_slots: Callable[[int, int], int],
        pools: Callable[[], Sequence[str]],
        deliver: Callable[[Sequence[HeldDelivery]], None],
        hear: Callable[[str], None],
        knows: Callable[[str], bool],
    ) -> None:
        self.worker = f"{hostname}#{secrets.token_hex(3)}"
        self.queue = beat.queue
        self.lanes = tuple(range(beat.config.lanes))
        self.lease_us = round(beat.config.lease_ttl * 1_000_000)
        self.start_window = beat.config.start_window
        self.reap_cap = beat.config.reap_cap
        self.counts = Counts()
        self.outcomes = Outcomes(self.lanes)
        self._free_slots, self._pools, self._deliver, self._hear = free_slots, pools, deliver, hear
        self._held: dict[tuple[str, str], HeldDelivery] = {}
        self._todo: deque[Operation] = deque()
        self._wake = threading.Event()
        self._turn = threading.Condition()           # guards _mode and _waits_for
        self._mode = DRAW
        self._waits_for = ""
        self._drawing = False
        self._greenlets_thread = threading.get_native_id() if native_thread_starter() else None
        self._busy = False
        self._aside = Aside(self.queue, knows, self.lanes, beat.config.no_worker_after)
        self._aside_due = True
        # A call broke off: what does Redis think we hold? At the start, too: another server may have taken over just now.
        self._in_doubt = True
        self._closed = False
        self._shares = Shares()
        self._told = 0                               # lost leases that were logged
        self._threads: list[threading.Thread] = []

    # -- called by the bootstep ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Draw, from now on or again."""
        self._drawing = True
        if not self._threads:
            for name, target in (("chrono-io", self._run), ("chrono-wait", self._wait_for_work)):
                # Daemons: they must not hold up a worker's exit; what is left to be sent is flushed at exit.
                self._threads.append(threading.Thread(target=target, name=name, daemon=True))
                self._threads[-1].start()
        self._look_for_work()

    def stop_drawing(self) -> None:
        """Draw nothing more; a draw that is under way is given back when it returns. Callable from a signal handler."""
        self._drawing = False

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until everything that has ended was sent; False if the time was not enough."""
        deadline = time.monotonic() + timeout_seconds
        while self._todo or self._busy:
            if time.monotonic() > deadline or not self._threads:
                return False
            self._wake.set()
            time.sleep(FLUSH_STEP_SECONDS)
        return True

    def close(self) -> None:
        """Let the threads end once nothing is held any more. A body that still runs in a thread of its own is
        settled."""
        self._drawing = False
        self._closed = True
        self._wake.set()
        with self._turn:
            self._turn.notify_all()

    def held(self) -> list[HeldDelivery]:
        """Return what this worker holds, as Redis sees it: also what has ended and was not sent yet."""
        return list(self._held.values())             # one step for the interpreter: other threads change the dict

    def find(self, execution_id: str, token: str | None) -> HeldDelivery | None:
        """Return a held delivery."""
        return self._held.get((execution_id, token or ""))

    @property
    def finished(self) -> bool:
        """Whether it was closed and holds nothing any more."""
        return self._closed and not self._held

    # -- called by deliveries, from any thread

    def accepted(self, held: HeldDelivery) -> None:
        """Send "started" with the next call."""
        self._add(Operation(ACCEPT, held))

    def settle(self, held: HeldDelivery, result: str, detail: Mapping[str, Any], after_seconds: float = 0.0) -> None:
        """Send the end of a delivery, not before *after_seconds* have passed."""
        self.counts.rejected += result == RAN_REJECTED
        not_before = time.monotonic() + after_seconds if after_seconds else 0.0
        self._add(Operation(SETTLE, held, Settlement(held.hold, result, detail), not_before))

    def give_back(self, held: HeldDelivery) -> None:
        """Return a delivery that never began."""
        self._add(Operation(GIVE_BACK, held))

    def park(self, held: HeldDelivery) -> None:
        """Lay a delivery aside for a worker that knows its task."""
        self.counts.unknown_tasks += 1
        self._add(Operation(PARK, held))

    def redraw(self, held: HeldDelivery) -> None:
        """Draw anew what has not begun in time, and deliver it again."""
        self._add(Operation(REDRAW, held))

    def look_aside(self) -> None:
        """Draw, as soon as there are slots, what other workers have laid aside and this one knows."""
        self._aside_due = True
        self.wake()

    def forget(self, held: HeldDelivery) -> None:
        """Hold a delivery no longer, without a word to Redis: it is somebody else's."""
        self._add(Operation(FORGET, held))

    def late(self, held: HeldDelivery, result: str) -> None:
        """Note what a body reports whose delivery was settled without it."""
        self._note_refused(held, result, f"it was settled before as {held.stopping}")

    def _note_refused(self, held: HeldDelivery, result: str, why: str) -> None:
        self.counts.refused += 1                     # invariant 10
        logger.warning("chrono_beat: outcome %r of %s refused: %s", result, held.hold.execution_id, why)
        emit("outcome_refused", lane=held.lane, execution_id=held.hold.execution_id, result=result)

    def _add(self, operation: Operation) -> None:
        self._todo.append(operation)
        self.wake()

    def wake(self) -> None:
        """Let the I/O thread look at once at what is to be sent."""
        # Under gevent a native thread must not set an event; what it has to say goes with the next look.
        if self._greenlets_thread in (None, threading.get_native_id()):
            self._wake.set()

    # -- the I/O thread

    def _run(self) -> None:
        failures = 0
        while not self.finished:
            self._wake.wait(self._patience())
            self._wake.clear()
            self._busy = True
            try:
                self._cycle()
                if self._aside_due:
                    self._draw_aside()
                failures = 0
            except QueueUnavailable as error:
                self._in_doubt = True
                self.counts.connection_errors += 1
                if failures == 0:
                    logger.warning("chrono_beat: Redis cannot be reached, running tasks go on: %s", error)
                self._busy = False
                time.sleep(BACK_OFF_SECONDS[min(failures, len(BACK_OFF_SECONDS) - 1)])
                failures += 1
                self._wake.set()
            except Exception:
                logger.exception("chrono_beat: the worker's I/O failed; it goes on")
                self._in_doubt = True
                time.sleep(BACK_OFF_SECONDS[-1])
                self._wake.set()
            finally:
                self._busy = False

    def _patience(self) -> float:
        waiting = [operation.not_before for operation in list(self._todo)]
        if waiting:
            return min(WAIT_SECONDS, max(0.0, min(waiting) - time.monotonic()))
        return BUSY_LOOK_SECONDS if self._others_fill_slots() else WAIT_SECONDS

    def _others_fill_slots(self) -> bool:
        """Whether the slots are full, some of them with tasks of other queues, whose end nobody tells us."""
        if not self._drawing or self._mode != FULL:
            return False
        own, accepted = self._own_slots()
        return self._free_slots(own, accepted) < self._free_slots(own, 10**9)

    def _cycle(self) -> None:
        if self.counts.lost_leases != self._told:
            lost, self._told = self.counts.lost_leases - self._told, self.counts.lost_leases
            logger.warning("chrono_beat: %d leases have passed to other deliveries", lost)
        doubted = self._in_doubt
        if doubted:
            self._recover()              # before anything is sent: what a server has forgotten that took over, it refuses
        work = self._take_todo()
        credit = self._credit() if self._mode != IDLE or doubted else 0
        lines = self._lines() if credit > 0 else []
        if len(lines) == 1 and not doubted and work.keys() <= {lines[0][0]}:
            drawn = self._send(lines[0][0], work.get(lines[0][0], LaneWork()), lines[0][1], credit)
            self._after_draw(credit, drawn)
            return
        for lane, lane_work in work.items():
            self._send(lane, lane_work)
        if doubted:
            credit = self._credit()
            lines = self._lines() if credit > 0 else []
        self._after_draw(credit, self._draw_from(lines, credit))

    def _lines(self) -> list[Line]:
        return [Line(lane, pool) for lane in self.lanes for pool in self._pools()]

    def _take_todo(self) -> dict[int, LaneWork]:
        """Take what can be sent now, by lane. What the sending does not get done puts itself back."""
        work: dict[int, LaneWork] = {}
        now, later = time.monotonic(), []
        for _ in range(len(self._todo)):
            operation = self._todo.popleft()
            lane_work = work.setdefault(operation.held.lane, LaneWork())
            if operation.not_before > now or len(lane_work.settles) >= MAX_SETTLEMENTS:
                later.append(operation)
            elif operation.kind == FORGET:
                self._drop(operation.held)
            else:
                lane_work.of_kind(operation.kind).append(operation)
        self._todo.extendleft(reversed(later))
        return {lane: part for lane, part in work.items() if part.all()}

    def _send(self, lane: int, work: LaneWork, pool: str = "", credit: int = 0) -> int:
        """Send a lane's operations, then draw; returns how many were drawn."""
        try:
            if work.returns:
                self.queue.give_back(lane, self.worker, [operation.held.hold for operation in work.returns])
                self.counts.given_back += len(work.returns)
                self._drop(*(operation.held for operation in work.returns))
                work.returns = []
            if work.parks:
                self._aside.park(lane, self.worker, [operation.held for operation in work.parks])
                self._drop(*(operation.held for operation in work.parks))
                work.parks = []
            while work.redraws:
                self._redraw(work.redraws[0].held)
                work.redraws.pop(0)
            accepts = [operation.held.hold for operation in work.accepts]
            settlements = [operation.settled() for operation in work.settles]
            sent = time.monotonic()
            words, deliveries = self.queue.settle_and_draw(
                lane, self.worker, settlements, pool, credit, self.lease_us, accepts)
        except BaseException:
            self._todo.extendleft(reversed(work.all()))
            raise
        self._note_settled(work.settles, words)
        return self._receive(lane, deliveries, sent)

    def _redraw(self, held: HeldDelivery) -> None:
        if held.ended:
            return                                   # given back, or stopped, meanwhile
        sent = time.monotonic()
        again = self.queue.redraw(held.lane, self.worker, held.hold, self.lease_us)
        if again is None:
            held.end_unbegun()
            self._drop(held)
            return
        before = tuple(held.hold)
        held.renew(again, sent + self.start_window)
        self._held[tuple(held.hold)] = held
        self._held.pop(before, None)
        self.counts.drawn_anew += 1
        self._deliver([held])

    def _note_settled(self, operations: Iterable[Operation], words: Sequence[str]) -> None:
        for operation, word in zip(operations, words, strict=True):
            self._drop(operation.held)
            if word == REFUSED:
                self._note_refused(operation.held, operation.settlement.result, "its lease had passed to another delivery")
            else:
                self.counts.settled += 1
                if not operation.held.plain:         # nobody records the end of one
                    self.outcomes.add(operation.held.lane, operation.settlement)

    def _drop(self, *helds: HeldDelivery) -> None:
        for held in helds:
            self._held.pop(tuple(held.hold), None)
            held.release()

    def _draw_from(self, lines: Sequence[Line], credit: int) -> int:
        """Share the credit over lanes and pools (invariant 8); what one leaves, the others get at once."""
        if credit > 0 and self._shares.is_due(lines, time.monotonic()):
            self._weigh(lines)
        waiting, total = list(lines), 0
        while waiting and total < credit:
            for line, asked in self._shares.allot(waiting, credit - total, lent=len(waiting) < len(lines)).items():
                drawn = self._send(line.lane, LaneWork(), line.pool, asked)
                total += drawn
                if drawn < asked:
                    waiting.remove(line)
        return total

    def _weigh(self, lines: Sequence[Line]) -> None:
        weights: dict[Line, int] = {}
        for lane in self.lanes:
            pools = [line.pool for line in lines if line.lane == lane]
            weights.update(zip((Line(lane, pool) for pool in pools), self.queue.ready_weights(lane, pools), strict=True))
        self._shares.weigh(weights, time.monotonic())

    def _draw_aside(self) -> None:
        room = self._credit()
        if room <= 0:
            return                                   # looked at again when a slot is free
        self._aside_due = False
        for lane in self.lanes:
            wanted, stranded = self._aside.wanted(lane, self._pools())
            if wanted and room > 0:
                sent = time.monotonic()
                drawn = self.queue.draw_parked(lane, self.worker, wanted[:room], self.lease_us)
                room -= self._receive(lane, drawn, sent, stranded)
                self._aside_due |= len(wanted) > room

    def _receive(
        self, lane: int, deliveries: Sequence[Delivery], sent: float, stranded: Collection[str] = (),
    ) -> int:
        helds = [HeldDelivery(lane, delivery, self, sent + self.start_window) for delivery in deliveries]
        for held in helds:
            if held.plain:
                self.counts.plain += 1
                held.exhausted = held.delivery.deliveries > self.reap_cap + 1
                held.stranded = held.hold.execution_id in stranded
            self._held[tuple(held.hold)] = held      # before anybody hears of them: renewals and recovery go by this
        self.counts.drawn += len(helds)
        if not self._drawing:
            for held in helds:
                held.give_back()
        elif helds:
            self._deliver(helds)
        return len(helds)

    def _recover(self) -> None:
        self._in_doubt = False                       # first: what breaks off meanwhile is in doubt again
        for lane in self.lanes:
            state = self.queue.lane_state(lane)
            if state.opened_replication_id not in ("", state.replication_id):
                # Rule 4: what took over may have forgotten the last moments. Drawn from it now, they would run again.
                raise QueueUnavailable("another server has taken over; nothing is drawn until its lanes are opened anew")
            found = self.queue.recover(lane, self.worker, [h.hold.execution_id for h in self.held() if h.lane == lane])
            if found:
                logger.warning("chrono_beat: %d deliveries whose draw was cut off were given back", found)

    def _credit(self) -> int:
        return max(0, self._free_slots(*self._own_slots())) if self._drawing else 0

    def _own_slots(self) -> tuple[int, int]:
        running = [held for held in self.held() if not held.ended]
        return len(running), sum(held.accepted for held in running)

    # -- who waits for what

    def _after_draw(self, credit: int, drawn: int) -> None:
        """Decide what the waiting thread waits for, and get it out of a wait that no longer fits."""
        with self._turn:
            if self._mode != IDLE or credit:
                self._mode = IDLE if drawn < credit else FULL
            elif self._credit() == 0:
                self._mode = FULL
            waits_wrongly = self._waits_for not in ("", self._mode)
            self._turn.notify_all()
        if waits_wrongly and self._drawing:
            self.queue.wake_worker(self.worker, self.lanes)

    def _look_for_work(self) -> None:
        with self._turn:
            self._mode = DRAW
        self._wake.set()

    def _wait_for_work(self) -> None:
        while not self.finished:
            with self._turn:
                while self._mode == DRAW and self._drawing:
                    self._turn.wait(WAIT_SECONDS)
                mode = self._waits_for = self._mode if self._drawing else FULL
            try:
                messages = self.queue.wait_for_work(
                    self.lanes, self._pools() if mode == IDLE else (), self.worker, WAIT_SECONDS)
            except QueueUnavailable:
                messages = []
                # The I/O thread's own connection was idle: it is opened anew in silence, perhaps to another server.
                self._in_doubt = True
                time.sleep(BACK_OFF_SECONDS[-1])     # the I/O thread reports it, and looks for work when it is over
            except Exception:
                logger.exception("chrono_beat: waiting for work failed; it goes on")
                messages = []
                time.sleep(BACK_OFF_SECONDS[-1])
            with self._turn:
                self._waits_for = ""
            if mode == IDLE and self._drawing:
                self._look_for_work()
            for message in messages:
                self._hear(message)
