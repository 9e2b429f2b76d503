"""Executions and dead letters of the caller's tenant, and what it uses of its limits."""
from datetime import timedelta
from typing import Any
from uuid import UUID

from ninja import Query, Router, Schema

from chrono_beat.core import ids
from chrono_beat.core.errors import NotFound
from chrono_beat_django import control, dead_letters, executions, tenants, wiring
from chrono_beat_django.api.answers import Answer, once
from chrono_beat_django.api.auth import OPERATE, READ, actor_of, tenant_of
from chrono_beat_django.api.jobs import aware
from chrono_beat_django.api.outputs import Cancelled, ExecutionOut, ExecutionPage, ExecutionShown, LettersOut, UsageOut
from chrono_beat_django.api.paging import MAX_PAGE, page, refuse_unknown
from chrono_beat_django.api.problems import Refused
from chrono_beat_django.api.schemas import Instant, LettersIn, Text, execution_facts
from chrono_beat_django.models import Execution
from chrono_beat_django.store import definitions as store

router = Router()

DAY = timedelta(days=1)


class ExecutionFilter(Schema):
    """Which executions."""

    job: UUID | None = None
    state: Text | None = None
    reason: Text | None = None
    since: Instant | None = None
    until: Instant | None = None
    late_over: float | None = Query(None, ge=0, le=executions.LATE.high, description="Seconds from due to started.")
    cursor: str | None = None
    limit: int = Query(50, ge=1, le=MAX_PAGE)


class LetterFilter(Schema):
    """Which dead letters."""

    job: UUID | None = None
    reason: Text | None = None
    cursor: str | None = None
    limit: int = Query(50, ge=1, le=MAX_PAGE)


def found_execution(request: Any, execution_id: str) -> Execution:
    """Return an execution of the caller's tenant; another tenant's is as good as none.

    Raises:
        NotFound: there is none.
    """
    found = executions.get(execution_id)
    if found.tenant != tenant_of(request):
        raise NotFound(f"there is no execution {execution_id[:100]!r}")
    return found


@router.get("/executions", auth=READ, response=ExecutionPage, tags=["executions"], operation_id="list_executions")
def list_executions(request, query: Query[ExecutionFilter]):  # type: ignore[no-untyped-def]
    """List executions, the newest first. Without ``job`` or ``since`` those since a day before ``until``, or before now.

    ``late_over`` without ``job`` looks through a day at most.
    """
    refuse_unknown(request, query)
    start, end = aware("since", query.since), aware("until", query.until)
    if query.job is None:
        last = end or ids.from_us(wiring.now_us())
        # The index in that order has all tenants' executions: of a tenant that has few, many would be read.
        start = start or max(last - DAY, ids.from_us(0))
        if query.late_over is not None and last - start > DAY:
            raise Refused(422, "no index has how late they were: give since and until a day apart at most, or a job", "late_over")
    rows = executions.list(tenant_of(request), job=query.job, state=query.state, reason=query.reason, start=start, end=end,
                           late=query.late_over)
    return page(rows, query.cursor, query.limit, ("scheduled_at", "attempt", "id"), execution_facts, falling=True,
                read=executions.newest_page)


@router.get("/executions/{execution_id}", auth=READ, response=ExecutionShown, tags=["executions"],
            operation_id="read_execution")
def read_execution(request, execution_id: str):  # type: ignore[no-untyped-def]
    """Show an execution with what became of every attempt at its occurrence."""
    found = found_execution(request, execution_id)
    return {**execution_facts(found), "attempts": [one._asdict() for one in dead_letters.errors_of(found)]}


@router.post("/executions/{execution_id}/cancel", auth=OPERATE, response={200: Cancelled, 202: Cancelled}, tags=["executions"],
             operation_id="cancel_execution")
@once
def cancel_execution(request: Any, execution_id: str) -> Answer:
    """Cancel an execution: what has not begun never begins, what runs is told to stop. Its end is recorded later."""
    found = control.cancel(found_execution(request, execution_id), actor=actor_of(request))

    def build() -> tuple[int, dict[str, Any]]:
        untold = found.told is False  # type: ignore[attr-defined]
        running = [run._asdict() for run in found.still_running]  # type: ignore[attr-defined]
        return 202 if untold else 200, {**execution_facts(found), "still_running": running, "not_yet_told": untold}

    return Answer(build)


@router.get("/dead-letters", auth=READ, response=ExecutionPage, tags=["dead letters"],
            operation_id="list_dead_letters")
def list_dead_letters(request, query: Query[LetterFilter]):  # type: ignore[no-untyped-def]
    """List dead letters that nobody has handled, the newest first."""
    refuse_unknown(request, query)
    job = None if query.job is None else str(query.job)
    rows = dead_letters.list(tenant_of(request), job=job, reason=query.reason)
    return page(rows, query.cursor, query.limit, ("finished_at", "id"), execution_facts, falling=True)


@router.post("/dead-letters/replay", auth=OPERATE, response=LettersOut, tags=["dead letters"],
             operation_id="replay_dead_letters")
@once
def replay_letters(request: Any, given: LettersIn) -> Answer:
    """Run the occurrences of dead letters again."""
    return _handled(request, given, dead_letters.replay_all)


@router.post("/dead-letters/discard", auth=OPERATE, response=LettersOut, tags=["dead letters"],
             operation_id="discard_dead_letters")
@once
def discard_letters(request: Any, given: LettersIn) -> Answer:
    """Put dead letters aside for good."""
    return _handled(request, given, dead_letters.discard_all)


@router.post("/dead-letters/{execution_id}/replay", auth=OPERATE, response={201: ExecutionOut}, tags=["dead letters"],
             operation_id="replay_dead_letter")
@once
def replay_letter(request: Any, execution_id: str) -> Answer:
    """Run the occurrence of a dead letter again; the answer is the new attempt."""
    made = dead_letters.replay(found_execution(request, execution_id), actor=actor_of(request))
    return Answer(lambda: (201, execution_facts(made)))


@router.post("/dead-letters/{execution_id}/discard", auth=OPERATE, response=ExecutionOut, tags=["dead letters"],
             operation_id="discard_dead_letter")
@once
def discard_letter(request: Any, execution_id: str) -> Answer:
    """Put a dead letter aside for good."""
    done = dead_letters.discard(found_execution(request, execution_id), actor=actor_of(request))
    return Answer(lambda: (200, execution_facts(done)))


@router.get("/tenant/usage", auth=READ, response=UsageOut, tags=["tenant"],
            operation_id="read_usage")
def read_usage(request):  # type: ignore[no-untyped-def]
    """Say what the tenant uses of its limits, and how late it was within the last hour."""
    return tenants.usage(tenant_of(request))._asdict()


def _handled(request: Any, given: LettersIn, deed: Any) -> Answer:
    own = set(Execution.objects.using(store.alias()).filter(tenant=tenant_of(request), id__in=given.ids)
              .values_list("id", flat=True))
    done = deed([one for one in given.ids if one in own], actor=actor_of(request))
    unknown = [(one, f"there is no execution {one[:100]!r}") for one in given.ids if one not in own]
    refused = [{"id": one, "mend": why} for one, why in (*done.refused, *unknown)]
    return Answer(lambda: (200, {"executions": [execution_facts(row) for row in done.executions], "refused": refused}))
