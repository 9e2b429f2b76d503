"""The values that travel when something was lost: of the audit, and of workers whose lane lost its memory."""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from chrono_beat.core.deliveries import Hold


class Renewed(NamedTuple):
    """What a renewal did.

    Args:
        expires_us: until when the leases now last, by Redis' clock; 0 where the lane has no generation: nothing was renewed.
        lost: executions for which a newer grant exists.
        unknown: those that the lane does not know: its memory was lost.
    """

    expires_us: int
    lost: Sequence[str]
    unknown: Sequence[str]


class LostGrant(NamedTuple):
    """A delivery that its holder brings back after the lane's memory was lost (rule 5).

    Args:
        hold: which delivery.
        expires_us: the end of its lease as the holder knows it, by Redis' clock.
        grant: as it came with the delivery.
    """

    hold: Hold
    expires_us: int
    grant: bytes


class Recorded(NamedTuple):
    """What became of settled outcomes (rule 6).

    Args:
        generation: the lane's, "" for none. Where it is not the one that was asked about, nothing else is said: what is
            kept has to be settled again.
        done: executions whose outcome is recorded, or is not needed any more.
        gone: executions whose outcome is not recorded, and was lost: to be settled again.
    """

    generation: str
    done: Sequence[str]
    gone: Sequence[str]


class OpenRow(NamedTuple):
    """An open execution row, as the audit reads it by pages."""

    execution_id: str
    tenant: str
    partition: int
    due_us: int
    state: str
