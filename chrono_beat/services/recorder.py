"""The recorder: what happened in Redis becomes history in the database, in the order in which it happened.

Outcomes are read in batches, decided by `chrono_beat.core.outcomes`, written in one transaction and only then
acknowledged. A crash between commit and acknowledgement brings the same outcomes again; every update names the states
that it leaves, so the second time changes nothing (rule 1). One reader a lane at a time keeps the order (rule 14).

A failure and its next attempt are written together: there is no instant at which the one is there and not the other.
"""
from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from chrono_beat.core import lifecycle
from chrono_beat.core.clock import Clock
from chrono_beat.core.config import Config
from chrono_beat.core.deliveries import ALIEN, UNREADABLE, Outcome
from chrono_beat.core.errors import QueueUnavailable, StoreUnavailable
from chrono_beat.core.outcomes import decide_end, needs_row
from chrono_beat.core.records import Ending, NewAttempt, OpenExecution, RecordResult, Start
from chrono_beat.ports import JobStore, QueueStore
from chrono_beat.services.capped import CappedTime
from chrono_beat.services.service import Service
from chrono_beat.services.streaks import Streaks
from chrono_beat.telemetry import emit, listening

logger = logging.getLogger(__name__)

READER_LEASE_US = 10_000_000
"""Microseconds after which another recorder may go on with a lane whose reader has gone silent."""

SHORTEST_WAIT_US = 20_000
LONGEST_WAIT_US = 250_000
"""Microseconds between looks at an idle stream; halved steps down to the shortest where something comes in."""


class Recorder(Service):
    """Writes outcomes of all lanes.

    Args:
        store: the database.
        queue: Redis.
        clock: the host's clocks.
        config: number of lanes, outcomes in one transaction.
        reader: a name that no other process has.
        chance: gives a number from 0 to 1, 1 excluded, for the jitter of retries.
    """

    def __init__(
        self, store: JobStore, queue: QueueStore, clock: Clock, config: Config, *, reader: str,
        chance: Callable[[], float] = random.random,
    ) -> None:
        super().__init__("recorder", clock)
        self._store = store
        self._queue = queue
        self._lanes = config.lanes
        self._batch = config.record_batch
        self._reader = reader
        self._chance = chance
        self._wait_us = SHORTEST_WAIT_US
        self._streaks = Streaks(store)
        self._capped = CappedTime(store, queue)

    def step(self, now_us: int) -> int:
        """Record one batch of each lane."""
        failure: QueueUnavailable | None = None
        most = 0
        for lane in range(self._lanes):
            try:
                outcomes = self._queue.read_outcomes(lane, self._reader, READER_LEASE_US, self._batch)
                if outcomes:
                    self._record(lane, outcomes)
                    self._queue.acknowledge(lane, outcomes)
                    self._streaks.see(lane, outcomes)
                    most = max(most, len(outcomes))
                if outcomes is None:
                    self._capped.leave(lane)
                    self._streaks.leave(lane)
                else:
                    self._capped.look(lane, now_us)
            except QueueUnavailable as error:
                failure = error
        if failure is not None and not most:
            raise failure
        if most >= self._batch:
            return 0
        self._wait_us = SHORTEST_WAIT_US if most else min(self._wait_us * 2, LONGEST_WAIT_US)
        return self._wait_us

    def _record(self, lane: int, outcomes: Sequence[Outcome]) -> None:
        needed = [outcome.execution_id for outcome in outcomes if needs_row(outcome)]
        rows = self._store.open_executions(needed) if needed else {}
        part: list[Outcome] = []
        ended: set[str] = set()
        for outcome in outcomes:
            if outcome.event != "started":
                if outcome.execution_id in ended:
                    # Two ends of one execution never share a transaction: the first that fits is the one that counts.
                    self._write(lane, part, rows)
                    part, ended = [], set()
                ended.add(outcome.execution_id)
            part.append(outcome)
        self._write(lane, part, rows)

    def _write(self, lane: int, outcomes: Sequence[Outcome], rows: Mapping[str, OpenExecution]) -> None:
        starts: list[Start] = []
        endings: list[Ending] = []
        attempts: list[NewAttempt] = []
        for outcome in outcomes:
            if outcome.event in (ALIEN, UNREADABLE):
                emit("set_aside", lane=lane, what=outcome.event, why=str(outcome.detail.get("why", "")))
                continue
            try:
                ending, attempt, start = decide_end(
                    rows.get(outcome.execution_id), outcome, outcome.at_us, self._chance)
            except Exception:
                # It would stand in the way of all others for ever.
                logger.exception("lane %s: outcome %r cannot be recorded", lane, outcome)
                emit("outcome_unknown", lane=lane, outcome=outcome)
                continue
            if start is not None:
                starts.append(start)
            if ending is not None:
                endings.append(ending)
            if attempt is not None:
                attempts.append(attempt)
        if not starts and not endings:
            return
        try:
            result = self._store.record(starts, endings, attempts)
        except StoreUnavailable:
            raise
        except Exception:
            self._write_apart(lane, outcomes, rows)
            return
        if listening():
            self._tell(lane, outcomes, starts, endings, attempts, result)

    def _tell(
        self, lane: int, outcomes: Sequence[Outcome], starts: Sequence[Start], endings: Sequence[Ending],
        attempts: Sequence[NewAttempt], result: RecordResult,
    ) -> None:
        tenants = {outcome.execution_id: outcome.tenant for outcome in outcomes}
        emit("recorded", lane=lane, starts=starts, endings=endings, attempts=attempts, ended=result.ended,
             ignored=result.ignored, tenants=[tenants[ending.execution_id] for ending in endings], started=result.started)
        ended = set(result.ended)
        counted = [(tenants[e.execution_id], e) for e in endings if e.execution_id in ended]
        dead = Counter((tenant, e.reason) for tenant, e in counted if e.state == lifecycle.DEAD)
        for (tenant, reason), count in dead.items():
            emit("dead_lettered", tenant=tenant, reason=reason, count=count)
        expired = [(tenant, e.execution_id.partition(":")[0]) for tenant, e in counted if e.state == lifecycle.EXPIRED]
        one_job = dict(expired)
        for tenant, count in Counter(tenant for tenant, _ in expired).items():
            emit("expired", tenant=tenant, job_id=one_job[tenant], count=count)

    def _write_apart(self, lane: int, outcomes: Sequence[Outcome], rows: Mapping[str, OpenExecution]) -> None:
        """Write in smaller parts until the outcome that breaks the transaction stands alone, then without its facts."""
        if len(outcomes) > 1:
            half = len(outcomes) // 2
            self._write(lane, outcomes[:half], rows)
            self._write(lane, outcomes[half:], rows)
        elif outcomes[0].detail:
            logger.exception("lane %s: outcome %r cannot be recorded as it is", lane, outcomes[0])
            self._write(lane, [outcomes[0]._replace(detail={})], rows)
        else:
            logger.exception("lane %s: outcome %r cannot be recorded", lane, outcomes[0])
            emit("outcome_unknown", lane=lane, outcome=outcomes[0])
