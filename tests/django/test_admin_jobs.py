"""The admin's pages of jobs: the form is a call of the public functions, the list costs the same at any size."""
import re
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import Permission, User
from django.test import override_settings
from django.urls import reverse

from chrono_beat.core import ids
from chrono_beat.core.config import Config
from chrono_beat.core.errors import InvalidInput
from chrono_beat_django import jobs, wiring
from chrono_beat_django.models import Execution, Job, JobEvent, Tenant
from tests.django.fakes import RecordingQueue

pytestmark = pytest.mark.django_db
committing = pytest.mark.django_db(transaction=True)       # slower, but what waits for the commit happens

NOON = datetime(2026, 1, 7, 12, 0, 0, tzinfo=UTC)           # a Wednesday
LIST = "/admin/chrono_beat/job/"
ADD = "/admin/chrono_beat/job/add/"


@pytest.fixture
def queue():
    return RecordingQueue()


@pytest.fixture(autouse=True)
def composition(queue):
    Tenant.objects.get_or_create(slug="default")
    Tenant.objects.get_or_create(slug="acme")
    with wiring.override(queue=queue, now_us=lambda: ids.to_us(NOON), config=Config(partitions=8)):
        yield


def logged_in(client, *permissions, name="ada"):
    """A client of a user who has these permissions; all of them where none is named."""
    user = User.objects.create_user(name, is_staff=True, is_superuser=not permissions)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client.force_login(user)
    return client


@pytest.fixture
def ada(client):
    return logged_in(client)


def create(**given):
    return jobs.create(**{"tenant": "acme", "name": "nightly", "task": "shop.report", "cron": "0 3 * * *"} | given)


def page_of(job):
    return reverse("admin:chrono_beat_job_change", args=[job.pk])


def as_loaded(client, url):
    """What a browser posts when it saves the form that it was given, untouched."""
    form = client.get(url).context["adminform"].form
    values = {}
    for field in form:
        value = field.value()
        if field.field.widget.input_type != "checkbox" if hasattr(field.field.widget, "input_type") else True:
            text = "" if value is None else str(value)
            values[field.html_name] = re.sub("\r\n|\r|\n", "\r\n", text)
        elif value:
            values[field.html_name] = "on"
    return values


def errors_of(response):
    assert response.status_code == 200, "the form was accepted"
    return {field: list(found) for field, found in response.context["adminform"].form.errors.items()}


def told(response):
    return [str(message).translate(dict.fromkeys((0x2068, 0x2069))) for message in response.context["messages"]]


def saved(client, url, values, **changes):
    response = client.post(url, values | changes, follow=True)
    assert response.redirect_chain, response.context["adminform"].form.errors
    return response


def act(client, action, *chosen, **more):
    selected = [str(job.pk) for job in chosen]
    return client.post(LIST, {"action": action, "_selected_action": selected} | more, follow=True)


def confirm(client, action, *chosen, across=False, **more):
    """Ask for a deed and confirm it on the page that comes; *across*: by "select all 30 jobs"."""
    asked = act(client, action, chosen[0], select_across="1", index="0") if across else act(client, action, *chosen)
    assert not asked.redirect_chain and told(asked) == []
    form = {name: asked.context[name] for name in ("chosen", "first", "count")}
    assert form["count"] == len(chosen)
    typed = {field.html_name: field.value() or "" for field in asked.context["form"]}
    return client.post(LIST, typed | {"action": action, "_selected_action": form["first"], "select_across": "1",
                                      "chosen": form["chosen"], "confirmed": "yes"} | more, follow=True)


def at(*parts):
    return datetime(*parts, tzinfo=UTC)


# -- adding -----------------------------------------------------------------------------------------------------------


