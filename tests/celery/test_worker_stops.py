"""Deliveries that are told to stop, and bodies that run for longer than they may."""
import signal
import time

import pytest

from chrono_beat.core.records import TenantLimits
from chrono_beat.testing.patience import eventually
from chrono_beat.testing.servers import RedisServer
from tests.celery.workerkit import Site

pytestmark = pytest.mark.celery

EVERY_POOL = ["prefork", "threads", "gevent", "solo"]
CANNOT_KILL = ["threads", "gevent", "solo"]


@pytest.fixture(scope="module")
def steady(request, redis_server):
    """A site with one worker of a pool and a short grace."""
    site = Site(redis_server, stop_grace=1.5)
    site.worker(request.param, 1 if request.param == "solo" else 2)
    yield site
    site.close()


def workers_of(*pools):
    return pytest.mark.parametrize("steady", pools, indirect=True, scope="module")


def stats(site):
    return site.workers[0].stats()


@workers_of(*EVERY_POOL)
@pytest.mark.parametrize(("why", "event"), [("cancel", "revoked"), ("replace", "superseded"), ("duration", "timeout")])
def test_a_running_delivery_is_stopped_by_a_control_message(steady, why, event):
    name = f"told-{why}"
    eid = steady.publish("attentive", name, 20, job=f"{name}-job")
    steady.begun(name)
    eventually(lambda: steady.events(eid))
    begin = time.monotonic()

    steady.stop(eid, why)

    ending = steady.ending(eid, 5)
    assert ending.event == event and steady.events(eid) == ["started", event]
    assert time.monotonic() - begin < 3
    assert not steady.journal("end", name=name)
    if steady.workers[0].pool != "prefork":
        assert eventually(lambda: steady.journal("noticed", name=name))
    after = steady.ending(steady.publish("add", 1, 1, job=f"{name}-job", attempt=2))      # lock and slot are free again
    assert after.event == "succeeded" and steady.leases() == 0


@workers_of(*EVERY_POOL)
def test_a_word_for_an_older_delivery_stops_nothing(steady):
    eid = steady.publish("attentive", "other", 0.5)
    steady.begun("other")
    eventually(lambda: steady.events(eid))

    steady.stop(eid, token="1.999999")

    assert steady.ending(eid).event == "succeeded"


@workers_of(*EVERY_POOL)
def test_messages_that_are_none_are_counted_and_their_content_is_kept_out_of_the_log(steady):
    worker, before = steady.workers[0], stats(steady)["bad_messages"]
    for text in ("no json secret", "[1]", '{"stop": "a"}', '{"stop": "a", "token": "1.1", "why": "secret"}', "[" * 1999,
                 '{"stop": 7, "token": null, "why": "cancel"}', '{"stop": "secret' + "x" * 3000):
        steady.queue.wake_worker(worker.report().worker, [0], text)

    eventually(lambda: stats(steady)["bad_messages"] == before + 7)
    assert "secret" not in worker.text()
    assert steady.ending(steady.publish("add", 1, 1)).event == "succeeded"


@workers_of(*CANNOT_KILL)
def test_a_body_that_does_not_look_is_settled_without_it_and_its_outcome_is_refused(steady):
    before = stats(steady)["refused"]
    eid = steady.publish("slow", "deaf", 4, job="deaf-job")
    steady.begun("deaf")
    eventually(lambda: steady.events(eid))

    steady.stop(eid)
    ending = steady.ending(eid, 3.5)

    assert ending.event == "revoked" and not steady.journal("end", name="deaf")
    assert steady.leases() == 0
    eventually(lambda: steady.journal("end", name="deaf", held=False))
    eventually(lambda: stats(steady)["refused"] == before + 1)
    assert steady.events(eid) == ["started", "revoked"]


@workers_of("prefork")
def test_a_body_that_does_not_end_when_told_to_is_killed(steady):
    eid = steady.publish("defiant", 20)
    steady.begun("defiant")
    eventually(lambda: steady.events(eid))

    steady.stop(eid)

    assert steady.ending(eid, 4).event == "revoked"
    assert steady.ending(steady.publish("add", 1, 1)).event == "succeeded"


@workers_of("prefork", "threads", "gevent")
def test_a_delivery_that_waits_for_its_rate_is_settled_without_running(steady):
    eids = [steady.publish("limited", n) for n in range(12)]
    steady.ending(eids[0])
    last = eids[-1]
    worker = steady.workers[0].report().worker
    # Not begun, so no outcome tells its token yet; the marker does.
    token = eventually(lambda: steady.marker(last).get("token"))

    steady.queue.wake_worker(worker, [0], f'{{"stop": "{last}", "token": "{token}", "why": "cancel"}}')

    assert steady.ending(last).event in ("revoked", "succeeded")
    if steady.ending(last).event == "revoked":
        assert steady.events(last) == ["revoked"] and not steady.journal("limited", n=11)


