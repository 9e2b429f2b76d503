"""API keys of tenants: each is shown once, when it is made; what is kept cannot be turned back.

A key is ``chrono_<prefix>_<secret>``. It is found by its prefix and compared by a SHA-256 of the whole, in constant time: a
slow hash protects short secrets that people choose, and this one has 256 random bits.
"""
from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import transaction
from django.db.models import Q, QuerySet

from chrono_beat.core import field_checks as checks
from chrono_beat.core import ids
from chrono_beat.core.errors import Conflict, InvalidInput, NotFound, Problem
from chrono_beat_django import wiring
from chrono_beat_django.models import ApiKey, Tenant
from chrono_beat_django.store import definitions as store

SCOPES = ("read", "write", "operate")
"""Look at; create, change and delete jobs; pause, resume, trigger, backfill, cancel, replay and discard."""

DEFAULT_OVERLAP_SECONDS = 7 * 86_400
USED_EVERY = timedelta(minutes=1)
_LENGTH = checks.Number(0, 10 * 366 * 86_400, "seconds")


class NewKey(NamedTuple):
    """A key that was just made.

    Args:
        row: what is kept of it.
        secret: the key itself, which cannot be read again.
    """

    row: ApiKey
    secret: str

    def __repr__(self) -> str:
        return f"NewKey({self.row!r})"                          # neither a log nor a traceback is to have the secret


def create(
    tenant: str, scopes: Iterable[str] = ("read",), *, name: str = "", expires_in: float | timedelta | None = None,
    actor: str | None = None,
) -> NewKey:
    """Make a key for a tenant.

    Args:
        scopes: any of SCOPES.
        name: for people.
        expires_in: seconds; None for never.
        actor: who does it.

    Raises:
        InvalidInput: with everything that is wrong; UnknownTenant is one.
    """
    wanted, problems = tuple(scopes), []
    if not wanted or set(wanted) - set(SCOPES):
        problems.append(Problem("scopes", f"must be one or more of {', '.join(SCOPES)}"))
    seconds, wrong = checks.number(expires_in, _LENGTH)
    if wrong:
        problems.append(Problem("expires_in", wrong))
    if wrong := checks.unstorable(name) or ("may have 255 characters" if len(name) > 255 else ""):
        problems.append(Problem("name", wrong))
    if problems:
        raise InvalidInput(*problems)
    expires = None if seconds is None else ids.from_us(wiring.now_us()) + timedelta(seconds=seconds)
    with transaction.atomic(using=store.alias()):
        store.lock_tenant(tenant)
        return _made(tenant, " ".join(scope for scope in SCOPES if scope in wanted), name, expires, actor)


def rotate(prefix: str, *, overlap: float | timedelta = DEFAULT_OVERLAP_SECONDS, actor: str | None = None) -> NewKey:
    """Make another key with the same rights; the old one goes on being valid for a while.

    Where the old one expires, so does the new one, after as long as lay between the old one's creation and its end.

    Args:
        prefix: of the old key.
        overlap: seconds for which the old one is valid beside the new one.

    Raises:
        NotFound: there is no such key.
        Conflict: it is revoked or has expired.
        InvalidInput: the overlap is no number of seconds.
    """
    seconds, wrong = checks.number(overlap, _LENGTH)
    if wrong or seconds is None:
        raise InvalidInput(Problem("overlap", wrong or "must be a number of seconds"))
    with transaction.atomic(using=store.alias()):
        old, now = _locked(prefix), ids.from_us(wiring.now_us())
        if not _valid(old, now):
            raise Conflict(f"key {prefix} is no longer valid; create a new one")
        ends = None if old.expires_at is None else now + (old.expires_at - old.created_at)
        made = _made(old.tenant, old.scopes, old.name, ends, actor)
        until = now + timedelta(seconds=seconds)
        _rows().filter(id=old.id).update(expires_at=until if old.expires_at is None else min(until, old.expires_at))
    return made


def revoke(prefix: str) -> ApiKey:
    """Let a key be valid no more, from now on. To repeat it changes nothing.

    Raises:
        NotFound: there is no such key.
    """
    with transaction.atomic(using=store.alias()):
        found = _locked(prefix)
        if found.revoked_at is None:
            found.revoked_at = ids.from_us(wiring.now_us())
            _rows().filter(id=found.id).update(revoked_at=found.revoked_at)
    return found


def list(tenant: str | None = None) -> QuerySet[ApiKey]:
    """Return the keys of a tenant, or all, as a queryset: also those that are valid no more."""
    return _rows() if tenant is None else _rows().filter(tenant=tenant)


def authenticate(text: str) -> ApiKey | None:
    """Return the valid key that a caller shows; None where it is none. At most once a minute its use is noted."""
    prefix = text.split("_")[1] if text.count("_") >= 2 else ""
    found = _rows().filter(prefix=prefix).first() if prefix.isalnum() and prefix.isascii() else None
    expected = found.secret_hash if found else _hash("")
    same = hmac.compare_digest(_hash(text), expected)
    now = ids.from_us(wiring.now_us())
    if found is None or not same or not _valid(found, now):
        return None
    if not Tenant.objects.using(store.alias()).filter(slug=found.tenant).exists():
        return None                                          # a tenant that is made anew gets no old keys' callers
    before = Q(last_used_at__isnull=True) | Q(last_used_at__lt=now - USED_EVERY)
    if found.last_used_at is None or found.last_used_at < now - USED_EVERY:
        _rows().filter(before, id=found.id).update(last_used_at=now)
    return found


def _made(tenant: str, scopes: str, name: str, expires: datetime | None, actor: str | None) -> NewKey:
    prefix = secrets.token_hex(6)
    secret = f"chrono_{prefix}_{secrets.token_urlsafe(32)}"
    row = _rows().create(tenant=tenant, name=name, prefix=prefix, secret_hash=_hash(secret), scopes=scopes,
                         created_at=ids.from_us(wiring.now_us()), created_by=(actor or "")[:255], expires_at=expires)
    return NewKey(row, secret)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _valid(key: ApiKey, now: datetime) -> bool:
    return key.revoked_at is None and (key.expires_at is None or key.expires_at > now)


def _locked(prefix: str) -> ApiKey:
    found = _rows().select_for_update().filter(prefix=prefix).first()
    if found is None:
        raise NotFound(f"there is no key {prefix[:20]!r}")
    return found


def _rows() -> QuerySet[ApiKey]:
    return ApiKey.objects.using(store.alias())
