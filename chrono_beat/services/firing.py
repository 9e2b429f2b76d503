"""The firing thread: what has become due goes to Redis, in batches; and the marker, which notes that in the database.

Nothing slow happens here: rows are claimed and messages built ahead by the look-ahead, and rows are marked ``queued``
afterwards by another thread. A batch is one script call; tenants share it, so that a flood of one of them delays what is
due of the others by a batch at most (invariant 8).

What may go wrong with a batch, and what follows:

==============================  =====================================================================================
the partition's lease is over   nothing is sent until a renewal is confirmed (rule 3); Redis refuses what is sent late
refused, whatever the reason    rows are read anew before anything of that lane is published
no answer from Redis            it may have been carried out: sent again as it is, for `UNSURE_US` at most; after that
                                its execution may have ended and been forgotten, so rows are read anew
EARLY                           Redis' clock was set back; tried again shortly (invariant 1)
an error nobody expected        each entry is tried by itself a second later
==============================  =====================================================================================
"""
from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from chrono_beat.core.clock import Clock, deadline_us
from chrono_beat.core.config import Config
from chrono_beat.core.errors import QueueUnavailable
from chrono_beat.core.pace import Pace
from chrono_beat.core.records import ALREADY, EARLY, MISSED, PUBLISHED, SKIPPED, VOIDED, PublishResult
from chrono_beat.core.wheel import TICK_US
from chrono_beat.ports import JobStore, QueueStore
from chrono_beat.services.lanes import Lanes
from chrono_beat.services.partitions import Partitions
from chrono_beat.services.pending import Entry, Pending
from chrono_beat.services.service import Service
from chrono_beat.services.stopper import Stopper
from chrono_beat.telemetry import emit, listening

FIRE_LIMIT = 20_000
"""Bunches that leave the wheel in one step; bounds how long its lock is held. Steps follow each other until all that is
due has left, since what is due of others comes behind."""

SHORTEST_SLEEP_US = 200
"""Microseconds; the estimate of a server's clock creeps up to a due time, and each look costs something."""

EARLY_RETRY_US = 20_000
AGAIN_MARGIN_US = 500_000
"""Microseconds beyond the start window until an edited job's execution that a worker has is offered once more."""

APART_US = 1_000_000
"""Microseconds until an entry whose publishing failed as nobody expected is tried by itself."""

UNSURE_US = 20_000_000
"""Microseconds for which a batch without an answer is repeated; well below the life of a tombstone (rule 2)."""

LONGEST_BACKOFF_US = 1_000_000


