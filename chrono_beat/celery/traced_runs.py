"""The span of a run: a child of the span that published it, open while the body runs, where the body runs.

Where opentelemetry-instrumentation-celery is active its span of the task takes this one's place: it reads the same headers,
so it is a child of ours as well, and a task has one span, not two.
"""
from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from celery import signals

from chrono_beat import tracing
from chrono_beat.celery.context import HEADER

_KEPT = "chrono_span"
_TOLD = {"tenant": "chrono.tenant", "job": "chrono.job_id", "scheduled_at": "chrono.scheduled_at", "due_at": "chrono.due_at",
         "attempt": "chrono.attempt", "kind": "chrono.kind"}


def watch() -> None:
    """Trace the runs of this process and of its children, if opentelemetry-api is installed."""
    if tracing.installed():
        signals.task_prerun.connect(_begin, weak=False, dispatch_uid="chrono_beat.tracing")
        signals.task_postrun.connect(_end, weak=False, dispatch_uid="chrono_beat.tracing")


def _instrumented() -> bool:
    module = sys.modules.get("opentelemetry.instrumentation.celery")
    return module is not None and bool(module.CeleryInstrumentor().is_instrumented_by_opentelemetry)


def _begin(task: Any = None, **kwargs: Any) -> None:
    request = task.request
    header = request.get(HEADER)
    if not isinstance(header, Mapping) or "eid" not in header or _instrumented():
        return
    from opentelemetry import context, propagate, trace

    # From an empty context: whatever this thread did before has nothing to do with it.
    fields = propagate.get_global_textmap().fields
    carried = {name: value for name in fields if isinstance(value := request.get(name), str)}
    parent = propagate.extract(carried, context=context.Context())
    span = trace.get_tracer(tracing.TRACER).start_span(
        f"run {task.name}", context=parent, kind=trace.SpanKind.CONSUMER, attributes={
            "messaging.system": tracing.SYSTEM, "messaging.operation.name": "run", "messaging.operation.type": "process",
            "messaging.message.id": header["eid"],
            **{name: header[key] for key, name in _TOLD.items() if isinstance(header.get(key), str | int)}})
    token = context.attach(trace.set_span_in_context(span, parent))
    setattr(request, _KEPT, (span, token))


def _end(task: Any = None, state: Any = None, retval: Any = None, **kwargs: Any) -> None:
    kept = task.request.__dict__.pop(_KEPT, None)
    if kept is None:
        return
    from opentelemetry import context
    from opentelemetry.trace import Status, StatusCode

    span, token = kept
    context.detach(token)
    span.set_attribute("celery.state", str(state))
    if state == "FAILURE":
        if isinstance(retval, BaseException):
            span.record_exception(retval)
        span.set_status(Status(StatusCode.ERROR, f"{type(retval).__name__}: {retval}"[:500]))
    span.end()
