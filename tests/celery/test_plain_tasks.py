"""Plain tasks on real workers: ordinary Celery requests under a lease, without a job."""
import signal

import celery
import pytest
from celery import chain, chord, group
from celery.exceptions import Reject, SoftTimeLimitExceeded, TaskRevokedError, TimeLimitExceeded, WorkerLostError
from celery.result import AsyncResult

from chrono_beat.core.records import TenantLimits
from chrono_beat.testing.patience import eventually
from tests.celery.workerkit import Site

pytestmark = [pytest.mark.celery, pytest.mark.redis]

POOLS = {"prefork": 3, "threads": 4}
PATIENCE = 20


class Sender:
    def __init__(self, site):
        self.site, self.app = site, site.sender()

    def sig(self, task, *args, **options):
        name = task if "." in task or task == "slow_late" else f"tests.celery.proj.{task}"
        headers = {"chrono_tenant": options.pop("tenant", "acme"), **options.pop("headers", {})}
        return self.app.signature(name, args=args, options={"queue": "chrono", "headers": headers, **options})

    def send(self, task, *args, **options):
        return self.sig(task, *args, **options).apply_async()

    def note(self, event, **facts):
        return eventually(lambda: self.site.journal(event, **facts), PATIENCE, what=f"{event} {facts}")[0]


@pytest.fixture(scope="module", params=list(POOLS))
def sender(request, redis_server):
    """One worker of each pool in turn; the tests leave it as it was."""
    site = Site(redis_server, reap_cap=1)
    site.worker(request.param, POOLS[request.param], queues="chrono,chrono.gold,celery")
    sender = Sender(site)
    sender.pool = request.param
    yield sender
    site.close()


def quiet(sender):
    """Say whether nothing is held any more, and nothing of it became an outcome."""
    eventually(lambda: sender.site.leases() == 0, PATIENCE, what="all leases released")
    return sender.site.outcomes() == []


def test_it_runs_as_an_ordinary_request_and_its_result_can_be_awaited(sender):
    result = sender.send("tell", "mine", headers={"custom": 7}, priority=3, task_id=f"id:{sender.pool}:1")

    assert result.get(timeout=PATIENCE) == "mine"

    told = sender.note("tell", args=["mine"])
    assert (told["id"], told["root"], told["parent"], told["retries"]) == (result.id, result.id, None, 0)
    assert (told["tenant"], told["attempt"], told["job"], told["scheduled"]) == ("acme", 1, None, None)
    assert told["eid"].startswith(f"plain:{result.id}:") and told["key"] == result.id
    assert (told["held"], told["cancelled"], told["priority"], told["custom"]) == (True, False, 3, 7)
    assert quiet(sender)


def test_an_exception_reaches_the_caller_and_its_errback_the_same_tenant(sender):
    result = sender.send("fail", "no good", tenant="errs", link_error=sender.app.signature(
        "tests.celery.proj.failed", queue="chrono"))
    with pytest.raises(ValueError, match="no good"):
        result.get(timeout=PATIENCE)
    assert sender.note("errback")["tenant"] == "errs"
    assert quiet(sender)


def test_chains_groups_and_chords_of_plain_tasks_keep_the_tenant(sender):
    result = chain(sender.sig("add", 1, 2), sender.app.signature("tests.celery.proj.add", (10,), queue="chrono"))
    assert result.apply_async().get(timeout=PATIENCE) == 13
    header = group(sender.sig("add", n, n, tenant="chordal") for n in range(3))
    body = sender.app.signature("tests.celery.proj.total", queue="chrono")
    assert chord(header, body).apply_async().get(timeout=PATIENCE) == 6
    assert sender.note("total")["tenant"] == "chordal"
    assert quiet(sender)


def test_children_inherit_the_tenant_in_pools_and_nothing_elsewhere(sender):
    sender.send("send_children", tenant="family")
    inherits, another, stock = (sender.note("tell", args=[name]) for name in ("inherits", "another's", "stock"))
    assert (inherits["tenant"], another["tenant"], stock["tenant"]) == ("family", "other", None)
    assert inherits["eid"].startswith("plain:") and stock["eid"] is None
    assert stock["parent"] == inherits["parent"] is not None


