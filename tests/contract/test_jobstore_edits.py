"""Edits and rows that go around the store: what the triggers of both engines make of them."""
from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError, connections
from django.utils.timezone import now

from chrono_beat.core import ids
from chrono_beat_django.models import Execution, Job, PendingVoid, Tenant
from chrono_beat_django.store import DjangoJobStore, triggers

LATER = datetime(2030, 1, 2, 9, tzinfo=UTC)


class database:
    """The one that the running test has; helpers are short this way."""

    alias = ""


@pytest.fixture(autouse=True, params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def _database(request):
    database.alias = request.getfixturevalue(f"{request.param}_bench").alias


def on(model):
    return model.objects.using(database.alias)


def job(**values) -> Job:
    return on(Job).create(**{"name": "j", "expression": "0 9 * * *", "task": "a.b", "next_run_at": LATER} | values)


def fresh(row: Job) -> Job:
    return on(Job).get(id=row.id)


def is_now(instant) -> bool:
    return instant is not None and abs(instant - now()) < timedelta(minutes=5)


@pytest.mark.parametrize("column, value", [("expression", "0 1 * * *"), ("timezone", "Asia/Tokyo"), ("end_at", LATER)])
def test_an_update_of_the_schedule_raises_the_version_and_asks_for_planning_anew(column, value):
    row = job()

    on(Job).filter(id=row.id).update(**{column: value})

    seen = fresh(row)
    assert (seen.version, seen.replan, is_now(seen.next_run_at)) == (2, True, True)


@pytest.mark.parametrize("column, value", [("args", "[1]"), ("task", "c.d"), ("priority", 1), ("grace_seconds", 5.0)])
def test_an_update_of_the_content_raises_the_version_and_keeps_the_next_run(column, value):
    row = job()

    on(Job).filter(id=row.id).update(**{column: value})

    assert (fresh(row).version, fresh(row).replan, fresh(row).next_run_at) == (2, False, LATER)


@pytest.mark.parametrize("next_run_at", [LATER, None])
def test_rule07_an_update_of_the_content_carries_over_what_was_claimed_and_has_not_begun(next_run_at):
    """Also the last occurrence of a schedule that is over."""
    row, states = job(name="new name"), {5: "succeeded", 4: "running", 3: "queued", 2: "scheduled", 1: "queued"}
    for minutes, state in states.items():
        at = now() - timedelta(minutes=minutes)
        key = ids.execution_id(str(row.id), ids.to_us(at), 1)
        on(Execution).create(id=key, job_id=row.id, tenant="default", scheduled_at=at, due_at=at, first_due_at=at, state=state)
    on(Job).filter(id=row.id).update(next_run_at=next_run_at)
    store = DjangoJobStore(database.alias)
    epochs = store.take_partitions("a", range(64), 60_000_000)

    on(Job).filter(id=row.id).update(kwargs='{"n": 1}')

    assert (fresh(row).version, fresh(row).plan_version, fresh(row).next_run_at) == (2, 1, next_run_at)
    found = store.load_scheduled(epochs, store.now_us(), 10)
    assert [(states[round((store.now_us() - row.due_us) / 60e6)], row.content.kwargs, row.queued) for row in found] == [
        ("queued", '{"n": 1}', True), ("scheduled", '{"n": 1}', False), ("queued", '{"n": 1}', True)]
    assert set(on(Execution).filter(state__in=("queued", "scheduled")).values_list("job_version", "job_name")) == {
        (2, "new name")}


def test_a_pause_by_sql_takes_the_job_out_of_the_due_index_and_a_resume_plans_from_now():
    row = job()

    on(Job).filter(id=row.id).update(paused=True)
    assert (fresh(row).version, fresh(row).plan_version, fresh(row).next_run_at) == (2, 2, None)
    assert is_now(fresh(row).paused_at)
    on(Job).filter(id=row.id).update(paused=False)
    assert (fresh(row).plan_version, fresh(row).paused_at) == (3, None)

    assert (fresh(row).version, fresh(row).replan, is_now(fresh(row).next_run_at)) == (3, True, True)


def test_mending_a_quarantined_job_by_sql_gives_it_another_chance():
    row = job(args="[")
    assert DjangoJobStore(database.alias).quarantine(str(row.id), 1, "args are not JSON")
    assert (fresh(row).version, fresh(row).next_run_at) == (1, None)

    on(Job).filter(id=row.id).update(args="[]")

    assert (fresh(row).version, fresh(row).quarantined_reason, fresh(row).replan) == (2, "", True)


def test_a_finished_job_stays_finished_whatever_is_written_into_it():
    row = job(finished_at=LATER, next_run_at=None)

    on(Job).filter(id=row.id).update(expression="* * * * *")

    assert (fresh(row).version, fresh(row).next_run_at) == (2, None)


def test_an_edit_that_raises_the_version_itself_is_left_alone():
    row = job()

    on(Job).filter(id=row.id).update(expression="0 10 * * *", version=2, next_run_at=LATER)

    assert (fresh(row).version, fresh(row).replan, fresh(row).next_run_at) == (2, False, LATER)


@pytest.mark.parametrize(
    "column, value", [("note", "x"), ("updated_at", LATER), ("next_run_at", None), ("source", "admin")])
def test_bookkeeping_is_no_edit(column, value):
    row = job()

    on(Job).filter(id=row.id).update(**{column: value})

    assert (fresh(row).version, fresh(row).replan) == (1, False)


def test_a_job_put_in_by_sql_needs_a_name_and_a_schedule_and_is_planned():
    with connections[database.alias].cursor() as cursor:
        cursor.execute("INSERT INTO chrono_job (id, name, expression, task) VALUES (%s, 'by sql', '0 9 * * *', 'a.b')",
                       ["0190000000007000800000000000000a"])

    seen = on(Job).get(name="by sql")
    assert (seen.tenant, seen.args, seen.kwargs, seen.priority, seen.concurrency, seen.version) == (
        "default", "[]", "{}", 5, "forbid", 1)
    assert (seen.replan, is_now(seen.next_run_at)) == (True, True)
    store = DjangoJobStore(database.alias)
    assert [due.replan for due in store.due_jobs([0], store.now_us() + 1_000_000, 10)] == [True]


def test_a_paused_job_put_in_by_sql_is_not_planned():
    assert fresh(job(paused=True, next_run_at=None)).next_run_at is None


def test_a_tenants_limits_are_dated_when_they_change():
    long_ago = datetime(2001, 1, 1, tzinfo=UTC)
    on(Tenant).filter(slug="default").update(updated_at=long_ago)

    on(Tenant).filter(slug="default").update(name="Default")
    assert on(Tenant).get(slug="default").updated_at == long_ago
    on(Tenant).filter(slug="default").update(max_running=3)

    assert is_now(on(Tenant).get(slug="default").updated_at)


def test_a_tenant_that_moves_to_another_pool_takes_along_what_has_not_begun():
    """By SQL, as everywhere else: what was claimed is published anew for the new pool, and the old copies are void."""
    on(Tenant).create(slug="gone")
    moves, own, over, other = (
        job(tenant="gone", name="moves"), job(tenant="gone", name="own", pool="chrono.own"),
        job(tenant="gone", name="over", finished_at=LATER, next_run_at=None), job(name="other"))
    for row, state in ((moves, "queued"), (own, "queued"), (over, "succeeded"), (other, "queued")):
        at = now() - timedelta(minutes=1)
        key = ids.execution_id(str(row.id), ids.to_us(at), 1)
        on(Execution).create(id=key, job_id=row.id, tenant=row.tenant, scheduled_at=at, due_at=at, first_due_at=at, state=state)
    on(PendingVoid).all().delete()
    store = DjangoJobStore(database.alias)
    epochs = store.take_partitions("a", range(64), 60_000_000)

    on(Tenant).filter(slug="gone").update(pool="chrono.gold", name="Gone")

    assert [(fresh(row).version, fresh(row).plan_version, fresh(row).next_run_at) for row in (moves, own, over, other)] == [
        (2, 1, LATER), (1, 1, LATER), (1, 1, None), (1, 1, LATER)]
    assert [(void.job_id, void.version) for void in on(PendingVoid).all()] == [(moves.id, 2)]
    assert [(row.job_id, row.version, row.content.pool, row.queued) for row in store.load_scheduled(epochs, store.now_us(), 9)
            ] == [(str(moves.id), 2, "chrono.gold", True)]

    on(Tenant).filter(slug="gone").update(pool="chrono.gold", weight=2)
    assert fresh(moves).version == 2


def test_a_name_is_taken_as_long_as_its_job_goes_on():
    row = job()
    job(tenant="another")
    on(Job).filter(id=row.id).update(finished_at=LATER, next_run_at=None)
    job()
    assert Job.objects.using(database.alias).of("default").unfinished().count() == 1

    with pytest.raises(IntegrityError):
        job()


@pytest.mark.parametrize("column", ["next_run_at", "start_at", "end_at", "anchor_at"])
def test_instants_that_no_clock_shows_are_refused(column):
    with pytest.raises(IntegrityError):
        job(**{column: datetime(1969, 12, 31, tzinfo=UTC)})


def test_ids_of_jobs_grow_with_time():
    ids = [job(name=str(number)).id for number in range(3)]
    assert sorted(row.version for row in ids) == [7, 7, 7]
    assert ids[0].int >> 80 <= ids[2].int >> 80


def test_r078_a_stale_row_that_is_saved_as_a_whole_counts_as_an_edit():
    """Its version is lower than that below which Redis drops everything: the job would never run again."""
    row = job(args="[1]")
    on(Job).filter(id=row.id).update(timezone="Asia/Tokyo")
    on(Job).filter(id=row.id).update(args="[2]")
    assert (fresh(row).version, fresh(row).plan_version) == (3, 2)

    row.note = "saved late"
    row.save(using=database.alias)

    seen = fresh(row)
    assert (seen.version, seen.plan_version, seen.args, seen.timezone) == (4, 4, "[1]", "UTC")
    assert {(v.job_id, v.version) for v in on(PendingVoid).all()} == {(row.id, 4)}


def test_installing_the_triggers_again_changes_nothing():
    triggers.install(connections[database.alias])
    row = job()
    on(Job).filter(id=row.id).update(expression="0 10 * * *")
    assert fresh(row).version == 2


def test_the_watched_columns_are_all_that_a_run_depends_on():
    """A new column of Job has to be sorted: part of the plan, of the content, or mere bookkeeping."""
    bookkeeping = {"id", "partition", "version", "plan_version", "paused_at", "flagged_reason", "next_run_at", "replan",
                   "quarantined_reason", "note", "source", "origin", "finished_at", "created_at", "updated_at",
                   "created_by"}
    assert {f.column for f in Job._meta.concrete_fields} == {*triggers.PLAN, *triggers.CONTENT, *bookkeeping}
