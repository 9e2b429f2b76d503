"""The lanes of Redis as a dispatcher sees them: generations, clocks, and what the draw must know of tenants.

**Rule 4, generation.** A lane's memory counts only under the generation that the database gave it. Where its key is
missing, or the server is another one than it was opened with (a failover forgets the last moments), the generation is
raised in the database and the lane opened anew; without one the scripts refuse everything.

**Rule 5, quarantine.** After that, for one lease, what is still running must be able to say so: nothing is read for
publishing in that lane, it is not *usable*. A lane where nothing can be running is usable at once. That plain tasks may
be running, which have no rows, the keeper notes in the database as soon as it sees some in a lane.

**Clocks.** Each look at a lane reads its clock: Redis judges `due_us` and `valid_until_us` by that very clock, also if
the lanes of a cluster live on several servers.
"""
from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType

from chrono_beat.core.clock import Clock, Reading, ServerClock
from chrono_beat.core.config import Config
from chrono_beat.core.errors import QueueUnavailable
from chrono_beat.core.ids import lane_of
from chrono_beat.core.records import LaneState, TenantLimits
from chrono_beat.ports import JobStore, QueueStore
from chrono_beat.services.service import Service
from chrono_beat.services.voids import replay
from chrono_beat.telemetry import emit

UNFOLLOWED = -1
"""Stands for the generation of a lane whose limits may be any."""

LOOK_EVERY_US = 1_000_000
LONGEST_BACKOFF_US = 1_000_000

OPENING_US = 3_000_000
"""Microseconds for which a generation that another dispatcher has just raised is left to it to be opened."""

ROUND_EVERY_US = 30_000_000
ROUND_TENANTS = 1_000
"""Tenants of one batch of the rounds in which all limits are told again."""

SINCE_EVER_US = 1
"""Asks the store for every tenant that was ever changed: limits that went back to the defaults must be told, too."""


