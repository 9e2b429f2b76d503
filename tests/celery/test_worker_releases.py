"""Workers of two releases at once: some do not know a task that others know."""
import time

import pytest

from chrono_beat.testing.patience import eventually

pytestmark = pytest.mark.celery

NEW = {"CHRONO_TEST_RELEASE": "new"}


def calls(site):
    return sum(command["calls"] for command in site.redis.info("commandstats").values())


def test_half_of_the_workers_lack_a_new_task(site):
    """Each old one gets each execution once at most; no attempt, delivery or reap is used up."""
    old = [site.worker("threads", 4, wait=False) for _ in range(2)]
    new = [site.worker("threads", 2, wait=False, **NEW), site.worker("prefork", 2, wait=False, **NEW)]
    for worker in old + new:
        worker.ready()
    begin = time.monotonic()

    eids = [site.publish("brand_new", n, tenant=f"t{n % 3}") for n in range(30)]
    endings = [site.ending(eid) for eid in eids]

    assert time.monotonic() - begin < 5
    assert all(ending.event == "succeeded" and ending.deliveries == 1 for ending in endings)
    assert all(site.events(eid) == ["started", "succeeded"] for eid in eids)
    assert sum(worker.stats()["unknown_tasks"] for worker in old) <= 30
    assert site.leases() == 0 and site.queue.parked(0, 10) == []


def test_r144_a_task_that_no_worker_knows_waits_without_a_busy_loop_until_one_comes(site):
    old = [site.worker("threads", 2, wait=False) for _ in range(2)]
    for worker in old:
        worker.ready()
    eids = [site.publish("brand_new", n) for n in range(5)]
    eventually(lambda: len(site.queue.parked(0, 10)) == 5)
    eventually(lambda: site.leases() == 0)
    before = calls(site)
    time.sleep(4)

    assert (calls(site) - before) / 4 < 30
    assert sum(worker.stats()["unknown_tasks"] for worker in old) == 5
    assert site.ending(site.publish("add", 1, 1)).event == "succeeded"       # nothing stands in the way of others
    site.worker("prefork", 1, **NEW)
    begin = time.monotonic()
    assert all(site.ending(eid).event == "succeeded" for eid in eids)
    assert time.monotonic() - begin < 5
    assert [site.ending(eid).deliveries for eid in eids] == [1] * 5


def test_a_worker_of_another_pool_that_knows_the_task_is_no_help(site):
    site.worker("threads", 2)
    site.worker("threads", 2, queues="chrono.gold", **NEW)
    eid = site.publish("brand_new", "x")

    eventually(lambda: [each.execution_id for each in site.queue.parked(0, 10)] == [eid])
    time.sleep(6)

    assert site.events(eid) == []
    gold = site.publish("brand_new", "y", pool="chrono.gold")
    assert site.ending(gold).event == "succeeded"


def test_no_worker_draws_the_relays_pool(site):
    """A shadow's message lies there as a task like any other: run, it would be done twice."""
    worker = site.worker("threads", 2, queues="chrono,chrono.relay")
    hidden = site.publish("add", 1, 1, pool="chrono.relay")

    assert site.ending(site.publish("add", 1, 2)).event == "succeeded"

    assert worker.stats()["pools"] == ["chrono"] and site.events(hidden) == []
    assert "chrono.relay is not drawn" in worker.text()
