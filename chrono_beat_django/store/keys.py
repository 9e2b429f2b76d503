"""Execution ids taken apart into the database's key, since only that key leads to one day's table."""
from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from chrono_beat.core.ids import parse_instant

_EXECUTION_ID = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}):([0-9TZ.]{16,23}):([1-9]\d{0,8})")


class Key(NamedTuple):
    """(job_id, scheduled_at, attempt) of an execution row."""

    job_id: str
    scheduled_us: int
    attempt: int


def split(execution_ids: Iterable[str]) -> dict[str, Key]:
    """Return {execution id: key}; a text that can't be a row's id is left out."""
    instants: dict[str, int | None] = {}
    keys: dict[str, Key] = {}
    for execution_id in execution_ids:
        found = _EXECUTION_ID.fullmatch(execution_id)
        if not found:
            continue
        job_id, instant, attempt = found.groups()
        if instant not in instants:
            try:
                instants[instant] = parse_instant(instant)
            except ValueError:
                instants[instant] = None
        scheduled_us = instants[instant]
        if scheduled_us is not None:
            keys[execution_id] = Key(job_id, scheduled_us, int(attempt))
    return keys
