"""Zones: which names are taken, and when a zone's offset from UTC changes.

**Rule.** Only offsets count. A *change* is an instant at which the offset differs from the second before; whether
either side is called summer time is never asked. Between two changes wall clock and UTC run side by side.

**Theory.** `zoneinfo` tells the offset at an instant, not when it changes. So a timeline looks at the offset every
`PROBE_SECONDS`; where two looks differ it halves the distance until it has the second. Two changes that cancel each
other between two looks would be missed: the closest pair of any zone is 6.96 days apart (a month of fasting cuts summer
time in two), and a test walks the zone files to see that none comes closer.

**Worked example.** Europe/London, 2026: looks on 27 and 31 March find 0 and 3600 seconds; 19 halvings later the change
is known to be 2026-03-29T01:00:00Z.

**Bound.** Changes are kept by blocks of 189 days, a block costs 42 looks (about 30 µs). Nobody had a change before
`FIRST_CHANGE_YEAR`. From `RULES_YEAR` on only the closing rules of the zone files are in force, and they repeat with
the Gregorian calendar every 400 years, which are 773 blocks; so no zone has more than about 1,400 blocks.
"""
from __future__ import annotations

import difflib
import threading
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

from chrono_beat.core.schedule_error import ScheduleError, shown

LONGEST_KEY = 64
"""Longest zone name that is looked at for a suggestion, in characters; no IANA key is longer."""

NOT_ZONES = frozenset({"Factory", "localtime", "posixrules"})
"""Files of the zone directory that can be loaded and are nobody's zone."""

ALIASES_OF_FILES = ("posix/", "right/")
"""Folders of the zone directory that hold the zones again, with and without leap seconds."""

MAX_ZONES = 1_024
"""Timelines kept; there are about 600 keys."""

BLOCK_SECONDS = 189 * 86_400
BLOCKS_PER_CYCLE = 773
PROBE_SECONDS = BLOCK_SECONDS // 42

FIRST_CHANGE_YEAR = 1800
"""No zone changed its offset before this year; the first one did in 1844."""

RULES_YEAR = 2100
"""From this year on all zones follow their closing rule; explicit changes end in 2037, with a moon in 2087."""

_FIRST_BLOCK = (date(FIRST_CHANGE_YEAR, 1, 1).toordinal() - 1) * 86_400 // BLOCK_SECONDS
_RULES_BLOCK = (date(RULES_YEAR, 1, 1).toordinal() - 1) * 86_400 // BLOCK_SECONDS + 1
_PROBE = timedelta(seconds=PROBE_SECONDS)
_SECOND = timedelta(seconds=1)
_HALVINGS = tuple(timedelta(seconds=1 << power) for power in range(18, -1, -1))

FIRST_SECOND = 2 * 86_400
"""The first UTC second that is looked at, 0001-01-03: before it a local time may fall off the calendar."""

_LAST_PROBE = (date(9999, 12, 30).toordinal() - 1) * 86_400
_ORIGIN = datetime(1, 1, 1)


class Change(NamedTuple):
    """An instant at which a zone's offset changes: UTC seconds since 0001-01-01, offsets in seconds."""

    at: int
    before: int
    after: int


class Stretch(NamedTuple):
    """A time of constant offset, [start, end) in UTC seconds.

    `before` is the offset before a start that is a change, None if the stretch was cut off at a block's edge, where it
    has lasted for half a year already. The end may be such an edge too.
    """

    start: int
    end: int
    offset: int
    before: int | None


