"""The audit: rows that nobody will publish any more are brought to their end.

Rule 8: a row older than its job's version is published by nobody. When it is due and the job's next run has passed it,
or the job is paused or gone, the audit voids it in Redis, which knows whether it was drawn after all, and the outcome
ends the row. The same finishes calls that crashed between their commit and their void.

Cancel: a row whose cancellation was asked for and that is still open is cancelled in Redis once more, and the worker
that runs it told again; Redis may have lost its memory since, or the caller could not reach it.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

from chrono_beat.core.clock import Clock
from chrono_beat.core.config import Config
from chrono_beat.core.deliveries import CANCEL, Cancelled, Hold, stop_message
from chrono_beat.core.ids import lane_of
from chrono_beat.ports import JobStore, QueueStore
from chrono_beat.services.service import Service
from chrono_beat.telemetry import emit

SWEEP_EVERY_US = 2_000_000
RUNNING_EVERY = 15
"""Sweeps from one look at rows in state running to the next: only where a worker died since is there anything to end."""

SWEEP_LIMIT = 500
"""Rows that one step looks at."""

CANCEL_LIMIT = 500
"""Requests to cancel that one step repeats."""


def cancel(queue: QueueStore, lane: int, execution_id: str, job_id: str, tenant: str) -> Cancelled:
    """Cancel an execution in Redis; where a worker holds it, tell the worker to stop it."""
    answer = queue.cancel(lane, execution_id, job_id, tenant)
    if answer.worker:
        queue.wake_worker(answer.worker, [lane], stop_message(Hold(execution_id, answer.token), CANCEL))
    return answer


class Audit(Service):
    """Sweeps rows of old plans.

    Args:
        store: the database.
        queue: Redis.
        clock: the host's clocks.
        config: numbers of partitions and lanes.
        partitions: says which partitions to look at; None for all. Several audits of one row do no harm.
        never_began: told the id of each execution that a repeated cancel has ended before it began, once.
    """

    def __init__(
        self, store: JobStore, queue: QueueStore, clock: Clock, config: Config, *,
        partitions: Callable[[], Sequence[int]] | None = None, never_began: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__("audit", clock, longest_wait_us=SWEEP_EVERY_US)
        self._store = store
        self._queue = queue
        self._lanes = config.lanes
        self._sweeps = 0
        self._never_began = never_began
        self._partitions = partitions or (lambda: range(config.partitions))

    def step(self, now_us: int) -> int:
        """Sweep one batch, and repeat cancels."""
        partitions = self._partitions()
        if not partitions:
            return SWEEP_EVERY_US
        self._sweeps += 1
        rows = self._store.superseded(partitions, SWEEP_LIMIT, running=self._sweeps % RUNNING_EVERY == 0)
        ended = 0
        for execution_id, job_id, tenant, version in rows:
            answer = self._queue.end_voided(lane_of(tenant, self._lanes), execution_id, job_id, version, tenant)
            ended += answer in ("ended", "lost")
            emit("voided", lane=lane_of(tenant, self._lanes), execution_id=execution_id, answer=answer)
        self._store.void_done([])
        for asked in self._store.cancel_requests(partitions, CANCEL_LIMIT):
            lane = lane_of(asked.tenant, self._lanes)
            outcome = cancel(self._queue, lane, asked.execution_id, asked.job_id, asked.tenant)
            emit("cancelled", lane=lane, execution_id=asked.execution_id, answer=outcome.state)
            if outcome.state == "ended" and self._never_began is not None:
                self._never_began(asked.execution_id)
        # What was ended leaves the list when the recorder has written it; what is held or done does so by itself.
        return 0 if len(rows) >= SWEEP_LIMIT and ended == len(rows) else SWEEP_EVERY_US
