"""Tenants: their share, their cap and their limits."""
from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString

from chrono_beat.core.errors import QueueUnavailable
from chrono_beat_django import tenant_limits, tenants, wiring
from chrono_beat_django.admin.forms import TenantForm
from chrono_beat_django.admin.instants import in_utc
from chrono_beat_django.admin.pages import Page, isolated
from chrono_beat_django.models import Job, Tenant
from chrono_beat_django.store import definitions as store


@admin.register(Tenant)
class TenantPage(Page):
    """Tenants by slug. Who changed one is in Django's own history: the audit of changes is about jobs."""

    form = TenantForm
    actions = ("pause_tenants", "resume_tenants", "resume_tenants_and_catch_up")
    list_display = ("slug", "name", "weight", "max_running", "state", "jobs", "pool")
    list_filter = ("paused",)
    search_fields = ("slug", "name")
    fieldsets = (
        (None, {"fields": ("slug", "name", "paused")}),
        ("Share", {"fields": ("weight", "max_running", "pool", "spread_seconds")}),
        ("Limits", {"fields": ("max_jobs", "create_rate", "create_burst", "retention_days")}),
        ("Failures", {"fields": ("failure_threshold", "retries_paused_until", "lateness_objective_seconds",
                                 "alert_email", "alert_url")}),
    )

    def get_fieldsets(self, request: HttpRequest, obj: Tenant | None = None) -> Any:
        """Return the form's sections; who may only look sees instants with their zone, and no URL that may hold a secret."""
        if obj is None:
            return self.fieldsets
        shown = [("Usage", {"fields": ("uses", "see_also")}), *self.fieldsets,
                 ("Stored", {"classes": ("collapse",), "fields": ("created", "changed")})]
        if self.has_change_permission(request, obj):
            return shown
        seen = {"retries_paused_until": "retries_held", "alert_url": "alert_host"}
        return [(title, options | {"fields": tuple(seen.get(name, name) for name in options["fields"])})
                for title, options in shown]

    def get_readonly_fields(self, request: HttpRequest, obj: Tenant | None = None) -> tuple[str, ...]:
        """Fix the slug once it is given: jobs and their history name their tenant by it."""
        return () if obj is None else ("slug", "uses", "see_also", "created", "changed")

    def save_model(self, request: HttpRequest, obj: Tenant, form: TenantForm, change: bool) -> None:
        """Write what was changed and nothing else, so that two who edit different things do not undo each other."""
        if not change:
            obj.save(force_insert=True)
        elif form.changed_data:
            others = [name for name in form.changed_data if name != "paused"]
            if others:
                obj.save(update_fields=[*others, "updated_at"])
            if "paused" in form.changed_data:
                (tenants.pause if obj.paused else tenants.resume)(obj)

    @admin.action(description="Pause selected tenants", permissions=["change"])
    def pause_tenants(self, request: HttpRequest, queryset: QuerySet[Tenant]) -> None:
        """Stop drawing their work until they are resumed."""
        if self.too_many(request, queryset):
            return
        for tenant in queryset:
            running = tenants.pause(tenant)
            rest = f"; {len(running)} executions that run go on" if running else ""
            self.message_user(request, f"{isolated(tenant.slug)}: paused{rest}")

    @admin.action(description="Resume selected tenants from now on", permissions=["change"])
    def resume_tenants(self, request: HttpRequest, queryset: QuerySet[Tenant]) -> None:
        """Let their jobs fire again from now on; what fell into the pause is not made up for."""
        self._resume(request, queryset, None, "from now on")

    @admin.action(description="Resume selected tenants, and run the latest that each job missed", permissions=["change"])
    def resume_tenants_and_catch_up(self, request: HttpRequest, queryset: QuerySet[Tenant]) -> None:
        """Let their jobs fire again, and run the newest occurrence of each that fell into the pause."""
        self._resume(request, queryset, "latest", "and the latest that each job missed is run")

    def _resume(self, request: HttpRequest, queryset: QuerySet[Tenant], missed: str | None, how: str) -> None:
        if self.too_many(request, queryset):
            return
        for tenant in queryset:
            tenants.resume(tenant, missed=missed, actor=request.user.get_username())
            self.message_user(request, f"{isolated(tenant.slug)}: resumed {how}")

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Say which jobs are in the way."""
        deleted, counts, missing, protected = super().get_deleted_objects(objs, request)
        return deleted, counts, missing, [*protected, *filter(None, map(_in_the_way, objs))]

    def delete_model(self, request: HttpRequest, obj: Tenant) -> None:
        """Delete a tenant that has no jobs. Jobs are created under the same lock, so none slips in between."""
        with transaction.atomic(using=store.alias()):
            tenant = store.lock_tenant(obj.slug)
            if refused := _in_the_way(tenant):
                raise PermissionDenied(refused)
            try:
                tenant_limits.remove(tenant)
            except QueueUnavailable as error:
                raise PermissionDenied(f"Redis could not be told ({error}); delete {tenant.slug} again") from error

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Tenant]) -> None:
        """Delete several tenants that have no jobs."""
        for tenant in queryset:
            self.delete_model(request, tenant)

    def complete(self, rows: list[Tenant]) -> None:
        """Count the jobs of the page's tenants."""
        counted = (Job.objects.unfinished().filter(tenant__in=[tenant.slug for tenant in rows])
                   .order_by().values_list("tenant").annotate(Count("pk")))
        counts = dict(counted)
        for tenant in rows:
            tenant.counted_jobs = counts.get(tenant.slug, 0)

    @admin.display(description="state")
    def state(self, tenant: Tenant) -> str:
        """Return whether its jobs are fired."""
        return "paused" if tenant.paused else "active"

    @admin.display(description="jobs")
    def jobs(self, tenant: Tenant) -> SafeString:
        """Return how many jobs are not over, leading to them."""
        url = f"{reverse('admin:chrono_beat_job_changelist')}?{urlencode({'tenant': tenant.slug})}"
        return format_html('<a href="{}">{}</a>', url, f"{tenant.counted_jobs:,}")

    @admin.display(description="uses")
    def uses(self, tenant: Tenant) -> SafeString:
        """Return what it uses of what it may."""
        used = tenants.usage(tenant)
        now = ("Redis does not answer, so it is not known what runs" if used.running is None else
               f"{used.running:,} running of {used.max_running:,} that may, {used.waiting:,} queued")
        late = ("" if used.lateness_p50_seconds is None else
                f"started {used.lateness_p50_seconds:,.3f} s late in the median, {used.lateness_p99_seconds:,.3f} s at the 99th "
                f"percentile, {used.lateness_max_seconds:,.3f} s at most")
        lines = filter(None, (
            f"{used.jobs:,} of {used.max_jobs:,} jobs", now,
            f"{used.create_tokens:,.0f} jobs may be created now, of {used.create_burst:,} after a pause",
            f"since {in_utc(used.since)}: {used.started:,} started, {used.duplicates:,} duplicate deliveries, "
            f"held back by its cap for {used.capped_seconds:,.1f} s", late,
        ))
        return format_html("<ul>{}</ul>", format_html_join("", "<li>{}</li>", ((line,) for line in lines)))

    @admin.display(description="see also")
    def see_also(self, tenant: Tenant) -> SafeString:
        """Lead to its jobs, its dead letters and how it fares."""
        of = urlencode({"tenant": tenant.slug})
        places = [(f"{reverse('admin:chrono_beat_job_changelist')}?{of}", "jobs"),
                  (f"{reverse('admin:chrono_beat_execution_changelist')}?letters=open&{of}", "dead letters")]
        try:
            places.append((reverse("chrono_dashboard:tenant", args=[tenant.slug]), "how it fares now"))
        except NoReverseMatch:
            pass                                            # the project has no dashboard
        return format_html_join(", ", '<a href="{}">{}</a>', places)

    @admin.display(description="retries held until")
    def retries_held(self, tenant: Tenant) -> str:
        """Return until when retries are held."""
        return in_utc(tenant.retries_paused_until)

    @admin.display(description="alert URL")
    def alert_host(self, tenant: Tenant) -> str:
        """Return where alerts are sent to; the rest of such a URL is often a secret."""
        return urlsplit(tenant.alert_url).hostname or ""

    @admin.display(description="created")
    def created(self, tenant: Tenant) -> str:
        """Return when."""
        return in_utc(tenant.created_at)

    @admin.display(description="changed")
    def changed(self, tenant: Tenant) -> str:
        """Return when it was last written."""
        return in_utc(tenant.updated_at)


def _in_the_way(tenant: Tenant) -> str:
    """Say why a tenant cannot be deleted; "" where it can."""
    if tenant.slug == wiring.config().default_tenant:
        return f"{tenant.slug} is the tenant of jobs that name none (setting DEFAULT_TENANT)"
    jobs = Job.objects.using(store.alias()).filter(tenant=tenant.slug).order_by("name")
    names = list(jobs.values_list("name", flat=True)[:4])
    if not names:
        return ""
    return f"the jobs of {tenant.slug}, such as {', '.join(names[:3])}: delete them first, their history stays"
