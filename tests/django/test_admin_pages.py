"""The admin's pages of tenants, executions and what services keep for themselves."""
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission, User
from django.urls import reverse
from django.utils.timezone import now

from chrono_beat.core import ids
from chrono_beat.core.config import Config
from chrono_beat_django import jobs, wiring
from chrono_beat_django.models import Dispatcher, Execution, JobEvent, Tenant
from tests.django.fakes import RecordingQueue

pytestmark = pytest.mark.django_db

TENANTS = "/admin/chrono_beat/tenant/"
EXECUTIONS = "/admin/chrono_beat/execution/"
READ_ONLY = ("execution", "jobevent", "partition", "lane", "dispatcher")


@pytest.fixture(autouse=True)
def composition():
    Tenant.objects.get_or_create(slug="default")
    Tenant.objects.create(slug="acme", weight=3)
    with wiring.override(queue=RecordingQueue(), config=Config(partitions=8)):
        yield


@pytest.fixture
def ada(client):
    client.force_login(User.objects.create_superuser("ada"))
    return client


def create(name="nightly", tenant="acme"):
    return jobs.create(tenant=tenant, name=name, task="shop.report", cron="0 3 * * *")


def page_of(tenant):
    return reverse("admin:chrono_beat_tenant_change", args=[tenant])


def as_loaded(client, url):
    form = client.get(url).context["adminform"].form
    return {field.html_name: "" if field.value() is None else str(field.value()) for field in form
            if field.name != "paused" or field.value()}


def errors_of(response):
    assert response.status_code == 200, "the form was accepted"
    return {field: list(found) for field, found in response.context["adminform"].form.errors.items()}


def told(response):
    return [str(message) for message in response.context["messages"]]


def test_nothing_is_done_for_a_page_of_somebody_elses(ada):
    """Every page that takes a POST asks for Django's token, and a GET does no deed."""
    job = create()
    ada.handler.enforce_csrf_checks = True
    pages = ["job/", "job/add/", f"job/{job.id}/change/", f"job/{job.id}/delete/", "job/preview/", f"job/{job.id}/preview/"]
    pages += [f"{model}/{page}" for model in ("tenant", "apikey", "alertmute") for page in ("", "add/")]
    chosen = {"action": "pause_jobs", "_selected_action": [str(job.id)], "post": "yes"}

    for page in (*pages, "execution/", "alert/"):
        assert ada.post(f"/admin/chrono_beat/{page}", chosen).status_code == 403, page
    ada.get("/admin/chrono_beat/job/", chosen)
    job.refresh_from_db()
    assert not job.paused


# -- tenants ----------------------------------------------------------------------------------------------------------


def test_tenants_are_listed_with_their_jobs_at_the_same_cost_for_any_number(ada, django_assert_max_num_queries):
    def cost():
        with django_assert_max_num_queries(20) as seen:
            ada.get(TENANTS)
        return len(seen)

    create("a")
    create("b")
    few = cost()
    Tenant.objects.bulk_create(Tenant(slug=f"t{number:03}") for number in range(150))

    assert cost() == few
    rows = {tenant.slug: tenant.counted_jobs for tenant in ada.get(TENANTS).context["cl"].result_list}
    assert (rows["acme"], rows["default"], len(rows)) == (2, 0, 100)


def test_a_tenant_is_added_and_changed(ada):
    ada.post(f"{TENANTS}add/", as_loaded(ada, f"{TENANTS}add/") | {"slug": "globex", "weight": "7"})
    tenant = Tenant.objects.get(slug="globex")
    assert (tenant.weight, tenant.max_running, tenant.create_rate) == (7, 20, 100.0)

    ada.post(page_of("globex"), as_loaded(ada, page_of("globex")) | {"paused": "on", "max_running": "5"})
    tenant.refresh_from_db()
    assert (tenant.paused, tenant.max_running, tenant.weight) == (True, 5, 7)


