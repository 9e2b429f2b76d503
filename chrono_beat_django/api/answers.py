"""A POST with an Idempotency-Key is carried out once; its repetition gets the stored answer.

The key is taken first, in a transaction of its own, so that a second request at the same time is told to wait. The work
and its answer are one transaction: it cannot be half. A key whose first request died may be taken over after a minute.
A refused request stores nothing and may be repeated.
"""
import functools
import hashlib
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

from django.db import IntegrityError, transaction
from django.http import HttpResponse

from chrono_beat.core import ids
from chrono_beat.core.field_checks import unstorable
from chrono_beat_django import wiring
from chrono_beat_django.api.auth import tenant_of
from chrono_beat_django.api.problems import Refused
from chrono_beat_django.models import StoredAnswer
from chrono_beat_django.store import definitions as store

TAKEN_OVER_AFTER = timedelta(minutes=1)
MAX_KEY_CHARACTERS = 255


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
        row = _take(request, key)
        if row.status:
            return HttpResponse(row.body, status=row.status, content_type="application/json",
                                headers={"Idempotent-Replayed": "true"})
        return _carry_out(row, lambda: function(request, *args, **kwargs))

    return answered


def _take(request: Any, key: str) -> StoredAnswer:
    said = b"\n".join([request.method.encode(), request.get_full_path().encode(), request.body])
    fingerprint, tenant = hashlib.sha256(said).hexdigest(), tenant_of(request)
    rows, now = StoredAnswer.objects.using(store.alias()), ids.from_us(wiring.now_us())
    try:
        with transaction.atomic(using=store.alias()):
            return rows.create(tenant=tenant, key=key, fingerprint=fingerprint, created_at=now)
    except IntegrityError:
        pass
    with transaction.atomic(using=store.alias()):
        row = rows.select_for_update().filter(tenant=tenant, key=key).first()
        if row is None or (row.status == 0 and row.fingerprint == fingerprint and row.created_at > now - TAKEN_OVER_AFTER):
            raise Refused(409, "the first request with this key is being carried out; try again", "Idempotency-Key", "busy")
        if row.fingerprint != fingerprint:
            raise Refused(422, "was used for another request; use a new one", "Idempotency-Key", "reused")
        if row.status == 0:
            row.created_at = now
            rows.filter(id=row.id).update(created_at=now)
    return row


def _carry_out(row: StoredAnswer, work: Callable[[], Answer]) -> HttpResponse:
    rows = StoredAnswer.objects.using(store.alias())
    mine = rows.filter(id=row.id, status=0, created_at=row.created_at)
    try:
        with transaction.atomic(using=store.alias()):
            if not mine.select_for_update().exists():
                raise Refused(409, "another request has taken this key over; try again", "Idempotency-Key", "busy")
            answer = work()
            _keep(row, answer)
    except Exception:
        mine.delete()
        raise
    return _keep(row, answer)               # now it is known what runs


def _keep(row: StoredAnswer, answer: Answer) -> HttpResponse:
    response = respond(*answer.build())
    StoredAnswer.objects.using(store.alias()).filter(id=row.id).update(
        status=response.status_code, body=response.content.decode())
    return response


def respond(status: int, body: dict[str, Any]) -> HttpResponse:
    """Return JSON; a job's version as its ETag, too."""
    response = HttpResponse(json.dumps(body, default=_text), status=status, content_type="application/json")
    if "version" in body:
        response["ETag"] = f'"{body["version"]}"'
    return response


def _text(value: Any) -> str:
    return value.isoformat().replace("+00:00", "Z") if hasattr(value, "isoformat") else str(value)
