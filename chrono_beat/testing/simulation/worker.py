"""A worker by the rules of `chrono_beat.celery.worker`, in one small class and without Celery.

Draws by credit; accepts, renews and settles; gives back what has not begun in its start window; brings its leases back where
a lane has lost its memory; keeps outcomes until they are recorded; ends what it is told to stop. Its bodies are timers.
"""
from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chrono_beat.core.config import Config
from chrono_beat.core.deliveries import (
    RAN_FAILED,
    RAN_LOST,
    RAN_OK,
    RAN_RETRY,
    RAN_REVOKED,
    RAN_SUPERSEDED,
    RAN_TIMEOUT,
    REFUSED,
    Delivery,
    Hold,
    Settlement,
)
from chrono_beat.core.errors import QueueUnavailable
from chrono_beat.core.plain import DEFAULT_PRIORITY, is_plain
from chrono_beat.core.recovery import LostGrant
from chrono_beat.testing.simulation.engine import NEVER_US, HostClock, Process, Task
from chrono_beat.testing.simulation.witness import Witness

START_WINDOW_US = 2_000_000
IDLE_US = 5_000_000
BACK_OFF_US = 300_000
RETRY_US = 1_000_000
WHY = {"cancel": RAN_REVOKED, "replace": RAN_SUPERSEDED, "duration": RAN_TIMEOUT}


@dataclass(frozen=True)
class Habits:
    """How bodies of a task behave.

    Args:
        shortest_us, longest_us: how long a body runs.
        fails: share of bodies that raise; *retries* of these by ``self.retry()``.
        hangs: share of bodies that run for a long time.
        dies: share of bodies that end their process.
    """

    shortest_us: int = 50_000
    longest_us: int = 3_000_000
    fails: float = 0.0
    retries: float = 0.0
    hangs: float = 0.0
    dies: float = 0.0


@dataclass(eq=False)
class Held:
    """A delivery in the worker's hands."""

    delivery: Delivery
    drawn_us: int
    begins_us: int
    lane: int = 0
    ends_us: int = NEVER_US
    overrun_us: int = NEVER_US
    result: str = RAN_OK
    begun: bool = False
    over: bool = False
    lost: bool = False
    lease_expires_us: int = 0

    @property
    def hold(self) -> Hold:
        """Which delivery it is."""
        return Hold(self.delivery.execution_id, self.delivery.token)


