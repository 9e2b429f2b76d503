"""``ChronoBeat(app)`` and what it changes in an app, without a worker process."""
import os
import sys
import time
import types

import pytest
from celery import Celery, signals
from celery.app.amqp import AMQP
from celery.exceptions import Ignore, Reject, Retry, TaskRevokedError, Terminated, WorkerLostError
from kombu.utils.imports import symbol_by_name

from chrono_beat.celery import ChronoBeat
from chrono_beat.celery.amqp import ChronoAMQP
from chrono_beat.celery.context import current
from chrono_beat.celery.worker import endings, pools
from chrono_beat.celery.worker.held import HeldDelivery
from chrono_beat.celery.worker.io import WorkerIO
from chrono_beat.celery.worker.request import LeasedRequest
from chrono_beat.celery.worker.stops import Stops
from chrono_beat.celery.worker.window import NOT_BEGUN, WindowedPool, is_not_begun
from chrono_beat.core.config import Config
from chrono_beat.core.deliveries import Delivery, Hold
from chrono_beat.core.errors import MisconfiguredError, QueueUnavailable
from chrono_beat.core.records import PublishItem
from chrono_beat.testing.clock import ManualClock
from chrono_beat.testing.memory_queue import MemoryQueueStore

pytestmark = pytest.mark.celery


class Queue:
    """Takes down what is stored."""

    def __init__(self, failures=0):
        self.stored, self.failures = [], failures

    def store_retry(self, lane, hold, retry):
        if self.failures:
            self.failures -= 1
            raise QueueUnavailable("gone")
        self.stored.append((lane, hold, retry))
        return True

    def still_held(self, lane, hold):
        return hold.token == "1.7"


@pytest.fixture
def wiring():
    module = types.ModuleType("wiring_of_this_test")
    module.config = lambda: Config()
    module.queue = Queue
    module.new_queue = Queue
    sys.modules[module.__name__] = module
    yield module.__name__
    del sys.modules[module.__name__]


@pytest.fixture
def app(wiring):
    app = Celery("test", broker="memory://", set_as_current=False)
    ChronoBeat(app, wiring=wiring)
    yield app
    app.close()


def test_nothing_of_the_configuration_is_read_too_early():
    app = Celery("early", set_as_current=False)

    ChronoBeat(app, wiring="no.such.module")

    assert not app.configured
    app.config_from_object({"task_default_queue": "mine"})
    assert app.conf.task_default_queue == "mine"
    assert isinstance(app.amqp, ChronoAMQP)


def test_an_app_whose_amqp_is_in_use_is_refused():
    app = Celery("late", set_as_current=False)
    assert app.amqp

    with pytest.raises(MisconfiguredError, match="too late"):
        ChronoBeat(app)


def test_a_class_of_the_projects_own_stays_the_base():
    class Own(AMQP):
        pass

    app = Celery("own", set_as_current=False, amqp=Own)
    ChronoBeat(app)
    ChronoBeat(app)

    assert isinstance(app.amqp, Own)
    assert len([step for step in app.steps["consumer"] if step.__name__.endswith("ChronoStep")]) == 1


def test_a_missing_composition_root_is_named(app):
    app.chrono_beat.wiring = "no_such_module.wiring"

    with pytest.raises(MisconfiguredError, match="no_such_module.wiring"):
        assert app.chrono_beat.config


def test_the_default_composition_root_is_djangos():
    beat = ChronoBeat(Celery("django", set_as_current=False))

    assert beat.root.__name__ == "chrono_beat_django.wiring"
    assert beat.config.default_pool == "chrono"
    assert beat.new_queue() is not beat.queue


def test_only_who_is_waited_for_sends_with_the_queue_that_gives_up_soon(app):
    beat = app.chrono_beat
    prompt, patient = Queue(), Queue()
    beat.root.queue, beat.root.new_queue = lambda: prompt, lambda: patient
    assert (beat.sending_queue, beat.queue) == (prompt, patient)

    @app.task
    def body():
        return beat.sending_queue

    assert body.apply().get() is patient
    beat.worker = object()
    assert beat.sending_queue is patient


def test_a_composition_root_may_have_one_queue_for_all(app):
    only = Queue()
    app.chrono_beat.root.queue = lambda: only
    del app.chrono_beat.root.new_queue

    assert app.chrono_beat.sending_queue is app.chrono_beat.queue is only


