"""What a job would do, shown beside its form before it is saved: while it is typed, or by a button without a script.

The form is filled in for trial: everything is checked as if it were saved, and nothing is written.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import path, reverse
from django.utils.text import Truncator
from django.views.decorators.http import require_POST

from chrono_beat.core.errors import InvalidInput
from chrono_beat.core.schedule import ScheduleError
from chrono_beat_django.admin.forms import JobForm
from chrono_beat_django.admin.instants import in_utc, in_zone
from chrono_beat_django.admin.pages import Page
from chrono_beat_django.edits import Edit, Soon
from chrono_beat_django.models import Job
from chrono_beat_django.preview import Preview, preview

RUNS_SHOWN = 10
CHARACTERS_SHOWN = 200
TEMPLATE = "admin/chrono_beat/job/preview.html"


@dataclass(frozen=True)
class Run:
    """A run to come, and what is to be known about it."""

    at: str
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Column:
    """Runs under a title."""

    title: str
    runs: Sequence[Run]


@dataclass(frozen=True)
class Change:
    """A field that would change."""

    field: str
    before: str
    after: str


@dataclass(frozen=True)
class Shown:
    """What a preview shows."""

    words: str = ""
    warnings: Sequence[str] = ()
    problems: Sequence[str] = ()
    columns: Sequence[Column] = ()
    changed: Sequence[Change] = ()
    soon: Sequence[str] = ()
    stored: bool = False


class Previewing(Page):
    """The part of a job's page that shows what it would do."""

    class Media:
        js = ("chrono_beat/preview.js",)
        css = {"all": ("chrono_beat/preview.css",)}

    def get_urls(self) -> Any:
        """Add where the form's script asks."""
        view = self.admin_site.admin_view(require_POST(self.preview_view))
        return [path("preview/", view, name="chrono_beat_job_preview"),
                path("<path:object_id>/preview/", view, name="chrono_beat_job_preview_of"), *super().get_urls()]

    def preview_view(self, request: HttpRequest, object_id: str | None = None) -> HttpResponse:
        """Answer with the preview of what stands in the form that is posted."""
        job = None if object_id is None else self.get_object(request, object_id)
        if object_id is not None and job is None:
            raise Http404("there is no such job")
        if not (self.has_add_permission(request) if job is None else self.has_change_permission(request, job)):
            raise PermissionDenied
        form = self.get_form(request, job, change=job is not None)(request.POST, instance=job)
        form.trial = True
        return render(request, TEMPLATE, {"shown": shown_of_form(form)})

    def get_form(self, request: HttpRequest, obj: Job | None = None, change: bool = False, **kwargs: Any) -> Any:
        """Return the form, for trial where its button says so."""
        form = super().get_form(request, obj, change, **kwargs)
        form.trial = "_preview" in request.POST
        return form

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Put the preview beside the form of whoever may save it."""
        job: Job | None = context.get("original")
        if job is None and self.has_add_permission(request):
            context["preview_url"] = reverse("admin:chrono_beat_job_preview", current_app=self.admin_site.name)
        elif job is not None and self.has_change_permission(request, job):
            context["preview_url"] = reverse(
                "admin:chrono_beat_job_preview_of", args=[job.pk], current_app=self.admin_site.name)
        form = context["adminform"].form
        if "preview_url" in context and form.is_bound and form.trial:
            context["shown"] = shown_of_form(form)
        elif "preview_url" in context and job is not None:
            context["shown"] = shown_of_job(job)
        return super().render_change_form(request, context, *args, **kwargs)


def shown_of_form(form: JobForm) -> Shown:
    """Return the preview of what stands in a form."""
    form.full_clean()
    tried = form.tried
    runs = tried.edit.after if tried.edit else tried.runs
    problems = [f"{form.fields[name].label}: {problem}" if name in form.fields else str(problem)
                for name, found in form.errors.items() for problem in found]
    edit = tried.edit
    changed = () if edit is None else [
        Change(str(form.fields[name].label if name in form.fields else name), _value(before), _value(after))
        for name, (before, after) in edit.changed.items()]
    return Shown(
        words=runs.words if runs else "", warnings=runs.warnings if runs else (), problems=problems,
        columns=_columns(runs, edit), changed=changed, stored=edit is not None,
        soon=() if edit is None else [_sentence(soon, edit.now, edit.after.timezone) for soon in edit.soon])


def shown_of_job(job: Job) -> Shown:
    """Return the preview of a job as it is stored."""
    try:
        coming = preview(job, RUNS_SHOWN, operator=True)
    except (InvalidInput, ScheduleError) as error:
        return Shown(problems=[f"Of the next runs none can be worked out: {error}"])
    return Shown(words=coming.words, warnings=coming.warnings, columns=_columns(coming, None))


def _columns(coming: Preview | None, edit: Edit | None) -> list[Column]:
    if coming is None:
        return []
    title = f"Next {RUNS_SHOWN} runs"
    if edit is None or edit.before is None or edit.before.runs == coming.runs:
        return [Column(title, runs_of(coming))]
    return [Column(f"{title} now", runs_of(edit.before)), Column(f"{title} after saving", runs_of(coming))]


def runs_of(coming: Preview) -> list[Run]:
    """Return runs in their zone, each with its notes."""
    return [Run(in_zone(at, coming.timezone), coming.run_notes.get(at, ())) for at in coming.runs]


def _value(value: Any) -> str:
    if value is None or value == "":
        return "(empty)"
    return Truncator(in_utc(value) if isinstance(value, datetime) else str(value)).chars(CHARACTERS_SHOWN)


def _sentence(soon: Soon, now: datetime, zone: str) -> str:
    seconds = round((soon.due_at - now).total_seconds())
    when = f"due in {seconds} second{'' if seconds == 1 else 's'}" if seconds > 0 else "due now"
    return f"The one {when}, at {in_zone(soon.due_at, zone)}, {soon.fate}."

