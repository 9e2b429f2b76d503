"""OpenTelemetry: a span for each publish, whose context travels in the message to the span of the run.

Each execution begins a trace of its own, since a dispatcher publishes what many asked for at many times. Only
opentelemetry-api is needed; where it is not installed none of this is used: whoever publishes has the bare queue, and no
receiver of signals is there. With the API alone, and no SDK set up, a publish costs one span that is none for each batch.

**Weakness.** A retry is a row whose attempt begins another trace; the attributes ``chrono.job_id`` and
``chrono.scheduled_at`` tell that they belong together. A copy that Redis has already keeps the context of its first publish.
"""
from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from chrono_beat.core.ids import from_us, parse_execution_id
from chrono_beat.core.records import PublishItem, PublishResult

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

TRACER = "chrono_beat"
SYSTEM = "chrono_beat"

_HEADERS = re.compile(rb'"headers": ?\{')
"""Where a message's headers begin. The body before it is a text, in which each quotation mark has a backslash before it, so
this stands nowhere in it."""


@cache
def installed() -> bool:
    """Say whether opentelemetry-api can be imported; nothing of it is imported by asking."""
    return find_spec("opentelemetry") is not None and find_spec("opentelemetry.trace") is not None


class TracedQueue:
    """A queue whose publishes are traced; all else is handed on.

    Args:
        queue: a QueueStore.
        tracer: whose spans; None for the one of the provider that the process has set up, now or later.
    """

    def __init__(self, queue: Any, tracer: Tracer | None = None) -> None:
        from opentelemetry import trace

        self._queue = queue
        self._tracer = trace.get_tracer(TRACER) if tracer is None else tracer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def publish(self, lane: int, generation: int, valid_until_us: int, items: Sequence[PublishItem]) -> PublishResult:
        """See QueueStore; each span lasts as long as the call and says what became of its execution."""
        spans = self._begin(items)
        if not spans:
            found: PublishResult = self._queue.publish(lane, generation, valid_until_us, items)
            return found
        try:
            result: PublishResult = self._queue.publish(
                lane, generation, valid_until_us, [_with_context(*pair) for pair in zip(items, spans, strict=True)])
        except Exception as error:
            _end(spans, [f"{type(error).__name__}"] * len(spans), failed=True)
            raise
        _end(spans, [result.refused] * len(spans) if result.refused else result.replies, failed=bool(result.refused))
        return result

    def _begin(self, items: Sequence[PublishItem]) -> list[Span]:
        spans: list[Span] = []
        for item in items:
            span = self._span(item)
            if not span.get_span_context().is_valid:
                return []                              # no SDK is set up
            spans.append(span)
        return spans

    def _span(self, item: PublishItem) -> Span:
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind

        return self._tracer.start_span(
            f"publish {item.pool}", context=Context(), kind=SpanKind.PRODUCER, attributes={
                "messaging.system": SYSTEM, "messaging.operation.name": "publish", "messaging.operation.type": "send",
                "messaging.destination.name": item.pool, "messaging.message.id": item.execution_id,
                "chrono.tenant": item.tenant, "chrono.job_id": item.job_id, "chrono.attempt": item.attempt,
                "chrono.kind": item.kind, "chrono.due_at": from_us(item.due_us).isoformat(),
                "chrono.scheduled_at": from_us(parse_execution_id(item.execution_id).scheduled_us).isoformat(),
            })


def _with_context(item: PublishItem, span: Span) -> PublishItem:
    from opentelemetry import propagate, trace

    carrier: dict[str, str] = {}
    propagate.inject(carrier, context=trace.set_span_in_context(span))
    if not carrier:
        return item
    members = json.dumps(carrier)[1:-1].encode()
    return item._replace(payload=_HEADERS.sub(lambda found: found[0] + members + b",", item.payload, count=1))


def _end(spans: Sequence[Span], replies: Sequence[str], *, failed: bool) -> None:
    from opentelemetry.trace import Status, StatusCode

    for span, reply in zip(spans, replies, strict=True):
        span.set_attribute("chrono.reply", reply)
        if failed:
            span.set_status(Status(StatusCode.ERROR, reply))
        span.end()
