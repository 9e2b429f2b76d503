"""``celery beat -S chrono`` in place of Celery's own, and what ``chrono doctor`` says of a running system."""
import time

import pytest

from chrono_beat.testing.patience import eventually
from tests.system.systemkit import PARTITIONS, longest

pytestmark = [pytest.mark.system, pytest.mark.redis, pytest.mark.postgres, pytest.mark.celery, pytest.mark.timeout(180)]


def beat(site, name):
    return site.celery(name, "beat", "-S", "chrono", "-l", "INFO")


def test_two_beats_double_nothing_and_hand_over_when_they_end(site):
    first, second = beat(site, "beat1"), beat(site, "beat2")
    eventually(lambda: len(site.owners()) == 2, 60, what="two beats share the partitions")
    jobs = site.intervals(2, 2, 3)
    time.sleep(6)

    assert first.stop() == 0
    assert sum(site.owners().values()) == PARTITIONS, "the other has taken over already"
    left = time.time()
    eventually(lambda: time.time() > left + 4, 6)
    verdict = site.finish(jobs)
    assert len(verdict) >= 10
    print(f"longest lateness with two beats, one leaving: {longest(verdict):.3f} s")
    assert longest(verdict) < 2.0

    assert second.stop() == 0
    left = site.sql("SELECT number, owner FROM chrono_partition WHERE expires_at > clock_timestamp() AND owner <> ''")
    assert left == [], "nobody has to wait for a lease to run out"
    assert site.sql("SELECT member FROM chrono_dispatcher WHERE expires_at > clock_timestamp()") == []
    for process in (first, second):
        assert "Traceback" not in process.told()


def test_doctor_finds_nothing_wrong_and_names_the_pool_that_nobody_draws(site):
    site.dispatchers(1)
    jobs = site.intervals(3600)

    status, findings = site.chrono("doctor")
    assert [finding for finding in findings if finding["level"] == "error"] == []
    assert status == 0
    assert {"versions", "database", "indexes", "redis", "clocks", "dispatchers", "workers", "jobs"} <= {
        finding["check"] for finding in findings}

    next(process for process in site.processes if process.name.startswith("worker")).stop()
    # It says goodbye; a report that crosses with that counts for a quarter of a minute.
    status, findings = eventually(
        lambda: (seen := site.chrono("doctor"))[0] and seen, 40, step=1, what="doctor misses the worker")
    assert status == 1
    wrong = [finding for finding in findings if finding["level"] == "error"]
    assert [finding["check"] for finding in wrong] == ["workers"]
    assert "chrono" in wrong[0]["message"]
    assert "-Q celery,chrono" in wrong[0]["mend"]
    site.ask("delete", ids=[job.id for job in jobs])
