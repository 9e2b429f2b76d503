"""The public functions on jobs: one transaction each, a line in the audit, a new version, a word to Redis on commit."""
import json
import warnings
from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction

from chrono_beat.core import ids
from chrono_beat.core.config import Config
from chrono_beat.core.errors import Conflict, InvalidInput, NotFound, NotYetVoidedWarning
from chrono_beat.core.records import GONE_VERSION
from chrono_beat.core.retry import Retry
from chrono_beat.core.schedule import Cron
from chrono_beat_django import jobs, wiring
from chrono_beat_django.models import Execution, Job, JobEvent, Tenant
from chrono_beat_django.store import DjangoJobStore
from chrono_beat_django.store.definitions import UnknownTenant
from tests.django.fakes import RecordingQueue

pytestmark = pytest.mark.django_db(transaction=True)

NOON = datetime(2026, 1, 7, 12, 0, 0, tzinfo=UTC)           # a Wednesday


class Clock:
    """The database's clock, moved by hand."""

    def __init__(self, now):
        self.now = now

    def __call__(self):
        return ids.to_us(self.now)


@pytest.fixture
def clock():
    return Clock(NOON)


@pytest.fixture
def queue():
    return RecordingQueue()


@pytest.fixture(autouse=True)
def composition(clock, queue):
    Tenant.objects.get_or_create(slug="default")
    with wiring.override(queue=queue, now_us=clock, config=Config(partitions=8)):
        yield


def create(**given):
    return jobs.create(**{"name": "nightly", "task": "shop.report", "cron": "0 3 * * *", "actor": "ada"} | given)


def create_at(at, **given):
    return jobs.create(**{"name": "once", "task": "shop.report", "at": at} | given)


def claimed(job, scheduled_at, state="scheduled", kind="schedule", attempt=1):
    """An occurrence that a dispatcher has claimed ahead: a row, and next_run_at moved past it."""
    Job.objects.filter(id=job.id, next_run_at__lte=scheduled_at).update(next_run_at=scheduled_at + timedelta(days=1))
    return Execution.objects.create(
        id=ids.execution_id(str(job.id), ids.to_us(scheduled_at), attempt), job_id=job.id, tenant=job.tenant,
        job_name=job.name, partition=job.partition, scheduled_at=scheduled_at, due_at=scheduled_at,
        first_due_at=scheduled_at, state=state, kind=kind, attempt=attempt, job_version=job.version,
    )


def events(job):
    return [(event.action, event.actor, event.version, json.loads(event.detail))
            for event in JobEvent.objects.filter(job_id=job.id).order_by("id")]


# -- create -----------------------------------------------------------------------------------------------------------


def test_a_new_job_is_planned_placed_recorded_and_told(queue):
    job = create(timezone="Europe/London", kwargs={"day": 1})

    job.refresh_from_db()
    assert job.next_run_at == datetime(2026, 1, 8, 3, tzinfo=UTC)
    assert (job.version, job.source, job.created_by) == (1, "api", "ada")
    assert job.partition == ids.partition_of("default", str(job.id), 8)
    [(action, actor, version, detail)] = events(job)
    assert (action, actor, version) == ("create", "ada", 1)
    assert detail["after"]["kwargs"] == '{"day": 1}'
    assert (queue.voids, queue.wakes) == ([], 1)


def test_everything_that_may_be_said_is_stored():
    job = create(
        every=600, cron=None, start=NOON + timedelta(seconds=30), end="2027-01-01T00:00:00Z", headers={"a": 1},
        pool="chrono.gold", priority=1, soft_limit=60, max_duration=timedelta(minutes=2), expires_after=120,
        concurrency="allow", misfire="all", misfire_cap=9, grace=5, spread=30, idempotent=True,
        retry=Retry(max_attempts=4, base=1, factor=3, maximum=9, jitter=0), key_scope="attempt", note="why",
        args="[1 ]",
    )

    stored = Job.objects.get(id=job.id)
    assert (stored.schedule_kind, stored.expression) == ("interval", "600")
    assert stored.start_at == stored.anchor_at == stored.next_run_at == NOON + timedelta(seconds=30)
    assert stored.end_at == datetime(2027, 1, 1, tzinfo=UTC)
    assert (stored.headers, stored.pool, stored.priority, stored.args) == ('{"a": 1}', "chrono.gold", 1, "[1 ]")
    assert (stored.soft_limit_seconds, stored.max_duration_seconds, stored.expires_after_seconds) == (60, 120, 120)
    assert (stored.concurrency, stored.misfire, stored.misfire_cap, stored.grace_seconds) == ("allow", "all", 9, 5)
    assert (stored.spread_seconds, stored.idempotent) == (30, "yes")
    assert (stored.max_attempts, stored.retry_base_seconds, stored.retry_factor) == (4, 1, 3)
    assert (stored.retry_maximum_seconds, stored.retry_jitter) == (9, 0)
    assert (stored.key_scope, stored.note) == ("attempt", "why")


