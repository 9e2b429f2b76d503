"""Arguments and headers of a job as JSON text: refused at the edge, or kept byte for byte until the task runs.

A value that JSON has no form for (a datetime, a UUID, a Decimal) would fail when the message is built, at night, with
nobody looking; so it is refused where the job is defined, and the message names the key. Nothing here recurses: a text
of a million opening brackets costs a look at 64 of them.
"""
from __future__ import annotations

import datetime
import decimal
import json
import math
import re
import uuid
from collections.abc import Mapping
from typing import Any

from chrono_beat.core.errors import Problem

MAX_NESTING = 64
"""Deepest nesting of arrays and objects; far below the recursion limit of any reader of the message."""

MAX_DIGITS = 4_300
"""Digits of the longest whole number: Python refuses to read or write longer ones."""

MAX_HEADERS_BYTES = 8_192
"""Bytes of all further message headers of a job, as JSON."""

SHOWN_KEY_CHARACTERS = 60

RESERVED_HEADERS = frozenset({
    "lang", "task", "id", "shadow", "eta", "expires", "group", "group_index", "retries", "timelimit", "root_id",
    "parent_id", "argsrepr", "kwargsrepr", "origin", "ignore_result", "replaced_task_nesting", "stamped_headers",
    "stamps", "delivery_info", "properties", "headers", "reply_to", "correlation_id", "hostname", "args", "kwargs",
    "callbacks", "errbacks", "chain", "chord", "utc", "taskset", "is_eager", "called_directly", "logfile", "loglevel",
    "compression",
})
RESERVED_PREFIX = "chrono"

_AS_TEXT: tuple[tuple[type, str], ...] = (
    (datetime.datetime, "give its text, value.isoformat()"),
    (datetime.date, "give its text, value.isoformat()"),
    (datetime.time, "give its text, value.isoformat()"),
    (datetime.timedelta, "give its seconds, value.total_seconds()"),
    (uuid.UUID, "give its text, str(value)"),
    (decimal.Decimal, "give its text, str(value)"),
    (bytes, "give a text, for instance in base64"),
    (set, "give a list"),
    (frozenset, "give a list"),
)
_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}]', re.DOTALL)
_TOO_BIG = 10**MAX_DIGITS


class Unreadable(Exception):
    """A text that is refused, and why; it is turned into a Problem where it is known what was given."""

    def __init__(self, message: str, code: str = "invalid") -> None:
        self.message = message
        self.code = code
        super().__init__(message)


def arguments(args: object, kwargs: object, max_bytes: int) -> tuple[str, str, list[Problem]]:
    """Return positional and keyword arguments as JSON texts, and what is wrong with them.

    Args:
        args: a list or tuple of values, or a JSON array as text, which is kept byte for byte.
        kwargs: a dict of values, None for none, or a JSON object as text, likewise.
        max_bytes: limit of both texts together, in UTF-8.
    """
    problems: list[Problem] = []
    texts = {"args": "[]", "kwargs": "{}"}
    for field, given, kind in (("args", args, list), ("kwargs", {} if kwargs is None else kwargs, dict)):
        try:
            texts[field] = _text(given, kind, max_bytes)
        except Unreadable as refused:
            problems.append(Problem(field, refused.message, refused.code))
    sizes = {field: len(text.encode()) for field, text in texts.items()}
    if not problems and sum(sizes.values()) > max_bytes:
        larger = max(sizes, key=lambda field: sizes[field])
        problems.append(Problem(larger, _too_large(max_bytes, sum(sizes.values())), "too_large"))
    return texts["args"], texts["kwargs"], problems


