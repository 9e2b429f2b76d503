"""Skips in a row, read from history."""
from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from django.db.models import Q

from chrono_beat.core import lifecycle
from chrono_beat_django.models import Execution
from chrono_beat_django.store.session import Session

TELLING = Q(state=lifecycle.SKIPPED, reason="overlap") | Q(started_at__isnull=False)
"""Rows that say something: what is to come, was missed or cancelled neither ends a streak nor adds to it."""


class SkipStreaks(Session):
    """The part of JobStore for skips in a row; the same on every engine."""

    def skips_in_a_row(self, job_ids: Sequence[str], most: int) -> dict[str, int]:
        """See JobStore."""
        # A statement for each job, since each ends after a few rows of the index on (job, scheduled_at): one statement
        # for all would number the whole history of every job.
        return self._attempt(lambda: {job_id: self._count(job_id, most) for job_id in job_ids})

    def _count(self, job_id: str, most: int) -> int:
        rows = Execution.objects.using(self.alias).filter(TELLING, job_id=job_id).order_by("-scheduled_at", "-attempt")
        return len(list(takewhile(lambda state: state == lifecycle.SKIPPED, rows.values_list("state", flat=True)[:most])))