class Lanes:
    """What is known of the lanes and the clocks. The keeper writes, any thread reads.

    Args:
        count: how many lanes there are.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.database = ServerClock()
        self.clocks = tuple(ServerClock() for _ in range(count))
        self.usable: Mapping[int, int] = MappingProxyType({})
        """{lane: generation} of the lanes that may be published to. Replaced as a whole."""
        self.unknown_before: dict[int, int] = {}
        """{lane: µs}: what was due before may have run in a lost generation (rule 12)."""
        self._lock = threading.Lock()

    def reached_us(self, monotonic_us: int) -> int | None:
        """Return the instant that the database and all usable lanes have certainly reached (invariant 1).

        The host's own wall clock has no say. A lane that is away is left out, since its clock cannot be read: what is
        due in it waits, and its script looks at its clock once more.

        Returns:
            Microseconds since the epoch; None where nothing may fire.
        """
        earliest = self.database.at_least(monotonic_us)
        usable = self.usable
        if earliest is None or not usable:
            return None
        for lane in usable:
            reached = self.clocks[lane].at_least(monotonic_us)
            if reached is None:
                return None
            earliest = min(earliest, reached)
        return earliest

    def set_usable(self, lane: int, generation: int | None) -> bool:
        """Note under which generation a lane may be published to, None for not at all; returns whether that is news."""
        with self._lock:
            if self.usable.get(lane) == generation:
                return False
            usable = dict(self.usable)
            usable.pop(lane, None)
            if generation is not None:
                usable[lane] = generation
            self.usable = MappingProxyType(usable)
        return True


class LaneKeeper(Service):
    """Looks at each lane every second, opens those that lost their memory, and tells the draw the tenants' limits.

    Args:
        store: knows generations and tenants.
        queue: Redis.
        clock: the host's clocks.
        config: number of lanes, and how long a delivery's lease lasts.
        lanes: what it keeps up to date.
        on_change: called when the set of usable lanes has changed.
    """

    def __init__(
        self, store: JobStore, queue: QueueStore, clock: Clock, config: Config, lanes: Lanes,
        on_change: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__("lanes", clock, longest_backoff_us=LONGEST_BACKOFF_US)
        self._store = store
        self._queue = queue
        self._lease_us = round(config.lease_ttl * 1_000_000)
        self._lanes = lanes
        self._on_change = on_change
        self._checked: dict[int, int] = {}        # lane: generation that the database was seen to agree with
        self._open_under: dict[int, int] = {}     # lane: its generation, also in quarantine
        self._plain_noted: dict[int, tuple[int, bool]] = {}     # lane: generation, and what the database was told under it
        self._told: dict[int, int] = {}           # lane: generation under which it has been told all limits
        self._told_us = SINCE_EVER_US
        self._round_at_us = clock.monotonic_us() + ROUND_EVERY_US
        self._round_at_tenant = ""

    def step(self, now_us: int) -> int:
        """Look at every lane once."""
        failure: QueueUnavailable | None = None
        answered = 0
        for lane in range(self._lanes.count):
            try:
                generation = self._look(lane)
                answered += 1
            except QueueUnavailable as error:
                failure, generation = error, None
                self._open_under.pop(lane, None)
                if lane in self._lanes.usable:
                    emit("lane_unreachable", lane=lane, error=error)
            if self._lanes.set_usable(lane, generation):
                if generation is not None:
                    emit("lane_reachable", lane=lane, generation=generation)
                self._on_change()
        if failure is not None and not answered:
            raise failure
        self._tell_limits()
        if now_us >= self._round_at_us:
            self._go_on_with_round(now_us)
        return LOOK_EVERY_US

    def _look(self, lane: int) -> int | None:
        """Return the generation under which the lane may be published to; None for not now."""
        self._open_under.pop(lane, None)
        state = self._read(lane)
        if state.generation is None or state.opened_replication_id != state.replication_id:
            if not self._open(lane, state):
                return None
            state = self._read(lane)
        elif self._checked.get(lane) != state.generation:
            known = self._store.lane(lane)
            if known.generation < state.generation:
                # The database was put back to an older state. It must not hand out a generation a second time.
                self._store.raise_generation(lane, known.generation, state.replication_id)
                return None
            self._checked[lane] = state.generation
        if state.generation is None:
            return None
        self._note_plain_tasks(lane, state.generation, state)
        self._open_under[lane] = state.generation
        self._lanes.unknown_before[lane] = state.unknown_before_us
        return state.generation if state.now_us >= state.quarantine_until_us else None      # rule 5

    def _note_plain_tasks(self, lane: int, generation: int, state: LaneState) -> None:
        """Keep in the database that a lane has plain tasks.

        No row says that one of them is running, and after a lost memory Redis does not either: without that quarantine
        others would be drawn into the slots of those that run (invariant 8).
        """
        seen = generation, state.has_plain_tasks
        may_come_back = state.now_us < state.quarantine_until_us
        if seen == self._plain_noted.get(lane) or may_come_back and not state.has_plain_tasks:
            return
        self._store.note_plain_tasks(lane, *seen)
        self._plain_noted[lane] = seen

    def _read(self, lane: int) -> LaneState:
        asked_us = self.clock.monotonic_us()
        state = self._queue.lane_state(lane)
        if self._lanes.clocks[lane].observe(Reading(asked_us, state.now_us, self.clock.monotonic_us())):
            emit("clock_stepped", of="redis")
        return state

    def _open(self, lane: int, state: LaneState) -> bool:
        """Open a lane under a new generation (rule 4); False where another dispatcher is at it."""
        known = self._store.lane(lane)
        seen = state.generation or 0
        if known.generation > seen and self._store.now_us() - known.began_us < OPENING_US:
            return False
        record = self._store.raise_generation(lane, known.generation, state.replication_id)
        if record.generation <= seen:
            return False                                   # see _look: the database is behind
        may_run = known.has_plain_tasks or self._store.may_be_running(lane, self._lanes.count)
        quarantine_us = self._lease_us if may_run else 0
        # Invariant 7: nothing is drawn under a new generation before the voids that Redis may not know of are in.
        while replay(self._store, self._queue, self._lanes.count, lane):
            pass
        if self._queue.open_lane(lane, record.generation, state.replication_id, quarantine_us):
            emit("lane_opened", lane=lane, generation=record.generation, quarantine_us=quarantine_us)
        return True

    # -- tenants ----------------------------------------------------------------------------------------------------

    def _tell_limits(self) -> None:
        untold = [lane for lane, generation in self._open_under.items() if self._told.get(lane) != generation]
        known = self._open_under.keys() - untold
        read_us = self._lanes.database.at_least(self.clock.monotonic_us()) or self._store.now_us()
        changed = self._store.tenant_limits(self._told_us) if known else []
        if untold:
            # What an empty lane has to know are the limits that differ from the defaults. One that was not followed all
            # the time may hold limits that have gone back to them.
            anew = any(self._told.get(lane, UNFOLLOWED) == UNFOLLOWED for lane in untold)
            everything = self._store.tenant_limits(SINCE_EVER_US if anew else 0)
            for lane in untold:
                if self._tell(lane, everything):
                    self._told[lane] = self._open_under[lane]
        for lane in known:
            if not self._tell(lane, changed):
                self._told[lane] = UNFOLLOWED
        for lane in self._told.keys() - self._open_under.keys():
            self._told[lane] = UNFOLLOWED
        self._told_us = read_us

    def _go_on_with_round(self, now_us: int) -> None:
        """Tell some limits again, others each time: of those that somebody deleted in Redis nobody else would know."""
        found = self._store.tenant_limits_after(self._round_at_tenant, ROUND_TENANTS)
        for lane in self._open_under:
            self._tell(lane, found)
        self._round_at_tenant = found[-1].tenant if len(found) == ROUND_TENANTS else ""
        self._round_at_us = now_us + ROUND_EVERY_US

    def _tell(self, lane: int, limits: list[TenantLimits]) -> bool:
        own = [limit for limit in limits if lane_of(limit.tenant, self._lanes.count) == lane]
        try:
            if own:
                self._queue.set_tenants(lane, own)
        except QueueUnavailable:
            return False
        return True
