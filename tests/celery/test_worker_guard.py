"""What a worker refuses whatever was sent to it, and what its log at level DEBUG never has."""
import base64
import json
import pickle

import pytest

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
