"""A delivery in the appearance of a broker's message, so that Celery's own strategies, limits and events apply."""
from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from kombu.message import Message
from kombu.utils.json import loads

from chrono_beat.celery.context import HEADER
from chrono_beat.celery.worker import endings
from chrono_beat.celery.worker.held import HeldDelivery
from chrono_beat.core.envelope import HEADER_VERSION
from chrono_beat.core.plain import is_plain

HEADER_FIELDS = ("job", "tenant", "scheduled_at", "due_at", "attempt", "key")
PLAIN_HEADER_FIELDS = ("tenant",)


class Undecodable(ValueError):
    """The payload is no Celery message."""


class _Channel:
    """Where Celery sends acknowledgements.

    An acknowledgement is not the outcome: with early acks it comes when the pool *accepts* a task. Letting lease and
    lock go there would open the cap and the overlap policy while the body runs. So it means nothing once there is a Request,
    whose ending settles. Before that it says that no task here can run the message (unknown, malformed, not allowed).
    """

    no_ack_consumers = None

    def __init__(self, held: HeldDelivery) -> None:
        self.held = held

    def basic_ack(self, delivery_tag: Any, multiple: bool = False) -> None:
        self._refuse("the message could not be decoded")

    def basic_reject(self, delivery_tag: Any, requeue: bool = False) -> None:
        self._refuse("no task here can run the message")

    def _refuse(self, why: str) -> None:
        if self.held.request is None:
            name = self.held.task_name
            self.held.end(*endings.rejected(LookupError(f"{why}: {name}")))


class LeasedMessage(Message):
    """The message of a held delivery.

    Args:
        held: the delivery.
        accept: content types that the app accepts.

    Raises:
        Undecodable: the payload is not the JSON document of a message.
    """

    def __init__(self, held: HeldDelivery, accept: Any) -> None:
        delivery = held.delivery
        try:
            document = loads(delivery.payload)
            headers, properties, body = dict(document["headers"]), dict(document["properties"]), document["body"]
            if properties.get("body_encoding") == "base64":
                body = base64.b64decode(body)
            _check(delivery.execution_id, headers, body, document.get("content-type"))
            headers[HEADER] = {**headers[HEADER], "token": delivery.token, "deliveries": delivery.deliveries}
            # It has waited for its time in Redis: by a clock that is behind, Celery would hold it back here.
            self.eta = headers.get("eta")
            headers["eta"] = None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise Undecodable(f"{type(error).__name__}: {error}") from error
        super().__init__(
            body=body, channel=_Channel(held), delivery_tag=delivery.execution_id,
            headers=headers, properties=properties,
            content_type=document.get("content-type"), content_encoding=document.get("content-encoding"), accept=accept,
            delivery_info={"exchange": "", "routing_key": delivery.pool, "redelivered": delivery.deliveries > 1},
        )
        held.task_name = str(headers.get("task", ""))
        self.held = held


def _check(execution_id: str, headers: Mapping[str, Any], body: Any, content_type: Any) -> None:
    """Find out here, and not in the pool, what no task can run: there it would count as the task's own failure, and be
    tried again."""
    header = headers[HEADER]
    if content_type != "application/json":               # whatever else the app accepts: what we send is JSON
        raise ValueError(f"its content type is {str(content_type)[:40]!r}, not application/json")
    if header.get("v") != HEADER_VERSION:
        raise ValueError(f"the header {HEADER!r} has version {str(header.get('v'))[:20]!r}, known is {HEADER_VERSION}")
    if header.get("eid") != execution_id:
        raise ValueError("it is the message of another execution")
    fields = PLAIN_HEADER_FIELDS if is_plain(execution_id) else HEADER_FIELDS
    for where, names in ((header, fields), (headers, ("task", "id"))):
        for name in names:
            if name not in where:
                raise KeyError(name)
    if not isinstance(headers["task"], str) or not isinstance(headers["id"], str):
        raise TypeError("task and id must be texts")
    limits = headers.get("timelimit", (None, None))
    if len(limits) != 2 or not all(limit is None or isinstance(limit, (int, float)) for limit in limits):
        raise TypeError("timelimit must be two numbers of seconds")
    args, kwargs, embed = loads(body)
    if not (isinstance(args, list) and isinstance(kwargs, dict) and isinstance(embed, dict | None)):
        raise TypeError("the body must be [args, kwargs, embed]")
