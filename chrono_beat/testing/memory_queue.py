"""A QueueStore in memory: the same promises as Redis', in plain Python under one lock.

For tests of services and for simulations. What a lane does is in ``memory_lane.py``. Scans go through all copies of a
lane, so it is made for thousands of executions. Nothing here blocks: the two waits return at
once, whether they found something or not.
"""
from __future__ import annotations

import itertools
import json
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from chrono_beat.core import fairness
from chrono_beat.core.config import Config
from chrono_beat.core.deliveries import (
    DONE,
    RAN_LOST,
    RAN_RETRY,
    REFUSED,
    SETTLED,
    Delivery,
    Hold,
    Outcome,
    Reaped,
    Settlement,
)
from chrono_beat.core.errors import QueueUnavailable
from chrono_beat.core.plain import is_plain
from chrono_beat.core.records import (
    ALREADY,
    EARLY,
    MISSED,
    PUBLISHED,
    SKIPPED,
    VOIDED,
    WAITING,
    LaneState,
    PublishItem,
    PublishResult,
    Stop,
    TenantLimits,
    WorkerReport,
)
from chrono_beat.testing import memory_lane
from chrono_beat.testing.memory_control import MemoryControl
from chrono_beat.testing.memory_copies import DELAYED
from chrono_beat.testing.memory_lane import TOMBSTONE_US, VOID_TTL_US, Copy, Lane
from chrono_beat.testing.memory_parked import ParkedInMemory
from chrono_beat.testing.memory_plain import PlainInMemory, laid_by
from chrono_beat.testing.memory_recovery import MemoryRecovery, packed

DEFAULT_LIMITS_US = 3_600_000_000

_REPLIES = {"p": PUBLISHED, "a": ALREADY, "s": SKIPPED, "w": WAITING, "v": VOIDED, "e": EARLY, "m": MISSED}


class WallClock(Protocol):
    """What the store asks for the time; a ManualClock is one."""

    def wall_us(self) -> int:
        """Return microseconds since the epoch, UTC."""


