"""Adding to the minutes of tenants: one upsert within the transaction of the rows that count.

Every writer adds in the order of (tenant, minute) and as the last thing it locks, so no two wait for each other.
Histograms grow by appending (see :mod:`chrono_beat.core.rollup`); one that has become long is written anew at once.
"""
from __future__ import annotations

from collections.abc import Iterable

from chrono_beat.core import lifecycle
from chrono_beat.core.ids import from_us
from chrono_beat.core.rollup import Tallies, Tally, compact, histogram
from chrono_beat_django.store.postgres_sql import array, at, texts, unnest

LONGEST_TEXT = 1_500
"""Characters up to which a histogram may grow before it is written anew: PostgreSQL compresses rows of 2,000 each time."""

_SUMS = ("started", *lifecycle.TERMINAL, "deliveries", "duplicates")
_TEXTS = ("lateness", "publish_lateness", "duration")
_COLUMNS = ("tenant", "span", "start", *_SUMS, "lateness_max_us", *_TEXTS)
_ROW = f"({', '.join(['%s'] * len(_COLUMNS))})"
_ADDED = ", ".join([
    *(f"{name} = r.{name} + EXCLUDED.{name}" for name in _SUMS),
    *(f"{name} = TRIM(r.{name} || ' ' || EXCLUDED.{name})" for name in _TEXTS),
    "lateness_max_us = CASE WHEN r.lateness_max_us > EXCLUDED.lateness_max_us THEN r.lateness_max_us "
    "ELSE EXCLUDED.lateness_max_us END",
])
_LONG = " OR ".join(f"LENGTH({name}) > {LONGEST_TEXT}" for name in _TEXTS)
ADD = f"""INSERT INTO chrono_rollup AS r ({', '.join(_COLUMNS)}) VALUES {{rows}}
ON CONFLICT (tenant, span, start) DO UPDATE SET {_ADDED}
RETURNING id, {', '.join(f"CASE WHEN {_LONG} THEN {name} END" for name in _TEXTS)}"""
# On PostgreSQL a batch is one statement with a parameter for each column, and only long rows come back.
_KINDS = {"tenant": "text", "start_us": "bigint", **dict.fromkeys((*_SUMS, "lateness_max_us"), "bigint"),
          **dict.fromkeys(_TEXTS, "text")}
ADD_AT_ONCE = f"""WITH added AS (
    INSERT INTO chrono_rollup AS r ({', '.join(_COLUMNS)})
    SELECT k.tenant, 'minute', {at("k.start_us")}, {', '.join(f"k.{name}" for name in _COLUMNS[3:])}
    FROM {unnest("k", **_KINDS)}
    ON CONFLICT (tenant, span, start) DO UPDATE SET {_ADDED}
    RETURNING id, {', '.join(_TEXTS)}
) SELECT * FROM added WHERE {_LONG}"""
COMPACT = f"UPDATE chrono_rollup SET {', '.join(f'{name} = %s' for name in _TEXTS)} WHERE id = %s"
ADD_CAPPED = """INSERT INTO chrono_rollup AS r (tenant, span, start, capped_us) VALUES (%s, 'minute', %s, %s)
ON CONFLICT (tenant, span, start) DO UPDATE SET capped_us = r.capped_us + EXCLUDED.capped_us"""
ROWS_AT_ONCE = 40                # parameters of one statement: SQLite takes 999 in its oldest versions


def add_at_once(cursor, tallies: Tallies) -> None:
    """Add what a transaction counted, on PostgreSQL."""
    rows = [(tenant, start_us, *_values(tally)) for tenant, start_us, tally in tallies.rows()]
    if not rows:
        return
    columns = zip(_KINDS.values(), zip(*rows, strict=True), strict=True)
    cursor.execute(ADD_AT_ONCE, [texts(column) if kind == "text" else array(column) for kind, column in columns])
    for id_, *long in cursor.fetchall():
        cursor.execute(COMPACT, [*(compact(text) for text in long), id_])


def add(cursor, tallies: Tallies) -> None:
    """Add what a transaction counted, on SQLite."""
    rows = tallies.rows()
    for first in range(0, len(rows), ROWS_AT_ONCE):
        part = rows[first:first + ROWS_AT_ONCE]
        flat: list[object] = []
        for tenant, start_us, tally in part:
            flat += (tenant, "minute", _instant(start_us, naive=True), *_values(tally))
        cursor.execute(ADD.format(rows=", ".join([_ROW] * len(part))), flat)
        for id_, *long in cursor.fetchall():
            if long[0] is not None:
                cursor.execute(COMPACT, [*(compact(text) for text in long), id_])


def add_capped(cursor, spells: Iterable[tuple[str, int, int]], *, naive: bool = False) -> None:
    """Add time spent capped: (tenant, start of the minute in µs, µs), in the order in which all writers lock."""
    cursor.executemany(ADD_CAPPED, [(tenant, _instant(start_us, naive), us) for tenant, start_us, us in sorted(spells)])


def _values(tally: Tally) -> tuple[object, ...]:
    return (tally.started, *[tally.states.get(state, 0) for state in lifecycle.TERMINAL], tally.deliveries, tally.duplicates,
            max(tally.lateness_us, default=0), histogram(tally.lateness_us), histogram(tally.publish_lateness_us),
            histogram(tally.duration_us))


def _instant(us: int, naive: bool) -> object:
    start = from_us(us)
    return str(start.replace(tzinfo=None)) if naive else start
