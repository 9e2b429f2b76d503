"""After an update of the zone data every plan is by the new ones: none is lost, none is doubled."""
import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from celery import Celery
from click.testing import CliRunner

from chrono_beat import telemetry
from chrono_beat.celery import ChronoBeat
from chrono_beat.celery.commands import chrono
from chrono_beat.core import ids
from chrono_beat.core.config import Config
from chrono_beat.core.schedule import Cron, forget_shared
from chrono_beat.core.zone_moves import is_older, moved
from chrono_beat.services.zones import LOOK_EVERY_US, ZoneWatch
from chrono_beat.testing.clock import ManualClock
from chrono_beat.zone_release import zone_release
from chrono_beat_django import jobs, wiring, zone_data
from chrono_beat_django.models import Deployment, Execution, Job, PendingVoid, Tenant
from tests.django.fakes import RecordingQueue

NOON = datetime(2026, 1, 7, 12, tzinfo=UTC)
NINE = NOON + timedelta(hours=21)
HOUR = timedelta(hours=1)


@pytest.fixture
def now():
    return [NOON]


@pytest.fixture
def queue(transactional_db, now):
    PendingVoid.objects.all().delete()                # emptying the tables after a test leaves those of its jobs behind
    Tenant.objects.get_or_create(slug="default")
    Deployment.objects.update_or_create(id=1, defaults={"partitions": 8, "lanes": 1, "zone_data": zone_release()})
    recording = RecordingQueue()
    with wiring.override(queue=recording, now_us=lambda: ids.to_us(now[0]), config=Config(partitions=8, lanes=1)):
        yield recording


def daily(name="daily", cron="0 9 * * *", timezone="Europe/London"):
    return jobs.create(name=name, task="t", cron=cron, timezone=timezone)


def claimed(job, at, state="scheduled"):
    return Execution.objects.create(
        id=ids.execution_id(str(job.id), ids.to_us(at), 1), job_id=job.id, tenant=job.tenant, job_name=job.name,
        partition=job.partition, scheduled_at=at, due_at=at, first_due_at=at, state=state, job_version=job.version)


def run_all(work):
    steps = 1
    while work():
        steps += 1
    return steps


@pytest.fixture
def told():
    events = []
    unsubscribe = telemetry.subscribe(lambda event, fields: events.append((event, dict(fields))))
    yield lambda: [(event, fields) for event, fields in events if event.startswith("zone_data")]
    unsubscribe()


def test_an_occurrence_moves_to_the_nearest_instant_so_one_stays_one(release):
    assert moved(Cron("0 9 * * *", "Europe/London"), NINE) == NINE
    for zone, wanted in (("Europe/Paris", NINE - HOUR), ("Atlantic/Azores", NINE + HOUR)):
        release("2090a" + zone[-1], zone)
        forget_shared()
        assert moved(Cron("0 9 * * *", "Europe/London"), NINE) == wanted
    assert moved(Cron("0 9 * * *", "Europe/London", end=NINE - timedelta(days=400)), NINE) < NINE


@pytest.mark.parametrize(("here", "stored", "older"), [
    ("2025b", "2026a", True), ("2026a", "2025b", False), ("2026a", "2026a", False), ("2026a", "digest-ab", False),
    ("2026a", "", False)])
def test_releases_have_an_order(here, stored, older):
    assert is_older(here, stored) is older


def test_the_release_is_read_from_the_files_in_use(release):
    packaged = zone_release()
    release("2090a", "Europe/London")
    assert (packaged[:2], zone_release()) == ("20", "2090a")

    release("nameless", "Europe/London")
    one = zone_release()
    release("nameless2", "Europe/Paris")
    assert one.startswith("digest-") and len(one) <= 32 and one != zone_release()


def test_an_update_moves_wall_clock_jobs_whose_next_run_differs_and_no_other(queue, release, told):
    moving, hourly, paris = daily(), daily("hourly", "0 * * * *"), daily("paris", timezone="Europe/Paris")
    interval = jobs.create(name="interval", task="t", every=3600, timezone="Europe/London")
    before = {job.name: job.next_run_at for job in (hourly, paris, interval)}
    old = zone_release()
    release("2090a", "Europe/Paris")

    run_all(zone_data.Work())

    after = dict(Job.objects.values_list("name", "next_run_at"))
    assert after.pop("daily") == moving.next_run_at - HOUR
    assert after == before
    assert told() == [("zone_data_changed", {"planned_with": old, "in_use": "2090a", "moved": 1})]
    assert (zone_data.planned_with(), queue.wakes > 0, PendingVoid.objects.count()) == ("2090a", True, 0)
    assert not zone_data.Work()(), "once is enough"


