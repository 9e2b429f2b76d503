"""Operating from the admin's lists: backfills that are counted first, cancelling, and a right for each deed."""
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import Permission, User

from chrono_beat.core import ids
from chrono_beat_django import jobs
from chrono_beat_django.models import Execution, Job, JobEvent
from tests.django.adminkit import NOON, at_noon, create, superuser
from tests.django.test_admin_jobs import act, confirm, told

pytestmark = pytest.mark.django_db

JOBS = "/admin/chrono_beat/job/"
EXECUTIONS = "/admin/chrono_beat/execution/"
SPAN = {"start": "2026-01-05 00:00", "end": "2026-01-07 00:00", "limit": "1000", "pace": "", "token": "one"}

composition = pytest.fixture(autouse=True)(at_noon)
ada = pytest.fixture(superuser)


def ran(job, at, **more):
    return Execution.objects.create(**{
        "id": ids.execution_id(str(job.id), ids.to_us(at), 1), "job_id": job.id, "tenant": job.tenant, "job_name": job.name,
        "scheduled_at": at, "due_at": at, "first_due_at": at, "state": "succeeded"} | more)


def hidden(response):
    form = response.context["form"]
    return SPAN | {"token": form["token"].value(), "counted": form.signature}


def test_a_backfill_is_counted_for_each_job_before_it_is_created(ada):
    daily, hourly = create("daily"), create("hourly", cron="0 * * * *")
    ran(daily, datetime(2026, 1, 5, 3, tzinfo=UTC))
    ran(hourly, datetime(2026, 1, 5, 4, tzinfo=UTC), state="missed")

    counted = act(ada, "backfill_jobs", daily, hourly, **SPAN)

    rows = {row.job.name: row.expected[:3] for row in counted.context["form"].rows}
    assert rows == {"daily": (1, 1, 0), "hourly": (48, 0, 0)}
    assert "Create 49 executions" in counted.content.decode()
    assert Execution.objects.filter(kind="backfill").count() == 0

    created = act(ada, "backfill_jobs", daily, hourly, create="Create", **hidden(counted))

    assert Execution.objects.filter(kind="backfill").count() == 49
    assert told(created) == ["default/daily: 1 executions created, 1 were there.",
                             "default/hourly: 48 executions created, 0 were there."]
    act(ada, "backfill_jobs", daily, hourly, create="Create", **hidden(counted))
    assert Execution.objects.filter(kind="backfill").count() == 49


def test_a_backfill_asks_for_its_span_first(ada):
    asked = act(ada, "backfill_jobs", create())

    assert not asked.context["form"].is_bound
    assert "Read in UTC unless you give an offset" in asked.content.decode()


def test_a_span_that_was_changed_after_the_count_is_counted_anew(ada):
    job = create()
    counted = act(ada, "backfill_jobs", job, **SPAN)

    again = act(ada, "backfill_jobs", job, create="Create", **hidden(counted) | {"start": "2026-01-01 00:00"})

    assert again.context["form"].total == 6
    assert not Execution.objects.exists()


def test_what_is_wrong_with_a_span_is_said_at_its_field(ada):
    refused = act(ada, "backfill_jobs", create(), create="Create", **SPAN | {"end": "2026-01-01", "limit": "0"})

    assert dict(refused.context["form"].errors) == {
        "end": ["must come after start"], "limit": ["must be a whole number from 1 to 10,000"]}


def test_a_backfill_counts_many_jobs_at_the_cost_of_one(ada, django_assert_max_num_queries):
    def cost(chosen):
        with django_assert_max_num_queries(20) as seen:
            act(ada, "backfill_jobs", *chosen, **SPAN)
        return len(seen)

    few = [create(f"a{number}") for number in range(2)]
    many = [create(f"b{number}") for number in range(20)]

    assert cost(few) == cost(many)


def test_a_resume_can_run_all_that_was_missed(ada):
    job = create()
    jobs.pause(job)
    Job.objects.filter(id=job.id).update(paused_at=NOON - timedelta(days=3))

    confirm(ada, "resume_jobs", job, missed="all")

    assert Execution.objects.filter(kind="backfill").count() == 3