def test_defaults_of_the_columns_are_those_of_the_definition():
    """A row put in by SQL behaves as one that was created without saying more."""
    by_function = create()
    by_sql = Job.objects.create(name="bare", task="shop.report", expression="0 3 * * *", created_by="ada")

    for field in Job._meta.concrete_fields:
        if field.attname not in ("id", "name", "partition", "next_run_at", "created_at", "updated_at", "replan"):
            assert getattr(by_sql, field.attname) == getattr(by_function, field.attname), field.attname


@pytest.mark.parametrize(("given", "field"), [
    ({"cron": "0 12 31 4 *"}, "cron"), ({"timezone": "UTC+3"}, "timezone"), ({"args": "[1,"}, "args"),
    ({"task": ""}, "task"), ({"priority": 12}, "priority"), ({"kwargs": {"x": "y" * 5_000_000}}, "kwargs"),
    ({"tenant": "nobody"}, "tenant"), ({"cron": None}, "schedule"),
])
def test_wrong_input_is_refused_with_its_field_and_nothing_is_written(given, field, queue):
    with pytest.raises(InvalidInput) as refused:
        create(**given)

    assert refused.value.field == field
    assert not Job.objects.exists() and not JobEvent.objects.exists()
    assert queue.wakes == 0


def test_an_unknown_tenant_is_both_wrong_input_and_not_found():
    with pytest.raises(UnknownTenant) as refused:
        create(tenant="nobody")

    assert isinstance(refused.value, NotFound)


def test_a_name_is_taken_until_its_job_is_over():
    first = create()
    with pytest.raises(Conflict, match="nightly"):
        create()
    with pytest.raises(Conflict, match="nightly"):
        jobs.update(create(name="other"), name="nightly")

    Job.objects.filter(id=first.id).update(finished_at=NOON, next_run_at=None)

    assert create().id != first.id


def test_pausing_a_job_that_is_over_leaves_its_name_to_the_next_one(clock):
    """Its name may be another's by now: a pause must not take it back."""
    first = create_at(NOON + timedelta(minutes=1))
    Job.objects.filter(id=first.id).update(finished_at=NOON, next_run_at=None)
    clock.now = NOON + timedelta(hours=1)
    second = create_at(NOON + timedelta(hours=2))

    paused = jobs.pause(first)

    assert (paused.paused, paused.finished_at) == (True, NOON)
    assert jobs.get("default", "once").id == second.id


def test_a_conflict_leaves_the_callers_transaction_usable():
    create()
    with transaction.atomic():
        with pytest.raises(Conflict):
            create()
        create(name="second")

    assert Job.objects.count() == 2


def test_a_tenant_has_at_most_its_number_of_jobs():
    Tenant.objects.filter(slug="default").update(max_jobs=2)
    create(name="1")
    create(name="2")

    with pytest.raises(InvalidInput, match="limit") as refused:
        create(name="3")

    assert refused.value.problems[0].code == "quota"


def test_a_one_off_in_the_past_is_refused_unless_it_is_a_minute_old():
    assert create_at(NOON - timedelta(seconds=59)).next_run_at == NOON - timedelta(seconds=59)
    with pytest.raises(InvalidInput, match="has passed"):
        create_at(NOON - timedelta(seconds=61), name="late")


def test_a_job_created_paused_waits_and_runs_once_it_is_resumed(clock):
    job = create(cron="* * * * *", paused=True)
    assert job.next_run_at is None

    clock.now = NOON + timedelta(seconds=10)
    assert jobs.resume(job).next_run_at == NOON + timedelta(minutes=1)


