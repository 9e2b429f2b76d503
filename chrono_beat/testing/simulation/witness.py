"""The stores with a witness: what takes effect there is an event of the history, whatever becomes of the reply."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chrono_beat.core.config import Config
from chrono_beat.core.deliveries import RAN_LOST, REFUSED, Delivery, Hold, Reaped, Settlement
from chrono_beat.core.plain import PlainTask
from chrono_beat.core.records import (
    PUBLISHED,
    Claim,
    Ending,
    NewAttempt,
    PublishItem,
    PublishResult,
    RecordResult,
    ScheduledExecution,
    Start,
    Stop,
)
from chrono_beat.core.recovery import LostGrant, Renewed
from chrono_beat.testing.clock import ManualClock
from chrono_beat.testing.history import (
    CHILD_KILLED,
    Began,
    Event,
    Fault,
    Granted,
    LeaseEnded,
    Published,
    RowEnded,
    Sampled,
    Sent,
    Settled,
    Stopped,
)
from chrono_beat.testing.memory_copies import SETTLED
from chrono_beat.testing.memory_jobs import MemoryJobStore
from chrono_beat.testing.memory_queue import MemoryQueueStore, WallClock


class Witness:
    """Writes events down in the order in which they happen.

    Leases are kept track of here by what was granted and renewed, apart from the store: one that runs out is an event
    of its own, also where the store has forgotten it.
    """

    def __init__(self, flow: ManualClock) -> None:
        self.events: list[Event] = []
        self.versions: dict[tuple[str, str], int] = {}
        self._flow = flow
        self.samples = 0
        self.most: dict[str, int] = {}
        self._leases: dict[tuple[str, str], int] = {}
        self._tenants: dict[str, str] = {}

    def now_us(self) -> int:
        """Return the database's clock."""
        return self._flow.wall_us()

    def add(self, event: Event) -> None:
        """Write an event down."""
        self.events.append(event)

    def expire(self) -> None:
        """Write down the leases that have run out by now."""
        now = self.now_us()
        for key in [key for key, until in self._leases.items() if until <= now]:
            self.events.append(LeaseEnded(self._leases.pop(key), *key, "expired"))

    def granted(self, delivery: Delivery, worker: str, version: int, lease_us: int) -> None:
        """Write down a grant."""
        self.expire()
        self.versions[delivery.execution_id, delivery.token] = version
        self.add(Granted(self.now_us(), delivery.execution_id, delivery.token, worker))
        self._leases[delivery.execution_id, delivery.token] = self.now_us() + lease_us
        self._tenants[delivery.execution_id] = delivery.tenant
        self._sample(delivery.tenant)

    def renewed(self, hold: Hold, lease_us: int) -> None:
        """Keep track of a lease that was prolonged."""
        self.expire()
        is_back = hold not in self._leases
        self._leases[hold.execution_id, hold.token] = self.now_us() + lease_us
        if is_back:
            self._sample(self._tenants[hold.execution_id])

    def _sample(self, tenant: str) -> None:
        """Invariant 8: count a tenant's live leases, here, at every step that adds one; no counter of the store is asked."""
        running = sum(self._tenants[id_] == tenant for id_, _ in self._leases)
        self.samples += 1
        self.most[tenant] = max(running, self.most.get(tenant, 0))
        self.add(Sampled(self.now_us(), tenant, running))

    def lease_ended(self, hold: Hold, why: str) -> None:
        """Write down that a lease ended before its time."""
        self.expire()
        if self._leases.pop((hold.execution_id, hold.token), None) is not None:
            self.add(LeaseEnded(self.now_us(), hold.execution_id, hold.token, why))

    def settled(self, settlement: Settlement, accepted: bool) -> None:
        """Write down what became of an outcome."""
        self.expire()
        hold = settlement.hold
        if settlement.result == RAN_LOST:
            self.lease_ended(hold, "lost")
            return
        self.add(Settled(self.now_us(), hold.execution_id, hold.token, settlement.result, accepted))
        if accepted:
            self._leases.pop((hold.execution_id, hold.token), None)

    def began(self, hold: Hold, worker: str, key: str) -> None:
        """Write down that a body begins."""
        self.expire()
        version = self.versions.get((hold.execution_id, hold.token))
        self.add(Began(self.now_us(), hold.execution_id, hold.token, worker, version, key))

    def child_killed(self, worker: str) -> None:
        """Write down that the operating system ended a body of a worker."""
        self.add(Fault(self.now_us(), CHILD_KILLED, self.now_us(), (worker,)))

    def stopped(self, hold: Hold, how: str) -> None:
        """Write down that a body is over."""
        self.add(Stopped(self.now_us(), hold.execution_id, hold.token, how))


