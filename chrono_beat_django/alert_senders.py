"""The ways in which alerts are told: Django's signal, mail, and a signed request to the tenant's own URL."""
from __future__ import annotations

import json
from typing import Any

from django.conf import settings
from django.core.mail import EmailMessage, get_connection

from chrono_beat.core import alerts
from chrono_beat.core.alerts import OpenAlert
from chrono_beat.core.callback import HttpTarget
from chrono_beat.core.config import Config
from chrono_beat.ports import AlertSender
from chrono_beat.targets import http
from chrono_beat_django.models import Alert, Tenant
from chrono_beat_django.signals import alert_closed, alert_raised
from chrono_beat_django.store import definitions as store

SEND_SECONDS = 5.0


def _tenant(alert: OpenAlert) -> Tenant | None:
    return Tenant.objects.using(store.alias()).filter(slug=alert.tenant).first() if alert.tenant else None


class SignalSender:
    """Sends the signal ``alert_raised``."""

    name = "signal"

    def send(self, alert: OpenAlert) -> None:
        """Call the receivers."""
        alert_raised.send(sender=Alert, alert=alert)


class _Mail:
    def _mail(self, alert: OpenAlert, addresses: list[str], text: str) -> None:
        if not addresses:
            return
        # One message for each, since they are not each other's to know.
        with get_connection(timeout=settings.EMAIL_TIMEOUT or SEND_SECONDS) as connection:
            connection.send_messages([
                EmailMessage(f"[chrono_beat] {alerts.title(alert)}", text, to=[address], connection=connection)
                for address in addresses])


class OperatorMail(_Mail):
    """Mails to the operators.

    Args:
        addresses: setting ALERT_EMAILS.
    """

    name = "operator_mail"

    def __init__(self, addresses: tuple[str, ...]) -> None:
        self._addresses = list(addresses)

    def send(self, alert: OpenAlert) -> None:
        """Mail all that is known."""
        if alerts.is_operators(alert):
            self._mail(alert, self._addresses, alerts.text(alert, operator=True))


class TenantMail(_Mail):
    """Mails to the tenant's own addresses."""

    name = "tenant_mail"

    def send(self, alert: OpenAlert) -> None:
        """Mail what is the tenant's to know."""
        tenant = _tenant(alert)
        if tenant is not None:
            addresses = [address.strip() for address in tenant.alert_email.split(",") if address.strip()]
            self._mail(alert, addresses, alerts.text(alert, operator=False))


class TenantWebhook:
    """Posts to the tenant's own URL, signed and guarded as an HTTP target is.

    Args:
        config: what may be called.
    """

    name = "tenant_webhook"

    def __init__(self, config: Config) -> None:
        self._config = config

    def send(self, alert: OpenAlert) -> None:
        """Post what is the tenant's to know; the message id is the same for each attempt at one telling."""
        tenant = _tenant(alert)
        if tenant is None or not tenant.alert_url:
            return
        target = HttpTarget(
            url=tenant.alert_url, body=json.dumps(body(alert)), timeout_seconds=SEND_SECONDS,
            secrets=tuple(filter(None, (tenant.webhook_secret, tenant.webhook_secret_before))))
        of = http.Call(f"alert-{alert.id}-{alert.count}", f"alert-{alert.id}", alert.attempts + 1, alert.first_at.isoformat())
        http.call(target, of, self._config)


def body(alert: OpenAlert) -> dict[str, Any]:
    """Return what a tenant's program is told."""
    return {
        "type": "alert", "id": alert.id, "kind": alert.kind, "tenant": alert.tenant, "subject": alert.subject,
        "title": alerts.title(alert), "text": alerts.text(alert, operator=False), "count": alert.count,
        "first_at": alert.first_at.isoformat(), "last_at": alert.last_at.isoformat(), "detail": alerts.shown_detail(alert),
    }


def senders(config: Config) -> list[AlertSender]:
    """Return all ways, each tried by itself."""
    return [SignalSender(), OperatorMail(config.alert_emails), TenantMail(), TenantWebhook(config)]


def closed(alert: Alert) -> None:
    """Tell programs that an alert is over; what they raise is logged by Django."""
    alert_closed.send_robust(sender=Alert, alert=alert)
