"""What a worker does when something is killed, stopped, cut off or told to end."""
import signal
import time
from pathlib import Path

import pytest

from chrono_beat.core.records import TenantLimits
from chrono_beat.testing.patience import eventually
from tests.celery.test_worker_endings import client_app
from tests.celery.workerkit import Site

pytestmark = pytest.mark.celery

SHORT = {"lease_ttl": 1.2, "renew_every": 0.3}


def reap(site):
    return [reaped for lane in range(site.config.lanes) for reaped in site.queue.reap(lane, 5, 100)]


@pytest.fixture(scope="module")
def steady(request, redis_server):
    """A site with one worker of a pool, for tests that do not hurt the worker itself."""
    site = Site(redis_server)
    site.worker(request.param, 2)
    yield site
    site.close()


prefork_worker = pytest.mark.parametrize("steady", ["prefork"], indirect=True, scope="module")
killing_worker = pytest.mark.parametrize("steady", ["prefork", "gevent"], indirect=True, scope="module")


# -- ends that the worker brings about ------------------------------------------------------------------------------


@killing_worker
def test_a_hard_limit_ends_the_run_once(steady):
    """Prefork reports it twice."""
    eid = steady.publish("too_long", 20)

    ending = steady.ending(eid)

    assert ending.event == "timeout" and ending.detail["error"]["type"] == "TimeLimitExceeded"
    assert steady.events(eid) == ["started", "timeout"]
    assert not steady.journal("end", name="too_long")
    assert steady.ending(steady.publish("add", 1, 1)).event == "succeeded"
    assert steady.leases() == 0


@killing_worker
def test_a_terminated_task_ends_as_revoked(steady):
    """Gevent reports a killed greenlet as successful."""
    eid = steady.publish("slow", "terminated", 20)
    steady.begun("terminated")

    client_app(steady).control.revoke(eid.rpartition(":")[0], terminate=True)

    assert steady.ending(eid).event == "revoked"
    assert steady.ending(steady.publish("add", 1, 1)).event == "succeeded"
    assert not steady.journal("end", name="terminated")


@prefork_worker
def test_the_lock_of_a_job_is_not_free_while_a_killed_body_may_still_run(steady):
    """At a hard limit the child is told to end, and killed a tenth of a second later, after the pool's report."""
    eid = steady.publish("defiant", 20, job="one-at-a-time", time_limit=1)
    [body] = steady.begun("defiant")

    assert steady.ending(eid).event == "timeout"
    assert not Path(f"/proc/{body['pid']}").exists()


@prefork_worker
def test_a_limit_of_the_message_counts(steady):
    assert steady.ending(steady.publish("slow", "limited", 20, time_limit=1)).event == "timeout"


@prefork_worker
def test_a_soft_limit_is_a_timeout_that_names_the_line(steady):
    ending = steady.ending(steady.publish("too_long_softly", 20))

    assert ending.event == "timeout" and ending.detail["limit"] == "soft"
    assert "in too_long_softly" in ending.detail["error"]["traceback"]
    assert ending.detail["error"]["type"] == "SoftTimeLimitExceeded"


@prefork_worker
def test_a_body_that_exits_has_failed(steady):
    """It is its own doing: handed to the next worker it would end that one, too."""
    assert steady.ending(steady.publish("leave")).event == "failed"
    assert steady.ending(steady.publish("add", 1, 1)).event == "succeeded"


# -- losses ---------------------------------------------------------------------------------------------------------


@prefork_worker
def test_a_killed_child_is_noticed_at_once_and_its_work_delivered_again(steady):
    """R136: the lease is 60 s, and the pool by itself may look for lost children only every 5 s."""
    begin = time.monotonic()
    eid = steady.publish("die_once", "victim")

    ending = steady.ending(eid)

    assert ending.event == "succeeded" and ending.deliveries == 2
    assert steady.events(eid) == ["started", "started", "succeeded"]
    assert len({outcome.token for outcome in steady.outcomes(eid)}) == 2
    assert time.monotonic() - begin < 3


@prefork_worker
def test_a_retry_that_was_stored_survives_the_death_of_its_child(steady):
    ending = steady.ending(steady.publish("retry_and_die"))

    assert ending.event == "retry" and ending.detail["retry"]["countdown_us"] == 1_000_000