@committing
def test_a_job_is_created_as_the_api_creates_it(ada, queue):
    response = saved(ada, ADD, as_loaded(ada, ADD), tenant="acme", name="morning", task="shop.report",
                     expression="0 9 * * mon-fri", timezone="Europe/London", kwargs='{ "a":1}')

    job = Job.objects.get(name="morning")
    assert (job.next_run_at, job.version, job.source, job.created_by) == (at(2026, 1, 8, 9), 1, "admin", "ada")
    assert job.kwargs == '{ "a":1}'
    assert job.partition == ids.partition_of("acme", str(job.id), 8)
    assert [(event.action, event.actor) for event in JobEvent.objects.all()] == [("create", "ada")]
    assert queue.wakes
    assert any("next run Thu 2026-01-08 09:00:00+00:00 Europe/London" in line for line in told(response))


def test_a_form_left_as_it_comes_means_the_defaults_of_the_api(ada):
    saved(ada, ADD, as_loaded(ada, ADD), tenant="acme", name="a", task="shop.report", expression="0 3 * * *")
    create(name="b")

    ours, theirs = (Job.objects.filter(name=name).values().get() for name in "ab")
    differing = {column for column in ours if ours[column] != theirs[column]}
    assert differing <= {"id", "name", "partition", "source", "created_by", "created_at", "updated_at"}


def test_what_is_not_posted_is_a_default_too(ada):
    saved(ada, ADD, {"tenant": "acme", "name": "short", "task": "shop.report", "schedule_kind": "cron",
                     "expression": "0 3 * * *", "timezone": "UTC"})

    job = Job.objects.get(name="short")
    assert (job.priority, job.max_duration_seconds, job.args, job.concurrency) == (5, 21_600, "[]", "forbid")


WRONG = {
    "expression": ("99 * * * *", {"cron": "99 * * * *"}, "cron"),
    "timezone": ("Europe/Londn", {"timezone": "Europe/Londn"}, "timezone"),
    "args": ("[1,", {"args": "[1,"}, "args"),
    "kwargs": ("[]", {"kwargs": "[]"}, "kwargs"),
    "headers": ("{", {"headers": "{"}, "headers"),
    "task": ("no task", {"task": "no task"}, "task"),
    "name": ("", {"name": ""}, "name"),
    "tenant": ("nobody", {"tenant": "nobody"}, "tenant"),
    "priority": ("-1", {"priority": -1}, "priority"),
    "max_duration_seconds": ("1e300", {"max_duration": 1e300}, "max_duration"),
    "soft_limit_seconds": ("soon", {"soft_limit": "soon"}, "soft_limit"),
    "misfire_cap": ("0.5", {"misfire_cap": 0.5}, "misfire_cap"),
    "misfire": ("lates", {"misfire": "lates"}, "misfire"),
    "concurrency": ("queue", {"concurrency": "queue"}, "concurrency"),
    "exclusion_group": ("x" * 101, {"exclusion_group": "x" * 101}, "exclusion_group"),
    "pool": ("gold", {"pool": "gold"}, "pool"),
    "start_at": ("soon", {"start": "soon"}, "start"),
    "end_at": ("2026-01-01T00:00:00+00:00", {"end": "2026-01-01T00:00:00+00:00"}, "end"),
    "spread_seconds": ("-5", {"spread": -5}, "spread"),
    "note": ("\0", {"note": "\0"}, "note"),
}


@pytest.mark.parametrize("column", WRONG)
def test_what_is_wrong_is_said_at_its_field_in_the_words_of_the_api(ada, column):
    typed, given, field = WRONG[column]
    with pytest.raises(InvalidInput) as refused:
        create(**{"name": "morning"} | given)
    [problem] = [problem for problem in refused.value.problems if problem.field == field]

    response = ada.post(ADD, as_loaded(ada, ADD) | {
        "tenant": "acme", "name": "morning", "task": "shop.report", "expression": "0 3 * * *"} | {column: typed})

    assert errors_of(response) == {column: [problem.message]}
    assert not Job.objects.exists()


def test_everything_that_is_wrong_is_said_at_once(ada):
    response = ada.post(ADD, as_loaded(ada, ADD) | {
        "name": "", "task": "a b", "expression": "x", "retry_jitter": "2", "max_attempts": "0", "args": "{}"})

    assert errors_of(response).keys() == {"name", "task", "expression", "retry_jitter", "max_attempts", "args"}


