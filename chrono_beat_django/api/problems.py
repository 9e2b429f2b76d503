"""Every error of the API as ``application/problem+json`` (RFC 9457), with the field and the mend."""
import functools
import json
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

from django.conf import settings
from django.db import OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, ValidationError

from chrono_beat.core.errors import (
    Conflict,
    InvalidInput,
    NotFound,
    Problem,
    QueueUnavailable,
    QuotaExceeded,
    StaleVersion,
    StoreUnavailable,
)
from chrono_beat_django import wiring

logger = logging.getLogger(__name__)

MAX_ENVELOPE_BYTES = 65_536
"""What a body may have beside args and kwargs."""


class Refused(Exception):
    """A request that is refused with a status of its own."""

    def __init__(self, status: int, detail: str, field: str = "", code: str = "") -> None:
        super().__init__(detail)
        self.status, self.problem = status, Problem(field, detail, code or "invalid")


def problem(
    status: int, title: str, problems: Sequence[Problem], headers: dict[str, str] | None = None, **more: Any,
) -> HttpResponse:
    """Return a problem; its first entry is also at the top as ``field`` and ``mend``."""
    first = problems[0]
    body = {
        "type": "about:blank", "title": title, "status": status, "detail": "; ".join(
            f"{p.field}: {p.message}" if p.field else p.message for p in problems),
        "field": first.field, "mend": first.message, "code": first.code,
        "errors": [{"field": p.field, "mend": p.message, "code": p.code} for p in problems], **more,
    }
    return HttpResponse(json.dumps(body), status=status, content_type="application/problem+json", headers=headers)


def install(api: NinjaAPI) -> None:
    """Answer every typed error of the API."""
    def plain(status: int, title: str, code: str, field: str = "") -> Callable[[HttpRequest, Any], HttpResponse]:
        return lambda request, error: problem(status, title, [Problem(field, str(error), code)])

    api.add_exception_handler(InvalidInput, _invalid)
    api.add_exception_handler(ValidationError, _unread)
    api.add_exception_handler(QuotaExceeded, _quota)
    api.add_exception_handler(NotFound, lambda request, error: problem(
        404, "Not found", [Problem(_path_parameter(request), str(error), "not_found")]))
    api.add_exception_handler(Http404, plain(404, "Not found", "not_found"))
    api.add_exception_handler(Conflict, lambda request, error: problem(
        409, "Conflict", [Problem(error.field, str(error), "conflict")]))
    api.add_exception_handler(StaleVersion, plain(412, "Changed meanwhile", "stale", "If-Match"))
    for kind in (QueueUnavailable, StoreUnavailable, OperationalError):
        api.add_exception_handler(kind, _unavailable)
    api.add_exception_handler(AuthenticationError, lambda request, error: problem(
        401, "No key", [Problem("Authorization", "send a valid key: Authorization: Bearer chrono_…", "key")],
        {"WWW-Authenticate": "Bearer"}))
    api.add_exception_handler(Refused, lambda request, error: problem(error.status, "Refused", [error.problem]))
    api.add_exception_handler(HttpError, lambda request, error: problem(
        error.status_code, "Bad request", [Problem("body", str(error.__cause__ or error), "json")]))


def guarded(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Refuse what no route has to see, and give what the router itself refuses the same form."""
    @functools.wraps(view)
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if "\0" in request.path or "%00" in request.META.get("QUERY_STRING", ""):
            return problem(422, "Invalid", [Problem("path", "may not have the character NUL")])
        if wrong := wrong_length(request):
            return wrong
        method = request.method
        if method == "HEAD":
            request.method = "GET"                          # Django leaves the body out
        response = view(request, *args, **kwargs)
        request.method = method
        if response.status_code == 405:
            allowed = ", ".join(sorted(response.get("Allow", "").split(", ")))
            return problem(405, "Method not allowed", [Problem("method", f"use one of {allowed}", "method")],
                           {"Allow": allowed})
        return response

    return answer


def wrong_length(request: HttpRequest) -> HttpResponse | None:
    """Refuse a body that is too long, or that does not say how long it is; None where it may be read."""
    most = wiring.config().max_payload + MAX_ENVELOPE_BYTES
    if settings.DATA_UPLOAD_MAX_MEMORY_SIZE is not None:
        most = min(most, settings.DATA_UPLOAD_MAX_MEMORY_SIZE)      # Django's own limit
    size = request.META.get("CONTENT_LENGTH") or "0"
    if request.headers.get("Transfer-Encoding"):
        return problem(411, "Length required", [Problem("Content-Length", "send the body in one piece, with its length")])
    if not (size.isascii() and size.isdigit() and len(size) < 20 and int(size) <= most):
        return problem(413, "Too large", [Problem("body", f"may have {most:,} bytes", "too_large")])
    return None


def unknown_route(request: HttpRequest) -> HttpResponse:
    """Say that there is no such route."""
    return problem(404, "Not found", [Problem("path", "there is no such route; see /openapi.json", "unknown")])


def _invalid(request: HttpRequest, error: InvalidInput) -> HttpResponse:
    return problem(422, "Invalid", error.problems)


def _unavailable(request: HttpRequest, error: Exception) -> HttpResponse:
    why = str(error).partition("\n")[0]
    logger.warning("%s %r could not be answered: %s: %s", request.method, request.path, type(error).__name__, why)
    return problem(503, "Unavailable", [Problem("", "a server behind this one does not answer; try again", "unavailable")],
                   {"Retry-After": "5"})


def _quota(request: HttpRequest, error: QuotaExceeded) -> HttpResponse:
    seconds = error.retry_after_seconds
    headers = None if seconds is None else {"Retry-After": str(max(1, math.ceil(seconds)))}
    return problem(429, "Quota exceeded", error.problems, headers, limit=error.limit, usage=error.usage,
                   retry_after_seconds=seconds)


def _unread(request: HttpRequest, error: ValidationError) -> HttpResponse:
    return problem(422, "Invalid", [_mend(one) for one in error.errors] or [Problem("body", "cannot be read")])


def _mend(error: dict[str, Any]) -> Problem:
    """Say what the reader of a request found, as this API says it."""
    where = [str(part) for part in error["loc"] if part not in ("body", "query", "path", "header", "given")]
    if not where:
        return Problem("body", "must be a JSON object", error["type"])
    said = {"extra_forbidden": "there is no such field; leave it out", "missing": "must be given"}
    return Problem(".".join(where), said.get(error["type"], error["msg"].removeprefix("Value error, ")), error["type"])


def _path_parameter(request: HttpRequest) -> str:
    return next(iter(request.resolver_match.kwargs), "") if request.resolver_match else ""
