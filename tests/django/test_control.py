"""Prompt control (invariant 7) on real tables and a Redis in memory: what a call does between its commit and its return."""
import json
import warnings
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from django.db import transaction

from chrono_beat.core import ids
from chrono_beat.core.config import Config
from chrono_beat.core.deliveries import Hold
from chrono_beat.core.errors import Conflict, NotFound, NotYetVoidedWarning, QueueUnavailable
from chrono_beat.core.records import GONE_VERSION, PublishItem
from chrono_beat.services.audit import Audit
from chrono_beat.services.voids import Voids
from chrono_beat.testing.clock import ManualClock
from chrono_beat.testing.memory_queue import MemoryQueueStore
from chrono_beat_django import jobs, wiring
from chrono_beat_django.models import Execution, Job, JobEvent, PendingVoid, Tenant

pytestmark = pytest.mark.django_db(transaction=True)

NOON = datetime(2026, 1, 7, 12, tzinfo=UTC)
SECOND = 1_000_000
LEASE = 60 * SECOND
CONFIG = Config(partitions=8)


class Desk:
    """A Redis in memory with an open lane, its clock, and what happens while a call waits."""

    def __init__(self):
        self.clock = ManualClock(wall_us=ids.to_us(NOON))
        self.queue = MemoryQueueStore(self.clock, CONFIG)
        self.queue.open_lane(0, 1, self.queue.repl, 0)
        self.waited, self.during = 0.0, []

    def wait(self, seconds):
        self.waited += seconds
        self.clock.advance(us=round(seconds * SECOND))
        if self.during:
            self.during.pop(0)()

    def row(self, job, at=NOON, state="queued", kind="manual"):
        key = ids.execution_id(str(job.id), ids.to_us(at), 1)
        return Execution.objects.create(
            id=key, job_id=job.id, tenant=job.tenant, job_name=job.name, partition=job.partition, scheduled_at=at, due_at=at,
            first_due_at=at, state=state, kind=kind, job_version=job.version)

    def publish(self, job, row):
        item = PublishItem(row.id, str(job.id), job.tenant, row.job_version, 1, row.kind, "chrono", 5,
                           ids.to_us(row.due_at), None, "forbid", b"{}")
        return self.queue.publish(0, 1, self.clock.wall_us() + LEASE, [item]).replies[0]

    def draw(self):
        return self.queue.draw(0, "chrono", 10, "w1", LEASE)

    def begin(self, delivery):
        self.queue.accept(0, "w1", [Hold(delivery.execution_id, delivery.token)])

    def events(self):
        return [(o.event, o.execution_id) for o in self.queue.read_outcomes(0, "r", SECOND, 100)]


@pytest.fixture
def desk():
    Tenant.objects.get_or_create(slug="default")
    PendingVoid.objects.all().delete()                # what emptied the tables before deleted jobs, too
    desk = Desk()
    with wiring.override(queue=desk.queue, now_us=desk.clock.wall_us, config=CONFIG, wait=desk.wait):
        yield desk


@pytest.fixture
def job(desk):
    return jobs.create(name="nightly", task="shop.report", cron="0 3 * * *")


CALLS = {
    "pause": lambda job: jobs.pause(job).still_running,
    "update": lambda job: jobs.update(job, kwargs={"n": 2}).still_running,
    "change": lambda job: jobs.change(job, "update", "ada", {"cron": "0 4 * * *"}).running,
    "delete": jobs.delete,
}


@pytest.mark.parametrize("call", CALLS)
def test_inv07_a_call_returns_at_once_where_no_worker_holds_anything(desk, job, call):
    assert CALLS[call](job) == []
    assert desk.waited == 0


@pytest.mark.parametrize("call", CALLS)
def test_inv07_what_runs_is_reported_to_the_caller_and_goes_on(desk, job, call):
    row = desk.row(job)
    desk.publish(job, row)
    delivery, = desk.draw()
    desk.begin(delivery)

    running = CALLS[call](job)

    assert [(r.execution_id, r.worker, r.begun) for r in running] == [(row.id, "w1", True)]
    assert desk.waited == 0
    assert desk.queue.still_held(0, Hold(row.id, delivery.token))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("then", ["begins", "given back"])
