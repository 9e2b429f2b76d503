"""The Celery message of an execution: protocol 2, as the JSON document that kombu's virtual transports carry.

A burst needs 30,000 messages a second, and composing one from its parts costs more than that allows. All that an
execution adds to its job's content is ids, instants and counts; so everything else is written once, as the pieces
between them, and a message is these pieces joined (`Template.build`).

Arguments are texts and stay so: they stand in the body byte for byte as they were saved, and are looked at once a
template, to keep out what a worker could not read (`InvalidContent`).
"""
from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any

from chrono_beat.core import payload
from chrono_beat.core.callback import HTTP_TASK
from chrono_beat.core.config import Config
from chrono_beat.core.errors import ChronoError
from chrono_beat.core.field_checks import wrong_group, wrong_task
from chrono_beat.core.ids import from_us, occurrence_key
from chrono_beat.core.records import CONCURRENCY_POLICIES, KEY_SCOPES, Content

HEADER = "chrono"
HEADER_VERSION = 1
ORIGIN = "chrono_beat"
EMBED = '{"callbacks":null,"errbacks":null,"chain":null,"chord":null}'

MAX_TEMPLATES = 4_096
"""Templates that are kept; a burst of more jobs than this writes each of them once."""

MAX_SHAPES = 1_024
"""Combinations of task, options and headers that are kept; each is as large as its headers."""

MAX_KEPT_CHARACTERS = 8_192
"""Characters of arguments up to which a template is kept, so that all of them together stay small."""

MAX_SHOWN_CHARACTERS = 1_024
"""Characters of the arguments that worker events and logs show."""

MAX_INSTANTS = 4_096
"""Texts of instants that are kept: the jobs of a burst share theirs."""

LONGEST_SECONDS = 366 * 86_400.0

_HEADERS, _GROUP = Content._fields.index("headers"), Content._fields.index("exclusion_group")


class InvalidContent(ChronoError, ValueError):
    """What a job says is to be run makes no message that a worker could read; the text names the field."""


class _Shape:
    """What a content comes to without its tenant, its name and its arguments: checked and written once.

    Args:
        content: of any of the jobs that share it.
        pool: name of the pool they go to.
        config: for the limits that a deployment sets.

    Raises:
        InvalidContent: no content of this shape makes a message.
    """

    __slots__ = ("after_body", "before_id", "before_job", "by_attempt", "concurrency", "middle")

    def __init__(self, content: Content, pool: str, config: Config) -> None:
        _check(content, config)
        self.concurrency = content.concurrency
        self.by_attempt = content.key_scope == "attempt"
        routed = encode_basestring(pool)
        hard, soft = _seconds(content.max_duration_seconds), _seconds(content.soft_limit_seconds)
        self.after_body = (
            f',"content-encoding":"utf-8","content-type":"application/json",'
            f'"headers":{{{_headers(content)}"lang":"py","task":{encode_basestring(content.task)},"shadow":null,'
            f'"eta":null,"expires":null,"group":null,"group_index":null,"timelimit":[{hard},{soft}],"parent_id":null,'
        )
        self.before_id = (
            f',"origin":"{ORIGIN}","ignore_result":false,"replaced_task_nesting":0,"stamped_headers":null,"stamps":{{}},'
            f'"id":'
        )
        self.before_job = f',"pool":{routed},"job":'
        self.middle = (
            f'}}}},"properties":{{"body_encoding":"utf-8","delivery_info":{{"exchange":"","routing_key":{routed}}},'
            f'"delivery_mode":2,"priority":0,"reply_to":"","correlation_id":'
        )


class Template:
    """All of a message that does not change from one execution of a job's content to the next.

    Args:
        content: what is to be run.
        pool: name of the pool it goes to, never empty.
        config: for the limits that a deployment sets.
        shape: of this content and pool, where it is there already.

    Raises:
        InvalidContent: the content makes no message.
    """

    __slots__ = ("_by_attempt", "_head", "_middle", "_neck", "_tail", "concurrency", "content", "pool", "priority")

    def __init__(self, content: Content, pool: str, config: Config, shape: _Shape | None = None) -> None:
        if shape is None:
            shape = _Shape(content, pool, config)
        args, kwargs = content.args, content.kwargs
        _check_arguments(args, kwargs, config.max_payload)
        if wrong := wrong_group(content.exclusion_group):
            raise InvalidContent(f"exclusion_group: {wrong}")
        self.content = content
        self.pool = pool
        self.priority = content.priority
        self.concurrency = shape.concurrency
        self._by_attempt = shape.by_attempt
        self._head = (
            f'{{"body":{encode_basestring(f"[{args},{kwargs},{EMBED}]")}{shape.after_body}'
            f'"argsrepr":{encode_basestring(args[:MAX_SHOWN_CHARACTERS])},'
            f'"kwargsrepr":{encode_basestring(kwargs[:MAX_SHOWN_CHARACTERS])}{shape.before_id}'
        )
        self._neck = (
            f',"{HEADER}":{{"v":{HEADER_VERSION},"tenant":{encode_basestring(content.tenant)},'
            f'"name":{encode_basestring(content.name)}{shape.before_job}'
        )
        self._middle = shape.middle
        self._tail = ',"delivery_tag":'
        if not (self._head.isascii() and self._neck.isascii() and self._middle.isascii()):
            try:
                f"{self._head}{self._neck}{self._middle}".encode()
            except UnicodeEncodeError:
                raise InvalidContent("content: holds half of a surrogate pair, which no message can carry") from None

    def build(
        self, execution_id: str, job_id: str, scheduled_us: int, due_us: int, attempt: int, retries: int, kind: str,
    ) -> bytes:
        """Return the message of one execution.

        Args:
            execution_id: its id; the same at a repeat delivery.
            job_id: whose it is.
            scheduled_us: the instant that the schedule named, microseconds since the epoch.
            due_us: when it may be read, microseconds since the epoch.
            attempt: number of the attempt, from 1.
            retries: what the task reads as ``request.retries``, from 0.
            kind: one of lifecycle.KINDS.

        Returns:
            A JSON document in UTF-8. The Celery task id is the occurrence's key, so all attempts have the same; but
            that of a replay is its execution id, since the key has a result already, and workers may know it as
            revoked. The idempotency key stays the occurrence's, unless the job asks for one an attempt.
        """
        eid = encode_basestring_ascii(execution_id)
        key = encode_basestring_ascii(execution_id.rpartition(":")[0] or occurrence_key(job_id, scheduled_us))
        task_id = eid if kind == "replay" else key
        return (
            f'{self._head}{task_id},"root_id":{task_id},"retries":{retries}{self._neck}{encode_basestring_ascii(job_id)},'
            f'"eid":{eid},"key":{eid if self._by_attempt else key},"scheduled_at":"{_iso(scheduled_us)}",'
            f'"due_at":"{_iso(due_us)}","attempt":{attempt},"kind":"{kind}"{self._middle}{task_id}{self._tail}{eid}}}}}'
        ).encode()


