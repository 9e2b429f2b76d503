"""One lane of the QueueStore in memory: copies, streams, leases, locks, and every way in which a copy moves on.

The same steps under the same names as the shared Lua pieces in ``redis/lua``: whoever reads one knows the other.
"""
from __future__ import annotations

import itertools
import json
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chrono_beat.core.deliveries import RAN_LOST, RAN_OK, RAN_RETRY, RAN_REVOKED, RAN_SUPERSEDED, Outcome
from chrono_beat.core.fairness import DEFAULT_MAX_RUNNING, DEFAULT_WEIGHT, PRIORITIES, FairLine, order_of
from chrono_beat.core.outcomes import DECISIONS, is_final
from chrono_beat.core.overlap import OVERDUE, locks_of, way_of
from chrono_beat.core.records import GONE_VERSION, MISSED, PublishItem, Stop, TenantLimits
from chrono_beat.testing.memory_copies import DECIDED, DROPPED, QUEUED, RUNNING, SETTLED, WAITING, Copy
from chrono_beat.testing.memory_delays import Delays
from chrono_beat.testing.memory_locks import Locks

__all__ = ["DECIDED", "DROPPED", "QUEUED", "RUNNING", "SETTLED", "WAITING", "Copy", "Lane"]

TOMBSTONE_US = 60_000_000
DAY_US = 86_400_000_000
MAX_COPY_AGE_US = 7 * DAY_US
VOID_TTL_US = 8 * DAY_US


