"""A job's retry policy, from its columns."""
from __future__ import annotations

from chrono_beat.core import lifecycle
from chrono_beat.core.records import RetryPolicy

KIND_AFTER = f"CASE WHEN {{kind}} IN {lifecycle.KEPT_KINDS} THEN {{kind}} ELSE 'retry' END"
"""Of what kind the attempt after a failed one is, in SQL; *kind* names the column."""

HELD_BACK = """e.kind = 'retry' AND EXISTS (
    SELECT 1 FROM chrono_tenant r WHERE r.slug = e.tenant AND r.retries_paused_until > {now})"""
"""Whether a row is a retry of a tenant whose retries are held back, in SQL; only retries cost a look."""

ATTEMPTS_IF_IDEMPOTENT, ATTEMPTS_ELSE = 3, 1

# A task that raised after it had charged a card is not run again unasked; and of a job that is gone nothing is.
NO_RETRY = RetryPolicy(1, True, 30.0, 2.0, 3600.0, 0.2)

# An ETA task never had a job: what it asks for itself, by its own retry, counts.
ASKED_FOR = RetryPolicy(1, False, 30.0, 2.0, 3600.0, 0.2)
IDEMPOTENT = """CASE WHEN e.task IS NOT NULL THEN 'eta' WHEN j.target_kind = 'http' THEN 'yes' ELSE j.idempotent END"""
"""What `policy` is told as *idempotent*, in SQL."""


def policy(
    max_attempts: int | None, idempotent: str | None, base: float, factor: float, maximum: float, jitter: float,
) -> RetryPolicy:
    """Build the policy of a row of chrono_job; *idempotent* is "yes" for HTTP targets, "eta" for ETA tasks, None where
    there is no such row any more."""
    if idempotent == "eta":
        return ASKED_FOR
    if idempotent is None:
        return NO_RETRY
    default = ATTEMPTS_IF_IDEMPOTENT if idempotent == "yes" else ATTEMPTS_ELSE
    return RetryPolicy(max_attempts or default, max_attempts is not None, base, factor, maximum, jitter)