def test_a_killed_worker_is_followed_by_another_one_when_the_lease_has_run_out(make_site):
    """R136: within the lease and the reaper's period, under the same id; one success."""
    site = make_site(**SHORT)
    first = site.worker("prefork", 1)
    eid = site.publish("slow", "orphan", 0.8)
    site.begun("orphan")

    first.kill()
    site.worker("prefork", 1)
    [reaped] = eventually(lambda: reap(site), 5)
    ending = site.ending(eid)

    assert reaped.execution_id == eid and reaped.reaps == 1
    assert ending.event == "succeeded" and ending.deliveries == 2
    assert len(site.journal("end", name="orphan")) == 1


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_leases_are_renewed_while_a_task_runs(make_site, pool):
    """Under gevent also while the body lets no other greenlet run."""
    site = make_site(**SHORT)
    site.worker(pool, 1)
    eid = site.publish("block" if pool == "gevent" else "slow", "long", 3)
    site.begun("long")

    reaps = []
    ends = time.monotonic() + 2.6
    while time.monotonic() < ends:
        reaps += reap(site)
        time.sleep(0.1)

    assert site.ending(eid).event == "succeeded"
    assert reaps == [] and len(site.journal("begin", name="long")) == 1


LONGER = {name: 3 * seconds for name, seconds in SHORT.items()}      # a busy machine makes a call three times as long


@pytest.mark.parametrize(("pool", "call_seconds", "lease"), [("prefork", 5.0, SHORT), ("threads", 0.25, LONGER)])
def test_r121_leases_hold_past_three_of_their_lengths_under_a_body_in_c_that_keeps_the_interpreter_lock(
    make_site, pool, call_seconds, lease,
):
    """On prefork one call may keep it for longer than the lease: the body is another process. In threads each call may
    keep it for less than the lease less a renewal; a single long one would lose the lease there, as the page says."""
    site = make_site(**lease)
    site.worker(pool, 1)
    eid = site.publish("in_c", "in_c", call_seconds, 3.4 * lease["lease_ttl"])
    site.begun("in_c")

    reaps = []
    while not site.journal("end", name="in_c"):
        reaps += reap(site)
        time.sleep(0.1)

    assert site.journal("end", name="in_c")[0]["took"] > 3 * lease["lease_ttl"]
    assert site.ending(eid).event == "succeeded" and site.ending(eid).deliveries == 1
    assert reaps == [] and len(site.journal("begin", name="in_c")) == 1


def test_a_worker_that_slept_beyond_its_lease_is_refused(make_site):
    """Its children were not stopped: the body ran to its end, and again elsewhere. One success is recorded."""
    site = make_site(**SHORT)
    sleeper = site.worker("prefork", 1)
    eid = site.publish("slow", "twice", 1)
    site.begun("twice")

    sleeper.signal(signal.SIGSTOP)
    eventually(lambda: reap(site), 5)
    site.worker("prefork", 1)
    ending = site.ending(eid)
    sleeper.signal(signal.SIGCONT)

    eventually(lambda: "refused" in sleeper.text(), 5)
    assert site.events(eid) == ["started", "started", "succeeded"]
    assert not ending.worker.startswith(sleeper.name + "#")
    assert site.leases() == 0


def test_a_body_whose_lease_went_to_another_worker_is_ended(make_site):
    site = make_site(**SHORT)
    sleeper = site.worker("prefork", 1)
    eid = site.publish("slow", "stale", 60)
    [first] = site.begun("stale")

    sleeper.signal(signal.SIGSTOP)
    eventually(lambda: reap(site), 5)
    site.worker("prefork", 1)
    site.begun("stale", times=2)
    sleeper.signal(signal.SIGCONT)

    eventually(lambda: first["pid"] not in sleeper.children(), 5)
    assert site.events(eid) == ["started", "started"]
    assert not site.journal("end", name="stale", pid=first["pid"])


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_all_connections_are_killed_while_a_task_runs(site, pool):
    """Those to the broker, too, which restarts the consumer; the body goes on, and its lease with it."""
    worker = site.worker(pool, 2)
    eids = [site.publish("slow", "steady", 3)]
    site.begun("steady")
    eids += [site.publish("limited_slowly", n) for n in range(3)]   # waiting for their rate: they are cleared
    if pool != "solo":
        # Nothing else begins or ends for a second: Celery fails a task whose result backend goes away during the handshake or
        # between its body and its result.
        site.ending(eids[1])

    site.redis.client_kill_filter(_type="normal", skipme=True)
    time.sleep(0.3)
    eids += [site.publish("add", n, n) for n in range(6)]

    for eid in eids:
        assert site.ending(eid, 20).event == "succeeded"
    assert len(site.journal("begin", name="steady")) == 1
    eventually(lambda: site.leases() == 0)
    assert worker.process.poll() is None


