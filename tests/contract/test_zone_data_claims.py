"""Plans move to another release of the zone data while dispatchers claim and people edit: one occurrence a day stays one.

By the old data London's nine o'clock is 09:00Z, by the new ones it is an hour earlier ("Europe/Paris") or an hour later
("Atlantic/Azores"). Whatever comes between two steps, the runs of the following days are counted.
"""
from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

import pytest
from django.db import OperationalError, connections, transaction

from chrono_beat.core.config import Config
from chrono_beat.core.ids import to_us
from chrono_beat.core.policy import plan_claim
from chrono_beat.core.schedule import forget_shared
from chrono_beat.testing.patience import eventually
from chrono_beat_django import jobs, wiring, zone_data
from chrono_beat_django.models import Deployment, Execution, Job, JobEvent, PendingVoid
from chrono_beat_django.store import definitions
from tests.django.fakes import RecordingQueue

HOUR, MINUTE, DAY = timedelta(hours=1), timedelta(minutes=1), timedelta(days=1)
NINE = datetime(2026, 1, 8, 9, tzinfo=UTC)
EARLIER, LATER = "Europe/Paris", "Atlantic/Azores"
ALL = list(range(8))
BLOCKED = "SELECT count(*) FROM pg_locks WHERE NOT granted"      # pg_stat_activity stands still within a transaction

pytestmark = pytest.mark.postgres


class Deployed:
    """A deployment on PostgreSQL whose time is set by hand, and its one dispatcher."""

    def __init__(self, bench) -> None:
        self.bench, self.alias, self.store = bench, bench.alias, bench.store
        self.now = NINE - HOUR * 4
        self.epochs = self.store.take_partitions("a", ALL, 3_600_000_000)
        self.queue = RecordingQueue()

    def daily(self, name: str = "daily", **how) -> Job:
        return jobs.create(name=name, task="t", cron="0 9 * * *", timezone="Europe/London", **how)

    def job(self, job: Job) -> Job:
        return Job.objects.using(self.alias).get(id=job.id)

    def read(self) -> Callable[[], int]:
        """Do the first half of a look-ahead, and return the second one."""
        now_us = to_us(self.now)
        until_us = to_us(self.now + MINUTE)
        claims = [plan_claim(due, now_us, until_us, self.epochs[due.partition])
                  for due in self.store.due_jobs(ALL, until_us, 100)]
        return lambda: len(self.store.claim("a", claims))

    def look(self) -> int:
        return self.read()()

    def runs(self, job: Job) -> list[datetime]:
        """Return what runs of a job in all: rows of an older plan never do."""
        rows = Execution.objects.using(self.alias).filter(job_id=job.id, state="scheduled")
        return sorted(row.scheduled_at for row in rows if row.job_version >= self.job(job).plan_version)

    def live_until(self, end: datetime) -> None:
        """Look ahead each half minute; hours in which nothing is due are left out."""
        while self.now < end:
            self.look()
            following = Job.objects.using(self.alias).filter(next_run_at__isnull=False).order_by("next_run_at").first()
            nearest = end if following is None else following.next_run_at - MINUTE / 2
            self.now = min(max(self.now + MINUTE / 2, nearest), end)

    def moves(self) -> int:
        return JobEvent.objects.using(self.alias).filter(action="zone data").count()

    @contextmanager
    def beside(self, work: Callable[[], object]) -> Iterator[threading.Thread]:
        """Run *work* in another thread, on a connection of its own."""
        broken: list[BaseException] = []

        def run() -> None:
            try:
                work()
            except BaseException as error:
                broken.append(error)
            finally:
                connections[self.alias].close()

        thread = threading.Thread(target=run)
        thread.start()
        yield thread
        thread.join(30)
        assert not thread.is_alive() and not broken

    def counted(self, statements: list[str]):
        """Note the statements of this thread."""
        def note(execute, sql, params, many, context):
            statements.append(sql)
            return execute(sql, params, many, context)

        return connections[self.alias].execute_wrapper(note)

    def until_blocked(self) -> None:
        """Wait until somebody waits for a lock."""
        def blocked() -> int:
            with connections[self.alias].cursor() as cursor:
                return cursor.execute(BLOCKED).fetchone()[0]

        eventually(blocked, 20, what="somebody waits for a lock")


@pytest.fixture
def deployed(postgres_bench, release, monkeypatch):
    alias = postgres_bench.alias
    monkeypatch.setattr(definitions, "alias", lambda: alias)
    Deployment.objects.using(alias).update_or_create(
        id=1, defaults={"partitions": 8, "lanes": 1, "zone_data": "2089a"})
    release("2089a", "Europe/London")
    found = Deployed(postgres_bench)
    with wiring.override(queue=found.queue, store=found.store, now_us=lambda: to_us(found.now),
                         config=Config(partitions=8, lanes=1)):
        yield found


def recompute() -> None:
    """Run the whole pass, as a process that has just been started with the data in place."""
    forget_shared()
    work = zone_data.Work()
    while work():
        pass