def test_a_name_that_is_taken_is_an_error_at_the_name(ada):
    create(name="nightly")

    response = ada.post(ADD, as_loaded(ada, ADD) | {
        "tenant": "acme", "name": "nightly", "task": "shop.report", "expression": "0 3 * * *"})

    assert errors_of(response) == {"name": ['tenant acme has a job named "nightly" already; choose another name']}


def test_arguments_that_are_too_long_are_refused_whatever_their_length(ada):
    values = as_loaded(ada, ADD) | {"tenant": "acme", "name": "big", "task": "shop.report", "expression": "0 3 * * *",
                                    "args": f'["{"x" * 5_000_000}"]'}

    # Django itself refuses what is beyond DATA_UPLOAD_MAX_MEMORY_SIZE, before any form sees it.
    assert ada.post(ADD, values).status_code == 400
    with override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=10_000_000):
        assert errors_of(ada.post(ADD, values)).keys() == {"args"}
    assert not Job.objects.exists()


def test_a_quota_is_told_at_the_tenant(ada):
    Tenant.objects.filter(slug="acme").update(max_jobs=0)

    response = ada.post(ADD, as_loaded(ada, ADD) | {
        "tenant": "acme", "name": "n", "task": "shop.report", "expression": "0 3 * * *"})

    assert errors_of(response).keys() == {"tenant"}


# -- changing ---------------------------------------------------------------------------------------------------------


@committing
def test_a_change_raises_the_version_and_voids_the_old_one_once_committed(ada, queue):
    job = create()

    saved(ada, page_of(job), as_loaded(ada, page_of(job)), expression="30 3 * * *")

    job.refresh_from_db()
    assert (job.version, job.next_run_at) == (2, at(2026, 1, 8, 3, 30))
    assert queue.voids == [(0, str(job.id), 2)]
    event = JobEvent.objects.get(action="update")
    assert (event.actor, event.version) == ("ada", 2)


EVERYTHING = {
    "kwargs": '{"a":\r\n 1}', "args": "[\n1 ]", "note": " two\rlines\n", "headers": '{"x": 1}',
    "start": at(2026, 1, 1, 0, 0, 0, 123_456), "end": at(2027, 3, 4, 5, 6, 7, 8), "soft_limit": 0.1 + 0.2,
    "max_duration": 7.5, "expires_after": 1e6 / 3, "grace": 90, "spread": 60, "misfire_cap": 3,
    "pool": "chrono.gold", "timezone": "Africa/Cairo", "paused": True,
}


@pytest.mark.parametrize("zone", ["UTC", "Africa/Cairo", "Europe/London"])
@pytest.mark.parametrize("given", [
    EVERYTHING, {}, {"cron": None, "every": timedelta(seconds=1.5)}, {"cron": None, "at": at(2031, 12, 3, 16, 11, 57)},
    {"cron": None, "at": at(2026, 10, 25, 0, 30, 0, 1)}, {"cron": None, "at": at(2026, 10, 25, 1, 30)},
])
def test_r087_saving_an_unchanged_form_twice_changes_nothing(ada, given, zone):
    job = create(**given)
    before = Job.objects.filter(pk=job.pk).values().get()

    for _ in range(2):
        with override_settings(TIME_ZONE=zone):
            saved(ada, page_of(job), as_loaded(ada, page_of(job)))

    assert Job.objects.filter(pk=job.pk).values().get() == before
    assert [event.action for event in JobEvent.objects.all()] == ["create"]


def test_a_form_loaded_in_another_zone_keeps_the_instant(ada):
    job = create(cron=None, at=at(2031, 12, 3, 16, 11, 57))
    with override_settings(TIME_ZONE="Africa/Cairo"):
        values = as_loaded(ada, page_of(job))

    saved(ada, page_of(job), values)

    job.refresh_from_db()
    assert (job.version, job.next_run_at) == (1, at(2031, 12, 3, 16, 11, 57))


