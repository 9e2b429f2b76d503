"""The span of a run, in the child of a real worker, is a child of the span that published it."""
import json
import os

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from chrono_beat.testing.patience import eventually
from chrono_beat.tracing import TracedQueue
from tests.celery.workerkit import Site

pytestmark = [pytest.mark.redis, pytest.mark.celery]


@pytest.fixture(params=["ours", "instrumentation"])
def traced(request, redis_server, tmp_path):
    """A site that publishes with spans, and a worker that writes its own; how to read them."""
    file, exporter, provider = tmp_path / "spans", InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    site = Site(redis_server)
    site.queue = TracedQueue(site.queue, provider.get_tracer("test"))
    site.worker("prefork", 1, "-I", "tests.celery.spans", SPANS_FILE=os.fspath(file), SPANS_BY=request.param)

    def spans_of(eid, count=1):
        """Return the span that published an execution, and those of the worker in its trace."""
        def read():
            published = [span for span in exporter.get_finished_spans() if span.attributes["messaging.message.id"] == eid]
            found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
            own = [span for span in found if span["context"]["trace_id"] == f"0x{published[0].context.trace_id:032x}"]
            return (published[0], own) if len(own) >= count else None
        return eventually(read)

    yield site, spans_of, request.param
    site.close()


def test_a_run_is_the_child_of_its_publish_and_ends_as_its_task_does(traced):
    site, spans_of, whose = traced
    good, bad = site.publish("add", 1, 2), site.publish("fail", "broken")
    assert site.ending(good).event == "succeeded" and site.ending(bad).event == "failed"

    for eid, task, status in ((good, "add", ("UNSET", "OK")), (bad, "fail", ("ERROR",))):
        published, (run,) = spans_of(eid)
        assert run["parent_id"] == f"0x{published.context.span_id:016x}"
        assert run["name"] == {"ours": "run ", "instrumentation": "run/"}[whose] + f"tests.celery.proj.{task}"
        assert run["status"]["status_code"] in status
        if whose == "ours":
            assert run["attributes"]["messaging.message.id"] == eid and run["attributes"]["chrono.tenant"] == "acme"
