"""ETA offload: a message for later waits in the database, and costs neither a worker nor Redis anything until it is due.

Stock Celery hands a message with an ``eta`` to a worker at once, which holds it until its time; a Redis broker that does
not hear of it for its visibility timeout hands it to another worker as well. Here a message that is far enough ahead
becomes an execution without a job, written into the database where it is sent: by ``apply_async``, by a chain, a chord or a
link in a worker, by ``self.retry(countdown=…)``. When it is due, the message goes to its pool, or through the relay to
its queue, as it was.

Who asks for it: a task with ``chrono_eta`` (True, or seconds ahead from which on), or the setting ETA_THRESHOLD for all
tasks that do not say ``chrono_eta=False``. What cannot be kept (another serializer than JSON, too large, …) is refused
where the task itself asks for it, and goes the stock way, with a warning, where the setting does.
"""
from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from kombu.exceptions import EncodeError
from kombu.utils.json import dumps

from chrono_beat.celery import never_began, plain
from chrono_beat.celery.context import HEADER
from chrono_beat.celery.patience import patiently
from chrono_beat.core import ids
from chrono_beat.core.config import LEAST_ETA_SECONDS
from chrono_beat.core.errors import ChronoError, InvalidInput, MisconfiguredError, Problem, StoreUnavailable
from chrono_beat.core.eta import LONGEST_AHEAD_US, TASK_THRESHOLD_SECONDS, EtaTask, job_id_of

logger = logging.getLogger(__name__)

SENT_WITH = ("exchange", "routing_key", "exchange_type", "delivery_mode", "priority")
"""Options of a message for a stock queue that the relay sends it with, beside the queue's name."""

_COLUMNS = frozenset({"id", "task", "retries", HEADER})
_warned: set[str] = set()


class Deferral(NamedTuple):
    """Why a message is to wait in the database.

    Args:
        asked_for: the task itself says so.
        countdown: seconds from now on, where it was given so.
    """

    asked_for: bool
    countdown: float | None


def deferral(app: Any, name: str, message: Any, countdown: float | None) -> Deferral | None:
    """Return why a message is to wait in the database; None where it is not.

    Args:
        app: the Celery app.
        name: of the task.
        message: headers, properties and body, as ``as_task_v2`` makes them.
        countdown: seconds from now on; None where the message's ``eta`` was given as an instant, or not at all.

    Raises:
        InvalidInput: the task's ``chrono_eta`` is none.
        MisconfiguredError: the task asks for it, and the settings cannot be read here.
    """
    eta = message.headers.get("eta")
    if not eta:
        return None
    own = getattr(app._tasks.get(name), "chrono_eta", None)
    if own is False:
        return None
    ahead = countdown
    if ahead is None:
        ahead = (plain.aware(eta, app.timezone) - datetime.now(UTC)).total_seconds()
    if (own is None or own is True) and ahead < LEAST_ETA_SECONDS:
        return None
    threshold = _threshold(app, own)
    return None if threshold is None or ahead < threshold else Deferral(own is not None, countdown)


def _threshold(app: Any, own: object) -> float | None:
    if own is not None and own is not True:
        if isinstance(own, bool) or not isinstance(own, (int, float)) or not own >= LEAST_ETA_SECONDS:
            raise InvalidInput(Problem(
                "chrono_eta", f"must be True, False or at least {LEAST_ETA_SECONDS:g} seconds, not {str(own)[:40]!r}"))
        return own
    try:
        setting: float | None = app.chrono_beat.config.eta_threshold
    except Exception as error:
        if own:
            raise _unreadable(error) from error
        # Whether the deployment wants it cannot be known here, and other messages are not to suffer for that.
        _warn_once("settings", "ETA_THRESHOLD cannot be read here, so far countdowns go to the broker: %s", error)
        return None
    return TASK_THRESHOLD_SECONDS if own and setting is None else setting


def keep(
    app: Any, message: Any, pool: str, why: Deferral, options: Mapping[str, Any], copy: Mapping[str, Any] | None = None,
) -> bool:
    """Write a message into the due index, in the caller's transaction on that database, where there is one.

    A retry is not to be lost for any reason: Celery drops a task whose retry cannot be sent. So it is tried for some
    seconds, and goes the ordinary way where that does not help.

    Args:
        app: the Celery app.
        message: headers, properties and body, as ``as_task_v2`` makes them.
        pool: where it goes; "" for another queue.
        why: of `deferral`.
        options: of ``apply_async``, as far as they concern the message.
        copy: the header of the plain task whose retry it is.

    Returns:
        False: it goes the ordinary way.

    Raises:
        InvalidInput: it cannot be kept, and the task asks for that; its tenant is unknown, or over its quota.
        StoreUnavailable: the database could not be reached; nothing was sent.
        MisconfiguredError: the task asks for it, and there is no database here.
    """
    is_retry = bool(message.headers.get("retries"))
    try:
        try:
            task = compose(app, message, pool, why, options, copy)
        except InvalidInput as refused:
            if why.asked_for and not is_retry:
                raise
            _warn_once(str(message.headers.get("task")), "a far countdown is not kept in the database: %s", refused)
            return False
        _add(app, task, is_retry=is_retry)
    except ChronoError as error:
        if not is_retry:
            raise
        logger.error("the retry of %s[%s] is sent at once, with its eta, since it cannot be kept: %s",
                     message.headers.get("task"), message.headers.get("id"), error)
        return False
    return True


