"""Alerts in the database. Who tells one is settled by a conditional update of its row."""
from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Exists, F, OuterRef, Q

from chrono_beat.core import alerts
from chrono_beat.core.alerts import Finding, OpenAlert, Over, Receipt
from chrono_beat.core.ids import from_us, to_us
from chrono_beat_django.models import Alert, AlertMute
from chrono_beat_django.store.session import Session


class DjangoAlertStore:
    """Keeps :class:`chrono_beat.ports.AlertStore`.

    Args:
        alias: name of the database in Django's settings.
        closed: called with each alert that an event or the quiet time closed, after that is committed.
    """

    def __init__(self, alias: str, closed: Callable[[Alert], object] = lambda alert: None) -> None:
        self._session = Session(alias)
        self._alias = alias
        self._closed = closed

    @property
    def _rows(self) -> Any:
        return Alert.objects.using(self._alias)

    def note_alerts(self, noticed: Sequence[Finding | Over], now_us: int) -> None:
        """Write findings down."""
        now = from_us(now_us)

        def note(_: object) -> list[Alert]:
            over: list[Alert] = []
            # In one order, so that two processes never wait for each other's rows.
            for found in sorted(noticed, key=lambda each: (each.kind, each.tenant, each.subject)):
                mine = self._rows.filter(
                    kind=found.kind, tenant=found.tenant, subject=found.subject, closed_at__isnull=True)
                if isinstance(found, Over):
                    over += self._close(mine, now)
                elif not self._add(mine, found, now):
                    self._insert(mine, found, now)
            return over

        for alert in self._session.transaction(note):
            self._closed(alert)

    def _add(self, mine: Any, found: Finding, now: datetime) -> bool:
        return bool(mine.update(
            count=F("count") + found.count, last_at=now, text=alerts.text(found, operator=True),
            detail=json.dumps(dict(found.detail))))

    def _insert(self, mine: Any, found: Finding, now: datetime) -> None:
        like = self._rows.filter(kind=found.kind, tenant=found.tenant, closed_at__isnull=True)
        if found.subject and like.count() >= alerts.MAX_SUBJECTS:
            found, mine = replace(found, subject=alerts.MORE), like.filter(subject=alerts.MORE)
            if self._add(mine, found, now):
                return
        try:
            with transaction.atomic(using=self._alias):
                self._rows.create(
                    kind=found.kind, tenant=found.tenant, subject=found.subject, count=found.count, first_at=now,
                    last_at=now, text=alerts.text(found, operator=True), detail=json.dumps(dict(found.detail)))
        except IntegrityError:
            self._add(mine, found, now)                     # another process was first

    def close_quiet_alerts(self, before_us: int, now_us: int) -> None:
        """Close those that were not noticed since."""
        quiet = self._rows.filter(closed_at__isnull=True, last_at__lt=from_us(before_us))
        for alert in self._session.transaction(lambda _: self._close(quiet, from_us(now_us))):
            self._closed(alert)

    def _close(self, rows: Any, now: datetime) -> list[Alert]:
        return [alert for alert in rows[:1_000]
                if self._rows.filter(id=alert.id, closed_at__isnull=True).update(closed_at=now)]

    def claim_alert(self, now_us: int, claim_us: int) -> OpenAlert | None:
        """Take an alert that somebody is to be told of."""
        now, until = from_us(now_us), from_us(now_us + claim_us)
        free = Q(claimed_until__isnull=True) | Q(claimed_until__lte=now)
        muted = AlertMute.objects.using(self._alias).filter(
            Q(until__isnull=True) | Q(until__gt=now),
            Q(kind="") | Q(kind=OuterRef("kind")), Q(tenant="") | Q(tenant=OuterRef("tenant")),
            Q(subject="") | Q(subject=OuterRef("subject")))
        new = Q(count__gt=F("told_count")) & (Q(again_at__isnull=True) | Q(again_at__lte=now))
        due = self._rows.filter(free, new | Q(retry_at__lte=now), ~Exists(muted), closed_at__isnull=True)

        def claim(_: object) -> Alert | None:
            for alert in due.order_by("attempts", "last_at", "id")[:20]:
                mine = self._rows.filter(free, id=alert.id, told_to=alert.told_to, closed_at__isnull=True)
                if mine.update(claimed_until=until):
                    found: Alert = alert
                    return found
            return None

        row = self._session.statement(claim)
        if row is None:
            return None
        return OpenAlert(
            row.id, row.kind, row.tenant, row.subject, row.count, json.loads(row.detail or "{}"), row.first_at, row.last_at,
            to_us(until), row.receipts)

    def alert_told(self, alert: OpenAlert, receipts: Mapping[str, Receipt], now_us: int) -> None:
        """Note how far its receivers are now."""
        ahead = alerts.outlook(receipts.values(), alert.count)
        values: dict[str, Any] = {
            "told_to": json.dumps({name: asdict(receipt) for name, receipt in sorted(receipts.items())}),
            "told_count": ahead.told_count, "again_at": from_us(ahead.again_us), "attempts": ahead.attempts,
            "retry_at": None if ahead.retry_us is None else from_us(ahead.retry_us), "claimed_until": None}
        if any(receipt.count > alert.receipt(name).count for name, receipt in receipts.items()):
            values["told_at"] = from_us(now_us)
        # Only the claim that was made: one that took too long has a follower by now, and that one's word counts.
        mine = self._rows.filter(id=alert.id, claimed_until=from_us(alert.claim))
        self._session.statement(lambda _: mine.update(**values))