@override_settings(TIME_ZONE="Africa/Cairo")
def test_a_one_off_that_is_over_can_still_be_saved(ada):
    """Its instant is not a new one, so it is not refused for having passed."""
    with wiring.override(now_us=lambda: ids.to_us(at(2021, 12, 1))):
        job = create(cron=None, at=at(2021, 12, 3, 16, 11, 57))
    Job.objects.filter(pk=job.pk).update(next_run_at=None, finished_at=at(2021, 12, 3, 16, 12))

    for note in ("", "once more"):
        saved(ada, page_of(job), as_loaded(ada, page_of(job)), note=note)

    job.refresh_from_db()
    assert (job.expression, job.version, job.note) == ("2021-12-03T16:11:57Z", 2, "once more")


@override_settings(TIME_ZONE="Africa/Cairo")
def test_r087_an_instant_is_shown_in_one_zone_everywhere_with_the_zone_beside(ada):
    job = create(cron=None, at=at(2031, 12, 3, 16, 11, 57), timezone="Africa/Cairo", name="hold")
    said = "2031-12-03 18:11:57+02:00"

    page = ada.get(page_of(job))
    after = saved(ada, page_of(job), as_loaded(ada, page_of(job)))

    assert page.context["adminform"].form["expression"].value() == said
    assert f"once at {said} Africa/Cairo" in page.context["subtitle"]
    assert "Shown in Africa/Cairo, and read in it" in page.content.decode()
    assert f"once at {said} Africa/Cairo" in ada.get(LIST).content.decode()
    assert any(f"{said} Africa/Cairo" in line for line in told(after))


@override_settings(TIME_ZONE="Europe/London")
def test_a_wall_clock_is_read_in_the_zone_of_the_form(ada):
    values = as_loaded(ada, ADD) | {"tenant": "acme", "task": "shop.report", "schedule_kind": "once"}

    saved(ada, ADD, values, name="summer", expression="2026-07-01 09:00")
    twice = ada.post(ADD, values | {"name": "twice", "expression": "2026-10-25 01:30"})
    never = ada.post(ADD, values | {"name": "never", "expression": "2026-03-29 01:30"})
    saved(ada, ADD, values, name="second", expression="2026-10-25 01:30+00:00")

    assert Job.objects.get(name="summer").next_run_at == at(2026, 7, 1, 8)
    assert errors_of(twice) == {"expression": [
        "2026-10-25 01:30:00 comes twice in Europe/London, where the clock is put back; give it with its offset, "
        "2026-10-25 01:30:00+01:00 or 2026-10-25 01:30:00+00:00"]}
    assert "does not exist in Europe/London" in errors_of(never)["expression"][0]
    assert Job.objects.get(name="second").next_run_at == at(2026, 10, 25, 1, 30)


def test_a_start_in_the_past_does_not_fire_at_once(ada):
    values = as_loaded(ada, ADD) | {"tenant": "acme", "task": "shop.report", "expression": "0 15 * * *"}

    saved(ada, ADD, values, name="earlier", start_at="2026-01-07 11:58")
    saved(ada, ADD, values, name="later", start_at="2026-01-07 15:30")

    assert Job.objects.get(name="earlier").next_run_at == at(2026, 1, 7, 15)
    assert Job.objects.get(name="later").next_run_at == at(2026, 1, 8, 15)


@committing
def test_a_form_that_is_out_of_date_saves_nothing_and_loses_nothing(ada, queue):
    job = create()
    values = as_loaded(ada, page_of(job))
    jobs.update(job, task="shop.other", actor="bob")
    queue.voids.clear()

    response = ada.post(page_of(job), values | {"name": "renamed", "note": "mine"})

    [said] = errors_of(response)["__all__"]
    assert "at version 2, not 1 (update by bob at 2026-01-07 12:00:00 UTC)" in said
    assert response.context["adminform"].form["note"].value() == "mine"
    job.refresh_from_db()
    assert (job.version, job.name, job.task, job.note) == (2, "nightly", "shop.other", "")
    assert queue.voids == []


