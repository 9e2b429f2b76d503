"""The pages that ask before jobs are paused, resumed or run now: what it would do, to which jobs, and what has to be said."""
from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import Any, ClassVar

from django import forms
from django.db.models import QuerySet

from chrono_beat.core import lifecycle
from chrono_beat.core.errors import InvalidInput
from chrono_beat_django import backfill, jobs
from chrono_beat_django.admin import fields
from chrono_beat_django.admin.instants import in_utc, in_zone
from chrono_beat_django.models import Execution, Job

MOST_LISTED = 50
NOTHING = "nothing"
MISSED = {NOTHING: "Nothing: go on from now", "latest": "The latest that each missed",
          "all": "All that each missed, up to the limit"}


class Confirmation(forms.Form):
    """What a deed asks before it is done; a subclass says which.

    ``chosen`` carries the jobs as one field, since Django takes a thousand fields at most.
    """

    deed: ClassVar[str]
    action: ClassVar[str]
    sentence: ClassVar[str]
    token = forms.CharField(widget=forms.HiddenInput, required=False, max_length=64)

    def __init__(self, data: Any = None) -> None:
        super().__init__(data, initial={"token": uuid.uuid4().hex, "limit": backfill.DEFAULT_LIMIT, "missed": NOTHING})

    def carry_out(self, job: Job, actor: str) -> str:
        """Do it to one job; returns what came of it."""
        raise NotImplementedError


class PauseForm(Confirmation):
    """Before a pause."""

    deed, action = "Pause", "pause_jobs"
    sentence = ("Nothing of them starts any more until they are resumed, also not what has been claimed or waits in a queue. "
                "What runs goes on.")
    note = fields.line("Note", "Why, for people; empty: the job's note stays.", wide=True)

    def carry_out(self, job: Job, actor: str) -> str:
        """Pause it."""
        jobs.pause(job, note=self.cleaned_data["note"].strip(), actor=actor)
        return "paused"


class ResumeForm(Confirmation):
    """Before a resume: what of the missed ones?"""

    deed, action = "Resume", "resume_jobs"
    sentence = "They fire again from now on."
    missed = forms.ChoiceField(label="What of the missed ones?", choices=tuple(MISSED.items()), widget=forms.RadioSelect)
    limit = fields.number("Limit", f"Of each job at most so many, the newest, 1 to {backfill.MAX_BACKFILL:,}.")

    def clean(self) -> dict[str, Any]:
        """Refuse what no resume understands."""
        given: dict[str, Any] = super().clean() or self.cleaned_data
        try:
            backfill.check_missed(None, given["limit"])
        except InvalidInput as refused:
            for problem in refused.problems:
                self.add_error(problem.field, problem.message)
        return given

    def carry_out(self, job: Job, actor: str) -> str:
        """Resume it."""
        missed = self.cleaned_data["missed"]
        resumed = jobs.resume(job, missed=None if missed == NOTHING else missed, limit=self.cleaned_data["limit"], actor=actor)
        return f"resumed, next run {in_zone(resumed.next_run_at, resumed.timezone)}"


class TriggerForm(Confirmation):
    """Before a run out of turn."""

    deed, action = "Run now", "trigger_jobs"
    sentence = "Each is run once beside its schedule, with all its options; the schedule stays as it is."

    def carry_out(self, job: Job, actor: str) -> str:
        """Run it; to send the page twice runs it once."""
        execution = jobs.trigger(job, token=self.cleaned_data["token"] or None, actor=actor)
        active = execution.in_the_way
        what = "it will end" if job.concurrency == "replace" else "it may be skipped, for"
        warning = f"; {what} {active}, which runs since {in_utc(active.started_at)}" if active else ""
        return f"to be run now as execution {execution.id}{warning}"


def chosen_of(queryset: QuerySet[Job], posted: str) -> QuerySet[Job]:
    """Return those jobs of the list that a confirmation page was shown for."""
    found = []
    for text in posted.split(","):
        try:
            found.append(uuid.UUID(text))
        except ValueError:
            continue
    return queryset.filter(pk__in=found)


def listed(chosen: Collection[Job]) -> list[tuple[Job, str, str]]:
    """Return (job, next run, what of it runs) of the first MOST_LISTED jobs."""
    first = list(chosen)[:MOST_LISTED]
    running: dict[Any, str] = {}
    for execution in Execution.objects.filter(job_id__in=[job.pk for job in first], state=lifecycle.RUNNING).only(
            "id", "job_id", "started_at"):
        running[execution.job_id] = f"since {in_utc(execution.started_at)}"
    return [(job, in_zone(job.next_run_at, job.timezone), running.get(job.pk, "")) for job in first]
