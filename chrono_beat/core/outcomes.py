"""When a failed occurrence is tried again, and how an outcome ends its row.

Pure decisions: the time and the chance come in as arguments, records go out.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from chrono_beat.core import lifecycle
from chrono_beat.core.deliveries import (
    RAN_FAILED,
    RAN_LOST,
    RAN_OK,
    RAN_REJECTED,
    RAN_RETRY,
    RAN_REVOKED,
    RAN_SUPERSEDED,
    RAN_TIMEOUT,
    RAN_TOO_LATE,
    Outcome,
)
from chrono_beat.core.records import GONE_VERSION, MISSED, Ending, NewAttempt, OpenExecution, RetryPolicy, Start

LONGEST_RETRY_US = 10 * 366 * 86_400_000_000
"""How far ahead a task may put its own retry: ten years. More is a slip, and may not fit into a database's calendar."""

MAX_ERROR_CHARACTERS = 4_000
"""Length of an execution's error text; of a traceback the end is kept."""

MAX_RESULT_CHARACTERS = 200
"""Length of what an execution's row says of a success."""

_SECOND_US = 1_000_000


# -- retry ------------------------------------------------------------------------------------------------------------

def retry_delay_seconds(policy: RetryPolicy, attempt: int, random: Callable[[], float]) -> float:
    """Return how long to wait before the next attempt: min(maximum, base × factor^(attempt − 1)), then ± jitter.

    Args:
        policy: the job's.
        attempt: how many attempts there have been since the occurrence (or its replay) began, at least 1.
        random: gives a number from 0 to 1, 1 excluded.

    Returns:
        Seconds; never above the maximum, and never below base × (1 − jitter) where the maximum allows that.
    """
    base, factor, maximum = policy.base_seconds, policy.factor, policy.maximum_seconds
    try:
        delay = min(maximum, base * factor ** (attempt - 1))
    except OverflowError:
        delay = maximum
    delay *= 1 + policy.jitter * (2 * random() - 1)
    return min(maximum, max(delay, base * (1 - policy.jitter)))


def _asked_to_wait_seconds(policy: RetryPolicy, detail: Mapping[str, Any]) -> float:
    """Return for how long a target asked to be left alone (``Retry-After``), up to the job's maximum; 0 where it did not.

    It is the least that the target wants (RFC 9110, section 10.2.3); the back-off may be longer.
    """
    error = detail.get("error")
    asked = error.get("retry_after_seconds") if isinstance(error, Mapping) else None
    if isinstance(asked, bool) or not isinstance(asked, (int, float)) or not asked > 0:
        return 0.0
    return min(policy.maximum_seconds, asked)


def _is_final(detail: Mapping[str, Any]) -> bool:
    """Say whether a target said that trying again is of no use."""
    error = detail.get("error")
    return isinstance(error, Mapping) and error.get("final") is True


# -- end --------------------------------------------------------------------------------------------------------------

# Outcomes that end a row without a look at it: state and reason. The others depend on the row.
_PLAIN_ENDS = {
    RAN_OK: (lifecycle.SUCCEEDED, ""),
    RAN_REVOKED: (lifecycle.CANCELLED, ""),                # by the user, with Celery's revoke: no retry
    "cancelled": (lifecycle.CANCELLED, ""),                # asked for by a user, before its body began
    RAN_SUPERSEDED: (lifecycle.CANCELLED, "superseded"),   # told to stop, since a newer occurrence takes its place
    RAN_REJECTED: (lifecycle.DEAD, "invalid"),
    RAN_LOST: (lifecycle.DEAD, "worker_lost"),             # and expired before it could be handed out again
    "reap_cap": (lifecycle.DEAD, "reap_cap"),
    "no_worker": (lifecycle.DEAD, "no_worker"),            # lay aside for long enough; no worker came that knows its task
    "skipped": (lifecycle.SKIPPED, "overlap"),
    "expired": (lifecycle.EXPIRED, ""),
    RAN_TOO_LATE: (lifecycle.EXPIRED, ""),                 # by the message's own expires, which its worker looks at
    MISSED: (lifecycle.MISSED, "misfire"),
}
DECISIONS = ("skipped", "expired", "voided", "cancelled", MISSED)
"""Events that are decided without a run."""

