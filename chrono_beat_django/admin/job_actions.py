"""What can be done to the jobs that are selected in their list."""
from __future__ import annotations

from collections.abc import Callable

from django.contrib import admin, messages
from django.contrib.admin.actions import delete_selected
from django.db import DatabaseError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from chrono_beat.core.errors import ChronoError, QueueUnavailable
from chrono_beat_django import wiring
from chrono_beat_django.admin.backfills import BackfillForm
from chrono_beat_django.admin.confirming import (
    MOST_LISTED,
    Confirmation,
    PauseForm,
    ResumeForm,
    TriggerForm,
    chosen_of,
    listed,
)
from chrono_beat_django.admin.instants import form_zone
from chrono_beat_django.admin.pages import Page, isolated
from chrono_beat_django.models import Job

MOST_MESSAGES = 20
MOST_BACKFILLED = 100
"""Jobs of one backfill: its page reads what exists of each."""


class JobActions(Page):
    """Pausing, resuming, running and deleting: each job by itself, so that one that is refused stops no other."""

    actions = ("pause_jobs", "resume_jobs", "trigger_jobs", "backfill_jobs", "delete_selected")

    def has_pause_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may pause."""
        return self.may(request, "pause")

    def has_resume_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may resume."""
        return self.may(request, "resume")

    def has_trigger_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may run jobs now."""
        return self.may(request, "trigger")

    def has_backfill_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may run what was missed."""
        return self.may(request, "backfill")

    @admin.action(description="Pause selected jobs…", permissions=["pause"])
    def pause_jobs(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Ask, then stop firing them until they are resumed."""
        return self._confirmed(request, queryset, PauseForm)

    @admin.action(description="Resume selected jobs…", permissions=["resume"])
    def resume_jobs(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Ask what of the missed ones, then fire them again."""
        return self._confirmed(request, queryset, ResumeForm)

    @admin.action(description="Run selected jobs now…", permissions=["trigger"])
    def trigger_jobs(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Ask, then run them once beside their schedules."""
        return self._confirmed(request, queryset, TriggerForm)

    def _confirmed(self, request: HttpRequest, queryset: QuerySet[Job], kind: type[Confirmation]) -> HttpResponse | None:
        """Show what a deed would do to which jobs, and do it when that is confirmed."""
        if "confirmed" in request.POST:
            queryset = chosen_of(queryset, request.POST.get("chosen", ""))
        if self.too_many(request, queryset):
            return None
        form = kind(request.POST if "confirmed" in request.POST else None)
        if form.is_bound and form.is_valid():
            self._each(request, queryset, lambda job: form.carry_out(job, actor(request)))
            return None
        chosen = list(queryset)
        return TemplateResponse(request, "admin/chrono_beat/job/confirm.html", {
            **self.admin_site.each_context(request), "title": f"{form.deed} jobs", "opts": self.opts, "form": form,
            "rows": listed(chosen), "count": len(chosen), "more": max(0, len(chosen) - MOST_LISTED),
            "chosen": ",".join(str(job.pk) for job in chosen), "first": chosen[0].pk if chosen else "", "media": self.media,
        })

    @admin.action(description="Backfill selected jobs…", permissions=["backfill"])
    def backfill_jobs(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Ask for a span, say how many executions it would create for each job, and create them when that is confirmed."""
        chosen = list(queryset.defer(None)[:MOST_BACKFILLED + 1])
        if len(chosen) > MOST_BACKFILLED:
            self.message_user(request, f"Nothing was done: a backfill takes {MOST_BACKFILLED} jobs at a time at most.",
                              messages.ERROR)
            return None
        form = BackfillForm(request.POST if "start" in request.POST else None)
        if form.is_bound and form.is_valid():
            form.count(chosen)
        if "create" in request.POST and form.confirmed():
            self._each(request, queryset, lambda job: form.create(job, actor(request)))
            return None
        return TemplateResponse(request, "admin/chrono_beat/job/backfill.html", {
            **self.admin_site.each_context(request), "title": "Backfill jobs", "opts": self.opts, "form": form, "jobs": chosen,
            "media": self.media, "zone": form_zone(),
        })

    @admin.action(description="Delete selected jobs", permissions=["delete"])
    def delete_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Ask, then delete; their history stays."""
        if self.too_many(request, queryset):
            return None
        response: HttpResponse | None = delete_selected(self, request, queryset)
        if response is None:
            self._tell_where_redis_is_away(request)
        return response

    def _each(self, request: HttpRequest, queryset: QuerySet[Job], deed: Callable[[Job], str]) -> None:
        """Do something to every job, telling of each what became of it."""
        if self.too_many(request, queryset):
            return
        done, refused = [], []
        for job in queryset:
            try:
                done.append(f"{isolated(job)}: {deed(job)}.")
            except (ChronoError, DatabaseError) as error:
                refused.append(f"{isolated(job)}: {error}.")
        self._tell(request, messages.SUCCESS, done)
        self._tell(request, messages.ERROR, refused)
        self._tell_where_redis_is_away(request)

    def _tell(self, request: HttpRequest, level: int, sentences: list[str]) -> None:
        for sentence in sentences[:MOST_MESSAGES]:
            self.message_user(request, sentence, level)
        if len(sentences) > MOST_MESSAGES:
            self.message_user(request, f"The same for {len(sentences) - MOST_MESSAGES:,} more jobs.", level)

    def _tell_where_redis_is_away(self, request: HttpRequest) -> None:
        """Say that an edit may not have arrived everywhere yet.

        The edit has committed and told Redis, or tried to: what came of it is a Python warning, which no page can catch
        in a process of many threads. So the page asks whether Redis is there now.
        """
        try:
            wiring.queue().wake_dispatchers()
        except QueueUnavailable as error:
            self.message_user(
                request, f"It is saved, but Redis cannot be reached ({error}): until it can, occurrences of the old "
                         "version may still start. Save again then to be sure.", messages.WARNING)


def actor(request: HttpRequest) -> str:
    """Return who is logged in, for the audit."""
    return str(request.user.get_username())
