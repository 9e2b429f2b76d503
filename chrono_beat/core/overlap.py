"""What an execution does while another one of its job is active: a decision of the job's policy and of its own kind.

An execution is active from publish to settle. Waiting for a retry is not active, and what waits for a lock is active for
the locks that it has already: it takes that of its job first, then that of its exclusion group (rule 13).

==================  =================================  ==========================  =====================================
way                 who                                while another is active     lock
==================  =================================  ==========================  =====================================
`BESIDE`            all under "allow"                  runs beside it              none
`SKIPPED`           schedule, manual under "forbid"    is recorded as skipped      the job's
`REPLACES`          schedule, manual under "replace"   takes its place             the job's
`WAITS`             retry, replay                      waits, then goes first      the job's
`WAITS_APART`       backfill                           waits for other backfills   one of the job's backfills
`OVERDUE`           what a misfire policy drops        ends as missed              none
==================  =================================  ==========================  =====================================

An exclusion group adds a lock that everybody waits for, in order, whatever the policy.
"""
from __future__ import annotations

from chrono_beat.core.records import MISSED

BESIDE, SKIPPED, REPLACES, WAITS, WAITS_APART, OVERDUE = "a", "f", "r", "w", "b", "m"


def way_of(concurrency: str, kind: str, attempt: int) -> str:
    """Return one of the ways above.

    Args:
        concurrency: the job's policy, one of records.CONCURRENCY_POLICIES, or MISSED.
        kind: one of lifecycle.KINDS.
        attempt: number of the attempt, from 1; a later one waits, whatever its kind.
    """
    if concurrency == MISSED:
        return OVERDUE
    if concurrency == "allow":
        return BESIDE
    if kind == "backfill":
        return WAITS_APART
    if attempt > 1 or kind in ("retry", "replay"):
        return WAITS
    return REPLACES if concurrency == "replace" else SKIPPED


def locks_of(way: str, job_id: str, tenant: str, group: str) -> list[str]:
    """Return the names of the locks that an execution needs, in the order in which they are taken."""
    own = {BESIDE: [], OVERDUE: [], WAITS_APART: [f"{job_id}:b"]}.get(way, [job_id])
    return [*own, f"@{tenant}:{group}"] if group else own


def is_older(execution_id: str, other: str) -> bool:
    """Say whether an execution's occurrence is of an earlier instant than that of another one of the same job."""
    return _instant(execution_id) < _instant(other)


def _instant(execution_id: str) -> str:
    # As text: a fraction is written only where it is not zero, and the Z behind it would count as later than a point.
    return execution_id.split(":")[1].rstrip("Z")
