"""Where the admin shows the rows behind a figure; nothing where there is no admin, or for who may not see them there."""
from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.http import urlencode

EXECUTIONS = {
    "running": {"state__exact": "running"}, "failed": {"state__exact": "failed"}, "dead": {"state__exact": "dead"},
    "skipped": {"state__exact": "skipped"}, "missed": {"state__exact": "missed"}, "letters": {"letters": "open"},
}
"""What a link says to the list of executions, by what it is called on a page."""


def links(request: HttpRequest, tenant: str = "", hours: int = 24, late_seconds: float | None = None) -> dict[str, str]:
    """Return addresses in the admin by what they lead to.

    Args:
        request: whose user will follow them.
        tenant: slug; "" for all tenants.
        hours: how far the figures go back.
        late_seconds: the lateness that is shown; "late" leads to what started at least so late.
    """
    found: dict[str, str] = {}
    of = {"tenant": tenant} if tenant else {}
    if executions := _admin(request, "execution"):
        period = {"period": "week"} if hours > 24 else {}
        asked = EXECUTIONS | {"late": {"late": str(int(late_seconds or 1))}}
        found = {name: f"{executions}?{urlencode(of | query | period)}" for name, query in asked.items()}
    if job := _admin(request, "job"):
        found["jobs"] = f"{job}?{urlencode(of)}"
    if alert := _admin(request, "alert"):
        found["alerts"] = f"{alert}?{urlencode(of)}"
    if tenant and (change := _admin(request, "tenant", tenant)):
        found["tenant"] = change
    return found


def job(request: HttpRequest, subject: str) -> str:
    """Return the address of the history of a job that an alert is about; "" where it is about no job."""
    try:
        return _admin(request, "job", str(uuid.UUID(subject)), view="history")
    except ValueError:
        return ""


def _admin(request: HttpRequest, model: str, *args: Any, view: str = "change") -> str:
    user: Any = request.user
    if not any(user.has_perm(f"chrono_beat.{deed}_{model}") for deed in ("view", "change")):
        return ""
    try:
        return reverse(f"admin:chrono_beat_{model}_{view if args else 'changelist'}", args=args)
    except NoReverseMatch:
        return ""