def test_executions_are_cancelled_and_those_that_ended_are_told_of(ada):
    job = create()
    waits = ran(job, NOON, state="queued")
    ended = ran(job, NOON - timedelta(days=1))

    response = ada.post(EXECUTIONS, {"action": "cancel_executions", "_selected_action": [waits.id, ended.id]}, follow=True)

    waits.refresh_from_db()
    assert waits.cancel_requested_at == NOON
    assert any("the execution has ended already: it is succeeded" in line for line in told(response))
    assert any(line.startswith("1 execution cancelled") for line in told(response))
    assert JobEvent.objects.filter(action="cancel", actor="ada").count() == 1


@pytest.mark.parametrize(("late", "seen"), [("60", 1), ("1", 2), ("", 3), ("-1", 0), ("soon", 0), ("nan", 0)])
def test_executions_are_filtered_by_how_late_they_started(ada, late, seen):
    job = create()
    for minute, lateness in enumerate((0, 5, 90)):
        at = NOON - timedelta(minutes=minute)
        ran(job, at, started_at=at + timedelta(seconds=lateness))

    page = ada.get(EXECUTIONS, {"late": late, "period": "any"})

    assert len(page.context["cl"].result_list) == seen


@pytest.mark.parametrize(("right", "action"), [
    ("pause_job", "pause_jobs"), ("resume_job", "resume_jobs"), ("trigger_job", "trigger_jobs"),
    ("backfill_job", "backfill_jobs"),
])
def test_each_deed_on_jobs_has_a_right_of_its_own(client, right, action):
    user = User.objects.create_user("bob", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=["view_job", right]))
    client.force_login(user)
    create()

    offered = client.get(JOBS).context["action_form"].fields["action"].choices

    every = {"pause_jobs", "resume_jobs", "trigger_jobs", "backfill_jobs"}
    assert {name for name, _ in offered} & every == {action}


@pytest.mark.parametrize(("right", "action"), [
    ("cancel_execution", "cancel_executions"), ("replay_execution", "replay_letters"),
    ("discard_execution", "discard_letters"),
])
def test_each_deed_on_executions_has_a_right_of_its_own(client, right, action):
    user = User.objects.create_user("bob", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=["view_execution", right]))
    client.force_login(user)
    ran(create(), NOON)

    offered = client.get(EXECUTIONS, {"period": "any"}).context["action_form"].fields["action"].choices

    assert {name for name, _ in offered if name} == {action}
    client.post(EXECUTIONS, {"action": "cancel_executions", "_selected_action": [Execution.objects.get().id]})
    assert right == "cancel_execution" or Execution.objects.get().cancel_requested_at is None


def test_a_filter_without_an_index_looks_through_the_newest_and_says_so(ada, monkeypatch):
    monkeypatch.setattr("chrono_beat_django.admin.executions.MOST_LOOKED_AT", 2)
    job = create()
    for minute in range(5):
        at = NOON - timedelta(minutes=minute)
        ran(job, at, started_at=at + timedelta(seconds=90))

    page = ada.get(EXECUTIONS, {"late": "60", "period": "any"})

    assert len(page.context["cl"].result_list) == 3
    assert told(page) == ["Of so many the newest 2 executions were looked through."]
    assert len(ada.get(EXECUTIONS, {"late": "60", "q": job.name}).context["cl"].result_list) == 5


def test_lists_have_what_is_open_and_what_has_ended_in_one_order(ada, monkeypatch):
    monkeypatch.setattr("chrono_beat_django.admin.executions.ExecutionPage.list_per_page", 2)
    job = create()
    names = [ran(job, NOON - timedelta(minutes=minute), state=state).id
             for minute, state in enumerate(("scheduled", "succeeded", "running", "dead", "queued"))]

    pages = [[row.id for row in ada.get(EXECUTIONS, {"p": str(number), "period": "any"}).context["cl"].result_list]
             for number in (1, 2, 3)]

    assert pages == [names[:2], names[2:4], names[4:]]
