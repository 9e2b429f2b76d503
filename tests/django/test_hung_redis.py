"""A Redis that hangs: it is asked once, for all that a process is asked to do meanwhile, and nothing is lost in silence."""
import os
import signal
import warnings

import pytest
import redis
from celery import Celery
from django.contrib.auth.models import User
from django.core.cache import cache
from django.test import Client
from kombu.exceptions import OperationalError

from chrono_beat.celery import ChronoBeat
from chrono_beat.core.config import Config
from chrono_beat.core.errors import NotYetVoidedWarning
from chrono_beat.redis import connection, silence
from chrono_beat.services.voids import replay
from chrono_beat.testing.servers import RedisServer
from chrono_beat_django import doctor, jobs, keys, overview, tenants, wiring
from chrono_beat_django.models import PendingVoid, Tenant
from tests.conftest import started

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.redis]
TOKEN = "correct horse battery staple"


class Hung:
    """A Redis of the test's own, which hangs until it is let go; it has counted by then who connected."""

    def __init__(self, server):
        self.server = server
        self._client = redis.Redis.from_url(server.url)

    def connections(self):
        return self._client.info("stats")["total_connections_received"]

    def __enter__(self):
        self._before = self.connections()
        os.kill(self.server.pid, signal.SIGSTOP)
        return self

    def __exit__(self, *_):
        os.kill(self.server.pid, signal.SIGCONT)
        self.attempts = self.connections() - self._before


@pytest.fixture(scope="module")
def server():
    server = started(RedisServer())
    yield server
    server.stop()


@pytest.fixture
def hung(server, monkeypatch):
    """Redis, its lane open; a call waits for it briefly, and nobody asks again however slow this machine is."""
    monkeypatch.setattr(connection, "PROMPT_TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(silence, "ASK_AGAIN_SECONDS", 3_600)
    Tenant.objects.get_or_create(slug="default")
    PendingVoid.objects.all().delete()
    cache.clear()
    wiring.forget()
    with wiring.override(config=Config(redis_url=server.url, partitions=8, metrics_tokens=(TOKEN,))):
        queue = wiring.new_queue()
        queue.open_lane(0, 1, queue.lane_state(0).replication_id, 0)
        queue.close()
        yield Hung(server)
    cache.clear()
    wiring.forget()


def job(name="nightly"):
    """Return a job that was made while Redis answered."""
    made = jobs.create(name=name, task="shop.report", cron="0 3 * * *")
    wiring.forget()                                       # so that whatever comes has to connect, which can be counted
    return made


def test_all_that_a_process_is_asked_meanwhile_waits_for_redis_once(hung):
    nightly = job()

    with hung, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", NotYetVoidedWarning)
        goes_on, *others = [jobs.create(name=f"made {n}", task="shop.report", every=60) for n in range(3)]
        for one in (nightly, *others):
            jobs.pause(one)
        cancelled = jobs.cancel(jobs.trigger(nightly))
        tenants.pause("default")
        tenants.resume("default")
        jobs.delete(goes_on)

    assert hung.attempts == 1
    # Three pauses, a cancellation, a tenant's pause and its resume, a deletion: each says that Redis could not be told.
    assert [warning.category for warning in said].count(NotYetVoidedWarning) == 7
    assert "no answer a moment ago" in str(said[-1].message)
    assert cancelled.told is False and Tenant.objects.get(slug="default").paused


def test_inv07_what_could_not_be_told_is_told_by_a_dispatcher_as_soon_as_redis_is_back(hung):
    nightly = job()
    with hung, pytest.warns(NotYetVoidedWarning):
        jobs.pause(nightly)
    assert PendingVoid.objects.filter(job_id=nightly.id, told=False).exists()

    # A dispatcher's connections wait for themselves: this process still refuses calls, that one asks.
    patient = wiring.new_queue()
    assert replay(wiring.store(), patient, 1) == 1

    assert not PendingVoid.objects.filter(told=False).exists()
    patient.close()


PAGES = ("", "tenants/", "tenants/default/", "partitions/")


def test_pages_and_metrics_say_that_redis_does_not_answer(hung, client):
    client.force_login(User.objects.create_superuser("ada"))
    with hung:
        pages = {page: client.get(f"/chrono/{page}") for page in PAGES}
        figures = client.get("/chrono/metrics", HTTP_AUTHORIZATION=f"Bearer {TOKEN}")
        health = client.get("/chrono/healthz")

    assert hung.attempts == 1
    for page, answer in pages.items():
        assert (answer.status_code, "Redis does not answer" in answer.content.decode()) == (200, True), page
    assert figures.status_code == 200 and b'chrono_reachable{of="redis"} 0.0' in figures.content
    assert health.status_code == 503 and health.json()["checks"]["redis"] == "away"


def test_the_api_answers_and_says_what_redis_has_not_heard(hung):
    job()
    caller = Client(headers={"Authorization": f"Bearer {keys.create('default', keys.SCOPES).secret}"})

    def call(method, path, body=None):
        return getattr(caller, method)(f"/chrono/api/v1{path}", body, content_type="application/json")

    with hung:
        made = call("post", "/jobs", {"name": "report", "task": "shop.report", "cron": "0 9 * * *"})
        path = f"/jobs/{made.json()['id']}"
        paused, run = call("post", path + "/pause", {}), call("post", path + "/trigger", {})
        cancelled = call("post", f"/executions/{run.json()['id']}/cancel", {})
        used, deleted = call("get", "/tenant/usage"), call("delete", path)

    assert hung.attempts == 1
    assert (made.status_code, run.status_code, used.status_code) == (201, 201, 200)
    assert (paused.status_code, paused.json()["not_yet_voided"]) == (202, True)
    assert (cancelled.status_code, cancelled.json()["not_yet_told"]) == (202, True)
    assert (deleted.status_code, deleted.json()["not_yet_voided"]) == (202, True)
    assert (used.json()["running"], used.json()["waiting"]) == (None, None)


def test_an_action_of_the_admin_on_many_jobs_waits_for_redis_once(hung, client):
    client.force_login(User.objects.create_superuser("ada"))
    chosen = [str(job(f"job {n}").pk) for n in range(4)]
    with hung:
        answer = client.post("/admin/chrono_beat/job/", {
            "action": "pause_jobs", "_selected_action": chosen, "chosen": ",".join(chosen), "confirmed": "1"}, follow=True)

    assert hung.attempts == 1
    assert "It is saved, but Redis cannot be reached" in answer.content.decode()
    assert PendingVoid.objects.filter(told=False).count() == 4


def test_doctor_and_top_say_so_too(hung):
    with hung:
        found, seen = doctor.examine(), overview.read()

    assert hung.attempts == 1
    wrong = {finding.check: finding.message for finding in found if finding.message.startswith("Redis does not answer")}
    assert wrong.keys() == {"redis", "clocks", "workers"}
    assert seen.redis_away


def test_a_plain_task_is_tried_once_where_somebody_waits_for_it_to_be_sent(hung):
    app = Celery("web", broker="memory://", set_as_current=False)
    ChronoBeat(app)
    wiring.forget()
    with hung, pytest.raises(OperationalError, match="no answer a moment ago"):
        app.send_task("shop.report", queue="chrono")

    assert hung.attempts == 1
