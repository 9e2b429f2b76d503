"""What the beats of others send is noted under the name that an import gives the entry, and only what was really sent."""
from datetime import UTC, datetime, timedelta

import pytest
from celery import Celery, signals
from celery.beat import Scheduler, Service
from celery.schedules import schedule
from django.db import OperationalError
from django_celery_beat.models import IntervalSchedule, PeriodicTask
from django_celery_beat.schedulers import DatabaseScheduler
from redbeat import RedBeatScheduler

from chrono_beat.celery import ChronoBeat, observer
from chrono_beat.celery.beat import ChronoScheduler
from chrono_beat.core import ids
from chrono_beat.core.config import Config, find_problems
from chrono_beat_django import observing, wiring
from chrono_beat_django.models import BeatFire, BeatWatch
from tests.django.fakes import RecordingQueue

NOON = datetime(2026, 1, 7, 12, tzinfo=UTC)
ENTRIES = {"poll": {"task": "shop.poll", "schedule": schedule(timedelta(0))}}


class Desk:
    """Two clocks, the observer that was made for a beat, and what it is written by."""

    def __init__(self):
        self.seconds, self.made = 1_000.0, []

    def now_us(self):
        return ids.to_us(NOON) + round((self.seconds - 1_000) * 1e6)

    def make(self, notebook, kind):
        self.made.append(real(notebook, kind, monotonic=lambda: self.seconds))
        self.made[-1].start = lambda: None          # its thread; tests write themselves
        return self.made[-1]

    def beat(self, scheduler, broker="memory://", **conf):
        app = Celery("old", broker=broker, set_as_current=False)
        ChronoBeat(app)
        app.conf.update(conf)
        service = Service(app, scheduler_cls=scheduler, schedule_filename="unused")
        signals.beat_init.send(sender=service)
        return service.scheduler


real = observer.Observer


@pytest.fixture
def desk(transactional_db, monkeypatch):
    desk = Desk()
    monkeypatch.setattr(observer, "Observer", desk.make)
    with wiring.override(queue=RecordingQueue(), now_us=desk.now_us, config=Config(partitions=8, observe_beat=True)):
        yield desk


def noted():
    return [(fire.origin, fire.name, fire.task, fire.sent_at) for fire in BeatFire.objects.order_by("id")]


def test_what_celerys_own_scheduler_sends_is_noted_by_the_databases_clock(desk):
    beat = desk.beat(Scheduler, beat_schedule=ENTRIES)
    desk.seconds += 3
    beat.tick()
    desk.seconds += 4

    assert desk.made[0].write() and desk.made[0].write()

    assert noted() == [("beat_schedule:poll", "poll", "shop.poll", NOON + timedelta(seconds=3))]
    watch = BeatWatch.objects.get()
    assert (watch.scheduler, watch.began_at, watch.seen_until) == (
        "celery.beat.Scheduler", NOON, NOON + timedelta(seconds=7))


def test_what_django_celery_beat_sends_is_noted_under_its_row(desk):
    every = IntervalSchedule.objects.create(every=1, period="seconds")
    row = PeriodicTask.objects.create(name="row", task="t", interval=every, last_run_at=NOON - timedelta(days=365))
    beat = desk.beat(DatabaseScheduler)
    while not BeatFire.objects.exists():
        beat.tick()
        desk.made[0].write()

    assert (f"django_celery_beat:{row.pk}", "row", "t", NOON) in noted()


@pytest.mark.redis
def test_what_redbeat_sends_is_noted_under_its_key(desk, redis_url):
    beat = desk.beat(RedBeatScheduler, broker=redis_url, redbeat_redis_url=redis_url, redbeat_lock_key=None,
                     beat_schedule={"poll": ENTRIES["poll"] | {"schedule": schedule(timedelta(microseconds=1))}})
    beat.tick()
    desk.made[0].write()

    assert ("redbeat:poll", "poll", "shop.poll", NOON) in noted()


def test_a_message_that_could_not_be_sent_is_not_noted_and_ends_nothing(desk):
    beat = desk.beat(Scheduler, beat_schedule=ENTRIES)
    beat.app.amqp.__dict__["send_task_message"] = lambda *args, **kwargs: 1 / 0

    beat.tick()
    desk.seconds += 2

    assert desk.made[0].write() and noted() == []
    assert BeatWatch.objects.get().seen_until == NOON + timedelta(seconds=2)