class WitnessedQueue(MemoryQueueStore):
    """A QueueStore in memory whose effects are witnessed."""

    def __init__(self, clock: WallClock, config: Config, witness: Witness) -> None:
        super().__init__(clock, config)
        self._witness = witness

    def publish(self, lane: int, generation: int, valid_until_us: int, items: Sequence[PublishItem]) -> PublishResult:
        """Publish, and write down the replies."""
        result = super().publish(lane, generation, valid_until_us, items)
        for item, reply in zip(items, result.replies, strict=False):
            self._witness.add(Published(self._witness.now_us(), item.execution_id, reply))
        return result

    def publish_plain(self, lane: int, tasks: Sequence[PlainTask]) -> list[str]:
        """Send plain tasks, and write down which are there now."""
        replies = super().publish_plain(lane, tasks)
        for task, reply in zip(tasks, replies, strict=True):
            if reply == PUBLISHED:
                self._witness.add(Sent(self._witness.now_us(), task.copy_id, task.tenant))
        return replies

    def open_plain(self) -> bool:
        """Say whether plain tasks are there that have not ended."""
        return any(copy.plain and copy.state != SETTLED for lane in self.lanes.values() for copy in lane.copies.values())

    def draw(self, lane: int, pool: str, credit: int, worker: str, lease_us: int) -> list[Delivery]:
        """Draw, and write down the grants."""
        drawn = super().draw(lane, pool, credit, worker, lease_us)
        for delivery in drawn:
            version = self.lanes[lane].copies[delivery.execution_id].version
            self._witness.granted(delivery, worker, version, lease_us)
        return drawn

    def renew(self, lane: int, worker: str, holds: Sequence[Hold], lease_us: int) -> Renewed:
        """Renew, and keep track of the leases."""
        answer = super().renew(lane, worker, holds, lease_us)
        leases = self.lanes[lane].leases if lane in self.lanes else {}
        copies = self.lanes[lane].copies if lane in self.lanes else {}
        for hold in holds:
            if hold.execution_id in leases and copies[hold.execution_id].token == hold.token:
                self._witness.renewed(hold, lease_us)
        return answer

    def settle(self, lane: int, worker: str, settlements: Sequence[Settlement]) -> list[str]:
        """Settle, and write down what counted."""
        words = super().settle(lane, worker, settlements)
        for settlement, word in zip(settlements, words, strict=True):
            self._witness.settled(settlement, word != REFUSED)
        return words

    def reap(self, lane: int, cap: int, limit: int) -> list[Reaped]:
        """Reap; leases that have run out are written down first."""
        self._witness.expire()
        return super().reap(lane, cap, limit)

    def bring_back(self, lane: int, worker: str, grants: Sequence[LostGrant], lease_us: int) -> list[str]:
        """Bring grants back, and keep track of the leases."""
        back = super().bring_back(lane, worker, grants, lease_us)
        for grant in grants:
            if grant.hold.execution_id in back:
                self._witness.renewed(grant.hold, lease_us)
        return back

    def tend_locks(self, lane: int, limit: int) -> list[Stop]:
        """Tend the locks, and write down whose lease was withdrawn."""
        stops = super().tend_locks(lane, limit)
        for stop in stops:
            if stop.withdrawn:
                self._witness.lease_ended(Hold(stop.execution_id, stop.token), "withdrawn")
        return stops

    def give_back(self, lane: int, worker: str, holds: Sequence[Hold]) -> int:
        """Give back, and write down the ends of the leases."""
        held = self._owned(lane, worker)
        count = super().give_back(lane, worker, holds)
        self._write_returns(held, lane, worker)
        return count

    def recover(self, lane: int, worker: str, held: Sequence[str]) -> int:
        """Recover, and write down the ends of the leases."""
        before = self._owned(lane, worker)
        count = super().recover(lane, worker, held)
        self._write_returns(before, lane, worker)
        return count

    def _owned(self, lane: int, worker: str) -> Mapping[str, str]:
        it = self.lanes.get(lane)
        return {id_: it.copies[id_].token for id_ in it.owned.get(worker, ())} if it is not None else {}

    def _write_returns(self, before: Mapping[str, str], lane: int, worker: str) -> None:
        after = self._owned(lane, worker)
        for id_, token in sorted(before.items()):
            if after.get(id_) != token:
                self._witness.lease_ended(Hold(id_, token), "given_back")


class WitnessedStore(MemoryJobStore):
    """A JobStore in memory that writes down which rows end."""

    def __init__(self, clock: WallClock, witness: Witness, *, partitions: int, lanes: int) -> None:
        super().__init__(clock, partitions=partitions, lanes=lanes)
        self._witness = witness

    def claim(self, member: str, claims: Sequence[Claim]) -> list[ScheduledExecution]:
        """Claim, and write down what is missed."""
        before = {key for key, row in self.executions.items() if row.state == "missed"}
        claimed = super().claim(member, claims)
        for key, row in self.executions.items():
            if row.state == "missed" and key not in before:
                self._witness.add(RowEnded(self._witness.now_us(), key, "missed"))
        return claimed

    def record(
        self, starts: Sequence[Start], endings: Sequence[Ending], attempts: Sequence[NewAttempt],
    ) -> RecordResult:
        """Record, and write down which rows ended."""
        result = super().record(starts, endings, attempts)
        ended = set(result.ended)
        for ending in endings:
            if ending.execution_id in ended:
                self._witness.add(RowEnded(self._witness.now_us(), ending.execution_id, ending.state))
        return result

    def control(self, call: Any) -> None:
        """Carry out the transaction of a control call."""
        with self._transaction():
            call.commit()
