"""What a job's target may be: a Celery task, an HTTP callback, a message to a stock queue, or nothing but a record.

=========  =====================  ===================================  ==========================================
kind       fields                 who carries it out                   ends
=========  =====================  ===================================  ==========================================
task       task                   a worker of the job's pool           as the task did
http       url, timeout, headers  likewise, as the task chrono_beat.   by the answer's status
                                  http
message    task, queue            the relay, drawing its own pool      succeeded, handed_over: when the broker
                                                                       has it
shadow     task                   the relay, which sends nothing       succeeded, shadow: at the instant at which the
                                                                       task would have been sent
=========  =====================  ===================================  ==========================================

A shadow stands beside another scheduler that still sends the task: its runs are claimed, published and drawn like all
others, so what it would have done and how late is measured and not guessed. ``queue`` keeps the pool of its later life.
"""
from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from chrono_beat.core import callback
from chrono_beat.core import field_checks as checks
from chrono_beat.core.config import Config
from chrono_beat.core.errors import Problem

TARGET_KINDS = ("task", "http", "message", "shadow")
MAX_QUEUE_CHARACTERS = 200
_QUEUE = re.compile(r"[!-~]+")
_FIELDS = {"http": ("url", "timeout"), "message": ("queue",)}
_EMPTY: dict[str, Any] = {"url": "", "timeout": None, "queue": ""}


def kind_of_target(*, url: object, queue: object) -> str:
    """Return the kind of target that these say."""
    if url not in (None, ""):
        return "http"
    return "task" if queue in (None, "") else "message"


def relay_pool(config: Config) -> str:
    """Return the name of the pool that the relay draws; no user's job is in it."""
    return f"{config.default_pool}.relay"


def wrong_tenant_pool(pool: str, config: Config) -> str | None:
    """Say why this cannot be the pool of a tenant's tasks, None where it can."""
    return checks.wrong_pool(pool, config.default_pool) or _relays(pool, config)


def _relays(pool: str, config: Config) -> str | None:
    if pool != relay_pool(config):
        return None
    return f"{pool} belongs to the relay, which runs no tasks; choose another one"


def retargeted(changes: Mapping[str, Any], before: str) -> dict[str, Any]:
    """Return changes of a job completed so that a change of its target's kind leaves nothing of the old one.

    Args:
        changes: fields of a definition.
        before: the kind of target that it has.
    """
    kind = changes.get("target_kind", before)
    if kind == before or kind not in TARGET_KINDS:
        return dict(changes)
    cleared = {name: empty for name, empty in _EMPTY.items() if name not in _FIELDS.get(kind, ())}
    if "http" in (kind, before):
        cleared |= {"task": "", "headers": None}
    if before in ("message", "shadow"):
        cleared["pool"] = ""                                # the relay's
    return cleared | dict(changes)


def find_problems(values: dict[str, Any], config: Config, known_tasks: Collection[str] | None) -> list[Problem]:
    """Return what is wrong with a target, and set what follows from its kind.

    Args:
        values: fields of a definition; ``task`` and ``pool`` of built-in targets are set in it.
        config: for what a deployment allows.
        known_tasks: names of tasks where the caller knows them.
    """
    kind = values["target_kind"]
    for name in ("url", "queue", "task"):
        if not isinstance(values[name], str):
            return [Problem(name, f"must be a text, not {checks.kind_of(values[name])}")]
        values[name] = values[name].strip()
    if wrong := checks.not_one_of(kind, TARGET_KINDS) if isinstance(kind, str) else "must be a text":
        return [Problem("target_kind", wrong)]
    found = [Problem(name, f'is for a target of kind {owner}; this one is "{kind}". Leave it empty, or set target_kind')
             for owner, names in _FIELDS.items() if owner != kind
             for name in names if values[name] != _EMPTY[name] and kind != "shadow"]
    if kind == "http":
        return found + _http(values, config)
    if wrong := checks.unstorable(values["task"]) or _wrong_task(values["task"], config, known_tasks):
        found.append(Problem("task", wrong))
    if kind == "message":
        return found + _message(values, config)
    if kind == "shadow":
        if values["pool"] != relay_pool(config):
            values["queue"] = values["pool"]                # where it runs once it is live
        values["pool"] = relay_pool(config)
        return found
    return found + _not_the_relay(values, config)


def warnings_for(kind: str, url: str, concurrency: str) -> list[Problem]:
    """Return what is allowed but likely to hurt, of a valid target."""
    if kind == "http" and url.startswith("http://"):
        return [Problem("url", "is not encrypted: whoever is on the way reads the body and the headers, secrets included. "
                               "Use https", "not_encrypted")]
    if kind == "shadow":
        return [Problem("target_kind", "it fires without sending anything; chrono jobs go-live ends that", "shadow")]
    if kind == "message":
        weaker = "" if concurrency == "allow" else f', so "{concurrency}" does not see whether the last one still runs'
        return [Problem("queue", "the execution has succeeded as soon as the broker has the message: no lease, no limit of "
                                 f"time and no retry after that{weaker}", "handed_over")]
    return []


def _http(values: dict[str, Any], config: Config) -> list[Problem]:
    found = _not_the_relay(values, config)
    if values["task"] not in ("", callback.HTTP_TASK):
        found.append(Problem("task", "a job has one target: leave the task empty, or the url"))
    values["task"] = callback.HTTP_TASK
    if wrong := callback.wrong_url(
        values["url"], config.http_allowed_schemes, config.http_allowed_hosts, config.http_allowed_addresses,
    ):
        found.append(Problem("url", wrong))
    if values["args"] not in ((), [], "", "[]", None):
        found.append(Problem("args", "an HTTP target is sent one JSON object, the kwargs; leave args empty"))
    longest, timeout = values["max_duration"], values["timeout"]
    if isinstance(longest, float):
        wanted = timeout if isinstance(timeout, float) else callback.DEFAULT_TIMEOUT_SECONDS
        if wanted > longest:
            found.append(Problem("timeout", f"must be at most max_duration, {longest:g} seconds; it is {wanted:g}"))
    return found


def _message(values: dict[str, Any], config: Config) -> list[Problem]:
    queue, found = values["queue"], []
    if not queue:
        found.append(Problem("queue", "must not be empty: give the Celery queue that stock workers consume"))
    elif len(queue) > MAX_QUEUE_CHARACTERS or not _QUEUE.fullmatch(queue):
        found.append(Problem("queue", f"{checks.cut(queue)} is not a queue: at most {MAX_QUEUE_CHARACTERS} visible ASCII "
                                      "characters"))
    elif checks.wrong_pool(queue, config.default_pool) is None:
        found.append(Problem("queue", f"{queue} is a pool of chrono_beat; leave queue empty and set pool"))
    if values["pool"] not in ("", relay_pool(config)):
        found.append(Problem("pool", "a message goes to its queue and to no pool; leave it empty"))
    values["pool"] = relay_pool(config)
    return found


def _not_the_relay(values: dict[str, Any], config: Config) -> list[Problem]:
    wrong = _relays(values["pool"], config)
    return [Problem("pool", wrong)] if wrong else []


def _wrong_task(task: str, config: Config, known_tasks: Collection[str] | None) -> str | None:
    if task == callback.HTTP_TASK:
        return "is built in and not run by name; give url instead"
    return checks.wrong_task(task, config.allowed_tasks, known_tasks)