def between(monkeypatch, call: Callable[[], object]) -> None:
    """Let something happen once, between the recompute's reading of a batch and its first move."""
    original, waits = zone_data._apply, [call]

    def apply(job):
        while waits:
            waits.pop()()
        return original(job)

    monkeypatch.setattr(zone_data, "_apply", apply)


def instants(zone: str, first: datetime, days: int) -> list[datetime]:
    moved = {EARLIER: -HOUR, LATER: HOUR}[zone]
    return [first + moved + day * DAY for day in range(days)]


@pytest.mark.parametrize("zone", [EARLIER, LATER])
def test_inv02_a_claim_that_was_read_before_the_recompute_and_made_after_it_changes_nothing(deployed, release, zone):
    job = deployed.daily()
    deployed.now = NINE - MINUTE / 2
    make_claim = deployed.read()
    release("2090a", zone)
    recompute()

    assert make_claim() == 0

    deployed.live_until(NINE + 3 * DAY - 2 * HOUR)
    assert deployed.runs(job) == instants(zone, NINE, 3)


@pytest.mark.parametrize("zone", [EARLIER, LATER])
def test_inv02_a_claim_between_the_recomputes_reading_and_its_move_is_seen_by_the_move(
        deployed, release, monkeypatch, zone):
    job = deployed.daily()
    deployed.now = NINE - MINUTE / 2
    make_claim, made = deployed.read(), []
    release("2090a", zone)
    between(monkeypatch, lambda: made.append(make_claim()))

    recompute()

    assert (made, deployed.runs(job)) == ([1], [])
    assert deployed.queue.voids == [(0, str(job.id), 2)]
    deployed.live_until(NINE + 3 * DAY - 2 * HOUR)
    assert deployed.runs(job) == instants(zone, NINE, 3)


def test_inv02_a_claim_that_waits_for_the_moves_lock_changes_nothing(deployed, release, monkeypatch):
    job = deployed.daily()
    deployed.now = NINE - MINUTE / 2
    make_claim, made = deployed.read(), []
    release("2090a", LATER)
    original = definitions.write_event

    def write_event(*arguments):
        beside.enter()
        deployed.until_blocked()
        return original(*arguments)

    beside = Late(lambda: deployed.beside(lambda: made.append(make_claim())))
    monkeypatch.setattr(definitions, "write_event", write_event)
    recompute()
    beside.leave()

    assert made == [0]
    monkeypatch.setattr(definitions, "write_event", original)
    deployed.live_until(NINE + 3 * DAY - 2 * HOUR)
    assert deployed.runs(job) == instants(LATER, NINE, 3)


def test_inv02_a_move_that_waits_for_a_claims_lock_moves_what_was_claimed(deployed, release, monkeypatch):
    job = deployed.daily()
    deployed.now = NINE - MINUTE / 2
    make_claim, has_it = deployed.read(), threading.Event()
    release("2090a", LATER)

    def claim() -> None:
        with transaction.atomic(using=deployed.alias):
            assert make_claim() == 1
            has_it.set()
            deployed.until_blocked()

    beside = Late(lambda: deployed.beside(claim))

    def claim_holds_it() -> None:
        beside.enter()
        assert has_it.wait(20)

    between(monkeypatch, claim_holds_it)
    recompute()
    beside.leave()

    assert deployed.runs(job) == []
    deployed.live_until(NINE + 3 * DAY - 2 * HOUR)
    assert deployed.runs(job) == instants(LATER, NINE, 3)


class Late:
    """A context that is entered within one function and left in another."""

    def __init__(self, make) -> None:
        self._make = make

    def enter(self) -> None:
        self._context = self._make()
        self._context.__enter__()

    def leave(self) -> None:
        self._context.__exit__(None, None, None)


@pytest.mark.parametrize("zone", [EARLIER, LATER])
def test_inv02_what_old_data_plan_after_the_recompute_is_put_right_by_the_next_claim(deployed, release, zone):
    """Both data versions in one deployment: the dispatcher that claims today's run still has the old ones."""
    job = deployed.daily()
    deployed.now = NINE + timedelta(seconds=1)                 # what is due fires as it was planned
    make_claim = deployed.read()
    release("2090a", zone)
    recompute()

    assert make_claim() == 1
    assert deployed.job(job).next_run_at == NINE + DAY, "by the old data"

    deployed.live_until(NINE + 4 * DAY - 2 * HOUR)
    put_right = NINE + DAY if zone == EARLIER else NINE + DAY + HOUR      # an earlier instant has passed by then
    assert deployed.runs(job) == [NINE, put_right, *instants(zone, NINE + 2 * DAY, 2)]


def test_what_fires_within_seconds_fires_as_it_was_planned(deployed, release):
    job = deployed.daily()
    deployed.now = NINE - MINUTE / 2
    assert deployed.look() == 1
    deployed.now = NINE - timedelta(seconds=2)
    release("2090a", LATER)

    recompute()

    assert (deployed.runs(job), deployed.queue.voids) == ([NINE], [])
    deployed.live_until(NINE + 3 * DAY - 2 * HOUR)
    assert deployed.runs(job) == [NINE, *instants(LATER, NINE + DAY, 2)]


