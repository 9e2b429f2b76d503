"""Executions: what ran, what waits, what went wrong."""
from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin, messages
from django.core.paginator import Page as DjangoPage
from django.db import DatabaseError
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.timezone import now

from chrono_beat.core import ids, lifecycle
from chrono_beat.core.errors import ChronoError
from chrono_beat_django import control, dead_letters, executions
from chrono_beat_django.admin.instants import EMPTY, in_utc
from chrono_beat_django.admin.pages import (
    MOST_COUNTED,
    BoundedPaginator,
    DefaultFilter,
    ReadOnlyPage,
    TenantFilter,
    in_one_line,
    instant_column,
    isolated,
    rows_of_jobs_named,
)
from chrono_beat_django.models import Execution

RECENT = timedelta(days=1)
MOST_LOOKED_AT = 1_000_000
"""Executions that a filter without an index looks through; a second or so."""
MOST_MESSAGES = 20
MOST_CANCELLED = 50
"""Executions that one action cancels: each may wait for what was drawn and has not begun."""


class LaterFilter(DefaultFilter):
    """Executions whose time is still to come: claimed ahead, or tried again later.

    Left out unless asked for, since the list would begin with them and not with what ran. A search, one job's list and one
    state's have them.
    """

    title = "due later"
    parameter_name = "later"
    words = (("no", "Left out"), ("yes", "Listed too"), ("only", "Alone"))

    def __init__(self, request: HttpRequest, params: dict[str, Any], *args: Any) -> None:
        super().__init__(request, params, *args)
        self._wanted = _of_jobs(request) or bool(request.GET.get("state__exact"))

    def chosen(self) -> str:
        """Return the word that holds."""
        return "yes" if not self.value() and self._wanted else super().chosen()

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Narrow the list."""
        later = Q(state=lifecycle.SCHEDULED, due_at__gt=now())
        if self.chosen() == "only":
            return queryset.filter(later)
        return queryset if self.chosen() == "yes" else queryset.exclude(later)


class PeriodFilter(DefaultFilter):
    """How far back the list goes.

    A day unless asked for more: PostgreSQL keeps a table for each day, so the others are not even opened. One job's
    executions come from an index, so they are never cut; nor is a list that would be empty. Lateness and kind have no index:
    the newest MOST_LOOKED_AT executions are looked through.
    """

    title = "scheduled"
    parameter_name = "period"
    words = (("day", "In the past 24 hours or later"), ("week", "In the past 7 days or later"), ("any", "Any time"))

    def __init__(self, request: HttpRequest, params: dict[str, Any], *args: Any) -> None:
        super().__init__(request, params, *args)
        self._of_jobs = _of_jobs(request)
        self._by_reading = bool(request.GET.get("late") or request.GET.get("kind__exact")) and not self._of_jobs
        self._idle = False

    def chosen(self) -> str:
        """Return the word that holds."""
        return "any" if not self.value() and (self._of_jobs or self._idle) else super().chosen()

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Narrow the list."""
        self._idle = not (self.value() or self._of_jobs or _any_since(queryset, now() - RECENT))
        days = {"day": 1, "week": 7}.get(self.chosen())
        if self._by_reading:
            if (oldest := _ended(queryset)[MOST_LOOKED_AT:MOST_LOOKED_AT + 1].first()) is not None:
                queryset = queryset.filter(scheduled_at__gte=oldest)
                if days is None or oldest > now() - timedelta(days=days):
                    messages.info(request, f"Of so many the newest {MOST_LOOKED_AT:,} executions were looked through.")
        return queryset.filter(scheduled_at__gte=now() - timedelta(days=days)) if days else queryset


class LateFilter(admin.SimpleListFilter):
    """Executions that started late. It looks through the period that is chosen."""

    title = "late by more than"
    parameter_name = "late"

    def lookups(self, request: HttpRequest, model_admin: Any) -> tuple[tuple[str, str], ...]:
        """Offer some lengths; any number of seconds may stand in the address."""
        return (("1", "1 second"), ("5", "5 seconds"), ("30", "30 seconds"), ("60", "1 minute"), ("600", "10 minutes"),
                ("3600", "1 hour"))

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Narrow the list."""
        if not self.value():
            return queryset
        try:
            seconds = float(str(self.value()))
        except ValueError:
            return queryset.none()
        return queryset.started_late(seconds) if 0 <= seconds <= executions.LATE.high else queryset.none()


class LetterFilter(admin.SimpleListFilter):
    """Executions that failed for good."""

    title = "dead letters"
    parameter_name = "letters"

    def lookups(self, request: HttpRequest, model_admin: Any) -> tuple[tuple[str, str], ...]:
        """Offer those that wait for somebody, and those that have been seen to."""
        return (("open", "Not handled"), ("handled", "Replayed or discarded"))

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Narrow the list."""
        letters = queryset.filter(state=lifecycle.DEAD)
        if self.value() == "open":
            return letters.filter(handled_at__isnull=True)
        return letters.filter(handled_at__isnull=False) if self.value() == "handled" else queryset