def test_a_job_that_was_deleted_meanwhile_is_said_to_be_gone(ada):
    job = create()
    values = as_loaded(ada, page_of(job))
    jobs.delete(job)

    response = ada.post(page_of(job), values, follow=True)

    assert "Perhaps it was deleted" in " ".join(told(response))


def test_an_interval_keeps_its_anchor_unless_its_schedule_changes(ada):
    job = create(cron=None, every=600, start=at(2026, 1, 7, 11, 55))

    saved(ada, page_of(job), as_loaded(ada, page_of(job)), note="x")
    job.refresh_from_db()
    assert job.anchor_at == at(2026, 1, 7, 11, 55)

    saved(ada, page_of(job), as_loaded(ada, page_of(job)), expression="60", anchor_at="2026-01-07 12:00:30")
    job.refresh_from_db()
    assert (job.anchor_at, job.next_run_at) == (at(2026, 1, 7, 12, 0, 30), at(2026, 1, 7, 12, 0, 30))


def test_pausing_in_the_form_is_a_pause(ada):
    job = create()

    saved(ada, page_of(job), as_loaded(ada, page_of(job)), paused="on")

    job.refresh_from_db()
    assert (job.paused, job.next_run_at) == (True, None)
    assert JobEvent.objects.latest("id").action == "pause"


def test_a_quarantined_job_says_why_and_is_freed_by_the_correction(ada):
    job = create()
    Job.objects.filter(pk=job.pk).update(args="[1,")
    Job.objects.filter(pk=job.pk).update(quarantined_reason="args: this is no JSON", next_run_at=None)
    page = ada.get(page_of(job)).content.decode()

    refused = ada.post(page_of(job), as_loaded(ada, page_of(job)))
    saved(ada, page_of(job), as_loaded(ada, page_of(job)), args="[1]")

    assert "Quarantined, so it does not run: args: this is no JSON" in page
    assert "[1," in page
    assert errors_of(refused).keys() == {"args"}
    job.refresh_from_db()
    assert (job.quarantined_reason, job.next_run_at, job.args) == ("", at(2026, 1, 8, 3), "[1]")


def test_a_job_broken_by_sql_can_be_seen_and_listed(ada):
    job = create()
    Job.objects.filter(pk=job.pk).update(
        expression="nonsense", timezone="Mars/Base", concurrency="perhaps", max_occurrences=5, schedule_kind="once")

    page, listed = ada.get(page_of(job)), ada.get(LIST)
    response = ada.post(page_of(job), as_loaded(ada, page_of(job)))

    assert page.status_code == listed.status_code == 200
    assert "none can be worked out" in page.content.decode()
    assert {"concurrency", "max_occurrences"} <= errors_of(response).keys()


def test_the_next_ten_runs_are_shown_in_the_zone_of_the_job(ada):
    """The week before the clocks go back: a time that comes twice is fine, and shown once."""
    with wiring.override(now_us=lambda: ids.to_us(at(2026, 10, 22, 12))):
        job = create(cron="30 1 * * *", timezone="Europe/London")
        page = ada.get(page_of(job)).content.decode()

    runs = re.findall(r"<li>(\w{3} [^<]*Europe/London)<", page)
    assert len(runs) == 10
    assert runs[1:4] == ["Sat 2026-10-24 01:30:00+01:00 Europe/London", "Sun 2026-10-25 01:30:00+01:00 Europe/London",
                         "Mon 2026-10-26 01:30:00+00:00 Europe/London"]
    assert "each time runs in the first pass only" in page


def test_what_is_allowed_but_likely_to_hurt_is_said_after_saving(ada):
    response = saved(ada, ADD, as_loaded(ada, ADD), tenant="acme", name="charge", task="shop.charge",
                     expression="0 3 * * *", idempotent="no", max_attempts="3")

    assert any(line.startswith("retry: the job is marked as not idempotent") for line in told(response))


