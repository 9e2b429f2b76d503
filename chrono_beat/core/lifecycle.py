"""States of an execution and the one table of the moves between them.

``scheduled`` waits in the due index or a wheel, ``queued`` is readable by workers, ``running`` was accepted by a pool. All
other states are terminal: a row enters one of them, once, and stays. A move that the table does not have raises and
changes nothing; in bulk statements the same table is the ``WHERE state IN`` of the update (protocol rule 1, the guard).
"""
from __future__ import annotations

from chrono_beat.core.errors import IllegalTransition

SCHEDULED, QUEUED, RUNNING = "scheduled", "queued", "running"
SUCCEEDED, FAILED, DEAD, SKIPPED = "succeeded", "failed", "dead", "skipped"
CANCELLED, EXPIRED, MISSED = "cancelled", "expired", "missed"

OPEN = (SCHEDULED, QUEUED, RUNNING)
TERMINAL = (SUCCEEDED, FAILED, DEAD, SKIPPED, CANCELLED, EXPIRED, MISSED)
STATES = OPEN + TERMINAL

REASONS = (
    "error", "timeout", "worker_lost", "reap_cap", "unknown", "overlap", "superseded", "paused", "edited", "deleted",
    "no_worker", "invalid", "misfire", "handed_over", "shadow",
)

KINDS = ("schedule", "manual", "backfill", "retry", "replay", "eta")

KEPT_KINDS = ("backfill", "replay")
"""Kinds that their next attempts keep, since they stay what was asked for; those of the others are of kind retry."""

# state -> states it may become. queued -> scheduled does not exist: a republish keeps the row queued. scheduled -> running
# does, since an outcome may be recorded before the bulk mark "queued" has been written (it happens off the hot path).
TRANSITIONS: dict[str, frozenset[str]] = {
    SCHEDULED: frozenset({QUEUED, RUNNING, *TERMINAL}),
    QUEUED: frozenset({RUNNING, *TERMINAL} - {MISSED}),
    RUNNING: frozenset({SUCCEEDED, FAILED, DEAD, CANCELLED}),
    **{state: frozenset() for state in TERMINAL},
}


def sources(target: str) -> tuple[str, ...]:
    """Return the states from which *target* may be entered, for the guard of a bulk update."""
    return tuple(state for state in OPEN if target in TRANSITIONS[state])


def kind_after(kind: str) -> str:
    """Return the kind of the attempt after a failed one of *kind*."""
    return kind if kind in KEPT_KINDS else "retry"


def move(current: str, target: str) -> str:
    """Return *target* where the table allows the move.

    Raises:
        IllegalTransition: it does not.
    """
    if target not in TRANSITIONS.get(current, frozenset()):
        raise IllegalTransition(f"an execution cannot go from {current} to {target}")
    return target