class MemoryQueueStore(ParkedInMemory, PlainInMemory, MemoryRecovery, MemoryControl):
    """QueueStore in memory.

    Args:
        clock: its ``wall_us()`` is the clock of this Redis.
        config: settings; reap cap, length of leases and grace are used here.

    Tests look into ``lanes`` and ``control``. ``flush()`` forgets everything, as FLUSHALL does; another ``repl`` is
    another server's replication id, as after a failover; ``unavailable = True`` makes every call raise
    QueueUnavailable.
    """

    def __init__(self, clock: WallClock, config: Config | None = None) -> None:
        self.unavailable = False
        self.repl = "memory-1"
        self.reap_cap = (config or Config()).reap_cap
        self._lease_us = round((config or Config()).lease_ttl * 1_000_000)
        self._grace_us = round((config or Config()).replace_grace * 1_000_000)
        self._clock = clock
        self._lock = threading.RLock()
        self._entries = itertools.count(1)          # not forgotten: Redis takes entry ids from the clock
        self.flush()

    def flush(self) -> None:
        """Forget everything."""
        with self._lock:
            self.lanes: dict[int, Lane] = {}
            self.control: dict[str, deque[str]] = defaultdict(deque)
            self._reports: dict[str, tuple[int, WorkerReport]] = {}
            self._dispatch_wakes = 0

    @contextmanager
    def _reach(self) -> Iterator[int]:
        with self._lock:
            if self.unavailable:
                raise QueueUnavailable("Redis: switched off by the test")
            yield self._clock.wall_us()

    @contextmanager
    def _in(self, number: int) -> Iterator[Lane]:
        with self._reach() as now:
            lane = self.lanes.get(number)
            if lane is None:
                lane = self.lanes[number] = Lane(number, entries=self._entries)
            lane.pass_to(now)
            yield lane

    def now_us(self) -> int:
        with self._reach() as now:
            return now

    # -- lanes ------------------------------------------------------------------------------------------------------

    def lane_state(self, lane: int) -> LaneState:
        with self._in(lane) as it:
            return LaneState(
                it.generation, self.repl, it.replication_id, it.quarantine_until, it.now, it.unknown_before,
                it.has_plain_tasks)

    def open_lane(self, lane: int, generation: int, replication_id: str, quarantine_us: int) -> bool:
        with self._in(lane) as old:
            if old.generation is not None and old.generation >= generation:
                return False
            # Rules 4 and 5. Of the markers a settled or final one stays: its outcome is true in every generation.
            self.lanes[lane] = Lane(
                lane, old.now, generation, replication_id, 0, old.now + quarantine_us, old.now if quarantine_us else 0,
                {copy.id: copy for copy in old.copies.values() if copy.state == memory_lane.SETTLED or copy.final}
                | laid_by(old, self._lease_us),
                voids=old.voids, limits=old.limits, outcomes=old.outcomes, reader=old.reader, entries=old.entries,
                has_plain_tasks=old.has_plain_tasks,
            )
            return True

    # -- dispatcher's side ------------------------------------------------------------------------------------------

    def publish(
        self, lane: int, generation: int, valid_until_us: int, items: Sequence[PublishItem],
    ) -> PublishResult:
        with self._in(lane) as it:
            if it.generation != generation:
                return PublishResult("generation", [], it.now)                 # rule 4
            if it.now < it.quarantine_until:
                return PublishResult("quarantine", [], it.now)                 # rule 5
            if it.now > valid_until_us:
                return PublishResult("deadline", [], it.now)                   # rule 3
            stops: list[Stop] = []
            letters = [it.publish(item, self._grace_us, stops) for item in items]
            return PublishResult("", [_REPLIES[letter] for letter in letters], it.now, stops)

    def void(self, lane: int, job_id: str, version: int) -> None:
        with self._in(lane) as it:
            it.voids[job_id] = (max(version, it.voids.get(job_id, (0, 0))[0]), it.now + VOID_TTL_US)

    def end_voided(self, lane: int, execution_id: str, job_id: str, version: int, tenant: str = "") -> str:
        with self._in(lane) as it:
            if it.generation is None or it.now < it.quarantine_until:
                return "held"
            self.void(lane, job_id, version)
            copy = it.copies.get(execution_id)
            if copy is not None and copy.state == memory_lane.RUNNING:
                return "held"
            if copy is not None and (
                copy.state in (memory_lane.SETTLED, memory_lane.DECIDED) or copy.version >= version
            ):
                return "done"
            may_have_run = bool(copy.token) if copy is not None else it.unknown_before > 0
            copy = copy or Copy(execution_id, memory_lane.DROPPED, 0, job_id, tenant)
            # What began on a delivery that was lost is not called cancelled.
            outcome = it.append(
                RAN_LOST if copy.begun else "voided", copy, {"voided": True} if copy.begun else {}, version=version)
            it.remove_entry(copy)
            it.tombstone(copy, memory_lane.DECIDED, outcome)
            it.unlock(copy.id, copy.locks)                                      # rule 9
            return "lost" if may_have_run else "ended"

    def set_tenants(self, lane: int, limits: Sequence[TenantLimits]) -> None:
        with self._in(lane) as it:
            for new in limits:
                known = it.limits.get(new.tenant)
                is_default = new[1:4] == (fairness.DEFAULT_WEIGHT, fairness.DEFAULT_MAX_RUNNING, False)
                if known is None and is_default and new.changed_us < it.now - DEFAULT_LIMITS_US:
                    continue                                                   # the defaults need no memory
                if known is None or known.changed_us <= new.changed_us:
                    it.limits[new.tenant] = new._replace(weight=max(1, new.weight))
                    it.uncap(new.tenant)

    def reap(self, lane: int, cap: int, limit: int) -> list[Reaped]:
        with self._in(lane) as it:
            if it.generation is None:
                return []
            if it.now >= it.quarantine_until:
                it.promote_due()
            due = sorted((until, id_) for id_, until in it.leases.items() if until <= it.now)[:limit]
            found = []
            for _, id_ in due:
                copy = it.copies[id_]
                job, tenant, worker = copy.job, copy.tenant, copy.worker
                reaps, capped = it.reap(copy, cap)
                if reaps:
                    found.append(Reaped(id_, job, tenant, worker, reaps, capped))
            return found

    def tend_locks(self, lane: int, limit: int) -> list[Stop]:
        with self._in(lane) as it:
            return it.tend(limit) if it.generation is not None else []

    def tidy(self, lane: int, limit: int) -> int:
        with self._in(lane) as it:
            if it.generation is None or it.now < it.quarantine_until:
                return 0
            return sum(it.tidy(pool) for pool in sorted(it.lines))

    def read_outcomes(self, lane: int, reader: str, reader_lease_us: int, limit: int) -> list[Outcome] | None:
        with self._in(lane) as it:
            name, until = it.reader
            if name not in ("", reader) and until > it.now:
                return None
            it.reader = (reader, it.now + reader_lease_us)
            return list(it.outcomes.values())[:limit]

    def acknowledge(self, lane: int, outcomes: Sequence[Outcome]) -> None:
        with self._in(lane) as it:
            for outcome in outcomes:
                it.outcomes.pop(outcome.entry_id, None)
                copy = it.copies.get(outcome.execution_id)
                if copy is not None and copy.outcome == outcome.entry_id and copy.goes_us is None:
                    copy.goes_us = it.now + TOMBSTONE_US                       # rule 2

    # -- worker's side ----------------------------------------------------------------------------------------------

    def draw(self, lane: int, pool: str, credit: int, worker: str, lease_us: int) -> list[Delivery]:
        with self._in(lane) as it:
            if it.generation is None or it.now < it.quarantine_until or credit < 1:
                return []                                                      # rules 4 and 5
            it.promote_due()
            expires_us = it.now + lease_us
            line = it.lines[pool]
            drawn = fairness.draw(
                line, credit, it.room, lambda tenant: it.grant(pool, tenant, worker, expires_us),
            )
            it.wake.discard(pool)
            it.push_wake(pool)
            return [
                Delivery(c.id, c.job, c.tenant, pool, c.token, c.given, it.now, expires_us, c.payload, packed(c))
                for c in drawn
            ]

    def ready_weights(self, lane: int, pools: Sequence[str]) -> list[int]:
        with self._in(lane) as it:
            return [sum(it.room(tenant)[0] for tenant in it.lines[pool].ready) for pool in pools]

    def _held(self, it: Lane, hold: Hold) -> Copy | None:
        """Return the running copy that is held under this token."""
        copy = it.copies.get(hold.execution_id)
        held = it.generation is not None and copy is not None and copy.state == memory_lane.RUNNING
        return copy if held and copy is not None and copy.token == hold.token else None

    def accept(self, lane: int, worker: str, holds: Sequence[Hold]) -> None:
        with self._in(lane) as it:
            for hold in holds:
                copy = self._held(it, hold)
                if copy is not None and copy.begun != hold.token:
                    copy.begun = hold.token
                    if not copy.plain:
                        it.append("started", copy)

    def settle(self, lane: int, worker: str, settlements: Sequence[Settlement]) -> list[str]:
        with self._in(lane) as it:
            if it.generation is None:
                raise QueueUnavailable("the lane has no generation (its memory was lost)")
            return [self._settle(it, settlement) for settlement in settlements]

    def _settle(self, it: Lane, settlement: Settlement) -> str:
        (id_, token), result, detail = settlement
        copy = it.copies.get(id_)
        if copy is None:
            if is_plain(id_):
                return DONE                                                    # nobody but its worker knew of it any more
            if it.now >= it.quarantine_until or not token or result == RAN_LOST:
                return REFUSED
            # Rule 5: the memory of this grant was lost with the last generation; its end is news all the same.
            copy = Copy(id_, memory_lane.DROPPED, 0, id_.partition(":")[0], "", token=token)
        if copy.lost and copy.lost == token:
            return DONE if result == RAN_LOST else REFUSED
        if token and copy.resent == token:
            return DONE                                                        # a replay: its retry has taken its place
        if not token or copy.token != token:
            return REFUSED                                                     # invariant 6
        if copy.state == memory_lane.SETTLED and it.is_known(copy):
            return DONE                                                        # rule 2
        if result == RAN_LOST and copy.retry is None:
            if copy.state != memory_lane.RUNNING:
                return DONE
            copy.lost = token
            it.reap(copy, self.reap_cap)
            return SETTLED
        if result == RAN_LOST:
            result = RAN_RETRY
        it.finish(copy, result, detail)                                        # rule 14: the last grant counts
        return SETTLED

    def settle_and_draw(
        self, lane: int, worker: str, settlements: Sequence[Settlement], pool: str, credit: int, lease_us: int,
        accepted: Sequence[Hold] = (),
    ) -> tuple[list[str], list[Delivery]]:
        """Accept, settle and draw, in this order."""
        self.accept(lane, worker, accepted)
        words = self.settle(lane, worker, settlements) if settlements else []
        return words, self.draw(lane, pool, credit, worker, lease_us)

    def give_back(self, lane: int, worker: str, holds: Sequence[Hold]) -> int:
        with self._in(lane) as it:
            held = [copy for hold in holds if (copy := self._held(it, hold)) is not None]
            for copy in held:
                it.give_back(copy)
            return len(held)

    def store_retry(self, lane: int, hold: Hold, retry: Mapping[str, object]) -> bool:
        with self._in(lane) as it:
            copy = it.copies.get(hold.execution_id) if it.generation is not None else None
            # Rule 14: requeued and not granted again, it is still this delivery's.
            if copy is None or copy.state not in (
                    memory_lane.RUNNING, memory_lane.QUEUED, DELAYED):
                return False
            if copy.token != hold.token or copy.lost == hold.token:
                return False
            copy.retry = json.loads(json.dumps(dict(retry)))
            return True

    def recover(self, lane: int, worker: str, held: Sequence[str]) -> int:
        with self._in(lane) as it:
            unknown = sorted(it.owned.get(worker, set()) - set(held)) if it.generation is not None else []
            for id_ in unknown:
                it.give_back(it.copies[id_])
            return len(unknown)

    def still_held(self, lane: int, hold: Hold) -> bool:
        with self._in(lane) as it:
            return self._held(it, hold) is not None and it.leases.get(hold.execution_id, 0) > it.now

    # -- waking -----------------------------------------------------------------------------------------------------

    def wait_for_work(
        self, lanes: Sequence[int], pools: Sequence[str], worker: str, timeout_seconds: float,
    ) -> list[str]:
        with self._reach():
            messages = [message for message in self.control.pop(worker, ()) if message]
            if not messages:
                for lane in lanes:
                    with self._in(lane) as it:
                        it.wake -= set(pools)
            return messages

    def wake_worker(self, worker: str, lanes: Sequence[int], message: str = "") -> None:
        with self._reach():
            self.control[worker].append(message)

    def wait_for_dispatch(self, timeout_seconds: float) -> bool:
        with self._reach():
            woken, self._dispatch_wakes = self._dispatch_wakes > 0, 0
            return woken

    def wake_dispatchers(self) -> None:
        with self._reach():
            self._dispatch_wakes += 1

    # -- knowing ----------------------------------------------------------------------------------------------------

    def report_worker(self, report: WorkerReport, ttl_us: int) -> None:
        with self._reach() as now:
            self._reports[report.worker] = (now + ttl_us, report)

    def workers(self) -> list[WorkerReport]:
        with self._reach() as now:
            return [report for _, (until, report) in sorted(self._reports.items()) if until > now]

    def backlog(self, lane: int, pool: str, tenant: str | None = None) -> dict[str, int]:
        with self._in(lane) as it:
            counts: Counter[str] = Counter()
            for (name, whose, _), stream in it.streams.items():
                counts[whose] += len(stream) if name == pool else 0
            for (name, whose), front in it.fronts.items():
                counts[whose] += len(front) if name == pool else 0
            return {whose: count for whose, count in counts.items() if count and tenant in (None, whose)}

    def server_facts(self) -> dict[str, str]:
        with self._reach():
            return {
                "version": "7.2.0", "maxmemory_policy": "noeviction", "replication_id": self.repl,
                "mode": "standalone",
            }