class Firing(Service):
    """Publishes what has become due.

    Args:
        queue: Redis.
        clock: the host's clocks.
        config: batch size, length and margin of a partition's lease.
        pending: where entries wait.
        partitions: what is held, and since when that was confirmed.
        lanes: generations and clocks.
        marker: is told what was published.
        stopper: is told which running executions are to make room.
        ask_lanes: makes the lanes' keeper look at once.
        ask_planner: makes the planner look at once.
    """

    def __init__(
        self, queue: QueueStore, clock: Clock, config: Config, *, pending: Pending, partitions: Partitions,
        lanes: Lanes, marker: Marker, stopper: Stopper, ask_lanes: Callable[[], object], ask_planner: Callable[[], object],
    ) -> None:
        super().__init__("firing", clock, longest_backoff_us=LONGEST_BACKOFF_US)
        self._queue = queue
        self._batch = config.publish_batch
        self._again_us = round(config.start_window * 1_000_000) + AGAIN_MARGIN_US
        self._lease_us = round(config.partition_lease_ttl * 1_000_000)
        self._margin_us = round(config.skew_margin * 1_000_000)
        self._pending = pending
        self._partitions = partitions
        self._lanes = lanes
        self._marker = marker
        self._stopper = stopper
        self._ask_lanes = ask_lanes
        self._ask_planner = ask_planner
        self._paces = [Pace() for _ in range(config.lanes)]
        self._unsure: dict[int, int] = {}         # lane: monotonic µs since when a batch of it has no answer

    def step(self, now_us: int) -> int:
        """Publish one batch of each lane that has something due."""
        reached_us = self._lanes.reached_us(now_us)
        all_left = reached_us is None or self._pending.advance(reached_us, FIRE_LIMIT)
        failure: QueueUnavailable | None = None
        published = False
        for lane in self._pending.lanes_due():
            try:
                published |= self._fire(lane)
            except QueueUnavailable as error:
                failure = error
        if failure is not None and not published:
            raise failure
        if published or not all_left:
            return 0
        if reached_us is None:
            return self._longest_wait_us
        waits = [rest_us for lane in self._pending.lanes_due() if (rest_us := self._paces[lane].rests_us(now_us))]
        next_due_us = self._pending.next_due_us()
        if next_due_us is not None:
            waits.append(next_due_us - reached_us)
        return max(min(waits, default=self._longest_wait_us), SHORTEST_SLEEP_US)

    def _fire(self, lane: int) -> bool:
        """Publish a batch of the lane; False where it cannot be published to now."""
        generation = self._lanes.usable.get(lane)
        if generation is None or self._pending.reload_wanted:
            return False
        now_us = self.clock.monotonic_us()
        if now_us - self._unsure.get(lane, now_us) > UNSURE_US:
            del self._unsure[lane]
            self._want_reload("no answer for too long")
            return False
        holding = self._partitions.holding
        server = self._lanes.clocks[lane]
        # Rule 3: a dispatcher that was paused finds out for itself that its right has ended; Redis refuses it as well.
        valid_until_us = deadline_us(
            server, renewal_started_us=holding.renewed_us, lease_us=self._lease_us, margin_us=self._margin_us)
        reached_us = server.at_least(now_us)
        if valid_until_us is None or reached_us is None or reached_us > valid_until_us:
            return False
        pace = self._paces[lane]
        edition, taken = self._pending.edition, self._pending.take(lane, self._batch, pace.left_out(now_us))
        epochs = holding.epochs
        # Rule 4, and the epoch: only what was read under what still holds. The rest is somebody else's, or read anew.
        batch = [e for e in taken if e.generation == generation and epochs.get(e.partition) == e.epoch
                 and not 0 < e.again_until_us < reached_us]
        if len(batch) < len(taken):
            emit("dropped", lane=lane, why="its epoch, generation or time is over", count=len(taken) - len(batch))
        if not batch:
            return bool(taken)
        try:
            result = self._queue.publish(lane, generation, valid_until_us, [entry.item for entry in batch])
        except QueueUnavailable:
            self._unsure.setdefault(lane, now_us)
            self._pending.put_back(lane, batch, edition)
            raise
        except Exception:
            self._set_apart(batch, reached_us)
            raise
        self._unsure.pop(lane, None)
        pace.note({entry.item.tenant for entry in batch}, lambda tenant: self._pending.waiting(lane, tenant),
                  now_us, self.clock.monotonic_us())
        if result.refused:
            self._refused(lane, result.refused, len(batch))
            return False
        self._answered(lane, batch, result)
        return True

    def _set_apart(self, batch: Sequence[Entry], reached_us: int) -> None:
        """Let each entry of a batch that failed as nobody expected come again by itself: one that always fails then costs
        its neighbours nothing, and a passing fault loses none."""
        for number, entry in enumerate(batch):
            self._pending.add([entry], not_before_us=reached_us + APART_US + number * TICK_US)

    def _refused(self, lane: int, why: str, count: int) -> None:
        emit("publish_refused", lane=lane, why=why, count=count)
        if why != "deadline" and self._lanes.set_usable(lane, None):
            self._ask_lanes()
        self._want_reload(f"refused: {why}")

    def _want_reload(self, why: str) -> None:
        self._pending.reload_wanted = why
        self._ask_planner()

    def _answered(self, lane: int, batch: Sequence[Entry], result: PublishResult) -> None:
        at_us = result.now_us
        replies = result.replies
        self._marker.add([
            (entry.item.execution_id, at_us) for entry, reply in zip(batch, replies, strict=True)
            if reply not in (SKIPPED, VOIDED, EARLY, MISSED)
        ])
        if result.stops:
            self._stopper.add(lane, result.stops)
        if EARLY in replies:
            early = [entry for entry, reply in zip(batch, replies, strict=True) if reply == EARLY]
            self._pending.add(early, not_before_us=at_us + EARLY_RETRY_US)
            emit("publish_early", lane=lane, count=len(early))
            self._ask_lanes()
        if ALREADY in replies:
            # A worker may have an older version, not begun (rule 7). Given back it is void, so the new one is offered once
            # more when the start window is over (rule 10); later than that its tombstone may be gone (rule 2).
            again = [entry._replace(again_until_us=at_us + UNSURE_US) for entry, reply in zip(batch, replies, strict=True)
                     if reply == ALREADY and entry.item.version > 1 and not entry.again_until_us]
            self._pending.add(again, not_before_us=at_us + self._again_us)
        if not listening():
            return
        fresh = [entry.item for entry, reply in zip(batch, replies, strict=True) if reply == PUBLISHED]
        if fresh:
            emit("published", lane=lane, tenants=[item.tenant for item in fresh],
                 lateness_us=[at_us - item.due_us for item in fresh])
        for word, event in ((SKIPPED, "publish_skipped"), (VOIDED, "publish_voided")):
            ids = [entry.item.execution_id for entry, reply in zip(batch, replies, strict=True) if reply == word]
            if ids:
                emit(event, lane=lane, execution_ids=ids)
        late = [entry.item for entry, reply in zip(batch, replies, strict=True) if reply == MISSED]
        if late:
            emit("publish_missed", lane=lane, execution_ids=[item.execution_id for item in late],
                 tenants=[item.tenant for item in late])


