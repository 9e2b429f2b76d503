"""The form of a backfill of several jobs: it counts first, and creates what was counted."""
from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from django import forms

from chrono_beat.core.errors import InvalidInput
from chrono_beat_django import backfill
from chrono_beat_django.admin import fields, instants
from chrono_beat_django.models import Job


class Counted(NamedTuple):
    """What a backfill would do for one job; None where its schedule cannot be worked out."""

    job: Job
    expected: backfill.Backfilled | None


class BackfillForm(forms.Form):
    """A span, a limit and a pace."""

    start = fields.instant("From", "Itself included.")
    end = fields.instant("To", "Itself not included; what lies in the future is cut off.")
    limit = fields.number("Limit", f"Occurrences of each job at most, 1 to {backfill.MAX_BACKFILL:,}; the oldest come first.")
    pace = fields.number("Pace", "Seconds between two executions of a job; empty: all at once, under the tenant's cap.")
    token = forms.CharField(widget=forms.HiddenInput, required=False, max_length=64)
    counted = forms.CharField(widget=forms.HiddenInput, required=False)

    def __init__(self, data: Any = None) -> None:
        super().__init__(data, initial={"limit": backfill.DEFAULT_LIMIT, "token": uuid.uuid4().hex})
        self.rows: Sequence[Counted] = ()
        zone = instants.form_zone()
        for name in ("start", "end"):
            self.fields[name].help_text += f" Read in {zone} unless you give an offset."

    @property
    def total(self) -> int:
        """How many executions would be created."""
        return sum(row.expected.created for row in self.rows if row.expected)

    @property
    def signature(self) -> str:
        """What was counted, so that only that is created when it is confirmed."""
        typed = [str(self.cleaned_data.get(name)) for name in ("start", "end", "limit", "pace")]
        return "|".join([*typed, *sorted(str(row.job.pk) for row in self.rows)])

    def count(self, jobs: Sequence[Job]) -> None:
        """Work out what would be created for each job."""
        try:
            found = backfill.expected(jobs, **self._span())
        except InvalidInput as refused:
            for problem in refused.problems:
                self.add_error(problem.field if problem.field in self.fields else None, problem.message)
            return
        self.rows = [Counted(job, found.get(job.id)) for job in jobs]

    def confirmed(self) -> bool:
        """Say whether what stands here now is what was counted for the user to see."""
        return bool(self.rows) and self.cleaned_data["counted"] == self.signature

    def create(self, job: Job, actor: str) -> str:
        """Fill in one job; returns what came of it. To send the same page again adds nothing."""
        done = backfill.backfill(job, **self._span(), token=self.cleaned_data["token"] or None, actor=actor)
        rest = f", and {done.left_out:,} left out" if done.left_out else ""
        return f"{done.created:,} executions created, {done.existing:,} were there{rest}"

    def _span(self) -> dict[str, Any]:
        return {name: self.cleaned_data.get(name) for name in ("start", "end", "limit", "pace")}
