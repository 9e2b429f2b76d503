"""A POST with an Idempotency-Key is carried out once; its repetition gets the stored answer.

The key, the work and its answer are one transaction. So a second request at the same time waits for the end of the first
one, at the key, and a request that was refused or died has left nothing behind: its repetition is carried out.
"""
import functools
import hashlib
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from django.db import IntegrityError, transaction
from django.http import HttpResponse

from chrono_beat.core import ids
from chrono_beat.core.field_checks import unstorable
from chrono_beat_django import wiring
from chrono_beat_django.api.auth import tenant_of
from chrono_beat_django.api.openapi import MAX_KEY_CHARACTERS
from chrono_beat_django.api.problems import Refused
from chrono_beat_django.models import StoredAnswer
from chrono_beat_django.store import definitions as store


class Answer(NamedTuple):
    """What a control call says.

    Args:
        build: called once within the transaction and once after its commit, when it is known what runs; returns
            (status, body).
    """

    build: Callable[[], tuple[int, dict[str, Any]]]


def once(function: Callable[..., Answer]) -> Callable[..., HttpResponse]:
    """Answer a request, with an Idempotency-Key only once."""
    @functools.wraps(function)
    def answered(request: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        key = request.headers.get("Idempotency-Key")
        if key is None:
            with transaction.atomic(using=store.alias()):
                answer = function(request, *args, **kwargs)
            return respond(*answer.build())
        if not 1 <= len(key) <= MAX_KEY_CHARACTERS or unstorable(key) or not key.isprintable():
            raise Refused(422, f"must be 1 to {MAX_KEY_CHARACTERS} printable characters", "Idempotency-Key")
        with transaction.atomic(using=store.alias()):
            row = _take(request, key)
            if row.status:
                return _sent(row.status, row.body, {"Idempotent-Replayed": "true"})
            answer = function(request, *args, **kwargs)
            _keep(row, answer)
        return _keep(row, answer)               # now it is known what runs

    return answered


def _take(request: Any, key: str) -> StoredAnswer:
    """Return the row of a key: a new one, or that of the request which was carried out under it."""
    said = b"\n".join([request.method.encode(), request.get_full_path().encode(), request.body])
    fingerprint, tenant = hashlib.sha256(said).hexdigest(), tenant_of(request)
    rows, now = StoredAnswer.objects.using(store.alias()), ids.from_us(wiring.now_us())
    try:
        with transaction.atomic(using=store.alias()):       # waits here while another one carries it out
            return rows.create(tenant=tenant, key=key, fingerprint=fingerprint, created_at=now)
    except IntegrityError:
        row = rows.filter(tenant=tenant, key=key).first()
    if row is None:
        raise Refused(409, "this key is just being forgotten, as it is old; try again", "Idempotency-Key", "busy")
    if row.fingerprint != fingerprint:
        raise Refused(422, "was used for another request; use a new one", "Idempotency-Key", "reused")
    return row


def _keep(row: StoredAnswer, answer: Answer) -> HttpResponse:
    response = respond(*answer.build())
    StoredAnswer.objects.using(store.alias()).filter(id=row.id).update(
        status=response.status_code, body=response.content.decode())
    return response


def respond(status: int, body: dict[str, Any]) -> HttpResponse:
    """Return JSON; a job's version as its ETag, too."""
    return _sent(status, json.dumps(body, default=_text))


def _sent(status: int, text: str, headers: dict[str, str] | None = None) -> HttpResponse:
    response = HttpResponse(text, status=status, content_type="application/json", headers=headers)
    if (version := json.loads(text).get("version")) is not None:
        response["ETag"] = f'"{version}"'
    return response


def _text(value: Any) -> str:
    return value.isoformat().replace("+00:00", "Z") if hasattr(value, "isoformat") else str(value)