MARK_EVERY_US = 100_000
MARK_BATCH = 2_000
MAX_MARKS = 1_000_000
"""Rows that wait to be marked while the database is away; the oldest go first. An unmarked row is published again by
whoever owns its partition next, and Redis answers that it is there already."""

LONGEST_DEFER_US = 2_000_000


class Marker(Service):
    """Moves published rows from ``scheduled`` to ``queued``, in bulk and off the hot path.

    Args:
        store: the database.
        clock: the host's clocks.
        busy: says whether the firing thread has much to do; marks then wait a little.
    """

    def __init__(self, store: JobStore, clock: Clock, busy: Callable[[], bool]) -> None:
        super().__init__("marker", clock)
        self._store = store
        self._busy = busy
        self._lock = threading.Lock()
        self._marks: list[tuple[str, int]] = []
        self._since_us = clock.monotonic_us()

    def add(self, marks: Sequence[tuple[str, int]]) -> None:
        """Remember (execution id, µs since the epoch at which it was published)."""
        with self._lock:
            self._marks.extend(marks)
            too_many = len(self._marks) - MAX_MARKS
            if too_many > 0:
                del self._marks[:too_many]
        if too_many > 0:
            emit("marks_dropped", count=too_many)

    def step(self, now_us: int) -> int:
        """Mark a batch of rows."""
        if not self._marks or (self._busy() and now_us - self._since_us < LONGEST_DEFER_US):
            return MARK_EVERY_US
        with self._lock:
            batch, self._marks = self._marks[:MARK_BATCH], self._marks[MARK_BATCH:]
        try:
            # Rule 1: it leaves only the state "scheduled", so a late mark reopens nothing and may be repeated.
            self._store.mark_queued(batch)
        except BaseException:
            with self._lock:
                self._marks[:0] = batch
            raise
        self._since_us = now_us
        return 0 if self._marks else MARK_EVERY_US

    def drain(self, now_us: int) -> int | None:
        """Mark what is left."""
        if not self._marks:
            return None
        self._since_us = now_us - LONGEST_DEFER_US
        self.step(now_us)
        return 0
