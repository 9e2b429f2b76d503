"""What an HTTP target may be, what its request says, and what an answer means.

Pure: a URL, headers and answers are judged here; who sends is :mod:`chrono_beat.targets`.

Signatures are those of Standard Webhooks (https://www.standardwebhooks.com): HMAC-SHA256 over ``id.timestamp.body``
with the secret's bytes, in base64, as ``v1,…``; while a secret is replaced, both sign, with a blank between.
"""
from __future__ import annotations

import base64
import fnmatch
import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from chrono_beat.core import addresses
from chrono_beat.core.errors import ChronoError, Problem

HTTP_TASK = "chrono_beat.http"
"""Name of the built-in task that calls HTTP targets."""

DEFAULT_TIMEOUT_SECONDS = 30.0
LONGEST_CONNECT_SECONDS = 10.0
MAX_URL_CHARACTERS = 2_000
MAX_HEADERS = 32
MAX_HEADER_BYTES = 8_192
MAX_RESPONSE_BYTES = 65_536
"""Bytes of an answer that are read at most; the rest is left unread."""
MAX_ANSWER_CHARACTERS = 500
"""Characters of an answer that is no success which history keeps."""

MASK = "********"
"""Stands for a secret wherever one is shown; sent back, it means the secret that is stored."""

SECRET_PREFIX = "whsec_"
SECRET_BYTES = 32
LEAST_SECRET_BYTES = 24
"""What Standard Webhooks ask for."""

_RETRIABLE = frozenset({408, 425, 429})
_SECRET = re.compile(r"auth|token|secret|passw|cookie|signature|session|credential|api[-_]?key|[-_]key$|^key$", re.IGNORECASE)
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_VALUE = re.compile(r"[\x20-\x7e\t]*")
_RESERVED = frozenset({
    "host", "content-length", "content-type", "content-encoding", "transfer-encoding", "connection", "keep-alive", "upgrade",
    "te", "trailer", "expect", "accept-encoding", "idempotency-key",
})
_RESERVED_PREFIXES = ("chrono-", "webhook-", "proxy-")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpTarget:
    """All that one request to an HTTP target is made of; read from the database when it is made.

    Args:
        url: where to.
        body: the JSON object that is sent, as text.
        headers: JSON object of further headers, as text; "" for none.
        timeout_seconds: bound of the whole request.
        secrets: with which it is signed: the tenant's present one, then the one before while it is replaced.
    """

    url: str = field(repr=False)
    body: str = field(repr=False)
    headers: str = field(default="", repr=False)
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    secrets: Sequence[str] = field(default=(), repr=False)


class HttpTargetError(ChronoError):
    """A call of an HTTP target was no success.

    Args:
        text: for history: which host, what happened; without secrets.
        final: trying again is of no use.
        retry_after_seconds: for how long the target asked to be left alone; None where it did not.
    """

    def __init__(self, text: str, final: bool = False, retry_after_seconds: float | None = None) -> None:
        super().__init__(text, final, retry_after_seconds)             # what pickle makes a copy from
        self.final = final
        self.retry_after_seconds = retry_after_seconds

    def __str__(self) -> str:
        return str(self.args[0])


# -- what a user says -------------------------------------------------------------------------------------------------

def wrong_url(url: str, schemes: Iterable[str], hosts: Iterable[str], allowed_addresses: Sequence[str]) -> str | None:
    """Say why jobs here may not call this URL, None where they may. Its address is judged when it is connected to."""
    if not url:
        return "must not be empty: give the URL that is called, such as https://shop.example/hooks/report"
    if len(url) > MAX_URL_CHARACTERS:
        return f"may have {MAX_URL_CHARACTERS:,} characters; this has {len(url):,}"
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        return "must be plain ASCII without blanks or backslashes: percent-encode the path, write the host as xn--…"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:                                   # its text repeats what may be a part of a password
        return "is no URL: its port must be a number, and brackets stand around an IPv6 address only"
    known = tuple(schemes)
    if parts.scheme not in known:
        return f"must begin with {' or '.join(f'{scheme}://' for scheme in known)} (setting HTTP_ALLOWED_SCHEMES)"
    if not host or port == 0:
        return "names no host; one looks like https://shop.example/hooks/report"
    if "@" in parts.netloc:
        return "holds a user name or a password; give them as the header Authorization, which is masked"
    if parts.fragment:
        return "ends in a fragment (#…), which is never sent; leave it out"
    patterns = tuple(hosts)
    if not any(fnmatch.fnmatchcase(host.rstrip("."), pattern.lower()) for pattern in patterns):
        return f"may not lead to {host[:100]}: HTTP_ALLOWED_HOSTS has {', '.join(patterns)}"
    if _is_address(host) and (wrong := addresses.wrong_address(host, allowed_addresses)):
        return f"{wrong}; HTTP_ALLOWED_ADDRESSES says which networks may be called nevertheless"
    return None


