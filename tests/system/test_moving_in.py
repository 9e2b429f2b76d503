"""Celery's own ``celery beat`` in a process of its own, beside a dispatcher with the shadows of its entries."""
import contextlib
import json
import time

import pytest
import redis

from chrono_beat.testing.patience import eventually
from tests.system.systemkit import Site

pytestmark = [pytest.mark.system, pytest.mark.redis, pytest.mark.postgres, pytest.mark.celery, pytest.mark.timeout(180)]

ENTRIES = {"steady": 4.0, "slower": 5.0, "changed": 4.0, "turn": 12.0}
"""Seconds between the fires of each; the last one's are far enough apart to go live between two."""

CHANGED_THERE = {"changed": 1.0}
ADDED_THERE = {"new": 3.0}


class OldSite(Site):
    """The example project of somebody who moves in; without a worker, what was sent stays in its queue to be counted."""

    def variables(self):
        return {**super().variables(), "DJANGO_SETTINGS_MODULE": "tests.system.moving_settings",
                "MOVING_ENTRIES": json.dumps(ENTRIES)}

    def old_beat(self):
        """Start Celery's own beat, with entries that are not quite those that were imported."""
        return self.celery("beat", "beat", "-l", "INFO", "-s", str(self.directory / "beat"),
                           MOVING_ENTRIES=json.dumps(ENTRIES | CHANGED_THERE | ADDED_THERE))

    def queued(self):
        """Return the arguments of each message that waits in the stock queue, as text."""
        with redis.Redis.from_url(self.redis.url.rsplit("/", 1)[0] + "/0") as client:
            return [json.loads(message)["headers"]["argsrepr"] for message in client.lrange("celery", 0, -1)]

    def fired(self, job):
        """Return the executions of a job that have ended, the first first."""
        return self.sql("SELECT * FROM chrono_execution WHERE job_id = %s AND finished_at IS NOT NULL ORDER BY due_at", job)


@pytest.fixture(scope="module")
def old_site(redis_server, postgres_server):
    with contextlib.closing(OldSite()) as site:
        yield site
        print(site.tails())


def test_shadows_beside_a_real_beat_agree_with_it_and_what_differs_there_is_told(old_site):
    old_site.dispatchers(1)
    status, lines = old_site.chrono("import", "beat-schedule", "--apply", "--shadow")
    assert status == 0 and {line["action"] for line in lines} == {"create"}
    beat = old_site.old_beat()
    eventually(lambda: beat.told().count("Sending due task slower") >= 3, 60, what="beat has sent each entry often enough")
    assert beat.stop() == 0

    status, report = old_site.chrono("shadow", "report")

    entries = {entry["entry"]: entry for entry in report["entries"]}
    assert status == 1 and report["schedulers"] == ["celery.beat.PersistentScheduler"], report
    for name in ("steady", "slower"):
        assert not entries[name]["differs"] and entries[name]["matched"] >= 2, entries[name]
        assert entries[name]["state"] == "shadow" and entries[name]["furthest_seconds"] <= entries[name]["tolerance_seconds"]
    assert entries["changed"]["differs"] and len(entries["changed"]["only_old"]) > len(entries["changed"]["only_shadow"])
    assert (entries["new"]["state"], entries["new"]["why"]) == ("none", ["has no job here: import it"])
    assert entries["celery.backend_cleanup"]["state"] == "shadow" and not entries["celery.backend_cleanup"]["differs"]

    noted = {row["name"]: row["count"] for row in old_site.sql("SELECT name, count(*) FROM chrono_beat_fire GROUP BY name")}
    sent = {name: sum(repr(name) in message for message in old_site.queued()) for name in (*ENTRIES, *ADDED_THERE)}
    unsure = {name: count - noted.get(name, 0) for name, count in sent.items() if count != noted.get(name, 0)}
    assert list(unsure.values()) in ([], [1]), (
        f"the observer notes each message of the beat, but for one that was being sent when beat was ended, and shadows "
        f"sent none: {sent}, {noted}")


def test_a_shadow_that_goes_live_runs_each_occurrence_once_and_one_that_goes_back_sends_nothing(old_site):
    """What was claimed ahead as a shadow is sent, and what was claimed ahead to be sent is not: all of it was claimed a
    minute before."""
    old_site.dispatchers(1)
    old_site.worker()
    job = str(old_site.sql("SELECT id FROM chrono_job WHERE name = 'turn'")[0]["id"])
    eventually(lambda: old_site.ask("go_live", job=job), 30, what="the moment between two fires")
    live = time.time()
    eventually(old_site.starts, 30, what="the job that is live runs")
    assert old_site.ask("update", job=job, target_kind="shadow")
    back = time.time()
    eventually(lambda: any(row["due_at"].timestamp() > back for row in old_site.fired(job)), 30, what="it fires as a shadow")

    fired = old_site.fired(job)
    sent = [row for row in fired if live < row["due_at"].timestamp() < back]
    assert [line["execution_id"] for line in old_site.starts()] == [row["id"] for row in sent]
    assert {(row["state"], row["reason"]) for row in sent} == {("succeeded", "")}
    before = {(row["state"], row["reason"]) for row in fired if row["due_at"].timestamp() < live}
    assert before <= {("succeeded", "shadow"), ("cancelled", "")}, "cancelled: not yet recorded when the job went live"
    assert {(row["state"], row["reason"]) for row in fired if row["due_at"].timestamp() > back} == {("succeeded", "shadow")}