def test_a_job_created_half_a_second_before_its_minute_makes_that_minute(clock):
    clock.now = NOON + timedelta(seconds=59.5)

    assert create(cron="* * * * *").next_run_at == NOON + timedelta(minutes=1)


# -- update -----------------------------------------------------------------------------------------------------------


def test_an_edit_raises_the_version_and_voids_what_is_older_when_it_commits(queue):
    job = create()
    with transaction.atomic():
        edited = jobs.update(job, actor="grace", kwargs={"x": 1}, priority=3)
        assert queue.voids == []

    assert queue.voids == [(0, str(job.id), 2)]
    stored = Job.objects.get(id=job.id)
    assert (edited.version, stored.version, stored.kwargs, stored.priority) == (2, 2, '{"x": 1}', 3)
    assert events(job)[-1] == ("update", "grace", 2, {
        "before": {"kwargs": "{}", "priority": 5}, "after": {"kwargs": '{"x": 1}', "priority": 3},
    })


def test_an_edit_that_is_rolled_back_tells_nobody(queue):
    job = create()
    with pytest.raises(RuntimeError), transaction.atomic():
        jobs.update(job, priority=3)
        raise RuntimeError

    assert queue.voids == []
    assert Job.objects.get(id=job.id).version == 1


def test_an_edit_of_nothing_changes_nothing_but_repeats_the_void(queue):
    """A call whose void was lost is repeated by its caller; by then there is nothing left to change."""
    job = create()

    assert jobs.update(job, priority=5).version == 1

    assert queue.voids == [(0, str(job.id), 1)]
    assert len(events(job)) == 1


def test_an_edit_stands_where_redis_is_away_and_says_what_is_not_promised(queue):
    job = create()
    queue.away = True

    with pytest.warns(NotYetVoidedWarning, match=str(job.id)):
        jobs.pause(job)

    assert Job.objects.get(id=job.id).paused
    queue.away = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jobs.pause(job)
    assert queue.voids == [(0, str(job.id), 2)]


def test_a_trigger_and_a_new_job_need_no_redis(queue):
    queue.away = True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        job = create()
        jobs.trigger(job)

    assert Execution.objects.count() == 1


@pytest.mark.parametrize(("change", "next_run"), [
    ({"cron": "30 12 * * *"}, datetime(2026, 1, 7, 12, 30, tzinfo=UTC)),
    ({"timezone": "America/New_York"}, datetime(2026, 1, 8, 8, tzinfo=UTC)),
    ({"at": datetime(2026, 1, 9, tzinfo=UTC)}, datetime(2026, 1, 9, tzinfo=UTC)),
    ({"every": 10}, NOON + timedelta(seconds=10)),
    ({"schedule": Cron("0 9 * * *", "Asia/Tokyo")}, datetime(2026, 1, 8, 0, tzinfo=UTC)),
    ({"start": datetime(2026, 2, 1, tzinfo=UTC)}, datetime(2026, 2, 1, 3, tzinfo=UTC)),
])
def test_an_edit_of_the_schedule_plans_from_now(change, next_run):
    job = create()
    claimed(job, datetime(2026, 1, 7, 12, 0, 30, tzinfo=UTC))

    jobs.update(job, **change)

    assert Job.objects.get(id=job.id).next_run_at == next_run


def test_an_interval_begins_anew_when_its_period_is_edited(clock):
    job = create(cron=None, every=3600)
    assert (job.anchor_at, job.next_run_at) == (NOON, NOON + timedelta(hours=1))

    clock.now = NOON + timedelta(minutes=20)
    jobs.update(job, priority=1)
    assert Job.objects.get(id=job.id).anchor_at == NOON             # another edit leaves it where it was

    edited = jobs.update(job, every=10)
    assert (edited.anchor_at, edited.next_run_at) == (clock.now, clock.now + timedelta(seconds=10))


@pytest.fixture
def store():
    """The store; one dispatcher owns all partitions."""
    store = DjangoJobStore()
    store.epochs = store.take_partitions("a", range(64), 3_600_000_000)
    return store


def edit_by_call(job, **values):
    jobs.update(job, **values)


