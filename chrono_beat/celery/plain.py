"""Sending a plain task: a Celery message for a pool becomes a copy in its tenant's stream.

It is checked where it is sent, without a database: tenant (its form; one without a row gets the defaults), allowed task,
JSON, size. What is wrong raises InvalidInput there. A Redis that cannot be reached is what an unreachable broker is to
Celery: tried again by the retry policy, then kombu's OperationalError. A try whose reply was lost and the next one carry
the same copy id, so the task is not doubled.
"""
from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import datetime, tzinfo
from typing import Any

from kombu.exceptions import EncodeError, OperationalError
from kombu.utils.functional import retry_over_time
from kombu.utils.json import dumps

from chrono_beat.celery.context import HEADER, running_header
from chrono_beat.core import ids
from chrono_beat.core.config import Config
from chrono_beat.core.envelope import HEADER_VERSION
from chrono_beat.core.errors import InvalidInput, Problem, QueueUnavailable
from chrono_beat.core.field_checks import kind_of, wrong_celery_task, wrong_tenant
from chrono_beat.core.plain import DEFAULT_PRIORITY, TENANT_HEADER, PlainTask, copy_id
from chrono_beat.core.targets import relay_pool

JSON_NAMES = ("json", "application/json")
MAX_TASK_ID_CHARACTERS = 255
MAX_HEADERS_BYTES = 65_536
_KEPT = "tasks that are sent to a pool or kept for later"
RETRY_OPTIONS = ("max_retries", "interval_start", "interval_step", "interval_max")


def compose(
    message: Any, pool: str, config: Config, zone: tzinfo, countdown: float | None, options: Mapping[str, Any],
    copy: Mapping[str, Any] | None = None,
) -> PlainTask:
    """Turn a message of Celery's protocol 2 into a plain task.

    Args:
        message: headers, properties and body, as ``as_task_v2`` makes them; its headers get ours.
        pool: where it goes.
        config: default tenant, largest payload, allowed tasks.
        zone: of an ``eta`` without one.
        countdown: seconds from now on; then the message's eta, worked out by this host's clock, does not count.
        options: of ``apply_async``, as far as they concern the message: priority, serializer, compression.
        copy: the header of the delivery whose retry it is: it keeps copy id and tenant.

    Raises:
        InvalidInput: it cannot be sent, and why.
    """
    headers = message.headers
    problems = problems_of(message, pool, config, options)
    tenant = tenant_of(headers, config, problems, copy)
    priority = priority_of(options, problems)
    if problems:
        raise InvalidInput(*problems)
    id_ = copy["eid"] if copy else copy_id(headers["id"], secrets.token_hex(4))
    headers[TENANT_HEADER] = tenant
    headers[HEADER] = {"v": HEADER_VERSION, "eid": id_, "tenant": tenant, "pool": pool, "plain": True}
    due_us, countdown_us = 0, 0
    if countdown is not None:
        countdown_us = max(0, round(countdown * 1_000_000))
    elif headers.get("eta"):
        due_us = max(0, ids.to_us(aware(headers["eta"], zone)))
    return PlainTask(id_, tenant, pool, priority, _payload(message, pool, priority, config), due_us, countdown_us)


def send(beat: Any, task: PlainTask, *, retry: bool, policy: Mapping[str, Any]) -> None:
    """Publish a plain task.

    Args:
        beat: the app's ChronoBeat.
        task: what to publish.
        retry: try again while Redis cannot be reached.
        policy: Celery's retry policy: max_retries (None for ever), interval_start, interval_step, interval_max in seconds.

    Raises:
        kombu.exceptions.OperationalError: Redis could not be reached; the task may have been published or not.
    """
    lane, publish = ids.lane_of(task.tenant, beat.config.lanes), beat.sending_queue.publish_plain
    try:
        if retry and policy.get("max_retries", 0) != 0:
            chosen = {name: policy[name] for name in RETRY_OPTIONS if name in policy}
            retry_over_time(publish, QueueUnavailable, args=(lane, [task]), **chosen)
        else:
            publish(lane, [task])
    except QueueUnavailable as error:
        raise OperationalError(str(error)) from error


def note(task: PlainTask) -> dict[str, object]:
    """Return what a worker keeps of a plain task's retry until the delivery is settled (``store_retry``)."""
    when = {"countdown_us": task.countdown_us} if task.countdown_us or not task.due_us else {"eta_us": task.due_us}
    return {"pool": task.pool, "priority": task.priority, "payload": task.payload.decode(), **when}


