"""Pause, resume and delete of a tenant, on real tables and a Redis in memory."""
from datetime import timedelta

import pytest
from django.db import transaction
from django.urls import reverse

from chrono_beat.core.deliveries import Hold
from chrono_beat.core.errors import Conflict, InvalidInput, NotYetVoidedWarning
from chrono_beat.core.plain import PlainTask
from chrono_beat.core.records import GONE_VERSION
from chrono_beat_django import jobs, tenants, wiring
from chrono_beat_django.models import Execution, Job, JobEvent, PendingVoid, Tenant
from chrono_beat_django.store.definitions import UnknownTenant
from tests.django.test_control import NOON, SECOND, desk  # noqa: F401

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def acme(desk):  # noqa: F811
    Tenant.objects.create(slug="acme", weight=3)
    return [jobs.create(tenant="acme", name=f"j{n}", task="a.b", every=60) for n in range(3)]


def test_inv07_a_pause_stops_draws_in_the_call_and_reports_what_runs(desk, acme):  # noqa: F811
    rows = [desk.row(job) for job in acme]
    for job, row in zip(acme, rows, strict=True):
        desk.publish(job, row)
    running, = desk.queue.draw(0, "chrono", 1, "w1", 60 * SECOND)
    desk.begin(running)

    found = tenants.pause("acme")

    assert [r.execution_id for r in found] == [running.execution_id]
    assert desk.draw() == []
    assert Tenant.objects.get(slug="acme").paused


def test_rule10_a_pause_waits_for_what_was_drawn_and_has_not_begun(desk, acme):  # noqa: F811
    desk.publish(acme[0], desk.row(acme[0]))
    delivery, = desk.draw()
    desk.during = [lambda: desk.begin(delivery)]

    assert [r.begun for r in tenants.pause("acme")] == [True]
    assert desk.waited > 0


def test_inv07_a_resume_fires_nothing_that_fell_into_the_pause(desk, acme):  # noqa: F811
    """Copies that wait in the streams are void before the tenant is drawn from again."""
    jobs.pause(acme[2])
    tenants.pause("acme")
    for job in acme[:2]:
        desk.publish(job, desk.row(job))
    desk.clock.advance(us=3600 * SECOND)

    tenants.resume("acme")

    assert desk.draw() == []
    now = NOON + timedelta(hours=1)
    fresh = list(Job.objects.filter(tenant="acme").order_by("name"))
    assert [job.next_run_at for job in fresh] == [now + timedelta(seconds=60)] * 2 + [None]
    assert [(job.version, job.plan_version) for job in fresh] == [(2, 2), (2, 2), (2, 2)]
    assert not Tenant.objects.get(slug="acme").paused
    assert JobEvent.objects.filter(tenant="acme", action="resume").count() == 2
    job = fresh[0]
    desk.publish(job, desk.row(job, NOON + timedelta(minutes=30)))
    assert len(desk.draw()) == 1


@pytest.fixture
def hourly(desk):  # noqa: F811
    """Three hourly jobs of a tenant that is paused from noon to 15:20, and one that is paused itself."""
    Tenant.objects.create(slug="acme", max_running=20)
    made = [jobs.create(tenant="acme", name=f"j{n}", task="a.b", cron="0 * * * *") for n in range(4)]
    jobs.pause(made[3])
    tenants.pause("acme")
    Tenant.objects.filter(slug="acme").update(paused_at=NOON - timedelta(minutes=1))
    Job.objects.update(created_at=NOON - timedelta(days=9))
    Execution.objects.create(                               # claimed and published meanwhile; skipped; missed
        id=f"{made[0].id}:20260107T150000Z:1", job_id=made[0].id, tenant="acme", state="queued", job_version=1,
        scheduled_at=NOON + timedelta(hours=3), due_at=NOON, first_due_at=NOON)
    desk.clock.advance(us=(3 * 3600 + 20 * 60) * SECOND)
    return made


@pytest.mark.parametrize(("asked", "hours"), [({}, []), ({"missed": "latest"}, [3]), ({"missed": "all"}, [0, 1, 2, 3]),
                                              ({"missed": "all", "limit": 2}, [2, 3])])
