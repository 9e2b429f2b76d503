"""Messages of message targets on real brokers, run by stock workers: Celery without chrono_beat."""
import json
import os
import subprocess
import sys

import pytest
import redis
from celery import Celery
from kombu import Exchange, Queue

from chrono_beat.celery.context import HEADER
from chrono_beat.celery.relay_sender import CelerySender
from chrono_beat.core import eta
from chrono_beat.core.config import Config
from chrono_beat.core.envelope import Template
from chrono_beat.core.errors import BrokerUnavailable, InvalidInput
from chrono_beat.core.ids import to_us
from chrono_beat.core.records import Content, ScheduledExecution
from chrono_beat.testing.patience import eventually
from tests.celery.rabbit import PROGRAM, Rabbit
from tests.celery.workerkit import ROOT
from tests.services.world import NINE

pytestmark = pytest.mark.celery

AT = to_us(NINE)
KEY = "job-a:20260102T090000Z"


@pytest.fixture(scope="module")
def rabbit():
    if not PROGRAM.exists():
        pytest.skip(f"RabbitMQ is not installed ({PROGRAM}): apt-get install rabbitmq-server")
    rabbit = Rabbit()
    yield rabbit
    rabbit.close()


@pytest.fixture(params=["redis", "rabbitmq"])
def broker(request, redis_url):
    """The URL of a broker, and a Redis for the journal."""
    return (request.getfixturevalue("rabbit").url, redis_url) if request.param == "rabbitmq" else (redis_url, redis_url)


@pytest.fixture
def worker(broker):
    """A stock worker of the queue "mail"."""
    command = [sys.executable, "-m", "celery", "-A", "tests.celery.stock", "worker", "-P", "solo", "-Q", "mail", "-l", "WARNING",
               "--without-gossip", "--without-mingle", "--without-heartbeat"]
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    process = subprocess.Popen(command, cwd=ROOT, env={
        **environment, "PYTHONPATH": str(ROOT), "STOCK_BROKER": broker[0], "STOCK_JOURNAL": broker[1]})
    yield process
    process.kill()
    process.wait()


def payload(job="job-a", **content):
    said = {"tenant": "acme", "name": "mail", "task": "stock.mail", "args": '["ü"]', "kwargs": '{"n": 1.5}',
            "headers": '{"x-shop": "berlin"}', "pool": "chrono.relay", "priority": 5, "soft_limit_seconds": 5.0,
            "max_duration_seconds": 60.0, "expires_after_seconds": None, "concurrency": "forbid", "key_scope": "occurrence"}
    template = Template(Content(**said | content), "chrono.relay", Config())
    return template.build(f"{job}:20260102T090000Z:1", job, AT, AT, 1, 0, "schedule")


def sender_of(url):
    sender = CelerySender(Celery("sender", broker=url))
    sender.connect()
    return sender


def test_a_stock_worker_runs_it_under_the_idempotency_key(broker, worker):
    sender = sender_of(broker[0])

    sender.send("mail", payload())
    sender.connect()
    sender.send("mail", payload("job-b"))

    store = redis.Redis.from_url(broker[1])
    notes = eventually(lambda: len(found := store.lrange("journal", 0, -1)) == 2 and found, 30, what="two runs")
    first, second = map(json.loads, notes)
    assert (first["id"], second["id"]) == (KEY, "job-b:20260102T090000Z")
    assert (first["args"], first["kwargs"], first["mine"]) == (["ü"], {"n": 1.5}, "berlin")
    assert (first["message"]["eid"], first["message"]["tenant"], first["chrono"]) == (f"{KEY}:1", "acme", None)
    assert list(first["limits"]) == [60, 5]
    sender.close()


