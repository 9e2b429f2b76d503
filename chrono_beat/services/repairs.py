"""The audit's other half: open rows that Redis has nothing of are published again, under the same id (invariant 3).

The row is the outbox, so whatever Redis forgets can be read there: a flushed server, a failover, a key that somebody
deleted. A pass goes through all rows that are open and overdue, page by page in the order of the due index. Each page
is one script call a lane: which of these has no copy, grant, marker or outcome? The same call puts back what points to
a copy that is there (a place in line, a lock, a lease).

    fast    partitions that were not gone through since a lane's new generation became readable: page after page
    slow    otherwise: AUDIT_RATE rows a second, and a pause between two passes

What may be published, and until when (rules 3 to 5): the lane is read first, then the rows; nothing is read in
quarantine; the call carries the generation under which the rows were read and is refused 5 s after that. A tombstone
outlives that, so a row that ends meanwhile is found out by Redis. Two audits of one row do no harm.

Rows in state scheduled are the planner's: it judges whether they are missed. Where one is long overdue and in no wheel
(its dispatcher lost it), the audit only lets go of it, so that the planner finds it.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from chrono_beat.core import lifecycle
from chrono_beat.core.clock import Clock
from chrono_beat.core.config import Config
from chrono_beat.core.envelope import InvalidContent, Templates
from chrono_beat.core.errors import QueueUnavailable
from chrono_beat.core.ids import lane_of
from chrono_beat.core.records import PUBLISHED, LaneState, PublishItem
from chrono_beat.core.recovery import OpenRow
from chrono_beat.ports import JobStore, QueueStore
from chrono_beat.services.items import bury, publish_item
from chrono_beat.services.service import Service
from chrono_beat.telemetry import emit

AGE_US = 3_000_000
"""Microseconds by which a row is overdue before it is looked at: what is due now is just being published."""

LEFT_US = 30_000_000
"""Microseconds after which a scheduled row counts as lost by the wheel that should have it."""

VALID_US = 5_000_000
"""Microseconds after which Redis refuses what was read then (rule 3); a tombstone lives for a minute."""

PAGE = 250
PASS_EVERY_US = 10_000_000
"""Microseconds from the end of a slow pass to the next one."""

CLOSED_WAIT_US = 1_000_000
"""Microseconds until the next look where no lane can be read."""


class Repairs(Service):
    """Publishes again what Redis has lost.

    Args:
        store: the database.
        queue: Redis.
        clock: the host's clocks.
        config: numbers of partitions and lanes, rows a second.
        partitions: says which partitions to look at; None for all.
    """

    def __init__(
        self, store: JobStore, queue: QueueStore, clock: Clock, config: Config, *,
        partitions: Callable[[], Sequence[int]] | None = None,
    ) -> None:
        super().__init__("repairs", clock, longest_wait_us=PASS_EVERY_US)
        self._store = store
        self._queue = queue
        self._lanes = config.lanes
        self._rate = config.audit_rate
        self._partitions = partitions or (lambda: range(config.partitions))
        self._templates = Templates(config)
        self._after: OpenRow | None = None                 # the last row of the page before
        self._fast = False                                 # which kind of pass it belongs to
        self._passed: dict[int, dict[int, int]] = {}       # partition: generations under which it was gone through

    def step(self, now_us: int) -> int:
        """Look at one page."""
        states = self._readable()
        owned = sorted(self._partitions())
        if not states or not owned:
            self._after = None
            return CLOSED_WAIT_US
        generations = {lane: state.generation or 0 for lane, state in states.items()}
        left = [number for number in owned if not generations.items() <= self._passed.get(number, {}).items()]
        if bool(left) != self._fast:
            self._fast, self._after = bool(left), None
        numbers = [n for n in left or owned if self._after is None or n >= self._after.partition]
        page = self._store.open_page(numbers, self._after, AGE_US, PAGE) if numbers else []
        self._repair(page, states)
        ended = len(page) < PAGE
        self._after = None if ended else page[-1]
        for number in numbers:
            if ended or number < page[-1].partition:
                self._passed[number] = self._passed.get(number, {}) | generations
        if self._fast:
            return 0
        return PASS_EVERY_US if ended else round(len(page) * 1_000_000 / self._rate)

    def _readable(self) -> dict[int, LaneState]:
        """Return the lanes whose memory counts, as they are before anything is read for them (rules 4 and 5)."""
        states: dict[int, LaneState] = {}
        failure: QueueUnavailable | None = None
        for lane in range(self._lanes):
            try:
                state = self._queue.lane_state(lane)
            except QueueUnavailable as error:
                failure = error
                continue
            same_server = state.opened_replication_id == state.replication_id
            if state.generation is not None and same_server and state.now_us >= state.quarantine_until_us:
                states[lane] = state
        if failure is not None and not states:
            raise failure
        return states

    def _repair(self, page: Sequence[OpenRow], states: dict[int, LaneState]) -> None:
        lanes: dict[int, list[OpenRow]] = defaultdict(list)
        for row in page:
            lanes[lane_of(row.tenant, self._lanes)].append(row)
        for lane, rows in lanes.items():
            if lane in states:
                self._repair_lane(lane, rows, states[lane])

    def _repair_lane(self, lane: int, rows: Sequence[OpenRow], state: LaneState) -> None:
        lost = self._queue.lacking(lane, state.generation or 0, [row.execution_id for row in rows])
        if lost is None:
            return                                         # it has a new generation: everything is gone through anew
        lacking = set(lost)
        waiting = [row for row in rows if row.execution_id in lacking and row.state == lifecycle.SCHEDULED]
        left = [row.execution_id for row in waiting if row.due_us < state.now_us - LEFT_US]
        let_go = self._store.let_go(left) if left and not self._fast else 0
        again = self._publish(lane, [id_ for id_ in lost if id_ not in {row.execution_id for row in waiting}], state)
        emit("audited", lane=lane, looked_at=len(rows), lacking=len(lost), published=len(again), let_go=let_go)
        if again:
            emit("republished", lane=lane, execution_ids=again)

    def _publish(self, lane: int, execution_ids: Sequence[str], state: LaneState) -> list[str]:
        """Publish rows anew; returns the ids of those of which nothing was there."""
        items: list[PublishItem] = []
        for row in self._store.load_open(execution_ids) if execution_ids else ():
            try:
                items.append(publish_item(self._templates, row))
            except InvalidContent as error:
                bury(self._store, row, str(error), state.now_us)
        if not items:
            return []
        result = self._queue.publish(lane, state.generation or 0, state.now_us + VALID_US, items)
        if result.refused:
            emit("publish_refused", lane=lane, why=result.refused, count=len(items))
        return [item.execution_id for item, reply in zip(items, result.replies, strict=False) if reply == PUBLISHED]