@dataclass
class Lane(Locks, Delays):
    """What Redis keeps of one lane. Its methods are called under the store's lock, with the time as ``now``."""

    number: int
    now: int = 0
    generation: int | None = None
    replication_id: str = ""
    counter: int = 0
    quarantine_until: int = 0
    unknown_before: int = 0
    copies: dict[str, Copy] = field(default_factory=dict)
    streams: dict[tuple[str, str, int], deque[Copy]] = field(default_factory=lambda: defaultdict(deque))
    fronts: dict[tuple[str, str], deque[Copy]] = field(default_factory=lambda: defaultdict(deque))
    lines: dict[str, FairLine] = field(default_factory=lambda: defaultdict(FairLine))
    leases: dict[str, int] = field(default_factory=dict)
    running: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    owned: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    locks: dict[str, str] = field(default_factory=dict)
    waiters: dict[str, deque[str]] = field(default_factory=lambda: defaultdict(deque))
    stops: set[str] = field(default_factory=set)
    ends: dict[str, int] = field(default_factory=dict)
    voids: dict[str, tuple[int, int]] = field(default_factory=dict)
    limits: dict[str, TenantLimits] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    reader: tuple[str, int] = ("", 0)
    wake: set[str] = field(default_factory=set)
    entries: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    has_plain_tasks: bool = False

    # -- time -------------------------------------------------------------------------------------------------------

    def pass_to(self, now: int) -> None:
        """Let tombstones and voids go whose time is over."""
        self.now = now
        for copy in [c for c in self.copies.values() if c.goes_us is not None and c.goes_us <= now]:
            del self.copies[copy.id]
        for job in [job for job, (_, until) in self.voids.items() if until <= now]:
            del self.voids[job]

    # -- copies -----------------------------------------------------------------------------------------------------

    def is_voided(self, copy: Copy) -> bool:
        """Say whether the copy is of an old version, or too old to be trusted."""
        if copy.plain:
            return False
        return copy.version < self.voids.get(copy.job, (0, 0))[0] or copy.since_us < self.now - MAX_COPY_AGE_US

    def is_expired(self, copy: Copy) -> bool:
        """Say whether the copy must not start any more."""
        return copy.expires_us is not None and copy.expires_us <= self.now

    def add_entry(self, copy: Copy) -> None:
        """Put the copy at the end of its stream."""
        copy.state, copy.since_us = QUEUED, self.now
        self.streams[copy.pool, copy.tenant, copy.priority].append(copy)
        self.make_ready(copy)

    def remove_entry(self, copy: Copy) -> None:
        """Take the copy out of wherever it waits."""
        places: list[tuple[Any, Any]] = [
            (self.streams, (copy.pool, copy.tenant, copy.priority)), (self.fronts, (copy.pool, copy.tenant)),
        ]
        for queues, key in places:
            if key in queues:
                queues[key] = deque(c for c in queues[key] if c is not copy)
                if not queues[key]:
                    del queues[key]
        self.ends.pop(copy.id, None)
        if copy.waits_at:
            self.stand_no_more(copy)

    def append(
        self, event: str, copy: Copy, detail: Mapping[str, Any] | None = None, version: int | None = None,
    ) -> str:
        """Append an outcome; returns its entry id."""
        entry_id = f"{self.now // 1000}-{next(self.entries)}"
        if self.unknown_before and event in DECISIONS:
            detail = {"unknown_before": self.unknown_before}           # rule 12
        self.outcomes[entry_id] = Outcome(
            entry_id, self.number, self.generation or 0, event, copy.id, copy.job, copy.tenant,
            copy.version if version is None else version, copy.token, copy.worker, self.now, copy.given,
            json.loads(json.dumps(dict(detail or {}))),
        )
        return entry_id

    def is_known(self, copy: Copy) -> bool:
        """Say whether a tombstone's outcome waits to be recorded, or has been."""
        return copy.plain or copy.goes_us is not None or copy.outcome in self.outcomes

    def tombstone(self, copy: Copy, state: str, outcome: str, final: bool = False) -> None:
        """Rule 2: the marker becomes a tombstone that stays until its outcome is acknowledged."""
        self.copies[copy.id] = Copy(
            copy.id, state, copy.version, copy.job, copy.tenant, token=copy.token, given=copy.given, outcome=outcome,
            final=final,
        )

    # -- tenants ----------------------------------------------------------------------------------------------------

    def room(self, tenant: str) -> tuple[int, int]:
        """Return weight and free slots of a tenant; none while it is paused (invariant 8)."""
        limits = self.limits.get(tenant)
        if limits is None:
            return DEFAULT_WEIGHT, self.cap_room(tenant)
        return limits.weight, 0 if limits.paused else self.cap_room(tenant)

    def cap_room(self, tenant: str) -> int:
        """Return how many more of a tenant may run, paused or not."""
        limits = self.limits.get(tenant)
        return (limits.max_running if limits else DEFAULT_MAX_RUNNING) - len(self.running.get(tenant, ()))

    def make_ready(self, copy: Copy) -> None:
        """Note that the tenant has work."""
        self.lines[copy.pool].enter(copy.tenant)
        self.push_wake(copy.pool)

    def push_wake(self, pool: str) -> None:
        """Leave a token for an idle worker where a tenant can be drawn from."""
        if self.lines[pool].ready:
            self.wake.add(pool)

    def uncap(self, tenant: str) -> None:
        """Let a tenant that has room again back into line, in every pool."""
        if self.room(tenant)[1] > 0:
            for pool, line in self.lines.items():
                if line.bring_back(tenant):
                    self.push_wake(pool)

    # -- endings ----------------------------------------------------------------------------------------------------

    def release_grant(self, copy: Copy) -> None:
        """Give up lease, slot and ownership together."""
        self.leases.pop(copy.id, None)
        for holders, name in ((self.owned, copy.worker), (self.running, copy.tenant)):
            holders[name].discard(copy.id)
            if not holders[name]:
                del holders[name]
        self.uncap(copy.tenant)

    def forget(self, copy: Copy) -> None:
        """Drop a copy without an outcome; where it was granted once, the marker stays for the last grant (rule 14)."""
        self.remove_entry(copy)
        if copy.token:
            copy.state, copy.front, copy.locks, copy.payload = DROPPED, False, (), b""
            copy.goes_us = self.now + VOID_TTL_US
        else:
            del self.copies[copy.id]

    def conclude(self, copy: Copy, event: str, detail: Mapping[str, Any] | None = None) -> None:
        """End a copy that no worker holds. One that was granted and not given back may have begun: it did not expire, it is
        lost."""
        if event == "expired" and (copy.token or copy.begun):
            event, detail = RAN_LOST, {"expired": True}
        self.remove_entry(copy)
        self.tombstone(copy, DECIDED, self.append(event, copy, detail), is_final(event, copy.token))

    def supersede(self, copy: Copy, by: str) -> None:
        """End a copy whose place another one takes; its last grant has been withdrawn (invariant 6)."""
        if copy.state == RUNNING:
            self.release_grant(copy)
        self.stops.discard(copy.id)
        self.conclude(copy, RAN_SUPERSEDED, {"blocked_by": by, **({"unknown": True} if copy.unknown else {})})
        self.copies[copy.id].lost = copy.token

    def drop_voided(self, copy: Copy) -> None:
        """Rule 9: whoever drops a voided copy frees its locks."""
        locks = copy.locks
        self.forget(copy)
        self.unlock(copy.id, locks)

    def expire(self, copy: Copy) -> None:
        """End a waiting copy past its expiry, and free its locks."""
        self.conclude(copy, "expired")
        self.unlock(copy.id, copy.locks)

    def cancel(self, copy: Copy) -> None:
        """End a copy whose cancellation was asked for. No publish of any version brings it back."""
        if copy.state == RUNNING:
            self.release_grant(copy)
        self.stops.discard(copy.id)
        copy.version = GONE_VERSION
        self.conclude(copy, "cancelled")
        self.unlock(copy.id, copy.locks)

    def requeue(self, copy: Copy) -> None:
        """Put a delivery back, at the front of its tenant. The lock stays with it."""
        copy.state, copy.front = QUEUED, True
        self.fronts[copy.pool, copy.tenant].append(copy)
        self.release_grant(copy)
        self.make_ready(copy)

    def unhand(self, copy: Copy) -> None:
        """Take back a delivery that never began, as if it had not been handed out."""
        copy.given -= 1
        copy.begun = "" if copy.begun == copy.token else copy.begun
        copy.token = ""

    def give_back(self, copy: Copy) -> None:
        """Take back a delivery that never began, to the front of its tenant."""
        self.unhand(copy)
        if copy.cancelled:
            self.cancel(copy)
        elif copy.stop_us is None:
            self.requeue(copy)
        else:
            self.supersede(copy, copy.stop_for)
            self.unlock(copy.id, copy.locks)

    def finish(self, copy: Copy, result: str, detail: Mapping[str, Any]) -> None:
        """End a delivery with its outcome; one that was told to make room is not tried again."""
        if copy.state == RUNNING:
            self.release_grant(copy)
        if copy.plain:
            self.finish_plain(copy, result)
            return
        self.stops.discard(copy.id)
        if copy.stop_us is not None and result != RAN_OK:
            result = RAN_SUPERSEDED
        if copy.cancelled and result != RAN_OK:
            result = RAN_REVOKED
        if result == RAN_SUPERSEDED and copy.stop_for:
            detail = {**detail, "blocked_by": copy.stop_for}
        self.remove_entry(copy)
        if result == RAN_RETRY and copy.retry is not None:
            detail = {**detail, "retry": copy.retry}
        self.tombstone(copy, SETTLED, self.append(result, copy, detail))
        self.unlock(copy.id, copy.locks)

    def reap(self, copy: Copy, cap: int) -> tuple[int, bool]:
        """Requeue a lost delivery, at most *cap* times (invariant 6); (0, False) where its body asked for a retry."""
        if copy.retry is not None:
            self.finish(copy, RAN_RETRY, {})
            return 0, False
        if copy.cancelled:
            self.cancel(copy)
            return 0, False
        if copy.stop_us is not None:
            self.supersede(copy, copy.stop_for)
            self.unlock(copy.id, copy.locks)
            return 0, False
        copy.reaps += 1
        if copy.reaps <= cap or copy.plain:
            self.requeue(copy)
            return copy.reaps, copy.reaps > cap
        self.release_grant(copy)
        self.conclude(copy, "reap_cap")
        self.unlock(copy.id, copy.locks)
        return copy.reaps, True

    # -- draw -------------------------------------------------------------------------------------------------------

    def next_copy(self, pool: str, tenant: str) -> Copy | None:
        """Take the tenant's next copy out of its queues: give-backs first, then by priority."""
        front = self.fronts.get((pool, tenant))
        if front:
            copy = front.popleft()
            if not front:
                del self.fronts[pool, tenant]
            return copy
        for priority in order_of(self.lines[pool].turns[tenant]):
            stream = self.streams.get((pool, tenant, priority))
            if stream:
                copy = stream.popleft()
                if not stream:
                    del self.streams[pool, tenant, priority]
                return copy
        return None

    def waits(self, pool: str, tenant: str) -> bool:
        """Say whether the tenant has something to draw; what may not run is ended on the way."""
        queues: list[tuple[Any, Any]] = [(self.fronts, (pool, tenant))]
        queues += [(self.streams, (pool, tenant, priority)) for priority in range(PRIORITIES)]
        for queue, key in queues:
            while key in queue:
                if self.may_run(queue[key][0]):
                    return True
        return False

    def tidy(self, pool: str) -> int:
        """Let the first tenants in line leave that have nothing there; returns how many."""
        line, gone = self.lines[pool], 0
        while (tenant := line.first()) is not None and not self.waits(pool, tenant):
            line.leave(tenant)
            gone += 1
        line.rest()
        return gone

    def grant(self, pool: str, tenant: str, worker: str, expires_us: int) -> Copy | None:
        """Grant the tenant's next execution that may run; None where it has none."""
        while (copy := self.next_copy(pool, tenant)) is not None:
            if self.may_run(copy):
                self.sign(copy, worker, expires_us)
                return copy
        return None

    def may_run(self, copy: Copy) -> bool:
        """Say whether the copy may be handed out; one that may not is ended."""
        if self.is_voided(copy) or copy.lost_entry:
            self.drop_voided(copy)                                     # the audit publishes again what lost its entry
        elif copy.retry is not None:
            self.finish(copy, RAN_RETRY, {})                           # its last body has said so since it was requeued
        elif self.is_expired(copy):
            self.expire(copy)
        else:
            return True
        return False

    def sign(self, copy: Copy, worker: str, expires_us: int) -> None:
        """Hand the copy out."""
        self.counter += 1
        copy.token = f"{self.generation}.{self.counter}"               # invariant 6
        copy.state, copy.worker, copy.front, copy.given = RUNNING, worker, False, copy.given + 1
        copy.parked, copy.parked_us = "", None
        self.leases[copy.id] = expires_us
        self.running[copy.tenant].add(copy.id)
        self.owned[worker].add(copy.id)

    # -- publish ----------------------------------------------------------------------------------------------------

    def is_there(self, copy: Copy, version: int) -> bool:
        """Say whether a publish of that version must leave the copy alone (rules 2, 7 and 11)."""
        if copy.state in (SETTLED, RUNNING):
            return copy.state == RUNNING or self.is_known(copy)
        if copy.lost_entry:
            return False
        return copy.state != DROPPED and (copy.version >= version or copy.final and self.is_known(copy))

    def publish(self, item: PublishItem, grace_us: int, stops: list[Stop]) -> str:
        """Publish one item; returns the letter of its reply, as in ``publish.lua``."""
        if item.due_us > self.now:
            return "e"                                                 # invariant 1
        old = self.copies.get(item.execution_id)
        if old is not None and self.is_there(old, item.version):
            return "a"
        if item.version < self.voids.get(item.job_id, (0, 0))[0]:
            return "v"
        way = way_of(item.concurrency, item.kind, item.attempt)
        copy = Copy(item.execution_id, QUEUED, item.version, item.job_id, item.tenant, item.pool, item.priority,
                    item.expires_us, item.payload, self.now, unknown=item.due_us < self.unknown_before,
                    locks=locks_of(way, item.job_id, item.tenant, item.group))
        if old is not None:
            self.replace(old, copy)
            copy.unknown = copy.unknown or bool(copy.token)            # rule 12: a worker had it
        if way == OVERDUE:
            self.tombstone(copy, DECIDED, self.append(MISSED, copy))   # rule 11: nobody can publish it any more
            self.unlock(copy.id, (old or copy).locks)
            return "m"
        letter = self.take_locks_or(copy, way, grace_us, stops)
        if letter == "s":
            return letter
        self.copies[copy.id] = copy
        if not letter:
            self.add_entry(copy)
        return letter or "p"

    def replace(self, old: Copy, copy: Copy) -> None:
        """Take an older copy of the same execution away; what is known of its deliveries, and its locks, go over."""
        copy.token, copy.given, copy.reaps, copy.begun, copy.lost, copy.worker = (
            old.token, old.given, old.reaps, old.begun, old.lost, old.worker)
        self.remove_entry(old)
        del self.copies[old.id]
        if list(old.locks) != list(copy.locks):
            self.unlock(old.id, old.locks)
