"""Jobs: the list with what each does next and did last, the form, and pausing, resuming and running from the list."""
from __future__ import annotations

import json
from typing import Any

from django.contrib import admin, messages
from django.db import DatabaseError
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator

from chrono_beat.core import callback, lifecycle
from chrono_beat.core.errors import ChronoError, InvalidInput, NotFound
from chrono_beat.core.schedule import ScheduleError
from chrono_beat_django import jobs
from chrono_beat_django.admin.forms import JobForm, once_at
from chrono_beat_django.admin.histories import WithHistory
from chrono_beat_django.admin.instants import EMPTY, for_form, form_zone, in_utc, in_zone
from chrono_beat_django.admin.job_actions import JobActions, actor
from chrono_beat_django.admin.pages import DefaultFilter, TenantFilter, isolated, jobs_named
from chrono_beat_django.admin.previews import Previewing
from chrono_beat_django.models import Execution, Job

RUNS_SHOWN = 10
REASON_LISTED_CHARACTERS = 60


class StateFilter(DefaultFilter):
    """What a job is up to. Jobs that are over are left out unless asked for: the index of names leaves them out too."""

    title = "state"
    parameter_name = "state"
    words = (("unfinished", "Not finished"), ("active", "Active"), ("paused", "Paused"),
             ("quarantined", "Quarantined"), ("finished", "Finished"), ("any", "Any"))

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        """Narrow the list."""
        state = self.chosen()
        if state == "any":
            return queryset
        if state == "finished":
            return queryset.filter(finished_at__isnull=False)
        unfinished = queryset.filter(finished_at__isnull=True)
        if state == "quarantined":
            return unfinished.exclude(quarantined_reason="")
        if state == "paused":
            return unfinished.filter(paused=True, quarantined_reason="")
        return unfinished.filter(paused=False, quarantined_reason="") if state == "active" else unfinished


