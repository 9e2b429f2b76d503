"""Backfills, and resumes that look back."""
import json
from datetime import UTC, datetime, timedelta

import pytest

from chrono_beat.core import ids
from chrono_beat.core.config import Config
from chrono_beat.core.errors import InvalidInput, NotFound
from chrono_beat_django import jobs, wiring
from chrono_beat_django.backfill import fill_pauses
from chrono_beat_django.models import Execution, Job, JobEvent, Tenant
from tests.django.fakes import RecordingQueue

pytestmark = pytest.mark.django_db(transaction=True)

NOON = datetime(2026, 1, 7, 12, 0, 0, tzinfo=UTC)
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Clock:
    """The database's clock, moved by hand."""

    now = NOON

    def __call__(self):
        return ids.to_us(self.now)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def queue():
    return RecordingQueue()


@pytest.fixture(autouse=True)
def composition(clock, queue):
    Tenant.objects.get_or_create(slug="default")
    with wiring.override(queue=queue, now_us=clock, config=Config(partitions=8)):
        yield


@pytest.fixture
def hourly():
    return jobs.create(name="hourly", task="shop.report", cron="0 * * * *")


def rows(job, **only):
    return list(Execution.objects.filter(job_id=job.id, **only).order_by("scheduled_at", "attempt"))


def row(job, at, state, *, reason="", attempt=1, kind="schedule"):
    return Execution.objects.create(
        id=ids.execution_id(str(job.id), ids.to_us(at), attempt), job_id=job.id, tenant=job.tenant, job_name=job.name,
        partition=job.partition, scheduled_at=at, due_at=at, first_due_at=at, attempt=attempt, kind=kind, state=state,
        reason=reason, job_version=job.version)


# -- backfill ---------------------------------------------------------------------------------------------------------

def test_r156_a_day_of_an_hourly_job_is_filled_in_once(hourly, queue):
    """R156: 24 executions with their original instants, marked backfill; repeating the request adds none."""
    done = jobs.backfill(hourly, NEW_YEAR, "2026-01-02T00:00:00Z", actor="ada")
    again = jobs.backfill(hourly, NEW_YEAR, NEW_YEAR + 24 * HOUR)

    assert done == (24, 0, 0, None, NEW_YEAR + 24 * HOUR)
    assert again == (0, 24, 0, None, NEW_YEAR + 24 * HOUR)
    made = rows(hourly)
    assert [each.scheduled_at for each in made] == [NEW_YEAR + n * HOUR for n in range(24)]
    assert {(each.kind, each.state, each.attempt, each.retries, each.due_at, each.first_due_at, each.holder_epoch)
            for each in made} == {("backfill", "scheduled", 1, 0, NOON, NOON, 0)}
    assert made[0].id == f"{hourly.id}:20260101T000000Z:1"
    assert Job.objects.get(id=hourly.id).next_run_at == hourly.next_run_at
    event = JobEvent.objects.filter(action="backfill").first()
    assert (event.actor, json.loads(event.detail)["created"]) == ("ada", 24)
    assert queue.wakes == 3


@pytest.mark.parametrize(("day", "runs"), [("2025-03-30", 23), ("2025-10-26", 25)])
def test_the_days_of_clock_changes_have_as_many_runs_as_hours(day, runs):
    job = jobs.create(name="local", task="shop.report", cron="0 * * * *", timezone="Europe/London")
    offsets = ("+00:00", "+01:00") if runs == 23 else ("+01:00", "+00:00")
    after = datetime.fromisoformat(f"{day}T00:00:00") + timedelta(days=1)

    done = jobs.backfill(job, f"{day}T00:00:00{offsets[0]}", f"{after.isoformat()}{offsets[1]}")

    assert done.created == runs


def test_what_has_run_or_will_is_left_alone_and_what_never_ran_is_tried_again(hourly):
    states = ["missed", "skipped", "expired", "succeeded", "dead", "failed", "cancelled", "scheduled", "queued", "running"]
    for hour, state in enumerate(states):
        row(hourly, NEW_YEAR + hour * HOUR, state)
    row(hourly, NEW_YEAR, "expired", attempt=2, kind="backfill")
    row(hourly, NEW_YEAR + HOUR, "succeeded", attempt=2, kind="backfill")

    done = jobs.backfill(hourly, NEW_YEAR, NEW_YEAR + 11 * HOUR)

    assert (done.created, done.existing) == (3, 8)
    made = [(each.scheduled_at.hour, each.attempt) for each in rows(hourly, kind="backfill", state="scheduled")]
    assert made == [(0, 3), (2, 2), (10, 1)]


