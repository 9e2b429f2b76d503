"""ETA tasks that were cancelled before they began: their result, and a chord that waits for them, hear of it.

Celery's own revoke is carried out by a worker that meets the message. One that waits in the database, or that was taken
out of Redis or out of a worker's hands, nobody meets. Whoever ended it says so here, once: the call that cancelled it,
the audit where that call could not reach Redis, or the worker that had drawn it. So it is with one that a lost worker
had begun and that waited to be handed out again, unless that worker has stored a result.

**Known weakness.** An app is looked for by the task's name in this process. Where none has ChronoBeat, as in a Django process
that does not import the project's Celery app, the result stays PENDING, with an error in the log.
"""
from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from typing import Any

from celery import current_app, states
from celery.app.task import Context

from chrono_beat.celery.context import HEADER
from chrono_beat.core import eta, lifecycle

logger = logging.getLogger(__name__)


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
    try:
        document = json.loads(payload)
        headers, embed = dict(document["headers"]), json.loads(document["body"])[2]
        is_eta = eta.is_awaited(headers["id"], headers[HEADER]["job"], headers[HEADER]["kind"])
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return
    if is_eta:
        threading.Thread(target=_mark, args=(app, headers, embed), name="chrono-revoked", daemon=True).start()


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


def _has_ended(app: Any, task_id: str) -> bool:
    try:
        return app.backend.get_state(task_id) in states.READY_STATES
    except NotImplementedError:                              # an app without a result backend
        return False
