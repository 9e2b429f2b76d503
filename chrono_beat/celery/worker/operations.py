"""What a worker has to tell Redis, and what it counts."""
from __future__ import annotations

from dataclasses import dataclass, field

from chrono_beat.celery.worker.held import HeldDelivery
from chrono_beat.core.deliveries import Settlement

ACCEPT, SETTLE, GIVE_BACK, FORGET, PARK, REDRAW = "accept", "settle", "give_back", "forget", "park", "redraw"


@dataclass(slots=True)
class Operation:
    """Something to be told to Redis of one delivery, not before an instant of the monotonic clock."""

    kind: str
    held: HeldDelivery
    settlement: Settlement | None = None
    not_before: float = 0.0

    def settled(self) -> Settlement:
        """Return the settlement under the token that the delivery has now: it may have been stopped while it was being
        drawn anew."""
        assert self.settlement is not None
        if self.settlement.hold != self.held.hold:
            self.settlement = self.settlement._replace(hold=self.held.hold)
        return self.settlement


@dataclass(slots=True)
class Counts:
    """What happened since the worker started, for ``inspect stats``."""

    drawn: int = 0
    plain: int = 0
    given_back: int = 0
    drawn_anew: int = 0
    settled: int = 0
    refused: int = 0
    rejected: int = 0
    unknown_tasks: int = 0
    lost_leases: int = 0
    brought_back: int = 0
    stopped: int = 0
    bad_messages: int = 0
    connection_errors: int = 0


@dataclass(slots=True)
class LaneWork:
    """What can be sent to one lane in one round trip."""

    accepts: list[Operation] = field(default_factory=list)
    settles: list[Operation] = field(default_factory=list)
    returns: list[Operation] = field(default_factory=list)
    parks: list[Operation] = field(default_factory=list)
    redraws: list[Operation] = field(default_factory=list)

    def of_kind(self, kind: str) -> list[Operation]:
        """Return the list for operations of a kind."""
        return {ACCEPT: self.accepts, SETTLE: self.settles, GIVE_BACK: self.returns, PARK: self.parks,
                REDRAW: self.redraws}[kind]

    def all(self) -> list[Operation]:
        """Return everything."""
        return [*self.accepts, *self.settles, *self.returns, *self.parks, *self.redraws]
