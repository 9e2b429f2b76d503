"""What becomes of a message where it is sent: for a pool, for another queue, and where something is wrong with it."""
import json
from types import SimpleNamespace

import pytest
from celery import Celery, signals
from kombu import Queue
from kombu.exceptions import OperationalError

from chrono_beat.celery import ChronoBeat
from chrono_beat.celery.context import HEADER
from chrono_beat.core import ids
from chrono_beat.core.config import Config
from chrono_beat.core.errors import InvalidInput, QueueUnavailable
from chrono_beat.testing.clock import ManualClock
from chrono_beat.testing.memory_queue import MemoryQueueStore

LEASE = 60_000_000


def nothing(*args, **kwargs):
    """Body of the task."""


class Site:
    """An app whose broker and chrono_beat's Redis are in memory."""

    def __init__(self, **settings):
        self.config = Config(**settings)
        self.clock = ManualClock()
        self.queue = MemoryQueueStore(self.clock, self.config)
        self.queue.open_lane(0, 1, "memory-1", 0)
        self.app = Celery("sending", broker="memory://", backend="cache+memory://", set_as_current=False)
        self.app.conf.task_publish_retry_policy = {"max_retries": 2, "interval_start": 0, "interval_step": 0}
        self.beat = ChronoBeat(self.app)
        self.beat._root = SimpleNamespace(config=lambda: self.config, queue=lambda: self.queue)
        self.task = self.app.task(name="t.task")(nothing)

    def drawn(self, pool="chrono"):
        return self.queue.draw(0, pool, 10, "w", LEASE)

    def one(self, pool="chrono"):
        [delivery] = self.drawn(pool)
        return delivery, json.loads(delivery.payload)

    def in_broker(self, queue):
        with self.app.connection_for_write() as connection:
            return connection.default_channel.basic_get(queue, no_ack=True)


@pytest.fixture
def site():
    site = Site()
    yield site
    for queue in ("celery", "chrono", "chronos"):
        with site.app.connection_for_write() as connection:
            connection.default_channel.queue_declare(queue)
            connection.default_channel.queue_purge(queue)


@pytest.mark.parametrize("queue", ["chrono", "chrono.gold", Queue("chrono.gold", routing_key="other")])
def test_what_goes_to_a_pool_joins_the_tenants_stream(site, queue):
    result = site.task.apply_async((1, "ü"), {"k": None}, queue=queue, headers={"chrono_tenant": "acme", "own": 1})

    delivery, message = site.one(getattr(queue, "name", queue))

    assert delivery.tenant == "acme" and delivery.execution_id.startswith(f"plain:{result.id}:")
    assert json.loads(message["body"])[:2] == [[1, "ü"], {"k": None}]
    headers = message["headers"]
    assert (headers["id"], headers["task"], headers["own"], headers["chrono_tenant"]) == (result.id, "t.task", 1, "acme")
    assert headers[HEADER]["eid"] == delivery.execution_id
    assert message["properties"]["correlation_id"] == result.id


def test_every_way_to_send_ends_up_there(site):
    site.app.conf.task_routes = {"t.*": {"queue": "chrono"}}
    site.task.delay(1)
    site.task.s(2).apply_async()
    site.app.send_task("t.elsewhere", (3,))
    site.app.send_task("else.where", (4,), queue="chrono")
    assert [json.loads(json.loads(d.payload)["body"])[0] for d in site.drawn()] == [[1], [2], [3], [4]]


def test_a_default_queue_that_is_a_pool_is_one_too(site):
    site.app.conf.task_default_queue = "chrono"
    site.task.delay()
    assert len(site.drawn()) == 1


@pytest.mark.parametrize("queue", ["celery", "chronos"])
def test_other_queues_get_what_they_always_got(site, queue):
    site.task.apply_async((1,), queue=queue, countdown=5, headers={"chrono_tenant": "acme", HEADER: {"eid": "x"}})
    message = site.in_broker(queue)
    assert message.headers[HEADER] == {"eid": "x"} and message.headers["chrono_tenant"] == "acme"
    assert "chrono_countdown" not in message.headers and message.headers["eta"]
    assert site.drawn() == []


def test_other_queues_do_not_mind_settings_that_cannot_be_read(site):
    site.beat._root = SimpleNamespace(config=lambda: 1 / 0)
    site.task.apply_async((1,), queue="celery")
    assert site.in_broker("celery") is not None
    with pytest.raises(ZeroDivisionError):
        site.task.apply_async((1,), queue="chrono")


def test_eager_tasks_stay_eager(site):
    site.app.conf.task_always_eager = True
    assert site.task.apply_async(queue="chrono").successful()
    assert site.drawn() == []


def test_a_sender_who_names_no_tenant_gets_the_default_one(site):
    site.config = Config(default_tenant="house")
    site.task.apply_async(queue="chrono")
    assert site.drawn()[0].tenant == "house"


