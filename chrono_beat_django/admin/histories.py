"""A job's history on one page: how it ran lately, what went wrong last, and who changed what."""
from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.text import Truncator

from chrono_beat.core import callback, lifecycle
from chrono_beat_django.admin.instants import EMPTY, in_utc
from chrono_beat_django.admin.pages import Page
from chrono_beat_django.models import Execution, Job, JobEvent

RUNS_LOOKED_AT = 200
RUNS_LISTED = 25
EVENTS_LISTED = 100
CHARACTERS_SHOWN = 300
READ = ("id", "state", "reason", "kind", "attempt", "scheduled_at", "due_at", "started_at", "finished_at", "deliveries",
        "worker")


@dataclass(frozen=True)
class Summary:
    """What became of a job's latest executions.

    Args:
        looked_at: how many these are.
        states: how many there are of each state and reason.
        lateness, durations: (median, 99th percentile, maximum), as texts.
    """

    looked_at: int
    states: Sequence[tuple[str, int]]
    lateness: Sequence[str]
    durations: Sequence[str]


class WithHistory(Page):
    """The page behind the button "History"."""

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Show a job's latest runs and the audit of its changes."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        job: Job | None = self.get_object(request, unquote(object_id))
        if job is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)
        rows = list(Execution.objects.of_job(job.pk).exclude(state=lifecycle.SCHEDULED).only(*READ)[:RUNS_LOOKED_AT])
        failed = next((row for row in rows if row.state in (lifecycle.DEAD, lifecycle.FAILED)), None)
        error = "" if failed is None else Execution.objects.filter(
            id=failed.id, scheduled_at=failed.scheduled_at).values_list("error", flat=True).first()
        events = JobEvent.objects.filter(job_id=job.pk).order_by("-at", "-id")[:EVENTS_LISTED]
        return TemplateResponse(request, "admin/chrono_beat/job/history.html", {
            **self.admin_site.each_context(request), "title": f"History of {job}", "opts": self.opts, "object": job,
            "summary": _summary(rows), "runs": [_run(row) for row in rows[:RUNS_LISTED]], "failed": failed and _run(failed),
            "error": error, "events": [_event(event) for event in events], "media": self.media, **(extra_context or {}),
        })


def _summary(rows: Sequence[Execution]) -> Summary:
    states = Counter(_state(row) for row in rows)
    late = [(row.started_at - row.due_at).total_seconds() for row in rows if row.started_at]
    took = [(row.finished_at - row.started_at).total_seconds() for row in rows if row.started_at and row.finished_at]
    return Summary(len(rows), states.most_common(), _spread(late), _spread(took))


def _spread(seconds: Sequence[float]) -> list[str]:
    if not seconds:
        return [EMPTY] * 3
    ordered = sorted(seconds)
    return [f"{value:,.3f} s" for value in (ordered[(len(ordered) - 1) // 2], ordered[(len(ordered) - 1) * 99 // 100],
                                            ordered[-1])]


def _state(row: Execution) -> str:
    return f"{row.state}: {row.reason}" if row.reason else row.state


def _run(row: Execution) -> dict[str, Any]:
    started, finished = row.started_at, row.finished_at
    return {
        "url": reverse("admin:chrono_beat_execution_change", args=[quote(row.id)]), "scheduled": in_utc(row.scheduled_at),
        "state": _state(row), "kind": row.kind, "attempt": row.attempt, "deliveries": row.deliveries,
        "late": f"{(started - row.due_at).total_seconds():,.3f} s" if started else EMPTY,
        "took": f"{(finished - started).total_seconds():,.3f} s" if started and finished else EMPTY, "worker": row.worker,
    }


def _event(event: JobEvent) -> dict[str, Any]:
    """Return an event with what changed, field by field; secrets were masked when it was written, and are again."""
    try:
        detail = json.loads(event.detail or "{}")
    except ValueError:
        detail = {"detail": event.detail}
    before, after = (detail.pop(side, None) or {} for side in ("before", "after"))
    changes = [(name, _value(name, before.get(name)), _value(name, after.get(name))) for name in (before | after)]
    return {"when": in_utc(event.at), "action": event.action, "actor": event.actor or EMPTY, "version": event.version,
            "changes": changes, "others": [(name, _value(name, value)) for name, value in detail.items()]}


def _value(name: str, value: Any) -> str:
    if value is None or value == "":
        return EMPTY
    return Truncator(callback.masked(value) if name == "headers" and isinstance(value, str) else str(value)).chars(
        CHARACTERS_SHOWN)