@pytest.mark.parametrize("edit, following", [
    (lambda job: jobs.update(job, cron="0 12 * * *"), NINE + 4 * HOUR),
    (lambda job: jobs.update(job, kwargs={"n": 1}), NINE + HOUR),
    (lambda job: jobs.trigger(job), NINE + HOUR),
    (lambda job: Job.objects.using(definitions.alias()).filter(id=job.id).update(priority=1), NINE + HOUR),
    (jobs.pause, None),
], ids=["schedule", "content", "trigger", "by SQL", "pause"])
def test_inv07_an_edit_between_reading_and_move_stands(deployed, release, monkeypatch, edit, following):
    job = deployed.daily()
    release("2090a", LATER)
    between(monkeypatch, lambda: edit(job))

    recompute()

    assert deployed.job(job).next_run_at == following
    if following is None:
        assert not jobs.resume(job).paused and deployed.job(job).next_run_at == NINE + HOUR


def test_inv07_a_job_deleted_between_reading_and_move_stays_deleted(deployed, release, monkeypatch):
    job, other = deployed.daily(), deployed.daily("other")
    release("2090a", LATER)
    between(monkeypatch, lambda: jobs.delete(job))

    recompute()

    assert list(Job.objects.using(deployed.alias).values_list("id", "next_run_at")) == [(other.id, NINE + HOUR)]


def test_a_paused_job_is_left_alone_and_resumes_by_the_new_data(deployed, release):
    job = deployed.daily(paused=True)
    release("2090a", EARLIER)

    recompute()

    assert (deployed.job(job).next_run_at, deployed.job(job).version) == (None, 1)
    jobs.resume(job)
    assert deployed.job(job).next_run_at == NINE - HOUR


@pytest.mark.parametrize("when", ["before", "after"])
def test_inv02_a_recompute_that_breaks_off_anywhere_is_finished_by_the_next_one(deployed, release, monkeypatch, when):
    """At each statement in turn; one job's occurrence is claimed already."""
    monkeypatch.setattr(zone_data, "BATCH", 2)
    claimed, others = deployed.daily("claimed"), [deployed.daily(f"daily {number}") for number in range(2)]
    before = {job.id: Job.objects.using(deployed.alias).filter(id=job.id).values().get() for job in (claimed, *others)}
    deployed.now = NINE - MINUTE / 2
    statements, number = [], 0
    while len(statements) >= number:
        number += 1
        statements.clear()
        release("2089a", "Europe/London")
        forget_shared()
        Deployment.objects.using(deployed.alias).update(zone_data="2089a")
        for model in (Execution, JobEvent, Job, PendingVoid):
            model.objects.using(deployed.alias).all().delete()
        Job.objects.using(deployed.alias).bulk_create([Job(**columns) for columns in before.values()])
        Job.objects.using(deployed.alias).exclude(id=claimed.id).update(next_run_at=NINE + DAY)
        assert deployed.look() == 1
        release(f"2090a{number}", LATER)
        forget_shared()

        work = zone_data.Work()
        with deployed.counted(statements), deployed.bench.fault(number, when=when), suppress(OperationalError):
            while work():
                pass
        while work():                                          # the service calls it again
            pass

        assert deployed.job(claimed).next_run_at == NINE + HOUR, number
        assert {deployed.job(job).next_run_at for job in others} == {NINE + DAY + HOUR}, number
        assert (deployed.moves(), deployed.runs(claimed)) == (3, []), number
        void = PendingVoid.objects.using(deployed.alias).get()
        assert (void.job_id, void.version) == (claimed.id, 2), "Redis is told it by the dispatchers, where not here"
        assert zone_data.planned_with() == f"2090a{number}"
    assert number > 20


def test_inv02_two_recomputes_at_once_move_each_job_once(deployed, release, monkeypatch):
    """Both have read the batch before either moves its first job."""
    both = [deployed.daily(f"daily {number}") for number in range(6)]
    claimed = both[0]
    Job.objects.using(deployed.alias).exclude(id=claimed.id).update(next_run_at=NINE + DAY)
    deployed.now = NINE - MINUTE / 2
    assert deployed.look() == 1
    release("2090a", LATER)
    forget_shared()
    barrier, original, met = threading.Barrier(2, timeout=20), zone_data._apply, threading.local()

    def apply(job):
        if not getattr(met, "yes", False):
            met.yes = True
            barrier.wait()
        return original(job)

    monkeypatch.setattr(zone_data, "_apply", apply)

    def recompute_too() -> None:
        work = zone_data.Work()
        while work():
            pass

    with deployed.beside(recompute_too):
        recompute_too()

    assert (deployed.moves(), len(deployed.queue.voids)) == (6, 1)
    assert (deployed.job(claimed).version, deployed.job(claimed).next_run_at) == (2, NINE + HOUR)
    deployed.live_until(NINE + 3 * DAY - 2 * HOUR)
    assert deployed.runs(claimed) == instants(LATER, NINE, 3)
    for job in both[1:]:
        assert deployed.runs(job) == instants(LATER, NINE + DAY, 2)


