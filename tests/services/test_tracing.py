"""OpenTelemetry on the side that publishes: spans, and their context in the messages."""
import json
import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from chrono_beat.core.config import Config
from chrono_beat.core.envelope import Templates
from chrono_beat.core.errors import QueueUnavailable
from chrono_beat.core.records import Content, PublishItem
from chrono_beat.testing.clock import ManualClock
from chrono_beat.testing.memory_queue import MemoryQueueStore
from chrono_beat.tracing import TracedQueue


class Keeping(MemoryQueueStore):
    """Keeps what it is given to publish."""

    given = ()

    def publish(self, lane, generation, valid_until_us, items):
        self.given = items
        return super().publish(lane, generation, valid_until_us, items)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def queue(clock):
    queue = Keeping(clock)
    queue.open_lane(0, 1, queue.lane_state(0).replication_id, 0)
    return queue


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


def tracer(exporter, **options):
    provider = TracerProvider(**options)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider.get_tracer("chrono_beat")


def item(clock, number=1, args='["\\"headers\\":{ ü"]'):
    now_us = clock.wall_us()
    eid = f"00000000-0000-0000-0000-{number:012}:20260102T090000Z:1"
    content = Content(
        "acme", 'say "headers":{', "shop.report", args, "{}", "", "gold", 5, None, None, None, "allow", "occurrence")
    payload = Templates(Config()).of(content).build(eid, eid[:36], now_us, now_us, 1, 0, "schedule")
    return PublishItem(eid, eid[:36], "acme", 1, 1, "schedule", "gold", 5, now_us - 1, None, "allow", payload)


def publish(queue, clock, items):
    return queue.publish(0, 1, clock.wall_us() + 10**7, items)


def test_each_execution_has_a_span_whose_context_is_in_its_message(queue, clock, exporter):
    items = [item(clock, 1), item(clock, 2)]

    result = publish(TracedQueue(queue, tracer(exporter)), clock, items)

    assert list(result.replies) == ["published"] * 2
    spans = {span.attributes["messaging.message.id"]: span for span in exporter.get_finished_spans()}
    assert len({span.context.trace_id for span in spans.values()}) == 2
    for before, given in zip(items, queue.given, strict=True):
        context, said = spans[given.execution_id].context, json.loads(given.payload)
        parent, sampled = said["headers"].pop("traceparent").rsplit("-", 1)
        assert (parent, int(sampled) & 1) == (f"00-{context.trace_id:032x}-{context.span_id:016x}", 1)
        assert said == json.loads(before.payload)
    span = spans[items[0].execution_id]
    assert (span.name, span.kind, span.parent) == ("publish gold", trace.SpanKind.PRODUCER, None)
    assert span.attributes["chrono.tenant"] == "acme" and span.attributes["chrono.reply"] == "published"


def test_a_message_that_is_written_with_spaces_gets_its_context_too(queue, clock, exporter):
    """Messages of ETA tasks are."""
    spaced = item(clock)._replace(payload=json.dumps(json.loads(item(clock).payload)).encode())

    publish(TracedQueue(queue, tracer(exporter)), clock, [spaced])

    assert json.loads(queue.given[0].payload)["headers"]["traceparent"]


def test_what_a_span_is_not_sampled_of_is_told_to_the_run_as_well(queue, clock, exporter):
    publish(TracedQueue(queue, tracer(exporter, sampler=ALWAYS_OFF)), clock, [item(clock)])

    assert not int(json.loads(queue.given[0].payload)["headers"]["traceparent"].rsplit("-", 1)[1]) & 1
    assert exporter.get_finished_spans() == ()


def test_a_publish_that_fails_or_is_refused_ends_its_spans_as_errors(queue, clock, exporter, monkeypatch):
    traced = TracedQueue(queue, tracer(exporter))
    assert traced.publish(0, 7, clock.wall_us() + 10**7, [item(clock)]).refused == "generation"

    def gone(*args):
        raise QueueUnavailable("redis://:hunter2@host")

    monkeypatch.setattr(queue, "publish", gone)
    with pytest.raises(QueueUnavailable):
        publish(traced, clock, [item(clock)])

    told = [(span.attributes["chrono.reply"], span.status.status_code.name) for span in exporter.get_finished_spans()]
    assert told == [("generation", "ERROR"), ("QueueUnavailable", "ERROR")]
    assert "hunter2" not in "".join(span.to_json() for span in exporter.get_finished_spans())


def test_with_the_api_alone_messages_go_as_they_are(queue, clock):
    items = [item(clock, 1), item(clock, 2)]

    publish(TracedQueue(queue, trace.NoOpTracerProvider().get_tracer("x")), clock, items)

    assert queue.given is items


def test_all_else_is_handed_on(queue, exporter):
    traced = TracedQueue(queue, tracer(exporter))

    assert traced.lane_state(0) == queue.lane_state(0)


ALONE = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(name) if "." in name else None
sys.meta_path.insert(0, Missing())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name.startswith("opentelemetry") else found(name, package)
from celery import Celery, signals
from chrono_beat import tracing
from chrono_beat.celery import ChronoBeat
before = len(signals.task_prerun.receivers or ())
ChronoBeat(Celery("x"))
assert not tracing.installed()
assert len(signals.task_prerun.receivers or ()) == before
"""
WITH_IT = """
import sys
from celery import Celery
from chrono_beat import tracing
from chrono_beat.celery import ChronoBeat
ChronoBeat(Celery("x"))
assert tracing.installed()
"""


@pytest.mark.parametrize("program", [ALONE, WITH_IT], ids=["not installed", "installed"])
def test_nothing_of_it_is_imported_before_it_is_used(program):
    program += "\nassert not [name for name in sys.modules if name.startswith('opentelemetry.')], sys.modules"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
