"""How tasks end, on every pool: one worker a pool, several tests."""
import json
import time

import pytest

from chrono_beat.core import ids
from chrono_beat.core.records import TenantLimits
from chrono_beat.testing.patience import eventually

pytestmark = pytest.mark.celery


def test_success_is_started_then_succeeded(pool_site):
    eid = pool_site.publish("add", 2, y=3)

    ending = pool_site.ending(eid)

    assert pool_site.events(eid) == ["started", "succeeded"]
    assert ending.worker.startswith(pool_site.workers[0].name)
    assert ending.detail["runtime_ms"] >= 0
    assert pool_site.leases() == 0


def test_an_exception_is_recorded_with_type_message_and_end_of_the_traceback(pool_site):
    eid = pool_site.publish("fail", "x" * 2000)

    error = pool_site.ending(eid).detail["error"]

    assert pool_site.events(eid) == ["started", "failed"]
    assert error["type"] == "ValueError"
    assert error["message"] == "x" * 1000
    assert "ValueError" in error["traceback"] and len(error["traceback"]) <= 4000


def test_the_body_knows_what_it_works_for(pool_site):
    eid = pool_site.publish("show", retries=2, attempt=3)
    pool_site.ending(eid)

    parts = ids.parse_execution_id(eid)
    [seen] = pool_site.journal("show", eid=eid)

    assert seen["job"] == parts.job_id and seen["name"] == f"name of {parts.job_id}" and seen["tenant"] == "acme"
    assert seen["scheduled"] == seen["due"] == ids.from_us(parts.scheduled_us).isoformat()
    assert seen["attempt"] == 3 and seen["retries"] == 2
    assert seen["key"] == seen["id"] == ids.occurrence_key(parts.job_id, parts.scheduled_us)
    assert seen["header"] == eid and seen["routed"] == "chrono"
    assert seen["held"] is True and seen["cancelled"] is False
    assert seen["token"].split(".")[0] == "1"


def test_a_task_called_as_a_function_belongs_to_its_callers_delivery(pool_site):
    eid = pool_site.publish("show_unbound")
    pool_site.ending(eid)

    assert pool_site.journal("nested", eid=eid)


def test_a_retry_is_kept_with_the_delivery_and_sent_nowhere(pool_site):
    """Its message would overtake the end of the first attempt."""
    eid = pool_site.publish("again", 5, countdown=7)

    ending = pool_site.ending(eid)

    assert pool_site.events(eid) == ["started", "retry"]
    assert ending.detail["retry"]["countdown_us"] == 7_000_000
    assert ending.detail["retry"]["args"] == "[6]"
    assert ending.detail["retry"]["kwargs"] == '{"countdown": 7}'
    assert (ending.detail["retry"]["retries"], ending.detail["retry"]["max_retries"]) == (1, 3)
    assert ending.detail["error"]["type"] == "KeyError"
    assert pool_site.redis.llen("chrono") == 0 and len(pool_site.journal("again")) == 1


def test_autoretry_is_a_retry(pool_site):
    ending = pool_site.ending(pool_site.publish("auto", retries=1))

    assert ending.event == "retry"
    assert ending.detail["retry"]["countdown_us"] == 6_000_000
    assert ending.detail["retry"]["max_retries"] == 5


def test_a_retry_too_many_is_a_failure(pool_site):
    ending = pool_site.ending(pool_site.publish("again", retries=3))

    assert ending.event == "failed"
    assert ending.detail["error"]["type"] == "KeyError"


def test_children_are_ordinary_messages(pool_site):
    """Also one that copies its parent's headers: it must not pass for a delivery of its parent's execution."""
    eid = pool_site.publish("parent")
    pool_site.ending(eid)

    eventually(lambda: len(pool_site.journal("plain", header=None, current=False)) >= 2)
    assert {note["name"] for note in pool_site.journal("plain")} >= {"child", "copied"}
    assert pool_site.events(eid) == ["started", "succeeded"]