def test_inv07_rule10_a_call_waits_for_what_was_drawn_and_has_not_begun(desk, job, call, then):
    row = desk.row(job)
    desk.publish(job, row)
    delivery, = desk.draw()
    hold = Hold(delivery.execution_id, delivery.token)
    desk.during = [lambda: None, lambda: desk.begin(delivery) if then == "begins" else desk.queue.give_back(0, "w1", [hold])]

    running = CALLS[call](job)

    assert 0 < desk.waited < CONFIG.start_window
    assert [r.execution_id for r in running] == ([row.id] if then == "begins" else [])
    assert desk.draw() == []


def test_rule10_no_call_waits_longer_than_the_start_window(desk, job):
    """The worker may be stopped with the delivery in its hands: it will find that its time to begin is over."""
    desk.publish(job, desk.row(job))
    desk.draw()

    running = jobs.pause(job).still_running

    assert CONFIG.start_window < desk.waited < CONFIG.start_window + 1
    assert [r.begun for r in running] == [False]


def test_rule10_a_call_looks_twice_where_redis_goes_silent_in_its_midst(desk, job, monkeypatch):
    """Each look at a Redis that takes the call and says nothing lasts as long as the connection's time-out."""
    looks = []

    def silent(*named, **options):
        looks.append(named)
        raise QueueUnavailable("Redis: Timeout reading from socket")

    monkeypatch.setattr(desk.queue, "deliveries_of", silent)
    assert jobs.pause(job).still_running == []

    assert (len(looks), desk.waited > CONFIG.start_window) == (2, True)


def test_rule10_a_call_waits_the_whole_window_where_nobody_can_know_what_was_drawn(desk, job):
    """Redis lost its memory: what was drawn from it before may still begin."""
    desk.queue.flush()

    assert jobs.pause(job).still_running == []

    assert desk.waited > CONFIG.start_window


def test_inv07_within_a_transaction_the_promise_counts_from_its_commit(desk, job):
    row = desk.row(job)
    desk.publish(job, row)
    with transaction.atomic():
        paused = jobs.pause(job)
        assert desk.queue.lanes[0].voids == {}
        delivery, = desk.draw()
        desk.begin(delivery)
        assert paused.still_running == []

    assert [r.execution_id for r in paused.still_running] == [row.id]


def test_inv07_an_edit_that_is_rolled_back_voids_nothing(desk, job):
    desk.publish(job, desk.row(job))
    with pytest.raises(RuntimeError), transaction.atomic():
        jobs.pause(job)
        jobs.delete(job)
        raise RuntimeError

    assert desk.queue.lanes[0].voids == {}
    assert not PendingVoid.objects.exists()
    assert len(desk.draw()) == 1


# -- pending voids ----------------------------------------------------------------------------------------------------


def test_a_void_is_pending_until_redis_knows_it(desk, job):
    desk.queue.unavailable = True
    with pytest.warns(NotYetVoidedWarning):
        jobs.update(job, kwargs={"n": 2})
    assert [(v.version, v.told) for v in PendingVoid.objects.all()] == [(2, False)]
    voids = Voids(wiring.store(), desk.queue, desk.clock, 1)

    voids.turn(0)
    desk.queue.unavailable = False
    assert voids.turn(0) == SECOND

    assert desk.queue.lanes[0].voids[str(job.id)][0] == 2
    Audit(wiring.store(), desk.queue, desk.clock, CONFIG).step(0)
    assert not PendingVoid.objects.exists()


