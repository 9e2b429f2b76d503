"""Alerts: to be seen, closed and muted; and the mutes in effect."""
from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from chrono_beat.core.alerts import KINDS, Receipt
from chrono_beat.core.errors import NotFound
from chrono_beat.core.ids import from_us
from chrono_beat_django import alerts
from chrono_beat_django.admin.instants import in_utc
from chrono_beat_django.admin.pages import DefaultFilter, Page, ReadOnlyPage, TenantFilter, in_one_line, instant_column
from chrono_beat_django.models import Alert, AlertMute

MUTED_FOR = timedelta(days=1)
NUMBER = re.compile("[0-9]{1,18}")


class OpenFilter(DefaultFilter):
    """Those that are not over, unless asked otherwise."""

    title = "state"
    parameter_name = "state"
    words = (("open", "open"), ("all", "all"))

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Narrow the list."""
        return queryset.filter(closed_at__isnull=True) if self.chosen() == "open" else queryset


def _progress(receipt: Receipt) -> str:
    if receipt.attempts:
        return f"{receipt.attempts} attempts failed, tried again at {in_utc(from_us(receipt.again_us))}"
    return f"told with the count {receipt.count}" if receipt.count else "not told yet"


@admin.register(Alert)
class AlertPage(ReadOnlyPage):
    """What somebody should know, the last noticed first."""

    actions = ("close_alerts", "mute_alerts")
    list_display = ("what", "tenant", "says", "count", "last", "subject", "told", "state")
    list_filter = (OpenFilter, TenantFilter)
    search_fields = ("subject__startswith",)
    search_help_text = "Beginning of what it is about: a job, a pool, a lane …; or an alert's number."
    fields = ("kind", "tenant", "subject", "text", "detail", "count", "first", "last", "told", "receivers", "over", "state",
              "muted")
    anywhere = {"state": "all"}
    long_columns = ("detail", "told_to")
    first = instant_column("first_at", "first noticed")
    last = instant_column("last_at", "last noticed")
    told = instant_column("told_at", "last told")
    over = instant_column("closed_at", "over")

    def deeds(self, row: Alert) -> dict[str, str]:
        """Return what can be done to an alert that is open."""
        return {"close_alerts": "Over", "mute_alerts": "Mute for a day"} if row.closed_at is None else {}

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str,
    ) -> tuple[QuerySet[Any], bool]:
        """Find alerts by what they are about, or one by its number."""
        found, several = super().get_search_results(request, queryset, search_term)
        return (found | queryset.filter(pk=int(search_term)) if NUMBER.fullmatch(search_term) else found), several

    def complete(self, rows: list[Alert]) -> None:
        """Look up which are muted."""
        alerts.complete(rows)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Alert | None:
        """Return an alert, and by what it is muted."""
        found: Alert | None = super().get_object(request, object_id, from_field)
        if found is not None:
            self.complete([found])
        return found

    @admin.display(description="kind")
    def what(self, alert: Alert) -> SafeString:
        """Return its kind, which a narrow column would break at each letter."""
        return in_one_line(alert.kind)

    @admin.display(description="text")
    def says(self, alert: Alert) -> str:
        """Return what it says, without what is to be done."""
        return alert.text.partition("\n")[0]

    @admin.display(description="receivers")
    def receivers(self, alert: Alert) -> str:
        """Return how far each of them is."""
        lines = ((name, _progress(receipt)) for name, receipt in alert.receipts.items())
        return format_html_join(mark_safe("<br>"), "{}: {}", lines) or "not told yet"

    @admin.display(description="state")
    def state(self, alert: Alert) -> str:
        """Return whether it is over, and whether anybody is told while it is not."""
        if alert.closed_at is not None:
            return "over"
        return "open, muted" if alert.muted_by else "open"

    @admin.display(description="muted")
    def muted(self, alert: Alert) -> str | SafeString:
        """Return which mute keeps it from being told, and lead to it: removing that ends it."""
        mute = alert.muted_by
        if mute is None:
            return "no"
        until = in_utc(mute.until) if mute.until else "it is removed"
        return format_html('until {} by <a href="{}">the mute of {}</a>', until,
                           reverse("admin:chrono_beat_alertmute_change", args=[mute.pk]), mute)

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may close and mute."""
        return self.may(request, "change")

    @admin.action(description="Say that selected alerts are over", permissions=["operate"])
    def close_alerts(self, request: HttpRequest, queryset: QuerySet[Alert]) -> None:
        """Close them; what is noticed again is a new one."""
        if self.too_many(request, queryset):
            return
        closed = 0
        for alert in queryset.filter(closed_at__isnull=True):
            try:
                alerts.close(alert.id)
            except NotFound:
                continue                                 # over meanwhile
            closed += 1
        self.message_user(request, f"{closed} closed.", messages.SUCCESS)

    @admin.action(description="Mute selected alerts for a day", permissions=["operate"])
    def mute_alerts(self, request: HttpRequest, queryset: QuerySet[Alert]) -> None:
        """Note them from now on without telling anybody."""
        if self.too_many(request, queryset):
            return
        muted = dict.fromkeys((alert.kind, alert.tenant, alert.subject) for alert in queryset)
        for kind, tenant, subject in muted:
            alerts.mute(kind, tenant, subject, lasting=MUTED_FOR, actor=str(request.user.get_username()))
        self.message_user(request, f"{len(muted)} muted until this time tomorrow.", messages.SUCCESS)