def edit_by_sql(job, **values):
    Job.objects.filter(id=job.id).update(**{name: json.dumps(value) for name, value in values.items()})


EDITS = pytest.mark.parametrize("edit", [edit_by_call, edit_by_sql])


def loaded(store):
    """What a dispatcher loads that looks a minute ahead: (scheduled instant, kwargs) by due time."""
    rows = store.load_scheduled(store.epochs, ids.to_us(NOON + timedelta(minutes=1)), 100)
    return [(ids.from_us(row.scheduled_us), json.loads(row.content.kwargs)) for row in rows]


@EDITS
def test_inv07_an_edit_that_leaves_the_schedule_alone_carries_over_all_that_has_not_begun(store, edit):
    """Rule 7: also several that are due, under misfire latest, and what is claimed ahead; what has begun is left alone."""
    job = create(misfire="latest")
    for seconds, state in ((-120, "queued"), (-60, "queued"), (-30, "scheduled"), (-10, "running"), (40, "scheduled")):
        claimed(job, NOON + timedelta(seconds=seconds), state=state)
    claimed(job, NOON - timedelta(days=2), state="succeeded")
    before = Job.objects.get(id=job.id).next_run_at

    edit(job, kwargs={"x": 1})

    assert Job.objects.get(id=job.id).next_run_at == before
    assert store.superseded(range(64), 100) == []
    assert loaded(store) == [(NOON + timedelta(seconds=seconds), {"x": 1}) for seconds in (-120, -60, -30, 40)]
    assert set(Execution.objects.filter(state__in=("scheduled", "queued")).values_list("job_version", flat=True)) == {2}
    assert loaded(store) == []


@EDITS
def test_inv07_an_edit_that_leaves_the_schedule_alone_carries_nothing_of_an_older_plan_over(store, edit):
    """A row of the plan before, still open, is the sweep's."""
    job = create(cron=None, every=60)
    claimed(job, NOON - timedelta(seconds=10))
    job = jobs.update(job, every=30)

    edit(job, kwargs={"x": 1})

    assert loaded(store) == []
    assert Job.objects.get(id=job.id).next_run_at == job.next_run_at


@EDITS
@pytest.mark.parametrize("seconds", [-30, 30])
def test_an_edit_of_a_claimed_one_off_runs_with_the_new_content(store, edit, seconds):
    job = create_at(NOON + timedelta(seconds=30))
    claimed(job, NOON + timedelta(seconds=seconds))
    Job.objects.filter(id=job.id).update(next_run_at=None)

    edit(job, kwargs={"x": 1})

    assert Job.objects.get(id=job.id).next_run_at is None
    assert loaded(store) == [(NOON + timedelta(seconds=seconds), {"x": 1})]


@EDITS
def test_an_edit_of_a_paused_job_brings_nothing_back_that_fell_into_the_pause(store, edit):
    job = create()
    claimed(job, NOON - timedelta(seconds=10))
    jobs.pause(job)

    edit(job, kwargs={"x": 1})

    assert loaded(store) == []


def test_a_job_whose_one_off_is_over_may_still_be_edited(clock):
    job = create_at(NOON + timedelta(seconds=30))
    clock.now = NOON + timedelta(days=1)
    Job.objects.filter(id=job.id).update(next_run_at=None, finished_at=clock.now)

    jobs.update(job, note="it went well")
    with pytest.raises(InvalidInput, match="has passed"):
        jobs.update(job, at=NOON + timedelta(hours=1))
    again = jobs.update(job, at=clock.now + timedelta(hours=1))

    assert (again.next_run_at, again.finished_at) == (clock.now + timedelta(hours=1), None)


def test_a_stale_editor_is_told_so():
    job = create()
    jobs.update(job, priority=1)

    with pytest.raises(Conflict, match="version 2, not 1"):
        jobs.update(job, expected_version=1, priority=2)

    assert Job.objects.get(id=job.id).priority == 1


def test_an_edit_writes_over_nothing_that_the_editor_did_not_say():
    """The instance that the caller holds may be hours old."""
    stale = create()
    jobs.update(stale.id, kwargs={"x": 1}, pool="chrono.gold", cron="0 4 * * *")

    jobs.update(stale, priority=1)

    stored = Job.objects.get(id=stale.id)
    assert (stored.kwargs, stored.pool, stored.expression) == ('{"x": 1}', "chrono.gold", "0 4 * * *")


