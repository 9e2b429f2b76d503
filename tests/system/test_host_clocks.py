"""A dispatcher and a worker whose host's clock is wrong and is set, while PostgreSQL and Redis keep true time.

libfaketime gives processes a wall clock of their own (their monotonic clock stays as it is), read anew from a file at
each look, so a test can set it while they work.
"""
import os
import shutil
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

import pytest

from tests.system.systemkit import Site, eventually, longest

pytestmark = [pytest.mark.system, pytest.mark.redis, pytest.mark.postgres, pytest.mark.celery, pytest.mark.timeout(240)]

HOUR = 3600
WHERE = ("/usr/lib", "/usr/local/lib", "/usr/lib64")
ON_TIME_SECONDS = 3.0
STRAGGLING_SECONDS = 60.0              # of a machine with more to do than these tests; a wrong clock would cost hours


def find_library():
    for directory in WHERE:
        for path in sorted(Path(directory).glob("**/faketime/libfaketimeMT.so.1")):
            return path
    return None


@pytest.fixture(scope="module")
def library():
    """libfaketime; in continuous integration it is installed where that can be done, and must be there then."""
    found = find_library()
    if found is None and os.environ.get("CI") and os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "check": False, "timeout": 120}
        subprocess.run(["apt-get", "update", "-qq"], **quiet)
        subprocess.run(["apt-get", "install", "-y", "-qq", "libfaketime"], **quiet)
        found = find_library()
    if found is None:
        missing = "libfaketime is not installed: apt-get install libfaketime"
        if os.environ.get("CI"):
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)
    return found


class WallClock:
    """The wall clock of some processes: so many hours off."""

    def __init__(self, library, file):
        self._file = file
        self.environment = {
            "LD_PRELOAD": str(library), "FAKETIME_TIMESTAMP_FILE": str(file), "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, hours):
        beside = self._file.with_suffix(".new")
        beside.write_text(f"{hours * HOUR:+d}")
        beside.rename(self._file)                          # nobody reads half of it


@pytest.fixture
def site(redis_server, postgres_server):
    site = Site()
    yield site
    print(site.tails())
    site.close()


def test_inv01_host_clocks_that_are_six_hours_off_and_jump_make_nothing_early_twice_or_silent(site, library):
    """R095, R097: a right dispatcher and a wrong one share the work, then the wrong one has it alone."""
    clock = WallClock(library, site.directory / "clock")
    clock.set(6)
    right, wrong = site.start_dispatcher(), site.start_dispatcher(**clock.environment)
    workers = [site.start_worker(), site.start_worker(**clock.environment), site.start_worker("threads", **clock.environment)]
    for worker in workers:
        worker.says(" ready.")
    site.shared_by([right, wrong])
    soon = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=6)
    jobs = [*site.intervals(1, 1, 2, 3), *site.one_offs(soon, 30)]
    flaky = site.one_offs(soon, 6, task="shop.flaky", kwargs={"subject": "feed"})
    time.sleep(2)

    jumps = []
    for hours in (-6, 6, -6):
        clock.set(hours)
        jumps.append(time.time())
        time.sleep(4)
    assert right.stop() == 0
    alone = time.time()
    site.shared_by([wrong], 15)
    clock.set(6)
    eventually(lambda: time.time() > alone + 6, 10)

    verdict = site.finish(jobs)
    late, typical = longest(verdict), [median(late for due, late in verdict if at <= due <= at + 4) for at in jumps]
    print(f"{len(verdict)} runs, longest lateness {late:.2f} s, median after each jump {typical} s")
    assert late < STRAGGLING_SECONDS
    assert max(typical) < ON_TIME_SECONDS
    assert len([due for due, _ in verdict if due > alone]) > 10, "it fires alone, by a clock that is six hours off"
    off = {round((line["wall"] - line["at"]) / HOUR) for line in site.starts()}
    assert off == {-6, 0, 6}, "bodies ran in workers of all three clocks"
    assert wrong.alive

    rows = site.rows(flaky)
    assert [(row["attempt"], row["state"]) for row in rows] == [(1, "failed")] * 6 + [(2, "succeeded")] * 6
    first = {row["job_id"]: row for row in rows if row["attempt"] == 1}
    waits = [(row["due_at"] - first[row["job_id"]]["finished_at"]).total_seconds() for row in rows if row["attempt"] == 2]
    assert max(map(abs, waits)) < 3, f"a countdown of a second, asked for by clocks that are hours off: {waits}"
