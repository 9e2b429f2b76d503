"""ETA tasks on a real worker: sent far ahead, due when the store's clock has moved, and then what Celery promises."""
import os
import signal
import time
from datetime import UTC, datetime

import pytest
from celery import chain, chord, group
from celery.exceptions import TaskRevokedError

from chrono_beat.core import ids
from chrono_beat.core.eta import job_id_of, publish_item
from chrono_beat.core.records import PUBLISHED
from chrono_beat.services.audit import cancel as cancel_in_redis
from chrono_beat.testing.clock import ManualClock
from chrono_beat.testing.patience import eventually
from tests.celery.etakit import HOUR, Due, give_root
from tests.celery.workerkit import MINUTE_US, Site

pytestmark = [pytest.mark.celery, pytest.mark.redis]
PATIENCE = 20
WINDOW_SECONDS = 0.5


class Sender:
    """Sends through a database in memory, and publishes into a real Redis what is due there."""

    def __init__(self, site):
        self.site, self.app = site, site.sender()
        self.due = Due(ManualClock(wall_us=round(datetime.now(UTC).timestamp() * 1e6)))
        give_root(self.app.chrono_beat, lambda: site.config, lambda: site.queue, self.due)

    def sig(self, task, *args, **options):
        return self.app.signature(f"tests.celery.proj.{task}", args=args, options={"queue": "chrono", **options})

    def in_redis(self):
        """Return the keys of executions, copies and streams."""
        keys = self.site.redis.scan_iter(f"{self.site.prefix}:*", count=1000)
        return [key for key in keys if ":x:" in key or ":st:" in key]

    def publish_due(self, later=6 * HOUR):
        """Let hours pass; returns how many were due."""
        rows = self.due.load(later)
        now_us = self.site.queue.now_us()
        items = [publish_item(row, self.site.config)._replace(due_us=now_us - 1) for row in rows]
        for _ in range(2):                              # the audit may publish what a dispatcher has published, too
            result = self.site.queue.publish(0, 1, now_us + MINUTE_US, items)
            assert not result.refused
        assert PUBLISHED not in result.replies
        return len(items)


@pytest.fixture(scope="module")
def sender(redis_server):
    site = Site(redis_server, eta_threshold=float(HOUR), start_window=WINDOW_SECONDS)
    site.worker("prefork", 8)
    yield Sender(site)
    site.close()


def test_r119_nothing_is_in_redis_until_due_and_eight_children_run_it_once(sender):
    before = sender.in_redis()
    results = [sender.sig("tell", "once", number).apply_async(countdown=6 * HOUR) for number in range(16)]
    assert sender.in_redis() == before
    assert {result.status for result in results} == {"PENDING"}

    assert sender.publish_due() == 16
    for result in results:
        result.get(timeout=PATIENCE)

    told = [note for note in sender.site.journal("tell") if note["args"][0] == "once"]
    assert sorted(note["id"] for note in told) == sorted(result.id for result in results)
    assert all(note["key"] == note["id"] and ids.parse_execution_id(note["eid"]).job_id == note["id"] for note in told)


def test_a_chain_a_group_and_a_chord_with_a_far_member_come_out_right(sender):
    later = {"countdown": 6 * HOUR}
    chained = chain(sender.sig("add", 1, 2, **later), sender.sig("add", 10)).apply_async()
    grouped = group(sender.sig("add", 1, 1), sender.sig("add", 2, 2, **later)).apply_async()
    counted = chord([sender.sig("add", 1, 1), sender.sig("add", 2, 2, **later), sender.sig("add", 3, 3)],
                    sender.sig("total")).apply_async()
    grouped[0].get(timeout=PATIENCE)
    assert (chained.ready(), grouped.ready(), counted.ready()) == (False, False, False)

    assert sender.publish_due() == 3

    assert chained.get(timeout=PATIENCE) == 13
    assert grouped.get(timeout=PATIENCE) == [2, 4]
    assert counted.get(timeout=PATIENCE) == 12


def test_a_revoked_member_ends_its_chord_instead_of_letting_it_wait(sender):
    result = chord([sender.sig("add", 1, 1), sender.sig("add", 2, 2, task_id="unwanted", countdown=6 * HOUR)],
                   sender.sig("total")).apply_async()

    sender.app.control.revoke("unwanted")

    with pytest.raises(Exception, match="unwanted|revoked"):
        result.get(timeout=PATIENCE)
    assert sender.publish_due() == 0


def test_one_past_its_expiry_is_revoked_as_ever(sender):
    result = sender.sig("tell", "stale").apply_async(countdown=6 * HOUR, expires=0.001)
    assert sender.publish_due() == 1

    with pytest.raises(TaskRevokedError, match="expired"):
        result.get(timeout=PATIENCE)
    assert [note for note in sender.site.journal("tell") if note["args"][0] == "stale"] == []
    [row] = [row for row in sender.due.rows() if row.celery_id == result.id]
    assert sender.site.ending(row.execution_id).event == "too_late"


def test_a_member_that_is_cancelled_in_a_workers_hands_before_it_begins_ends_its_chord(sender):
    children = sender.site.workers[0].children()
    result = chord([sender.sig("add", 1, 1), sender.sig("add", 2, 2, task_id="cold", countdown=6 * HOUR)],
                   sender.sig("total")).apply_async()
    result.parent[0].get(timeout=PATIENCE)
    eventually(lambda: sender.site.leases() == 0, 5)                # the worker has heard of it, too
    [row] = [row for row in sender.due.rows() if row.celery_id == "cold"]
    for child in children:
        os.kill(child, signal.SIGSTOP)
    sender.publish_due()
    eventually(lambda: sender.site.leases() == 1, 5)

    assert not cancel_in_redis(sender.site.queue, 0, row.execution_id, job_id_of("cold"), "default").begun
    time.sleep(1.5 * WINDOW_SECONDS)
    for child in children:
        os.kill(child, signal.SIGCONT)

    with pytest.raises(Exception, match="cold|revoked"):
        result.get(timeout=PATIENCE)
    assert sender.site.ending(row.execution_id).event in ("cancelled", "revoked")
    assert not sender.site.journal("add", x=2, id="cold")