def test_r070_a_tenants_resume_makes_up_for_its_pause_only_as_far_as_it_is_asked_to(desk, hourly, asked, hours):  # noqa: F811
    """R070: nothing before the next full hour; asked for the latest, one run of each job that is not paused itself."""
    tenants.resume("acme", actor="ada", **asked)

    made = Execution.objects.filter(kind="backfill").order_by("scheduled_at")
    for job in hourly[:3]:
        found = [row.scheduled_at - NOON for row in made if row.job_id == job.id]
        assert found == [timedelta(hours=hour) for hour in hours]
    assert not made.filter(job_id=hourly[3].id).exists()
    assert {row.job_version for row in made} <= {2} and {row.due_at for row in made} <= {NOON + timedelta(hours=3, minutes=20)}
    nexts = set(Job.objects.filter(paused=False).values_list("next_run_at", flat=True))
    assert nexts == {NOON + timedelta(hours=4)}
    assert Tenant.objects.get(slug="acme").paused_at is None
    assert {event.actor for event in JobEvent.objects.filter(action="resume")} == {"ada"}


def test_a_resume_that_asks_for_nonsense_leaves_the_tenant_paused(desk, hourly):  # noqa: F811
    for asked in ({"missed": "some"}, {"missed": "all", "limit": 0}):
        with pytest.raises(InvalidInput):
            tenants.resume("acme", **asked)

    assert Tenant.objects.get(slug="acme").paused


def test_the_database_dates_a_tenants_pause_however_it_comes_about(desk):  # noqa: F811
    Tenant.objects.create(slug="acme")
    Tenant.objects.filter(slug="acme").update(paused=True)
    since = Tenant.objects.get(slug="acme").paused_at
    tenants.pause("acme")
    Tenant.objects.filter(slug="acme").update(weight=5)

    assert since is not None and Tenant.objects.get(slug="acme").paused_at == since
    Tenant.objects.filter(slug="acme").update(paused=False)
    assert Tenant.objects.get(slug="acme").paused_at is None


def test_a_resume_leaves_the_tenant_paused_where_redis_is_away(desk, acme):  # noqa: F811
    tenants.pause("acme")
    desk.queue.unavailable = True

    with pytest.warns(NotYetVoidedWarning, match="stays paused"):
        tenants.resume("acme")

    assert Tenant.objects.get(slug="acme").paused
    desk.queue.unavailable = False
    tenants.resume("acme")
    assert not Tenant.objects.get(slug="acme").paused


def test_within_a_transaction_a_tenants_pause_and_resume_count_from_its_commit(desk, acme):  # noqa: F811
    with pytest.raises(RuntimeError), transaction.atomic():
        tenants.pause("acme")
        raise RuntimeError
    assert desk.queue.lanes[0].limits == {}

    with transaction.atomic():
        tenants.pause("acme")
        tenants.resume("acme")
        assert desk.queue.lanes[0].limits == {}
    assert not desk.queue.lanes[0].limits["acme"].paused


def test_r076_deleting_a_tenant_drops_all_that_waits_and_keeps_its_history(desk, acme, monkeypatch):  # noqa: F811
    monkeypatch.setattr(tenants, "BATCH", 2)
    rows = [desk.row(job) for job in acme]
    for job, row in zip(acme, rows, strict=True):
        desk.publish(job, row)
    running, = desk.queue.draw(0, "chrono", 1, "w1", 60 * SECOND)
    desk.begin(running)

    found = tenants.delete("acme", actor="ada")

    assert [r.execution_id for r in found] == [running.execution_id]
    assert desk.draw() == []
    assert not desk.queue.lanes[0].streams
    assert not Tenant.objects.filter(slug="acme").exists() and not Job.objects.filter(tenant="acme").exists()
    assert Execution.objects.filter(tenant="acme").count() == 3
    assert JobEvent.objects.filter(tenant="acme", action="delete", actor="ada").count() == 3
    late = wiring.store().superseded(range(8), 10, running=True)
    assert {version for *_, version in late} == {GONE_VERSION} and {key for key, *_ in late} == {row.id for row in rows}
    assert not PendingVoid.objects.filter(told=False).exists()


def waiting_plain_task(desk):  # noqa: F811
    desk.queue.publish_plain(0, [PlainTask("plain:a:1", "acme", "chrono", 5, b"{}")])


