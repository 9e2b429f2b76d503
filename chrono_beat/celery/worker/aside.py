"""Executions whose task a worker does not know: laid aside for one that does.

During a roll-out half of the workers may lack a new task. One that draws it lays it aside in Redis, where no ordinary
draw finds it: given back, it would be drawn by its like again and again. Then it tells some workers that, by their own
reports, know the task and draw the pool. They take it from there by name; every worker looks there, too, when it starts
and every few seconds. What nobody takes is ended by the reaper after NO_WORKER_AFTER, with the reason "no_worker". A
plain task is taken by any worker of its pool then, which says in the result backend that it failed.
"""
from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Sequence

from chrono_beat.celery.worker.held import HeldDelivery
from chrono_beat.core.plain import is_plain
from chrono_beat.ports import QueueStore

logger = logging.getLogger(__name__)

MAX_LOOKED_AT = 500                 # of what lies aside in a lane, the oldest first
MAX_TOLD = 3                        # workers that are told of what was laid aside
MESSAGE = '{"look": "aside"}'


class Aside:
    """What one worker does with executions that it does not know, and with those that others did not.

    Args:
        queue: Redis.
        knows: says whether a task of that name can be run here.
        lanes: all of them.
        patience_seconds: how long a plain task may lie aside.
    """

    def __init__(
        self, queue: QueueStore, knows: Callable[[str], bool], lanes: Sequence[int], patience_seconds: float,
    ) -> None:
        self._queue, self._knows, self._lanes = queue, knows, lanes
        self._patience_us = round(patience_seconds * 1_000_000)

    def park(self, lane: int, worker: str, helds: Sequence[HeldDelivery]) -> None:
        """Lay deliveries aside, and tell those who know their tasks.

        Raises:
            QueueUnavailable: Redis could not be reached.
        """
        self._queue.park(lane, worker, [(held.hold, held.task_name) for held in helds])
        wanted = {(held.delivery.pool, held.task_name) for held in helds}
        found = set()
        reports = [report for report in self._queue.workers() if report.worker != worker]
        for pool, task in wanted:
            able = [report.worker for report in reports if pool in report.pools and task in report.tasks]
            found.update(random.sample(able, min(len(able), MAX_TOLD)))
            logger.warning("chrono_beat: the task %s is not known here; %s", task,
                           f"{len(able)} other workers of {pool} know it" if able else f"no live worker of {pool} does")
        for able_worker in found:
            self._queue.wake_worker(able_worker, self._lanes, MESSAGE)

    def wanted(self, lane: int, pools: Collection[str]) -> tuple[list[str], list[str]]:
        """Return the executions lying aside that can be run or ended here, the oldest first, and which of them nobody
        knows."""
        lying = [parked for parked in self._queue.parked(lane, MAX_LOOKED_AT) if parked.pool in pools]
        known = [parked.execution_id for parked in lying if self._knows(parked.task)]
        unknown = [parked for parked in lying if is_plain(parked.execution_id) and not self._knows(parked.task)]
        if not unknown:
            return known, []
        since_us = self._queue.now_us() - self._patience_us
        stranded = [parked.execution_id for parked in unknown if parked.since_us <= since_us]
        return known + stranded, stranded