@pytest.mark.parametrize(("change", "field", "words"), [
    ({"tenant": "other"}, "tenant", "stays with its tenant"), ({"prioritty": 1}, "prioritty", "did you mean priority"),
    ({"next_run_at": NOON}, "next_run_at", "no such field"), ({"cron": "x"}, "cron", "5 fields"),
    ({"priority": -1}, "priority", "0 to 9"),
])
def test_a_wrong_edit_is_refused_and_changes_nothing(change, field, words):
    job = create()

    with pytest.raises(InvalidInput, match=words) as refused:
        jobs.update(job, **change)

    assert refused.value.field == field
    assert Job.objects.get(id=job.id).version == 1


def test_an_edit_heals_a_quarantined_job():
    job = create()
    Job.objects.filter(id=job.id).update(args="[1,", quarantined_reason="not JSON", next_run_at=None, version=5)

    with pytest.raises(InvalidInput, match="args"):
        jobs.update(job, priority=1)
    healed = jobs.update(job, args=[1])

    assert (healed.quarantined_reason, healed.next_run_at) == ("", datetime(2026, 1, 8, 3, tzinfo=UTC))


@pytest.mark.parametrize("job_id", ["00000000-0000-0000-0000-000000000000", "no id"])
def test_what_is_not_there_is_not_found(job_id):
    for call in (jobs.update, jobs.pause, jobs.resume, jobs.delete, jobs.trigger):
        with pytest.raises(NotFound):
            call(job_id)
    with pytest.raises(NotFound):
        jobs.get("default", "nothing")


# -- pause, resume, delete --------------------------------------------------------------------------------------------


def test_a_pause_ends_the_plan_and_a_resume_computes_from_now(clock, queue):
    """Disabled on Sunday, enabled on a Wednesday two weeks later: nothing is made up for."""
    clock.now = datetime(2026, 1, 4, 10, tzinfo=UTC)
    job = create(cron="0 10 * * 6")
    paused = jobs.pause(job, note="holidays", actor="grace")
    assert (paused.paused, paused.next_run_at, paused.note, paused.version) == (True, None, "holidays", 2)

    clock.now = datetime(2026, 1, 21, 10, tzinfo=UTC)
    resumed = jobs.resume(job, actor="grace")

    assert (resumed.next_run_at, resumed.version) == (datetime(2026, 1, 24, 10, tzinfo=UTC), 3)
    assert [action for action, *_ in events(job)] == ["create", "pause", "resume"]
    assert [version for *_, version in queue.voids] == [2, 3]


def test_a_paused_job_stays_so_through_edits():
    job = jobs.pause(create())
    claimed(job, NOON + timedelta(seconds=30))
    Job.objects.filter(id=job.id).update(next_run_at=None)

    assert jobs.update(job, kwargs={"x": 1}).next_run_at is None
    assert jobs.update(job, cron="* * * * *").next_run_at is None


def test_an_edit_that_pauses_is_called_a_pause():
    job = create()
    jobs.update(job, paused=True)
    jobs.update(job, paused=False)

    assert [action for action, *_ in events(job)] == ["create", "pause", "resume"]


def test_a_one_off_whose_instant_fell_into_a_pause_is_over_when_it_is_resumed(clock):
    job = create_at(NOON + timedelta(minutes=5))
    jobs.pause(job)
    clock.now = NOON + timedelta(hours=1)

    resumed = jobs.resume(job)

    assert (resumed.next_run_at, resumed.finished_at) == (None, clock.now)
    assert not Execution.objects.exists()


def test_a_deleted_job_leaves_its_history(queue):
    job = create()
    row = claimed(job, NOON + timedelta(seconds=2))

    jobs.delete(job, actor="grace")

    assert not Job.objects.exists()
    assert Execution.objects.filter(id=row.id).exists()
    assert events(job)[-1][:3] == ("delete", "grace", 2)
    assert queue.voids == [(0, str(job.id), GONE_VERSION)]
    with pytest.raises(NotFound):
        jobs.delete(job)


# -- trigger, preview, get, list --------------------------------------------------------------------------------------