def test_a_tenant_whose_deletion_redis_cannot_be_told_stays_until_it_is_deleted_again(desk, acme):  # noqa: F811
    """Else nobody would ever take back the pause that holds its plain tasks."""
    tenants.pause("acme")
    waiting_plain_task(desk)
    desk.queue.unavailable = True

    with pytest.warns(NotYetVoidedWarning, match="delete it again"):
        tenants.delete("acme")

    assert not Job.objects.filter(tenant="acme").exists() and Tenant.objects.get(slug="acme").paused
    desk.queue.unavailable = False
    assert desk.draw() == []
    tenants.delete("acme")
    assert [delivery.execution_id for delivery in desk.draw()] == ["plain:a:1"]
    assert not Tenant.objects.filter(slug="acme").exists()


def test_a_paused_tenant_that_is_deleted_in_the_admin_leaves_no_pause_behind(desk, admin_client):  # noqa: F811
    Tenant.objects.create(slug="acme")
    tenants.pause("acme")
    waiting_plain_task(desk)
    page = reverse("admin:chrono_beat_tenant_delete", args=["acme"])
    desk.queue.unavailable = True
    assert admin_client.post(page, {"post": "yes"}).status_code == 403
    assert desk.queue.lanes[0].limits["acme"].paused
    desk.queue.unavailable = False

    assert admin_client.post(page, {"post": "yes"}).status_code == 302

    assert not Tenant.objects.filter(slug="acme").exists()
    assert [delivery.execution_id for delivery in desk.draw()] == ["plain:a:1"]


def test_a_tenant_is_not_deleted_within_a_transaction_nor_the_default_one(desk, acme):  # noqa: F811
    with pytest.raises(Conflict, match="DEFAULT_TENANT"):
        tenants.delete("default")
    with pytest.raises(Conflict, match="outside"), transaction.atomic():
        tenants.delete("acme")
    for call in (tenants.pause, tenants.resume, tenants.delete):
        with pytest.raises(UnknownTenant):
            call("nobody")


def test_a_tenant_that_is_changed_by_sql_is_told_to_redis_by_the_dispatchers(desk, acme):  # noqa: F811
    Tenant.objects.filter(slug="acme").update(paused=True)
    limits = wiring.store().tenant_limits(1)
    assert {limit.tenant: limit.paused for limit in limits}["acme"]


def test_a_move_voids_in_the_call_what_waits_in_the_old_pool_and_leaves_alone_what_runs(desk, acme):  # noqa: F811
    own = jobs.create(tenant="acme", name="own", task="a.b", every=60, pool="chrono.own")
    for job in acme:
        desk.publish(job, desk.row(job))
    running, = desk.queue.draw(0, "chrono", 1, "w1", 60 * SECOND)

    tenants.move("acme", "chrono.gold")

    assert desk.draw() == []
    assert desk.queue.still_held(0, Hold(running.execution_id, running.token))
    assert not PendingVoid.objects.filter(told=False).exists()
    assert {job.version for job in Job.objects.filter(tenant="acme").exclude(id=own.id)} == {2}
    assert Job.objects.get(id=own.id).version == 1


def test_rule10_a_move_waits_for_what_was_drawn_before_and_reports_what_runs(desk, acme):  # noqa: F811
    for job in acme[:2]:
        desk.publish(job, desk.row(job))
    runs, drawn = desk.draw()
    desk.begin(runs)
    desk.during = [lambda: desk.begin(drawn)]

    running = tenants.move("acme", "chrono.gold")

    assert desk.waited > 0
    assert {(delivery.token, delivery.begun) for delivery in running} == {(runs.token, True), (drawn.token, True)}
    assert desk.waited < 1, "no longer than until it has begun"


@pytest.mark.parametrize(("slug", "pool", "error"), [("acme", "celery", InvalidInput), ("nobody", "", UnknownTenant)])
def test_a_move_that_makes_no_sense_changes_nothing(desk, acme, slug, pool, error):  # noqa: F811
    with pytest.raises(error):
        tenants.move(slug, pool)

    assert Tenant.objects.get(slug="acme").pool == ""


def test_a_move_stands_where_redis_cannot_be_told(desk, acme):  # noqa: F811
    desk.queue.unavailable = True
    with pytest.warns(NotYetVoidedWarning):
        tenants.move("acme", "chrono.gold")

    assert Tenant.objects.get(slug="acme").pool == "chrono.gold"
    assert PendingVoid.objects.filter(told=False).count() == 3