@committing
def test_redis_being_away_is_said_and_stops_nothing(ada, queue):
    job = create()
    queue.away = True

    with pytest.warns(UserWarning, match="Redis could not be told"):
        response = saved(ada, page_of(job), as_loaded(ada, page_of(job)), note="x")

    assert any("Redis cannot be reached" in line for line in told(response))
    assert Job.objects.get().note == "x"
    made = saved(ada, ADD, as_loaded(ada, ADD), name="other", task="shop.report", expression="0 4 * * *")
    assert not any("old version" in line for line in told(made)), "a new job has none"


def test_nothing_typed_is_trusted_as_markup(ada):
    job = create(name="<b>n</b>", note="</textarea><script>")

    for url in (LIST, page_of(job)):
        page = ada.get(url).content.decode()
        assert "<b>n</b>" not in page
        assert "</textarea><script>" not in page


# -- the list ---------------------------------------------------------------------------------------------------------


def executed(job, scheduled_at, state, reason=""):
    return Execution.objects.create(
        id=ids.execution_id(str(job.id), ids.to_us(scheduled_at), 1), job_id=job.id, tenant=job.tenant, state=state,
        job_name=job.name, scheduled_at=scheduled_at, due_at=scheduled_at, first_due_at=scheduled_at, reason=reason)


def test_the_list_shows_what_each_job_is_up_to(ada):
    job = create(timezone="Europe/London")
    executed(job, at(2026, 1, 6, 3), "succeeded")
    executed(job, at(2026, 1, 7, 3), "dead", "timeout")
    executed(job, at(2026, 1, 8, 3), "scheduled")
    create(name="held", paused=True)
    create(name="bad")
    Job.objects.filter(name="bad").update(quarantined_reason="zone: none", next_run_at=None)
    create(name="over", cron=None, at=NOON)
    Job.objects.filter(name="over").update(finished_at=NOON, next_run_at=None)

    rows = {row.name: row for row in ada.get(LIST).context["cl"].result_list}
    page = ada.get(LIST).content.decode()

    assert rows.keys() == {"nightly", "held", "bad"}
    assert "Thu 2026-01-08 03:00:00+00:00 Europe/London" in page
    assert "dead: timeout" in page
    assert "quarantined: zone: none" in page
    for state, names in {"active": {"nightly"}, "paused": {"held"}, "quarantined": {"bad"}, "finished": {"over"},
                         "any": {"nightly", "held", "bad", "over"}}.items():
        found = ada.get(LIST, {"state": state}).context["cl"].result_list
        assert {row.name for row in found} == names


def test_jobs_are_found_by_name_tenant_and_id(ada):
    job = create(name="send reports/daily")
    create(name="sweep")
    create(name="sweep", tenant="default")

    def found(term):
        return {str(row) for row in ada.get(LIST, {"q": term}).context["cl"].result_list}

    assert found("REPORT") == found(str(job.id)) == found("reports/d") == {"acme/send reports/daily"}
    assert found("sweep") == {"acme/sweep", "default/sweep"}
    assert found("acme/sw") == {"acme/sweep"}
    assert ada.get(LIST, {"tenant": "default"}).context["cl"].result_count == 1


def many(count, first=0):
    Job.objects.bulk_create([
        Job(tenant="acme" if number % 2 else "default", name=f"job {number:06}", task="shop.report",
            expression=f"{number % 60} 3 * * *", next_run_at=at(2026, 1, 8, 3), partition=number % 8)
        for number in range(first, first + count)], batch_size=1_000)


