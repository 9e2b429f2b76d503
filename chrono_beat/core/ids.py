"""Names of things: job ids, occurrence keys, execution ids, and the hashes that place them.

An occurrence key is ``job_id:20260102T090000Z``; it is the idempotency key and the Celery task id. An execution id adds
the attempt: ``job_id:20260102T090000Z:1``. Both can be worked out anew by anyone who knows the job and the instant, so a
repeat delivery is recognisable without anybody having to remember an id.
"""
from __future__ import annotations

import hashlib
import re
import uuid
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_INSTANT = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)(?:\.(\d{1,6}))?Z")


def to_us(instant: datetime) -> int:
    """Return microseconds since 1970-01-01T00:00Z of an aware datetime, exactly.

    Raises:
        ValueError: the datetime is naive.
    """
    if instant.tzinfo is None:
        raise ValueError("a datetime without a zone was given where an instant is needed")
    return (instant - EPOCH) // _MICROSECOND


def from_us(us: int) -> datetime:
    """Return the aware UTC datetime of *us* microseconds since the epoch, exactly."""
    return EPOCH + timedelta(microseconds=us)


def format_instant(us: int) -> str:
    """Write an instant as it stands in ids: ``20260102T090000Z``, a fraction only if it is not zero.

    Args:
        us: microseconds since the epoch.
    """
    whole = from_us(us).strftime("%Y%m%dT%H%M%S").rjust(15, "0")
    fraction = f".{us % 1_000_000:06d}".rstrip("0") if us % 1_000_000 else ""
    return f"{whole}{fraction}Z"


def parse_instant(text: str) -> int:
    """Read what :func:`format_instant` wrote; returns microseconds since the epoch.

    Raises:
        ValueError: the text has another form, or names no instant.
    """
    found = _INSTANT.fullmatch(text)
    if not found:
        raise ValueError(f"not an instant of the form 20260102T090000Z: {text[:40]!r}")
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    micro = int((found.group(7) or "0").ljust(6, "0"))
    return to_us(datetime(year, month, day, hour, minute, second, micro, tzinfo=UTC))


def occurrence_key(job_id: str, scheduled_us: int) -> str:
    """Return the idempotency key of a job's occurrence (also its Celery task id)."""
    return f"{job_id}:{format_instant(scheduled_us)}"


def execution_id(job_id: str, scheduled_us: int, attempt: int) -> str:
    """Return the id of one attempt (from 1) at an occurrence."""
    return f"{job_id}:{format_instant(scheduled_us)}:{attempt}"


class ExecutionId(NamedTuple):
    """The parts of an execution id."""

    job_id: str
    scheduled_us: int
    attempt: int


def parse_execution_id(text: str) -> ExecutionId:
    """Take an execution id apart.

    Raises:
        ValueError: the text is not an execution id.
    """
    job_id, instant, attempt = (text.split(":") + ["", "", ""])[:3]
    if not job_id or text.count(":") != 2 or not attempt.isdigit() or int(attempt) < 1:
        raise ValueError(f"not an execution id of the form job:instant:attempt: {text[:80]!r}")
    return ExecutionId(job_id, parse_instant(instant), int(attempt))


def new_job_id(now_us: int, random_bits: int) -> str:
    """Return a time-ordered UUID (version 7, RFC 9562 section 5.7) as text.

    Args:
        now_us: microseconds since the epoch.
        random_bits: at least 74 random bits, from the caller.
    """
    value = (now_us // 1000 & (1 << 48) - 1) << 80
    value |= 0x7 << 76 | (random_bits >> 62 & 0xFFF) << 64 | 0b10 << 62 | random_bits & (1 << 62) - 1
    return str(uuid.UUID(int=value))


def stable_hash(*parts: str) -> int:
    """Return a 64-bit hash of some texts that is the same in every process, release and machine."""
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def partition_of(tenant: str, job_id: str, partitions: int) -> int:
    """Return the number of the slice of the due index that a job lives in (0 … partitions − 1)."""
    return stable_hash(tenant, job_id) % partitions


def lane_of(tenant: str, lanes: int) -> int:
    """Return the number of the slice of the Redis key space that a tenant lives in (0 … lanes − 1)."""
    return stable_hash("lane", tenant) % lanes if lanes > 1 else 0


def spread_us(job_id: str, spread_seconds: int) -> int:
    """Return a job's own offset within its spread, in microseconds: stable over restarts, renames and dispatchers."""
    return stable_hash("spread", job_id) % (spread_seconds * 1_000_000) if spread_seconds > 0 else 0
