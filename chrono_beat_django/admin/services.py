"""What the services keep for themselves, and the audit of changes: to read only."""
from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from chrono_beat_django.admin.pages import ReadOnlyPage, TenantFilter, instant_column, rows_of_jobs_named
from chrono_beat_django.models import Dispatcher, JobEvent, Lane, Partition


@admin.register(Partition)
class PartitionPage(ReadOnlyPage):
    """Who owns which slice of the due index, and until when unless it renews."""

    list_display = fields = ("number", "owner", "expires", "epoch", "loaded_epoch", "offered")
    expires = instant_column("expires_at", "lease ends")


@admin.register(Lane)
class LanePage(ReadOnlyPage):
    """Which server's memory a lane's generation began with."""

    list_display = fields = ("number", "generation", "began", "replication_id")
    began = instant_column("began_at", "generation began")


@admin.register(Dispatcher)
class DispatcherPage(ReadOnlyPage):
    """The members that share the partitions."""

    list_display = fields = ("member", "expires", "leaving")
    expires = instant_column("expires_at", "heartbeat counts until")


@admin.register(JobEvent)
class JobEventPage(ReadOnlyPage):
    """Who did what to which job."""

    list_display = ("when", "action", "job", "version", "actor")
    fields = ("when", "action", "tenant", "job_name", "job_id", "version", "actor", "detail")
    list_filter = (TenantFilter,)
    search_fields = ("job_name",)
    search_help_text = "Beginning of a job's name, tenant/name, or a job's id."
    ordering = ("-id",)
    long_columns = ("detail",)
    when = instant_column("at", "when")

    @admin.display(description="job")
    def job(self, event: JobEvent) -> str:
        """Return the job's name as people say it."""
        return f"{event.tenant}/{event.job_name}"

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str,
    ) -> tuple[QuerySet[Any], bool]:
        """Find events by job."""
        term = search_term.strip()
        return (rows_of_jobs_named(queryset, term) if term else queryset), False
