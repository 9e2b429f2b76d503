"""The preview beside a job's form: what it would do, before anything is saved."""
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import Permission, User
from django.urls import reverse

from chrono_beat.core import ids
from chrono_beat_django import wiring
from chrono_beat_django.edits import preview_edit
from chrono_beat_django.models import Execution, Job, JobEvent
from tests.django.adminkit import NOON, at_noon, create, superuser
from tests.django.test_admin_jobs import as_loaded

pytestmark = pytest.mark.django_db

ADD = "/admin/chrono_beat/job/add/"
TYPED = "/admin/chrono_beat/job/preview/"

composition = pytest.fixture(autouse=True)(at_noon)
ada = pytest.fixture(superuser)


def page_of(job):
    return reverse("admin:chrono_beat_job_change", args=[job.pk])


def text_of(response):
    assert response.status_code == 200
    return " ".join(response.content.decode().split())


def claimed(job, after, **more):
    """A row that a dispatcher has claimed ahead."""
    at = NOON + after
    execution_id = ids.execution_id(str(job.id), ids.to_us(at), 1)
    return Execution.objects.create(**{
        "id": execution_id, "job_id": job.id, "tenant": job.tenant, "job_name": job.name, "scheduled_at": at, "due_at": at,
        "first_due_at": at} | more)


def soon(job, **changes):
    return [(found.claimed, found.fate) for found in preview_edit(job, changes).soon]


def test_what_is_typed_is_said_in_words_with_its_runs_before_the_rest_is_filled_in(ada):
    seen = text_of(ada.post(TYPED, {"schedule_kind": "cron", "expression": "30 1 28-31 3 *", "timezone": "Europe/London"}))

    assert "At 01:30, on day 28, 29, 30 and 31 of the month" in seen or "between day 28 and 31 of the month" in seen
    assert "Sat 2026-03-28 01:30:00+00:00 Europe/London" in seen
    assert "clocks change in Europe/London on 2026-03-29, forward from 01:00 to 02:00: the run of 01:30 moves to 02:00" in seen
    assert "Name: " in seen, "it says what else is needed"
    assert not Job.objects.exists()


def test_r058_a_time_in_the_next_change_is_taken_by_the_form_and_shown_once(ada):
    with wiring.override(now_us=lambda: ids.to_us(datetime(2018, 10, 22, tzinfo=UTC))):
        typed = as_loaded(ada, ADD) | {"name": "n", "task": "shop.report", "expression": "0 2 * * *",
                                       "timezone": "Europe/Copenhagen"}
        seen = text_of(ada.post(TYPED, typed))
        ada.post(ADD, typed)

    assert seen.count("2018-10-28 02:00:00") == 1 and "Sun 2018-10-28 02:00:00+02:00 Europe/Copenhagen" in seen
    assert Job.objects.get().expression == "0 2 * * *"


def test_r053_a_form_that_is_saved_under_another_zone_of_the_project_plans_nothing_anew(ada, settings):
    job = create(timezone="Europe/London", start=NOON)
    before = Job.objects.values("version", "next_run_at", "start_at", "timezone").get(pk=job.pk)

    settings.TIME_ZONE = "America/New_York"
    typed = as_loaded(ada, page_of(job))
    ada.post(page_of(job), typed)

    assert typed["start_at"] == "2026-01-07 07:00:00-05:00"
    assert Job.objects.values("version", "next_run_at", "start_at", "timezone").get(pk=job.pk) == before


def test_the_button_previews_without_a_script_and_saves_nothing(ada):
    job = create()
    typed = as_loaded(ada, page_of(job)) | {"expression": "0 5 * * *", "note": "typed", "_preview": "Preview"}

    response = ada.post(page_of(job), typed)

    seen = text_of(response)
    assert "At 05:00, on the clocks of UTC" in seen
    assert "Next 10 runs now" in seen
    assert "Thu 2026-01-08 03:00:00 UTC" in seen
    assert "Next 10 runs after saving" in seen
    assert "Thu 2026-01-08 05:00:00 UTC" in seen
    assert response.context["adminform"].form["note"].value() == "typed"
    job.refresh_from_db()
    assert (job.version, job.expression, JobEvent.objects.exclude(action="create").count()) == (1, "0 3 * * *", 0)