def test_two_who_edit_different_things_of_a_tenant_do_not_undo_each_other(ada, monkeypatch):
    """The second one's row was read before the first one wrote."""
    from chrono_beat_django.admin.tenants import TenantPage

    really = TenantPage.save_model

    def save_model(page, request, obj, form, change):
        Tenant.objects.filter(slug="acme").update(weight=9)
        really(page, request, obj, form, change)

    monkeypatch.setattr(TenantPage, "save_model", save_model)
    ada.post(page_of("acme"), as_loaded(ada, page_of("acme")) | {"max_running": "5"})

    assert Tenant.objects.values_list("weight", "max_running").get(slug="acme") == (9, 5)


@pytest.mark.parametrize(("field", "typed", "said"), [
    ("slug", "a b", '"a b" is not a tenant\'s slug: 1 to 63 letters, digits, - and _'),
    ("weight", "0", "must be from 1 to 1,000"),
    ("weight", "", "must be a whole number, not empty"),
    ("max_running", "-1", "must be from 1 to 1,000,000"),
    ("max_running", "many", "must be a whole number, not a str"),
    ("pool", "gold", '"gold" is not a pool: give chrono, or chrono. and a word such as chrono.gold'),
    ("failure_threshold", "1.5", "must be from 0 to 1"),
    ("spread_seconds", "86401", "must be from 0 to 86,400 seconds"),
    ("retries_paused_until", "soon", '"soon" is not an instant; one looks like 2026-01-02T09:00:00+00:00'),
    ("alert_email", "ada@example.org, bob", '"bob" is not an e-mail address'),
    ("alert_url", "ftp://example.org", '"ftp://example.org" is not an http or https URL'),
])
def test_what_is_wrong_with_a_tenant_is_said_at_its_field(ada, field, typed, said):
    response = ada.post(f"{TENANTS}add/", as_loaded(ada, f"{TENANTS}add/") | {"slug": "globex"} | {field: typed})

    assert errors_of(response) == {field: [said]}
    assert not Tenant.objects.filter(slug="globex").exists()


def test_a_tenant_with_jobs_is_not_deleted_and_the_page_says_why(ada):
    create("nightly")

    one = ada.post(reverse("admin:chrono_beat_tenant_delete", args=["acme"]), {"post": "yes"})
    many = ada.post(TENANTS, {"action": "delete_selected", "_selected_action": ["acme"], "post": "yes"})

    for response in (one, many):
        assert "the jobs of acme, such as nightly: delete them first" in response.content.decode()
    assert Tenant.objects.filter(slug="acme").exists()


def test_a_tenant_without_jobs_is_deleted_and_the_default_one_is_not(ada):
    for slug in ("acme", "default"):
        ada.post(reverse("admin:chrono_beat_tenant_delete", args=[slug]), {"post": "yes"})

    assert list(Tenant.objects.values_list("slug", flat=True)) == ["default"]


# -- executions -------------------------------------------------------------------------------------------------------


def executed(job, at=None, attempt=1, **columns):
    at = at or now().replace(microsecond=0) - timedelta(hours=1)
    return Execution.objects.create(**{
        "id": ids.execution_id(str(job.id), ids.to_us(at), attempt), "job_id": job.id, "tenant": job.tenant,
        "job_name": job.name, "scheduled_at": at, "due_at": at, "first_due_at": at, "attempt": attempt,
        "state": "succeeded"} | columns)


def listed(client, **query):
    return [execution.id for execution in client.get(EXECUTIONS, query).context["cl"].result_list]


def test_an_execution_is_shown_with_its_times_in_utc_and_its_lateness(ada):
    at = datetime(2026, 1, 7, 3, tzinfo=UTC)
    execution = executed(create(), at, state="dead", reason="error", due_at=at + timedelta(seconds=2), deliveries=2,
                         started_at=at + timedelta(seconds=3.5), finished_at=at + timedelta(seconds=4),
                         worker="celery@one", error="ValueError: <no>\nTraceback", args="[1, 2]")

    page = ada.get(reverse("admin:chrono_beat_execution_change", args=[quote(execution.id)])).content.decode()

    for said in ("dead: error", "2026-01-07 03:00:00 UTC", "2026-01-07 03:00:03.500 UTC", "1.500 s", "celery@one",
                 "ValueError: &lt;no&gt;\nTraceback", "[1, 2]", "as the job has them"):
        assert said in page, said


