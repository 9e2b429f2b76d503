"""Alerts for people: list, mute, unmute, close."""
from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from django.db.models import QuerySet
from django.utils.timezone import now

from chrono_beat.core.alerts import KINDS
from chrono_beat.core.errors import InvalidInput, NotFound, Problem
from chrono_beat_django import alert_senders
from chrono_beat_django.models import Alert, AlertMute
from chrono_beat_django.store import definitions as store

MOST_MUTES = 1_000

def list(
    tenant: str | None = None, *, kind: str | None = None, open_only: bool = True,
) -> QuerySet[Alert]:
    """Return alerts, the last noticed first.

    Args:
        tenant: only this one's; None for all, also the deployment's.
        kind: only of this kind.
        open_only: without those that are over.

    Raises:
        InvalidInput: there is no such kind.
    """
    found = Alert.objects.using(store.alias()).order_by("-last_at")
    if tenant is not None:
        found = found.filter(tenant=tenant)
    if kind is not None:
        _check_kind(kind)
        found = found.filter(kind=kind)
    return found.filter(closed_at__isnull=True) if open_only else found


def mutes(tenant: str | None = None, *, kind: str | None = None) -> QuerySet[AlertMute]:
    """Return the mutes in effect.

    Args:
        tenant: only those of this one alone; None for all.
        kind: only those of this kind alone; None for all.

    Raises:
        InvalidInput: there is no such kind.
    """
    found = AlertMute.objects.using(store.alias()).exclude(until__lte=now()).order_by("id")
    if tenant is not None:
        found = found.filter(tenant=tenant)
    if kind is not None:
        _check_kind(kind)
        found = found.filter(kind=kind)
    return found


def complete(rows: Iterable[Alert]) -> None:
    """Give each alert, as ``muted_by``, the mute in effect that keeps it from being sent; the one that lasts longest.

    Args:
        rows: alerts; one statement, whatever their number. At most MOST_MUTES mutes are looked at.
    """
    found = sorted(mutes()[:MOST_MUTES], key=lambda mute: (mute.until is not None, -(mute.until or now()).timestamp()))
    for alert in rows:
        alert.muted_by = next((mute for mute in found if mute.kind in ("", alert.kind) and mute.tenant in ("", alert.tenant)
                               and mute.subject in ("", alert.subject)), None)


def mute(
    kind: str = "", tenant: str = "", subject: str = "", *, lasting: timedelta | None = None, note: str = "",
    actor: str = "",
) -> AlertMute:
    """Note alerts from now on without sending them; what is left empty stands for all.

    Args:
        kind, tenant, subject: which.
        lasting: for how long; None until it is removed.
        note, actor: why, and who.

    Raises:
        InvalidInput: there is no such kind, or its end has no date.
    """
    if kind:
        _check_kind(kind)
    try:
        until = None if lasting is None else now() + lasting
    except OverflowError:
        raise InvalidInput(Problem("lasting", "is too long; without it a mute lasts until it is removed")) from None
    return AlertMute.objects.using(store.alias()).create(
        kind=kind, tenant=tenant, subject=subject, until=until, note=note,
        created_by=actor)


def unmute(id: int) -> None:
    """Remove a mute; alerts that were noticed meanwhile and are open are sent.

    Raises:
        NotFound: there is none of that number.
    """
    if not AlertMute.objects.using(store.alias()).filter(id=id).delete()[0]:
        raise NotFound(f"no mute has the number {id}")


def close(id: int) -> Alert:
    """Say that an alert is over; when it is noticed again, it is a new one.

    Raises:
        NotFound: no open alert has that number.
    """
    rows = Alert.objects.using(store.alias()).filter(id=id)
    if not rows.filter(closed_at__isnull=True).update(closed_at=now()):
        raise NotFound(f"no open alert has the number {id}")
    alert = rows.get()
    alert_senders.closed(alert)
    return alert


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise InvalidInput(Problem("kind", f"{kind!r} is none; known are {', '.join(KINDS)}"))