@workers_of(*CANNOT_KILL)
def test_inv06_a_body_is_over_at_its_max_duration_on_pools_that_cannot_kill(steady):
    """R143 for them: slot, lock and tenant count are free at once, and what the body reports later is refused."""
    before = stats(steady)
    eid = steady.publish("slow", "long", 5, job="long-job", time_limit=1)
    steady.begun("long")

    ending = steady.ending(eid, 4)

    assert ending.event == "timeout" and ending.detail["error"]["type"] == "TimeLimitExceeded"
    assert steady.leases() == 0
    if steady.workers[0].pool == "gevent":           # it raises in the body by itself
        return
    assert not steady.journal("end", name="long")
    eventually(lambda: steady.journal("end", name="long", held=False))
    eventually(lambda: stats(steady)["refused"] == before["refused"] + 1)
    assert steady.events(eid) == ["started", "timeout"]


@workers_of("gevent")
def test_a_greenlet_that_does_not_yield_is_settled_at_its_max_duration(steady):
    begin = time.monotonic()
    eid = steady.publish("block", "greedy", 7, time_limit=1)

    ending = steady.ending(eid, 8)

    assert ending.event == "timeout" and time.monotonic() - begin < 6
    assert not steady.journal("end", name="greedy")
    assert steady.ending(steady.publish("add", 1, 1), 15).event == "succeeded"
    assert steady.events(eid)[-1] == "timeout"


@workers_of("prefork")
def test_r142_a_soft_limit_that_is_swallowed_leaves_the_hard_one_in_force(steady):
    eid = steady.publish("deaf_to_soft_limits", "deaf-soft", 20, soft_limit=1, time_limit=2.5)
    steady.begun("deaf-soft")
    begin = time.monotonic()

    ending = steady.ending(eid)

    assert steady.journal("swallowed", name="deaf-soft")
    assert ending.event == "timeout" and ending.detail["limit"] == "hard"
    assert 1.5 < time.monotonic() - begin < 3.5


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_r141_a_running_delivery_is_stopped_during_a_warm_shutdown(make_site, pool):
    """The event loop does not turn then."""
    site = make_site(stop_grace=2)
    worker = site.worker(pool, 2)
    eid, other = site.publish("attentive", "leaving", 30), site.publish("slow", "staying", 6)
    site.begun("leaving"), site.begun("staying")
    eventually(lambda: site.events(eid))
    worker.signal(signal.SIGTERM)
    eventually(lambda: "shutdown" in worker.text())
    time.sleep(1)                                    # the pool is being joined now
    begin = time.monotonic()

    site.stop(eid)

    assert site.ending(eid, 4).event == "revoked"
    assert time.monotonic() - begin < 4
    assert worker.wait() == 0
    assert site.events(other) == ["started", "succeeded"] and site.leases() == 0


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_max_duration_counts_during_a_warm_shutdown(site, pool):
    worker = site.worker(pool, 1)
    eid = site.publish("attentive", "endless", 60, time_limit=3)
    site.begun("endless")

    worker.signal(signal.SIGTERM)

    assert site.ending(eid, 8).event == "timeout"
    assert worker.wait() == 0


@workers_of("prefork")
def test_r143_at_a_hard_limit_slot_and_tenants_count_are_free_at_once(steady):
    """Whether it is tried again is the recorder's to decide (max_attempts), and the next attempt has room."""
    steady.queue.set_tenants(0, [TenantLimits("tight", 1, 1, False, steady.queue.now_us())])
    first = steady.publish("slow", "stuck", 30, tenant="tight", time_limit=1)
    steady.begun("stuck")
    second = steady.publish("add", 1, 1, tenant="tight")
    begin = time.monotonic()

    assert steady.ending(first).event == "timeout"
    assert steady.ending(second).event == "succeeded"
    assert time.monotonic() - begin < 3


@workers_of("prefork", "threads")
def test_r140_ten_cancels_in_a_second_freeze_nothing(steady):
    eids = [steady.publish("attentive", f"ten-{n}", 30, tenant="ten") for n in range(10)]
    eventually(lambda: sum(bool(steady.events(eid)) for eid in eids) == 2)      # the worker's slots; eight are queued
    begin = time.monotonic()

    for eid in eids:
        answer = steady.queue.cancel(0, eid, eid.partition(":")[0], "ten")
        if answer.state == "held":
            steady.stop(eid)
    told = time.monotonic() - begin
    ends = {steady.ending(eid, 5).event for eid in eids}

    assert told < 1 and ends <= {"cancelled", "revoked"}
    assert steady.ending(steady.publish("add", 1, 1), 5).event == "succeeded"
    assert steady.leases() == 0
    assert not [note for note in steady.journal("end") if note["name"].startswith("ten-")]


def test_r140_what_was_cancelled_never_runs_also_when_workers_and_redis_start_anew():
    """Redis comes back without its memory; nobody publishes a row whose cancellation was asked for."""
    with RedisServer() as server:
        site = Site(server)
        eid = site.publish("slow", "cancelled", 0.1)
        assert site.queue.cancel(0, eid, eid.partition(":")[0], "acme").state == "ended"
        site.worker("threads", 2).kill()
        server.restart()
        site.queue.open_lane(0, 2, site.queue.lane_state(0).replication_id, 0)
        worker = site.worker("threads", 2)

        time.sleep(2)

        assert site.journal("begin") == [] and worker.tracebacks() == []
        site.close()