@admin.register(Job)
class JobPage(JobActions, Previewing, WithHistory):
    """Jobs by tenant and name."""

    form = JobForm
    list_display = ("tenant", "name", "state_in_short", "next_run", "last_execution", "schedule")
    list_display_links = ("name",)
    list_filter = (StateFilter, TenantFilter, "schedule_kind", "source")
    search_fields = ("name",)
    search_help_text = "Part of a name, tenant/part of a name, or a job's id."
    long_columns = ("args", "kwargs", "headers", "note")
    fieldsets = (
        (None, {"fields": ("tenant", "name", "target_kind", "task", "url", "timeout_seconds", "queue", "args", "kwargs",
                         "paused", "note")}),
        ("Schedule", {"fields": ("schedule_kind", "expression", "timezone", "start_at", "end_at", "anchor_at",
                                 "spread_seconds")}),
        ("Policies", {"fields": ("concurrency", "exclusion_group", "misfire", "misfire_cap", "grace_seconds",
                                 "expires_after_seconds", "soft_limit_seconds", "max_duration_seconds")}),
        ("Retries", {"fields": ("idempotent", "max_attempts", "retry_base_seconds", "retry_factor",
                                "retry_maximum_seconds", "retry_jitter", "key_scope")}),
        ("Delivery", {"fields": ("pool", "priority", "headers")}),
    )
    stored = (
        (None, {"fields": ("state", "next_run", "next_runs", "links")}),
        ("Stored", {"classes": ("collapse",),
                    "fields": ("id", "version", "source", "created", "changed", "partition")}),
    )
    readonly_fields = ("state", "next_run", "next_runs", "links", "id", "version", "source", "created", "changed",
                       "partition")
    # What the validator refuses for now: there to be emptied where it came into the table all the same.
    unavailable = ("max_occurrences",)
    # What somebody who may only look sees in place of the form's instants, which have no zone outside the form.
    seen = {"start_at": "start", "end_at": "end", "anchor_at": "anchor", "expression": "schedule",
            "headers": "shown_headers"}

    anywhere = {"state": "any"}

    def deeds(self, row: Job) -> dict[str, str]:
        """Return what can be done to a job that is not over."""
        if row.finished_at is not None:
            return {}
        first = {"resume_jobs": "Resume…"} if row.paused else {"pause_jobs": "Pause…"}
        return first | {"trigger_jobs": "Run now…", "backfill_jobs": "Backfill…"}

    def get_fieldsets(self, request: HttpRequest, obj: Job | None = None) -> Any:
        """Return the form's sections, around them what is known of a stored job."""
        if obj is None:
            return self.fieldsets
        stored = self.stored[0]
        if self.has_change_permission(request, obj):          # the preview below shows the runs
            stored = (None, {"fields": tuple(name for name in stored[1]["fields"] if name != "next_runs")})
        unavailable = tuple(column for column in self.unavailable if getattr(obj, column))
        shown = [(title, options | {"fields": options["fields"] + (unavailable if title == "Policies" else ())})
                 for title, options in self.fieldsets]
        if not self.has_change_permission(request, obj):
            shown = [(title, options | {"fields": tuple(self.seen.get(name, name) for name in options["fields"])})
                     for title, options in shown]
        return (stored, *shown, self.stored[1])

    def get_readonly_fields(self, request: HttpRequest, obj: Job | None = None) -> tuple[str, ...]:
        """Fix what is stored and, once there is a job, its tenant."""
        return self.readonly_fields if obj is None else (*self.readonly_fields, "tenant")

    def get_form(self, request: HttpRequest, obj: Job | None = None, change: bool = False, **kwargs: Any) -> Any:
        """Return the form, which has to know who fills it in."""
        form = super().get_form(request, obj, change, **kwargs)
        form.actor = actor(request)
        return form

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Show or save the form."""
        response = super().changeform_view(request, object_id, form_url, extra_context)
        if object_id is not None and request.method == "POST" and response.status_code == 302:
            self._tell_where_redis_is_away(request)            # a new job has no old version that may still start
        return response

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Put the schedule into the page's title."""
        if context.get("original") is not None:
            context["subtitle"] = f"{isolated(context['original'])} · {self.schedule(context['original'])}"
        return super().render_change_form(request, context, *args, **kwargs)

    def save_model(self, request: HttpRequest, obj: Job, form: JobForm, change: bool) -> None:
        """Say what will happen next; the form has saved the job."""
        self.message_user(request, f"{isolated(obj)}: {self.schedule(obj)}, next run {self.next_run(obj)}.", messages.INFO)
        for problem in jobs.warnings_for(obj):
            self.message_user(request, f"{problem.field}: {problem.message}.", messages.WARNING)

    def delete_model(self, request: HttpRequest, obj: Job) -> None:
        """Delete one job."""
        jobs.delete(obj, actor=actor(request))

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Ask, then delete."""
        response = super().delete_view(request, object_id, extra_context)
        if request.method == "POST" and response.status_code == 302:
            self._tell_where_redis_is_away(request)
        return response

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        """Delete several jobs, each by itself; one that somebody else has deleted is as gone."""
        for job in queryset:
            try:
                jobs.delete(job, actor=actor(request))
            except NotFound:
                pass
            except (ChronoError, DatabaseError) as error:
                self.message_user(request, f"{isolated(job)} was not deleted: {error}.", messages.ERROR)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Job], search_term: str,
    ) -> tuple[QuerySet[Job], bool]:
        """Find jobs by name or id."""
        term = search_term.strip()
        return (jobs_named(queryset, term) if term else queryset), False

    def complete(self, rows: list[Job]) -> None:
        """Look up every job's last execution that has left the due index."""
        last = Execution.objects.of_job(OuterRef("pk")).exclude(state=lifecycle.SCHEDULED)
        found = dict(Job.objects.order_by().filter(pk__in=[job.pk for job in rows])
                     .values_list("pk", Subquery(last.values("id")[:1])))
        executions = {execution.id: execution for execution in Execution.objects.only(
            "id", "state", "reason", "scheduled_at").filter(id__in=[name for name in found.values() if name])}
        for job in rows:
            job.seen_last = executions.get(found.get(job.pk))

    # -- columns ------------------------------------------------------------------------------------------------------

    @admin.display(description="schedule")
    def schedule(self, job: Job) -> str:
        """Return the schedule as it is stored, with the zone that it is read in; a one-off's instant in the form's."""
        if job.schedule_kind == "interval":
            return f"every {job.expression} s"
        if job.schedule_kind == "once" and (at := once_at(job)) is not None:
            return f"once at {for_form(at)} {form_zone()}"
        if job.schedule_kind == "celery":
            return f"{_celery_words(job.expression)} {job.timezone}"
        return f"{job.expression} {job.timezone}"

    @admin.display(description="next run")
    def next_run(self, job: Job) -> str:
        """Return the next run in the job's zone."""
        return in_zone(job.next_run_at, job.timezone)

    @admin.display(description="state")
    def state(self, job: Job) -> str:
        """Return what the job is up to, with the reason where something is wrong."""
        if job.finished_at is not None:
            return "finished"
        if job.quarantined_reason:
            return f"quarantined: {job.quarantined_reason}"
        if job.paused:
            return "paused"
        return f"active, but {job.flagged_reason}" if job.flagged_reason else "active"

    @admin.display(description="state")
    def state_in_short(self, job: Job) -> str:
        """Return the state as a list has room for it."""
        return Truncator(self.state(job)).chars(REASON_LISTED_CHARACTERS)

    @admin.display(description="last execution")
    def last_execution(self, job: Job) -> str:
        """Return how the last execution ended or where it is, leading to it."""
        last = job.seen_last
        if last is None:
            return EMPTY
        url = reverse("admin:chrono_beat_execution_change", args=[admin.utils.quote(last.id)])
        return format_html('<a href="{}" title="{}">{}</a>', url, in_utc(last.scheduled_at),
                           f"{last.state}: {last.reason}" if last.reason else last.state)

    @admin.display(description=f"next {RUNS_SHOWN} runs")
    def next_runs(self, job: Job) -> str | SafeString:
        """Return the coming runs in the job's zone and what is to be known about them, as if it were not paused."""
        try:
            coming = jobs.preview(job, RUNS_SHOWN, operator=True)
        except (InvalidInput, ScheduleError) as error:
            return f"none can be worked out: {error}"
        runs = format_html_join("", "<li>{}</li>", ((in_zone(run, coming.timezone),) for run in coming.runs))
        notes = format_html_join("", "<li>{}</li>", ((note,) for note in coming.notes))
        shown = format_html("<ol>{}</ol>", runs) if coming.runs else "none"
        return format_html("{}<ul>{}</ul>", shown, notes) if coming.notes else shown

    @admin.display(description="see also")
    def links(self, job: Job) -> SafeString:
        """Lead to what the job did and to what was done to it."""
        executions, events = reverse("admin:chrono_beat_execution_changelist"), reverse(
            "admin:chrono_beat_jobevent_changelist")
        return format_html('<a href="{}?job_id={}">executions</a>, <a href="{}?job_id={}">changes</a>',
                           executions, job.pk, events, job.pk)

    @admin.display(description="start")
    def start(self, job: Job) -> str:
        """Return the start in the job's zone."""
        return in_zone(job.start_at, job.timezone)

    @admin.display(description="end")
    def end(self, job: Job) -> str:
        """Return the end in the job's zone."""
        return in_zone(job.end_at, job.timezone)

    @admin.display(description="anchor")
    def anchor(self, job: Job) -> str:
        """Return the anchor in the job's zone."""
        return in_zone(job.anchor_at, job.timezone)

    @admin.display(description="headers")
    def shown_headers(self, job: Job) -> str:
        """Return the headers without their secrets."""
        return callback.masked(job.headers)

    @admin.display(description="created")
    def created(self, job: Job) -> str:
        """Return when and by whom."""
        return f"{in_utc(job.created_at)}{f' by {job.created_by}' if job.created_by else ''}"

    @admin.display(description="changed")
    def changed(self, job: Job) -> str:
        """Return when it was last written."""
        return in_utc(job.updated_at)


def _celery_words(expression: str) -> str:
    """Return Celery's five fields in one line, named since their order is not cron's."""
    try:
        minute, hour, day_of_week, day_of_month, month = json.loads(expression)
    except ValueError:
        return expression
    return f"minute {minute}, hour {hour}, day of week {day_of_week}, day of month {day_of_month}, month {month}"