@pytest.mark.parametrize("edit", [
    lambda job: Job.objects.filter(id=job.id).update(kwargs='{"n": 2}'),
    lambda job: Job.objects.filter(id=job.id).update(paused=True),
    lambda job: Job.objects.bulk_update([job], ["task"]),
    lambda job: Job.objects.filter(id=job.id).delete(),
])
def test_r072_r158_an_edit_around_the_store_is_told_to_redis_within_a_second(desk, job, edit):
    desk.publish(job, desk.row(job))
    job.task = "shop.other"
    edit(job)

    Voids(wiring.store(), desk.queue, desk.clock, 1).step(0)

    assert desk.draw() == []


# -- cancel -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["in the index", "in a stream", "drawn", "running"])
def test_cancelling_an_execution_at_each_stage(desk, job, stage):
    row = desk.row(job, state="scheduled" if stage == "in the index" else "queued")
    if stage != "in the index":
        desk.publish(job, row)
    delivery = desk.draw()[0] if stage in ("drawn", "running") else None
    if stage == "running":
        desk.begin(delivery)
    elif stage == "drawn":
        desk.during = [lambda: desk.queue.give_back(0, "w1", [Hold(row.id, delivery.token)])]

    cancelled = jobs.cancel(row.id, actor="ada")

    row.refresh_from_db()
    assert row.cancel_requested_at == cancelled.cancel_requested_at is not None
    assert [r.execution_id for r in cancelled.still_running] == ([row.id] if stage == "running" else [])
    event = JobEvent.objects.get(action="cancel")
    assert (event.job_id, event.actor, json.loads(event.detail)) == (job.id, "ada", {"execution": row.id})
    if stage == "running":
        told, = desk.queue.control["w1"]
        assert json.loads(told) == {"stop": row.id, "token": delivery.token, "why": "cancel"}
    else:
        assert desk.events()[-1] == ("cancelled", row.id)
        assert desk.publish(job, row) == "already"
        assert desk.draw() == []


def test_a_cancel_that_could_not_be_told_is_repeated_by_the_audit(desk, job):
    row = desk.row(job)
    desk.publish(job, row)
    desk.queue.unavailable = True
    with pytest.warns(NotYetVoidedWarning, match="cancellation"):
        jobs.cancel(row)
    desk.queue.unavailable = False

    Audit(wiring.store(), desk.queue, desk.clock, CONFIG).step(0)

    assert desk.events() == [("cancelled", row.id)]


def test_what_has_ended_is_not_cancelled(desk, job):
    row = desk.row(job, state="succeeded")
    with pytest.raises(Conflict, match="succeeded"):
        jobs.cancel(row)
    with pytest.raises(NotFound):
        jobs.cancel("nobody's")
    assert not JobEvent.objects.filter(action="cancel").exists()


def test_a_second_cancel_changes_nothing_in_the_database(desk, job):
    row = desk.row(job)
    first = jobs.cancel(row).cancel_requested_at
    desk.clock.advance(us=5 * SECOND)

    assert jobs.cancel(row).cancel_requested_at == first
    assert JobEvent.objects.filter(action="cancel").count() == 1


def test_the_execution_of_a_job_that_is_gone_can_be_cancelled(desk, job):
    row = desk.row(job)
    desk.publish(job, row)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jobs.delete(job)
        jobs.cancel(row)
    assert desk.draw() == []
    assert PendingVoid.objects.get().version == GONE_VERSION


def test_r076_a_job_that_is_deleted_while_it_waits_never_runs(desk, job):
    """In a stream, or in a wheel that publishes it a moment later; and the sweep ends its row."""
    row, later = desk.row(job), desk.row(job, NOON + timedelta(seconds=2))
    desk.publish(job, row)
    jobs.delete(job)
    desk.clock.advance(us=3 * SECOND)

    assert desk.publish(job, SimpleNamespace(**vars(later))) == "voided"
    assert desk.draw() == []
    Execution.objects.filter(id=later.id).update(due_at=datetime(2026, 1, 1, tzinfo=UTC))
    Audit(wiring.store(), desk.queue, desk.clock, CONFIG).step(0)
    assert {key for event, key in desk.events() if event == "voided"} == {row.id, later.id}
