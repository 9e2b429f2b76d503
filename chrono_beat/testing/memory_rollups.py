"""Adding to the minutes of tenants, in memory."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from chrono_beat.core import lifecycle
from chrono_beat.core.rollup import Tallies, histogram, merge
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


def add_capped(
    rollups: dict[tuple[str, int], MemoryRollup], journal: Journal, spells: Iterable[tuple[str, int, int]],
) -> None:
    """Add time spent capped: (tenant, start of the minute in µs, µs)."""
    for tenant, start_us, us in spells:
        old = rollups.get((tenant, start_us), MemoryRollup())
        journal.put(rollups, (tenant, start_us), replace(old, capped_us=old.capped_us + us))