_FAILURES = {RAN_FAILED: "error", RAN_RETRY: "error", RAN_TIMEOUT: "timeout"}
NEEDS_ROW = frozenset({*_FAILURES, "voided"})
"""Events whose end cannot be decided without the execution's row."""


def decide_end(
    execution: OpenExecution | None, outcome: Outcome, now_us: int, random: Callable[[], float],
) -> tuple[Ending | None, NewAttempt | None, Start | None]:
    """Decide what an outcome does to its execution.

    Args:
        execution: the open row; only the events of `NEEDS_ROW` need it, and do nothing where it is not open any more.
        outcome: what Redis says.
        now_us: microseconds since the epoch; no retry is put off further from it than `LONGEST_RETRY_US`.
        random: gives a number from 0 to 1, 1 excluded, for the jitter.

    Returns:
        The row's end, the next attempt, or its start; None for what does not follow.

    Raises:
        ValueError: the event is none that is known.
    """
    if outcome.event == "started":
        return None, None, Start(outcome.execution_id, outcome.at_us, outcome.worker, outcome.deliveries)
    if execution is not None and _is_unknown(execution, outcome):
        version = execution.version if outcome.event in ("voided", "cancelled") else outcome.version
        return _ending(outcome, lifecycle.DEAD, "unknown", version), None, None
    if outcome.event in _PLAIN_ENDS:
        state, reason = _PLAIN_ENDS[outcome.event]
        if outcome.event == RAN_OK and outcome.detail.get("handed_over"):
            reason = "handed_over"                             # the broker has it; what becomes of it is not known here
        if outcome.event == RAN_OK and outcome.detail.get("shadow"):
            reason = "shadow"
        if outcome.event == RAN_SUPERSEDED and outcome.detail.get("unknown"):
            state, reason = lifecycle.DEAD, "unknown"          # rule 12: it may have run before Redis' memory was lost
        if outcome.event == RAN_TOO_LATE and outcome.deliveries > 1:
            state, reason = lifecycle.DEAD, "worker_lost"      # a worker had it in time, and was lost
        named = outcome.event == "cancelled"                   # then whatever version it has
        if named and outcome.token:
            state, reason = lifecycle.DEAD, "unknown"          # a worker had it, and could not say any more whether it ran
        return _ending(outcome, state, reason, None if named else outcome.version), None, _forgotten_start(outcome)
    if outcome.event not in NEEDS_ROW:
        raise ValueError(f"no such event: {outcome.event[:40]!r}")
    if execution is None:
        return None, None, None
    if outcome.event == "voided":
        # It speaks of every row below its version, so a row that a newer plan has taken over stays open.
        if execution.version >= outcome.version:
            return None, None, None
        # Rule 12: it began, or a worker had it that could not say so any more; nobody will say how it ended.
        if execution.state == lifecycle.RUNNING or outcome.token:
            return _ending(outcome, lifecycle.DEAD, "unknown", execution.version), None, None
        reason = "deleted" if outcome.version >= GONE_VERSION else "superseded"
        return _ending(outcome, lifecycle.CANCELLED, reason, execution.version), None, None
    attempt = _next_attempt(execution, outcome, now_us, random)
    state = lifecycle.DEAD if attempt is None else lifecycle.FAILED
    return _ending(outcome, state, _FAILURES[outcome.event], None), attempt, _forgotten_start(outcome)


def _forgotten_start(outcome: Outcome) -> Start | None:
    """Return the start of a delivery that its lane has forgotten, and with it perhaps that it had started.

    Such an outcome has no tenant. The instant is the latest possible one; what was recorded before stays.
    """
    if outcome.tenant or outcome.event not in (RAN_OK, *_FAILURES):
        return None
    runtime_ms = outcome.detail.get("runtime_ms")
    ran_us = round(runtime_ms * 1000) if isinstance(runtime_ms, (int, float)) else 0
    return Start(outcome.execution_id, outcome.at_us - ran_us, outcome.worker, outcome.deliveries)


def needs_row(outcome: Outcome) -> bool:
    """Say whether `decide_end` has to know the execution's row."""
    return outcome.event in NEEDS_ROW or "unknown_before" in outcome.detail