def test_a_forked_child_has_a_queue_of_its_own(app):
    before = app.chrono_beat.queue
    assert app.chrono_beat.queue is before

    pid = os.fork()
    if pid == 0:
        os._exit(0 if app.chrono_beat.queue is not before and app.chrono_beat.worker is None else 1)

    assert os.waitpid(pid, 0)[1] == 0


def test_outside_of_chrono_work_there_is_no_current():
    assert current() is None


HEADER = {
    "eid": "j:20260102T090000Z:2", "job": "j", "name": "n", "tenant": "acme", "scheduled_at": "20260102T090000Z",
    "due_at": "20260102T090130Z", "attempt": 2, "key": "j:20260102T090000Z", "token": "1.7",
}


@pytest.fixture
def running(app):
    """A task that runs under a delivery, as the pool runs it."""
    @app.task(bind=True, name="report", max_retries=4)
    def report(self, *args, **kwargs):
        return current()

    from celery import _state

    _state._task_stack.push(report)
    report.push_request(
        id=HEADER["key"], args=("a",), kwargs={}, retries=1, called_directly=False, is_eager=False, chrono=HEADER,
        delivery_info={"exchange": "", "routing_key": "chrono", "priority": 4}, headers={"chrono": HEADER})
    yield report
    report.pop_request()
    _state._task_stack.pop()


def test_current_is_a_value(running):
    mine = current()

    assert (mine.job_id, mine.tenant, mine.attempt, mine.token) == ("j", "acme", 2, "1.7")
    assert mine.due_at.isoformat() == "2026-01-02T09:01:30+00:00"
    assert mine.still_held() and not mine.cancelled
    with pytest.raises(AttributeError):
        mine.attempt = 3


def test_a_retry_sends_the_signals_of_a_publish(app, running):
    heard = []

    def before(sender, headers, **kwargs):
        heard.append(("before", sender, headers["retries"], kwargs["routing_key"]))

    def after(sender, headers, **kwargs):
        heard.append(("after", sender, headers["id"], kwargs["routing_key"]))

    signals.before_task_publish.connect(before)
    signals.after_task_publish.connect(after)
    with pytest.raises(Retry):
        running.retry(countdown=0.25, kwargs={"k": "ä"})

    [(lane, hold, note)] = app.chrono_beat.queue.stored
    assert (lane, tuple(hold)) == (0, (HEADER["eid"], "1.7"))
    assert note == {"countdown_us": 250_000, "args": '["a"]', "kwargs": note["kwargs"], "retries": 2, "max_retries": 4}
    assert heard == [("before", "report", 2, "chrono"), ("after", "report", HEADER["key"], "chrono")]


def test_a_retry_at_an_instant_keeps_the_instant(app, running):
    from datetime import UTC, datetime

    with pytest.raises(Retry):
        running.retry(eta=datetime(2026, 1, 2, 10, tzinfo=UTC))

    assert app.chrono_beat.queue.stored[0][2]["eta_us"] == 1767348000 * 1_000_000


def test_a_retry_waits_a_while_for_redis(app, running, monkeypatch):
    monkeypatch.setattr("chrono_beat.celery.patience.STORE_PAUSES_SECONDS", (0, 0, 0))
    app.chrono_beat.queue.failures = 2

    with pytest.raises(Retry):
        running.retry(countdown=1)

    assert len(app.chrono_beat.queue.stored) == 1


@pytest.mark.parametrize("options", [
    {"task_id": "another"},
    {"task_id": HEADER["key"], "retries": 1},
    {"task_id": HEADER["key"], "name": "other", "retries": 2},
])
def test_what_is_no_retry_is_sent_without_the_header(app, running, monkeypatch, options):
    sent = []
    monkeypatch.setattr("kombu.Producer.publish", lambda self, body, **kwargs: sent.append(kwargs["headers"]))

    app.send_task(options.pop("name", "report"), headers={"chrono": HEADER, "mine": 1}, **options)

    assert app.chrono_beat.queue.stored == []
    assert "chrono" not in sent[0] and sent[0]["mine"] == 1 and "chrono_countdown" not in sent[0]


def test_outside_of_a_task_the_header_is_left_alone(app, monkeypatch):
    sent = []
    monkeypatch.setattr("kombu.Producer.publish", lambda self, body, **kwargs: sent.append(kwargs["headers"]))

    app.send_task("report", headers={"chrono": HEADER}, countdown=5)

    assert sent[0]["chrono"] == HEADER and "chrono_countdown" not in sent[0]