def test_r089_r090_pages_cost_the_same_whatever_the_table_holds(ada, django_assert_max_num_queries, monkeypatch):
    monkeypatch.setattr("chrono_beat_django.admin.pages.MOST_COUNTED", 1_000)

    def statements(url, **query):
        with django_assert_max_num_queries(20) as seen:
            assert ada.get(url, query).status_code == 200
        return [query["sql"] for query in seen.captured_queries]

    def costs():
        change = page_of(Job.objects.order_by("name").first())
        return [len(statements(url)) for url in (LIST, ADD, change)]

    many(1)
    costs()                                                     # what a process looks up once
    few = costs()
    many(2_000, first=1)

    assert costs() == few
    page = ada.get(LIST, {"p": 2})
    assert page.context["cl"].result_count == 1_000
    assert "only the first 1000 are counted" in page.content.decode()
    counts = [sql for sql in statements(LIST) if "COUNT(" in sql]
    assert counts and all("LIMIT 1001" in sql for sql in counts)
    [rows] = [sql for sql in statements(LIST, p=2) if "LIMIT 100 OFFSET 100" in sql]
    assert '"kwargs"' not in rows


def test_the_list_is_read_from_an_index():
    from django.db import connection

    many(10)
    plan = Job.objects.unfinished().order_by("tenant", "name", "-pk")[:100].explain()
    if connection.vendor == "sqlite":
        assert "USING INDEX chrono_job_name" in plan


# -- actions ----------------------------------------------------------------------------------------------------------


def test_a_message_writes_a_name_as_it_is(ada):
    """Django begins each message with a capital."""
    page = confirm(ada, "pause_jobs", create(name="a")).content.decode()

    assert "acme/a\u2069: paused." in page and "Acme/a" not in page


def test_jobs_are_paused_resumed_and_run_from_the_list(ada, queue):
    first, second = create(name="a"), create(name="b")

    paused = confirm(ada, "pause_jobs", first, second)
    assert told(paused) == ["acme/a: paused.", "acme/b: paused."]
    assert set(Job.objects.values_list("paused", "next_run_at")) == {(True, None)}

    resumed = confirm(ada, "resume_jobs", first)
    assert told(resumed) == ["acme/a: resumed, next run Thu 2026-01-08 03:00:00 UTC."]

    Job.objects.filter(id=second.id).update(paused_at=NOON - timedelta(days=3))
    caught_up = confirm(ada, "resume_jobs", second, missed="latest")
    assert told(caught_up) == ["acme/b: resumed, next run Thu 2026-01-08 03:00:00 UTC."]
    assert [(row.kind, row.scheduled_at) for row in Execution.objects.all()] == [("backfill", at(2026, 1, 7, 3))]
    Execution.objects.all().delete()

    run = confirm(ada, "trigger_jobs", second)
    execution = Execution.objects.get()
    assert told(run) == [f"acme/b: to be run now as execution {execution.id}."]
    assert (execution.kind, execution.job_id, execution.scheduled_at) == ("manual", second.id, NOON)
    assert {event.actor for event in JobEvent.objects.exclude(action="create")} == {"ada"}


def test_nothing_is_done_before_it_is_confirmed_and_a_page_sent_twice_does_it_once(ada):
    first, second = create(name="a"), create(name="b")
    busy = executed(first, at(2026, 1, 7, 3), "running")
    Execution.objects.update(started_at=at(2026, 1, 7, 3, 0, 1))

    asked = act(ada, "trigger_jobs", first, second)

    page = asked.content.decode()
    assert "Run now 2 jobs?" in page and "since 2026-01-07 03:00:01 UTC" in page and "Thu 2026-01-08 03:00:00 UTC" in page
    assert Execution.objects.exclude(pk=busy.pk).count() == 0
    token = asked.context["form"]["token"].value()
    for _ in range(2):
        confirm(ada, "trigger_jobs", first, second, token=token)
    assert Execution.objects.filter(kind="manual").count() == 2


def test_a_confirmation_takes_the_jobs_it_showed_and_no_other(ada):
    shown, other = create(name="a"), create(name="b")

    confirm(ada, "pause_jobs", shown, note="while the shop moves")

    assert set(Job.objects.values_list("name", "paused", "note")) == {("a", True, "while the shop moves"), ("b", False, "")}
    refused = confirm(ada, "resume_jobs", shown, missed="all", limit="0")
    assert refused.context["form"].errors == {"limit": ["must be a whole number from 1 to 10,000"]}
    confirm(ada, "pause_jobs", other, chosen="nonsense,")
    assert not Job.objects.get(name="b").paused


