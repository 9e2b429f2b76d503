"""Names of keys and the texts of scripts: what can be said without a server."""
from __future__ import annotations

import re
from pathlib import Path

import pytest

import chrono_beat.redis
from chrono_beat.core import fairness
from chrono_beat.redis import scripts
from chrono_beat.redis.keys import DAY_MS, GLOBAL_KEYS, LANE_KEYS, TOMBSTONE_TTL_MS, VOID_TTL_MS, Keys
from chrono_beat.redis.scripts import Script, script

LUA = Path(chrono_beat.redis.__file__).parent / "lua"
NAMES = sorted(path.stem for path in LUA.glob("*.lua"))
PIECES = {name for name in NAMES if "KEYS[1]  meta" not in (LUA / f"{name}.lua").read_text()}
KEYS = Keys("chrono")


def test_all_keys_of_a_lane_share_a_tag_and_lanes_differ():
    assert KEYS.meta(3) == "chrono:{3}:meta"
    assert KEYS.of(3, "wake", "chrono.gold") == "chrono:{3}:wake:chrono.gold"
    assert KEYS.anywhere("worker", "w") == "chrono:{all}:worker:w"


@pytest.mark.parametrize(("name", "swept"), [
    ("meta", False), ("out", False), ("reader", False), ("void:j", False), ("tenant:t", False), ("wake:p", False),
    ("ctl:w", False), ("delayed", False), ("lease", True), ("x:j:20260102T090000Z:1", True), ("s:p:t:5", True),
    ("front:p:t", True),
    ("lock:j", True), ("lockwait:j", True), ("run:t", True), ("own:w", True), ("ready:p", True), ("places:p", True),
    ("leased", False), ("something", False),
])
def test_a_new_generation_sweeps_copies_leases_and_locks_only(name, swept):
    assert KEYS.is_swept(0, KEYS.base(0) + name) is swept


def test_patterns_cannot_be_mistaken_for_each_other():
    starts = [k.pattern.partition("<")[0] for k in (*LANE_KEYS, *GLOBAL_KEYS)]
    assert len(set(starts)) == len(starts)


def test_a_void_is_remembered_longer_than_any_copy_is_trusted():
    """The gap is for a draw that looks at the copy just before it is too old."""
    text = (LUA / "copies.lua").read_text()
    days = int(re.search(r"MAX_COPY_AGE_US = (\d+) \* 86400 \* 1000000", text)[1])
    assert VOID_TTL_MS >= (days + 1) * DAY_MS
    assert int(re.search(r"DROPPED_TTL_MS = (\d+) \* 86400 \* 1000", text)[1]) == days + 1


def test_a_tombstone_outlives_the_oldest_publish_that_is_accepted():
    assert TOMBSTONE_TTL_MS == 60_000


def test_lua_and_python_have_the_same_default_limits():
    found = re.search(r"DEFAULT_WEIGHT, DEFAULT_MAX_RUNNING = (\d+), (\d+)", (LUA / "ready.lua").read_text())
    assert (int(found[1]), int(found[2])) == (fairness.DEFAULT_WEIGHT, fairness.DEFAULT_MAX_RUNNING)
    found = re.search(r"PROMOTED_EVERY = (\d+)", (LUA / "draw.lua").read_text())
    assert int(found[1]) == fairness.PROMOTED_EVERY


@pytest.mark.parametrize("name", NAMES)
def test_every_script_says_what_it_does_takes_and_returns(name):
    head = (LUA / f"{name}.lua").read_text().split("\n\n")[0]
    assert head.startswith("-- ")
    if name in PIECES:
        assert "nclude" in head.splitlines()[0]
    else:
        for part in ("KEYS[1]", "ARGV", "Returns"):
            assert f"-- {part} " in head, part


@pytest.mark.parametrize("name", sorted(set(NAMES) - PIECES))
def test_includes_are_put_in_once_and_first(name):
    text = script(name).source
    assert "-- include:" not in text
    assert text.count("local base = ") == 1
    assert text.index("local base = ") < text.index("redis.call('")
    assert script(name) is script(name)
    assert Script(name).digest == script(name).digest


def test_r121_the_first_renewal_opens_no_file(monkeypatch):
    """Beside a body in C each opened file waits for the interpreter's lock; ten of them outlived a lease."""
    script("draw")
    monkeypatch.setattr(scripts, "files", None)

    assert Script("renew").source and Script("settle").source


@pytest.mark.parametrize("name", sorted(set(NAMES) - PIECES))
def test_a_script_that_notes_changes_writes_them_at_its_end(name):
    """What is noted by put, save, make_ready or release_grant would be lost otherwise."""
    text = script(name).source
    own = (LUA / f"{name}.lua").read_text()
    notes = re.search(r"\b(save|put|erase|reap|give_back|finish|unlock|uncap|make_ready|conclude|expire)\(", own)
    if notes:
        assert "write_all()" in own or "write_cells()" in own
    assert "KEYS[2]" not in text


def test_no_script_uses_what_only_newer_servers_have():
    """Redis 6.2 and Valkey 7.2 both run them."""
    newer = re.compile(r"'(LMPOP|ZMPOP|SINTERCARD|EXPIRETIME|PEXPIRETIME|HEXPIRE|XAUTOCLAIM|FCALL)'|"
                       r"'PEXPIRE'.*'(NX|XX|GT|LT)'", re.I)
    for name in NAMES:
        assert not newer.search((LUA / f"{name}.lua").read_text()), name