def test_a_new_job_is_previewed_without_being_created(ada):
    typed = as_loaded(ada, ADD) | {"name": "morning", "task": "shop.report", "expression": "0 9 * * *", "_preview": "Preview"}

    assert "At 09:00, on the clocks of UTC" in text_of(ada.post(ADD, typed))
    assert not Job.objects.exists()


def test_the_fields_that_differ_are_shown_without_their_secrets(ada):
    job = create(name="call", task="", url="https://example.org/hook", headers={"Authorization": "Bearer old-secret"})
    typed = as_loaded(ada, page_of(job)) | {"headers": '{"Authorization": "Bearer new-secret"}', "priority": "2"}

    seen = text_of(ada.post(f"{page_of(job).removesuffix('change/')}preview/", typed))

    assert '<th scope="row">Priority</th><td>5</td><td>2</td>' in seen
    assert '<th scope="row">Headers</th>' in seen
    assert "old-secret" not in seen
    assert "new-secret" not in seen


def test_an_untouched_form_changes_nothing_and_says_so(ada):
    job = create()

    assert "Saving changes nothing." in text_of(
        ada.post(f"{page_of(job).removesuffix('change/')}preview/", as_loaded(ada, page_of(job))))


def test_the_one_that_is_due_in_seconds_is_told_of(ada):
    job = create()
    claimed(job, timedelta(seconds=20))
    typed = as_loaded(ada, page_of(job)) | {"priority": "2"}

    seen = text_of(ada.post(f"{page_of(job).removesuffix('change/')}preview/", typed))

    assert ("The one due in 20 seconds, at Wed 2026-01-07 12:00:20 UTC, is carried over: it runs with the new content."
            in seen)


def test_what_is_claimed_ahead_is_carried_over_dropped_or_kept_by_what_the_edit_changes():
    """Protocol rule 7."""
    job = create(cron="*/1 * * * *")
    Job.objects.filter(id=job.id).update(next_run_at=NOON + timedelta(minutes=2))
    job.refresh_from_db()
    claimed(job, timedelta(minutes=1))

    assert soon(job, priority=2) == [(True, "is carried over: it runs with the new content")]
    assert soon(job, paused=True) == [(True, "is dropped, for the job is paused")]
    assert soon(job, expression="0 5 * * *") == [(True, "is dropped, for it is of the old schedule")]
    assert soon(job, expression="1 * * * *") == [
        (True, "stays, with the new content: the new schedule names that instant, too")]
    assert soon(job) == []


def test_what_is_queued_or_runs_may_go_on_as_it_began():
    job = create()
    claimed(job, timedelta(seconds=1), state="queued")
    claimed(job, -timedelta(minutes=1), state="running")

    assert soon(job, expression="0 5 * * *") == [
        (True, "runs already, and goes on as it began"),
        (True, "is dropped, for it is of the old schedule; if a worker has begun it meanwhile, it goes on as it began")]


def test_a_run_that_nobody_has_claimed_yet_is_told_of_too():
    job = create(cron="1 * * * *")

    assert soon(job, paused=True) == [(False, "is dropped, for the job is paused")]


def test_only_those_who_may_save_may_preview(client):
    user = User.objects.create_user("bob", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename="view_job"))
    client.force_login(user)
    job = create()

    assert client.post(TYPED, {}).status_code == 403
    assert client.post(f"{page_of(job).removesuffix('change/')}preview/", {}).status_code == 403
    assert client.get(TYPED).status_code in (403, 405)
    assert "chrono-preview" not in client.get(page_of(job)).content.decode()
