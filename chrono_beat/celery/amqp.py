"""The app's AMQP class: what is sent to a pool goes into its tenant's stream, and ``self.retry()`` becomes a note in Redis.

A message for a pool is a plain task (``chrono_beat.celery.plain``), whoever sends it: a web process, a beat, a task, the
canvas inside of one. Messages for other queues go the stock way.

Celery's ``Task.retry`` publishes from the process that runs the body, *before* the body ends. As a message of its own
the second attempt could be received while the first still holds lease, slot and lock of its job: under forbid it
would be skipped for its own predecessor. So the child only stores what was asked for (``store_retry``), and the
settle that ends this delivery turns it into an outcome; the recorder writes the next attempt. Of a plain task the settle
puts the next message in the place of this one. A child that dies in between has lost nothing.
"""
from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import tzinfo
from typing import Any, NamedTuple

from celery import signals
from celery.app.amqp import AMQP
from kombu.utils.json import dumps

from chrono_beat.celery import eta, plain
from chrono_beat.celery.context import HEADER, running_request
from chrono_beat.celery.patience import patiently
from chrono_beat.core import ids
from chrono_beat.core.config import Config
from chrono_beat.core.deliveries import Hold
from chrono_beat.core.errors import QueueUnavailable
from chrono_beat.core.field_checks import is_pool
from chrono_beat.core.plain import is_plain

logger = logging.getLogger(__name__)

COUNTDOWN = "chrono_countdown"