def eta_payload(send):
    """Return the message of an ETA task whose time has come, with a callback, for the relay."""
    mail = Celery("shop").signature("stock.mail", args=("after",), options={"queue": "mail"})
    options = {
        "pool": "", "priority": None, "send": send, "properties": {"reply_to": "there"},
        "embed": {"callbacks": [mail], "errbacks": None, "chain": None, "chord": None},
        "headers": {"lang": "py", "root_id": "root", "group": "g", "eta": None, "timelimit": [60, 5], "x-shop": "berlin"}}
    job_id = eta.job_id_of("eta-a")
    row = ScheduledExecution(
        f"{job_id}:20260102T090000Z:1", job_id, 0, AT, AT, AT, 1, 0, "eta", 1,
        eta.content("acme", "stock.mail", "stock.mail", '["ü"]', '{"n": 1.5}'), options=json.dumps(options), celery_id="eta-a")
    return eta.publish_item(row, Config()).payload


def test_the_message_of_an_eta_task_comes_to_a_stock_worker_as_it_was(broker, worker):
    sender = sender_of(broker[0])

    sender.send("mail", eta_payload({"queue": "mail", "priority": 3}))

    store = redis.Redis.from_url(broker[1])

    def mine():
        # A worker that was killed may have left a message of another test unacknowledged.
        found = [note for note in map(json.loads, store.lrange("journal", 0, -1)) if not note["id"].startswith("job-")]
        return found if len(found) == 2 else None

    first, second = eventually(mine, 30, what="it and its callback")
    assert (first["id"], first["args"], first["kwargs"], first["mine"]) == ("eta-a", ["ü"], {"n": 1.5}, "berlin")
    assert (first["message"]["kind"], first["message"]["tenant"], first["chrono"]) == ("eta", "acme", None)
    assert list(first["limits"]) == [60, 5]
    assert second["args"][-1] == "after" and second["id"] != "eta-a"
    sender.close()


def test_rabbitmq_routes_it_by_its_exchange_and_routing_key_and_confirms_it(rabbit):
    sender = sender_of(rabbit.url)
    with Celery("reader", broker=rabbit.url).connection_for_read() as connection:
        topics = Exchange("topics", "topic")
        bound = Queue("bound", topics, routing_key="a.*")(connection.default_channel)
        bound.declare()

        sender.send("", eta_payload({"exchange": "topics", "exchange_type": "topic", "routing_key": "a.b", "queue": "celery"}))

        found = eventually(lambda: bound.get(no_ack=True), 10, what="the message behind the binding")
        assert (found.headers["id"], found.headers["group"], found.properties["reply_to"]) == ("eta-a", "g", "there")
        assert found.headers["eta"] is None and HEADER not in found.headers
    assert sender._connection.connection.confirm_publish
    sender.close()


def test_rabbitmq_confirms_each_message_and_one_that_is_gone_is_told(rabbit):
    sender = sender_of(rabbit.url)
    sender.send("kept", payload())
    assert sender._connection.connection.confirm_publish

    rabbit.kill()
    with pytest.raises(BrokerUnavailable) as told:
        sender.send("kept", payload("job-b"))
    assert told.value.perhaps_sent
    with pytest.raises(BrokerUnavailable) as told:
        sender.connect()
    assert not told.value.perhaps_sent

    rabbit.start()
    sender.connect()
    sender.send("kept", payload("job-c"))
    with Celery("reader", broker=rabbit.url).connection_for_read() as connection:
        queue = connection.SimpleQueue("kept")
        found = [queue.get(timeout=10).headers["id"] for _ in range(2)]
        queue.close()
    assert found == [KEY, "job-c:20260102T090000Z"], "what was confirmed outlives the crash"
    sender.close()


def test_a_redis_that_is_not_there_is_told():
    with pytest.raises(BrokerUnavailable) as told:
        sender_of("redis://127.0.0.1:1/0")

    assert not told.value.perhaps_sent and "127.0.0.1" not in str(told.value)


def test_what_can_never_be_sent_is_refused(redis_url):
    app = Celery("sender", broker=redis_url)
    app.conf.task_create_missing_queues = False
    sender = CelerySender(app)
    sender.connect()

    with pytest.raises(InvalidInput, match="mail"):
        sender.send("mail", payload())
    with pytest.raises(InvalidInput, match="no Celery message"):
        sender.send("celery", b"{}")
    sender.close()
