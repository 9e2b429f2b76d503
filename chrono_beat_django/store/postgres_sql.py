"""How values travel to PostgreSQL and back, and the pieces that several statements share.

Lists travel as one text each, ``{1,2,3}``: lists of datetimes cost the client ten times as much. Instants are whole
microseconds on the way, and timestamps only inside the database.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping

from chrono_beat_django.store.keys import Key


def array(values: Iterable[object]) -> str:
    """Write an array of numbers, ids or plain words (nothing that needs quoting); None becomes NULL."""
    return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"


def texts(values: Iterable[str | None]) -> str:
    """Write an array of any texts. A NUL, which PostgreSQL can't store, becomes U+FFFD."""
    return "{" + ",".join(["NULL" if value is None else _quoted(value) for value in values]) + "}"


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\0", "\N{REPLACEMENT CHARACTER}")
    return f'"{escaped}"'


def at(us: str) -> str:
    """Turn an expression of microseconds into a timestamp; exact to the microsecond until the year 2242."""
    return f"to_timestamp(({us}) / 1000000::float8)"


def us(timestamp: str) -> str:
    """Turn an expression of a timestamp into microseconds."""
    return f"(date_part('epoch', {timestamp}) * 1000000)::bigint"


# A client that is stopped within a transaction keeps its locks so long, and not until it wakes up.
IDLE_TIMEOUT_MS = 5000
LIMIT_IDLE = f"SELECT set_config('idle_in_transaction_session_timeout', '{IDLE_TIMEOUT_MS}', true)"

CLOCK_US = us("clock_timestamp()")


def unnest(alias: str, **columns: str) -> str:
    """Write a table made of array parameters: column name = element type, in the order of the parameters.

    Each array hides in a subselect. The planner can't count its elements then, assumes ten and looks the rows up by
    index; with the true number it would rather read a table of some 100,000 rows from end to end.
    """
    arrays = ", ".join(f"(SELECT %s::{kind}[])" for kind in columns.values())
    return f"unnest({arrays}) AS {alias}({', '.join(columns)})"


def held(*, by_member: bool) -> str:
    """Write the CTE ``held (number, epoch)``: partitions that still have the epoch, locked until the statement ends.

    A takeover waits for the lock or, if it was first, makes the row fall out here. Locks are taken in one order, so
    that two statements can't wait for each other. Parameters: numbers, epochs and, with *by_member*, the member.
    """
    owner = "p.owner = %s" if by_member else "p.owner <> ''"
    return f"""held AS (
        SELECT p.number, p.epoch
        FROM {unnest("mine", number="int", epoch="bigint")}
        JOIN chrono_partition p ON p.number = mine.number AND p.epoch = mine.epoch
        WHERE {owner} ORDER BY p.number FOR SHARE OF p
    )"""


def held_parameters(epochs: Mapping[int, int]) -> tuple[str, str]:
    """Return the first two parameters of :func:`held`."""
    return array(epochs), array(epochs.values())


# The content of a job, as a ScheduledExecution and a DueJob carry it; j is the job, t its tenant.
CONTENT = """j.tenant, j.name, j.task, {args}, {kwargs}, j.headers, COALESCE(NULLIF(j.pool, ''), t.pool, ''),
    j.priority, j.soft_limit_seconds, j.max_duration_seconds, j.expires_after_seconds, j.concurrency, j.key_scope,
    j.exclusion_group"""

# Rows by the database's key. The bounds are constants to the planner: it leaves all other days' tables out at once.
KEY_COLUMNS = {"job_id": "uuid", "scheduled_us": "bigint", "attempt": "int"}
BY_KEY = f"""e.job_id = k.job_id AND e.scheduled_at = {at("k.scheduled_us")} AND e.attempt = k.attempt
    AND e.scheduled_at BETWEEN {at("%s")} AND {at("%s")}"""


def key_parameters(keys: Iterable[Key]) -> tuple[str, str, str]:
    """Return the parameters of KEY_COLUMNS."""
    job_ids, instants, attempts = zip(*keys, strict=True)
    return array(job_ids), array(instants), array(attempts)


def bounds(keys: Iterable[Key]) -> tuple[int, int]:
    """Return the parameters of BY_KEY: the first and the last instant."""
    instants = [key.scheduled_us for key in keys]
    return min(instants), max(instants)
