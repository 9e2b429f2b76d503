"""How a run ended, in the words of a settlement: from what Celery reports to (result, detail)."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from celery.exceptions import (
    Ignore,
    Reject,
    Retry,
    SoftTimeLimitExceeded,
    Terminated,
    TimeLimitExceeded,
    WorkerLostError,
)
from celery.utils.serialization import UnpickleableExceptionWrapper
from kombu.utils.encoding import safe_str

from chrono_beat.core import deliveries
from chrono_beat.core.callback import HttpTargetError

MAX_MESSAGE_CHARACTERS = 1_000
MAX_TRACEBACK_CHARACTERS = 4_000     # of its end, which names the line that raised

Ending = tuple[str, dict[str, Any]]


def success(runtime_seconds: float | None, result: str = "") -> Ending:
    """Return the ending of a body that returned.

    Args:
        result: what history is to say of it; "" for nothing.
    """
    facts: dict[str, Any] = {} if runtime_seconds is None else {"runtime_ms": round(runtime_seconds * 1000, 3)}
    return deliveries.RAN_OK, facts | {"result": result} if result else facts


def hard_timeout(limit_seconds: float | None) -> Ending:
    """Return the ending of a body that was killed at its hard limit."""
    text = f"hard time limit ({limit_seconds:g} s) exceeded" if limit_seconds else "hard time limit exceeded"
    return deliveries.RAN_TIMEOUT, {"error": {"type": "TimeLimitExceeded", "message": text, "traceback": ""}, "limit": "hard"}


def revoked(reason: str) -> Ending:
    """Return the ending of a task that a user revoked."""
    return deliveries.RAN_REVOKED, {"error": {"type": "TaskRevokedError", "message": reason, "traceback": ""}}


def too_late() -> Ending:
    """Return the ending of a message that was past its ``expires`` when a worker met it."""
    return deliveries.RAN_TOO_LATE, {"error": {"type": "TaskRevokedError", "message": "expired", "traceback": ""}}


def rejected(error: Exception) -> Ending:
    """Return the ending of a message that no task here can run."""
    text = _text(error)[:MAX_MESSAGE_CHARACTERS]
    return deliveries.RAN_REJECTED, {"error": {"type": type(error).__name__, "message": text, "traceback": ""}}


def lost(why: str) -> Ending:
    """Return the ending of a run that somebody else has to repeat."""
    return deliveries.RAN_LOST, {"error": {"type": "WorkerLostError", "message": why, "traceback": ""}}


def lost_too_often(why: str) -> Ending:
    """Return the ending of a plain task that is not handed out any more."""
    return deliveries.RAN_FAILED, {"error": {"type": "WorkerLostError", "message": why, "traceback": ""}}


def is_lost(exc_info: Any) -> bool:
    """Say whether the pool reports that the body's child is gone, and nothing of the body."""
    exc = exc_info.exception
    return isinstance(exc.exc if isinstance(exc, ExceptionWithTraceback) else exc, WorkerLostError)


def is_terminated(exc_info: Any) -> bool:
    """Say whether the pool reports that this process ended the body's child."""
    exc = exc_info.exception
    return isinstance(exc.exc if isinstance(exc, ExceptionWithTraceback) else exc, Terminated)


def failure(exc_info: Any) -> Ending:
    """Return the ending that an exception stands for.

    Args:
        exc_info: billiard's ExceptionInfo, as the pool reports it.
    """
    exc = exc_info.exception
    if isinstance(exc, ExceptionWithTraceback):
        exc = exc.exc
    error = {"error": _error(exc, exc_info)}
    if isinstance(exc, Retry):
        return deliveries.RAN_RETRY, {"error": _error(exc.exc, exc_info)} if isinstance(exc.exc, BaseException) else {}
    if isinstance(exc, Reject):
        # With requeue the body asks for another delivery: as a reap, so that the cap bounds it.
        return (deliveries.RAN_LOST, {**error, "requeue": True}) if exc.requeue else (deliveries.RAN_FAILED, error)
    if isinstance(exc, Ignore):
        return deliveries.RAN_OK, {"replaced": True} if str(exc).startswith("Replaced") else {"ignored": True}
    if isinstance(exc, TimeLimitExceeded):
        return hard_timeout(_first_number(exc))
    if isinstance(exc, SoftTimeLimitExceeded):
        return deliveries.RAN_TIMEOUT, {**error, "limit": "soft"}
    if isinstance(exc, Terminated):
        return deliveries.RAN_REVOKED, error
    if isinstance(exc, WorkerLostError):
        return deliveries.RAN_LOST, error
    # SystemExit of a body ends its process, but it is the body's own doing: repeating it would end the next one, too.
    return deliveries.RAN_FAILED, error


def _first_number(exc: BaseException) -> float | None:
    return exc.args[0] if exc.args and isinstance(exc.args[0], (int, float)) else None


def _error(exc: BaseException, exc_info: Any) -> Mapping[str, Any]:
    if isinstance(exc, HttpTargetError):
        return {"type": type(exc).__name__, "message": str(exc)[:MAX_MESSAGE_CHARACTERS], "traceback": "",
                "final": exc.final, "retry_after_seconds": exc.retry_after_seconds}
    name = exc.exc_cls_name if isinstance(exc, UnpickleableExceptionWrapper) else type(exc).__name__
    return {
        "type": name,
        "message": _text(exc)[:MAX_MESSAGE_CHARACTERS],
        "traceback": safe_str(getattr(exc_info, "traceback", None) or "")[-MAX_TRACEBACK_CHARACTERS:],
    }


def _text(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception:                                # an exception of the user's own, with a faulty __str__
        return safe_str(exc)
