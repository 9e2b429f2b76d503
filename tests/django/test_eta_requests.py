"""ETA tasks on the Django side: in the caller's transaction, under quotas, and ended by a revoke."""
import json
from datetime import timedelta

import pytest
from django.db import OperationalError, transaction

from chrono_beat.core import ids
from chrono_beat.core.errors import QuotaExceeded, StoreUnavailable
from chrono_beat.core.eta import EtaTask
from chrono_beat_django import dead_letters, eta, executions, tenants, wiring
from chrono_beat_django.models import Execution, Tenant
from chrono_beat_django.store.definitions import UnknownTenant
from tests.django.fakes import RecordingQueue

pytestmark = pytest.mark.django_db(transaction=True)
HOUR_US = 3_600_000_000


@pytest.fixture(autouse=True)
def queue():
    queue = RecordingQueue()
    with wiring.override(queue=queue):
        yield queue


def task(task_id="it", **fields):
    options = json.dumps({"pool": "chrono", "priority": 5, "headers": {}, "embed": {}, "properties": {}})
    return EtaTask(**{"task_id": task_id, "tenant": "default", "partition": 0, "task": "shop.expire", "args": "[]",
                      "kwargs": "{}", "options": options, "retries": 0, "countdown_us": 6 * HOUR_US, **fields})


def test_it_is_listed_as_an_execution_without_a_job():
    key = eta.add(task())

    row = executions.get(key)
    assert (row.kind, row.job_name, row.celery_id, row.state) == ("eta", "shop.expire", "it", "scheduled")
    assert row.due_at - executions.list("default").get().first_due_at == timedelta(0)


def test_what_is_rolled_back_is_never_sent_and_costs_nothing():
    tokens = Tenant.objects.get(slug="default").create_tokens
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        eta.add(task())
        1 / 0  # noqa: B018

    assert not Execution.objects.exists()
    assert Tenant.objects.get(slug="default").create_tokens == tokens


def test_each_message_counts_as_one_creation_but_a_retry_is_let_in():
    Tenant.objects.filter(slug="default").update(create_rate=0.001, create_burst=1)
    eta.add(task("first"))

    with pytest.raises(QuotaExceeded) as refused:
        eta.add(task("second"))
    assert refused.value.retry_after_seconds
    eta.add(task("again", retries=1))
    assert Execution.objects.count() == 2


def test_an_unknown_tenant_is_refused():
    with pytest.raises(UnknownTenant):
        eta.add(task(tenant="nobody"))


def test_a_database_that_breaks_off_is_a_typed_error(monkeypatch):
    def broken(slug):
        raise OperationalError("gone")

    monkeypatch.setattr(eta.store, "lock_tenant", broken)
    with pytest.raises(StoreUnavailable, match="gone"):
        eta.add(task())


def test_a_revoke_cancels_what_waits_and_nothing_else():
    key, other = eta.add(task()), eta.add(task("other"))
    told = []

    assert eta.revoke(["it", "unknown"], told.append) == 1

    rows = {row.id: row for row in Execution.objects.all()}
    assert rows[key].cancel_requested_at and not rows[other].cancel_requested_at
    assert [row.id for row in told] == [key]


def test_a_revoke_that_is_rolled_back_tells_nobody():
    eta.add(task())
    told = []
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        eta.revoke(["it"], told.append)
        1 / 0  # noqa: B018

    assert told == [] and not Execution.objects.get().cancel_requested_at


def test_those_of_a_deleted_tenant_are_cancelled_and_no_others():
    Tenant.objects.create(slug="gone")
    keys = [eta.add(task(f"gone {number}", tenant="gone")) for number in range(3)]
    ended, other = eta.add(task("ended", tenant="gone")), eta.add(task())
    Execution.objects.filter(id=ended).update(state="succeeded", finished_at=ids.from_us(1))

    tenants.delete("gone", actor="ann")

    assert set(Execution.objects.exclude(cancel_requested_at=None).values_list("id", flat=True)) == set(keys)
    assert other not in keys and not Tenant.objects.filter(slug="gone").exists()


def test_r151_a_dead_letter_without_a_job_is_replayed_with_its_own_message():
    key = eta.add(task())
    Execution.objects.filter(id=key).update(state="dead", finished_at=ids.from_us(1))

    made = dead_letters.replay(key)

    row, first = Execution.objects.get(id=made.id), Execution.objects.get(id=key)
    assert (row.kind, row.attempt, row.state, row.partition) == ("replay", 2, "scheduled", first.partition)
    assert (row.task, row.options, row.celery_id, row.args) == (first.task, first.options, "it", "[]")
    assert first.handled_as == "replayed"


def test_what_runs_or_has_ended_is_left_to_the_workers():
    Execution.objects.filter(id=eta.add(task())).update(state="running")
    Execution.objects.filter(id=eta.add(task("done"))).update(state="succeeded")

    assert eta.revoke(["it", "done"], pytest.fail) == 0