def test_a_limit_leaves_the_newest_out_and_says_from_where_to_go_on(hourly):
    first = jobs.backfill(hourly, NEW_YEAR, NEW_YEAR + 24 * HOUR, limit=10)
    second = jobs.backfill(hourly, first.go_on_from, NEW_YEAR + 24 * HOUR)

    assert (first.created, first.left_out, first.go_on_from) == (10, 14, NEW_YEAR + 10 * HOUR)
    assert (second.created, second.left_out) == (14, 0)


def test_a_pace_spaces_the_due_times_and_each_begins_its_own_expiry(hourly):
    jobs.backfill(hourly, NEW_YEAR, NEW_YEAR + 4 * HOUR, pace=90)

    assert [(each.due_at, each.first_due_at) for each in rows(hourly)] == [
        (NOON + n * timedelta(seconds=90),) * 2 for n in range(4)]


def test_what_the_schedule_itself_will_run_is_not_filled_in(hourly, clock):
    """The end is cut to now, and to the next run: what is overdue there is judged by the job's misfire policy."""
    done = jobs.backfill(hourly, NOON - 3 * HOUR, NOON + 24 * HOUR)
    clock.now = NOON + 5 * HOUR
    late = jobs.backfill(hourly, NOON - 3 * HOUR, NOON + 24 * HOUR)

    assert (done.created, done.end) == (3, NOON)
    assert (late.created, late.end) == (1, NOON + HOUR)              # noon itself; 13:00 is the next run still
    assert [each.scheduled_at.hour for each in rows(hourly)] == [9, 10, 11, 12]


def test_the_same_token_makes_the_same_answer_whatever_has_become_of_it(hourly):
    first = jobs.backfill(hourly, NEW_YEAR, NEW_YEAR + 24 * HOUR, limit=5, token="mine")
    Execution.objects.filter(job_id=hourly.id).update(state="expired")

    assert jobs.backfill(hourly, NEW_YEAR, NEW_YEAR + 24 * HOUR, limit=5, token="mine") == first
    assert len(rows(hourly)) == 5
    assert jobs.backfill(hourly, NEW_YEAR, NEW_YEAR + 24 * HOUR, limit=5, token="another").created == 5


@pytest.mark.parametrize(("given", "field"), [
    ({"start": NEW_YEAR.replace(tzinfo=None)}, "start"), ({"end": "soon"}, "end"), ({"end": NEW_YEAR}, "end"),
    ({"limit": 0}, "limit"), ({"limit": 10_001}, "limit"), ({"limit": True}, "limit"), ({"pace": -1}, "pace"),
    ({"pace": float("nan")}, "pace"), ({"token": ""}, "token"), ({"start": None}, "start"),
])
def test_a_backfill_that_makes_no_sense_is_refused_with_its_field(hourly, given, field):
    with pytest.raises(InvalidInput) as refused:
        jobs.backfill(hourly, **{"start": NEW_YEAR, "end": NEW_YEAR + HOUR, **given})

    assert refused.value.field == field
    assert not rows(hourly)


def test_a_job_that_is_gone_cannot_be_filled_in(hourly):
    jobs.delete(hourly)

    with pytest.raises(NotFound):
        jobs.backfill(hourly, NEW_YEAR, NOON)


# -- resume -----------------------------------------------------------------------------------------------------------

@pytest.fixture
def paused(hourly, clock):
    """An hourly job paused from 12:00 to 15:20."""
    jobs.pause(hourly)
    clock.now = NOON + 3 * HOUR + timedelta(minutes=20)
    return hourly


@pytest.mark.parametrize(("asked", "hours"), [
    ({}, []), ({"missed": "latest"}, [15]), ({"missed": "all"}, [12, 13, 14, 15]), ({"missed": "all", "limit": 2}, [14, 15]),
])
def test_a_resume_makes_up_for_the_pause_only_as_far_as_it_is_asked_to(paused, asked, hours):
    resumed = jobs.resume(paused, actor="ada", **asked)

    made = rows(paused)
    assert resumed.next_run_at == NOON + 4 * HOUR
    assert [each.scheduled_at.hour for each in made] == hours
    assert {(each.kind, each.due_at, each.job_version) for each in made} <= {
        ("backfill", NOON + 3 * HOUR + timedelta(minutes=20), resumed.version)}
    assert JobEvent.objects.filter(action="backfill").count() == bool(asked)


