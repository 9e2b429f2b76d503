"""The values between Redis and the workers: what is drawn, held, settled and told.

Like those of `chrono_beat.core.records`: named tuples, instants ``…_us`` in microseconds since the epoch, UTC.
"""
from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from chrono_beat.core.records import shown_without


class Delivery(NamedTuple):
    """An execution handed to one worker, under lease.

    *grant* is the lane's record of it, opaque: the worker hands it back where the lane has lost its memory (rule 5).
    """

    execution_id: str
    job_id: str
    tenant: str
    pool: str
    token: str
    deliveries: int
    drawn_us: int
    lease_expires_us: int
    payload: bytes
    grant: bytes = b""

    def __repr__(self) -> str:
        return shown_without(self, "payload", "grant")


class Hold(NamedTuple):
    """A worker's claim to a delivery: which execution, under which token (``generation.counter``)."""

    execution_id: str
    token: str


class Running(NamedTuple):
    """A delivery in a worker's hands; *begun*: its body has begun, as far as Redis has heard."""

    execution_id: str
    token: str
    worker: str
    begun: bool


class Cancelled(NamedTuple):
    """What became of a cancel: "ended"; "held" by a worker (whose name and token follow; "" where nobody can know); "done",
    its outcome is on the way."""

    state: str
    worker: str
    token: str
    begun: bool


# How a delivery ended, as the worker tells it.
RAN_OK, RAN_FAILED, RAN_TIMEOUT, RAN_RETRY, RAN_REVOKED, RAN_LOST, RAN_REJECTED, RAN_SUPERSEDED, RAN_TOO_LATE = (
    "succeeded", "failed", "timeout", "retry", "revoked", "lost", "rejected", "superseded", "too_late",
)


class Settlement(NamedTuple):
    """The end of a delivery.

    Args:
        hold: which delivery.
        result: one of RAN_…; "lost" hands it back as a reap (same execution id, next delivery), "rejected" is a message that
            no task here can run (reason "invalid"), "superseded" was stopped to make room, "too_late" met its worker past
            the ``expires`` of its message.
        detail: JSON-able facts: ``{"error": {"type", "message", "traceback"}, "runtime_ms", "replaced"}``.
    """

    hold: Hold
    result: str
    detail: Mapping[str, Any]


# Not of any execution: an entry of a stream that is not ours, an entry of the outcome stream that cannot be read.
ALIEN, UNREADABLE = "alien", "unreadable"


SETTLED, DONE, REFUSED = "settled", "done", "refused"      # counted now; this very outcome was counted before; stale token


class Reaped(NamedTuple):
    """An expired lease that was found: requeued, or capped (its last outcome "reap_cap" was appended)."""

    execution_id: str
    job_id: str
    tenant: str
    worker: str
    reaps: int
    capped: bool


class Parked(NamedTuple):
    """An execution that lies aside: the workers that drew it do not know its task."""

    execution_id: str
    job_id: str
    tenant: str
    pool: str
    task: str
    since_us: int


class Outcome(NamedTuple):
    """An entry of a lane's outcome stream, in the order it was appended.

    Args:
        entry_id: the stream entry.
        lane: where it stands.
        generation: the lane's generation when it was appended.
        event: "started", "skipped", "expired", "voided", "missed" or one of RAN_… or "reap_cap", "no_worker".
        execution_id, job_id, tenant, version: which execution.
        token: of the delivery; "" where there was none.
        worker: name of the worker; "" where there was none.
        at_us: Redis' clock.
        deliveries: how often it was handed out so far.
        detail: facts of the event: ``error``, ``runtime_ms``, ``blocked_by`` (skipped, superseded: by which), ``unknown``
            (superseded, but it may have run: rule 12), ``retry`` (RAN_RETRY: countdown_us or eta_us, args, kwargs as
            texts, max_retries), ``unknown_before`` (a decision without a run: what was due before this instant, in µs, may
            have run in a lost generation, rule 12).
    """

    entry_id: str
    lane: int
    generation: int
    event: str
    execution_id: str
    job_id: str
    tenant: str
    version: int
    token: str
    worker: str
    at_us: int
    deliveries: int
    detail: Mapping[str, Any]

    def __repr__(self) -> str:
        """Leave out a retry, which has the task's arguments; the rest of the detail is what a log is read for."""
        told = {name: "…" if name == "retry" else value for name, value in self.detail.items()}
        return shown_without(self._replace(detail=told))


CANCEL, REPLACE, DURATION = "cancel", "replace", "duration"      # why a worker is told to stop a delivery


def stop_message(hold: Hold, why: str) -> str:
    """Return the control message that tells a worker to stop a delivery.

    Args:
        hold: which delivery.
        why: CANCEL, REPLACE or DURATION.
    """
    return json.dumps({"stop": hold.execution_id, "token": hold.token, "why": why})
