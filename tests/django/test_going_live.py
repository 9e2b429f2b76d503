"""A shadow goes live, is made a shadow again and goes live once more, through dispatcher, streams and relay.

Each change is made at each stage of an occurrence's way. What is live is sent once, with its present content, and of a
shadow nothing is sent, whatever had been claimed or published before. The occurrence stands at nine o'clock.
"""
from collections import Counter
from datetime import timedelta
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.schedules import crontab
from click.testing import CliRunner

import tests.services.world
from chrono_beat.celery import ChronoBeat
from chrono_beat.celery.commands import chrono
from chrono_beat.core import imports
from chrono_beat.core.deliveries import Hold
from chrono_beat.services.audit import Audit
from chrono_beat.services.relay import Relay
from chrono_beat_django import jobs, shadowing, wiring
from chrono_beat_django.importing import bring_in
from chrono_beat_django.models import Alert, Execution, Job, PendingVoid, Tenant
from tests.django.tableworld import TableWorld
from tests.django.trial import PacedRelay
from tests.services.test_relay import Broker
from tests.services.world import LEASE_US, NINE, SECOND, us

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.redis]

STAGES = {"in the index": -70, "claimed": -12, "in a wheel": -12, "in a stream": 1, "drawn": 1, "at its end": 1}
"""Stage -> seconds from nine o'clock at which the change is made; going live keeps ten seconds away from an occurrence."""


