"""A Celery message that is cancelled while it waits here: its result and its chord hear of it, once, whoever cancels it."""
from types import SimpleNamespace

import pytest
from celery import Celery, chord
from click.testing import CliRunner

from chrono_beat.celery import ChronoBeat, commands
from chrono_beat.core import ids
from chrono_beat.core.deliveries import Hold, Settlement
from chrono_beat.core.errors import NotYetVoidedWarning
from chrono_beat.core.eta import publish_item
from chrono_beat_django import dead_letters, executions, jobs, tenants, wiring
from chrono_beat_django.models import Deployment, Execution, Tenant
from tests.django.adminkit import superuser
from tests.django.test_api import Caller
from tests.django.test_control import CONFIG, LEASE, NOON, SECOND, desk  # noqa: F401

pytestmark = pytest.mark.django_db(transaction=True)

ada = pytest.fixture(superuser)
HOUR = 3600


def nothing(*args):
    """Body of the task."""


class Shop:
    """A Celery app whose far countdowns wait in the database; nobody works for it."""

    def __init__(self):
        Tenant.objects.create(slug="acme")
        self.app = Celery("later", broker="memory://", backend="cache+memory://", set_as_current=False)
        ChronoBeat(self.app)
        self.task = self.app.task(name="eta_cancels.expire", chrono_eta=True, shared=False)(nothing)

    def later(self):
        return self.task.s().set(countdown=6 * HOUR, queue="chrono", headers={"chrono_tenant": "acme"})

    def one(self):
        """Send one; returns its result and its row."""
        result = self.later().apply_async()
        return result, Execution.objects.get(celery_id=result.id)

    def pair(self):
        """Send a chord of two; returns the result of its body, and the rows."""
        body = chord([self.later(), self.later()])(self.task.s())
        return body, list(Execution.objects.order_by("id"))


@pytest.fixture
def shop(desk):  # noqa: F811
    shop = Shop()
    yield shop
    shop.app.close()


def by_api(shop, client, row):
    answer = Caller("acme")("POST", f"/executions/{row.id}/cancel")
    assert answer.status_code == 200, answer.content


def by_admin(shop, client, row):
    client.post("/admin/chrono_beat/execution/?later=yes", {"action": "cancel_executions", "_selected_action": [row.id]})


def by_command(shop, client, row):
    done = CliRunner().invoke(commands.chrono, ["executions", "cancel", row.id], obj=SimpleNamespace(app=shop.app))
    assert done.exit_code == 0, done.output


CANCELS = {
    "a call": lambda shop, client, row: jobs.cancel(row.id), "the API": by_api, "the admin": by_admin, "the command": by_command,
    "a revoke": lambda shop, client, row: shop.app.control.revoke(row.celery_id),
}


@pytest.mark.parametrize("cancel", CANCELS)
def test_its_result_is_revoked_and_its_chord_does_not_wait_for_ever(shop, ada, cancel):
    result, rows = shop.pair()
    cancel = CANCELS[cancel]

    cancel(shop, ada, rows[0])
    assert shop.app.AsyncResult(rows[0].celery_id).status == "REVOKED"
    if cancel is not CANCELS["the admin"]:              # which may not be asked twice
        cancel(shop, ada, rows[0])
    assert result.status == "PENDING", "the other one is still to come, and none is counted twice"
    cancel(shop, ada, rows[1])

    assert result.status == "FAILURE"


def test_so_do_those_of_a_tenant_that_is_deleted(shop):
    result, rows = shop.pair()

    tenants.delete("acme")

    assert {shop.app.AsyncResult(row.celery_id).status for row in rows} == {"REVOKED"}
    assert result.status == "FAILURE"


def test_what_redis_could_not_be_told_is_told_to_celery_when_the_audit_has_told_it(shop, desk):  # noqa: F811
    Deployment.objects.update_or_create(id=1, defaults={"partitions": CONFIG.partitions, "lanes": CONFIG.lanes})
    result, row = shop.one()
    desk.queue.unavailable = True
    with pytest.warns(NotYetVoidedWarning):
        jobs.cancel(row)
    assert result.status == "PENDING", "it may still start"
    desk.queue.unavailable = False

    audit, *_ = wiring.services(("audit",)).services
    audit.step(0)

    assert result.status == "REVOKED" and desk.events() == [("cancelled", row.id)]


def test_what_a_worker_has_drawn_is_left_to_that_worker(shop, desk):  # noqa: F811
    """It knows whether it has begun; here it had, and was done before it heard of the cancel."""
    result, row = shop.one()
    publish_due(desk)
    delivery, = desk.draw()
    desk.during = [lambda: desk.queue.settle(0, "w1", [Settlement(Hold(row.id, delivery.token), "succeeded", {})])]

    jobs.cancel(row)

    assert result.status == "PENDING"