class InterceptingAMQP:
    """Mixin in front of an AMQP class; needs ``app.chrono_beat``."""

    def as_task_v2(self, task_id: str, name: str, args: Any = None, kwargs: Any = None, countdown: float | None = None,
                   *rest: Any, **options: Any) -> Any:
        # The stock method turns a countdown into an instant of this host's clock. What is kept here keeps the countdown,
        # and it is counted from Redis' time, or from the database's.
        message = super().as_task_v2(task_id, name, args, kwargs, countdown, *rest, **options)
        if countdown is not None:
            message.headers[COUNTDOWN] = countdown           # until it is sent
        return message

    def _create_task_sender(self) -> Callable[..., Any]:
        stock = super()._create_task_sender()

        def send_task_message(
            producer: Any, name: str, message: Any, *args: Any, headers: Any = None, **options: Any,
        ) -> Any:
            pool = "" if args else self._pool_of(options)
            countdown = message.headers.pop(COUNTDOWN, None)
            later = None if args else eta.deferral(self.app, name, message, countdown)
            if not pool and not _header(headers) and later is None:
                return stock(producer, name, message, *args, headers=headers, **options)
            return self._intercept(stock, producer, name, message, args, headers, options, _Way(pool, countdown, later))

        return send_task_message

    def _pool_of(self, options: Mapping[str, Any]) -> str:
        """Return the name of the pool that a message goes to; "" where its queue is none."""
        queue = options.get("queue")
        if queue is None:
            if options.get("exchange") is not None:
                return ""
            queue = self.app.conf.task_default_queue
        name = str(getattr(queue, "name", queue))
        return name if is_pool(name, self._default_pool(name)) else ""

    def _default_pool(self, name: str) -> str:
        try:
            return self.app.chrono_beat.config.default_pool
        except Exception:
            # Settings that cannot be read are no reason to refuse messages for other queues.
            default: str = Config.__dataclass_fields__["default_pool"].default
            if is_pool(name, default):
                raise
            return default

    def _intercept(self, stock: Callable[..., Any], producer: Any, name: str, message: Any, args: Any, headers: Any,
                   options: dict[str, Any], way: _Way) -> Any:
        headers, pool = dict(headers or {}), way.pool
        retry = _retried_delivery(self.app, name, message, header) if (header := _header(headers)) else None
        if retry is not None and is_plain(retry.header["eid"]) and not pool:
            retry = None                                 # the body moves its task to a queue that is no pool
        if way.later is not None and (retry is None or is_plain(retry.header["eid"])):
            if self._keep(producer, name, message, headers, options, way, retry):
                return None
        if retry is None:
            if running_request() is not None or pool:
                # A child that copies its parent's headers is no delivery of its parent's execution.
                headers.pop(HEADER, None)
            if not pool:
                return stock(producer, name, message, *args, headers=headers, **options)
        message.headers.update(headers)
        target, policy = self._announce(name, message, options, pool)
        if retry is not None and not is_plain(retry.header["eid"]):
            note = _note(message.body, message.headers, way.countdown, retry.max_retries, self.app.timezone)
            self._store_retry(retry.header, note)
        else:
            task = plain.compose(message, pool, self.app.chrono_beat.config, self.app.timezone, way.countdown,
                                 self._wire(options), copy=retry.header if retry else None)
            if retry is not None:
                self._store_retry(retry.header, plain.note(task))
            else:
                again = options.get("retry")
                again = self.app.conf.task_publish_retry if again is None else again
                plain.send(self.app.chrono_beat, task, retry=again, policy=policy)
        self._announce_sent(producer, name, message, options, target)
        return None

    def _keep(
        self, producer: Any, name: str, message: Any, headers: dict[str, Any], options: Mapping[str, Any], way: _Way,
        retry: _RetriedDelivery | None,
    ) -> bool:
        """Let a message wait in the database; False where it is to go the ordinary way after all."""
        copied = headers.pop(HEADER, None) if way.pool or running_request() is not None else None
        message.headers.update(headers)
        target, _ = self._announce(name, message, options, way.pool)
        assert way.later is not None
        kept = eta.keep(self.app, message, way.pool, way.later, self._wire(options), retry.header if retry else None)
        if kept:
            self._announce_sent(producer, name, message, options, target)
        elif copied is not None:
            headers[HEADER] = copied
        return kept

    def _wire(self, options: Mapping[str, Any]) -> dict[str, Any]:
        conf = self.app.conf
        return {**options, "serializer": options.get("serializer") or conf.task_serializer,
                "compression": options.get("compression") or conf.task_compression}

    def _announce(
        self, name: str, message: Any, options: Mapping[str, Any], pool: str,
    ) -> tuple[dict[str, str], dict[str, Any]]:
        queue = pool or options.get("queue") or ""
        target = {"exchange": "", "routing_key": str(getattr(queue, "name", queue))}
        policy = {**(self.app.conf.task_publish_retry_policy or {}), **(options.get("retry_policy") or {})}
        signals.before_task_publish.send(
            sender=name, body=message.body, declare=[], headers=message.headers, properties=message.properties,
            retry_policy=policy, **target)
        return target, policy

    def _announce_sent(
        self, producer: Any, name: str, message: Any, options: Mapping[str, Any], target: dict[str, str],
    ) -> None:
        signals.after_task_publish.send(sender=name, body=message.body, headers=message.headers, **target)
        if message.sent_event:
            message.sent_event.update(queue=target["routing_key"], **target)
            dispatcher = options.get("event_dispatcher") or self._event_dispatcher
            try:
                dispatcher.publish("task-sent", message.sent_event, producer, retry=False, retry_policy={})
            except Exception as error:
                # It is in Redis: whoever sent it must not think that it is not, for the sake of an event.
                logger.warning("the event task-sent of %s was not sent: %s", message.headers.get("id"), error)

    def _store_retry(self, header: Mapping[str, Any], note: Mapping[str, object]) -> None:
        beat = self.app.chrono_beat
        lane = ids.lane_of(header["tenant"], beat.config.lanes)
        hold = Hold(header["eid"], header["token"])
        stored = patiently(lambda: beat.queue.store_retry(lane, hold, note), QueueUnavailable,
                           what=f"retry of {hold.execution_id} cannot be stored yet")
        if not stored:
            logger.warning("retry of %s was not stored: its lease has passed to another delivery", header["eid"])


class ChronoAMQP(InterceptingAMQP, AMQP):
    """The stock AMQP class with the interception; a module-level name, so that apps can be pickled."""


class _Way(NamedTuple):
    """Where a message goes: to a pool ("" for another queue), after so many seconds, and perhaps through the database."""

    pool: str
    countdown: float | None
    later: eta.Deferral | None


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
    if countdown is None and headers.get("eta"):
        return {"eta_us": ids.to_us(plain.aware(headers["eta"], zone)), **note}
    return {"countdown_us": max(0, round((countdown or 0) * 1_000_000)), **note}
