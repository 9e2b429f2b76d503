"""One call of an HTTP target: a POST of JSON that says which execution it is, signed, guarded and bounded.

httpcore, the engine under httpx, is used directly: what is needed beyond it is a hand on the connection, which it
offers and httpx does not. An answer is never decompressed (identity is asked for), so there are no bombs; of its body at
most `MAX_RESPONSE_BYTES` are read. Each call has a connection of its own.
"""
from __future__ import annotations

import functools
import json
import ssl
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import urlsplit

import certifi
import httpcore

from chrono_beat.core import callback
from chrono_beat.core.addresses import wrong_address
from chrono_beat.core.callback import HttpTarget, HttpTargetError
from chrono_beat.core.config import Config
from chrono_beat.targets.guard import AddressRefused, Deadline, GuardedBackend, Resolver, resolve

USER_AGENT = "chrono_beat"


class Call(NamedTuple):
    """Which execution a call is for.

    Args:
        idempotency_key: what the target should remember when it has succeeded.
        execution_id: id of the attempt.
        attempt: its number, from 1.
        scheduled_at: ISO text of the instant that the schedule named.
    """

    idempotency_key: str
    execution_id: str
    attempt: int
    scheduled_at: str


class Answer(NamedTuple):
    """A success."""

    status: int
    duration_ms: float


def call(target: HttpTarget, of: Call, config: Config, *, resolver: Resolver = resolve) -> Answer:
    """Call an HTTP target once.

    Args:
        target: what and where.
        of: which execution.
        config: for what may be called here.
        resolver: replaced in tests.

    Raises:
        HttpTargetError: anything but a 2xx came back, or nothing; it says whether another attempt is worth it.
    """
    # The settings may have become stricter since the job was saved.
    if wrong := callback.wrong_url(
        target.url, config.http_allowed_schemes, config.http_allowed_hosts, config.http_allowed_addresses,
    ):
        raise HttpTargetError(f"the URL {wrong}", final=True)
    host, began = urlsplit(target.url).hostname or "", time.monotonic()
    deadline = Deadline(target.timeout_seconds)
    backend = GuardedBackend(deadline, config.http_allowed_addresses, resolver)
    try:
        # From None: a library's text might repeat the URL, whose query may be a secret.
        status, retry_after, text = _exchange(target, request_headers(target, of), backend)
    except AddressRefused as refused:
        why = f"{host}: {refused}; HTTP_ALLOWED_ADDRESSES says which networks may be called nevertheless"
        raise HttpTargetError(why, final=True) from None
    except httpcore.TimeoutException as error:
        raise HttpTargetError(f"{host} did not answer in time ({type(error).__name__})") from None
    except (httpcore.NetworkError, httpcore.ProtocolError) as error:
        text = callback.without_secrets(str(error), target)[:callback.MAX_ANSWER_CHARACTERS]
        raise HttpTargetError(f"{host}: {type(error).__name__}: {text}") from None
    if 200 <= status < 300:
        return Answer(status, round((time.monotonic() - began) * 1000, 1))
    raise _refusal(host, status, retry_after, callback.without_secrets(text, target))


def wrong_place(url: str, config: Config, *, resolver: Resolver = resolve) -> str | None:
    """Say why a call of a URL would be refused at present, None where it would be made. Asks for the name and calls nobody.

    Args:
        url, config, resolver: as of a call.
    """
    if wrong := callback.wrong_url(
        url, config.http_allowed_schemes, config.http_allowed_hosts, config.http_allowed_addresses,
    ):
        return f"it {wrong}"
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        found = resolver(host, parts.port or 443)
    except (OSError, UnicodeError) as error:
        return f"{host} could not be resolved: {error}"
    refused = [wrong_address(address, config.http_allowed_addresses) for address in found]
    return f"{host}: {refused[0]}; see HTTP_ALLOWED_ADDRESSES" if refused and all(refused) else None


def request_headers(target: HttpTarget, of: Call, now: float | None = None) -> list[tuple[bytes, bytes]]:
    """Return the headers of a request.

    Args:
        target: what and where.
        of: which execution.
        now: seconds since the epoch, for the signature; None for the host's clock.
    """
    body = target.body.encode()
    headers = {
        "Host": urlsplit(target.url).netloc, "User-Agent": USER_AGENT, "Accept": "*/*",
        "Content-Type": "application/json", "Content-Length": str(len(body)), "Accept-Encoding": "identity",
        "Idempotency-Key": of.idempotency_key, "Chrono-Execution": of.execution_id, "Chrono-Attempt": str(of.attempt),
        "Chrono-Scheduled-At": of.scheduled_at,
    }
    if target.secrets:
        timestamp = int(time.time() if now is None else now)
        message_id = of.idempotency_key.replace(".", "_")      # the dot separates the parts of what is signed
        headers |= {"webhook-id": message_id, "webhook-timestamp": str(timestamp),
                    "webhook-signature": callback.signature(target.secrets, message_id, timestamp, body)}
    own: dict[str, str] = json.loads(target.headers) if target.headers else {}
    replaced = {name.lower() for name in own}
    merged = {name: value for name, value in headers.items() if name.lower() not in replaced} | own
    return [(name.encode("ascii"), value.encode("ascii")) for name, value in merged.items()]


def _exchange(
    target: HttpTarget, headers: Sequence[tuple[bytes, bytes]], backend: GuardedBackend,
) -> tuple[int, str, str]:
    """Return the status, Retry-After, and the beginning of the body as text."""
    seconds = target.timeout_seconds
    timeout = {"connect": min(seconds, callback.LONGEST_CONNECT_SECONDS), "read": seconds, "write": seconds,
               "pool": seconds}
    with (
        httpcore.ConnectionPool(ssl_context=_tls(), network_backend=backend, max_connections=1) as pool,
        pool.stream("POST", target.url, headers=headers, content=target.body.encode(),
                    extensions={"timeout": timeout}) as response,
    ):
        answered = {name.lower(): value for name, value in response.headers}
        read = b""
        for part in response.iter_stream():
            read += part[:callback.MAX_RESPONSE_BYTES - len(read)]
            if len(read) >= callback.MAX_RESPONSE_BYTES:
                break
        encoded = answered.get(b"content-encoding", b"identity") not in (b"", b"identity")
        text = "(encoded)" if encoded else read[:4 * callback.MAX_ANSWER_CHARACTERS].decode("utf-8", "replace")
        return response.status, answered.get(b"retry-after", b"").decode("latin-1"), text


@functools.cache
def _tls() -> ssl.SSLContext:
    """Return what certificates are checked with: the system's authorities, and those that come with certifi."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


def _refusal(host: str, status: int, retry_after: str, text: str) -> HttpTargetError:
    shown = " ".join("".join(c if c.isprintable() else " " for c in text).split())[:callback.MAX_ANSWER_CHARACTERS]
    said = f": {shown}" if shown else ""
    if 300 <= status < 400:
        return HttpTargetError(f"{host} answered {status}, a redirect, which is not followed: give the final URL", final=True)
    if not callback.is_retriable(status):
        return HttpTargetError(f"{host} answered {status}{said}", final=True)
    asked = callback.retry_after_seconds(retry_after, datetime.now(UTC)) if retry_after else None
    return HttpTargetError(f"{host} answered {status}{said}", retry_after_seconds=asked)