class Timeline:
    """The offsets of one zone over time."""

    def __init__(self, key: str) -> None:
        self.zone = zoneinfo.ZoneInfo(key)
        self._origin = _ORIGIN.replace(tzinfo=self.zone)
        self._blocks: dict[int, tuple[Change, ...]] = {}

    def offset_at(self, utc: int) -> int:
        """Return the offset from UTC in seconds at UTC second *utc*."""
        at = self._origin + timedelta(seconds=min(max(utc, FIRST_SECOND), _LAST_PROBE))
        return _whole_seconds(self.zone.fromutc(at) - at)  # one zone on both sides, so this compares the wall clocks

    def stretch_at(self, utc: int) -> Stretch:
        """Return the stretch that holds UTC second *utc*."""
        block = utc // BLOCK_SECONDS
        start: Change | None = None
        end = (block + 1) * BLOCK_SECONDS
        for change in self.changes(block):
            if change.at > utc:
                end = change.at
                break
            start = change
        if start is None and (earlier := self.changes(block - 1)):
            start = earlier[-1]
        if start is None:
            return Stretch((block - 1) * BLOCK_SECONDS, end, self.offset_at(utc), None)
        return Stretch(start.at, end, start.after, start.before)

    def changes_between(self, start: int, end: int) -> list[Change]:
        """Return the changes in (start, end], UTC seconds, in order."""
        blocks = range(start // BLOCK_SECONDS, end // BLOCK_SECONDS + 1)
        return [change for block in blocks for change in self.changes(block) if start < change.at <= end]

    def changes(self, block: int) -> tuple[Change, ...]:
        """Return the changes in a block of 189 days."""
        cycles = max(0, (block - _RULES_BLOCK) // BLOCKS_PER_CYCLE)
        block -= cycles * BLOCKS_PER_CYCLE
        found = self._blocks.get(block)
        if found is None:
            found = self._blocks[block] = tuple(self._look(block))
        if not cycles or not found:
            return found
        shift = cycles * BLOCKS_PER_CYCLE * BLOCK_SECONDS
        return tuple(Change(at + shift, before, after) for at, before, after in found)

    def _look(self, block: int) -> Iterator[Change]:
        if block < _FIRST_BLOCK:
            return
        # In datetimes rather than in seconds, because this is the one place where many offsets are looked up.
        local = self.zone.fromutc
        left = self._origin + timedelta(seconds=block * BLOCK_SECONDS - 1)
        before = local(left) - left
        for _ in range(BLOCK_SECONDS // PROBE_SECONDS):
            right = left + _PROBE
            after = local(right) - right
            if after != before:
                last = left
                for halving in _HALVINGS:
                    middle = last + halving
                    if middle < right and local(middle) - middle == before:
                        last = middle
                at = _whole_seconds(last + _SECOND - self._origin)
                yield Change(at, _whole_seconds(before), _whole_seconds(after))
            left, before = right, after


def _whole_seconds(length: timedelta) -> int:
    return length.days * 86_400 + length.seconds


_lock = threading.Lock()
_keys: frozenset[str] | None = None


def zone_keys() -> frozenset[str]:
    """Return the names of all zones that can be used: exact IANA keys, old links included."""
    global _keys
    with _lock:
        if _keys is None:
            _keys = frozenset(
                key for key in zoneinfo.available_timezones()
                if key not in NOT_ZONES and not key.startswith(ALIASES_OF_FILES)
            )
        return _keys


def timeline(key: object) -> Timeline:
    """Return the shared timeline of a zone.

    Raises:
        ScheduleError: *key* is not an exact IANA key. The list is asked first, because loading an unchecked name raises
            whatever the file system raises, and takes files that are no zones.
    """
    if not isinstance(key, str):
        raise ScheduleError("timezone", f"a zone is text such as 'Europe/London', not {shown(key)}")
    if key not in zone_keys():
        raise ScheduleError("timezone", _no_such_zone(key), code="unknown")
    return _timeline(key)


@lru_cache(maxsize=MAX_ZONES)
def _timeline(key: str) -> Timeline:
    try:
        return Timeline(key)
    except (OSError, ValueError) as error:  # listed, and gone or broken since
        raise ScheduleError("timezone", f"the zone data for {key} cannot be read: {error}", code="unknown") from error


def _no_such_zone(key: str) -> str:
    if not key.strip():
        return "the zone is empty; give an IANA zone such as 'UTC' or 'Europe/London'"
    message = f"{shown(key)} is not an IANA zone"
    if len(key) > LONGEST_KEY:
        return message + "; use a name such as 'Europe/London'"
    folded = {name.lower(): name for name in sorted(zone_keys())}
    near = difflib.get_close_matches(key.strip().lower(), folded, n=1, cutoff=0.75)
    hint = f"; did you mean '{folded[near[0]]}'?" if near else "; use a name such as 'Europe/London'"
    if key.upper().startswith(("UTC", "GMT")) or key[:1] in "+-":
        hint = "; for a fixed offset use 'Etc/GMT-3' (three hours ahead of UTC: the sign is reversed there)"
    return message + hint


def forget_zones() -> None:
    """Drop every timeline and the list of names, so that changed zone data are read anew."""
    global _keys
    with _lock:
        _keys = None
    _timeline.cache_clear()
    zoneinfo.ZoneInfo.clear_cache()


def to_seconds(instant: datetime) -> tuple[int, bool]:
    """Return an aware UTC datetime as whole UTC seconds since 0001-01-01, and whether a fraction was cut off."""
    passed = instant.replace(tzinfo=None) - _ORIGIN
    return passed.days * 86_400 + passed.seconds, passed.microseconds > 0


def from_seconds(utc: int) -> datetime:
    """Return UTC seconds since 0001-01-01 as an aware UTC datetime."""
    return (_ORIGIN + timedelta(seconds=utc)).replace(tzinfo=UTC)
