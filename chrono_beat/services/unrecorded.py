"""Settled outcomes, kept until they are recorded (rule 6).

Between the settlement and the record Redis alone knows how an execution ended. Should it lose its memory then, the
worker says it once more, in the quarantine of the lane's new generation; otherwise the execution would be published and
run again. Each renewal asks which outcomes are recorded and lets go of exactly those.

Known weakness: what a body asked for by ``self.retry()`` is in Redis only until it is recorded. Where that is lost, the
retry comes by the job's own policy and with the job's arguments.
"""
from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from chrono_beat.core.deliveries import RAN_LOST, REFUSED, Settlement

MAX_KEPT = 10_000
MAX_KEPT_BYTES = 16 * 1024 * 1024
MAX_AGE_SECONDS = 3600.0
"""Bounds of what is kept while nobody records; the oldest go first. What went that way, and was lost in Redis as well,
runs again under the same key."""

BATCH = 500
PLAIN_BYTES = 500                    # what an outcome without an error takes, roughly
Key = tuple[str, str]


class Kept(NamedTuple):
    """An outcome, when it was settled on the monotonic clock, and its size."""

    settlement: Settlement
    since: float
    size: int


class Outcomes:
    """What this worker, or relay, has settled and nobody has recorded yet.

    The I/O thread adds, the renewal thread removes. Under gevent the latter is a native thread, to which gevent's locks
    mean nothing: single steps on dicts have to do.

    Args:
        lanes: numbers of the lanes.
    """

    def __init__(self, lanes: Sequence[int]) -> None:
        self._kept: dict[int, dict[Key, Kept]] = {lane: {} for lane in lanes}
        self._generations: dict[int, str] = {}

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def add(self, lane: int, settlement: Settlement) -> None:
        """Keep an outcome that Redis has taken."""
        if settlement.result == RAN_LOST:
            return                                         # it ended nothing: the execution is handed out again
        size = PLAIN_BYTES + (len(repr(settlement.detail)) if "error" in settlement.detail else 0)
        self._kept[lane][_key(settlement)] = Kept(settlement, time.monotonic(), size)
        if len(self._kept[lane]) > MAX_KEPT:
            self._drop_oldest(lane)

    def _drop_oldest(self, lane: int) -> None:
        for key in list(self._kept[lane])[:len(self._kept[lane]) - MAX_KEPT]:
            self._kept[lane].pop(key, None)

    def settle_again(self, queue: Any, lane: int, worker: str) -> None:
        """Let go of what is recorded, and settle again what the lane has lost.

        Raises:
            QueueUnavailable: Redis is away; what is kept stays.
        """
        self._bound(lane)
        kept = self._kept[lane]
        known = self._generations.get(lane, "")
        now = known
        for part in _batches([entry.settlement for entry in list(kept.values())]):
            answer = queue.recorded(lane, known, [settlement.hold for settlement in part])
            if not answer.generation:
                return                                     # not open yet; asked again with the next renewal
            now = answer.generation
            by_id = {settlement.hold.execution_id: settlement for settlement in part}
            for execution_id in answer.done:
                kept.pop(_key(by_id[execution_id]), None)
            again = part if now != known else [by_id[execution_id] for execution_id in answer.gone]
            for settlement, word in zip(again, queue.settle(lane, worker, again) if again else (), strict=True):
                if word == REFUSED:                        # too late, or somebody else's by now
                    kept.pop(_key(settlement), None)
        self._generations[lane] = now

    def _bound(self, lane: int) -> None:
        """Drop what is too old, then the oldest until the rest is small enough."""
        oldest = time.monotonic() - MAX_AGE_SECONDS
        entries = list(self._kept[lane].items())
        size = sum(entry.size for _, entry in entries)
        for key, entry in entries:
            if entry.since >= oldest and size <= MAX_KEPT_BYTES:
                break
            self._kept[lane].pop(key, None)
            size -= entry.size


def _key(settlement: Settlement) -> Key:
    return settlement.hold.execution_id, settlement.hold.token


def _batches(settlements: Sequence[Settlement]) -> list[list[Settlement]]:
    """Cut into batches none of which names an execution twice."""
    batches: list[list[Settlement]] = []
    names: set[str] = set()
    for settlement in settlements:
        if not batches or len(batches[-1]) >= BATCH or settlement.hold.execution_id in names:
            batches.append([])
            names = set()
        batches[-1].append(settlement)
        names.add(settlement.hold.execution_id)
    return batches