def _is_address(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit() and host.count(".") == 3


def headers_text(given: object) -> tuple[str, list[Problem]]:
    """Return a job's own HTTP headers as JSON text ("" for none), and what is wrong with them."""
    values, wrong = _object(given)
    found = [] if not wrong else [Problem("headers", wrong)]
    too_many = Problem("headers", f"may be {MAX_HEADERS} headers and {MAX_HEADER_BYTES:,} bytes")
    if len(values) > MAX_HEADERS:
        return "", [too_many]
    names: set[str] = set()
    for name, value in values.items():
        lower = name.lower()
        if not _NAME.fullmatch(name):
            found.append(Problem("headers", f"{name[:40]!r} is not the name of an HTTP header"))
        elif lower in _RESERVED or lower.startswith(_RESERVED_PREFIXES):
            found.append(Problem("headers", f'"{name}" is set by chrono_beat; leave it out'))
        elif lower in names:
            found.append(Problem("headers", f'"{name}" is there twice'))
        elif not isinstance(value, str) or not _VALUE.fullmatch(value) or value != value.strip():
            found.append(Problem("headers", f'"{name}" must be a text of printable ASCII characters in one line'))
        elif value == MASK:
            found.append(Problem("headers", f'"{name}" is the mask that stands for a secret; give the value'))
        names.add(lower)
    if found:
        return "", found                                     # what is no text may have no JSON form at all
    text = json.dumps(values, ensure_ascii=True) if values else ""
    return text, [too_many] if len(text) > MAX_HEADER_BYTES else []


def _object(given: object) -> tuple[dict[str, Any], str]:
    if isinstance(given, str) and given.strip():
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            return {}, 'must be a JSON object, such as {"X-Shop": "berlin"}'
    if given is None or given == "":
        return {}, ""
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        return {}, "must be a dict of texts"
    return dict(given), ""


# -- secrets ----------------------------------------------------------------------------------------------------------

def is_secret(header: str) -> bool:
    """Say whether a header's name says that its value is not for everybody's eyes."""
    return bool(_SECRET.search(header))


def masked(headers: object) -> str:
    """Return headers as they may be shown: JSON text with `MASK` for the values of secret ones; "" for none.

    Text that is no JSON object is masked as a whole.
    """
    values, wrong = _object(headers)
    if wrong:
        return MASK
    shown = {name: MASK if is_secret(name) else value for name, value in values.items()}
    return json.dumps(shown, ensure_ascii=False) if shown else ""


def unmasked(given: object, stored: str) -> object:
    """Return given headers with the stored values where the mask was sent back."""
    values, wrong = _object(given)
    before, _ = _object(stored)
    if wrong or MASK not in values.values():
        return given
    if given == masked(stored):
        return stored                                    # untouched: byte for byte as it was
    return {name: before.get(name, value) if value == MASK else value for name, value in values.items()}


LEAST_TOKEN_CHARACTERS = 16
"""A part of a URL's path that is as long may be a token."""


def without_secrets(text: str, target: HttpTarget) -> str:
    """Return a text with the values of secret headers, the signing secrets, and what may be a token of the URL taken out."""
    values, _ = _object(target.headers)
    secrets = {value for name, value in values.items() if is_secret(name) and isinstance(value, str) and value}
    secrets |= {word for value in secrets for word in value.split() if len(word) >= 6} | {*target.secrets}
    parts = urlsplit(target.url)
    secrets |= {value for _, value in parse_qsl(parts.query) if len(value) >= 6}
    secrets |= {segment for segment in parts.path.split("/") if len(segment) >= LEAST_TOKEN_CHARACTERS}
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def encode_secret(random: bytes) -> str:
    """Write a signing secret as Standard Webhooks do."""
    return SECRET_PREFIX + base64.b64encode(random).decode()


def wrong_secret(text: str) -> str | None:
    """Say why a text is no signing secret, without repeating it; None where it is one."""
    try:
        random = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True) if text.startswith(SECRET_PREFIX) else b""
    except ValueError:
        random = b""
    if len(random) >= LEAST_SECRET_BYTES:
        return None
    return f"must be texts of {SECRET_PREFIX} and {LEAST_SECRET_BYTES} random bytes or more in base64"


def signature(secrets: Sequence[str], message_id: str, timestamp: int, body: bytes) -> str:
    """Return the value of the header webhook-signature.

    Args:
        secrets: one or two, as `encode_secret` writes them.
        message_id: the header webhook-id.
        timestamp: the header webhook-timestamp, seconds since the epoch.
        body: the bytes that are sent.
    """
    signed = f"{message_id}.{timestamp}.".encode() + body
    digests = (hmac.new(base64.b64decode(secret.removeprefix(SECRET_PREFIX)), signed, hashlib.sha256).digest()
               for secret in secrets)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)


# -- answers ----------------------------------------------------------------------------------------------------------

def is_retriable(status: int) -> bool:
    """Say whether a target that answered so is worth another attempt."""
    return status in _RETRIABLE or status >= 500


def retry_after_seconds(header: str, now: datetime) -> float | None:
    """Read ``Retry-After``: seconds, or an HTTP date (RFC 9110, section 10.2.3); None where it says nothing useful.

    Args:
        header: its value.
        now: aware; what a date is compared with.
    """
    text = header.strip()
    if text.isdecimal() and text.isascii():
        return float(text) if len(text) <= 10 else 1e10
    try:
        instant = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):     # whatever a made-up date does to the parser
        return None
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return max(0.0, (instant - now).total_seconds())