@pytest.mark.parametrize("is_sent", [False, True])
def test_a_beat_that_is_ended_while_it_sends_is_known_only_up_to_that_message(desk, is_sent):
    """Celery's beat ends on SIGTERM by an exception out of whatever it does then."""
    beat = desk.beat(Scheduler, beat_schedule=ENTRIES)
    send = beat.app.amqp.send_task_message

    def ended(*args, **kwargs):
        if is_sent:
            send(*args, **kwargs)
        desk.seconds += 1
        assert desk.made[0].write()
        raise SystemExit(0)

    beat.app.amqp.__dict__["send_task_message"] = ended
    desk.seconds += 3

    with pytest.raises(SystemExit):
        beat.tick()

    desk.seconds += 1
    assert desk.made[0].write(ended=True) and noted() == []
    watch = BeatWatch.objects.get()
    assert (watch.seen_until, watch.ended) == (NOON + timedelta(seconds=3), False)


def test_while_the_database_is_away_fires_wait_and_beat_goes_on(desk, monkeypatch, caplog):
    beat = desk.beat(Scheduler, beat_schedule=ENTRIES)
    with monkeypatch.context() as patch:
        patch.setattr(BeatFire.objects, "using", lambda alias: (_ for _ in ()).throw(OperationalError("away")))
        beat.tick()
        assert not desk.made[0].write() and not desk.made[0].write()
        told = [record for record in caplog.records if record.name == observer.__name__]
        assert (len(told), BeatWatch.objects.count()) == (1, 0)
    desk.seconds += 9

    assert desk.made[0].write()

    assert [fire[3] for fire in noted()] == [NOON]


def test_what_is_too_much_to_hold_is_dropped_with_the_watch_so_that_a_gap_is_known(desk, monkeypatch):
    monkeypatch.setattr(observer, "MAX_WAITING", 2)
    beat = desk.beat(Scheduler, beat_schedule=ENTRIES)
    desk.made[0].write()
    for _ in range(3):
        desk.seconds += 1
        beat.tick()
    desk.seconds += 1

    desk.made[0].write()

    assert [fire[3] for fire in noted()] == [NOON + timedelta(seconds=3)]
    assert list(BeatWatch.objects.order_by("id").values_list("began_at", "seen_until")) == [
        (NOON, NOON), (NOON + timedelta(seconds=3), NOON + timedelta(seconds=4))]


def test_the_thread_starts_with_the_first_tick_and_writes_the_last_of_it_at_the_end():
    """A redbeat that stands by waits for its lock before it ticks: what another one sends it does not see."""
    written = []

    class Notebook:
        def now_us(self):
            return 0

        def note(self, seen):
            written.append(seen)
            return 1

    app = Celery("old", broker="memory://", set_as_current=False)
    app.conf.beat_schedule = ENTRIES
    beat, watching = Scheduler(app, {}), real(Notebook, "s")
    observer.observe(beat, watching)
    assert watching._thread is None

    beat.tick()
    beat.close()

    assert not watching._thread.is_alive() and [seen.ended for seen in written][-1:] == [True]
    assert [fire.name for seen in written for fire in seen.fires] == ["poll"]


@pytest.mark.parametrize("observe", [False, True])
def test_nothing_is_observed_unless_the_settings_say_so_nor_our_own_scheduler(desk, observe):
    desk.made.clear()
    with wiring.override(config=Config(partitions=8, observe_beat=observe)):
        desk.beat(lambda app, **kwargs: ChronoScheduler(app, lazy=True) if observe else Scheduler(app, lazy=True))

    assert desk.made == []
    assert [problem.field for problem in find_problems({"OBSERVE_BEAT": 1})] == ["OBSERVE_BEAT"]
    assert not find_problems({"OBSERVE_BEAT": True})


def test_an_observer_that_cannot_begin_leaves_beat_alone(desk, monkeypatch, caplog):
    monkeypatch.setattr(observer, "observe", lambda *args: 1 / 0)

    desk.beat(Scheduler, beat_schedule=ENTRIES).tick()

    assert "is not observed" in caplog.text


def test_a_watch_whose_row_is_gone_begins_anew(desk):
    first = observing.note(observer.Noted(None, "s", 0, 1, ()))
    BeatWatch.objects.all().delete()

    assert observing.note(observer.Noted(first, "s", 0, 2, ())) != first or BeatWatch.objects.count() == 1