def test_inv01_eta_and_countdown_wait_in_the_lane(site):
    in_ten_seconds = ids.from_us(site.clock.wall_us() + 10_000_000)
    site.task.apply_async(queue="chrono", task_id="countdown", countdown=10)
    site.task.apply_async(queue="chrono", task_id="eta", eta=in_ten_seconds)
    site.task.apply_async(queue="chrono", task_id="naive", eta=in_ten_seconds.replace(tzinfo=None))      # the app's zone is UTC
    site.task.apply_async(queue="chrono", task_id="past", eta=ids.from_us(1))
    assert [d.execution_id.split(":")[1] for d in site.drawn()] == ["past"]
    site.clock.advance(us=9_999_999)
    assert site.drawn() == []
    site.clock.advance(us=1)
    assert {d.execution_id.split(":")[1] for d in site.drawn()} == {"countdown", "eta", "naive"}


@pytest.mark.parametrize(("field", "options"), [
    ("chrono_tenant", {"headers": {"chrono_tenant": "not a slug"}}),
    ("chrono_tenant", {"headers": {"chrono_tenant": ""}}),
    ("chrono_tenant", {"headers": {"chrono_tenant": 7}}),
    ("chrono_tenant", {"headers": {"chrono_tenant": "a:b"}}),
    ("priority", {"priority": 10}), ("priority", {"priority": -1}), ("priority", {"priority": "5"}),
    ("serializer", {"serializer": "pickle"}), ("serializer", {"serializer": "yaml"}),
    ("compression", {"compression": "gzip"}),
    ("kwargs", {"kwargs": {"x": object()}}), ("kwargs", {"kwargs": {"x": "x" * 1000}}),
    ("task_id", {"task_id": "x" * 256}), ("headers", {"headers": {"x": "ü" * 32_768}}),
])
def test_what_cannot_be_sent_is_refused_where_it_is_sent_and_the_field_is_named(field, options):
    site = Site(max_payload=1000)
    with pytest.raises(InvalidInput) as refused:
        site.task.apply_async(queue="chrono", **options)
    assert refused.value.field == field
    assert site.drawn() == []


def test_a_task_that_is_not_allowed_is_refused():
    site = Site(allowed_tasks=("shop.*",))
    with pytest.raises(InvalidInput, match="ALLOWED_TASKS"):
        site.task.apply_async(queue="chrono")
    site.app.send_task("shop.send mail", queue="chrono")           # any text is a name for Celery
    assert len(site.drawn()) == 1


def test_the_relays_pool_is_refused(site):
    with pytest.raises(InvalidInput, match="relay"):
        site.task.apply_async(queue="chrono.relay")


def test_protocol_1_is_refused(site):
    site.app.conf.task_protocol = 1
    with pytest.raises(InvalidInput, match="task_protocol"):
        site.task.apply_async(queue="chrono")


def failing(site, times, *, arrives):
    """Let Redis' first answers be lost, with what was asked or without."""
    publish, calls = site.queue.publish_plain, []

    def publish_plain(lane, tasks):
        calls.append(tasks)
        if arrives or len(calls) > times:
            publish(lane, tasks)
        if len(calls) <= times:
            raise QueueUnavailable("Redis: gone")

    site.queue.publish_plain = publish_plain
    return calls


@pytest.mark.parametrize("arrives", [True, False])
def test_a_repeat_of_a_publish_whose_answer_was_lost_doubles_nothing(site, arrives):
    calls = failing(site, 2, arrives=arrives)
    site.task.apply_async(queue="chrono")
    assert len(calls) == 3
    assert len(site.drawn()) == 1


def test_an_unreachable_redis_is_what_an_unreachable_broker_is(site):
    calls = failing(site, 99, arrives=False)
    with pytest.raises(OperationalError, match="gone"):
        site.task.apply_async(queue="chrono")
    assert len(calls) == 3
    with pytest.raises(OperationalError):
        site.task.apply_async(queue="chrono", retry=False)
    assert len(calls) == 4
    with pytest.raises(OperationalError):
        site.task.apply_async(queue="chrono", retry_policy={"max_retries": 1})
    assert len(calls) == 6


def test_the_signals_and_the_event_of_a_publish_are_sent_and_a_receiver_may_add_a_header(site):
    seen, events = [], []

    def before(sender, headers, routing_key, **_):
        seen.append(("before", sender, routing_key))
        headers["trace"] = "abc"

    def after(sender, headers, **_):
        seen.append(("after", sender, headers["trace"]))

    signals.before_task_publish.connect(before)
    signals.after_task_publish.connect(after)
    site.app.conf.task_send_sent_event = True
    dispatcher = SimpleNamespace(publish=lambda kind, fields, *args, **options: events.append((kind, fields["queue"])))
    try:
        site.task.apply_async(queue="chrono", event_dispatcher=dispatcher)
    finally:
        signals.before_task_publish.disconnect(before)
        signals.after_task_publish.disconnect(after)

    assert seen == [("before", "t.task", "chrono"), ("after", "t.task", "abc")]
    assert events == [("task-sent", "chrono")]
    assert site.one()[1]["headers"]["trace"] == "abc"


def test_an_event_that_cannot_be_sent_is_no_reason_to_think_that_the_task_was_not(site):
    def publish(*args, **options):
        raise OSError("no broker")

    site.app.conf.task_send_sent_event = True
    site.task.apply_async(queue="chrono", event_dispatcher=SimpleNamespace(publish=publish))
    assert len(site.drawn()) == 1