# -- shutdown -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_a_warm_shutdown_finishes_what_runs_and_draws_nothing_more(site, pool):
    """R138: it takes no more, what runs is settled, exit status 0."""
    worker = site.worker(pool, 1 if pool == "solo" else 2)
    running = [site.publish("slow", "running", 2, tenant=f"t{n}") for n in range(worker.report().concurrency)]
    site.begun("running", times=len(running))
    waiting = [site.publish("add", n, n) for n in range(4)]

    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert all(site.events(eid) == ["started", "succeeded"] for eid in running)
    assert not any(site.events(eid) for eid in waiting)
    assert site.queue.backlog(0, "chrono") == {"acme": 4}
    assert site.leases() == 0 and worker.tracebacks() == []


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_what_has_not_begun_is_given_back_at_once(site, pool):
    """R138: deliveries that wait for their rate; Celery clears them without a word. The body that runs is not waited for."""
    worker = site.worker(pool, 4)
    site.publish("slow", "last", 6)
    site.begun("last")
    eids = [site.publish("limited", n) for n in range(30)]
    site.ending(eids[0])

    worker.signal(signal.SIGTERM)
    eventually(lambda: site.leases() == 1 and not site.journal("end"), 3)
    begun = len(site.journal("limited"))
    site.worker("threads", 4)

    assert begun < 20
    assert all(site.ending(eid).deliveries == 1 for eid in eids)      # a give-back counts for nothing
    assert all(site.events(eid) == ["started", "succeeded"] for eid in eids)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_leases_are_renewed_through_a_warm_shutdown(make_site, pool):
    """R138: Celery stops the bootstep first and then waits for the bodies, as long as they take."""
    site = make_site(**SHORT)
    worker = site.worker(pool, 1)
    eid = site.publish("slow", "farewell", 4)
    site.begun("farewell")

    worker.signal(signal.SIGTERM)
    reaps = []
    while worker.process.poll() is None:
        reaps += reap(site)
        time.sleep(0.1)

    assert reaps == [] and site.events(eid) == ["started", "succeeded"]


def test_a_cold_shutdown_hands_back_what_runs(site):
    worker = site.worker("prefork", 2)
    late = site.publish("slow_late", "late", 30)
    early = site.publish("slow", "early", 30)
    site.begun("late"), site.begun("early")
    waiting = [site.publish("add", n, n) for n in range(3)]

    begin = time.monotonic()
    worker.signal(signal.SIGQUIT)
    worker.wait()

    assert time.monotonic() - begin < 10
    assert site.leases() == 0
    assert site.queue.backlog(0, "chrono") == {"acme": 5}
    assert not site.journal("end")
    assert {tuple(site.events(eid)) for eid in (late, early)} == {("started",)}
    assert not any(site.events(eid) for eid in waiting)


def test_bodies_in_threads_are_settled_although_the_worker_is_told_to_end_at_once(site):
    worker = site.worker("threads", 2)
    eid = site.publish("slow", "thread", 2)
    site.begun("thread")

    worker.signal(signal.SIGQUIT)
    worker.wait()

    assert site.ending(eid).event == "succeeded"
    assert site.leases() == 0


def test_a_pool_that_cannot_kill_lets_a_terminated_task_succeed(site):
    worker = site.worker("threads", 2)
    eid = site.publish("slow", "immortal", 1)
    site.begun("immortal")

    client_app(site).control.revoke(eid.rpartition(":")[0], terminate=True, destination=[worker.name])

    assert site.ending(eid).event == "succeeded"


# -- numbers --------------------------------------------------------------------------------------------------------


def test_autoscale_grows_to_its_maximum(site):
    """Credit goes by the maximum: measured by the processes there are, the pool would see no reason to grow."""
    worker = site.worker("prefork", 0, "--autoscale=4,1")
    eids = [site.publish("meet", "wide", 4, 30) for _ in range(4)]

    site.begun("wide", 30, times=4)

    assert worker.report().concurrency == 4
    assert all(site.ending(eid).event == "succeeded" for eid in eids)
    assert len({note["pid"] for note in site.journal("begin", name="wide")}) == 4


