"""Policy replace with real workers: the old body is stopped, or its lease withdrawn, before the new one begins."""
import pytest

from chrono_beat.core.records import WAITING
from chrono_beat.host_clock import SystemClock
from chrono_beat.services.reaper import Reaper
from chrono_beat.testing.patience import eventually
from tests.celery.workerkit import Site

pytestmark = pytest.mark.celery


def site_of(redis_server, pool, **settings):
    site = Site(redis_server, **settings)
    site.worker(pool, 2)
    return site


def publish_later(site, task, *args, job):
    """Publish a newer occurrence of the job; ids tell whole seconds apart."""
    before = site.queue.now_us() // 1_000_000
    eventually(lambda: site.queue.now_us() // 1_000_000 > before)
    return site.publish(task, *args, job=job, concurrency="replace", reply=WAITING)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_r155_the_running_body_is_stopped_and_the_new_one_begins_after_it(redis_server, pool):
    site = site_of(redis_server, pool, stop_grace=10, replace_grace=10)
    reaper = Reaper(site.queue, SystemClock(), site.config)
    try:
        old = site.publish("attentive", "old", 30, job="report", concurrency="replace")
        site.begun("old")
        new = publish_later(site, "attentive", "new", 0.1, job="report")
        assert not site.journal("begin", name="new")

        reaper.turn(0)                                     # tells the worker, as the dispatcher does at once

        site.begun("new", 5)
        assert site.ending(old).event == "superseded"
        assert site.ending(old).detail["blocked_by"] == new
        assert site.ending(new).event == "succeeded"
        assert not site.journal("end", name="old")
        assert site.leases() == 0
    finally:
        site.close()


def test_inv06_r155_a_body_that_does_not_look_is_fenced_and_the_new_one_begins_after_the_grace(redis_server):
    site = site_of(redis_server, "threads", stop_grace=30, replace_grace=1)
    reaper = Reaper(site.queue, SystemClock(), site.config)
    try:
        old = site.publish("slow", "old", 4, job="report", concurrency="replace")
        site.begun("old")
        new = publish_later(site, "add", 1, 1, job="report")

        eventually(lambda: reaper.turn(0) and site.events(new), 10, what="the new one")

        assert site.ending(new).event == "succeeded"
        assert not site.journal("end", name="old"), "it was still running"
        assert eventually(lambda: site.journal("end", name="old"), 10)
        assert site.events(old) == ["started", "superseded"]
        assert site.events(new) == ["started", "succeeded"]
        assert site.leases() == 0
    finally:
        site.close()
