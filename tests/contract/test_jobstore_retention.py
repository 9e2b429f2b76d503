"""What every JobStore removes when it is too old: rows by their tenant's own retention, in bounded batches (R167)."""
from __future__ import annotations

import pytest
from django.test.utils import CaptureQueriesContext

from chrono_beat.core.ids import from_us
from chrono_beat.core.records import Ending
from chrono_beat_django import models

DAY = 86_400_000_000
MONTH = 30 * DAY


@pytest.fixture
def ended(bench, store):
    """Add an execution of a tenant that ended so many days ago."""
    now_us = store.now_us()

    def add(tenant, days):
        job = bench.add_job(f"{tenant}-{days}", tenant=tenant)
        key = bench.add_execution(job, now_us - days * DAY)
        store.record([], [Ending(key, "succeeded", "", now_us - days * DAY, "w", 1, "")], [])
        return key

    return add


def left(bench):
    return {row.tenant: len([r for r in bench.rows() if r.tenant == row.tenant]) for row in bench.rows()}


def test_a_tenants_own_retention_goes_before_the_deployments(bench, store, ended):
    bench.add_tenant("short", retention_days=2)
    bench.add_tenant("long", retention_days=90)
    for tenant in ("short", "long", "default"):
        for days in (1, 3, 31, 91):
            ended(tenant, days)

    while store.keep(store.now_us(), MONTH, 2):
        pass

    assert left(bench) == {"short": 1, "default": 2, "long": 3}


def test_r167_what_is_removed_goes_in_batches_of_bounded_size(bench, store, ended):
    bench.add_tenant("short", retention_days=2)
    for number in range(7):
        ended("short", 3 + number)
        ended("default", 1 + number)

    assert [store.keep(store.now_us(), MONTH, 3) for _ in range(4)] == [3, 3, 1, 0]
    assert left(bench) == {"default": 7}


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def engine(request):
    """The two databases."""
    return request.getfixturevalue(f"{request.param}_bench")


def test_r167_old_changes_answers_closed_alerts_and_fires_of_beat_go_a_batch_at_a_time_with_the_same_few_statements(engine):
    alias, now_us = engine.alias, engine.store.now_us()
    engine.add_tenant("long", retention_days=60)
    for model in (models.StoredAnswer, models.Alert, models.BeatFire, models.BeatWatch):
        model.objects.using(alias).all().delete()
    job_id = models.new_job_id()
    for number, days in enumerate((1_000, 999, 998, 719, 1, 0)):
        at = from_us(now_us - days * DAY)
        models.JobEvent.objects.using(alias).create(at=at, job_id=job_id, tenant="default", action="x")
        models.StoredAnswer.objects.using(alias).create(created_at=at, tenant="default", key=str(number))
        models.Alert.objects.using(alias).create(kind="closed", subject=str(number), first_at=at, last_at=at, closed_at=at)
        models.Alert.objects.using(alias).create(kind="open", subject=str(number), first_at=at, last_at=at)
        models.BeatFire.objects.using(alias).create(origin="beat_schedule:a", name="a", task="t", sent_at=at)
        models.BeatWatch.objects.using(alias).create(scheduler="s", began_at=from_us(0), seen_until=at)

    went, statements = [], []
    for _ in range(4):
        with CaptureQueriesContext(engine.connection) as asked:
            went.append(engine.store.prune(now_us, MONTH, 2))
        statements.append(len([query for query in asked if query["sql"].startswith(("SELECT", "DELETE"))]))

    assert (went, set(statements)) == ([2, 2, 0, 0], {6})
    assert models.JobEvent.objects.using(alias).count() == 3
    assert models.StoredAnswer.objects.using(alias).count() == 2
    assert [models.Alert.objects.using(alias).filter(kind=kind).count() for kind in ("open", "closed")] == [6, 2]
    assert [model.objects.using(alias).count() for model in (models.BeatFire, models.BeatWatch)] == [2, 2]