def tenant_of(
    headers: Mapping[str, Any], config: Config, problems: list[Problem], copy: Mapping[str, Any] | None = None,
) -> str:
    """Return whose message it is: the header's, else that of the delivery it is sent from, else the default tenant's.

    Args:
        headers: of the message.
        config: for the default tenant.
        problems: gets what is wrong.
        copy: the header of the delivery whose retry it is: it keeps the tenant.
    """
    tenant = copy["tenant"] if copy else headers.get(TENANT_HEADER)
    if tenant is None:
        running = running_header()
        tenant = running["tenant"] if running else config.default_tenant
    if not isinstance(tenant, str) or (wrong := wrong_tenant(tenant)):
        said = wrong if isinstance(tenant, str) else f"must be a tenant's slug, not {kind_of(tenant)}"
        problems.append(Problem(TENANT_HEADER, str(said)))
    return str(tenant)


def priority_of(options: Mapping[str, Any], problems: list[Problem]) -> int:
    """Return the message's priority within its tenant's stream."""
    priority = options.get("priority")
    priority = DEFAULT_PRIORITY if priority is None else priority
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= 9:
        problems.append(Problem("priority", "must be a whole number from 0 (first) to 9"))
        return DEFAULT_PRIORITY
    return priority


def problems_of(message: Any, pool: str, config: Config, options: Mapping[str, Any]) -> list[Problem]:
    """Return why a message of Celery's protocol 2 cannot be kept here; *pool* is "" for another queue."""
    headers, problems = message.headers, []
    task_id, task = headers.get("id"), headers.get("task")
    if not isinstance(task_id, str) or not isinstance(task, str):
        return [Problem("task_protocol", f"must be 2 for {_KEPT}")]
    if pool == relay_pool(config):
        problems.append(Problem("queue", f"{pool} is the relay's: no worker draws it; choose another pool"))
    if len(task_id) > MAX_TASK_ID_CHARACTERS:
        problems.append(Problem("task_id", f"may have {MAX_TASK_ID_CHARACTERS} characters; this has {len(task_id)}"))
    if wrong := wrong_celery_task(task, config.allowed_tasks):
        problems.append(Problem("task", wrong))
    serializer, compression = options.get("serializer"), options.get("compression")
    if serializer not in JSON_NAMES:
        problems.append(Problem("serializer", f"must be json for {_KEPT}, not {serializer}"))
    if compression:
        problems.append(Problem("compression", f"is not done for {_KEPT}; leave it out"))
    return problems


def _payload(message: Any, pool: str, priority: int, config: Config) -> bytes:
    """Return the message as the JSON document that kombu's virtual transports carry.

    Raises:
        InvalidInput: it holds what JSON has no form for, or is too large.
    """
    headers, properties, body, _ = message
    try:
        text = dumps(body)
        document = dumps({
            "body": text, "content-encoding": "utf-8", "content-type": "application/json", "headers": headers,
            "properties": {
                "correlation_id": properties.get("correlation_id"), "reply_to": properties.get("reply_to") or "",
                "priority": priority, "delivery_mode": 2, "body_encoding": "utf-8",
                "delivery_info": {"exchange": "", "routing_key": pool},
            },
        }).encode()
    except (TypeError, ValueError, RecursionError, EncodeError) as error:
        raise no_json(error) from error
    check_size(len(text.encode()), headers, config)
    return document


def no_json(error: Exception) -> InvalidInput:
    """Return the refusal of a message that kombu cannot write as JSON."""
    return InvalidInput(Problem("kwargs", f"args, kwargs or headers hold what JSON has no form for: {error}"))


def check_size(size: int, headers: Mapping[str, Any], config: Config) -> None:
    """Refuse a message that is too large.

    Args:
        size: of its body, in bytes.
        headers: what JSON has a form for.
        config: for MAX_PAYLOAD.

    Raises:
        InvalidInput: the body has more bytes than MAX_PAYLOAD, or the headers have more than MAX_HEADERS_BYTES.
    """
    headers_size = len(dumps(headers).encode())
    if headers_size > MAX_HEADERS_BYTES:
        much = f"may take {MAX_HEADERS_BYTES:,} bytes of JSON, Celery's own among them; these take {headers_size:,}"
        raise InvalidInput(Problem("headers", f"{much}. Store the data and give its key", "too_large"))
    if size > config.max_payload:
        much = f"args, kwargs and callbacks may take {config.max_payload:,} bytes of JSON together; these take {size:,}"
        raise InvalidInput(Problem("kwargs", f"{much}. Store the data and give its key", "too_large"))


def aware(eta: str, zone: tzinfo) -> datetime:
    """Return the instant of an ``eta`` header; *zone* is that of one without."""
    instant = datetime.fromisoformat(eta)
    return instant if instant.tzinfo else instant.replace(tzinfo=zone)