def test_r158_neither_an_edit_of_the_schedule_nor_a_resume_creates_past_runs(clock):
    """R158: a twice-daily job edited to hourly at 12:30 runs next at 13:00, and nothing of the past."""
    job = jobs.create(name="twice", task="shop.report", cron="0 6,18 * * *")
    clock.now = NOON + timedelta(minutes=30)

    edited = jobs.update(job, cron="0 * * * *")
    jobs.pause(job)
    clock.now = NOON + timedelta(days=3, minutes=30)
    resumed = jobs.resume(job)

    assert edited.next_run_at == NOON + HOUR
    assert resumed.next_run_at == NOON + timedelta(days=3, hours=1)
    assert not rows(job)


def test_a_resume_of_what_is_not_paused_looks_back_at_nothing(hourly, clock):
    clock.now = NOON + 5 * HOUR

    jobs.resume(hourly, missed="all")

    assert not rows(hourly)


def test_pausing_again_does_not_shorten_the_pause(paused):
    jobs.pause(paused, note="still")

    jobs.resume(paused, missed="all")

    assert len(rows(paused)) == 4


def test_what_was_claimed_ahead_and_cancelled_by_the_pause_is_made_up_for(paused):
    row(paused, NOON, "cancelled", reason="paused")
    row(paused, NOON + HOUR, "cancelled")                              # by a person
    row(paused, NOON + 2 * HOUR, "running")
    row(paused, NOON + 3 * HOUR, "queued")                              # void, and not swept yet

    jobs.resume(paused, missed="all")

    assert [(each.scheduled_at.hour, each.attempt) for each in rows(paused, kind="backfill")] == [(12, 2), (15, 2)]


@pytest.mark.parametrize("knows", ["lost", "held", "done"])
def test_inv05_what_was_claimed_ahead_and_may_have_run_is_not_made_up_for(paused, queue, knows):
    row(paused, NOON + 3 * HOUR, "queued")
    queue.knows = knows

    jobs.resume(paused, missed="latest")

    assert not rows(paused, kind="backfill")


@pytest.mark.filterwarnings("ignore::chrono_beat.core.errors.NotYetVoidedWarning")
def test_inv05_without_redis_nobody_knows_what_has_run(paused, queue):
    row(paused, NOON + 3 * HOUR, "queued")
    queue.away = True

    jobs.resume(paused, missed="latest")

    assert not rows(paused, kind="backfill")


def test_a_one_off_that_fell_into_a_pause_is_over_only_when_its_late_run_has_ended(clock):
    once = jobs.create(name="once", task="shop.report", at=NOON + HOUR)
    jobs.pause(once)
    clock.now = NOON + 5 * HOUR

    resumed = jobs.resume(once, missed="latest")

    assert len(rows(once)) == 1
    assert resumed.finished_at is None and Job.objects.get(id=once.id).finished_at is None


@pytest.mark.parametrize(("asked", "field"), [({"missed": "some"}, "missed"), ({"missed": "all", "limit": 0}, "limit")])
def test_a_resume_that_asks_for_nonsense_changes_nothing(paused, asked, field):
    with pytest.raises(InvalidInput) as refused:
        jobs.resume(paused, **asked)

    assert refused.value.field == field
    assert Job.objects.get(id=paused.id).paused


def test_r070_ten_thousand_jobs_that_were_paused_for_hours_make_one_run_each(django_assert_max_num_queries):
    """R070: resumed at 12:20, nothing fires before 13:00; asked for the latest, one each, never 30,000."""
    now = NOON + timedelta(minutes=20)
    Job.objects.bulk_create(
        Job(name=f"job {n}", task="shop.report", expression="0 * * * *", next_run_at=NOON + HOUR) for n in range(10_000))
    resumed = [(job, NOON - 3 * HOUR) for job in Job.objects.all()]

    with django_assert_max_num_queries(500):
        made = fill_pauses(resumed, "latest", now=now)

    assert made == 10_000
    assert set(Execution.objects.values_list("scheduled_at", "kind", "due_at").distinct()) == {(NOON, "backfill", now)}
    assert fill_pauses(resumed, "latest", now=now) == 0