class NewestFirst(BoundedPaginator):
    """Pages in the order that what has ended has an index for; counted likewise, what has ended apart from what is open."""

    @cached_property
    def _seen(self) -> int:
        parts = (self.object_list.filter(state__in=states).order_by() for states in (lifecycle.OPEN, lifecycle.TERMINAL))
        return sum(part[:MOST_COUNTED + 1].count() for part in parts)

    def page(self, number: int | str) -> DjangoPage:
        """Return a page."""
        number = self.validate_number(number)
        end = min(number * self.per_page, self.count)
        return self._get_page(executions.newest(self.object_list, (number - 1) * self.per_page, end), number, self)


@admin.register(Execution)
class ExecutionPage(ReadOnlyPage):
    """One attempt at an occurrence each, the latest whose time has come first."""

    list_display = ("job", "kind", "outcome", "scheduled", "lateness", "took", "attempt", "deliveries", "worker")
    actions = ("cancel_executions", "replay_letters", "discard_letters")
    list_filter = (LaterFilter, PeriodFilter, LateFilter, LetterFilter, "state", "kind", TenantFilter)
    search_fields = ("job_name",)
    search_help_text = "Beginning of a job's name, tenant/name, a job's id, or an execution's id."
    ordering = executions.NEWEST_FIRST
    paginator = NewestFirst
    long_columns = ("args", "kwargs", "error", "result")
    fieldsets = (
        (None, {"fields": ("id", "job_link", "kind", "outcome", "handled", "error_text", "worker")}),
        ("When", {"fields": ("scheduled", "due", "published", "started", "finished", "lateness", "publish_lateness", "took",
                             "cancel_requested")}),
        ("Counts", {"fields": ("attempt", "retries", "deliveries", "missed")}),
        ("Content", {"fields": ("arguments", "keyword_arguments", "job_version", "result")}),
        ("Place", {"classes": ("collapse",), "fields": ("partition", "holder_epoch")}),
    )
    anywhere = {"period": "any", "later": "yes"}
    scheduled = instant_column("scheduled_at", "scheduled")
    due = instant_column("due_at", "due")
    published = instant_column("published_at", "published")
    started = instant_column("started_at", "started")
    finished = instant_column("finished_at", "finished")
    cancel_requested = instant_column("cancel_requested_at", "cancel requested")

    def deeds(self, row: Execution) -> dict[str, str]:
        """Return what can be done to an execution that is open, or to a dead letter that nobody has handled."""
        if row.state in lifecycle.OPEN:
            return {"cancel_executions": "Cancel"}
        if row.state == lifecycle.DEAD and row.handled_at is None:
            return {"replay_letters": "Replay", "discard_letters": "Discard"}
        return {}

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Put the job and the instant into the page's title; the id stands below."""
        row = context["original"]
        context["subtitle"] = f"{isolated(self.job(row))} · {in_utc(row.scheduled_at)}"
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description="job")
    def job(self, execution: Execution) -> str:
        """Return the job's name at that time."""
        return f"{execution.tenant}/{execution.job_name or execution.job_id}"

    @admin.display(description="job")
    def job_link(self, execution: Execution) -> str:
        """Lead to the job, what it did, and this occurrence's attempts; Django says so there if it is gone.

        A Celery message has no job.
        """
        if execution.task:
            return self.job(execution)
        of = [execution.job_id]
        return format_html(
            '<a href="{}">{}</a>; its <a href="{}">history</a>; <a href="{}?q={}">all attempts</a> at this occurrence',
            reverse("admin:chrono_beat_job_change", args=of), isolated(self.job(execution)),
            reverse("admin:chrono_beat_job_history", args=of), reverse("admin:chrono_beat_execution_changelist"),
            execution.id.rpartition(":")[0])

    @admin.display(description="state")
    def outcome(self, execution: Execution) -> str:
        """Return the state and, where there is one, its reason."""
        return f"{execution.state}: {execution.reason}" if execution.reason else execution.state

    @admin.display(description="handled")
    def handled(self, execution: Execution) -> str:
        """Return what became of a dead letter."""
        return f"{execution.handled_as}, {in_utc(execution.handled_at)}" if execution.handled_at else EMPTY

    def get_paginator(self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **kwargs: Any) -> Any:
        """Return the pages of the list, or of Django's own history of one row, which lies in another table."""
        kind = self.paginator if queryset.model is Execution else BoundedPaginator
        return kind(queryset, *args, **kwargs)

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may cancel."""
        return self.may(request, "cancel")

    def has_replay_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may replay."""
        return self.may(request, "replay")

    def has_discard_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may discard."""
        return self.may(request, "discard")

    @admin.action(description="Cancel selected executions", permissions=["cancel"])
    def cancel_executions(self, request: HttpRequest, queryset: QuerySet[Execution]) -> None:
        """Let what has not begun never begin, and tell what runs to stop."""
        chosen = list(queryset.only("id", "job_id", "tenant", "state")[:MOST_CANCELLED + 1])
        if len(chosen) > MOST_CANCELLED:
            self.message_user(request, f"Nothing was done: an action cancels {MOST_CANCELLED} executions at most.",
                              messages.ERROR)
            return
        done = 0
        for execution in chosen:
            try:
                control.cancel(execution, actor=request.user.get_username())
                done += 1
            except (ChronoError, DatabaseError) as error:
                self.message_user(request, f"{isolated(execution.id)}: {error}.", messages.ERROR)
        if done:
            self.message_user(request, f"{done} execution{'s' if done > 1 else ''} cancelled: what has not begun never will, "
                                       "and what runs is told to stop.", messages.SUCCESS)

    @admin.action(description="Replay selected dead letters", permissions=["replay"])
    def replay_letters(self, request: HttpRequest, queryset: QuerySet[Execution]) -> None:
        """Run their occurrences again."""
        self._handle(request, queryset, dead_letters.replay_all, "to be run again")

    @admin.action(description="Discard selected dead letters", permissions=["discard"])
    def discard_letters(self, request: HttpRequest, queryset: QuerySet[Execution]) -> None:
        """Put them aside; they stay in the history."""
        self._handle(request, queryset, dead_letters.discard_all, "discarded")

    def _handle(
        self, request: HttpRequest, queryset: QuerySet[Execution], deed: Callable[..., dead_letters.Handled], done: str,
    ) -> None:
        handled = deed(queryset.values_list("id", flat=True), actor=request.user.get_username())
        if count := len(handled.executions):
            self.message_user(request, f"{count:,} dead letter{'s' if count > 1 else ''}: {done}.", messages.SUCCESS)
        for _, why in handled.refused[:MOST_MESSAGES]:
            self.message_user(request, f"{why}.", messages.ERROR)
        if len(handled.refused) > MOST_MESSAGES:
            more = len(handled.refused) - MOST_MESSAGES
            self.message_user(request, f"{more:,} more were refused likewise.", messages.ERROR)
        if handled.more:
            self.message_user(request, f"An action takes {dead_letters.DEFAULT_LIMIT:,} at most; repeat it for the rest.",
                              messages.WARNING)

    @admin.display(description="lateness")
    def lateness(self, execution: Execution) -> str:
        """Return how long after its due time it started."""
        return _seconds(execution.due_at, execution.started_at)

    @admin.display(description="publish lateness")
    def publish_lateness(self, execution: Execution) -> str:
        """Return how long after its due time workers could read it."""
        return _seconds(execution.due_at, execution.published_at)

    @admin.display(description="took")
    def took(self, execution: Execution) -> str:
        """Return how long the body ran."""
        started = execution.started_at
        return EMPTY if started is None else _seconds(started, execution.finished_at)

    @admin.display(description="missed occurrences")
    def missed(self, execution: Execution) -> str:
        """Return how many occurrences this row stands for."""
        if not execution.missed_count:
            return EMPTY
        return f"{execution.missed_count:,}, the first at {in_utc(execution.first_missed_at)}"

    @admin.display(description="error")
    def error_text(self, execution: Execution) -> str:
        """Return the error with its lines as they are."""
        return format_html("<pre>{}</pre>", execution.error) if execution.error else EMPTY

    @admin.display(description="args")
    def arguments(self, execution: Execution) -> str:
        """Return the stored text."""
        return "as the job has them" if execution.args is None else execution.args

    @admin.display(description="kwargs")
    def keyword_arguments(self, execution: Execution) -> str:
        """Return the stored text."""
        return "as the job has them" if execution.kwargs is None else execution.kwargs

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str,
    ) -> tuple[QuerySet[Any], bool]:
        """Find executions by job, or one by its id; an occurrence's key finds all its attempts."""
        term = search_term.strip()
        for attempt in ("", ":1"):                          # as it is, or an occurrence's key
            try:
                named = ids.parse_execution_id(term + attempt)
                job_id = uuid.UUID(named.job_id)
            except ValueError:
                continue
            # By the columns of the database's key: an id alone does not say in which day's table to look.
            found = queryset.filter(job_id=job_id, scheduled_at=ids.from_us(named.scheduled_us))
            return (found if attempt else found.filter(attempt=named.attempt)), False
        return (rows_of_jobs_named(queryset, term) if term else queryset), False


def _of_jobs(request: HttpRequest) -> bool:
    """Say whether a list is of what was searched for, of one job, or of dead letters: never cut by default."""
    return bool(request.GET.get("q", "").strip() or request.GET.get("job_id") or request.GET.get("letters"))


def _ended(queryset: QuerySet[Any]) -> QuerySet[Any, datetime]:
    """Return the instants of what has ended, the newest first: the order that it has an index for."""
    return queryset.filter(state__in=lifecycle.TERMINAL).order_by("-scheduled_at").values_list("scheduled_at", flat=True)


def _any_since(queryset: QuerySet[Any], since: datetime) -> bool:
    """Say whether anything was scheduled since then; by the indexes of what has ended and of what is open, each."""
    newest = _ended(queryset).first()
    if newest is not None and newest >= since:
        return True
    return queryset.filter(state__in=lifecycle.OPEN, scheduled_at__gte=since).exists()


def _seconds(due: datetime, then: datetime | None) -> str:
    return EMPTY if then is None else in_one_line(f"{(then - due).total_seconds():,.3f} s")