def test_the_child_of_a_jobs_execution_is_a_plain_task_of_its_tenant(sender):
    eid = sender.site.publish("send_children", tenant="jobs", job="parent")
    sender.site.ending(eid)
    told = eventually(lambda: sender.site.journal("tell", args=["inherits"], tenant="jobs"), PATIENCE, what="the child")[0]
    assert (told["job"], told["attempt"]) == (None, 1)
    assert told["eid"].startswith("plain:")
    sender.site._outcomes.clear()


def test_inv01_a_countdown_is_waited_for_in_redis(sender):
    before = sender.site.queue.now_us()
    result = sender.send("tell", "later", countdown=1)
    eventually(lambda: sender.site.queue.reap(0, 1, 10) or result.ready(), PATIENCE, what="the delayed task")
    assert sender.site.queue.now_us() - before >= 1_000_000
    assert sender.note("tell", args=["later"])["eta"] is not None


def test_one_past_its_expiry_is_revoked_as_ever(sender):
    result = sender.send("tell", "stale", expires=0.001)
    with pytest.raises(TaskRevokedError, match="expired"):
        result.get(timeout=PATIENCE)
    assert sender.site.journal("tell", args=["stale"]) == []
    assert quiet(sender)


def test_a_revoked_one_does_not_run(sender):
    sender.app.control.revoke(f"unwanted-{sender.pool}", reply=True, timeout=5, limit=1)
    result = sender.send("tell", "unwanted", task_id=f"unwanted-{sender.pool}")
    with pytest.raises(TaskRevokedError):
        result.get(timeout=PATIENCE)
    assert sender.site.journal("tell", args=["unwanted"]) == []


def test_retries_keep_the_id_and_come_after_the_delivery_has_ended(sender):
    result = sender.send("again_and_again", 2, 0)
    assert result.get(timeout=PATIENCE) == 2
    tries = sender.site.journal("try", id=result.id)
    assert [each["retries"] for each in tries] == [0, 1, 2]
    assert len({each["eid"] for each in tries}) == 1 and len({each["token"] for each in tries}) == 3
    assert quiet(sender)


def test_autoretry_ends_with_the_bodys_own_exception(sender):
    with pytest.raises(ValueError, match="not good"):
        sender.send("never_good").get(timeout=PATIENCE)
    assert [each["retries"] for each in sender.site.journal("never_good")] == [0, 1]


def test_a_task_that_replaces_itself_in_the_pool_hands_its_id_on(sender):
    assert sender.send("replaced_in_pool").get(timeout=PATIENCE) == "substitute"
    assert sender.note("tell", args=["substitute"])["tenant"] == "acme"


def test_ignore_and_reject_end_it_with_the_result_that_celery_gives(sender):
    """Celery stores no result of a rejected task before 5.7."""
    ignored, rejected = sender.send("ignore"), sender.send("reject")
    if celery.VERSION >= (5, 7):
        with pytest.raises(Reject):
            rejected.get(timeout=PATIENCE)
    sender.send("tell", "those before have begun").get(timeout=PATIENCE)
    assert quiet(sender)
    assert not ignored.ready() and rejected.ready() is (celery.VERSION >= (5, 7))


def test_inv06_one_that_asks_for_others_again_and_again_fails_past_the_cap(sender):
    result = sender.send("reject_to_others", "again")
    with pytest.raises(WorkerLostError, match="handed out 2 times"):
        result.get(timeout=PATIENCE)
    assert len(sender.site.journal("begin", name="again")) == 2
    assert quiet(sender)


def test_a_rate_limit_holds_it_back_without_losing_it(sender):
    results = [sender.send("limited", n, tenant="rated") for n in range(4)]
    for result in results:
        result.get(timeout=PATIENCE)
    assert len(sender.site.journal("limited")) == 4


def test_late_acknowledgement_changes_nothing(sender):
    sender.send("slow_late", "late", 0.1).get(timeout=PATIENCE)
    assert sender.site.journal("end", name="late")[0]["held"] is True


