"""ETA tasks: Celery messages for later that wait in the due index instead of in a worker or in Redis.

``apply_async(eta=…)`` makes a message; this one becomes an execution without a job. Its job id is the Celery task id
(or its uuid5, see `job_id_of`), its instant the one it is due at, and its options hold all of the message that has no
column of its own. When it is due, the message is built again as it was: the same task id, callbacks, errbacks, chain,
chord, group, root and parent. Only what says when is gone.

    options = {"pool": "chrono", "priority": 5, "headers": {…}, "embed": {…}, "properties": {…}}
    options = {"pool": "", "send": {"queue": "mail"}, …}      # for a queue that is no pool: through the relay
"""
from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from chrono_beat.core.config import Config
from chrono_beat.core.envelope import HEADER, HEADER_VERSION, InvalidContent
from chrono_beat.core.field_checks import wrong_celery_task
from chrono_beat.core.ids import from_us, occurrence_key
from chrono_beat.core.records import Content, PublishItem, ScheduledExecution, shown_without
from chrono_beat.core.targets import relay_pool

KIND = "eta"

TASK_THRESHOLD_SECONDS = 60.0
"""How far ahead an ETA of a task with ``chrono_eta=True`` must lie where the setting ETA_THRESHOLD has no number."""

LONGEST_AHEAD_US = 10 * 366 * 86_400_000_000
"""How far ahead an ETA may lie: ten years, as a retry."""

DEFAULT_PRIORITY = 5


class EtaTask(NamedTuple):
    """A Celery message for later, on its way into the due index.

    Args:
        task_id: Celery's; any text of up to 255 characters.
        tenant: slug of its tenant.
        partition: of the due index.
        task: name of the Celery task.
        args, kwargs: JSON texts.
        options: JSON text of the rest of the message.
        retries: what the task will read as ``request.retries``. A retry that is there already, open and of the same
            count, is not written again.
        due_us: when it may be read; 0 where *countdown_us* says so.
        countdown_us: counted from the database's clock.
    """

    task_id: str
    tenant: str
    partition: int
    task: str
    args: str
    kwargs: str
    options: str
    retries: int
    due_us: int = 0
    countdown_us: int = 0

    def __repr__(self) -> str:
        return shown_without(self, "args", "kwargs", "options")


def job_id_of(task_id: str) -> str:
    """Return the job id of a Celery task's executions: the task id where it is a random UUID, as Celery makes them, else its
    uuid5. Ids of jobs are UUIDs of version 7, so no task id, whoever chose it, leads to a job's executions."""
    try:
        given = uuid.UUID(task_id)
    except ValueError:
        given = None
    if given is not None and given.version == 4 and str(given) == task_id:
        return task_id
    return str(uuid.uuid5(uuid.NAMESPACE_OID, task_id))


def is_awaited(task_id: str, job_id: str, kind: str) -> bool:
    """Say whether an execution is of a Celery task whose result somebody may wait for. A job's is not, nor a replay: that runs
    under an id of its own.

    Args:
        task_id: Celery's.
        job_id, kind: of the execution.
    """
    return kind != "replay" and job_id_of(task_id) == job_id


def content(tenant: str, name: str, task: str, args: str | None, kwargs: str | None) -> Content:
    """Return what a row without a job has as its content; the rest is in its options."""
    return Content(
        tenant, name, task, args or "[]", kwargs or "{}", "", "", DEFAULT_PRIORITY, None, None, None, "allow", "occurrence")


def publish_item(row: ScheduledExecution, config: Config) -> PublishItem:
    """Build the message of an ETA task's row, and what the lane must know of it.

    No expiry goes with it: the message keeps Celery's own ``expires``, so that the worker who finds it over says so to the
    result backend and to the chord.

    Raises:
        InvalidContent: no message can be made of it.
    """
    kept = _kept(row, config)
    celery_id = row.execution_id if row.kind == "replay" else row.celery_id
    pool = kept["pool"] or relay_pool(config)
    given = kept.get("priority")
    priority = given if isinstance(given, int) and 0 <= given <= 9 else DEFAULT_PRIORITY
    chrono: dict[str, Any] = {
        "v": HEADER_VERSION, "tenant": row.content.tenant, "name": row.content.name, "pool": pool, "job": row.job_id,
        "eid": row.execution_id, "key": row.celery_id or occurrence_key(row.job_id, row.scheduled_us),
        "scheduled_at": from_us(row.scheduled_us).isoformat(), "due_at": from_us(row.due_us).isoformat(),
        "attempt": row.attempt, "kind": row.kind,
    }
    if not kept["pool"]:
        chrono["send"] = kept["send"]
    headers = {**kept["headers"], "task": row.content.task, "id": celery_id, "retries": row.retries, HEADER: chrono}
    payload = json.dumps({
        "body": f"[{row.content.args},{row.content.kwargs},{json.dumps(kept['embed'])}]",
        "content-encoding": "utf-8", "content-type": "application/json", "headers": headers,
        "properties": {
            **kept["properties"], "correlation_id": celery_id, "priority": 0, "delivery_mode": 2, "body_encoding": "utf-8",
            "delivery_info": {"exchange": "", "routing_key": pool}, "delivery_tag": row.execution_id,
        },
    }).encode()
    return PublishItem(
        row.execution_id, row.job_id, row.content.tenant, row.version, row.attempt, row.kind, pool, priority, row.due_us,
        None, "allow", payload)


def send_options(headers: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return where the relay sends the message of an ETA task, as options of Celery's; None for any other message."""
    chrono = headers.get(HEADER)
    found = chrono.get("send") if isinstance(chrono, Mapping) else None
    return found if isinstance(found, Mapping) else None


def queue_of(payload: bytes) -> str:
    """Return, for people, where the relay sends the message of an ETA task; "" for any other message."""
    try:
        send = send_options(json.loads(payload)["headers"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""
    if send is None:
        return ""
    return f"{send['exchange']}/{send.get('routing_key') or ''}" if send.get("exchange") else str(send.get("queue") or "")


def _kept(row: ScheduledExecution, config: Config) -> dict[str, Any]:
    """Return the options of a row, looked through: somebody may have written them with SQL."""
    if wrong := wrong_celery_task(row.content.task, config.allowed_tasks):
        raise InvalidContent(f"task: {wrong}")
    if len(row.content.args) + len(row.content.kwargs) > config.max_payload:
        raise InvalidContent(f"kwargs: args and kwargs may take {config.max_payload:,} bytes of JSON together")
    for field, text, kind in (("args", row.content.args, list), ("kwargs", row.content.kwargs, dict),
                              ("options", row.options or "", dict)):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidContent(f"{field}: is not JSON: {error}") from None
        if not isinstance(value, kind):
            raise InvalidContent(f"{field}: must be a JSON {'array' if kind is list else 'object'}")
    kept: dict[str, Any] = value
    parts = ("headers", "embed", "properties", *(() if kept.get("pool") else ("send",)))
    if not isinstance(kept.get("pool"), str) or not all(isinstance(kept.get(part), dict) for part in parts):
        raise InvalidContent(f"options: must hold pool, a text, and the objects {', '.join(parts)}")
    return kept