def is_final(event: str, token: str) -> bool:
    """Say whether an outcome ends any open row of its execution.

    Rule 11: a decision without a run counts only for the version and the generation that it was made for. What a worker did
    counts for all.

    Args:
        event: of the outcome.
        token: of the last grant; "" where no worker had it.
    """
    return event not in DECISIONS and (event != RAN_SUPERSEDED or token != "")


def _is_unknown(execution: OpenExecution, outcome: Outcome) -> bool:
    """Rule 12: what was due before the lane's generation began may have run, and nobody can know any more."""
    before_us = outcome.detail.get("unknown_before")
    if before_us is None or outcome.event not in DECISIONS:
        return False
    if outcome.event == "voided" and execution.version >= outcome.version:
        return False                                       # a newer plan has taken the row over
    return execution.due_us < int(before_us)


def _ending(outcome: Outcome, state: str, reason: str, version: int | None) -> Ending:
    conditional = not is_final(outcome.event, outcome.token)
    return Ending(
        outcome.execution_id, state, reason, outcome.at_us, outcome.worker, outcome.deliveries,
        _in_the_way(outcome) or error_text(outcome.detail), version if conditional else None,
        outcome.generation if conditional else None, outcome.lane,
        _storable(_result(outcome.detail))[:MAX_RESULT_CHARACTERS],
    )


def _result(detail: Mapping[str, Any]) -> str:
    """Say what a success brought; "" for nothing that history should tell."""
    queue = detail.get("handed_over")
    return f"handed over to {queue}" if queue else str(detail.get("result") or "")


def _in_the_way(outcome: Outcome) -> str:
    """Say which other execution a decision about overlap was for; "" for other outcomes."""
    other = outcome.detail.get("blocked_by")
    if not other:
        return ""
    return f"{other} was active" if outcome.event == "skipped" else f"replaced by {other}"


ATTEMPTS_UNTOLD = 4
"""Attempts in all where a body ended by Retry and nothing says how often: Celery's default of three retries."""


def _next_attempt(
    execution: OpenExecution, outcome: Outcome, now_us: int, random: Callable[[], float],
) -> NewAttempt | None:
    """Return the attempt after a failed one; None where it was the last.

    Retries are counted since the occurrence, or its replay, began: a replay starts them anew, attempt numbers grow.
    """
    policy, made = execution.retry, execution.retries + 1
    if _is_final(outcome.detail):
        return None
    asked: Mapping[str, Any] | None = outcome.detail.get("retry") if outcome.event == RAN_RETRY else None
    most = policy.max_attempts
    if outcome.event == RAN_RETRY and not policy.explicit:
        # The task has obeyed its own max_retries. Where what it asked for was lost, or nothing was asked (a body may
        # raise Retry itself), Celery's default is the limit, since there must be one.
        most = ATTEMPTS_UNTOLD if asked is None else made + 1
    if made >= most:
        return None
    if asked is None:
        delay = max(retry_delay_seconds(policy, made, random), _asked_to_wait_seconds(policy, outcome.detail))
        due_us = outcome.at_us + round(delay * _SECOND_US)
        return NewAttempt(execution.execution_id, execution.attempt + 1, made, due_us)
    eta_us = asked.get("eta_us")
    due_us = outcome.at_us + int(asked.get("countdown_us") or 0) if eta_us is None else int(eta_us)
    due_us = min(max(due_us, outcome.at_us), now_us + LONGEST_RETRY_US)
    return NewAttempt(
        execution.execution_id, execution.attempt + 1, made, due_us, asked.get("args"), asked.get("kwargs"),
    )


def error_text(detail: Mapping[str, Any]) -> str:
    """Return what an outcome says of its error, as a short text: type and message, then the end of the traceback."""
    error = detail.get("error")
    if not isinstance(error, Mapping):
        return ""
    text = _storable(f"{error.get('type') or 'Error'}: {error.get('message') or ''}")[:MAX_ERROR_CHARACTERS]
    trace = _storable(str(error.get("traceback") or ""))
    room = MAX_ERROR_CHARACTERS - len(text) - 1
    return f"{text}\n{trace[-room:]}" if trace and room > 0 else text


def _storable(text: str) -> str:
    """Replace what no database keeps; an error's text may hold whatever made the task fail."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
