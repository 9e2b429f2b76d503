"""Invariant 7 as a table: each control call at each stage of an occurrence's way, on real tables, with time passed by hand.

After the call has returned, nothing of the old plan begins; what the new plan says does, and every row comes to its end.
The occurrence stands at nine o'clock; the worker does nothing until the call has returned.
"""
from datetime import timedelta

import pytest

from chrono_beat.core import ids
from chrono_beat.core.deliveries import Hold
from chrono_beat.services.audit import Audit
from chrono_beat_django import jobs, tenants, wiring
from chrono_beat_django.models import Execution, Job, PendingVoid, Tenant
from tests.django.tableworld import TableWorld
from tests.services.world import LEASE_US, NINE, SECOND, us

pytestmark = pytest.mark.django_db(transaction=True)

STAGES = {"in the index": -70, "claimed": -10, "in a wheel": -10, "in a stream": 1, "drawn": 1, "running": 1}
"""Stage -> seconds from nine o'clock at which the call is made."""

END_S = 64
LONGER_S = 94
"""Seconds from nine o'clock at which it is over, and where a plan needs longer to show."""


def every_minute():
    return {"every": 60, "start": NINE}


def once():
    return {"at": NINE}


def at_nine_daily():
    return {"cron": "0 9 * * *"}


def in_six_seconds(job, now):
    jobs.update(job, at=now + timedelta(seconds=6), kwargs={"plan": 2})
    return [6]


def in_forty_seconds(job, now):
    jobs.update(job, at=NINE + timedelta(seconds=40), kwargs={"plan": 2})
    return [round((NINE - now).total_seconds()) + 40]


def every(seconds):
    def edit(job, now):
        jobs.update(job, schedule=None, every=seconds, start=None, kwargs={"plan": 2})
        return list(range(seconds, 200, seconds))
    return edit


def of(call, *expected):
    def edit(job, now):
        call(job)
        return list(expected)
    return edit


# Name -> (schedule of the old plan, the call). The call returns what is expected to begin: seconds from the call on, or
# "old" for the rest of the unchanged schedule.
CHANGES = {
    "pause": (every_minute, of(jobs.pause)),
    "earlier": (once, in_six_seconds),
    "later": (once, in_forty_seconds),
    "another zone": (at_nine_daily, of(lambda job: jobs.update(job, timezone="Asia/Kolkata", kwargs={"plan": 2}))),
    "other arguments": (every_minute, of(lambda job: jobs.update(job, kwargs={"plan": 2}), "content")),
    "a shorter interval": (every_minute, every(25)),
    "a longer interval": (every_minute, every(90)),
    "delete": (every_minute, of(jobs.delete)),
    "delete the tenant": (every_minute, of(lambda job: tenants.delete(job.tenant))),
    "pause the tenant": (every_minute, of(lambda job: tenants.pause(job.tenant))),
    "cancel": (every_minute, of(lambda job: jobs.cancel(ids.execution_id(str(job.id), us(), 1)), "cancel")),
}


@pytest.fixture
def world(monkeypatch):
    PendingVoid.objects.all().delete()
    Tenant.objects.get_or_create(slug="acme")
    world = TableWorld(NINE - timedelta(seconds=72), monkeypatch)
    with wiring.override(queue=world.queue, store=world.store, now_us=world.now_us, config=world.config,
                         wait=lambda seconds: world.run(seconds)):
        yield world


def brought_to(world, stage):
    """Let the occurrence come so far; returns its delivery where there is one, and what has to happen after the call."""
    world.dispatcher("a")
    world.run_until(us(seconds=STAGES[stage]))
    if stage == "claimed":
        world.kill("a")                        # the rows stay; another one starts when the call has been made
    if stage not in ("drawn", "running"):
        return None
    delivery, = world.queue.draw(0, "chrono", 1, "w", LEASE_US)
    if stage == "running":
        world.begin(0, delivery)
    return delivery


def given_back_during_the_call(world, delivery):
    """The worker finds that the start window is over."""
    stock, looks = world.run, []

    def wait(seconds):
        looks.append(seconds)
        if len(looks) == 3:
            world.queue.give_back(0, "w", [Hold(delivery.execution_id, delivery.token)])
        stock(seconds)

    return wait


# What is in the index has no execution yet, so there is nothing to cancel.
CELLS = [(change, stage) for change in CHANGES for stage in STAGES if (change, stage) != ("cancel", "in the index")]


@pytest.mark.parametrize(("change", "stage"), CELLS)
def test_inv07_after_a_call_nothing_of_the_old_plan_begins_and_the_new_plan_does(world, change, stage):
    schedule, call = CHANGES[change]
    job = jobs.create(tenant="acme", name="j", task="tests.noop", kwargs={"plan": 1}, **schedule())
    delivery = brought_to(world, stage)
    if stage == "drawn":
        wiring._overridden["wait"] = given_back_during_the_call(world, delivery)
    before, called = list(world.begun), ids.from_us(world.now_us())

    expected = call(job, called)

    if stage == "claimed":
        world.dispatcher("b")
    held = stage == "drawn" and world.queue.still_held(0, Hold(delivery.execution_id, delivery.token))
    if held and world.now_us() - delivery.drawn_us <= world.config.start_window * SECOND:
        world.begin(0, delivery)               # the call has returned too early
    if stage == "running":
        world.finish(0, delivery)
    world.working = True
    audit = Audit(world.store, world.queue, world.flow, world.config)
    end_s = LONGER_S if change == "a longer interval" else END_S
    while world.now_us() < us(seconds=end_s):
        world.run(3)
        audit.step(0)
    begun = [(at, plan) for at, plan in world.begun[len(before):] if at < end_s]
    assert begun == sorted(wanted(expected, called, stage, end_s))
    assert before == ([(0, 1)] if stage == "running" else [])
    world.run(3)
    assert not Execution.objects.open().filter(due_at__lt=NINE + timedelta(seconds=end_s - 10)).exists() or (
        change == "pause the tenant")


def wanted(expected, called, stage, end_s):
    """Return what is to begin until the end: (seconds from nine o'clock, plan)."""
    if expected == ["content"]:
        return [(at, 2) for at in (0, 60) if not (at == 0 and stage == "running")]
    if expected == ["cancel"]:
        return [(60, 1)]
    since = round((called - NINE).total_seconds())
    return [(since + after, 2) for after in expected if since + after < end_s]


def by_call(job):
    jobs.update(job, kwargs={"plan": 2})


def by_sql(job):
    Job.objects.filter(id=job.id).update(kwargs='{"plan": 2}')


@pytest.mark.parametrize("edit", [by_call, by_sql])
@pytest.mark.parametrize("killed", [False, True])
def test_rule07_an_edit_of_the_content_carries_all_that_wait_over_also_under_misfire_latest(world, edit, killed):
    """They were published when they were due, and stand in the stream for longer than the dispatcher looks ahead."""
    job = jobs.create(tenant="acme", name="j", task="tests.noop", kwargs={"plan": 1}, misfire="latest", concurrency="allow",
                      **every_minute())
    world.dispatcher("a")
    world.run_until(us(seconds=170))
    if killed:
        world.kill("a")

    edit(job)

    if killed:
        world.dispatcher("b")
    world.run(3)
    world.working = True
    audit = Audit(world.store, world.queue, world.flow, world.config)
    while world.now_us() < us(seconds=190):
        world.run(3)
        audit.step(0)
    assert sorted(world.begun) == [(0, 2), (60, 2), (120, 2), (180, 2)]
    assert not Execution.objects.exclude(state="succeeded").filter(due_at__lt=NINE + timedelta(seconds=185)).exists()