def test_stats_count_them(sender):
    [stats] = sender.app.control.inspect(timeout=5, limit=1).stats().values()
    assert stats["chrono_beat"]["plain"] >= 10
    assert stats["chrono_beat"]["refused"] == 0


# -- prefork: children can be ended


prefork_only = pytest.mark.parametrize("sender", ["prefork"], indirect=True)


@prefork_only
def test_time_limits_end_it(sender):
    soft = sender.send("too_long_softly", 20)
    hard = sender.send("too_long", 20)
    with pytest.raises(SoftTimeLimitExceeded):
        soft.get(timeout=PATIENCE)
    with pytest.raises(TimeLimitExceeded):
        hard.get(timeout=PATIENCE)
    assert quiet(sender)


@prefork_only
def test_a_killed_child_is_made_up_for_without_a_word_of_failure(sender):
    result = sender.send("die_once", f"once-{sender.pool}", link_error=sender.app.signature(
        "tests.celery.proj.failed", queue="chrono", headers={"chrono_tenant": "unwanted"}))
    result.get(timeout=PATIENCE)
    assert len(sender.site.journal("begin", name=f"once-{sender.pool}")) == 2
    assert sender.site.journal("errback", tenant="unwanted") == []


@prefork_only
def test_inv06_one_that_kills_every_child_fails_past_the_cap(sender):
    result = sender.send("die", "deadly")
    with pytest.raises(WorkerLostError, match="handed out 2 times"):
        result.get(timeout=PATIENCE)
    assert len(sender.site.journal("begin", name="deadly")) == 2
    assert quiet(sender)


@prefork_only
def test_terminate_ends_a_running_one(sender):
    result = sender.send("slow", "endless", 60)
    sender.site.begun("endless")
    result.revoke(terminate=True)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=PATIENCE)
    assert quiet(sender)


# -- workers of their own


def test_inv08_caps_hold_over_jobs_and_plain_tasks_of_several_workers(make_site):
    site = make_site()
    site.queue.set_tenants(0, [TenantLimits("acme", 1, 2, False, site.queue.now_us())])
    sender = Sender(site)
    for n in range(6):
        sender.send("slow", f"p{n}", 0.2)
        site.publish("slow", f"j{n}", 0.2)
    for worker in [site.worker("threads", 4, wait=False) for _ in range(2)]:
        worker.ready()

    eventually(lambda: len(site.journal("end")) == 12, PATIENCE, what="all ends")
    running, peak = 0, 0
    for each in site.journal():
        running += {"begin": 1, "end": -1}[each["event"]]
        peak = max(peak, running)
    assert peak == 2


def test_inv06_a_killed_workers_tasks_run_elsewhere_and_a_warm_shutdown_gives_back(make_site):
    site = make_site(lease_ttl=1, renew_every=0.3)
    sender = Sender(site)
    first = site.worker("prefork", 1)
    running = sender.send("slow", "killed", 2)
    site.begun("killed")
    first.kill()
    second = site.worker("prefork", 1)
    eventually(lambda: site.queue.reap(0, 5, 10), PATIENCE, what="the reap")
    site.begun("killed", times=2)
    waiting = sender.send("tell", "waits")

    second.signal(signal.SIGTERM)
    assert second.wait() == 0

    assert running.ready() and not waiting.ready()
    assert len(site.journal("end", name="killed")) == 1
    site.worker("prefork", 1)
    assert waiting.get(timeout=PATIENCE) == "waits"


def test_an_unknown_task_waits_for_a_worker_that_knows_it_and_fails_when_none_comes(make_site):
    site = make_site(no_worker_after=1)
    site.worker("threads", 2)
    result = Sender(site).send("brand_new", "x")
    eventually(lambda: site.queue.parked(0, 10) or result.ready(), PATIENCE, what="laid aside")
    with pytest.raises(Exception, match="brand_new"):
        result.get(timeout=PATIENCE)
    assert site.queue.parked(0, 10) == [] and site.leases() == 0
    assert AsyncResult(result.id, app=Sender(site).app).state == "FAILURE"
