"""What a tenant may have and create, under concurrency, in every way in."""
from datetime import timedelta

import pytest
from django.db import transaction

from chrono_beat.core.errors import Conflict, InvalidInput, QuotaExceeded
from chrono_beat_django import jobs, tenants
from chrono_beat_django.models import Job, Tenant
from chrono_beat_django.store import quotas
from chrono_beat_django.store.definitions import UnknownTenant
from tests.crowd import at_once
from tests.django.test_jobs import NOON, clock, composition, create, create_at, queue  # noqa: F401

pytestmark = pytest.mark.django_db(transaction=True)


def limit(**values):
    Tenant.objects.filter(slug="default").update(**values)


def test_the_limit_of_jobs_says_what_is_used_and_that_waiting_does_not_help():
    limit(max_jobs=1)
    create(name="1")

    with pytest.raises(QuotaExceeded, match="delete some or raise max_jobs") as refused:
        create(name="2")

    error = refused.value
    assert (error.limit, error.usage, error.retry_after_seconds, error.field) == (1, 1, None, "tenant")


def test_a_tenant_creates_a_burst_and_then_at_its_rate(clock):  # noqa: F811
    limit(create_rate=2, create_burst=2)
    create(name="1")
    create(name="2")

    with pytest.raises(QuotaExceeded, match="try again in 0.500 seconds") as refused:
        create(name="3")

    assert refused.value.retry_after_seconds == 0.5
    clock.now += timedelta(seconds=0.5)
    create(name="3")


def test_a_create_that_fails_or_is_rolled_back_costs_nothing():
    limit(create_rate=0.001, create_burst=2)
    create(name="1")
    with pytest.raises(Conflict):
        create(name="1")
    with pytest.raises(InvalidInput):
        create(name="2", cron="nonsense")
    with transaction.atomic():
        create(name="2")
        transaction.set_rollback(True)

    create(name="2")

    with pytest.raises(QuotaExceeded):
        create(name="3")


def test_the_jobs_of_a_tenant_with_many_are_counted_once_a_minute_and_at_the_limit(clock, monkeypatch):  # noqa: F811
    counts, really = [], quotas.unfinished
    monkeypatch.setattr(quotas, "MANY", 2)
    monkeypatch.setattr(quotas, "unfinished", lambda *given: counts.append(given) or really(*given))
    limit(max_jobs=6)
    for number in range(5):
        create(name=str(number))
    assert len(counts) == 3                                     # of none, of one, and of two, which are many here

    jobs.delete(jobs.get("default", "0"))
    create(name="fifth")
    create(name="sixth")
    with pytest.raises(QuotaExceeded):
        create(name="seventh")
    assert len(counts) > 3
    jobs.delete(jobs.get("default", "fifth"))
    jobs.delete(jobs.get("default", "sixth"))
    create(name="seventh")

    Job.objects.bulk_create(Job(tenant="default", name=f"by hand {number}") for number in range(1))
    clock.now += timedelta(minutes=1)
    with pytest.raises(QuotaExceeded):
        create(name="eighth")


def test_a_job_that_is_over_is_not_run_again_beyond_the_limit(clock):  # noqa: F811
    """The way around a quota: finish, fill up, revive."""
    limit(max_jobs=1)
    over = create_at(NOON + timedelta(minutes=1))
    Job.objects.filter(id=over.id).update(finished_at=NOON, next_run_at=None)
    other = create(name="other")

    with pytest.raises(QuotaExceeded):
        jobs.update(over, at=NOON + timedelta(hours=1))

    assert Job.objects.get(id=over.id).finished_at == NOON
    jobs.delete(other)
    assert jobs.update(over, at=NOON + timedelta(hours=1)).finished_at is None


@pytest.mark.parametrize("limits", [{"max_jobs": 5}, {"create_rate": 0.001, "create_burst": 5}])
def test_callers_at_the_same_time_get_never_one_too_many(limits):
    limit(**limits)

    def work(number):
        refused = 0
        for n in range(3):
            try:
                create(name=f"{number}-{n}")
            except QuotaExceeded:
                refused += 1
        return refused

    assert (sum(at_once(4, work)), Job.objects.count()) == (7, 5)


@pytest.mark.parametrize("given", [{"args": ["x" * 262_145]}, {"kwargs": {"x": "y" * 262_145}}, {"headers": {"x": "y" * 8_193}}])
def test_what_is_too_large_is_refused_in_creates_and_updates(given):
    job = create()
    for call in (lambda: create(name="large", **given), lambda: jobs.update(job, **given)):
        with pytest.raises(InvalidInput) as refused:
            call()
        assert refused.value.problems[0].code == "too_large"


# -- tenants ----------------------------------------------------------------------------------------------------------


def test_a_tenant_is_created_and_changed_with_its_limits():
    made = tenants.create("acme", weight=3, max_jobs=7, create_burst=5)
    changed = tenants.update("acme", max_jobs=8, pool="chrono.gold")

    assert (made.weight, made.max_jobs, made.create_burst) == (3, 7, 5)
    assert (changed.weight, changed.max_jobs, changed.pool) == (3, 8, "chrono.gold")


def test_a_tenant_that_is_wrong_is_refused_with_all_that_is_wrong():
    with pytest.raises(InvalidInput) as refused:
        tenants.create("no slug", weight=0, create_rate="fast", pool="other", colour="red")

    assert {problem.field for problem in refused.value.problems} == {"slug", "weight", "create_rate", "pool", "colour"}
    with pytest.raises(UnknownTenant):
        tenants.update("nobody", weight=1)
    with pytest.raises(Conflict):
        tenants.create("default")


def test_usage_says_what_is_used_of_which_limit(queue):  # noqa: F811
    """What runs and waits is what Redis says, in the tenant's pools and in no other tenant's."""
    limit(max_jobs=5, create_rate=1, create_burst=10, max_running=3, pool="chrono.gold")
    create()
    queue.runs = {"default": 2, "other": 9}
    queue.waits = {("chrono", "default"): 1, ("chrono.gold", "default"): 4, ("chrono", "other"): 9}

    found = tenants.usage("default")

    assert (found.jobs, found.max_jobs, found.create_tokens, found.create_burst) == (1, 5, 9.0, 10)
    assert (found.running, found.max_running, found.waiting) == (2, 3, 5)
    queue.away = True
    assert (tenants.usage("default").running, tenants.usage("default").waiting) == (None, None)
