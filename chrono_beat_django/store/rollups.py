"""Adding to the minutes of tenants: one upsert within the transaction of the rows that count.

Every writer adds in the order of (tenant, minute) and as the last thing it locks, so no two wait for each other.
Histograms grow by appending (see :mod:`chrono_beat.core.rollup`); one that has become long is written anew at once.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence

from chrono_beat.core import lifecycle
from chrono_beat.core.crowding import RECENT_US, USUAL_US, Load, TenantLoad
from chrono_beat.core.ids import from_us
from chrono_beat.core.rollup import MINUTE_US, SPAN_US, Tallies, Tally, compact, histogram, merges
from chrono_beat.core.rollup import merge as merge_texts
from chrono_beat_django.store.postgres_sql import array, at, texts, unnest, us
from chrono_beat_django.store.sqlite_sql import us as read_instant

LONGEST_TEXT = 1_500
"""Characters up to which a histogram may grow before it is written anew: PostgreSQL compresses rows of 2,000 each time."""

_SUMS = ("started", *lifecycle.TERMINAL, "deliveries", "duplicates", "capped_us", "reaps")
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
ADD_TO = """INSERT INTO chrono_rollup AS r (tenant, span, start, {column}) VALUES (%s, 'minute', %s, %s)
ON CONFLICT (tenant, span, start) DO UPDATE SET {column} = r.{column} + EXCLUDED.{column}"""
OLD = f"""SELECT id, tenant, {{start}}, {', '.join((*_SUMS, "lateness_max_us", *_TEXTS))} FROM chrono_rollup
WHERE span = %s AND start < %s ORDER BY start LIMIT %s"""
OLD_LOCKED = OLD + " FOR UPDATE SKIP LOCKED"            # of two keepers each merges rows of its own
LOADS = """SELECT r.tenant, r.start >= %s AS is_recent, MAX(t.lateness_objective_seconds), SUM(r.started), SUM(r.deliveries),
    SUM(r.duplicates), SUM(r.reaps), {join}(r.lateness, ' ')
FROM chrono_rollup r LEFT JOIN chrono_tenant t ON t.slug = r.tenant
WHERE r.span = 'minute' AND r.start >= %s GROUP BY 1, 2"""
IDS_AT_ONCE = 900
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
    _add_rows(cursor, [(tenant, "minute", _instant(start_us, naive=True), *_values(tally))
                       for tenant, start_us, tally in tallies.rows()])


def merge(cursor, now_us: int, retention_us: int, limit: int, *, naive: bool = False) -> int:
    """Merge minutes into hours and hours into days, within a transaction; see JobStore.merge_rollups."""
    merged = 0
    for span, wider, before_us in merges(now_us, retention_us):
        sql = (OLD if naive else OLD_LOCKED).format(start="CAST(start AS TEXT)" if naive else us("start"))
        cursor.execute(sql, [span, _instant(before_us, naive), limit - merged])
        sums: dict[tuple[str, int], list[tuple]] = {}
        ids = []
        for id_, tenant, start, *values in cursor.fetchall():
            start_us = read_instant(start) if naive else start
            sums.setdefault((tenant, start_us // SPAN_US[wider] * SPAN_US[wider]), []).append(tuple(values))
            ids.append(id_)
        _add_rows(cursor, [(tenant, wider, _instant(start_us, naive), *_sum(rows))
                           for (tenant, start_us), rows in sorted(sums.items())])
        for first in range(0, len(ids), IDS_AT_ONCE):
            part = ids[first:first + IDS_AT_ONCE]
            cursor.execute(f"DELETE FROM chrono_rollup WHERE id IN ({', '.join(['%s'] * len(part))})", part)
        merged += len(ids)
    return merged


def loads(cursor, now_us: int, *, naive: bool = False) -> list[TenantLoad]:
    """Read what tenants did of late, in one query; see JobStore.loads."""
    recent_us = now_us // MINUTE_US * MINUTE_US - RECENT_US
    recent, usual = (_instant(at_us, naive) for at_us in (recent_us, recent_us - USUAL_US))
    cursor.execute(LOADS.format(join="GROUP_CONCAT" if naive else "STRING_AGG"), [recent, usual])
    found: dict[str, dict[str, object]] = {}
    for tenant, is_recent, objective, *counts, reaps, lateness in cursor.fetchall():
        load = found.setdefault(tenant, {"objective_us": None if objective is None else objective * 1e6})
        load["recent" if is_recent else "usual"] = Load(*map(int, counts), compact(lateness), int(reaps))
    return [TenantLoad(tenant, **load) for tenant, load in sorted(found.items())]  # type: ignore[arg-type]


def _add_rows(cursor, rows: Sequence[tuple]) -> None:
    """Add rows of all columns, in the order in which all writers lock."""
    for first in range(0, len(rows), ROWS_AT_ONCE):
        part = rows[first:first + ROWS_AT_ONCE]
        flat = [value for row in part for value in row]
        cursor.execute(ADD.format(rows=", ".join([_ROW] * len(part))), flat)
        for id_, *long in cursor.fetchall():
            if long[0] is not None:
                cursor.execute(COMPACT, [*(compact(text) for text in long), id_])


def add_to(cursor, column: str, values: Iterable[tuple[str, int, int]], *, naive: bool = False) -> None:
    """Add to one column: (tenant, start of the minute in µs, value), in the order in which all writers lock."""
    cursor.executemany(ADD_TO.format(column=column), [
        (tenant, _instant(start_us, naive), value) for tenant, start_us, value in sorted(values)])


def _values(tally: Tally) -> tuple[object, ...]:
    return (tally.started, *[tally.states.get(state, 0) for state in lifecycle.TERMINAL], tally.deliveries, tally.duplicates,
            0, 0, max(tally.lateness_us, default=0), histogram(tally.lateness_us), histogram(tally.publish_lateness_us),
            histogram(tally.duration_us))


def _sum(rows: Sequence[tuple]) -> list[object]:
    """Add up rows of the sums, the maximum and the histograms."""
    columns = list(zip(*rows, strict=True))
    sums, maximum, histograms = columns[:len(_SUMS)], columns[len(_SUMS)], columns[len(_SUMS) + 1:]
    return [*(sum(column) for column in sums), max(maximum), *(merge_texts(column) for column in histograms)]


def _instant(at_us: int, naive: bool) -> object:
    start = from_us(at_us)
    return str(start.replace(tzinfo=None)) if naive else start