class Templates:
    """The templates of a deployment, each kept as long as it is in use and not too large.

    Args:
        config: the default pool, and the limits of content.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self._kept = lru_cache(maxsize=MAX_TEMPLATES)(self._make)
        # A refusal is not kept: whatever is wrong is said of every job that has it.
        self._shapes: dict[tuple[object, ...], _Shape] = {}

    def of(self, content: Content) -> Template:
        """Return the template of a content.

        Raises:
            InvalidContent: the content makes no message.
        """
        if len(content.args) + len(content.kwargs) > MAX_KEPT_CHARACTERS:
            return self._make(content)
        return self._kept(content)

    def _make(self, content: Content) -> Template:
        pool = content.pool or self.config.default_pool
        key = (content.task, *content[_HEADERS:_GROUP])
        shape = self._shapes.get(key)
        if shape is None:
            shape = _Shape(content, pool, self.config)
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
            self._shapes[key] = shape
        return Template(content, pool, self.config, shape)


@lru_cache(maxsize=MAX_INSTANTS)
def _iso(us: int) -> str:
    return from_us(us).isoformat()


def _seconds(value: float | None) -> str:
    if value is None:
        return "null"
    return repr(int(value) if value == int(value) else value)


# -- checks -----------------------------------------------------------------------------------------------------------

def _check(content: Content, config: Config) -> None:
    """Refuse options that no edge would have let in: they were written into the database directly."""
    if wrong := _wrong_task(content.task, config.allowed_tasks):
        raise InvalidContent(f"task: {wrong}")
    if not 0 <= content.priority <= 9:
        raise InvalidContent(f"priority: must be from 0 to 9, not {content.priority}")
    for field, seconds in (
        ("soft_limit", content.soft_limit_seconds), ("max_duration", content.max_duration_seconds),
        ("expires_after", content.expires_after_seconds),
    ):
        if seconds is not None and not 0 < seconds <= LONGEST_SECONDS:
            allowed = f"more than 0 and at most {LONGEST_SECONDS:,.0f} seconds"
            raise InvalidContent(f"{field}: must be {allowed}, not {seconds}")
    if content.concurrency not in CONCURRENCY_POLICIES:
        raise InvalidContent(
            f"concurrency: {content.concurrency[:40]!r} is not one of {', '.join(CONCURRENCY_POLICIES)}")
    if content.key_scope not in KEY_SCOPES:
        raise InvalidContent(f"key_scope: {content.key_scope[:40]!r} is not one of {', '.join(KEY_SCOPES)}")


@lru_cache(maxsize=MAX_TEMPLATES)
def _wrong_task(task: str, allowed: tuple[str, ...]) -> str | None:
    if task == HTTP_TASK:
        return None                                        # it runs nothing but the job's own URL, which is checked there
    return wrong_task(task, allowed, None)


def _check_arguments(args: str, kwargs: str, max_bytes: int) -> None:
    """Look whether a worker can read the arguments: quickly, and thoroughly where the quick look is in doubt."""
    if len(args) + len(kwargs) <= max_bytes // 4 and "__type__" not in args and "__type__" not in kwargs:
        try:
            if _is_one(list, args, "[]") and _is_one(dict, kwargs, "{}"):
                return
        except (ValueError, RecursionError, StopIteration):
            pass                                           # what is wrong is said below
    *_, problems = payload.arguments(args, kwargs, max_bytes)
    if problems:
        raise InvalidContent("; ".join(f"{problem.field}: {problem.message}" for problem in problems))


def _headers(content: Content) -> str:
    """Return the members of the job's own headers, each with a comma behind it.

    Those that the message keeps for itself are refused where the job is defined, and here.
    """
    if not content.headers or content.task == HTTP_TASK:
        return ""                                          # of an HTTP target: secrets, which only its worker reads
    text, problems = payload.headers(content.headers)
    if problems:
        raise InvalidContent("; ".join(f"{problem.field}: {problem.message}" for problem in problems))
    return text.strip().removeprefix("{").removesuffix("}") + "," if text else ""


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


_decoder: Any = json.JSONDecoder(parse_constant=_refuse_constant)
_scan: Callable[[str, int], tuple[object, int]] = _decoder.scan_once      # the C scanner, without the search for blanks


def _is_one(kind: type, text: str, empty: str) -> bool:
    """Say whether the text is such a value and nothing else, blanks around it included: these are for the thorough look."""
    if text == empty:
        return True
    value, end = _scan(text, 0)
    return type(value) is kind and end == len(text)
