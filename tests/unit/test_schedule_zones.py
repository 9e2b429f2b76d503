"""What the engine takes for granted about zones, held against the zone files themselves."""

import importlib.resources
import struct
import zoneinfo
from datetime import datetime, timedelta

import pytest

from chrono_beat.core.schedule import forget_shared, zone_keys
from chrono_beat.core.zones import BLOCK_SECONDS, FIRST_CHANGE_YEAR, PROBE_SECONDS, RULES_YEAR, Timeline, timeline

zoneinfo.reset_tzpath(to=())
forget_shared()

ORIGIN = datetime(1, 1, 1)
UNIX = (datetime(1970, 1, 1) - ORIGIN).days * 86_400


def seconds(year):
    return (datetime(year, 1, 1) - ORIGIN).days * 86_400


def explicit_changes(key):
    """(instant, offset before, offset after) of each written-out change of offset, read from the zone's file."""
    data = importlib.resources.files("tzdata").joinpath("zoneinfo", *key.split("/")).read_bytes()
    counts = struct.unpack(">6l", data[20:44])
    isut, isstd, leap, times, types, chars = counts
    second = 44 + times * 5 + types * 6 + chars + leap * 8 + isstd + isut  # skip the 32-bit half
    isut, isstd, leap, times, types, chars = struct.unpack(">6l", data[second + 20 : second + 44])
    at = second + 44
    instants = struct.unpack(f">{times}q", data[at : at + 8 * times])
    kinds = data[at + 8 * times : at + 9 * times]
    offsets = [struct.unpack(">l", data[at + 9 * times + 6 * k :][:4])[0] for k in range(types)]
    found, before = [], offsets[0]
    for instant, kind in zip(instants, kinds, strict=True):
        if offsets[kind] != before:
            found.append((instant + UNIX, before, offsets[kind]))
        before = offsets[kind]
    return found


CHANGES = {key: explicit_changes(key) for key in sorted(zone_keys())}


def test_the_list_of_zones_has_zones_only():
    assert {"UTC", "Europe/London", "US/Eastern", "Etc/GMT-3"} <= zone_keys()
    assert not zone_keys() & {"localtime", "posixrules", "Factory"}
    assert not [key for key in zone_keys() if key.startswith(("posix/", "right/"))]


def test_no_two_changes_come_closer_than_the_engine_looks():
    """Two changes between two looks could cancel each other and be missed."""
    closest = min(
        later[0] - earlier[0]
        for changes in CHANGES.values()
        for earlier, later in zip(changes, changes[1:], strict=False)
    )

    assert closest > PROBE_SECONDS + 86_400


def test_explicit_changes_lie_in_the_years_that_are_looked_at():
    instants = [change[0] for changes in CHANGES.values() for change in changes]

    assert min(instants) > seconds(FIRST_CHANGE_YEAR)
    assert max(instants) < seconds(RULES_YEAR)


def test_the_changes_found_are_those_of_the_files():
    some = sorted(CHANGES, key=lambda key: (-len(CHANGES[key]), key))[:25] + sorted(CHANGES)[::29] + [
        "Asia/Gaza", "Africa/Casablanca", "Pacific/Apia", "Pacific/Kwajalein", "America/Juneau", "Africa/Monrovia"]
    for key in some:
        last = CHANGES[key][-1][0] if CHANGES[key] else seconds(1900)  # what follows is the closing rule's
        found = Timeline(key).changes_between(seconds(FIRST_CHANGE_YEAR), last)

        assert [tuple(change) for change in found] == CHANGES[key], key


@pytest.mark.parametrize("key", ["Europe/London", "America/New_York", "America/Santiago", "Africa/Cairo",
                                 "Australia/Lord_Howe", "Asia/Gaza", "Africa/Casablanca", "Asia/Tokyo"])
def test_changes_repeat_every_four_hundred_years(key):
    cycle = 146_097 * 86_400
    line = timeline(key)

    for year in (2100, 2237, 2499):
        now = line.changes_between(seconds(year), seconds(year + 3))
        then = line.changes_between(seconds(year) + 13 * cycle, seconds(year + 3) + 13 * cycle)
        assert [(at + 13 * cycle, before, after) for at, before, after in now] == [tuple(change) for change in then]
        for change in then:
            assert (line.offset_at(change.at - 1), line.offset_at(change.at)) == change[1:]
    assert max(line._blocks) * BLOCK_SECONDS < seconds(RULES_YEAR + 402), "far years are kept apart"


@pytest.mark.parametrize("key", ["Europe/London", "Pacific/Apia", "Asia/Manila", "UTC"])
def test_stretches_join_without_gaps(key):
    line = timeline(key)
    utc = seconds(1840)

    while utc < seconds(2050):
        stretch = line.stretch_at(utc)
        assert stretch.start <= utc < stretch.end
        assert line.offset_at(utc) == line.offset_at(stretch.end - 1) == stretch.offset
        if stretch.before is not None:
            assert line.offset_at(stretch.start - 1) == stretch.before != stretch.offset
        utc = stretch.end


def test_forgetting_reads_the_zone_data_anew():
    line = timeline("Europe/London")

    forget_shared()

    assert timeline("Europe/London") is not line
    assert timeline("Europe/London").zone is not line.zone
    assert timedelta(seconds=timeline("Asia/Tokyo").offset_at(seconds(2026))) == timedelta(hours=9)