def test_batches_are_bounded(queue, release, monkeypatch):
    monkeypatch.setattr(zone_data, "BATCH", 2)
    for number in range(5):
        daily(f"daily {number}")
    release("2090a", "Europe/Paris")

    assert run_all(zone_data.Work()) == 4
    assert set(Job.objects.values_list("next_run_at", flat=True)) == {NINE - HOUR}


def test_inv08_a_run_whose_new_instant_has_passed_is_due_at_once_and_not_lost(queue, release, now):
    job = daily()
    now[0] = NINE - HOUR / 2
    release("2090a", "Europe/Paris")                # nine o'clock was half an hour ago by these

    run_all(zone_data.Work())

    assert Job.objects.get(id=job.id).next_run_at == NINE - HOUR


def test_inv08_a_run_that_was_run_by_the_old_data_is_not_run_again_that_day(queue, release, now):
    job = daily()
    now[0] = NINE + HOUR / 2                        # today's has been run; by the new data it were in half an hour
    Job.objects.filter(id=job.id).update(next_run_at=NINE + timedelta(days=1))
    claimed(job, NINE, "succeeded")
    release("2090a", "Atlantic/Azores")

    run_all(zone_data.Work())

    assert Job.objects.get(id=job.id).next_run_at == NINE + timedelta(days=1) + HOUR


def test_inv08_an_occurrence_claimed_ahead_that_moves_is_void_and_claimed_anew(queue, release, now):
    job, kept = daily(), daily("hourly", "0 * * * *")
    now[0] = NINE - timedelta(seconds=30)
    for each, following in ((job, NINE + timedelta(days=1)), (kept, NINE + HOUR)):
        claimed(each, NINE)
        Job.objects.filter(id=each.id).update(next_run_at=following)
    release("2090a", "Atlantic/Azores")

    run_all(zone_data.Work())

    after = Job.objects.get(id=job.id)
    assert (after.next_run_at, after.version, after.plan_version) == (NINE + HOUR, 2, 2)
    assert queue.voids == [(0, str(job.id), 2)]
    assert Job.objects.filter(id=kept.id, next_run_at=NINE + HOUR, version=1).exists()
    assert not zone_data.report(apply=True).moves, "what is void already is not moved again"


def test_a_host_with_older_data_changes_nothing_until_it_is_told_to(queue, release, told):
    job = daily()
    Deployment.objects.update(zone_data="2091a")
    release("2090a", "Europe/Paris")

    assert not zone_data.Work()()
    assert Job.objects.get(id=job.id).next_run_at == NINE
    assert told() == [("zone_data_older", {"planned_with": "2091a", "in_use": "2090a"})]

    zone_data.report(apply=True)

    assert (Job.objects.get(id=job.id).next_run_at, zone_data.planned_with()) == (NINE - HOUR, "2090a")


def test_a_job_edited_meanwhile_is_looked_at_as_it_is_by_then(queue, release):
    job = daily()
    stale = Job.objects.get(id=job.id)
    jobs.pause(job)
    release("2090a", "Europe/Paris")
    forget_shared()

    assert zone_data._look([stale], apply=True) == []
    assert Job.objects.get(id=job.id).next_run_at is None


def test_the_watch_looks_again_each_hour():
    answers = [True, False]
    watch = ZoneWatch(lambda: answers.pop(0), ManualClock())

    assert 0 < watch.step(0) < LOOK_EVERY_US
    assert watch.step(0) == LOOK_EVERY_US


def test_how_many_jobs_there_are_to_look_at_is_told_before_the_first(queue):
    told = []
    zone_data.report(progress=lambda done, total: told.append((done, total)))
    assert told == [(0, 0)]

    daily()
    zone_data.report(progress=lambda done, total: told.append((done, total)))
    assert told[1:] == [(0, 1), (1, 1)]


def test_the_command_lists_and_moves_when_told(queue, release):
    daily()
    release("2090a", "Europe/Paris")
    app = Celery("zones", set_as_current=False)
    ChronoBeat(app)

    def command(*line):
        return CliRunner().invoke(chrono, ("zones", *line), obj=SimpleNamespace(app=app)).output

    assert "1 would move" in command()
    assert Job.objects.get().next_run_at == NINE
    assert json.loads(command("--apply", "--json"))["moves"][0]["job"] == "daily"
    assert Job.objects.get().next_run_at == NINE - HOUR
    assert "0 would move" in command()
