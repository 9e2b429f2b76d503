"""A job's history, a tenant's usage, API keys; and what every page of the admin costs."""
import json
from datetime import timedelta
from functools import partial

import pytest
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.urls import reverse

from chrono_beat.core import ids
from chrono_beat.core.rollup import bucket_of, histogram, middle_of
from chrono_beat_django import jobs, keys
from chrono_beat_django.models import ApiKey, Dispatcher, Execution, JobEvent, Rollup, Tenant
from tests.django import adminkit
from tests.django.adminkit import NOON, at_noon, superuser
from tests.django.test_admin_jobs import as_loaded, errors_of

pytestmark = pytest.mark.django_db

KEYS = "/admin/chrono_beat/apikey/"
MOST_QUERIES = 20

composition = pytest.fixture(autouse=True)(at_noon)
ada = pytest.fixture(superuser)
create = partial(adminkit.create, actor="ada")


def ran(job, minutes, **more):
    at = NOON - timedelta(minutes=minutes)
    return Execution.objects.create(**{
        "id": ids.execution_id(str(job.id), ids.to_us(at), 1), "job_id": job.id, "tenant": job.tenant, "job_name": job.name,
        "scheduled_at": at, "due_at": at, "first_due_at": at, "state": "succeeded", "started_at": at,
        "finished_at": at + timedelta(seconds=2)} | more)


def history_of(job):
    return reverse("admin:chrono_beat_job_history", args=[job.pk])


def test_a_history_shows_runs_durations_lateness_skips_and_the_last_error(ada):
    job = create()
    ran(job, 4)
    ran(job, 3, state="skipped", reason="overlap", started_at=None)
    ran(job, 2, state="dead", reason="error", error="ValueError: the older")
    ran(job, 1, state="dead", reason="error", error="ValueError: <the newest>",
        started_at=NOON - timedelta(minutes=1) + timedelta(seconds=1.5))

    page = ada.get(history_of(job))

    summary = page.context["summary"]
    assert dict(summary.states) == {"succeeded": 1, "skipped: overlap": 1, "dead: error": 2}
    assert (summary.lateness[2], summary.durations[0]) == ("1.500 s", "2.000 s")
    assert page.context["error"] == "ValueError: <the newest>"
    assert "ValueError: &lt;the newest&gt;" in page.content.decode()


def test_a_history_says_who_changed_what_from_what_to_what_without_secrets(ada):
    job = create(task="", url="https://example.org/hook", headers={"Authorization": "Bearer first-secret"})
    jobs.update(job, priority=2, headers={"Authorization": "Bearer second-secret"}, actor="bob")
    JobEvent.objects.create(at=NOON, job_id=job.id, tenant="default", action="update", detail=json.dumps(
        {"before": {"headers": '{"Authorization": "Bearer third-secret"}'}, "after": {}}))

    page = ada.get(history_of(job))

    changes = {event["actor"]: event["changes"] for event in page.context["events"]}
    assert ("priority", "5", "2") in changes["bob"]
    assert "-secret" not in page.content.decode()


def test_a_history_needs_the_right_to_view_jobs(client):
    client.force_login(User.objects.create_user("bob", is_staff=True))

    assert client.get(history_of(create())).status_code == 403


def test_a_tenant_shows_what_it_uses(ada):
    create()
    Rollup.objects.create(tenant="default", span="minute", start=NOON - timedelta(minutes=5), started=1234, capped_us=2_500_000,
                          lateness=histogram([20_000] * 90 + [1_000_000] * 10), lateness_max_us=1_000_000)

    page = ada.get(reverse("admin:chrono_beat_tenant_change", args=["default"])).content.decode()

    assert "1 of 10,000 jobs" in page
    assert "0 running of 20 that may, 0 queued" in page
    assert "1,234 started, 0 duplicate deliveries, held back by its cap for 2.5 s" in page
    median = middle_of(bucket_of(20_000)) / 1e6
    assert f"started {median:.3f} s late in the median, 1.000 s at the 99th percentile, 1.000 s at most" in page


# -- API keys ---------------------------------------------------------------------------------------------------------


def test_a_key_is_shown_once_when_it_is_made(ada):
    typed = as_loaded(ada, f"{KEYS}add/") | {"tenant": "default", "name": "ci", "rights": ["read", "write"]}

    made = ada.post(f"{KEYS}add/", typed)

    secret = made.context["secret"]
    key = keys.authenticate(secret)
    assert (key.tenant, key.scopes, key.created_by, key.expires_at) == ("default", "read write", "ada", None)
    assert secret in made.content.decode()
    assert "no-store" in made["Cache-Control"]
    for page in (KEYS, reverse("admin:chrono_beat_apikey_change", args=[key.pk])):
        shown = ada.get(page).content.decode()
        assert key.prefix in shown
        assert secret.rpartition("_")[2] not in shown
        assert key.secret_hash not in shown


@pytest.mark.parametrize(("typed", "said"), [
    ({"tenant": "ghost"}, {"tenant": ['there is no tenant "ghost"; create it first']}),
    ({"rights": []}, {"rights": ["must be one or more of read, write, operate"]}),
    ({"expires_in_days": "-1"}, {"expires_in_days": None}),
    ({"expires_in_days": "soon"}, {"expires_in_days": None}),
])
def test_what_is_wrong_with_a_key_is_said_at_its_field(ada, typed, said):
    found = errors_of(ada.post(f"{KEYS}add/", {"tenant": "default", "rights": ["read"]} | typed))

    assert found.keys() == said.keys()
    assert all(sentences is None or found[field] == sentences for field, sentences in said.items())
    assert not ApiKey.objects.exists()


