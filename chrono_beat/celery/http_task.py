"""The built-in task ``chrono_beat.http``: it calls the HTTP target of the job whose delivery it runs for.

A message says only that this is to be run, and for which job. URL, body, headers and signing secrets are read from the
database when the call is made, all of one version; so no secret lies in Redis, in a result, or in what Flower shows.
Lease, cap, overlap, stops and limits of time are those of any task.
"""
from __future__ import annotations

import time
from typing import Any

from chrono_beat.celery.context import CurrentExecution, current
from chrono_beat.core.callback import HTTP_TASK, HttpTarget, HttpTargetError
from chrono_beat.core.errors import StoreUnavailable

READ_PAUSES_SECONDS = (0.2, 0.5, 1.0, 2.0, 4.0)      # between attempts to read the target while the database is away


def register(app: Any) -> None:
    """Add the task to an app; its workers know it from then on. Nothing of the app's configuration is read yet."""
    # What a target answers is no surprise, so the worker's log has a line of it and no traceback.
    app.task(name=HTTP_TASK, bind=True, shared=False, max_retries=0, throws=(HttpTargetError,))(http)


def http(self: Any, *args: Any, **kwargs: Any) -> str:
    """Call the HTTP target of the current execution.

    Returns:
        For history: the status and how long it took.

    Raises:
        HttpTargetError: it was no success.
    """
    mine = current()
    if mine is None or mine.job_id is None:              # called by hand, or sent as a plain task
        raise HttpTargetError(f"{HTTP_TASK} runs for jobs that have a url, and for nothing else", final=True)
    beat = self.app.chrono_beat
    target = _target(beat, mine)
    if target is None:
        raise HttpTargetError("the job has no URL any more: it was deleted, or its target changed", final=True)
    from chrono_beat.targets import http as sender  # here, so that importing the app costs no TLS set-up

    scheduled_at = mine.scheduled_at.isoformat()
    of = sender.Call(mine.idempotency_key, mine.execution_id, mine.attempt, scheduled_at)
    answer = sender.call(target, of, beat.config)
    return f"{answer.status} in {answer.duration_ms:g} ms"


def _target(beat: Any, mine: CurrentExecution) -> HttpTarget | None:
    for pause in READ_PAUSES_SECONDS:
        try:
            return beat.root.http_target(mine.job_id, mine.execution_id)
        except StoreUnavailable:
            time.sleep(pause)
    try:
        return beat.root.http_target(mine.job_id, mine.execution_id)
    except StoreUnavailable as error:
        raise HttpTargetError(f"the database could not be asked for the URL: {type(error).__name__}") from None
