"""Skips in a row: an alert for a job whose runs take longer than its period, or hang.

Counted in memory from the outcomes that a recorder writes anyway, so no skip costs a query. A recorder that starts anew, or
takes a lane over, counts from zero: the alert comes up to four skips late then.
"""
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from chrono_beat.core.deliveries import Outcome
from chrono_beat.telemetry import emit

ALERT_AT = 5
MAX_STREAKS = 10_000
"""Jobs whose streak is remembered; the one that was skipped longest ago goes first."""


class Streaks:
    """Counts skips in a row, by job, and tells of each streak once."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, int] = OrderedDict()

    def see(self, outcomes: Iterable[Outcome]) -> None:
        """Count outcomes in the order in which they happened; a run that begins ends its job's streak."""
        counts = self._counts
        for outcome in outcomes:
            job_id = outcome.job_id
            if outcome.event == "started" and counts:
                counts.pop(job_id, None)
            elif outcome.event == "skipped":
                count = counts[job_id] = counts.get(job_id, 0) + 1
                counts.move_to_end(job_id)
                if len(counts) > MAX_STREAKS:
                    counts.popitem(last=False)
                if count == ALERT_AT:
                    emit("skipped_in_a_row", lane=outcome.lane, job_id=job_id, tenant=outcome.tenant, count=count,
                         blocked_by=str(outcome.detail.get("blocked_by", "")))
