"""Celery's own ``celery beat`` in a process of its own, beside a dispatcher with the shadows of its entries."""
import contextlib
import json

import pytest
import redis

from chrono_beat.testing.patience import eventually
from tests.system.systemkit import Site

pytestmark = [pytest.mark.system, pytest.mark.redis, pytest.mark.postgres, pytest.mark.celery, pytest.mark.timeout(180)]

ENTRIES = {"steady": 4.0, "slower": 5.0, "changed": 4.0}
CHANGED_THERE = {"changed": 1.0}
ADDED_THERE = {"new": 3.0}


class OldSite(Site):
    """The example project of somebody who moves in: no worker, so that what was sent stays in its queue to be counted."""

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


@pytest.fixture
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

    noted = old_site.sql("SELECT name, count(*) FROM chrono_beat_fire GROUP BY name")
    sent = old_site.queued()
    assert {row["name"]: row["count"] for row in noted} == {
        name: sum(repr(name) in arguments for arguments in sent) for name in (*ENTRIES, *ADDED_THERE)}, (
        "the observer notes each message of the beat, and shadows sent none")