def test_ignore_and_reject(pool_site):
    ignored, rejected, replaced = (pool_site.publish(task) for task in ("ignore", "reject", "replaced"))

    assert pool_site.ending(ignored).event == "succeeded"
    assert pool_site.ending(ignored).detail == {"ignored": True}
    assert pool_site.ending(replaced).detail == {"replaced": True}
    assert pool_site.ending(rejected).event == "failed"
    eventually(lambda: pool_site.journal("plain", name="substitute"))


def changed(change):
    """Return what makes another message of a right one."""
    def make(payload):
        document = json.loads(payload)
        change(document)
        return json.dumps(document).encode()

    return make


BAD_MESSAGES = {
    "no JSON": b"no json",
    "other JSON": b'{"body": 1}',
    "a list": b"[1, 2]",
    "not UTF-8": b"\xff\xfe\x00",
    "deep": b"[" * 100_000,
    "truncated": lambda payload: payload[:-40],
    "truncated body": changed(lambda d: d.update(body=d["body"][:-5])),
    "body of another shape": changed(lambda d: d.update(body='{"args": []}')),
    "args no list": changed(lambda d: d.update(body='["abc", {}, {}]')),
    "no task": changed(lambda d: d["headers"].pop("task")),
    "task no text": changed(lambda d: d["headers"].update(task=7)),
    "no id": changed(lambda d: d["headers"].pop("id")),
    "no header of ours": changed(lambda d: d["headers"].pop("chrono")),
    "our header no object": changed(lambda d: d["headers"].update(chrono=1)),
    "a field missing": changed(lambda d: d["headers"]["chrono"].pop("tenant")),
    "unknown version": changed(lambda d: d["headers"]["chrono"].update(v=99)),
    "another execution's": changed(lambda d: d["headers"]["chrono"].update(eid="x:20260101T000000Z:1")),
    "pickle": changed(lambda d: d.update({"content-type": "application/x-python-serialize"})),
    "a limit that is none": changed(lambda d: d["headers"].update(timelimit="soon")),
}


@pytest.mark.parametrize("kind", BAD_MESSAGES)
def test_a_payload_that_is_no_message_is_set_aside_with_a_reason(pool_site, kind):
    eid = pool_site.publish("add", 1, 2, raw=BAD_MESSAGES[kind])

    ending = pool_site.ending(eid)

    assert ending.event == "rejected" and ending.detail["error"]["message"]
    assert pool_site.events(eid) == ["rejected"] and pool_site.leases() == 0


def test_the_worker_goes_on_after_bad_messages_and_counts_them(pool_site):
    worker = pool_site.workers[0]
    rejected = sum(outcome.event == "rejected" for outcome in pool_site.outcomes())
    aliens = sum(outcome.event == "alien" for outcome in pool_site.outcomes())
    limits = TenantLimits("acme", 1, 20, True, pool_site.queue.now_us())
    pool_site.queue.set_tenants(0, [limits])         # what lies before the next entry to be read is never looked at
    for fields in ({"foo": "bar"}, {"e": "no-such-execution", "p": "{"}):
        pool_site.publish("add", 0, 0)
        pool_site.redis.xadd(f"{pool_site.prefix}:{{0}}:s:chrono:acme:4", fields)
    pool_site.queue.set_tenants(0, [limits._replace(paused=False, changed_us=limits.changed_us + 1)])

    assert pool_site.ending(pool_site.publish("add", 1, 1)).event == "succeeded"
    eventually(lambda: sum(outcome.event == "alien" for outcome in pool_site.outcomes()) == aliens + 2)
    stats = eventually(client_app(pool_site).control.inspect(destination=[worker.name], timeout=3).stats)
    assert stats[worker.name]["chrono_beat"]["rejected"] == rejected
    eventually(lambda: pool_site.redis.xlen(f"{pool_site.prefix}:{{0}}:s:chrono:acme:4") == 0)