class MuteForm(forms.ModelForm):
    """Which alerts are not told, and until when."""

    kind = forms.ChoiceField(
        choices=[("", "all kinds"), *((kind, f"{kind}: {KINDS[kind].title}") for kind in KINDS)], required=False)
    hours = forms.FloatField(
        label="For", min_value=0.1, max_value=87_600, required=False, help_text="Hours; empty: until it is removed.")

    class Meta:
        model = AlertMute
        fields = ("kind", "tenant", "subject", "note")

    def clean(self) -> dict[str, Any]:
        """Refuse to mute everything for ever by a form left empty."""
        given: dict[str, Any] = super().clean() or self.cleaned_data
        if not any(given.get(name) for name in ("kind", "tenant", "subject", "hours")):
            raise ValidationError("This would mute all alerts for ever: say which, or for how many hours.")
        return given


@admin.register(AlertMute)
class MutePage(Page):
    """Mutes: made and removed, never changed."""

    form = MuteForm
    list_display = ("what", "ends", "note", "created_by", "created")
    ordering = ("-id",)
    seen = ("kind", "tenant", "subject", "ends", "note", "created_by", "created")
    ends = instant_column("until", "until")
    created = instant_column("created_at", "since")

    @admin.display(description="what")
    def what(self, mute: AlertMute) -> str:
        """Return what it stands for."""
        return str(mute)

    def get_fields(self, request: HttpRequest, obj: AlertMute | None = None) -> tuple[str, ...]:
        """Return the form's fields, or all that is kept."""
        return ("kind", "tenant", "subject", "hours", "note") if obj is None else self.seen

    def get_readonly_fields(self, request: HttpRequest, obj: AlertMute | None = None) -> tuple[str, ...]:
        """Fix everything that is there."""
        return () if obj is None else self.seen

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse: remove it and make another."""
        return False

    def save_model(self, request: HttpRequest, obj: AlertMute, form: MuteForm, change: bool) -> None:
        """Make it as every other way does."""
        given = form.cleaned_data
        made = alerts.mute(
            given["kind"], given["tenant"], given["subject"], note=given["note"], actor=str(request.user.get_username()),
            lasting=None if given["hours"] is None else timedelta(hours=given["hours"]))
        obj.id = obj.pk = made.pk
        obj.refresh_from_db()