@dataclass(eq=False)
class Worker:
    """A worker process.

    Args:
        queue: Redis, as it reaches it.
        slots: bodies at once.
        kills: its pool can end single bodies (prefork).
        habits: of bodies, by task.
        chance: its own numbers.
        pools: that it draws.
    """

    name: str
    clock: HostClock
    queue: Any
    config: Config
    witness: Witness
    chance: random.Random
    habits: Mapping[str, Habits]
    slots: int = 3
    kills: bool = True
    slow_start_us: int = 30_000
    draining: Callable[[], bool] = lambda: False
    pools: Sequence[str] = ("chrono",)
    held: dict[tuple[str, str], Held] = field(default_factory=dict)
    todo: list[tuple[str, Held, Settlement | None]] = field(default_factory=list)
    kept: dict[int, dict[tuple[str, str], Settlement]] = field(default_factory=dict)
    running_on: list[Held] = field(default_factory=list)
    in_doubt: bool = True
    woken: bool = True

    def __post_init__(self) -> None:
        self.lease_us = round(self.config.lease_ttl * 1_000_000)
        self.identity = f"{self.name}#1"
        self._known_generation: dict[int, str] = {}
        self.kept = {lane: {} for lane in range(self.config.lanes)}

    def process(self) -> Process:
        """Return the process: three loops, as in the real one, and what becomes of its bodies at its death."""
        io = Task("io", self.send_and_draw, is_woken=self.is_woken)
        every_us = round(self.config.renew_every * 1_000_000)
        renewals = Task("renewals", self.renew, next_us=self.clock.monotonic_us() + every_us)
        bodies = Task("bodies", self.run_bodies, is_woken=self._body_is_due)
        self._io, self._io_task = 0, io
        return Process(self.name, self.clock, [io, renewals, bodies], on_death=self.die)

    def is_woken(self) -> bool:
        """Say whether the loop that sends and draws has something to do at once."""
        return self.woken and self.clock.monotonic_us() >= self._io

    def _body_is_due(self) -> bool:
        now = self.clock.monotonic_us()
        return any((held.ends_us if held.begun else held.begins_us) <= now and not held.over for held in self.held.values())

    def die(self) -> None:
        """End with all bodies, as at SIGKILL."""
        for held in [*(held for held in self.held.values() if held.begun and not held.over), *self.running_on]:
            held.over = True
            self.witness.stopped(held.hold, "killed")

    # -- Redis ------------------------------------------------------------------------------------------------------

    def send_and_draw(self, now_us: int) -> int:
        """Send what has ended, hear what is to be stopped, draw what there is room for."""
        self.woken = False
        try:
            if self.in_doubt:
                self._recover()
            self._send()
            messages = self.queue.wait_for_work(range(self.config.lanes), self.pools, self.identity, 0)
            for message in messages:
                self._hear(message)
            self._draw()
        except QueueUnavailable:
            self.in_doubt = self.woken = True
            self._io = self.clock.monotonic_us() + BACK_OFF_US
            return BACK_OFF_US
        return IDLE_US

    def _recover(self) -> None:
        self.in_doubt = False                                      # first: what breaks off meanwhile is in doubt again
        for lane in range(self.config.lanes):
            state = self.queue.lane_state(lane)
            if state.opened_replication_id not in ("", state.replication_id):
                raise QueueUnavailable("another server has taken over")        # rule 4
            self.queue.recover(
                lane, self.identity, [held.delivery.execution_id for held in self.held.values() if held.lane == lane])

    def _send(self) -> None:
        while self.todo:
            kind, held, settlement = self.todo[0]
            if kind == "accept":
                self.queue.accept(held.lane, self.identity, [held.hold])
            elif kind == "give_back":
                self.queue.give_back(held.lane, self.identity, [held.hold])
            elif kind == "retry":
                self.queue.store_retry(held.lane, held.hold, _retry_of(held.delivery))
            elif settlement is not None:
                word, = self.queue.settle(held.lane, self.identity, [settlement])
                if word != REFUSED and settlement.result != RAN_LOST and not is_plain(settlement.hold.execution_id):
                    self.kept[held.lane][held.hold] = settlement   # rule 6
            self.todo.pop(0)
            if kind in ("settle", "give_back", "forget"):
                self.held.pop(held.hold, None)

    def _draw(self) -> None:
        lines = [(lane, pool) for lane in range(self.config.lanes) for pool in self.pools]
        if len(lines) > 1:
            self.chance.shuffle(lines)
        for lane, pool in lines:
            credit = self.slots - len(self.held)
            if credit <= 0:
                return
            asked_us = self.clock.monotonic_us()
            for delivery in self.queue.draw(lane, pool, credit, self.identity, self.lease_us):
                begins = self.clock.monotonic_us() + round(self.chance.random() ** 3 * self.slow_start_us)
                held = Held(delivery, asked_us, begins, lane, lease_expires_us=delivery.lease_expires_us)
                self.held[held.hold] = held

    def renew(self, now_us: int) -> int:
        """Prolong the leases; bring back what the lane has forgotten."""
        try:
            for lane in range(self.config.lanes):
                holds = [held.hold for held in self.held.values() if not held.lost and held.lane == lane]
                if holds:
                    self._renew(lane, holds)
                if self.kept[lane]:
                    self._ask_recorded(lane)
        except QueueUnavailable:
            self.in_doubt = self.woken = True                      # the connection that waits for work broke as well
            return RETRY_US
        return round(self.config.renew_every * 1_000_000)

    def _renew(self, lane: int, holds: Sequence[Hold]) -> None:
        answer = self.queue.renew(lane, self.identity, holds, self.lease_us)
        for held in list(self.held.values()):
            if held.delivery.execution_id in answer.lost and held.hold in holds:
                self._lose(held)
        if not answer.expires_us:
            raise QueueUnavailable("the lane has no generation")
        for held in self.held.values():
            if held.hold in holds and held.delivery.execution_id not in (*answer.lost, *answer.unknown):
                held.lease_expires_us = answer.expires_us
        self._bring_back(
            lane, [h for h in self.held.values() if h.hold in holds and h.delivery.execution_id in answer.unknown])

    def _bring_back(self, lane: int, helds: Sequence[Held]) -> None:
        """Rule 5: tell a lane that has lost its memory what this worker has of it."""
        if not helds:
            return
        grants = [LostGrant(held.hold, held.lease_expires_us, held.delivery.grant) for held in helds]
        back = set(self.queue.bring_back(lane, self.identity, grants, self.lease_us))
        begun = [held.hold for held in helds if held.begun and not held.over and held.delivery.execution_id in back]
        if begun:
            self.queue.accept(lane, self.identity, begun)

    def _ask_recorded(self, lane: int) -> None:
        """Rule 6: let go of outcomes that are recorded, settle again what the lane has lost."""
        parts: list[dict[str, Settlement]] = []
        kept, known = self.kept[lane], self._known_generation.get(lane, "")
        for settlement in kept.values():
            if not parts or settlement.hold.execution_id in parts[-1]:
                parts.append({})
            parts[-1][settlement.hold.execution_id] = settlement
        now = known
        for part in parts:
            answer = self.queue.recorded(lane, known, [settlement.hold for settlement in part.values()])
            if not answer.generation:
                return
            now = answer.generation
            for execution_id in answer.done:
                kept.pop(part[execution_id].hold, None)
            again = list(part.values()) if now != known else [part[id_] for id_ in answer.gone]
            if again:
                for settlement, word in zip(again, self.queue.settle(lane, self.identity, again), strict=True):
                    if word == REFUSED:
                        kept.pop(settlement.hold, None)
        self._known_generation[lane] = now

    # -- bodies -----------------------------------------------------------------------------------------------------

    def run_bodies(self, now_us: int) -> int:
        """Begin and end bodies whose time has come."""
        for held in list(self.held.values()):
            if held.over:
                continue
            if not held.begun and held.begins_us <= now_us:
                self._begin(held, now_us)
            elif held.begun and held.ends_us <= now_us:
                if held.result == RAN_LOST:
                    self.witness.child_killed(self.name)
                how = {RAN_OK: "returned", RAN_LOST: "killed"}.get(held.result, "raised")
                self._end(held, held.result, how)
            elif held.overrun_us <= now_us:
                held.over = True                                   # settled without its body, which runs on
                self.running_on.append(held)
                self._do("settle", held, Settlement(held.hold, held.result, {}))
        for held in [held for held in self.running_on if held.ends_us <= now_us]:
            self.running_on.remove(held)
            self.witness.stopped(held.hold, "returned")
        times = [min(h.ends_us, h.overrun_us) if h.begun else h.begins_us for h in self.held.values() if not h.over]
        times += [held.ends_us for held in self.running_on]
        return min(times, default=now_us + IDLE_US) - now_us

    def _begin(self, held: Held, now_us: int) -> None:
        if now_us - held.drawn_us > START_WINDOW_US:               # rule 10
            held.over = True
            self._do("give_back", held)
            return
        headers = json.loads(held.delivery.payload)["headers"]
        habits = self.habits.get(headers["task"], Habits())
        held.begun = True
        self.witness.began(held.hold, self.identity, headers["id"])
        length = habits.longest_us - habits.shortest_us
        held.ends_us = now_us + habits.shortest_us + round(self.chance.random() ** 2 * length)
        if not self.draining():
            if self.chance.random() < habits.hangs:
                held.ends_us += habits.longest_us * 5
            if self.chance.random() < habits.dies:
                held.result = RAN_LOST
            if self.chance.random() < habits.fails:
                held.result = RAN_RETRY if self.chance.random() < habits.retries else RAN_FAILED
        self._do("accept", held)

    def _end(self, held: Held, result: str, how: str) -> None:
        held.over = True
        if held.begun:
            self.witness.stopped(held.hold, how)
        if result == RAN_RETRY:
            self._do("retry", held)
        detail = {} if result == RAN_OK else {"error": {"type": "Mishap", "message": result, "traceback": ""}}
        self._do("settle", held, Settlement(held.hold, result, detail))

    def _do(self, kind: str, held: Held, settlement: Settlement | None = None) -> None:
        self.todo.append((kind, held, settlement))
        self.woken = True

    def _lose(self, held: Held) -> None:
        """A newer grant exists: what has not begun is forgotten, a body is ended where the pool can."""
        held.lost = True
        if held.over:
            return
        if not held.begun:
            held.over = True
            self._do("forget", held)
        elif self.kills:
            self._end(held, RAN_LOST, "killed")

    def _hear(self, message: str) -> None:
        told = json.loads(message)
        held = self.held.get(Hold(told["stop"], told["token"]))
        if held is None or held.over:
            return
        held.result = WHY[told["why"]]
        if not held.begun or self.kills:
            self._end(held, held.result, "killed")
        elif held.overrun_us == NEVER_US:
            held.overrun_us = self.clock.monotonic_us() + round(self.config.stop_grace * 1_000_000)

    def lose_child(self) -> None:
        """Let the operating system kill a child of the pool: the delivery is handed back at once."""
        for held in self.held.values():
            if held.begun and not held.over:
                self._end(held, RAN_LOST, "killed")
                return


def _retry_of(delivery: Delivery) -> dict[str, Any]:
    """Return what `self.retry()` leaves; a plain task brings its own message along."""
    asked: dict[str, Any] = {"countdown_us": 2_000_000}
    if is_plain(delivery.execution_id):
        asked.update(pool=delivery.pool, priority=DEFAULT_PRIORITY, payload=delivery.payload.decode())
    return asked