def test_a_trigger_runs_now_and_leaves_the_plan_alone(clock, queue):
    job = create(pool="chrono.gold")
    before = Job.objects.values().get(id=job.id)
    queue.wakes = 0

    execution = jobs.trigger(job, actor="ada")

    stored = Execution.objects.get(id=execution.id)
    assert (stored.kind, stored.state, stored.attempt, stored.job_version) == ("manual", "scheduled", 1, 1)
    assert stored.scheduled_at == stored.due_at == stored.first_due_at == NOON
    assert (stored.partition, stored.holder_epoch, stored.args, stored.kwargs) == (job.partition, 0, None, None)
    assert stored.id == ids.execution_id(str(job.id), ids.to_us(NOON), 1)
    assert Job.objects.values().get(id=job.id) == before
    assert (queue.wakes, queue.voids) == (1, [])
    assert events(job)[-1] == ("trigger", "ada", 1, {"execution": execution.id})


def test_triggers_in_the_same_instant_get_instants_of_their_own():
    job = create()
    claimed(job, NOON)

    found = [jobs.trigger(job).scheduled_at for _ in range(3)]

    assert found == [NOON + timedelta(microseconds=us) for us in (1, 2, 3)]


def test_a_request_token_makes_a_trigger_repeatable(clock):
    job = create()
    first = jobs.trigger(job, token='r"1%')
    clock.now = NOON + timedelta(days=6)

    assert jobs.trigger(job, token='r"1%').id == first.id
    assert jobs.trigger(job, token="r").id != first.id
    assert Execution.objects.count() == 2
    with pytest.raises(InvalidInput) as refused:
        jobs.trigger(job, token="")
    assert refused.value.field == "token"


@pytest.mark.parametrize("concurrency", ["forbid", "replace", "allow"])
def test_a_trigger_says_since_when_a_run_is_active_that_is_in_its_way(concurrency):
    job = create(concurrency=concurrency)
    active = claimed(job, NOON)
    alone = jobs.trigger(job)
    started = NOON + timedelta(hours=1)
    Execution.objects.filter(id=active.id).update(state="running", started_at=started)

    found = jobs.trigger(job).in_the_way

    assert alone.in_the_way is None
    assert (found and (found.id, found.started_at)) == (None if concurrency == "allow" else (active.id, started))


def test_a_paused_job_may_be_triggered():
    job = jobs.pause(create())

    assert jobs.trigger(job).job_version == job.version
    assert Job.objects.get(id=job.id).next_run_at is None


def test_a_preview_shows_instants_zone_and_what_to_know():
    shown = jobs.preview(create(cron="*/7 3 * * *", timezone="Europe/London"), count=3)

    assert shown.runs == tuple(datetime(2026, 1, 8, 3, minute, tzinfo=UTC) for minute in (0, 7, 14))
    assert shown.timezone == "Europe/London"
    assert any("*/7" in note for note in shown.notes)


def test_a_preview_of_a_paused_interval_keeps_its_rhythm(clock):
    job = jobs.pause(create(cron=None, every=3600))
    clock.now = NOON + timedelta(minutes=20)

    assert jobs.preview(job, count=1).runs == (NOON + timedelta(hours=1),)


@pytest.mark.parametrize("count", [0, 1001, True, "3"])
def test_a_preview_has_a_limit(count):
    with pytest.raises(InvalidInput) as refused:
        jobs.preview(create(), count=count)

    assert refused.value.field == "count"


def test_jobs_are_found_by_name_and_listed():
    Tenant.objects.create(slug="acme")
    default, other, over = create(), create(tenant="acme", name="a"), create(name="over")
    jobs.pause(other)
    Job.objects.filter(id=over.id).update(finished_at=NOON, next_run_at=None)

    assert jobs.get("acme", "a") == other
    assert [*jobs.list()] == [other, default]
    assert [*jobs.list("acme")] == [*jobs.list(paused=True)] == [other]
    assert jobs.list(finished=None).count() == 3
    with pytest.raises(NotFound):
        jobs.get("default", "over")


def test_warnings_are_those_of_the_definition():
    job = create(idempotent=False, retry=Retry(max_attempts=3))

    assert [warning.field for warning in jobs.warnings_for(job)] == ["retry"]
