"""Checks of single values that a user gives: each returns a sentence, or the value in its stored form beside one.

The sentences begin after the field's name, which the caller puts in front: "must be a whole number, not a str".
"""
from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from chrono_beat.core.records import CONCURRENCY_POLICIES

MAX_NAME_CHARACTERS = 200
MAX_TASK_CHARACTERS = 255
MAX_NOTE_CHARACTERS = 2_000
MAX_GROUP_CHARACTERS = 100
SHOWN_CHARACTERS = 60

_TASK = re.compile(r"[A-Za-z_][\w\-]*(?:[.:/][\w\-]+)*", re.ASCII)
_TENANT = re.compile(r"[A-Za-z0-9_-]{1,63}")
_POOL_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


class Number(NamedTuple):
    """What a number may be."""

    low: float
    high: float
    unit: str
    whole: bool = False
    optional: bool = True


def wrong_name(name: str) -> str | None:
    """Say why this cannot be a job's name, None where it can; the functions below likewise."""
    if not name:
        return "must not be empty"
    if len(name) > MAX_NAME_CHARACTERS:
        return f"may have {MAX_NAME_CHARACTERS} characters; this has {len(name)}"
    if not name.isprintable():
        return "must consist of printable characters, without line ends or tabs"
    return None


def wrong_task(task: str, allowed: Iterable[str], known: Collection[str] | None) -> str | None:
    if not task:
        return "must not be empty: give the name of a Celery task, such as shop.tasks.send_report"
    if known is not None and task in known and len(task) <= MAX_TASK_CHARACTERS and task.isprintable():
        pass                                            # Celery takes any text as a name, so what exists is fine
    elif len(task) > MAX_TASK_CHARACTERS or not _TASK.fullmatch(task):
        return f"{cut(task)} is not a task name; one looks like shop.tasks.send_report"
    if not any(fnmatch.fnmatchcase(task, pattern) for pattern in allowed):
        return f"{cut(task)} is not among the tasks that jobs may run here; ALLOWED_TASKS has {', '.join(allowed)}"
    if known is not None and task not in known:
        near = difflib.get_close_matches(task, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else "; is the module that defines it imported?"
        return f"there is no task {cut(task)}{hint}"
    return None


def wrong_celery_task(task: str, allowed: Iterable[str]) -> str | None:
    """Say why a message's task may not run here. Celery takes any text as a name, so its form is not looked at."""
    known = {task} if len(task) <= MAX_TASK_CHARACTERS and task.isprintable() else None
    return wrong_task(task, allowed, known)


def wrong_tenant(slug: str) -> str | None:
    if _TENANT.fullmatch(slug):
        return None
    return f"{cut(slug)} is not a tenant's slug: 1 to 63 letters, digits, - and _"


def wrong_pool(pool: str, default: str) -> str | None:
    if pool in ("", default):
        return None
    prefix, _, word = pool.partition(f"{default}.")
    if not prefix and _POOL_WORD.fullmatch(word):
        return None
    return f"{cut(pool)} is not a pool: give {default}, or {default}. and a word such as {default}.gold"


def is_pool(queue: str, default: str) -> bool:
    """Say whether a Celery queue is a pool: the default one, or one whose name begins with it and a dot."""
    return queue == default or queue.startswith(default + ".")


def wrong_concurrency(policy: str) -> str | None:
    return not_one_of(policy, CONCURRENCY_POLICIES)


def wrong_group(group: str) -> str | None:
    if len(group) <= MAX_GROUP_CHARACTERS and group == group.strip() and (not group or group.isprintable()):
        return None
    return f"{cut(group)} is not a group: at most {MAX_GROUP_CHARACTERS} printable characters, no blanks around them"


def wrong_note(note: str) -> str | None:
    if len(note) <= MAX_NOTE_CHARACTERS:
        return None
    return f"may have {MAX_NOTE_CHARACTERS:,} characters; this has {len(note):,}"


def unstorable(text: str) -> str | None:
    """Say why no database keeps this text, None where one does."""
    if "\0" in text:
        return "holds a NUL character, which no database keeps"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "holds half of a surrogate pair, which no database keeps"
    return None


def not_one_of(word: str, words: tuple[str, ...]) -> str | None:
    if word in words:
        return None
    near = difflib.get_close_matches(word.lower()[:40], words, n=1)
    return f"{cut(word)} is not one of {', '.join(words)}" + (f"; did you mean {near[0]}?" if near else "")


def number(value: object, allowed: Number) -> tuple[Any, str]:
    """Return a number in its stored form, and what is wrong with it ("" for nothing)."""
    unit = f" {allowed.unit}" if allowed.unit else ""
    kind = "a whole number" if allowed.whole else "a number"
    if value is None:
        return None, "" if allowed.optional else f"must be {kind}{' of' + unit if unit else ''}, not empty"
    if isinstance(value, timedelta) and allowed.unit:
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or _nan(value):
        shown = value if isinstance(value, float) else kind_of(value)
        return value, f"must be {kind}{' of' + unit if unit else ''}, not {shown}"
    if not allowed.low <= value <= allowed.high:
        return value, f"must be from {allowed.low:g} to {allowed.high:,.0f}{unit}"
    if allowed.whole and value != int(value):
        return value, f"must be a whole number{' of' + unit if unit else ''}, not {value:g}"
    return (int(value) if allowed.whole else float(value)), ""


def _nan(value: float) -> bool:
    return value != value


def instant(value: object) -> tuple[datetime | None, str]:
    """Return an aware UTC datetime, and what is wrong with what was given ("" for nothing)."""
    if value is None or value == "":
        return None, ""
    if isinstance(value, str):
        text = value
        try:
            value = datetime.fromisoformat(text)
        except ValueError:
            return None, f"{cut(text)} is not an instant; one looks like 2026-01-02T09:00:00+00:00"
    if not isinstance(value, datetime):
        return None, f"must be a datetime with a zone, not {kind_of(value)}"
    if value.tzinfo is None or value.utcoffset() is None:
        return None, "has no zone; write 2026-01-02T09:00:00+00:00, or in Python datetime(2026, 1, 2, 9, tzinfo=UTC)"
    try:
        utc = value.astimezone(UTC)
    except OverflowError:
        return None, "is beyond the calendar"
    if not 1970 <= utc.year < 9999:
        return None, "must lie between the years 1970 and 9998"
    return utc, ""


def kind_of(value: object) -> str:
    """Name the type of a value for a message: "a str", "an int", "empty"."""
    if value is None:
        return "empty"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def cut(text: str) -> str:
    """Return a text as a message may repeat it: quoted, escaped where it does not print, not too long."""
    short = text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"
    return f'"{short}"' if short.isprintable() else ascii(short)
