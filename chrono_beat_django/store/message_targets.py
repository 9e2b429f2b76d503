"""Where messages of message targets go: read when they are sent."""
from __future__ import annotations

import uuid
from collections.abc import Sequence

from chrono_beat_django.models import Job
from chrono_beat_django.store.session import Session


class MessageTargets(Session):
    """The part of JobStore for the relay; the same on every engine."""

    def message_queues(self, job_ids: Sequence[str]) -> dict[str, str | None]:
        """See JobStore."""
        known = [job_id for job_id in job_ids if _is_id(job_id)]      # a plain task has none
        rows = Job.objects.using(self.alias).filter(id__in=known, target_kind__in=("message", "shadow"))
        return self._attempt(lambda: {
            str(job_id): None if kind == "shadow" else queue
            for job_id, kind, queue in rows.values_list("id", "target_kind", "queue") if queue or kind == "shadow"})


def _is_id(job_id: str) -> bool:
    try:
        uuid.UUID(job_id)
    except ValueError:
        return False
    return True