def test_children_that_are_replaced_lose_nothing(site):
    site.queue.set_tenants(0, [TenantLimits("acme", 1, 100, False, 1)])
    worker = site.worker("prefork", 2, "--max-tasks-per-child=20")
    eids = [site.publish("add", n, n) for n in range(200)]

    eventually(lambda: len(site.outcomes()) >= 400, 40)

    assert all(site.events(eid) == ["started", "succeeded"] for eid in eids)
    assert len({note["pid"] for note in site.journal("add")}) >= 10
    assert worker.tracebacks() == [] and site.leases() == 0


def test_a_cap_holds_over_two_workers(site):
    """And the end of one run wakes the worker that waits for the slot, whichever it is."""
    site.queue.set_tenants(0, [TenantLimits("acme", 1, 1, False, 1)])
    site.worker("prefork", 2, wait=False), site.worker("threads", 2), site.workers[0].ready()
    begin = time.monotonic()
    eids = [site.publish("slow", f"n{n}", 0.2) for n in range(6)]

    for eid in eids:
        site.ending(eid)

    assert 1.2 <= time.monotonic() - begin < 4
    running = 0
    for entry in site.journal():
        running += {"begin": 1, "end": -1}[entry["event"]]
        assert running <= 1


def test_idle_workers_do_not_poll(site):
    site.worker("prefork", 2, wait=False), site.worker("gevent", 2), site.workers[0].ready()
    time.sleep(0.5)
    broker_and_store = site.redis.info("commandstats")
    time.sleep(4)
    after = site.redis.info("commandstats")

    # Celery's own broker transport waits with BRPOP, once a second at most; INFO is ours.
    ours = ("evalsha", "blpop", "time", "set", "zadd", "zremrangebyscore", "rpush")
    calls = sum(after.get(f"cmdstat_{name}", {"calls": 0})["calls"]
                - broker_and_store.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ours)
    assert calls / 4 < 20
    assert calls / 4 < 8, "two idle workers: reports each 5 s and a wait each 5 s"


def test_a_worker_without_queues_draws_the_default_pool_and_can_be_told_to_stop(site):
    worker = site.worker("prefork", 1, queues=None)
    assert list(worker.report().pools) == ["chrono"]
    assert site.ending(site.publish("add", 1, 1)).event == "succeeded"

    client_app(site).control.cancel_consumer("chrono", reply=True, timeout=1, destination=[worker.name])
    client_app(site).control.add_consumer("chrono.gold", reply=True, timeout=1, destination=[worker.name])
    gold = site.publish("add", 2, 2, pool="chrono.gold")
    plain = site.publish("add", 3, 3)

    assert site.ending(gold).event == "succeeded"
    time.sleep(0.3)
    assert not site.events(plain)


def test_a_worker_without_pools_of_ours_says_so(site):
    worker = site.worker("prefork", 1, queues="celery")

    assert "this worker draws nothing" in worker.text()


def test_lanes_and_pools_share_the_credit(make_site):
    site = make_site(lanes=3)
    site.worker("threads", 3, queues="chrono,chrono.gold")
    eids = [site.publish("add", n, n, tenant=f"t{n}", pool="chrono" if n % 2 else "chrono.gold") for n in range(30)]

    for eid in eids:
        assert site.ending(eid).event == "succeeded"
    assert site.leases() == 0


def test_ordinary_tasks_leave_the_slots_they_do_not_use(site):
    """A worker full of ordinary tasks draws nothing; it draws as soon as one of them ends, though nobody says so."""
    worker = site.worker("prefork", 2)
    for n in range(2):
        client_app(site).send_task("tests.celery.proj.slow", (f"stock{n}", 1.5), queue="celery")
    site.begun("stock0"), site.begun("stock1")

    eid = site.publish("add", 1, 1)
    time.sleep(0.5)
    drawn_early = site.leases()

    assert drawn_early == 0
    assert site.ending(eid).event == "succeeded"
    assert worker.process.poll() is None


def test_pickup_is_fast(site):
    site.worker("prefork", 2)
    times = []
    for n in range(20):
        begin = time.monotonic()
        eid = site.publish("add", n, n)
        eventually(lambda eid=eid: "succeeded" in site.events(eid), step=0.001)
        times.append(time.monotonic() - begin)

    print("published to recorded, ms:", [round(t * 1000, 1) for t in sorted(times)])
    assert sorted(times)[10] < 0.2
