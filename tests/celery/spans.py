"""Lets a worker write its spans to a file: ``-I tests.celery.spans``, with the file's name in SPANS_FILE."""
import os

from celery import signals
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult


class Lines(SpanExporter):
    def export(self, spans):
        with open(os.environ["SPANS_FILE"], "a", encoding="utf-8") as file:
            file.writelines(span.to_json(indent=None) + "\n" for span in spans)
        return SpanExportResult.SUCCESS


@signals.worker_process_init.connect(weak=False)
def begin(**kwargs):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Lines()))
    trace.set_tracer_provider(provider)
    if os.environ.get("SPANS_BY") == "instrumentation":
        CeleryInstrumentor().instrument()
