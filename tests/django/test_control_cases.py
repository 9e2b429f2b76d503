"""Edits, pauses and one-offs that went wrong for users of other schedulers, on real tables with time passed by hand."""
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from chrono_beat.core.ids import to_us
from chrono_beat_django import executions, jobs, wiring
from chrono_beat_django.models import Execution, Job, PendingVoid, Tenant, new_job_id
from tests.django.test_control_matrix import TableWorld
from tests.services.world import NINE, SECOND, us

pytestmark = pytest.mark.django_db(transaction=True)
PLAN = {"kwargs": {"plan": 1}, "task": "tests.noop"}


@pytest.fixture
def make(monkeypatch):
    """Make a world that begins at an instant, with a dispatcher and a worker."""
    PendingVoid.objects.all().delete()
    Tenant.objects.get_or_create(slug="default")
    with pytest.MonkeyPatch.context() as patch:
        def made(start=NINE - timedelta(seconds=72)):
            world = TableWorld(start, patch)
            world.working = True
            world.dispatcher("a")
            over = wiring.override(queue=world.queue, store=world.store, now_us=world.now_us, config=world.config,
                                   wait=lambda seconds: world.run(seconds))
            over.__enter__()
            opened.append(over)
            return world

        opened = []
        yield made
        for over in opened:
            over.__exit__(None, None, None)


def test_r053_a_restart_under_another_zone_of_the_project_fires_what_is_due_and_moves_no_plan(make, settings):
    """1,000 jobs, restarted at 2026-06-01T06:30Z with TIME_ZONE changed from UTC to America/New_York."""
    restart = datetime(2026, 6, 1, 6, 30, tzinfo=UTC)
    settings.TIME_ZONE = "UTC"
    world = make(restart - timedelta(seconds=5))
    zones = ["UTC", "Europe/Berlin", "Asia/Tokyo", "America/New_York"]
    templates = [jobs.create(name=zone, cron="0 9 * * *", timezone=zone, **PLAN) for zone in zones]
    Job.objects.bulk_create(
        Job(**{field.attname: getattr(templates[number % 4], field.attname) for field in Job._meta.concrete_fields}
            | {"id": new_job_id(), "name": f"daily {number}", "partition": number % 8}) for number in range(986))
    due = {str(jobs.create(name=f"due {number}", cron="30 6 * * *", **PLAN).id) for number in range(10)}
    before = dict(Job.objects.exclude(id__in=due).values_list("id", "next_run_at"))
    world.run(5)
    world.kill("a")

    settings.TIME_ZONE = "America/New_York"
    world.dispatcher("b")
    world.run(60)

    assert Counter(key.split(":")[0] for key, _ in world.runs) == Counter(due)
    assert len(before) == 990 and dict(Job.objects.exclude(id__in=due).values_list("id", "next_run_at")) == before
    assert set(Job.objects.filter(id__in=due).values_list("next_run_at", flat=True)) == {restart + timedelta(days=1)}