def test_as_many_jobs_are_confirmed_as_an_action_takes(ada, settings):
    """Django takes a thousand fields of a form at most, here twenty."""
    settings.DATA_UPLOAD_MAX_NUMBER_FIELDS = 20
    many(30)

    confirm(ada, "pause_jobs", *Job.objects.all(), across=True)

    assert Job.objects.filter(paused=True).count() == 30


def test_an_action_that_fails_for_one_job_is_done_for_the_others(ada, monkeypatch):
    first, second, third = (create(name=name) for name in "abc")
    really = jobs.pause

    def pause(job, **how):
        if job.name == "b":
            jobs.delete(job)
        return really(job, **how)

    monkeypatch.setattr(jobs, "pause", pause)
    response = confirm(ada, "pause_jobs", first, second, third)

    assert told(response) == ["acme/a: paused.", "acme/c: paused.", f"acme/b: there is no job {second.id}."]


def test_running_now_says_what_is_in_the_way(ada):
    job = create()
    busy = executed(job, at(2026, 1, 7, 3), "running")
    Execution.objects.update(started_at=at(2026, 1, 7, 3, 0, 1))

    [said] = told(confirm(ada, "trigger_jobs", job))

    assert f"it may be skipped, for {busy.id}, which runs since 2026-01-07 03:00:01 UTC" in said


def test_an_action_takes_no_more_than_a_page_can_wait_for(ada):
    many(1_002)
    job = Job.objects.first()

    response = act(ada, "pause_jobs", job, select_across="1", index="0")

    assert told(response)[0].startswith("Nothing was done: an action takes 1,000 jobs at most")
    assert not Job.objects.filter(paused=True).exists()


@committing
def test_jobs_are_deleted_one_by_one_and_together(ada, queue):
    first, second, third = (create(name=name) for name in "abc")
    executed(first, at(2026, 1, 7, 3), "succeeded")

    ada.post(reverse("admin:chrono_beat_job_delete", args=[first.pk]), {"post": "yes"})
    asked = act(ada, "delete_selected", second, third)
    assert asked.status_code == 200
    assert Job.objects.count() == 2
    act(ada, "delete_selected", second, third, post="yes")

    assert not Job.objects.exists()
    assert [lane_job_version[1] for lane_job_version in queue.voids] == [str(job.id) for job in (first, second, third)]
    assert Execution.objects.count() == 1
    assert {(event.action, event.actor) for event in JobEvent.objects.exclude(action="create")} == {("delete", "ada")}


# -- permissions ------------------------------------------------------------------------------------------------------


def test_who_may_only_look_sees_and_changes_nothing(client):
    job = create(start=at(2026, 1, 1))
    looker = logged_in(client, "view_job", "view_execution", name="eve")

    page = looker.get(page_of(job)).content.decode()
    assert "Thu 2026-01-01 00:00:00 UTC" in page
    assert "shop.report" in page
    assert looker.get(LIST).status_code == 200
    assert looker.get(ADD).status_code == 403
    assert looker.post(page_of(job), {"name": "x"}).status_code == 403
    assert looker.post(reverse("admin:chrono_beat_job_delete", args=[job.pk]), {"post": "yes"}).status_code == 403
    for action in ("pause_jobs", "resume_jobs", "trigger_jobs", "delete_selected"):
        act(looker, action, job, confirmed="yes", chosen=str(job.pk), missed="latest", limit="1")

    assert (Job.objects.get().version, Execution.objects.count()) == (1, 0)


def test_who_may_change_may_not_delete(client):
    job = create()
    editor = logged_in(client, "view_job", "change_job", name="eve")

    act(editor, "delete_selected", job, post="yes")
    confirm(editor, "pause_jobs", job)

    assert Job.objects.get().paused


def test_strangers_are_sent_to_the_login(client):
    assert client.get(LIST).status_code == 302
