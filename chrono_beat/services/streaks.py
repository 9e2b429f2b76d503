"""Skips in a row: an alert for a job whose runs take longer than its period, or hang.

Counted in memory from the outcomes that a recorder writes anyway. History is asked once for each job, when this recorder
sees its first skip: one that was started a moment ago, or has taken a lane over, goes on where the last one ended. So
the alert of a job that fires once a day does not depend on a process that lives for five.
"""
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from chrono_beat.core.deliveries import Outcome
from chrono_beat.ports import JobStore
from chrono_beat.telemetry import emit

ALERT_AT = 5
MAX_STREAKS = 10_000
"""Jobs of a lane whose streak is remembered; the one that was skipped longest ago goes first."""

ASKED_AT_ONCE = 100
"""Jobs that history is asked for after one batch; further ones are asked for at their next skip."""


class Streaks:
    """Counts skips in a row, by job, and tells of each streak once; again by a recorder that takes over.

    Args:
        store: the database.
    """

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._lanes: dict[int, OrderedDict[str, int]] = {}

    def see(self, lane: int, outcomes: Sequence[Outcome]) -> None:
        """Count outcomes in the order in which they happened; a run that begins ends its job's streak.

        Args:
            lane: whose.
            outcomes: that are written down already.
        """
        counts = self._lanes.setdefault(lane, OrderedDict())
        new: dict[str, Outcome] = {}
        for outcome in outcomes:
            job_id = outcome.job_id
            if outcome.event == "started" and job_id in counts:
                counts[job_id] = 0
            elif outcome.event == "skipped" and job_id in counts:
                counts[job_id] += 1
                counts.move_to_end(job_id)
                if counts[job_id] == ALERT_AT:
                    _tell(outcome)
            elif outcome.event == "skipped" and (job_id in new or len(new) < ASKED_AT_ONCE):
                new[job_id] = outcome
        if new:
            for job_id, count in self._store.skips_in_a_row(list(new), ALERT_AT).items():
                counts[job_id] = count
                if count == ALERT_AT:
                    _tell(new[job_id])
        while len(counts) > MAX_STREAKS:
            counts.popitem(last=False)

    def leave(self, lane: int) -> None:
        """Forget a lane that another recorder reads by now."""
        self._lanes.pop(lane, None)


def _tell(outcome: Outcome) -> None:
    emit("skipped_in_a_row", lane=outcome.lane, job_id=outcome.job_id, tenant=outcome.tenant, count=ALERT_AT,
         blocked_by=str(outcome.detail.get("blocked_by", "")))
