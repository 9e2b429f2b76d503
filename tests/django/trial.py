"""An old beat and the shadows of its entries side by side, on one virtual clock.

The beat is Celery's own scheduler with its observer; the shadows go through dispatcher, streams, relay and recorder in
memory. What became of them is put into the tables that the report reads.
"""
import json
from contextlib import contextmanager
from types import SimpleNamespace

from celery import Celery
from celery.beat import Scheduler
from celery.schedules import maybe_schedule
from click.testing import CliRunner

from chrono_beat.celery import ChronoBeat, observer
from chrono_beat.celery.commands import chrono
from chrono_beat.core import ids, imports
from chrono_beat.core.config import Config
from chrono_beat.services.relay import Relay
from chrono_beat.testing.memory_jobs import MemoryJob
from chrono_beat_django import observing, wiring
from chrono_beat_django.importing import bring_in
from chrono_beat_django.models import Execution, Job, Tenant
from tests.django.fakes import RecordingQueue
from tests.services.test_relay import Broker
from tests.services.world import NINE, World

LONGEST_TICK = 5.0
RELAY_EVERY_US = 400_000
MIRRORED = ("name", "tenant", "partition", "schedule_kind", "expression", "timezone", "task", "target_kind", "queue", "pool",
            "version", "plan_version", "paused")


class PacedRelay:
    """A relay whose waiting for work takes time; in memory it returns at once, and would never let the clock go on."""

    def __init__(self, relay):
        self.relay = relay

    def turn(self, now_us):
        return max(self.relay.turn(now_us), RELAY_EVERY_US)


class Beat:
    """A ``celery beat`` that is observed."""

    def __init__(self, trial, entries):
        self.app = trial.app_of(entries)
        self.sent = []
        self.scheduler = Scheduler(self.app)
        self.scheduler.send_task = lambda name, *args, **kwargs: self.sent.append((name, trial.now()))
        self.observer = observer.Observer(lambda: observing, "old.Beat", monotonic=lambda: trial.world.flow.monotonic_us() / 1e6)
        self.observer.start = lambda: None
        observer.observe(self.scheduler, self.observer)

    def stop(self):
        self.scheduler.close()
        assert self.observer.write(ended=True)


class Trial:
    """Both sides.

    Args:
        entries: of ``beat_schedule``, by name: a schedule for each.
    """

    def __init__(self, entries):
        self.world = World(start=NINE)
        self.world.add(PacedRelay(
            Relay(self.world.store, self.world.queue, Broker(), self.world.flow, self.world.config, member="a")))
        self.world.dispatcher()
        self.world.run(seconds=2)
        self.entries, self.beats = entries, []

    def now(self):
        return ids.from_us(self.world.now_us())

    def app_of(self, entries):
        app = Celery("old", broker="memory://", set_as_current=False)
        ChronoBeat(app)
        app.now = self.now
        schedules = {name: maybe_schedule(when, app=app) for name, when in entries.items()}
        for when in schedules.values():
            when.app, when.nowfun = app, self.now
        app.conf.update(result_expires=None, beat_schedule={
            name: {"task": f"shop.{name}", "schedule": when} for name, when in schedules.items()})
        return app

    def beat(self, entries=None):
        self.beats.append(Beat(self, entries or self.entries))
        return self.beats[-1]

    def bring_in(self, entries=None, **options):
        """Import the entries as shadows, and tell the dispatchers' store of them."""
        schedule = self.app_of(entries or self.entries).conf.beat_schedule
        bring_in(imports.from_beat_schedule(schedule, "UTC"), prefix="beat_schedule:", tenant="default",
                 **({"shadow": True, "dry_run": False} | options))
        for job in Job.objects.all():
            if str(job.id) not in self.world.store.jobs:
                self.world.store.add_job(MemoryJob(
                    job_id=str(job.id), next_run_us=job.next_run_at and ids.to_us(job.next_run_at),
                    anchor_us=job.anchor_at and ids.to_us(job.anchor_at), **{field: getattr(job, field) for field in MIRRORED}))

    def run(self, minutes):
        """Let beats and services do what is due."""
        end = self.world.now_us() + round(minutes * 60e6)
        while self.world.now_us() < end:
            waits = [beat.scheduler.tick() for beat in self.beats]
            self.world.run(us=max(10_000, min(round(1e6 * min(waits, default=LONGEST_TICK)), round(1e6 * LONGEST_TICK),
                                              end - self.world.now_us())))
        for beat in self.beats:
            assert beat.observer.write()

    def mirror(self):
        Execution.objects.all().delete()

        def at(us):
            return us and ids.from_us(us)

        Execution.objects.bulk_create([Execution(
            id=row.execution_id, job_id=row.job_id, tenant=row.tenant, job_name=row.job_name, partition=row.partition,
            scheduled_at=at(row.scheduled_us), due_at=at(row.due_us), first_due_at=at(row.first_due_us), attempt=row.attempt,
            kind=row.kind, state=row.state, reason=row.reason, started_at=at(row.started_us), finished_at=at(row.finished_us),
            missed_count=row.missed_count,
        ) for row in self.world.store.rows()])

    def report(self, *line):
        """Return the exit status and what ``chrono shadow report`` says, by entry."""
        self.mirror()
        done = CliRunner().invoke(chrono, ["shadow", "report", "--json", *line],
                                  obj=SimpleNamespace(app=self.app_of(self.entries)))
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        entries = json.loads(done.stdout)["entries"]
        return done.exit_code, {entry["job"].partition("/")[2] or entry["entry"]: SimpleNamespace(**entry) for entry in entries}


@contextmanager
def trial_of(entries):
    """Yield a trial in the test's database."""
    Tenant.objects.get_or_create(slug="default")
    trial = Trial(entries)
    with wiring.override(queue=RecordingQueue(), now_us=trial.world.now_us, config=Config(partitions=8, observe_beat=True)):
        yield trial
