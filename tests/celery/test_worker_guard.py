"""What a worker refuses whatever was sent to it, and what its log at level DEBUG never has."""
import base64
import json
import pickle
import uuid
from types import SimpleNamespace

import pytest
from celery import chain, chord, group, states
from celery.exceptions import ChordError
from celery.result import AsyncResult

from chrono_beat.core import ids
from chrono_beat.core.errors import TaskRefused
from chrono_beat.core.plain import copy_id
from chrono_beat.testing.patience import eventually
from tests.celery.test_worker_endings import changed
from tests.celery.workerkit import Site
from tests.targets.receiver import Receiver, reply

pytestmark = pytest.mark.celery


@pytest.fixture(scope="module")
def site(redis_server):
    """A worker of an app that takes pickle from its broker, and may run for jobs what is in one module."""
    site = Site(redis_server)
    site.worker("threads", 2, "--loglevel=DEBUG", CHRONO_TEST_ALLOWED_TASKS="tests.celery.proj.*",
                CHRONO_TEST_ACCEPT_CONTENT="json pickle yaml", C_FORCE_ROOT="1")
    yield site
    site.close()


@pytest.mark.parametrize(("kind", "body"), [
    ("application/x-python-serialize", base64.b64encode(pickle.dumps(([1, 2], {}, {}))).decode()),
    ("application/x-yaml", "[[1, 2], {}, {}]"),
])
def test_only_json_is_taken_from_a_stream_whatever_the_app_accepts(site, kind, body):
    encoding = {"body_encoding": "base64"} if "python" in kind else {}
    eid = site.publish("add", 1, 2, raw=changed(lambda d: (
        d.update({"content-type": kind, "body": body, "content-encoding": "binary"}), d["properties"].update(encoding))))

    ending = site.ending(eid)
    assert ending.event == "rejected" and "not application/json" in ending.detail["error"]["message"]
    assert site.journal("add") == []


def test_a_task_that_is_not_allowed_is_not_run_whoever_sent_it(site):
    """The sender has no such setting, as a process without Django's settings has none."""
    eid = site.publish("celery.backend_cleanup")
    site.sender().send_task("celery.backend_cleanup", queue="chrono")

    ending = site.ending(eid)
    assert ending.event == "rejected" and "ALLOWED_TASKS" in ending.detail["error"]["message"]
    refused = eventually(lambda: [line for line in site.workers[0].text().splitlines() if "cannot be run" in line
                                  and "plain:" in line])
    assert "celery.backend_cleanup" in refused[0]
    assert site.ending(site.publish("add", 1, 1)).event == "succeeded"


REFUSED, SECRET, PATIENCE = "celery.backend_cleanup", "hunter2-hunter2", 20


def plain_task(site, task_id, change=lambda document: None):
    """Return a plain task as it is sent, with a change of its message."""
    app, sent = site.sender(), []
    app.chrono_beat.root.queue = lambda: SimpleNamespace(publish_plain=lambda lane, tasks: sent.extend(tasks))
    app.send_task("tests.celery.proj.tell", (SECRET,), queue="chrono", task_id=task_id)
    return sent[0]._replace(payload=changed(change)(sent[0].payload))


def refused(site, task_id):
    """Return what the result backend says of a task, once it is said to be refused."""
    result = AsyncResult(task_id, app=site.sender())
    with pytest.raises(TaskRefused) as raised:
        result.get(timeout=PATIENCE)
    return str(raised.value)


def test_who_waits_for_a_plain_task_that_is_refused_hears_of_it(site):
    result = site.sender().send_task(REFUSED, (SECRET,), queue="chrono")

    assert "ALLOWED_TASKS" in refused(site, result.id)
    stored = json.dumps(site.sender().backend.get_task_meta(result.id), default=str)
    assert SECRET not in stored and "tests.celery.proj" not in stored


@pytest.mark.parametrize("change", [
    lambda task: task._replace(payload=SECRET.encode()),
    lambda task: task._replace(payload=changed(lambda d: d.update({"content-type": "application/x-yaml"}))(task.payload)),
    lambda task: task._replace(payload=changed(lambda d: d["headers"].update({"expires": SECRET}))(task.payload)),
], ids=["no JSON", "YAML", "an expiry that is none"])
def test_so_does_who_waits_for_one_whose_message_no_task_can_run(site, change, request):
    task_id = f"unread:{request.node.callspec.id}"
    site.queue.publish_plain(0, [change(plain_task(site, task_id))])

    told = refused(site, task_id)

    assert "no task can run its message" in told and SECRET not in told
    assert site.journal("tell", args=[SECRET]) == []


def test_a_message_that_names_another_task_fails_no_result_but_that_of_its_own_copy(site):
    other = str(uuid.uuid4())
    site.ending(site.publish("add", job=str(uuid.uuid4()), raw=changed(
        lambda d: (d["headers"].update({"id": other, "task": REFUSED}), d["headers"]["chrono"].update({"job": other})))))
    theirs = plain_task(site, "somebody-elses", lambda d: d["headers"].update({"ignore_result": True}))
    site.queue.publish_plain(0, [theirs._replace(copy_id=copy_id("mine", "1"))])

    assert refused(site, "mine")
    assert {AsyncResult(task_id, app=site.sender()).state for task_id in ("somebody-elses", other)} == {states.PENDING}


def test_chain_and_chord_of_a_refused_task_end_and_none_of_its_errbacks_is_called(site):
    app = site.sender()
    errback = app.signature("tests.celery.proj.failed", queue="chrono")

    def sig(name, *args):
        return app.signature(name, args=args, options={"queue": "chrono"}, app=app)

    chained = chain(sig(REFUSED).on_error(errback), sig("tests.celery.proj.add", 1)).apply_async()
    header = group(sig(REFUSED), sig(REFUSED), app=app)
    body = chord(header, app=app)(sig("tests.celery.proj.total").on_error(errback))

    assert refused(site, chained.id)
    with pytest.raises(ChordError, match="TaskRefused"):
        AsyncResult(body.id, app=app).get(timeout=PATIENCE)
    assert site.sender().send_task("tests.celery.proj.add", (1, 1), queue="chrono").get(timeout=PATIENCE) == 2
    assert site.journal("errback") == [] and site.journal("total") == []


def test_who_waits_for_an_eta_task_that_is_refused_hears_of_it_and_of_a_jobs_execution_nobody(site):
    of_a_job, task_id = site.publish(REFUSED), str(uuid.uuid4())
    site.ending(of_a_job)
    of_eta = site.publish("add", job=task_id, raw=changed(lambda d: d["headers"].update({"id": task_id, "task": REFUSED})))

    assert "ALLOWED_TASKS" in refused(site, task_id)               # told in the order in which they were refused
    assert site.ending(of_eta).event == "rejected"
    job = ids.parse_execution_id(of_a_job)
    key = ids.occurrence_key(job.job_id, job.scheduled_us)
    assert AsyncResult(key, app=site.sender()).state == states.PENDING


def test_no_secret_of_a_call_or_of_the_deployment_is_logged_at_level_debug(site):
    receiver = Receiver()
    receiver.answer = lambda handler: reply(handler, 500, handler.headers["Authorization"].encode())
    try:
        ending = site.ending(site.publish("chrono_beat.http", job=f"secrets-{receiver.port}"))
    finally:
        receiver.close()

    assert ending.event == "failed"
    log = eventually(lambda: "answered 500" in site.workers[0].text() and site.workers[0].text())
    assert "DEBUG" in log
    for secret in ("s3cret", "whsec", base64.b64encode(b"secret").decode()):
        assert secret not in log + json.dumps(ending.detail), secret