def test_keys_are_revoked_and_neither_changed_nor_deleted(ada):
    made = keys.create("default", ["read"])

    ada.post(KEYS, {"action": "revoke_keys", "_selected_action": [made.row.pk]})

    assert keys.authenticate(made.secret) is None
    assert ada.post(reverse("admin:chrono_beat_apikey_delete", args=[made.row.pk]), {"post": "yes"}).status_code == 403
    assert ada.post(reverse("admin:chrono_beat_apikey_change", args=[made.row.pk]), {"name": "x"}).status_code == 403


def test_only_those_who_may_change_keys_revoke_them(client):
    user = User.objects.create_user("bob", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename="view_apikey"))
    client.force_login(user)
    made = keys.create("default", ["read"])

    client.post(KEYS, {"action": "revoke_keys", "_selected_action": [made.row.pk]})

    assert keys.authenticate(made.secret) is not None


# -- what pages cost --------------------------------------------------------------------------------------------------


def pages(job, execution):
    for model in ("tenant", "job", "execution", "apikey", "jobevent", "partition", "lane", "dispatcher"):
        yield f"/admin/chrono_beat/{model}/"
    yield "/admin/chrono_beat/job/add/"
    yield "/admin/chrono_beat/job/?q=default/night&state=active&tenant=default"
    yield "/admin/chrono_beat/execution/?late=1&period=any"
    yield "/admin/chrono_beat/execution/?q=night"
    yield "/admin/chrono_beat/execution/?letters=open"
    yield f"/admin/chrono_beat/execution/?job_id={job.pk}"
    yield f"/admin/chrono_beat/jobevent/?job_id={job.pk}"
    yield history_of(job)
    for kind, key in (("job", job.pk), ("execution", quote(execution.id)), ("tenant", "default"),
                      ("apikey", ApiKey.objects.first().pk), ("jobevent", JobEvent.objects.first().pk)):
        yield reverse(f"admin:chrono_beat_{kind}_change", args=[key])


def test_every_page_costs_few_statements_and_none_more_for_more_rows(ada, django_assert_max_num_queries):
    def costs():
        found = {}
        ContentType.objects.clear_cache()                # Django remembers them from page to page
        for page in pages(job, execution):
            with django_assert_max_num_queries(MOST_QUERIES) as seen:
                assert ada.get(page).status_code == 200, page
            found[page] = len(seen)
        return found

    job = create()
    execution = ran(job, 1)
    keys.create("default", ["read"])
    Dispatcher.objects.create(member="a", expires_at=NOON)
    ran(create("nightly too"), 1)
    few = costs()
    for number in range(5):
        ran(job, 2 + number)
        ran(create(f"nightly {number}"), 2)
        jobs.update(job, priority=number % 3)
        keys.create("default", ["read"])
        Tenant.objects.create(slug=f"t{number}")

    assert costs() == few


# -- what can be done to a row on its own page ------------------------------------------------------------------------


def buttons(client, url):
    return {name for name, _ in client.get(url).context["deeds"]}


def press(client, url, action):
    page = client.get(url).context
    return client.post(page["deeds_url"], {"_selected_action": page["original"].pk, "action": action}, follow=True)


def test_a_job_is_paused_and_run_from_its_page(ada):
    job = create()
    page = reverse("admin:chrono_beat_job_change", args=[job.pk])

    assert buttons(ada, page) == {"pause_jobs", "trigger_jobs", "backfill_jobs"}
    asked = press(ada, page, "pause_jobs")
    assert [row[0] for row in asked.context["rows"]] == [job]
    jobs.pause(job, actor="ada")
    assert buttons(ada, page) == {"resume_jobs", "trigger_jobs", "backfill_jobs"}
    job.refresh_from_db()
    job.finished_at = NOON
    job.save()
    assert not buttons(ada, page)


def test_a_dead_letter_of_long_ago_is_discarded_on_its_page(ada):
    letter = ran(create(), 60 * 24 * 90, state="dead", reason="error")
    page = reverse("admin:chrono_beat_execution_change", args=[quote(letter.id)])

    assert buttons(ada, page) == {"replay_letters", "discard_letters"}
    press(ada, page, "discard_letters")

    letter.refresh_from_db()
    assert letter.handled_as == "discarded"
    assert not buttons(ada, page)


def test_who_may_only_look_is_offered_nothing_to_do(client):
    job = create()
    ben = User.objects.create_user("ben", is_staff=True)
    ben.user_permissions.add(*Permission.objects.filter(codename__in=["view_job", "view_execution", "cancel_execution"]))
    client.force_login(ben)
    running = ran(job, 1, state="running", finished_at=None)

    assert not buttons(client, reverse("admin:chrono_beat_job_change", args=[job.pk]))
    assert buttons(client, reverse("admin:chrono_beat_execution_change", args=[quote(running.id)])) == {"cancel_executions"}


def test_a_name_written_from_right_to_left_turns_no_schedule_around(ada):
    job = create(name="تقرير", cron="*/2 * * * *")

    text = ada.get(reverse("admin:chrono_beat_job_change", args=[job.pk])).content.decode()

    assert "\u2068default/تقرير\u2069 · */2 * * * * UTC" in text
