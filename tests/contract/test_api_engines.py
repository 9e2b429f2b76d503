"""The HTTP API under requests at the same time, on each real engine."""
import json
import threading

import pytest
from django.test import Client

from chrono_beat.core.config import Config
from chrono_beat_django import keys, wiring
from chrono_beat_django.models import ApiKey, Job, StoredAnswer
from tests.crowd import at_once
from tests.django.fakes import RecordingQueue

JOBS = "/chrono/api/v1/jobs"
REPORT = {"name": "report", "task": "shop.report", "cron": "0 9 * * *"}
CALLERS = 4


class Everything:
    """A database router that knows one database."""

    alias = ""

    def db_for_read(self, model, **hints):
        return self.alias

    db_for_write = db_for_read


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def secret(request, settings):
    """A key of the default tenant in that database, which is everybody's."""
    bench = request.getfixturevalue(f"{request.param}_bench")
    Everything.alias = bench.alias
    settings.DATABASE_ROUTERS = [Everything()]
    for model in (ApiKey, StoredAnswer):
        model.objects.all().delete()
    with wiring.override(queue=RecordingQueue(), config=Config(partitions=8)):
        yield keys.create("default", keys.SCOPES).secret


def sent_at_once(secret, bodies, method="POST", path=JOBS, **headers):
    """Send a request for each body, all at the same time; returns the answers in the order of the bodies."""
    return at_once(len(bodies), lambda number: Client().generic(
        method, path, json.dumps(bodies[number]), content_type="application/json",
        headers={"Authorization": f"Bearer {secret}", **headers}))


def test_identical_posts_at_the_same_time_are_one_job_and_one_answer(secret):
    """Each waits for the first one at the key."""
    for number in range(5):
        answers = sent_at_once(secret, [{**REPORT, "name": f"report {number}"}] * CALLERS, **{"Idempotency-Key": f"k{number}"})

        assert {answer.status_code for answer in answers} == {201}, [answer.content for answer in answers]
        assert len({(answer.content, answer["ETag"]) for answer in answers}) == 1
        assert sorted("Idempotent-Replayed" in answer for answer in answers) == [False, True, True, True]
        assert Job.objects.count() == number + 1


def test_different_posts_with_one_key_at_the_same_time_are_one_job_and_refusals(secret):
    answers = sent_at_once(secret, [{**REPORT, "name": f"report {n}"} for n in range(CALLERS)], **{"Idempotency-Key": "k"})

    assert sorted(answer.status_code for answer in answers) == [201, 422, 422, 422]
    assert Job.objects.count() == 1


def test_one_that_fails_lets_the_next_one_with_its_key_try(secret, monkeypatch):
    """The first one dies in its transaction while the others wait at the key."""
    from chrono_beat_django.api import jobs

    once, create = threading.Lock(), jobs.jobs.create

    def dies_once(**values):
        made = create(**values)
        if once.acquire(blocking=False):
            raise KeyError("lost")
        return made

    monkeypatch.setattr(jobs.jobs, "create", dies_once)
    monkeypatch.setattr(Client, "store_exc_info", lambda *_, **__: None)
    answers = sent_at_once(secret, [REPORT] * CALLERS, **{"Idempotency-Key": "k"})

    assert sorted(answer.status_code for answer in answers) == [201, 201, 201, 500]
    assert Job.objects.count() == 1


@pytest.mark.parametrize(("method", "others"), [("PATCH", 412), ("DELETE", 404)])
def test_of_changes_to_the_version_that_all_have_seen_one_is_made(secret, method, others):
    for number in range(3):
        [made] = sent_at_once(secret, [{**REPORT, "name": f"report {number}"}])
        answers = sent_at_once(secret, [{"note": str(n)} for n in range(CALLERS)], method, f"{JOBS}/{made.json()['id']}",
                               **{"If-Match": made["ETag"]})

        first, *rest = sorted(answer.status_code for answer in answers)
        assert first in (200, 202) and rest == [others] * (CALLERS - 1)     # 202: nothing here tells which voids are in
        assert [job.version for job in Job.objects.filter(name=f"report {number}")] == ([2] if method == "PATCH" else [])