def test_r068_enabling_a_job_does_not_run_it_at_once(make):
    """Disabled on a Sunday, enabled on the Wednesday two weeks later: first on the next Saturday."""
    sunday, wednesday, saturday = (datetime(2026, 1, day, 10, tzinfo=UTC) for day in (4, 21, 24))
    world = make(sunday - timedelta(seconds=5))
    job = jobs.create(name="j", cron="0 10 * * 6", **PLAN)
    jobs.pause(job)
    world.run(10)
    world.kill("a")
    world.flow.advance(us=to_us(wednesday) - world.now_us())
    world.dispatcher("b")

    resumed = jobs.resume(job)

    world.run(120)
    assert world.begun == []
    assert resumed.next_run_at == saturday and resumed.paused_at is None
    world.kill("b")
    world.flow.advance(us=to_us(saturday) - world.now_us() - 50 * SECOND)
    world.dispatcher("c")
    world.run(60)
    assert [at // SECOND for _, at in world.runs] == [saturday.timestamp()]


def test_r072_a_resume_by_update_fires_at_the_next_minute_or_one_look_ahead_later(make):
    world = make(NINE - timedelta(seconds=55))
    job = jobs.create(name="j", cron="* * * * *", paused=True, **PLAN)
    world.run(5)
    assert Job.objects.get(id=job.id).paused_at is not None

    Job.objects.filter(id=job.id).update(paused=False)
    Job.objects.filter(id=job.id).update(next_run_at=NINE - timedelta(seconds=50))  # SQLite's triggers have the host's clock

    world.run_until(us(seconds=2))
    assert world.begun == [(0, 1)]


def test_r074_a_shorter_interval_counts_from_the_edit(make):
    world = make()
    job = jobs.create(name="j", every=3600, **PLAN)
    world.run(5)
    edited = world.now_us()

    jobs.update(job, every=10, kwargs={"plan": 2})

    world.run(11)
    (row, at), = world.runs
    assert edited + 10 * SECOND <= at <= edited + 11 * SECOND and world.begun[0][1] == 2


def test_r077_a_pause_after_the_claim_stays_and_nothing_fires(make):
    """The claim writes next_run_at alone, and only while the version is the one it read."""
    world = make()
    world.working = False
    job = jobs.create(name="j", every=60, start=NINE, **PLAN)
    world.run_until(us(seconds=0.1))

    jobs.pause(job)

    world.working = True
    world.run(130)
    seen = Job.objects.get(id=job.id)
    assert world.begun == []
    assert (seen.paused, seen.next_run_at, seen.version) == (True, None, 2)


def test_r078_an_edit_just_before_the_fire_is_what_runs_and_what_stays(make):
    world = make()
    job = jobs.create(name="j", cron="0 9 * * *", **PLAN)
    world.run_until(us(seconds=-3))

    jobs.update(job, kwargs={"plan": 2}, pool="chrono", priority=1, cron="0 9 * * mon-fri")
    world.run_until(us(seconds=5))

    seen, row = Job.objects.get(id=job.id), Execution.objects.get(job_id=job.id, scheduled_at=NINE)
    assert world.begun == [(0, 2)]
    assert (seen.kwargs, seen.pool, seen.priority, seen.expression) == (
        '{"plan": 2}', "chrono", 1, "0 9 * * mon-fri")
    assert seen.next_run_at == datetime(2026, 1, 5, 9, tzinfo=UTC)
    assert (row.state, row.job_version) == ("succeeded", 2)


def test_r080_runs_and_the_last_run_are_counted_in_the_rows_and_survive_a_kill(make):
    world = make()
    job = jobs.create(name="j", every=3, start=NINE, **PLAN)
    world.run_until(us(seconds=148))
    world.kill("a")
    world.run(1)
    world.dispatcher("b")
    world.run(20)

    done = jobs.executions(job).filter(state="succeeded")
    assert set(Counter(key for key, _ in world.runs).values()) == {1}
    assert done.count() == len(world.runs) == len({at for at, _ in world.begun})
    assert done.first().scheduled_at == NINE + timedelta(seconds=max(at for at, _ in world.begun))


@pytest.mark.parametrize("after", [1, 2, 5])
def test_r082_r086_a_one_off_runs_once_also_over_a_restart_and_is_over_then(make, after):
    world = make()
    job = jobs.create(name="j", at=NINE, **PLAN)
    world.run_until(us(seconds=after))
    world.kill("a")
    world.dispatcher("b")
    world.run(30)

    seen = Job.objects.get(id=job.id)
    assert world.begun == [(0, 1)]
    assert seen.finished_at is not None and seen.next_run_at is None
    assert [row.state for row in jobs.executions(job)] == ["succeeded"]


def test_r083_a_hundred_one_offs_at_one_instant_all_run(make):
    world = make(NINE - timedelta(seconds=30))
    for number in range(100):
        jobs.create(name=f"j{number}", at=NINE, **PLAN)
    world.run_until(us(seconds=10))

    assert world.begun == [(0, 1)] * 100
    assert Job.objects.filter(finished_at__isnull=True).count() == 0


def test_r091_a_run_now_has_the_jobs_options_and_does_not_move_its_next_run(make):
    world = make()
    job = jobs.create(name="j", cron="0 12 * * *", expires_after=600, pool="chrono.gold", priority=2, headers={"x": "y"},
                      **PLAN)
    seen = []
    stock = world.queue.publish
    world.queue.publish = lambda lane, generation, until, items: (seen.extend(items), stock(lane, generation, until, items))[1]

    row = jobs.trigger(job)
    world.run(3)

    item, = seen
    assert (item.execution_id, item.kind, item.pool, item.priority) == (row.id, "manual", "chrono.gold", 2)
    assert item.expires_us == to_us(row.due_at) + 600 * SECOND and b'"x": "y"' in item.payload.replace(b'":"', b'": "')
    assert Job.objects.get(id=job.id).next_run_at == datetime(2026, 1, 2, 12, tzinfo=UTC)


def test_r165_a_run_that_is_ninety_seconds_late_has_its_instants_and_is_found(make):
    """The worker comes 90 s too late; the occurrence of the minute between is skipped, and says why."""
    world = make()
    job = jobs.create(name="j", every=60, start=NINE, **PLAN)
    world.working = False
    world.run_until(us(seconds=90))
    world.working = True
    world.run_until(us(seconds=100))

    (found,) = executions.list(late=60)
    assert (found.job_id, found.scheduled_at, found.state) == (job.id, NINE, "succeeded")
    assert NINE <= found.published_at < NINE + timedelta(seconds=1)
    assert abs(found.started_at - found.due_at - timedelta(seconds=90)) <= timedelta(seconds=1)
    assert found.started_at <= found.finished_at <= found.started_at + timedelta(seconds=1)
    assert not executions.list(late=91.5).exists()
    (skipped,) = executions.list(state="skipped")
    assert (skipped.scheduled_at, skipped.reason) == (NINE + timedelta(seconds=60), "overlap")
