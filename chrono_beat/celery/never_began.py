"""Tasks whose result somebody may wait for, and that never begin: the result, and a chord that waits for it, hear of it.

These are ETA tasks that were cancelled, and plain and ETA tasks that a worker refuses.

Celery's own revoke is carried out by a worker that meets the message. One that waits in the database, or that was taken
out of Redis or out of a worker's hands, nobody meets. Whoever ended it says so here, once: the call that cancelled it,
the audit where that call could not reach Redis, or the worker that had drawn it. So it is with one that a lost worker
had begun and that waited to be handed out again, unless that worker has stored a result.

A refused one has the result FAILURE, `TaskRefused`; what follows in its chain fails with it, and its chord counts it as
failed. No errback that the refused message names is called, neither its own nor its chord's, as Celery calls none for a task
that it does not know: Celery runs some of them in this very process, and what may not run here would get in by that door.

**Known weaknesses.** A worker tells it after the delivery has been settled: where the worker dies in between, or the result
backend is away for long, the result stays PENDING. An app is looked for by the task's name in this process. Where none has
ChronoBeat, as in a Django process that does not import the project's Celery app, it stays so, too, with an error in the log.
"""
from __future__ import annotations

import json
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from celery import current_app, states
from celery.app.task import Context

from chrono_beat.celery.context import HEADER
from chrono_beat.core import eta, lifecycle
from chrono_beat.core.deliveries import Delivery
from chrono_beat.core.errors import TaskRefused
from chrono_beat.core.plain import is_plain, task_id_of

logger = logging.getLogger(__name__)

MAX_UNTOLD = 10_000
"""Results of one worker that may wait for a result backend that is away; of others nobody is told, with an error in the log."""


def tell(row: Any) -> None:
    """Tell the result backend and the chord of an execution's row that it is revoked, by the app that has its task."""
    app = app_of(row.task)
    if app is None:
        logger.error("nobody was told that %s is revoked, for no Celery app here has ChronoBeat(app): import the project's "
                     "app where executions are cancelled", row.celery_id)
    else:
        tell_by(app, row)


def tell_by(app: Any, row: Any) -> None:
    """Tell the result backend and the chord of an execution's row that it is revoked.

    Args:
        app: the Celery app whose task it is.
        row: with ``celery_id``, ``task``, ``options`` and ``state``.
    """
    try:
        kept = json.loads(row.options)
        headers, embed = {**kept["headers"], "id": row.celery_id, "task": row.task}, kept["embed"]
    except (ValueError, TypeError, KeyError):
        logger.exception("the result backend was not told that %s is revoked", row.celery_id)
    else:
        _mark(app, headers, embed, begun=row.state not in (lifecycle.SCHEDULED, lifecycle.QUEUED))


def tell_from_worker(app: Any, payload: bytes) -> None:
    """Do the same for a delivery that was cancelled in a worker before it began. It returns at once: a result backend that is
    away must not hold up the worker.

    Args:
        app: the worker's.
        payload: of the delivery; nothing is done where it is no ETA task.
    """
    message = _read(payload)
    if message is not None and message.is_eta:
        _later(partial(_mark, app, message.headers, message.embed))


def refuse_from_worker(app: Any, delivery: Delivery, why: str) -> None:
    """Tell the result backend of a delivery that a worker refuses that it has failed. It returns at once.

    Args:
        app: the worker's.
        delivery: nothing is done where nobody can wait for its result.
        why: for the result; nothing of the task's arguments.
    """
    message = _read(delivery.payload)
    # A message that names another execution says nothing about this one.
    if message is not None and message.headers[HEADER].get("eid") != delivery.execution_id:
        message = None
    if is_plain(delivery.execution_id):
        _later(partial(_mark_refused, app, task_id_of(delivery.execution_id), message, why))
    elif message is not None and message.is_eta and message.headers[HEADER]["job"] == delivery.job_id:
        _later(partial(_mark_refused, app, message.headers["id"], message, why))


class _Message(NamedTuple):
    """A payload, as far as it can be read."""

    headers: dict[str, Any]
    embed: dict[str, Any]
    properties: dict[str, Any]
    is_eta: bool


def _read(payload: bytes) -> _Message | None:
    try:
        document = json.loads(payload)
        headers, embed = dict(document["headers"]), dict(json.loads(document["body"])[2] or {})
        own = headers[HEADER]
        is_eta = "job" in own and eta.is_awaited(headers["id"], own["job"], own["kind"])
        return _Message(headers, embed, dict(document.get("properties") or {}), is_eta)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return None


_untold: queue.Queue[Callable[[], None]] = queue.Queue(MAX_UNTOLD)
_teller: threading.Thread | None = None
_lock = threading.Lock()


def _later(tell: Callable[[], None]) -> None:
    """Let a thread of its own do it: a result backend that is away must not hold up the worker."""
    global _teller
    try:
        _untold.put_nowait(tell)
    except queue.Full:
        logger.error("the result backend was not told how a task has ended that never began: %d others wait for it", MAX_UNTOLD)
    with _lock:
        if _teller is None or not _teller.is_alive():
            _teller = threading.Thread(target=_tell_all, name="chrono-never-began", daemon=True)
            _teller.start()


def _tell_all() -> None:
    while True:
        _untold.get()()


def app_of(task: str) -> Any:
    """Return the app with ChronoBeat that has a task: this process' current one rather than another; None where there is
    none."""
    from chrono_beat.celery.app import apps

    current = current_app._get_current_object()
    return max(apps(), key=lambda app: (task in app.tasks, app is current), default=None)


def _mark(app: Any, headers: Mapping[str, Any], embed: Mapping[str, Any] | None, *, begun: bool = False) -> None:
    """Do what a worker does when it meets a revoked task; not where the body has begun and has a result: a chord counts each
    word."""
    try:
        if begun and _has_ended(app, headers["id"]):
            return
        embed = embed or {}
        request = Context({**headers, "chord": embed.get("chord"), "errbacks": embed.get("errbacks"), "args": [],
                           "kwargs": {}})
        app.backend.mark_as_revoked(
            headers["id"], "revoked", request=request, store_result=not headers.get("ignore_result"))
    except Exception:
        # It is cancelled all the same; what waits for the result will not hear of it.
        logger.exception("the result backend was not told that %s is revoked", headers.get("id"))


def _mark_refused(app: Any, task_id: str, message: _Message | None, why: str) -> None:
    """Do what a worker does where a task has failed, except that no errback of the message is called."""
    try:
        headers, embed, properties, _ = message or _Message({}, {}, {}, False)
        request = Context({
            **headers, "id": task_id, "chord": _without_errbacks(embed.get("chord")), "errbacks": None, "args": [], "kwargs": {},
            "chain": _without_errbacks(embed.get("chain")), "reply_to": properties.get("reply_to"),
            "correlation_id": properties.get("correlation_id"),
        })
        app.backend.mark_as_failure(
            task_id, TaskRefused(why), request=request, store_result=not headers.get("ignore_result"), call_errbacks=False)
    except Exception:
        logger.exception("the result backend was not told that %s is refused", task_id)


def _without_errbacks(signature: Any) -> Any:
    if isinstance(signature, dict):
        return {key: _without_errbacks(value) for key, value in signature.items() if key != "link_error"}
    return [_without_errbacks(each) for each in signature] if isinstance(signature, list) else signature


def _has_ended(app: Any, task_id: str) -> bool:
    try:
        return app.backend.get_state(task_id) in states.READY_STATES
    except NotImplementedError:                              # an app without a result backend
        return False