def test_executions_are_found_by_job_and_by_id(ada):
    job, other = create("nightly"), create("weekly")
    old = datetime(2020, 1, 7, 3, tzinfo=UTC)
    first, second = executed(job, old), executed(job, old, attempt=2)
    third = executed(other)
    jobs.delete(job)

    assert listed(ada) == [third.id]                            # a day, since there is something
    assert listed(ada, period="any") == [third.id, second.id, first.id]
    assert listed(ada, q="night") == listed(ada, q="acme/night") == [second.id, first.id]
    assert listed(ada, q="ightly") == []
    assert listed(ada, q=str(job.id)) == listed(ada, job_id=str(job.id)) == [second.id, first.id]
    assert listed(ada, q=first.id) == [first.id]
    assert listed(ada, q=first.id.rpartition(":")[0]) == [second.id, first.id]
    assert listed(ada, q="a:b:1") == []


def test_the_list_of_executions_narrows_by_state_kind_and_tenant(ada):
    job, other = create(), create(tenant="default")
    dead = executed(job, state="dead", kind="manual")
    fine = executed(other)

    assert listed(ada, state__exact="dead") == listed(ada, kind__exact="manual") == [dead.id]
    assert listed(ada, tenant="default") == [fine.id]


def test_the_list_begins_with_what_ran_and_not_with_what_is_due_later(ada):
    job, soon = create(), now() + timedelta(minutes=5)
    ran, stuck = executed(job), executed(job, now() - timedelta(hours=2), state="scheduled")
    claimed = executed(job, soon, state="scheduled")
    retried = executed(job, now() - timedelta(hours=3), state="scheduled", due_at=soon, attempt=2, kind="retry")
    stopped = executed(job, soon + timedelta(seconds=1), state="cancelled", reason="paused")

    assert listed(ada) == [stopped.id, ran.id, stuck.id]
    assert listed(ada, later="yes") == [stopped.id, claimed.id, ran.id, stuck.id, retried.id]
    assert listed(ada, later="only") == [claimed.id, retried.id]
    assert listed(ada, state__exact="scheduled") == [claimed.id, stuck.id, retried.id]
    for asked in ({"job_id": str(job.id)}, {"q": job.name}):
        assert claimed.id in listed(ada, **asked) and claimed.id not in listed(ada, later="no", **asked)
    assert listed(ada, q=retried.id) == [retried.id]


def test_an_idle_deployment_shows_its_last_executions(ada):
    old = executed(create(), datetime(2020, 1, 7, 3, tzinfo=UTC))

    assert listed(ada) == [old.id]


def test_executions_cost_the_same_and_are_counted_up_to_a_bound(ada, django_assert_max_num_queries, monkeypatch):
    for module in ("pages", "executions"):
        monkeypatch.setattr(f"chrono_beat_django.admin.{module}.MOST_COUNTED", 1_000)

    def cost():
        with django_assert_max_num_queries(20) as seen:
            page = ada.get(EXECUTIONS)
        return len(seen), page.context["cl"].result_count

    job, start = create(), now().replace(microsecond=0)
    executed(job)
    cost()                                                      # what a process looks up once
    few, _ = cost()
    Execution.objects.bulk_create([
        Execution(id=f"{job.id}:{number}:1", job_id=job.id, tenant="acme", scheduled_at=at, due_at=at, first_due_at=at)
        for number in range(1_050) for at in [start - timedelta(seconds=number)]], batch_size=1_000)

    assert cost() == (few, 1_000)


# -- permissions ------------------------------------------------------------------------------------------------------


