"""HTTP targets on real workers: they run as the built-in task, with all that any task has."""
from types import SimpleNamespace

import pytest

from chrono_beat.celery import http_task
from chrono_beat.core.callback import HttpTargetError
from chrono_beat.core.outcomes import decide_end
from chrono_beat.testing.patience import eventually
from tests.celery.test_worker_retries import AT_ONCE, decided
from tests.celery.workerkit import Site
from tests.targets.receiver import Receiver, reply

pytestmark = pytest.mark.celery


@pytest.fixture(scope="module", params=["prefork", "threads"])
def site(request, redis_server):
    site = Site(redis_server)
    site.worker(request.param, 2)
    yield site
    site.close()


@pytest.fixture
def receiver():
    receiver = Receiver()
    yield receiver
    receiver.close()


def call(site, receiver, name, **given):
    return site.publish("chrono_beat.http", job=f"{name}-{receiver.port}", **given)


def test_a_call_is_made_once_and_its_status_is_kept(site, receiver):
    eid = call(site, receiver, "well", body="of the message")

    outcome = site.ending(eid)
    assert (outcome.event, outcome.detail["result"][:6]) == ("succeeded", "204 in")
    [(path, headers, body)] = receiver.requests
    assert body == b'{"of": "the database"}'
    assert (headers["Chrono-Execution"], headers["Idempotency-Key"]) == (eid, eid.rpartition(":")[0])
    ending, _, _ = decide_end(None, outcome, outcome.at_us, lambda: 0.5)
    assert ending.result == outcome.detail["result"]


def test_a_busy_target_is_tried_again_when_it_asked_for(site, receiver):
    receiver.answer = lambda handler: reply(handler, 503, Retry_After="120")
    eid = call(site, receiver, "busy")

    outcome = site.ending(eid)
    ending, attempt = decided(eid, outcome, AT_ONCE._replace(maximum_seconds=60.0), 0)
    assert (ending.state, attempt.attempt, attempt.due_us - outcome.at_us) == ("failed", 2, 60_000_000)


def test_a_target_that_refuses_is_not_tried_again_and_no_secret_is_told(site, receiver):
    receiver.answer = lambda handler: reply(handler, 401, handler.headers["Authorization"].encode())
    eid = call(site, receiver, "refused")

    outcome = site.ending(eid)
    ending, attempt = decided(eid, outcome, AT_ONCE, 0)
    assert (ending.state, ending.reason, attempt) == ("dead", "error", None)
    assert ending.error == "HttpTargetError: 127.0.0.1 answered 401: ********"
    log = eventually(lambda: "401" in site.workers[0].text() and site.workers[0].text(), 5)
    assert "s3cret" not in log and "Traceback" not in log
    results = site.redis.from_url(site.broker, decode_responses=True)
    stored = [results.get(key) for key in results.scan_iter("celery-task-meta-*")]
    assert stored and not any("s3cret" in text or "whsec" in text for text in stored)


def test_a_call_that_takes_too_long_is_stopped_as_any_task(site, receiver):
    receiver.answer = lambda handler: receiver.released.wait(20)
    eid = call(site, receiver, "stopped")
    eventually(lambda: receiver.requests, 10, what="the request")
    eventually(lambda: "started" in site.events(eid), 10)

    if site.workers[0].pool == "prefork":
        site.stop(eid)
        assert site.ending(eid).event in ("revoked", "cancelled", "failed")
    receiver.released.set()
    site.ending(eid)


def test_the_task_calls_nothing_for_a_job_without_a_url(site):
    eid = site.publish("chrono_beat.http", job="no url")

    ending, attempt = decided(eid, site.ending(eid), AT_ONCE, 0)
    assert (ending.state, attempt) == ("dead", None) and "no URL any more" in ending.error


@pytest.mark.parametrize("job_id", [None, "outside"])
def test_the_task_calls_nothing_for_a_plain_task_or_by_hand(monkeypatch, job_id):
    """Whoever may send plain tasks gains no way around the checks of a job's URL."""
    monkeypatch.setattr(http_task, "current", lambda: None if job_id else SimpleNamespace(job_id=job_id))

    with pytest.raises(HttpTargetError, match="nothing else") as refused:
        http_task.http(None)
    assert refused.value.final
