"""What a lane in memory knows of one execution; ``redis/lua/copies.lua`` has the same in Redis."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

QUEUED, RUNNING, WAITING, SETTLED, DECIDED, DROPPED, DELAYED = "q", "r", "w", "s", "x", "v", "d"


@dataclass
class Copy:
    """Marker, running record or tombstone of one execution."""

    id: str
    state: str
    version: int
    job: str
    tenant: str
    pool: str = ""
    priority: int = 0
    expires_us: int | None = None
    payload: bytes = b""
    since_us: int = 0
    locks: Sequence[str] = ()
    waits_at: str = ""
    stop_us: int | None = None
    stop_for: str = ""
    unknown: bool = False
    cancelled: bool = False
    front: bool = False
    token: str = ""
    given: int = 0
    reaps: int = 0
    worker: str = ""
    begun: str = ""
    lost: str = ""
    retry: Mapping[str, Any] | None = None
    outcome: str = ""
    final: bool = False             # its outcome ends the row whatever version that has
    goes_us: int | None = None
    parked: str = ""
    parked_us: int | None = None
    plain: bool = False             # a task without an execution row
    due_us: int = 0                 # of a plain task that is delayed
    resent: str = ""                # token of the delivery whose retry it is
    lost_entry: bool = False        # brought back after a lost memory: its payload is not here
