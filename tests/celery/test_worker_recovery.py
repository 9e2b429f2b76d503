"""What workers do when Redis loses its memory: they bring back what they run, and say again what has ended."""
import time

import pytest

from chrono_beat.testing.patience import eventually

pytestmark = pytest.mark.celery

SHORT = {"lease_ttl": 3.0, "renew_every": 0.3}
QUARANTINE_US = 3_000_000


def forget(site):
    """Let the site's part of Redis forget everything but what bodies noted."""
    for key in list(site.redis.scan_iter(f"{site.prefix}:{{*", count=1000)):
        site.redis.delete(key)


def open_again(site, generation=2):
    replication_id = site.queue.lane_state(0).replication_id
    assert site.queue.open_lane(0, generation, replication_id, QUARANTINE_US)


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_rule05_what_runs_is_brought_back_and_its_outcome_counts_after_the_quarantine(make_site, pool):
    site = make_site(**SHORT)
    site.worker(pool, 1)
    eid = site.publish("slow", "long", 5)
    site.begun("long")
    token = site.marker(eid)["token"]

    forget(site)
    time.sleep(0.5)
    open_again(site)

    eventually(lambda: site.marker(eid).get("token") == token, 3, what="the grant being back")
    assert site.leases() == 1
    ending = site.ending(eid, 15)
    assert (ending.event, ending.token, ending.generation) == ("succeeded", token, 2)
    assert ending.at_us >= site.queue.lane_state(0).quarantine_until_us      # not by the leave of the quarantine
    assert site.events(eid) == ["started", "succeeded"]
    assert len(site.journal("begin", name="long")) == 1


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_rule06_an_outcome_that_nobody_has_recorded_is_said_again(make_site, pool):
    site = make_site(**SHORT)
    site.worker(pool, 1)
    eid = site.publish("add", 1, 2)
    eventually(lambda: site.marker(eid).get("state") == "s", 10)
    kept = site.publish("add", 3, 4)
    eventually(lambda: site.marker(kept).get("state") == "s", 10)

    forget(site)                                                      # before anybody has read it
    open_again(site)

    assert site.ending(eid, 5).event == "succeeded"
    assert site.ending(kept, 5).event == "succeeded"
    time.sleep(1)                                                     # renewals have asked what is recorded
    forget(site)
    open_again(site, 3)
    time.sleep(1)
    assert site.events(eid) == ["succeeded"]


def test_r123_a_worker_draws_again_after_the_lane_was_opened_anew(make_site):
    site = make_site(**SHORT)
    site.worker("prefork", 1)
    forget(site)
    site.queue.open_lane(0, 2, site.queue.lane_state(0).replication_id, 0)

    now_us = site.queue.now_us()
    site.queue.publish, stock = (lambda lane, generation, until, items: stock(lane, 2, until, items)), site.queue.publish
    eid = site.publish("add", 1, 2)

    ending = site.ending(eid, 10)
    assert ending.event == "succeeded" and ending.at_us - now_us < 10_000_000


def test_rule04_nothing_is_drawn_from_another_server_before_its_lane_was_opened(make_site):
    """A replica that took over may have forgotten what ended in the last moments."""
    site = make_site(**SHORT)
    site.worker("prefork", 1)
    eventually(lambda: [c for c in site.redis.client_list() if "b" in c["flags"] and c["cmd"] == "blpop"
                        and c["db"] == "2"], 10, what="the worker waits")
    site.redis.hset(f"{site.prefix}:{{0}}:meta", "replication_id", "of the server before")
    site.redis.client_kill_filter(_type="normal", skipme=True)
    time.sleep(0.5)
    eid = site.publish("add", 1, 2)

    time.sleep(2)
    assert site.marker(eid)["state"] == "q"
    open_again(site)
    site.queue.publish, stock = (lambda lane, generation, until, items: stock(lane, 2, until, items)), site.queue.publish
    time.sleep(QUARANTINE_US / 1_000_000)
    again = site.publish("add", 3, 4)
    assert site.ending(again, 10).event == "succeeded"


def test_rule04_a_worker_that_starts_after_a_failover_draws_nothing_before_the_lane_was_opened(make_site):
    """Its first connection is to the server that took over already, so nothing breaks that would warn it."""
    site = make_site(**SHORT)
    eid = site.publish("add", 1, 2)
    site.redis.hset(f"{site.prefix}:{{0}}:meta", "replication_id", "of the server before")

    worker = site.worker("threads", 1, wait=False)

    eventually(lambda: "another server has taken over" in worker.text(), 20, what="the worker says what it waits for")
    assert site.marker(eid)["state"] == "q"
    open_again(site)
    eventually(lambda: site.queue.lane_state(0).quarantine_until_us <= site.queue.now_us(), 10, what="the quarantine's end")
    site.queue.publish, stock = (lambda lane, generation, until, items: stock(lane, 2, until, items)), site.queue.publish
    assert site.ending(site.publish("add", 3, 4), 10).event == "succeeded"