def rows():
    job = create()
    Dispatcher.objects.create(member="one", expires_at=now())
    return {"execution": quote(executed(job).id), "jobevent": JobEvent.objects.get().pk, "partition": 0, "lane": 0,
            "dispatcher": "one"}


@pytest.mark.parametrize("model", READ_ONLY)
def test_what_services_write_is_read_and_never_changed(ada, model):
    key = rows()[model]
    root = f"/admin/chrono_beat/{model}/"

    assert ada.get(root).status_code == ada.get(f"{root}{key}/change/").status_code == 200
    assert ada.get(f"{root}add/").status_code == 403
    assert ada.post(f"{root}{key}/change/", {"worker": "x"}).status_code == 403
    assert ada.post(f"{root}{key}/delete/", {"post": "yes"}).status_code == 403


def test_who_may_only_look_at_tenants_changes_none(client):
    looker = User.objects.create_user("eve", is_staff=True)
    looker.user_permissions.set(Permission.objects.filter(codename="view_tenant"))
    client.force_login(looker)

    assert client.get(TENANTS).status_code == client.get(page_of("acme")).status_code == 200
    assert client.post(page_of("acme"), {"weight": "9"}).status_code == 403
    assert client.post(reverse("admin:chrono_beat_tenant_delete", args=["acme"]), {"post": "yes"}).status_code == 403
    assert client.get(EXECUTIONS).status_code == 403


# -- dead letters -----------------------------------------------------------------------------------------------------

def letter(job, hour, **values):
    at = now() - timedelta(days=3, hours=hour)
    return Execution.objects.create(**{
        "id": ids.execution_id(str(job.id), ids.to_us(at), 1), "job_id": job.id, "tenant": job.tenant, "job_name": job.name,
        "scheduled_at": at, "due_at": at, "first_due_at": at, "finished_at": at, "state": "dead", "reason": "error"} | values)


def handle(client, action, *letters, which="open"):
    data = {"action": action, "_selected_action": [each.pk for each in letters]}
    return client.post(f"{EXECUTIONS}?letters={which}", data, follow=True)


def test_dead_letters_are_found_whatever_their_age_replayed_and_discarded(ada):
    job = create()
    first, second = letter(job, 1), letter(job, 2)
    letter(job, 3, state="succeeded", reason="")
    seen = letter(job, 4, handled_at=now(), handled_as="discarded")

    def listed(which):
        return [row.pk for row in ada.get(EXECUTIONS, {"letters": which}).context["cl"].result_list]

    assert listed("open") == [first.pk, second.pk] and listed("handled") == [seen.pk]

    assert told(handle(ada, "replay_letters", first)) == ["1 dead letter: to be run again."]
    assert told(handle(ada, "discard_letters", second)) == ["1 dead letter: discarded."]
    [refused] = told(handle(ada, "replay_letters", first, which="handled"))

    assert "was replayed at" in refused
    assert Execution.objects.get(kind="replay").scheduled_at == first.scheduled_at
    assert [(event.action, event.actor) for event in JobEvent.objects.order_by("id")][1:] == [
        ("replay", "ada"), ("discard", "ada")]
    page = ada.get(reverse("admin:chrono_beat_execution_change", args=[first.pk])).content.decode()
    assert "replayed, " in page and listed("open") == []


def test_only_who_may_change_executions_handles_dead_letters(client):
    dead = letter(create(), 1)
    user = User.objects.create_user("bob", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_execution"))
    client.force_login(user)

    handle(client, "replay_letters", dead)
    assert not Execution.objects.filter(kind="replay").exists()
    user.user_permissions.add(Permission.objects.get(codename="change_execution"))
    handle(client, "replay_letters", dead)

    assert Execution.objects.filter(kind="replay").exists()
    assert client.get(f"{EXECUTIONS}{quote(dead.pk)}/change/").status_code == 200
    assert "_save" not in client.get(f"{EXECUTIONS}{quote(dead.pk)}/change/").content.decode()
