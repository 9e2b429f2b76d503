"""The start window (rule 10) on real workers: what does not begin in time goes back as if it had not been handed out."""
import os
import signal
import time

import pytest

from chrono_beat.services.audit import cancel as cancel_in_redis
from chrono_beat.testing.patience import eventually

pytestmark = [pytest.mark.redis, pytest.mark.celery]


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_rule10_what_a_rate_limit_held_back_is_drawn_anew_when_its_turn_comes(make_site, pool):
    """It runs once, at Celery's rate, under the new token; no attempt, no reap, no second start."""
    site = make_site(start_window=0.5)
    worker = site.worker(pool, 4)
    eids = [site.publish("limited_slowly", n) for n in range(4)]

    endings = [site.ending(eid, 20) for eid in eids]

    assert [ending.event for ending in endings] == ["succeeded"] * 4
    assert [site.events(eid) for eid in eids] == [["started", "succeeded"]] * 4
    assert {ending.deliveries for ending in endings} == {1}
    tokens = {note["n"]: note["token"] for note in site.journal("begin", name="limited")}
    assert tokens == {n: ending.token for n, ending in enumerate(endings)}
    seen = worker.stats(timeout=2)
    assert (seen["drawn_anew"] > 0 or pool == "solo") and seen["refused"] == 0
    assert site.leases() == 0


def test_rule10_what_a_rate_limit_holds_back_does_not_start_once_it_is_void(make_site):
    site = make_site(start_window=0.5)
    site.worker("threads", 4)
    eids = [site.publish("limited_slowly", n, job=f"j{n}") for n in range(3)]
    site.begun("limited")
    for n in range(3):
        site.queue.void(0, f"j{n}", 2)
    time.sleep(4)

    begun = {note["n"] for note in site.journal("begin", name="limited")}

    assert len(begun) < 3
    assert [site.events(eid) for n, eid in enumerate(eids) if n not in begun] == [[]] * (3 - len(begun))
    eventually(lambda: site.leases() == 0, 5)


def test_rule10_a_child_that_was_stopped_gives_back_what_it_finds_too_late(make_site):
    site = make_site(start_window=0.5)
    worker = site.worker("prefork", 1)
    [child] = worker.children()
    os.kill(child, signal.SIGSTOP)
    eid = site.publish("slow", "late", 0.1)
    eventually(lambda: site.leases() == 1, 5)
    time.sleep(1)

    site.queue.void(0, eid.split(":")[0], 2)
    os.kill(child, signal.SIGCONT)

    eventually(lambda: site.leases() == 0, 5)
    assert site.events(eid) == [] and not site.journal("begin", name="late")
    again = site.publish("slow", "next", 0.1)
    assert site.ending(again).event == "succeeded"
    assert worker.tracebacks() == []


def test_rule10_what_came_too_late_runs_at_the_next_draw_as_its_first_delivery(make_site):
    site = make_site(start_window=0.5)
    worker = site.worker("prefork", 1)
    [child] = worker.children()
    os.kill(child, signal.SIGSTOP)
    eid = site.publish("slow", "late", 0.1)
    eventually(lambda: site.leases() == 1, 5)
    time.sleep(1)
    os.kill(child, signal.SIGCONT)

    assert site.ending(eid).deliveries == 1
    assert site.events(eid) == ["started", "succeeded"]
    assert len(site.journal("begin", name="late")) == 1
    assert worker.stats(timeout=2)["given_back"] >= 1


def cancel(site, eid):
    return cancel_in_redis(site.queue, 0, eid, eid.split(":")[0], "acme")


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_cancel_ends_what_runs_and_it_is_not_tried_again(make_site, pool):
    site = make_site(stop_grace=0.5)
    site.worker(pool, 2)
    eid = site.publish("slow", "long", 20)
    site.begun("long")

    answer = cancel(site, eid)

    assert (answer.state, answer.begun) == ("held", True)
    assert site.ending(eid).event == "revoked"
    assert site.leases() == 0 and cancel(site, eid).state == "done"
    assert site.events(eid) == ["started", "revoked"]


def test_a_cancel_of_what_a_stopped_child_holds_ends_it_without_a_start(make_site):
    site = make_site(start_window=0.5)
    worker = site.worker("prefork", 1)
    [child] = worker.children()
    os.kill(child, signal.SIGSTOP)
    eid = site.publish("slow", "late", 0.1)
    eventually(lambda: site.leases() == 1, 5)

    assert not cancel(site, eid).begun
    time.sleep(1)
    os.kill(child, signal.SIGCONT)

    assert site.ending(eid).event in ("cancelled", "revoked")
    assert site.events(eid)[0] != "started" and not site.journal("begin", name="late")
    assert site.ending(site.publish("slow", "next", 0.1)).event == "succeeded"
