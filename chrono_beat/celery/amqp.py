"""The app's AMQP class: ``self.retry()`` of a chrono_beat task becomes a note in Redis instead of a message.

Celery's ``Task.retry`` publishes from the process that runs the body, *before* the body ends. As a message of its own
the second attempt could be received while the first still holds lease, slot and lock of its job: under forbid it
would be skipped for its own predecessor. So the child only stores what was asked for (``store_retry``), and the
settle that ends this delivery turns it into an outcome; the recorder writes the next attempt. A child that dies in
between has lost nothing.

Everything else goes the stock way. In particular a plain ``apply_async(queue="chrono")``, which has no job, is sent
to the broker's queue of that name for now, where nobody draws it under fairness; drawing plain tasks has its place in
``_intercept``.
"""
from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime, tzinfo
from typing import Any, NamedTuple

from celery import signals
from celery.app.amqp import AMQP
from kombu.utils.json import dumps

from chrono_beat.celery.context import HEADER, running_request
from chrono_beat.core import ids
from chrono_beat.core.deliveries import Hold
from chrono_beat.core.errors import QueueUnavailable

logger = logging.getLogger(__name__)

COUNTDOWN = "chrono_countdown"
STORE_PAUSES_SECONDS = (0.2, 0.5, 1.0, 2.0, 4.0)     # between attempts to store a retry while Redis cannot be reached


class InterceptingAMQP:
    """Mixin in front of an AMQP class; needs ``app.chrono_beat``."""

    def as_task_v2(self, task_id: str, name: str, args: Any = None, kwargs: Any = None, countdown: float | None = None,
                   *rest: Any, **options: Any) -> Any:
        # The stock method turns a countdown into an instant of this host's clock. A retry keeps the countdown, and the
        # recorder counts it from Redis' time of the outcome.
        message = super().as_task_v2(task_id, name, args, kwargs, countdown, *rest, **options)
        if countdown is not None and _header(options.get("headers")):
            message.headers[COUNTDOWN] = countdown
        return message

    def _create_task_sender(self) -> Callable[..., Any]:
        stock = super()._create_task_sender()

        def send_task_message(
            producer: Any, name: str, message: Any, *args: Any, headers: Any = None, **options: Any,
        ) -> Any:
            if not _header(headers):
                return stock(producer, name, message, *args, headers=headers, **options)
            return self._intercept(stock, producer, name, message, args, headers, options)

        return send_task_message

    def _intercept(self, stock: Callable[..., Any], producer: Any, name: str, message: Any, args: Any, headers: Any,
                   options: dict[str, Any]) -> Any:
        retry = _retried_delivery(self.app, name, message, _header(headers))
        countdown = message.headers.pop(COUNTDOWN, None)
        if retry is None:
            if running_request() is not None:
                # A child that copies its parent's headers is no delivery of its parent's execution.
                headers = {key: value for key, value in headers.items() if key != HEADER}
            return stock(producer, name, message, *args, headers=headers, **options)
        return self._store_retry(producer, name, message, retry, countdown, options, headers)

    def _store_retry(self, producer: Any, name: str, message: Any, retry: _RetriedDelivery, countdown: float | None,
                     options: dict[str, Any], headers: Mapping[str, Any]) -> None:
        headers2, properties, body, sent_event = message
        headers2.update(headers)
        queue = options.get("queue") or ""
        target = {"exchange": "", "routing_key": getattr(queue, "name", queue)}
        signals.before_task_publish.send(
            sender=name, body=body, declare=[], headers=headers2, properties=properties, retry_policy={}, **target)
        beat = self.app.chrono_beat
        header = retry.header
        note = _note(body, headers2, countdown, retry.max_retries, self.app.timezone)
        lane = ids.lane_of(header["tenant"], beat.config.lanes)
        if not _patiently(beat, lane, Hold(header["eid"], header["token"]), note):
            logger.warning("retry of %s was not stored: its lease has passed to another delivery", header["eid"])
        signals.after_task_publish.send(sender=name, body=body, headers=headers2, **target)
        if sent_event:
            sent_event.update(queue=target["routing_key"], **target)
            dispatcher = options.get("event_dispatcher") or self._event_dispatcher
            dispatcher.publish("task-sent", sent_event, producer, retry=False, retry_policy={})


class ChronoAMQP(InterceptingAMQP, AMQP):
    """The stock AMQP class with the interception; a module-level name, so that apps can be pickled."""


class _RetriedDelivery(NamedTuple):
    header: Mapping[str, Any]
    max_retries: int | None


def intercepting(base: type) -> type:
    """Return *base* with the interception in front."""
    if issubclass(base, InterceptingAMQP):
        return base
    return ChronoAMQP if base is AMQP else type("ChronoAMQP", (InterceptingAMQP, base), {})


def _header(headers: Any) -> Mapping[str, Any] | None:
    header = headers.get(HEADER) if isinstance(headers, Mapping) else None
    return header if isinstance(header, Mapping) and "eid" in header else None


def _retried_delivery(app: Any, name: str, message: Any, header: Mapping[str, Any]) -> _RetriedDelivery | None:
    """Return the delivery that this message retries; None where it is another message.

    The message has the delivery's own task id and name, and one retry more: ``Task.replace`` sends the same id with
    another name or the same count, and a child has another id.
    """
    running = running_request()
    if running is not None:
        task, request, own = running
        id_, count, task_name = request.id, request.retries, task.name
        max_retries = getattr(task, "override_max_retries", None)
        max_retries = task.max_retries if max_retries is None else max_retries
    else:
        # With retry_on_worker_lost the worker's main process sends the retry of a task whose child is gone.
        held = app.chrono_beat.worker and app.chrono_beat.worker.find(header["eid"], header.get("token"))
        if not held or held.request is None:
            return None
        own, id_, task_name = header, held.request.id, held.request.task.name
        count, max_retries = held.request.request_dict.get("retries") or 0, held.request.task.max_retries
    same = own["eid"] == header["eid"] and own["token"] == header.get("token")
    same = same and message.headers.get("id") == id_ and name == task_name
    return _RetriedDelivery(own, max_retries) if same and (message.headers.get("retries") or 0) > (count or 0) else None


def _note(
    body: Any, headers: Mapping[str, Any], countdown: float | None, max_retries: int | None, zone: tzinfo,
) -> dict[str, object]:
    """Return what the outcome will say of the retry: when, with which arguments, and how many there may be."""
    args, kwargs = body[0], body[1]
    note: dict[str, object] = {
        "args": dumps(list(args)), "kwargs": dumps(dict(kwargs)),
        "retries": headers["retries"], "max_retries": max_retries,
    }
    eta = headers.get("eta")
    if countdown is None and eta:
        return {"eta_us": ids.to_us(_aware(eta, zone)), **note}
    return {"countdown_us": max(0, round((countdown or 0) * 1_000_000)), **note}


def _aware(eta: str, zone: tzinfo) -> datetime:
    instant = datetime.fromisoformat(eta)
    return instant if instant.tzinfo else instant.replace(tzinfo=zone)


def _patiently(beat: Any, lane: int, hold: Hold, note: Mapping[str, object]) -> bool:
    for pause in STORE_PAUSES_SECONDS:
        try:
            return beat.queue.store_retry(lane, hold, note)
        except QueueUnavailable as error:
            logger.warning("retry of %s cannot be stored yet: %s", hold.execution_id, error)
            time.sleep(pause)
    return beat.queue.store_retry(lane, hold, note)
