"""What the keeper removes besides executions: changes, stored answers, closed alerts, what a beat sent. Both engines.

A statement looks at the oldest rows of an index only, at most as many as it may remove: that costs little where nothing is
old, and locks few rows where much is (R167).
"""
from __future__ import annotations

from chrono_beat.core.rollup import DAY_US

ANSWERS_KEPT_US = DAY_US
"""How long a request with an Idempotency-Key can be repeated."""

EVENTS_KEPT_TIMES = 12
"""Changes of jobs are kept so many times as long as the executions of the tenant that keeps its own longest."""

LONGEST = "SELECT MAX(retention_days) FROM chrono_tenant"
_REMOVE = """DELETE FROM {table} WHERE id IN (SELECT old.id FROM (
    SELECT id, {columns} FROM {table} ORDER BY {order} LIMIT %s) AS old WHERE {where})"""
EVENTS = _REMOVE.format(table="chrono_job_event", columns="at", order="id", where="old.at < %s")
ANSWERS = _REMOVE.format(
    table="chrono_stored_answer", columns="created_at", order="created_at", where="old.created_at < %s")
ALERTS = """DELETE FROM chrono_alert WHERE id IN (
    SELECT id FROM chrono_alert WHERE last_at < %s AND closed_at < %s ORDER BY last_at LIMIT %s)"""

BEAT_FIRES = _REMOVE.format(table="chrono_beat_fire", columns="sent_at", order="sent_at", where="old.sent_at < %s")
BEAT_WATCHES = _REMOVE.format(table="chrono_beat_watch", columns="seen_until", order="id", where="old.seen_until < %s")


def prune(cursor, now_us: int, retention_us: int, limit: int, written) -> int:
    """Remove at most *limit* rows of each kind, within a transaction; see JobStore.prune.

    Args:
        cursor: of that transaction.
        now_us: the database's clock.
        retention_us: the deployment's.
        limit: rows of each kind.
        written: how the engine writes an instant in µs.

    Returns:
        The rows of the kind of which most went, so that *limit* says that there may be more.
    """
    cursor.execute(LONGEST)
    longest_us = max(retention_us, (cursor.fetchone()[0] or 0) * DAY_US)
    before = written(max(0, now_us - retention_us))
    went = []
    for sql, parameters in (
        (EVENTS, [limit, written(max(0, now_us - EVENTS_KEPT_TIMES * longest_us))]),
        (ANSWERS, [limit, written(now_us - ANSWERS_KEPT_US)]),
        (ALERTS, [before, before, limit]),
        (BEAT_FIRES, [limit, before]),
        (BEAT_WATCHES, [limit, before]),
    ):
        cursor.execute(sql, parameters)
        went.append(cursor.rowcount)
    return max(went)