def compose(
    app: Any, message: Any, pool: str, why: Deferral, options: Mapping[str, Any], copy: Mapping[str, Any] | None = None,
) -> EtaTask:
    """Turn a message of Celery's protocol 2 into an ETA task; arguments as of `keep`.

    Raises:
        InvalidInput: it cannot be kept, and why.
    """
    config, headers = app.chrono_beat.config, message.headers
    problems = plain.problems_of(message, pool, config, options)
    tenant = plain.tenant_of(headers, config, problems, copy)
    priority = plain.priority_of(options if pool else {}, problems)
    due_us = 0 if why.countdown is not None else ids.to_us(plain.aware(headers["eta"], app.timezone))
    countdown_us = round((why.countdown or 0) * 1_000_000)
    if countdown_us > LONGEST_AHEAD_US or due_us - ids.to_us(datetime.now(UTC)) > LONGEST_AHEAD_US:
        problems.append(Problem("eta", "lies more than ten years ahead"))
    if problems:
        raise InvalidInput(*problems)
    kept = {key: value for key, value in headers.items() if key not in _COLUMNS}
    rest: dict[str, Any] = {"pool": pool, "priority": priority, "headers": {**kept, plain.TENANT_HEADER: tenant}}
    if not pool:
        rest |= {"headers": {**kept, "eta": None}, "send": _send_options(options)}
    args, kwargs, embed = message.body
    try:
        texts = dumps(list(args)), dumps(dict(kwargs))
        rest |= {"embed": json.loads(dumps(dict(embed or {}))),
                 "properties": {"reply_to": message.properties.get("reply_to") or ""}}
        text = dumps(rest)
    except (TypeError, ValueError, RecursionError, EncodeError) as error:
        raise plain.no_json(error) from error
    plain.check_size(sum(len(part.encode()) for part in (*texts, dumps(embed))), kept, config)
    partition = ids.partition_of(tenant, job_id_of(headers["id"]), config.partitions)
    return EtaTask(headers["id"], tenant, partition, headers["task"], *texts, text, headers.get("retries") or 0, due_us,
                   countdown_us)


def _send_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return where a stock queue's message goes, by names: queues and exchanges are the relay's own app's."""
    found = {name: getattr(options[name], "name", options[name]) for name in SENT_WITH if options.get(name) is not None}
    queue = options.get("queue")
    if queue is not None:
        found["queue"] = str(getattr(queue, "name", queue))
    return found


def _add(app: Any, task: EtaTask, *, is_retry: bool) -> None:
    root = _root(app)
    if is_retry:
        patiently(lambda: root.eta().add(task), StoreUnavailable, what=f"the retry of {task.task_id} cannot be kept yet")
    else:
        root.eta().add(task)


def _root(app: Any) -> Any:
    try:
        root = app.chrono_beat.root
    except Exception as error:
        raise _unreadable(error) from error
    if not hasattr(root, "eta"):
        raise MisconfiguredError(f"WIRING: {root} has no eta(), so there is no database in which a message could wait")
    return root


def _unreadable(error: Exception) -> MisconfiguredError:
    return MisconfiguredError(
        f"chrono_eta: a message can wait only where Django's settings can be read, and here they cannot ({error}): set "
        "DJANGO_SETTINGS_MODULE and call django.setup(), or send it from a process that has them")


def _warn_once(key: str, text: str, *values: object) -> None:
    if key not in _warned and len(_warned) < 1_000:
        _warned.add(key)
        logger.warning(text, *values)


# -- revoke -----------------------------------------------------------------------------------------------------------

def revoke(app: Any, task_ids: Sequence[str]) -> None:
    """End the executions of ETA tasks that have not begun, and say so to the result backend and to their chords.

    Args:
        app: the Celery app.
        task_ids: Celery's.

    Raises:
        StoreUnavailable: the database could not be reached: they may still run, unless a worker has heard of the revoke.
    """
    try:
        root = _root(app)
    except MisconfiguredError as error:
        _warn_once("revoke", "tasks that wait in the database are not revoked from here: %s", error)
        return
    root.eta().revoke(task_ids, lambda row: never_began.tell_by(app, row))


class RevokingControl:
    """Mixin in front of a Control class: a revoke also ends what waits in the database."""

    app: Any

    def broadcast(self, command: str, arguments: Mapping[str, Any] | None = None, *args: Any, **options: Any) -> Any:
        """Send a control command; see Celery's ``Control.broadcast``."""
        failed: StoreUnavailable | None = None
        if command == "revoke":
            given = (arguments or {}).get("task_id", options.get("task_id")) or ()
            try:
                revoke(self.app, [given] if isinstance(given, str) else list(given))
            except StoreUnavailable as error:
                failed = error
        answer = super().broadcast(command, arguments, *args, **options)    # type: ignore[misc]
        if failed is not None:
            raise failed                                                    # the workers know, at least
        return answer


def revoking(base: type) -> type:
    """Return *base* with the mixin in front."""
    return base if issubclass(base, RevokingControl) else type("ChronoControl", (RevokingControl, base), {})
