"""The secrets with which calls of a tenant's HTTP targets are signed. Each is shown once: when it is made.

Rotating makes a new one, and the one before goes on signing beside it until the rotation is ended. So receivers can be
given the new one at any moment in between.
"""
from __future__ import annotations

import secrets

from django.db import transaction
from django.db.models import QuerySet

from chrono_beat.core.callback import SECRET_BYTES, encode_secret
from chrono_beat_django.models import Tenant
from chrono_beat_django.store import definitions as store


def rotate_webhook_secret(tenant: Tenant | str) -> str:
    """Give a tenant a new signing secret; the one before signs beside it until `end_webhook_rotation`.

    Returns:
        The secret, ``whsec_…``, for the receivers. It cannot be read again.

    Raises:
        UnknownTenant: there is none.
    """
    secret = encode_secret(secrets.token_bytes(SECRET_BYTES))
    with transaction.atomic(using=store.alias()):
        found = store.lock_tenant(_slug(tenant))
        _rows(found).update(webhook_secret=secret, webhook_secret_before=found.webhook_secret)
    return secret


def end_webhook_rotation(tenant: Tenant | str) -> bool:
    """Let only the newest secret sign: every receiver has it.

    Returns:
        Whether there was another one.

    Raises:
        UnknownTenant: there is none.
    """
    with transaction.atomic(using=store.alias()):
        found = store.lock_tenant(_slug(tenant))
        _rows(found).update(webhook_secret_before="")
    return bool(found.webhook_secret_before)


def _slug(tenant: Tenant | str) -> str:
    return tenant.slug if isinstance(tenant, Tenant) else str(tenant)


def _rows(tenant: Tenant) -> QuerySet[Tenant]:
    return Tenant.objects.using(store.alias()).filter(slug=tenant.slug)