class Site:
    """Dispatcher, relay, worker and audit; the worker and the relay rest while an occurrence is brought to a stage."""

    def __init__(self, world):
        self.world, self.broker = world, Broker()
        self.relay = Relay(world.store, world.queue, self.broker, world.flow, world.config, member="a")
        self.audit = Audit(world.store, world.queue, world.flow, world.config)
        self.app = Celery("moving", set_as_current=False)
        ChronoBeat(self.app)
        self.delivery = None

    def bring_in(self, plan):
        """Import the entry, which fires each minute from nine o'clock on."""
        entry = {"bill": {"task": "shop.bill", "schedule": crontab(minute="0-5"), "kwargs": {"plan": plan}}}
        line, = bring_in(imports.from_beat_schedule(entry, "UTC"), prefix="beat_schedule:", tenant="default", shadow=True,
                         dry_run=False)
        assert line.action in ("create", "update")
        return self.job()

    def job(self):
        return Job.objects.get(name="bill")

    def bring_to(self, stage):
        """Let the occurrence at nine o'clock come so far; what ends with it is the turn of its relay or its worker."""
        self.world.dispatcher("a")
        self.world.run_until(us(seconds=STAGES[stage]))
        if stage == "claimed":
            self.world.kill("a")                      # the row stays; another dispatcher goes on after the change

    def chrono(self, *line):
        done = CliRunner().invoke(chrono, line, obj=SimpleNamespace(app=self.app))
        assert done.exit_code == 0, done.output

    def go_on(self, until_seconds):
        """Let everybody work up to so many seconds from nine o'clock; returns what was sent meanwhile."""
        if not self.world.members:
            self.world.dispatcher("b")
        if not self.world.working:
            self.world.working = True
            self.world.add(PacedRelay(self.relay))
        before = len(self.world.begun)
        while self.world.now_us() < us(seconds=until_seconds):
            self.world.run(3)
            self.audit.step(0)
        return sorted(self.world.begun[before:])

    def shadows(self):
        """Return how often which occurrence ended as a shadow, in seconds from nine o'clock."""
        rows = Execution.objects.filter(state="succeeded", reason="shadow")
        return Counter(round((row.scheduled_at - NINE).total_seconds()) for row in rows)

    def ends(self):
        """Return how the rows of what was due ended."""
        due = Execution.objects.filter(due_at__lt=NINE + timedelta(seconds=(self.world.now_us() - us()) // 1_000_000 - 5))
        return {(row.state, row.reason) for row in due}


@pytest.fixture
def site(request, monkeypatch):
    PendingVoid.objects.all().delete()
    Tenant.objects.get_or_create(slug="default")
    monkeypatch.setattr(tests.services.world, "WORK_EVERY_US", 500_000)
    url = request.getfixturevalue("redis_url") if request.param == "redis" else None
    world = TableWorld(NINE - timedelta(seconds=72), monkeypatch, url)
    with wiring.override(queue=world.queue, store=world.store, now_us=world.now_us, config=world.config,
                         wait=lambda seconds: world.run(seconds)):
        yield Site(world)


def at_each(*stages):
    """Run a test at each stage, and where the stage is one of the queue's with a real Redis, too."""
    return pytest.mark.parametrize(("site", "stage"), [
        *(("memory", stage) for stage in stages),
        *(("redis", stage) for stage in stages if STAGES[stage.partition(",")[0]] > 0)], indirect=["site"])


def in_the_relays_hands(site, change, monkeypatch, *, looked):
    """Make a change while the relay has drawn the occurrence, before or after it has looked whose it is."""
    stock = site.world.store.message_queues

    def message_queues(job_ids):
        found = stock(job_ids) if looked else None
        change()
        return found or stock(job_ids)

    with monkeypatch.context() as patch:
        patch.setattr(site.world.store, "message_queues", message_queues)
        site.relay.turn(0)


@at_each("in the index", "claimed", "in a wheel", "in a stream", "drawn, not looked at", "drawn, looked at", "at its end")
def test_a_shadow_that_goes_live_sends_what_is_due_later_once_and_with_its_present_content(site, stage, monkeypatch):
    site.bring_in(plan=1)
    site.bring_to(stage.partition(",")[0])

    def go_live():
        site.bring_in(plan=2)
        shadowing.go_live(site.job())

    if stage.startswith("drawn"):
        in_the_relays_hands(site, go_live, monkeypatch, looked=stage == "drawn, looked at")
    else:
        if stage == "at its end":
            site.relay.turn(0)
        go_live()

    due = STAGES[stage.partition(",")[0]] > 0
    assert site.go_on(64) == ([] if due else [(0, 2)]) + [(60, 2)]
    assert site.shadows() == ({0: 1} if stage == "at its end" else {})
    assert site.ends() <= {("succeeded", ""), ("succeeded", "shadow"), ("cancelled", "")}
    assert site.broker.messages == [] and not Alert.objects.exists()


@at_each(*STAGES)
def test_a_job_that_is_made_a_shadow_again_sends_nothing_until_it_goes_live_with_its_new_content(site, stage):
    """What was under way and had not begun becomes a shadow: the old scheduler's entry is started only now."""
    site.bring_in(plan=1)
    shadowing.go_live(site.job())
    site.bring_to(stage)
    drawn = site.world.queue.draw(0, "chrono", 1, "w", LEASE_US) if stage in ("drawn", "at its end") else []
    begun = [(0, 1)] if stage == "at its end" else []
    for delivery in drawn if begun else ():
        site.world.begin(0, delivery)

    site.chrono("jobs", "update", "bill", "--target-kind", "shadow")

    if drawn and not begun:
        hold = Hold(drawn[0].execution_id, drawn[0].token)
        waited = site.world.now_us() - drawn[0].drawn_us >= site.world.config.start_window * SECOND
        assert waited or not site.world.queue.still_held(0, hold)
        site.world.queue.give_back(0, "w", [hold])
    for delivery in drawn if begun else ():
        site.world.finish(0, delivery)
    assert site.world.begun == begun
    assert site.go_on(25) == [] and site.shadows() == ({} if begun else {0: 1})

    jobs.update(site.job(), kwargs={"plan": 2})
    shadowing.go_live(site.job())

    assert site.go_on(64) == [(60, 2)]
    assert site.shadows() == ({} if begun else {0: 1})
    assert site.ends() <= {("succeeded", ""), ("succeeded", "shadow")}
    assert site.broker.messages == [] and not Alert.objects.exists()