@pytest.mark.parametrize("stored", [False, True])
def test_one_that_a_lost_worker_had_begun_is_told_unless_that_worker_has_told_it(shop, desk, stored):  # noqa: F811
    """Nobody will run it any more; a chord must hear of it, and not twice."""
    result, (lost, other) = shop.pair()
    jobs.cancel(other)
    publish_due(desk)
    [delivery] = desk.draw()
    desk.queue.accept(0, "w1", [Hold(lost.id, delivery.token)])
    Execution.objects.filter(id=lost.id).update(state="running", started_at=NOON)
    if stored:
        shop.app.backend.mark_as_done(lost.celery_id, 42)
    desk.clock.advance(us=LEASE + 1)
    [reaped] = desk.queue.reap(0, 5, 10)
    assert reaped.execution_id == lost.id and not reaped.capped

    jobs.cancel(lost.id)

    assert shop.app.AsyncResult(lost.celery_id).status == ("SUCCESS" if stored else "REVOKED")
    assert result.status == ("PENDING" if stored else "FAILURE"), "what the chord has heard"


def test_a_replay_has_a_result_of_its_own_so_the_first_ones_stays(shop):
    result, row = shop.one()
    Execution.objects.filter(id=row.id).update(state="dead", finished_at=NOON)
    shop.app.backend.mark_as_failure(result.id, ValueError("once"))

    jobs.cancel(dead_letters.replay(row.id))

    assert result.status == "FAILURE"


def test_a_process_without_a_celery_app_cancels_it_and_says_what_is_missing(shop, caplog, monkeypatch):
    result, row = shop.one()
    monkeypatch.setattr("chrono_beat.celery.app.apps", list)

    jobs.cancel(row)

    assert executions.get(row.id).cancel_requested_at and result.status == "PENDING"
    assert "import the project's app" in caplog.text


# -- beside cancels ---------------------------------------------------------------------------------------------------


def publish_due(desk):  # noqa: F811
    """Publish what has waited here as a dispatcher does when it is due."""
    Execution.objects.update(due_at=NOON)
    epochs = wiring.store().take_partitions("d", range(CONFIG.partitions), 10**12)
    items = [publish_item(row, CONFIG) for row in wiring.store().load_scheduled(epochs, ids.to_us(NOON), 100)]
    return desk.queue.publish(0, 1, desk.clock.wall_us() + HOUR * SECOND, items).replies


def test_what_comes_due_while_its_tenant_is_paused_runs_once_when_that_is_resumed(shop, desk):  # noqa: F811
    _, row = shop.one()
    tenants.pause("acme")

    publish_due(desk)
    assert desk.draw() == []
    tenants.resume("acme")

    assert [delivery.execution_id for delivery in desk.draw()] == [row.id]
    assert desk.draw() == [] and desk.events() == []


def test_the_admin_names_its_task_where_another_execution_leads_to_its_job(shop, ada):
    _, row = shop.one()

    page = ada.get(f"/admin/chrono_beat/execution/{row.id.replace(':', '_3A')}/change/").content.decode()

    assert "acme/eta_cancels.expire" in page and f"job/{row.job_id}" not in page


def test_the_command_lists_it_by_its_kind_and_by_its_task(shop):
    _, row = shop.one()
    job = jobs.create(name="expire", task="eta_cancels.expire", cron="0 3 * * *")
    run = desk_row(job)

    def listed(*line, status=0):
        done = CliRunner().invoke(commands.chrono, ["executions", "list", "--from", "2026-01-01T00:00Z", *line],
                                  obj=SimpleNamespace(app=shop.app))
        assert done.exit_code == status, done.output
        return done.output

    shown = listed()
    assert shown.splitlines()[0].split()[:4] == ["scheduled", "tenant", "job", "kind"] and " eta " in shown
    assert row.id in listed("--kind", "eta") and run.id not in listed("--kind", "eta")
    assert row.id in listed("--task", "eta_cancels.expire") and run.id in listed("--task", "eta_cancels.expire")
    assert row.id not in listed("--task", "another")
    assert "--task eta_cancels.expire" in listed("-t", "acme", "--job", "eta_cancels.expire", status=3)
    assert "Error: kind" in listed("--kind", "far", status=2)


def desk_row(job):
    return Execution.objects.create(
        id=ids.execution_id(str(job.id), ids.to_us(NOON), 1), job_id=job.id, tenant=job.tenant, job_name=job.name,
        partition=job.partition, scheduled_at=NOON, due_at=NOON, first_due_at=NOON)
