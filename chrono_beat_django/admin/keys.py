"""API keys: made here, shown once, revoked; never changed."""
from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.cache import add_never_cache_headers
from django.utils.timezone import now

from chrono_beat.core.errors import InvalidInput
from chrono_beat_django import keys
from chrono_beat_django.admin import fields
from chrono_beat_django.admin.pages import Page, TenantFilter, instant_column
from chrono_beat_django.models import ApiKey, Tenant

MOST_TENANTS_SUGGESTED = 100
DAY_SECONDS = 86_400


class KeyForm(forms.ModelForm):
    """What a new key may do; its last check makes it."""

    tenant = fields.suggesting("Tenant", "Whose programs come in with it.")
    name = fields.line("Name", "For people: where it is used.")
    rights = forms.MultipleChoiceField(
        label="Scopes", choices=[(scope, scope) for scope in keys.SCOPES], widget=forms.CheckboxSelectMultiple,
        initial=["read"], required=False,
        help_text="read: look. write: create, change and delete jobs. operate: pause, resume, trigger, backfill, cancel, replay.")
    expires_in_days = fields.number("Expires in", "Days; empty: never.")

    actor = ""
    made: keys.NewKey

    class Meta:
        model = ApiKey
        fields = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "tenant" in self.fields:                       # not where a key is only looked at
            slugs = Tenant.objects.order_by("slug").values_list("slug", flat=True)
            self.fields["tenant"].widget.suggestions = list(slugs[:MOST_TENANTS_SUGGESTED])

    def _post_clean(self) -> None:
        """Make the key."""
        if self._errors:
            return
        typed = self.cleaned_data
        days = typed["expires_in_days"]
        seconds = days * DAY_SECONDS if isinstance(days, (int, float)) else days
        try:
            self.made = keys.create(typed["tenant"], typed["rights"], name=typed["name"], expires_in=seconds, actor=self.actor)
        except InvalidInput as refused:
            for problem in refused.problems:
                self.add_error({"scopes": "rights", "expires_in": "expires_in_days"}.get(problem.field, problem.field),
                               problem.message)
            return
        self.instance = self.made.row

    def save(self, commit: bool = True) -> ApiKey:
        """Return the key: it was saved by the last check."""
        self.save_m2m = lambda: None
        key: ApiKey = self.instance
        return key


@admin.register(ApiKey)
class KeyPage(Page):
    """API keys by tenant; the key itself is on no page but the answer to its creation."""

    form = KeyForm
    actions = ("revoke_keys",)
    list_display = ("tenant", "prefix", "name", "scopes", "state", "created", "used", "created_by")
    list_display_links = ("prefix",)
    list_filter = (TenantFilter,)
    search_fields = ("prefix", "name")
    seen = ("tenant", "prefix", "name", "scopes", "state", "created", "created_by", "expires", "revoked", "used")
    created = instant_column("created_at", "created")
    expires = instant_column("expires_at", "expires")
    revoked = instant_column("revoked_at", "revoked")
    used = instant_column("last_used_at", "last used")

    def get_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> tuple[str, ...]:
        """Return the form's fields, or all that is kept of a key."""
        return ("tenant", "name", "rights", "expires_in_days") if obj is None else self.seen

    def get_readonly_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> tuple[str, ...]:
        """Fix everything."""
        return () if obj is None else self.seen

    def get_form(self, request: HttpRequest, obj: ApiKey | None = None, change: bool = False, **kwargs: Any) -> Any:
        """Return the form, which has to know who fills it in."""
        form = super().get_form(request, obj, change, **kwargs)
        form.actor = str(request.user.get_username())
        return form

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse: a key is revoked, by its action, and not changed."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse: a revoked key stays, so that it is known whose it was."""
        return False

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may revoke."""
        return self.may(request, "change")

    def save_model(self, request: HttpRequest, obj: ApiKey, form: KeyForm, change: bool) -> None:
        """Keep the key for the answer; the form has made it."""
        request.made_key = form.made                     # type: ignore[attr-defined]

    def response_add(self, request: HttpRequest, obj: ApiKey, post_url_continue: Any = None) -> HttpResponse:
        """Show the key, once: in this answer, which nothing keeps. A message would lie in a cookie or a session."""
        made: keys.NewKey = request.made_key             # type: ignore[attr-defined]
        response = TemplateResponse(request, "admin/chrono_beat/apikey/made.html", {
            **self.admin_site.each_context(request), "title": "The new API key", "opts": self.opts, "key": made.row,
            "secret": made.secret, "media": self.media})
        add_never_cache_headers(response)
        return response

    @admin.action(description="Revoke selected API keys", permissions=["revoke"])
    def revoke_keys(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        """Let them be valid no more, from now on."""
        count = 0
        for key in queryset:
            keys.revoke(key.prefix)
            count += 1
        self.message_user(request, f"{count} API key{'s' if count != 1 else ''}: revoked.", messages.SUCCESS)

    @admin.display(description="state")
    def state(self, key: ApiKey) -> str:
        """Return whether it is valid."""
        if key.revoked_at is not None:
            return "revoked"
        return "expired" if key.expires_at is not None and key.expires_at <= now() else "valid"