class Info:
    """billiard's ExceptionInfo, as far as it is looked at."""

    def __init__(self, exception):
        self.exception, self.traceback = exception, "Traceback\n" * 1000 + "the last line"


class Faulty(Exception):
    def __str__(self):
        raise RuntimeError


@pytest.mark.parametrize(("exception", "result"), [
    (ValueError("x"), "failed"), (Faulty(), "failed"), (SystemExit(1), "failed"), (MemoryError(), "failed"),
    (Reject("x", requeue=False), "failed"), (Reject("x", requeue=True), "lost"), (Ignore(), "succeeded"),
    (Retry("x", exc=KeyError("k")), "retry"), (Retry("x"), "retry"), (Terminated(15), "revoked"),
    (WorkerLostError("x"), "lost"),
])
def test_every_exception_has_one_ending(exception, result):
    found, detail = endings.failure(Info(exception))

    assert found == result
    if "error" in detail:
        assert detail["error"]["traceback"].endswith("the last line")
        assert len(detail["error"]["traceback"]) <= endings.MAX_TRACEBACK_CHARACTERS


class Sent(list):
    """Takes down what a delivery has its worker send."""

    def settle(self, held, result, detail, after_seconds=0.0):
        self.append((result, after_seconds))

    def give_back(self, held):
        self.append("give_back")

    def forget(self, held):
        self.append("forget")

    def accepted(self, held):
        self.append("accepted")

    def redraw(self, held):
        self.append("redraw")


@pytest.fixture
def sent():
    return Sent()


@pytest.fixture
def held(sent):
    return HeldDelivery(0, Delivery("e", "j", "t", "chrono", "1.1", 1, 0, 0, b""), sent, time.monotonic() + 2)


def test_rule10_what_has_not_begun_in_time_is_drawn_anew_and_may_begin_then(held, sent):
    held.begin_by = time.monotonic() - 0.001

    assert not held.begin() and sent == ["redraw"] and not held.ended
    held.renew(Delivery("e", "j", "t", "", "1.2", 1, 5, 9, b""), time.monotonic() + 2)

    assert held.begin() and held.hold == Hold("e", "1.2") and held.delivery.pool == "chrono"


def test_rule10_a_body_that_is_too_late_is_not_called_started(held, sent):
    assert held.begin()

    assert not held.accept(held.begin_by + 0.001) and sent == []
    assert held.accept(held.begin_by) and sent == ["accepted"]


@pytest.mark.parametrize("pool", ["celery.concurrency.solo:TaskPool", "celery.concurrency.thread:TaskPool"])
def test_rule10_a_pool_runs_a_body_only_within_its_window(pool):
    pool = symbol_by_name(pool)(1)
    pool.start()
    returned = []
    for begin_by in (time.monotonic() + 60, time.monotonic() - 0.001):
        job = WindowedPool(pool, begin_by).apply_async(
            lambda x: (0, repr(x), 0.1), args=("ran",), callback=returned.append, accept_callback=lambda pid, at: None)
        if job is not None:
            job.get()
    pool.stop()

    assert returned == [(0, "'ran'", 0.1), NOT_BEGUN]
    assert [is_not_begun(value) for value in returned] == [False, True]


def test_a_delivery_ends_once(held, sent):
    held.end("timeout", {})
    held.end("succeeded", {})
    held.give_back()

    assert sent == [("timeout", 0.0)] and not held.begin()


def test_who_kills_a_body_says_how_it_ended(held, sent):
    assert held.claim("revoked", {}) and not held.claim("lost", {})

    held.end("succeeded", {})

    assert sent == [("revoked", 0.0)]


def test_who_could_not_kill_it_takes_that_back(held, sent):
    held.claim("revoked", {})
    held.unclaim()

    held.end("succeeded", {})

    assert sent == [("succeeded", 0.0)]


def test_what_went_to_somebody_else_does_not_begin(held, sent):
    held.lost = True

    assert not held.begin() and sent == ["forget"]


