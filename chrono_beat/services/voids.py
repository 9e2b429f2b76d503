"""Pending voids: Redis is told of edits that their caller could not tell it, or that went around the store.

Every edit leaves a void in the database, in its own transaction. The caller tells Redis at once and notes it; where that
failed (Redis away, the caller killed between commit and void, an edit by SQL) the dispatchers tell it within a second.
Only then does the promise of that edit begin (invariant 7).
"""
from __future__ import annotations

from chrono_beat.core.clock import Clock
from chrono_beat.core.errors import QueueUnavailable
from chrono_beat.core.ids import lane_of
from chrono_beat.core.records import Void
from chrono_beat.ports import JobStore, QueueStore
from chrono_beat.services.service import Service
from chrono_beat.telemetry import emit

LOOK_EVERY_US = 1_000_000
MAX_VOIDS = 1_000
"""Voids that one look tells; each is a call."""


def replay(store: JobStore, queue: QueueStore, lanes: int, only: int | None = None) -> int:
    """Tell Redis the voids that it may not know of, at most MAX_VOIDS; returns how many.

    Args:
        store, queue: where they stand, who is told.
        lanes: how many lanes there are.
        only: one lane; None for all.

    Raises:
        QueueUnavailable: a lane could not be told; the others were.
    """
    told: list[Void] = []
    away: set[int] = set()                              # each further void there might take a time-out
    failure: QueueUnavailable | None = None
    for void in store.pending_voids(MAX_VOIDS):
        lane = lane_of(void.tenant, lanes)
        if lane in away or (only is not None and lane != only):
            continue
        try:
            queue.void(lane, void.job_id, void.version)
            told.append(void)
        except QueueUnavailable as error:
            away.add(lane)
            failure = error
    if told:
        store.void_done(told)
        emit("voids_replayed", voids=len(told))
    if failure is not None:
        raise failure
    return len(told)


class Voids(Service):
    """Replays pending voids every second. Several members telling the same does no harm.

    Args:
        store: the database.
        queue: Redis.
        clock: the host's clocks.
        lanes: how many lanes there are.
    """

    def __init__(self, store: JobStore, queue: QueueStore, clock: Clock, lanes: int) -> None:
        super().__init__("voids", clock, longest_backoff_us=LOOK_EVERY_US)
        self._store, self._queue, self._lanes = store, queue, lanes

    def step(self, now_us: int) -> int:
        """Replay once."""
        return 0 if replay(self._store, self._queue, self._lanes) >= MAX_VOIDS else LOOK_EVERY_US
