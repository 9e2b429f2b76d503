"""The relay's way to the user's broker: ordinary messages of the user's own app, each confirmed where the broker can.

RabbitMQ confirms a publish when the message is safe (``confirm_publish``); of Redis its reply is the confirmation. Routing,
declaring of queues and signals are those of ``app.send_task``. Nothing is tried again in here: the relay gives back what
could not be sent.
"""
from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from celery.app.amqp import task_message
from celery.exceptions import QueueNotFound
from kombu.exceptions import OperationalError

from chrono_beat.celery.context import HEADER
from chrono_beat.core import eta
from chrono_beat.core.errors import BrokerUnavailable, InvalidInput, Problem

MESSAGE_HEADER = "chrono_message"
"""Says which execution a message is. Another name than that of deliveries: stock workers may have the bootstep, too, and a
message that was handed over has no lease."""

CONNECT_SECONDS = 5.0
CONFIRM_SECONDS = 10.0
_TOLD = ("job", "name", "tenant", "scheduled_at", "attempt", "eid", "key", "kind")


class CelerySender:
    """MessageSender on a Celery app's broker, with a connection of its own.

    Args:
        app: the user's Celery app.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._connection: Any = None
        self._producer: Any = None
        self._confirms = False

    def connect(self) -> None:
        """See MessageSender."""
        if self._connection is not None and self._connection.connected:
            return
        self.close()
        connection = self._app.connection_for_write(connect_timeout=CONNECT_SECONDS)
        self._confirms = connection.transport.driver_type == "amqp"
        if self._confirms:
            connection = self._app.connection_for_write(
                connect_timeout=CONNECT_SECONDS, transport_options={"confirm_publish": True})
        try:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=CONNECT_SECONDS)
            self._producer = self._app.amqp.Producer(connection, auto_declare=False)
        except (OperationalError, OSError, *connection.connection_errors, *connection.channel_errors) as error:
            connection.release()
            raise BrokerUnavailable(f"the broker cannot be reached: {type(error).__name__}", perhaps_sent=False) from None
        self._connection = connection

    def send(self, queue: str, payload: bytes) -> None:
        """See MessageSender."""
        content = _content(payload)
        as_before = eta.send_options(content.headers)
        options = {"confirm_timeout": CONFIRM_SECONDS} if self._confirms else {}
        connection = self._connection
        try:
            if as_before is None:
                self._send_job(queue, content, options)
            else:
                self._send_on(content, {**options, **as_before})
        except QueueNotFound as error:                       # a KeyError, which a transport may count among its own
            raise InvalidInput(Problem("queue", f"the app has no queue {queue}, and makes none: {error}"[:500])) from None
        except (OperationalError, OSError, *connection.connection_errors, *connection.channel_errors) as error:
            self.close()
            raise BrokerUnavailable(f"the broker broke off: {type(error).__name__}", perhaps_sent=True) from None
        except Exception as error:                           # no serializer, a router's own
            raise InvalidInput(Problem("queue", f"{queue}: {type(error).__name__}: {error}"[:500])) from None

    def _send_job(self, queue: str, content: _Content, options: Mapping[str, Any]) -> None:
        headers = content.headers
        hard, soft = headers.get("timelimit") or (None, None)
        self._app.send_task(
            headers["task"], content.args, content.kwargs, task_id=headers["id"], queue=queue, producer=self._producer,
            headers=_own(headers), time_limit=hard, soft_time_limit=soft, retries=headers.get("retries") or 0,
            retry=False, add_to_parent=False, **options)

    def _send_on(self, content: _Content, options: Mapping[str, Any]) -> None:
        """Send the message of an ETA task as it was: callbacks, chain, chord and group are in it."""
        headers = {name: value for name, value in content.headers.items() if name != HEADER} | _told(content.headers)
        message = task_message(headers, {"correlation_id": headers["id"], "reply_to": content.reply_to},
                               (content.args, content.kwargs, content.embed), None)
        self._app.amqp.send_task_message(
            self._producer, headers["task"], message, serializer="json", retry=False, **options)

    def close(self) -> None:
        """Let go of the connection."""
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            connection.release()


class _Content(NamedTuple):
    args: list[Any]
    kwargs: dict[str, Any]
    embed: Any
    headers: Mapping[str, Any]
    reply_to: str


def _content(payload: bytes) -> _Content:
    try:
        document = json.loads(payload)
        args, kwargs, embed = json.loads(document["body"])
        headers = document["headers"]
        reply_to = document.get("properties", {}).get("reply_to")
        return _Content(list(args), dict(kwargs), embed, {"id": headers["id"], "task": headers["task"], **headers},
                        reply_to or "")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidInput(Problem("payload", f"is no Celery message: {type(error).__name__}")) from None


def _own(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job's own headers, and what is told of the execution."""
    stock = {"lang", "task", "id", "shadow", "eta", "expires", "group", "group_index", "retries", "timelimit", "root_id",
             "parent_id", "argsrepr", "kwargsrepr", "origin", "ignore_result", "replaced_task_nesting", "stamped_headers",
             "stamps", HEADER}
    own = {name: value for name, value in headers.items() if name not in stock}
    return own | _told(headers)


def _told(headers: Mapping[str, Any]) -> dict[str, Any]:
    chrono = headers.get(HEADER) or {}
    return {MESSAGE_HEADER: {name: chrono[name] for name in _TOLD if name in chrono}}