def read(text: str | bytes) -> Any:
    """Return what a JSON text says; what readers understand in different ways is refused: NaN, or a key that is there twice.

    Raises:
        Unreadable: it is no such text.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise Unreadable(f"is not JSON: {error.msg} ({where})") from None
    except UnicodeDecodeError:
        raise Unreadable("is not UTF-8") from None
    except ValueError:
        raise Unreadable(f"holds a number of more than {MAX_DIGITS} digits; give it as text") from None
    except RecursionError:
        raise Unreadable(_too_deep(), "too_deep") from None


def headers(given: object) -> tuple[str, list[Problem]]:
    """Return further message headers as a JSON object in text, "" for none, and what is wrong with them.

    Args:
        given: a dict, None, or a JSON object as text; values are texts, numbers, booleans or null.
    """
    if given is None or given == "" or given == {}:
        return "", []
    try:
        text = _text(given, dict, MAX_HEADERS_BYTES)
    except Unreadable as refused:
        much = f"may take {MAX_HEADERS_BYTES:,} bytes of JSON together"
        return "", [Problem("headers", much if refused.code == "too_large" else refused.message, refused.code)]
    problems = []
    for key, value in json.loads(text).items():
        if key in RESERVED_HEADERS or key.lower().startswith(RESERVED_PREFIX):
            problems.append(Problem("headers", f"{_shown(key)} is set by Celery or chrono_beat; choose another name"))
        elif not key.isprintable() or not key.strip():
            problems.append(Problem("headers", f"{_shown(key)} is not a name: printable characters only"))
        elif isinstance(value, (list, dict)):
            problems.append(Problem("headers", f"{_shown(key)} must be a text, a number, true, false or null"))
    return ("" if text.strip() == "{}" else text), problems


def _text(given: object, kind: type, max_bytes: int) -> str:
    """Return the JSON text of an array (kind list) or object (kind dict), or raise Unreadable."""
    if isinstance(given, str):
        _check_text(given, kind, max_bytes)
        return given
    if kind is list and not isinstance(given, (list, tuple)):
        raise Unreadable(f"must be a list, not {_type_name(given)}")
    if kind is dict and not isinstance(given, Mapping):
        raise Unreadable(f"must be a dict with texts as keys, not {_type_name(given)}")
    _check_values(given, max_bytes, native=True)
    text = json.dumps(dict(given) if isinstance(given, Mapping) else given, ensure_ascii=False, allow_nan=False)
    if len(text) > max_bytes:
        raise Unreadable(_too_large(max_bytes, len(text.encode())), "too_large")
    return text


def _check_text(text: str, kind: type, max_bytes: int) -> None:
    if len(text) > max_bytes:
        raise Unreadable(_too_large(max_bytes, len(text.encode("utf-8", "replace"))), "too_large")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Unreadable("holds half of a surrogate pair, which no message can carry") from None
    depth = 0
    for found in _BRACKETS.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found.group()[:1], 0)
        if depth > MAX_NESTING:
            raise Unreadable(_too_deep(), "too_deep")
    value = read(text)
    if not isinstance(value, kind):
        wanted = 'a JSON array, such as ["a", 1]' if kind is list else 'a JSON object, such as {"hold": 42}'
        raise Unreadable(f"must be {wanted}")
    _check_values(value, max_bytes, native=False)


def _check_values(root: object, max_bytes: int, *, native: bool) -> None:
    """Walk all values; raise Unreadable at the first that JSON cannot carry, with its place.

    Each value takes a byte of text at least, so counting them bounds the walk also where parts are shared or refer to
    themselves.
    """
    seen = 0
    pending: list[tuple[object, str, int]] = [(root, "", 1)]
    while pending:
        value, place, depth = pending.pop()
        seen += 1
        if seen + (len(value) if isinstance(value, (Mapping, list, tuple)) else 0) > max_bytes:
            raise Unreadable(_too_large(max_bytes, None), "too_large")
        if isinstance(value, Mapping):
            _check_object(value, place, native)
            children: list[tuple[object, str]] = [(v, f"{place}.{k}" if place else str(k)) for k, v in value.items()]
        elif isinstance(value, (list, tuple)):
            children = [(v, f"{place}[{i}]") for i, v in enumerate(value)]
        else:
            _check_scalar(value, place)
            continue
        if depth > MAX_NESTING:
            raise Unreadable(_too_deep(), "too_deep")
        pending.extend((child, where, depth + 1) for child, where in children)


def _check_object(value: Mapping[Any, Any], place: str, native: bool) -> None:
    if native and not isinstance(value, dict) and place:
        raise Unreadable(f"{_shown(place)} is {_type_name(value)}; give a dict")
    for key in value:
        if not isinstance(key, str):
            inside = f" in {_shown(place)}" if place else ""
            raise Unreadable(f"the key {_shown(repr(key))}{inside} is {_type_name(key)}; JSON has texts as keys only")
        _check_scalar(key, f"{place}.{key}" if place else key)
    if "__type__" in value and "__value__" in value:
        where = _shown(place) if place else "the object"
        raise Unreadable(f"{where} has the keys __type__ and __value__, which Celery's messages keep for themselves")


def _check_scalar(value: object, place: str) -> None:
    where = _shown(place) if place else "the value"
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Unreadable(f"{where} holds half of a surrogate pair, which no message can carry") from None
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise Unreadable(f"{where} is {value}, which JSON does not have; give null or a text")
    elif isinstance(value, int):
        if abs(value) >= _TOO_BIG:
            raise Unreadable(f"{where} has more than {MAX_DIGITS} digits; give it as text")
    elif value is not None:
        for kind, mend in _AS_TEXT:
            if isinstance(value, kind):
                raise Unreadable(f"{where} is {_type_name(value)}, which JSON does not have; {mend}")
        raise Unreadable(f"{where} is {_type_name(value)}, which JSON does not have; give texts, numbers, lists, dicts")


def _refuse_constant(name: str) -> None:
    raise Unreadable(f"holds {name}, which JSON does not have; give null or a text")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise Unreadable(f"has the key {_shown(key)} twice")
        found[key] = value
    return found


def _too_large(max_bytes: int, found: int | None) -> str:
    much = f"; these take {found:,}" if found is not None else ""
    return f"args and kwargs may take {max_bytes:,} bytes of JSON together{much}. Store the data and give its key"


def _too_deep() -> str:
    return f"is nested deeper than {MAX_NESTING} levels, or refers to itself"


def _type_name(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _shown(place: str) -> str:
    short = place if len(place) <= SHOWN_KEY_CHARACTERS else place[:SHOWN_KEY_CHARACTERS] + "…"
    return f'"{short.encode("ascii", "backslashreplace").decode() if not short.isprintable() else short}"'
