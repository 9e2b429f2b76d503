"""Adding to the minutes of tenants, in memory."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from chrono_beat.core import lifecycle
from chrono_beat.core.crowding import RECENT_US, USUAL_US, Load, TenantLoad
from chrono_beat.core.rollup import MINUTE_US, SPAN_US, Tallies, histogram, merge
from chrono_beat.testing.memory_rows import Journal, MemoryRollup


def add(rollups: dict[tuple[str, int], MemoryRollup], journal: Journal, tallies: Tallies) -> None:
    """Add what a transaction counted to (tenant, start of the minute in µs)."""
    for tenant, start_us, tally in tallies.rows():
        old = rollups.get((tenant, start_us), MemoryRollup())
        journal.put(rollups, (tenant, start_us), replace(
            old,
            started=old.started + tally.started,
            deliveries=old.deliveries + tally.deliveries, duplicates=old.duplicates + tally.duplicates,
            lateness_max_us=max(old.lateness_max_us, *tally.lateness_us, 0),
            lateness=merge([old.lateness, histogram(tally.lateness_us)]),
            publish_lateness=merge([old.publish_lateness, histogram(tally.publish_lateness_us)]),
            duration=merge([old.duration, histogram(tally.duration_us)]),
            **{state: getattr(old, state) + tally.states[state] for state in lifecycle.TERMINAL},
        ))


def add_to(
    column: str, rollups: dict[tuple[str, int], MemoryRollup], journal: Journal, values: Iterable[tuple[str, int, int]],
) -> None:
    """Add to one column: (tenant, start of the minute in µs, value)."""
    for tenant, start_us, value in values:
        old = rollups.get((tenant, start_us), MemoryRollup())
        changed: dict[str, Any] = {column: getattr(old, column) + value}
        journal.put(rollups, (tenant, start_us), replace(old, **changed))


def merge_old(
    spans: Mapping[str, dict[tuple[str, int], MemoryRollup]], journal: Journal, wanted: Iterable[tuple[str, str, int]],
    limit: int,
) -> int:
    """Merge rows of a span that start before an instant into a wider one, at most *limit*."""
    merged = 0
    for span, wider, before_us in wanted:
        old = sorted((key for key in spans[span] if key[1] < before_us), key=lambda key: key[1])
        for key in old[:limit - merged]:
            target = (key[0], key[1] // SPAN_US[wider] * SPAN_US[wider])
            journal.put(spans[wider], target, _sum(spans[wider].get(target, MemoryRollup()), spans[span][key]))
            journal.put(spans[span], key, None)
            merged += 1
    return merged


def loads(
    rollups: Mapping[tuple[str, int], MemoryRollup], objectives: Mapping[str, float | None], now_us: int,
) -> list[TenantLoad]:
    """Return what tenants did in their last five minutes and the hour before."""
    recent_us = now_us // MINUTE_US * MINUTE_US - RECENT_US
    found: dict[str, list[MemoryRollup]] = {}
    for (tenant, start_us), row in rollups.items():
        if start_us >= recent_us - USUAL_US:
            both = found.setdefault(tenant, [MemoryRollup(), MemoryRollup()])
            both[start_us < recent_us] = _sum(both[start_us < recent_us], row)
    return [
        TenantLoad(tenant, _load(recent), _load(usual),
                   None if objectives.get(tenant) is None else (objectives[tenant] or 0.0) * 1e6)
        for tenant, (recent, usual) in sorted(found.items())
    ]


def _load(row: MemoryRollup) -> Load:
    return Load(row.started, row.deliveries, row.duplicates, row.lateness, row.reaps)


def _sum(one: MemoryRollup, other: MemoryRollup) -> MemoryRollup:
    both: dict[str, Any] = {}
    for field in fields(MemoryRollup):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if field.name == "lateness_max_us":
            both[field.name] = max(mine, theirs)
        else:
            both[field.name] = merge([mine, theirs]) if isinstance(mine, str) else mine + theirs
    return MemoryRollup(**both)