def test_an_unknown_task_is_laid_aside_and_frees_its_lease(pool_site):
    eid = pool_site.publish("nowhere.no_such_task")

    [parked] = eventually(lambda: [each for each in pool_site.queue.parked(0, 10) if each.execution_id == eid])

    assert parked.task == "nowhere.no_such_task"
    assert pool_site.events(eid) == [] and pool_site.leases() == 0
    eventually(lambda: "nowhere.no_such_task is not known here" in pool_site.workers[0].text())
    pool_site.queue.end_parked(0, 0, 10)
    assert pool_site.events(eid) == ["no_worker"]


def test_ordinary_tasks_run_beside(pool_site, monkeypatch):
    proj = client_app(pool_site)
    results = [proj.send_task("tests.celery.proj.add", (n, n), queue="celery") for n in range(5)]

    assert [result.get(timeout=10) for result in results] == [0, 2, 4, 6, 8]


def test_the_result_backend_has_one_result_a_task_id(pool_site):
    eid = pool_site.publish("add", 20, 22)
    pool_site.ending(eid)

    key = eid.rpartition(":")[0]
    assert client_app(pool_site).AsyncResult(key).get(timeout=5) == 42


def test_inspect_answers(pool_site):
    proj = client_app(pool_site)
    worker = pool_site.workers[0]
    eid = pool_site.publish("slow", "inspected", 0.1 if worker.pool == "solo" else 1.5)
    pool_site.begun("inspected")
    inspect = proj.control.inspect(destination=[worker.name], timeout=3)

    if worker.pool != "solo":                       # it answers nobody while a task runs
        active = [task["id"] for task in inspect.active()[worker.name]]
        assert active == [eid.rpartition(":")[0]]
    else:
        pool_site.ending(eid)
    assert inspect.ping()[worker.name] == {"ok": "pong"}
    assert {queue["name"] for queue in inspect.active_queues()[worker.name]} == {"chrono", "celery"}
    stats = inspect.stats()[worker.name]["chrono_beat"]
    assert stats["pools"] == ["chrono"] and stats["refused"] == 0
    pool_site.ending(eid)


def test_the_worker_reports_itself(pool_site):
    report = pool_site.workers[0].report()

    assert list(report.pools) == ["chrono"]
    assert "tests.celery.proj.add" in report.tasks and not any(task.startswith("celery.") for task in report.tasks)
    assert report.concurrency == {"prefork": 2, "threads": 4, "gevent": 4, "solo": 1}[pool_site.workers[0].pool]
    assert report.pool_class.endswith(":TaskPool")


def test_a_rate_limit_holds_deliveries_back(pool_site):
    begin = time.monotonic()
    eids = [pool_site.publish("limited", n) for n in range(4)]

    for eid in eids:
        assert pool_site.ending(eid).event == "succeeded"

    assert time.monotonic() - begin > 0.3           # 5 a second; kombu fills its bucket a little early


def test_a_revoked_task_ends_as_revoked_without_having_begun(pool_site):
    job = f"revoked-{pool_site.workers[0].pool}"
    proj = client_app(pool_site)
    instant = ids.format_instant(pool_site.queue.now_us() // 1_000_000 * 1_000_000)
    eventually(lambda: time.time() % 1 < 0.3, step=0.01)        # the id must be known before it is published
    instant = ids.format_instant(pool_site.queue.now_us() // 1_000_000 * 1_000_000)
    proj.control.revoke(f"{job}:{instant}", reply=True, timeout=0.4, destination=[pool_site.workers[0].name])
    eid = pool_site.publish("slow", "revoked", 0.1, job=job)
    if not eid.startswith(f"{job}:{instant}"):
        pytest.skip("the second ended in between")

    assert pool_site.ending(eid).event == "revoked"
    assert not pool_site.journal("begin", name="revoked")


def client_app(site):
    """Return an app that sends to the site's broker."""
    from celery import Celery

    app = Celery("client", broker=site.broker, backend=site.broker)
    app.conf.task_send_sent_event = True
    return app
