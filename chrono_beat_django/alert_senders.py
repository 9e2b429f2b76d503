"""The ways in which alerts are told: Django's signal, mail, and a signed request to a URL.

Each receiver has a sender of its own, so that one that cannot be reached brings no repeats to the others.
"""
from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from email.utils import parseaddr
from functools import partial
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
TO_OPERATOR, TO_TENANT = "operator", "tenant"


def _name(whose: str, way: str, address: str) -> str:
    """Return a name that is the same in each process and does not show an address, which may hold a secret."""
    return f"{whose}_{way}:{hashlib.sha256(address.encode()).hexdigest()[:12]}"


class SignalSender:
    """Sends the signal ``alert_raised``."""

    name = "signal"

    def send(self, alert: OpenAlert) -> None:
        """Call the receivers."""
        alert_raised.send(sender=Alert, alert=alert)


class Mail:
    """Mails to one address.

    Args:
        whose: TO_OPERATOR gets all that is known, TO_TENANT what is the tenant's to know.
        address: where to.
    """

    def __init__(self, whose: str, address: str) -> None:
        self.name = _name(whose, "mail", address)
        self._whose = whose
        self._address = address

    def send(self, alert: OpenAlert) -> None:
        """Mail; the Message-ID is the same for each attempt at one telling, so that a mailbox may know a repeat."""
        # The sender's domain and not this host's name: a process on another host may make the next attempt.
        domain = parseaddr(settings.DEFAULT_FROM_EMAIL)[1].rpartition("@")[2]
        headers = {"Message-ID": f"<{alerts.message_id(alert)}-{self.name.replace(':', '-')}@{domain}>"}
        with get_connection(timeout=settings.EMAIL_TIMEOUT or SEND_SECONDS) as connection:
            EmailMessage(
                f"[chrono_beat] {alerts.title(alert)}", alerts.text(alert, operator=self._whose == TO_OPERATOR),
                to=[self._address], headers=headers, connection=connection).send()


class Webhook:
    """Posts to one URL, signed and guarded as an HTTP target is.

    Args:
        whose: as for mail.
        url: where to.
        secrets: with which it is signed.
        config: what may be called.
    """

    def __init__(self, whose: str, url: str, secrets: Iterable[str], config: Config) -> None:
        self.name = _name(whose, "webhook", url)
        self._whose = whose
        self._url = url
        self._secrets = tuple(filter(None, secrets))
        self._config = config

    def send(self, alert: OpenAlert) -> None:
        """Post; the message id is the same for each attempt at one telling."""
        target = HttpTarget(
            url=self._url, body=json.dumps(body(alert, operator=self._whose == TO_OPERATOR)), timeout_seconds=SEND_SECONDS,
            secrets=self._secrets)
        of = http.Call(alerts.message_id(alert), f"alert-{alert.id}", alert.attempts + 1, alert.first_at.isoformat())
        http.call(target, of, self._config)


def body(alert: OpenAlert, *, operator: bool) -> dict[str, Any]:
    """Return what a program is told.

    Args:
        alert: what.
        operator: for the operator of the deployment; a tenant is told nothing of others.
    """
    return {
        "type": "alert", "id": alert.id, "kind": alert.kind, "tenant": alert.tenant, "subject": alert.subject,
        "title": alerts.title(alert), "text": alerts.text(alert, operator=operator), "count": alert.count,
        "first_at": alert.first_at.isoformat(), "last_at": alert.last_at.isoformat(),
        "detail": alerts.shown_detail(alert, operator=operator),
    }


def ways(config: Config) -> Callable[[OpenAlert], Sequence[AlertSender]]:
    """Return what says who is to be told of an alert, and how; tenants' addresses are read at each telling."""
    return partial(_ways, config)


def _ways(config: Config, alert: OpenAlert) -> list[AlertSender]:
    made: list[AlertSender] = [SignalSender()]
    if alerts.is_operators(alert):
        made += [Mail(TO_OPERATOR, address) for address in dict.fromkeys(config.alert_emails)]
        if config.alert_url:
            made.append(Webhook(TO_OPERATOR, config.alert_url, config.alert_secrets, config))
    tenant = Tenant.objects.using(store.alias()).filter(slug=alert.tenant).first() if alert.tenant else None
    if tenant is not None:
        addresses = filter(None, (address.strip() for address in tenant.alert_email.split(",")))
        made += [Mail(TO_TENANT, address) for address in dict.fromkeys(addresses)]
        if tenant.alert_url:
            made.append(Webhook(
                TO_TENANT, tenant.alert_url, (tenant.webhook_secret, tenant.webhook_secret_before), config))
    return made


def closed(alert: Alert) -> None:
    """Tell programs that an alert is over; what they raise is logged by Django."""
    alert_closed.send_robust(sender=Alert, alert=alert)
