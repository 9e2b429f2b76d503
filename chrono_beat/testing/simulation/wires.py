"""The way from a process to a store: where replies get lost, processes die or stand still, and requests come twice.

Each call of a store is an effect; a fault strikes before it or after it. Which call it strikes is drawn from the seed.
"""
from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from chrono_beat.core.errors import QueueUnavailable, StoreUnavailable
from chrono_beat.testing.simulation.engine import Crash, Engine, Process

QUEUE_EFFECTS = frozenset({
    "publish", "publish_plain", "void", "end_voided", "open_lane", "reap", "acknowledge", "draw", "accept", "settle", "give_back",
    "store_retry", "renew", "bring_back", "recover", "cancel", "tend_locks",
})
STORE_EFFECTS = frozenset({
    "claim", "load_scheduled", "mark_queued", "record", "take_partitions", "renew_partitions", "raise_generation", "forget_holds",
    "control", "void_done",
})
SLOW_US = 4_000_000
LATE_US = 12_000_000
SECOND_US = 1_000_000


class Mischief:
    """Decides which call fails, and how; the same seed decides the same.

    Args:
        engine: lets others go on where a process stands still.
        chance: gives the numbers.
        rate: how often an effect is struck, 0 to 1.
        longest_still_us: how long a process stands still at most.
        note: told of each strike: kind, process, call.
    """

    def __init__(
        self, engine: Engine, chance: random.Random, rate: float, longest_still_us: int,
        note: Callable[[str, Process, str, int], object],
    ) -> None:
        self.rate = rate
        self.kinds: tuple[str, ...] = (
            "lost request", "lost reply", "lost reply", "crash before", "crash after", "slow before", "slow after",
            "still before", "still after", "twice", "late")
        self._engine, self._chance, self._longest_us, self._note = engine, chance, longest_still_us, note
        self._ordered: dict[str, list[tuple[str, int]]] = {}
        self._ordered_us = 0

    def order(self, name: str, kind: str, us: int) -> None:
        """Strike the next call of that name, whoever makes it, in a given way, after those that were ordered before.

        Args:
            us: for how many microseconds it is held up, if it is.
        """
        self._ordered.setdefault(name, []).append((kind, us))

    def strike(self, name: str) -> str:
        """Return what happens to a call; "" for nothing."""
        if self._ordered.get(name):
            kind, self._ordered_us = self._ordered[name].pop(0)
            return kind
        rate = self.rate if name in QUEUE_EFFECTS or name in STORE_EFFECTS else self.rate / 20
        if not rate or self._chance.random() >= rate:
            return ""
        return self._chance.choice(self.kinds)

    def hold_up(self, process: Process, kind: str, name: str) -> None:
        """Let a process, or one of its tasks, stand still."""
        whole = kind == "still"
        us = self._ordered_us or round(self._chance.random() ** 2 * (self._longest_us if whole else SLOW_US))
        self._ordered_us = 0
        self._note(kind, process, name, us)
        self._engine.stand_still(process, us, whole=whole)

    def note(self, kind: str, process: Process, name: str, us: int = 0) -> None:
        """Tell of a strike."""
        self._note(kind, process, name, us)

    def send_late(self, call: Callable[[], object]) -> None:
        """Let a request whose sender has given up take effect after a while."""
        at_us = self._engine.now_us() + round(self._chance.random() * LATE_US)
        self._engine.flow.call_at(at_us, call)


class Wire:
    """A store as a process reaches it.

    Args:
        target: the store.
        process: who calls.
        mischief: what goes wrong.
        error: what a broken connection raises.
    """

    def __init__(self, target: Any, process: Process, mischief: Mischief, error: type[Exception]) -> None:
        self._target, self._process, self._mischief, self._error = target, process, mischief, error
        self.cut_until_us = 0
        self.server = getattr(target, "repl", "")

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._call(name, args, kwargs)

        setattr(self, name, call)
        return call

    def settle_and_draw(
        self, lane: int, worker: str, settlements: Any, pool: str, credit: int, lease_us: int, accepted: Any = (),
    ) -> Any:
        """Accept, settle and draw; the connection may break between any two."""
        if accepted:
            self.accept(lane, worker, accepted)
        words = self.settle(lane, worker, settlements) if settlements else []
        return words, self.draw(lane, pool, credit, worker, lease_us) if credit > 0 else []

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._process.clock.monotonic_us() < self.cut_until_us:
            raise self._error("the network is cut")
        if getattr(self._target, "repl", "") != self.server:
            self.server = self._target.repl
            raise self._error("the connection broke: another server has taken over")
        kind = self._mischief.strike(name)
        if kind:
            return self._struck(kind, name, args, kwargs)
        return getattr(self._target, name)(*args, **kwargs)

    def _struck(self, kind: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        method, mischief, process = getattr(self._target, name), self._mischief, self._process
        what, _, when = kind.partition(" ")
        if when == "before" and what in ("slow", "still"):
            mischief.hold_up(process, what, name)
            return method(*args, **kwargs)
        if kind in ("lost request", "crash before"):
            mischief.note(kind, process, name)
            raise Crash if what == "crash" else self._error(f"{name}: the connection broke")
        if kind == "late":
            if name not in ("publish", "publish_plain", "settle", "draw", "give_back"):
                return method(*args, **kwargs)
            mischief.note(kind, process, name)
            mischief.send_late(lambda: _try(method, args, kwargs))
            raise self._error(f"{name}: no reply")
        result = method(*args, **kwargs)
        if kind == "twice":
            if name in ("publish", "publish_plain", "settle", "void", "record", "acknowledge"):
                mischief.note(kind, process, name)
                method(*args, **kwargs)
        elif what in ("slow", "still"):
            mischief.hold_up(process, what, name)
        else:
            mischief.note(kind, process, name)
            raise Crash if what == "crash" else self._error(f"{name}: the reply was lost")
        return result


def _try(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        method(*args, **kwargs)
    except (QueueUnavailable, StoreUnavailable):
        pass