def test_a_queued_job_of_the_threads_pool_is_cancelled(held):
    """The pool's own shutdown would cancel it without telling anybody."""
    from concurrent.futures import ThreadPoolExecutor
    from threading import Event

    from celery.concurrency.thread import ApplyResult

    blocker = Event()
    with ThreadPoolExecutor(1) as executor:
        running, queued = ApplyResult(executor.submit(blocker.wait)), ApplyResult(executor.submit(blocker.wait))
        held.job = queued
        taken_back = pools.never_began(held, object())
        held.job = running
        blocker.set()

    assert taken_back and not pools.never_began(held, object())


class Child:
    def __init__(self, alive=True):
        self._is_alive = lambda: alive


def prefork_job(**state):
    job = types.SimpleNamespace(_write_to=None, _accepted=False, _writer=None, _job=1, _cache={})
    job.__dict__.update(state)
    return job


PREFORK = types.SimpleNamespace(uses_semaphore=True, flush=lambda: None)


def test_a_prefork_job_that_no_child_got_never_began(held):
    held.job = prefork_job()
    assert pools.never_began(held, PREFORK)

    held.job = prefork_job(_write_to=Child())
    assert not pools.never_began(held, PREFORK)


@pytest.mark.parametrize(("state", "kept"), [
    ({"_write_to": Child()}, True), ({"_write_to": Child(alive=False)}, False), ({}, False),
    ({"_write_to": Child(), "_writer": lambda: types.SimpleNamespace(gi_frame=object())}, False),
])
def test_the_pool_is_made_to_listen_for_a_job_that_a_child_has(held, state, kept):
    held.job = prefork_job(**state)

    pools.keep(held, PREFORK)

    assert (held.job._cache == {1: held.job}) is kept


class Refusing:
    """A Request whose pool takes nothing."""

    id, time_limits, task = "key", (None, None), None

    def execute_using_pool(self, pool, **kwargs):
        raise OSError("no more processes")


def test_what_the_pool_does_not_take_goes_back_as_a_reap_and_its_slot_is_free(held, sent):
    """Given back it would be drawn again for ever; and the worker frees the slot for a revoked task only."""
    request = object.__new__(type("Request", (LeasedRequest, Refusing), dict(Refusing.__dict__)))
    request.held, request.task = held, types.SimpleNamespace(time_limit=None)

    with pytest.raises(TaskRevokedError):
        request.execute_using_pool(object())

    assert sent == [("lost", 0.0)]


@pytest.mark.parametrize(("why", "given_to_the_pool", "told"), [
    ("cancel", False, "never began"), ("replace", False, None), ("duration", False, None), ("cancel", True, "interrupt")])
def test_what_is_cancelled_before_the_pool_has_it_is_told_of(held, sent, why, given_to_the_pool, told):
    """No worker meets its message again, so nobody else would tell its result."""
    heard = []
    stops = Stops(lambda *hold: held, lambda held: heard.append("interrupt"),
                  types.SimpleNamespace(stopped=0, bad_messages=0), lambda: True, 1.0, lambda held: heard.append("never began"))
    if given_to_the_pool:
        assert held.begin()

    stops.stop(held, why)
    stops.stop(held, why)

    assert heard == [word for word in (told,) if word] and bool(sent) is not given_to_the_pool


def test_what_is_stopped_while_it_is_drawn_anew_is_settled_under_its_new_token():
    """Under the old one it would be refused, and its lease would have to run out first."""
    clock = ManualClock()
    queue = MemoryQueueStore(clock)
    queue.open_lane(0, 1, queue.lane_state(0).replication_id, 0)
    eid = "j:20260102T090000Z:1"
    item = PublishItem(eid, "j", "acme", 1, 1, "schedule", "chrono", 5, clock.wall_us() - 1, None, "allow", b"{}")
    queue.publish(0, 1, clock.wall_us() + 10**9, [item])
    io = WorkerIO(types.SimpleNamespace(queue=queue, config=Config()), "w@test", free_slots=lambda own, accepted: 1,
                  pools=lambda: ["chrono"], deliver=lambda helds: None, hear=print, knows=bool)
    io._drawing = True
    io._cycle()
    [held] = io.held()
    stock = queue.redraw

    def redraw(*args):
        held.stop("cancel", ("revoked", {}), 0.0)
        return stock(*args)

    queue.redraw = redraw
    held.begin_by = 0.0

    assert not held.begin()
    io._cycle()
    io._cycle()

    assert [outcome.event for outcome in queue.read_outcomes(0, "r", 1, 10)] == ["revoked"]
    assert io.counts.refused == 0 and queue.lanes[0].leases == {}
