"""Jobs with a URL in the database: what a worker reads of them, what nobody else does, and secrets that are replaced."""
import json

import pytest

from chrono_beat.core.callback import MASK
from chrono_beat.core.errors import InvalidInput, StoreUnavailable
from chrono_beat_django import jobs, tenant_secrets, tenants, wiring
from chrono_beat_django.models import Execution, Job, JobEvent, Tenant
from chrono_beat_django.store import http_targets

pytestmark = pytest.mark.django_db

URL = "https://shop.example/hooks/report"
HEADERS = {"Authorization": "Bearer s3cret", "X-Shop": "berlin"}


@pytest.fixture
def job():
    return jobs.create(name="hook", url=URL, cron="0 9 * * *", kwargs='{"a": 1.0}', headers=HEADERS, timeout=5)


def test_a_url_makes_an_http_target_that_a_worker_reads_when_it_calls(job):
    assert (job.target_kind, job.task, job.url, job.timeout_seconds) == ("http", "chrono_beat.http", URL, 5.0)

    target = wiring.http_target(str(job.id), "none")
    assert (target.url, target.body, target.timeout_seconds, target.secrets) == (URL, '{"a": 1.0}', 5.0, ())
    assert json.loads(target.headers) == HEADERS
    jobs.delete(job)
    assert wiring.http_target(str(job.id), "none") is None


def test_an_executions_own_arguments_go_before_the_jobs(job):
    execution = jobs.trigger(job)
    Execution.objects.filter(id=execution.id).update(kwargs='{"b": 2}')

    assert wiring.http_target(str(job.id), execution.id).body == '{"b": 2}'


def test_the_audit_never_has_the_value_of_a_secret_header(job):
    jobs.update(job, headers={**HEADERS, "Authorization": "Bearer other5"})
    jobs.delete(job)

    told = "".join(JobEvent.objects.values_list("detail", flat=True))
    assert "s3cret" not in told and "other5" not in told and MASK in told and "berlin" in told


def test_a_mask_that_comes_back_stands_for_what_is_stored(job):
    jobs.update(job, headers={"Authorization": MASK, "X-Shop": "rome"})

    assert json.loads(Job.objects.get().headers) == {"Authorization": "Bearer s3cret", "X-Shop": "rome"}
    with pytest.raises(InvalidInput, match="mask"):
        jobs.update(job, headers={"X-Other-Token": MASK})


def test_a_change_of_target_leaves_nothing_of_the_old_one(job):
    changed = jobs.update(job, target_kind="task", task="shop.report")
    assert (changed.task, changed.url, changed.timeout_seconds, changed.headers) == ("shop.report", "", None, "")

    changed = jobs.update(job, target_kind="message", queue="mail")
    assert (changed.task, changed.queue, changed.pool) == ("shop.report", "mail", "chrono.relay")

    changed = jobs.update(job, target_kind="http", url=URL)
    assert (changed.task, changed.queue, changed.pool) == ("chrono_beat.http", "", "")
    with pytest.raises(InvalidInput, match="target_kind"):
        jobs.update(job, queue="mail")


def test_an_http_target_is_tried_three_times_unless_it_says_otherwise(job):
    execution = jobs.trigger(job)

    assert wiring.store().open_executions([execution.id])[execution.id].retry.max_attempts == 3


def test_a_secret_is_shown_once_and_signs_beside_the_new_one_until_the_rotation_ends(job):
    first = tenant_secrets.rotate_webhook_secret("default")
    second = tenant_secrets.rotate_webhook_secret(Tenant.objects.get(slug="default"))

    assert first.startswith("whsec_") and first != second
    assert wiring.http_target(str(job.id), "").secrets == (second, first)
    assert tenant_secrets.end_webhook_rotation("default") is True
    assert tenant_secrets.end_webhook_rotation("default") is False
    assert wiring.http_target(str(job.id), "").secrets == (second,)


def test_a_database_that_is_away_is_told_as_that(job, monkeypatch):
    from django.db import OperationalError

    def broken(*_):
        raise OperationalError("gone")

    monkeypatch.setattr(http_targets, "_read", broken)
    monkeypatch.setattr(http_targets.connections["default"], "close", lambda: None)
    with pytest.raises(StoreUnavailable):
        wiring.http_target(str(job.id), "")


def test_the_form_shows_no_secret_and_keeps_what_was_not_touched(job, admin_client):
    page = f"/admin/chrono_beat/job/{job.id}/change/"
    form = admin_client.get(page).context["adminform"].form
    text = admin_client.get(page).content.decode()
    assert "s3cret" not in text and "berlin" in text

    posted = {name: "" if (value := form[name].value()) is None else value for name in form.fields}
    posted.pop("paused", None)
    answer = admin_client.post(page, {**posted, "note": "looked at"})
    assert answer.status_code == 302, answer.context["adminform"].form.errors
    stored = Job.objects.get()
    assert (stored.note, stored.task, json.loads(stored.headers)) == ("looked at", "chrono_beat.http", HEADERS)


def test_a_tenant_cannot_take_the_relays_pool():
    with pytest.raises(InvalidInput, match="belongs to the relay"):
        tenants.move("default", "chrono.relay")
