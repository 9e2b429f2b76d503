"""What a control call does after its commit: tell Redis, and wait for what was drawn before (invariant 7).

From the void on nothing older is published or drawn. What a worker has drawn and not begun begins within the start
window or never (protocol rule 10), so a call waits at most that long; what has begun then is reported to the caller. The
promise counts from the commit: within a larger transaction all this happens when that one commits, and not at all where
it is rolled back.
"""
from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence

from django.db import transaction

from chrono_beat.core import eta, ids, lifecycle
from chrono_beat.core.deliveries import Running
from chrono_beat.core.errors import Conflict, NotFound, NotYetVoidedWarning, QueueUnavailable, StoreUnavailable
from chrono_beat.core.records import Void
from chrono_beat.services.audit import cancel as cancel_in_redis
from chrono_beat_django import wiring
from chrono_beat_django.models import Execution, Job
from chrono_beat_django.store import definitions as store

MARGIN_SECONDS = 0.5
"""Seconds by which a call waits longer than the start window: between a body's look at the clock and its first line."""

FIRST_LOOK_SECONDS, LONGEST_LOOK_SECONDS = 0.01, 0.1

NOT_BEGUN = (lifecycle.SCHEDULED, lifecycle.QUEUED)

RunningList = list      # `list` is a function of the module that calls this one


def tell(voids: Sequence[Void]) -> RunningList[Running]:
    """Have Redis told, after the commit, which copies of jobs are void.

    Returns:
        What of their older plans is running, filled in when Redis has been told.
    """
    running: RunningList[Running] = []
    transaction.on_commit(lambda: _carry_out(voids, running), using=store.alias())
    return running


def _carry_out(voids: Sequence[Void], running: RunningList[Running]) -> None:
    if say(voids):
        wiring.wake_dispatchers()
        running += settled(lambda: _older(voids))


def _older(voids: Sequence[Void]) -> RunningList[Running] | None:
    """Return what of the void copies workers hold; None where nobody can know of one of them."""
    found: RunningList[Running] = []
    for void in voids:
        lane = ids.lane_of(void.tenant, wiring.config().lanes)
        held = wiring.queue().deliveries_of(lane, void.job_id, void.version)
        if held is None:
            return None
        found += held
    return found


def say(voids: Sequence[Void]) -> bool:
    """Tell Redis voids and note that it knows; where it can't be reached the dispatchers do it later, and the caller is
    warned."""
    told: RunningList[Void] = []
    try:
        for void in voids:
            wiring.queue().void(ids.lane_of(void.tenant, wiring.config().lanes), void.job_id, void.version)
            told.append(void)
    except QueueUnavailable as error:
        warnings.warn(
            f"the edit of job {void.job_id} is saved, but Redis could not be told ({error}): until a dispatcher has "
            "told it, which each tries every second, occurrences of the old version may still start",
            NotYetVoidedWarning,
            stacklevel=2,
        )
    try:
        wiring.store().void_done(told)
    except StoreUnavailable:
        pass                                        # then a dispatcher tells Redis once more, which does no harm
    return len(told) == len(voids)


def settled(look: Callable[[], RunningList[Running] | None]) -> RunningList[Running]:
    """Wait until nothing that *look* finds is drawn and not begun, at most the start window.

    Args:
        look: returns deliveries; None where nobody can know, and then the whole window is waited.

    Returns:
        What *look* found last; what has not begun by then never will, or its worker could not say so yet.
    """
    left, step = wiring.config().start_window + MARGIN_SECONDS, FIRST_LOOK_SECONDS
    while True:
        try:
            found = look()
        except QueueUnavailable:
            found, step = None, left                # once more at the end: each look may take the connection's time-out
        if left <= 0 or (found is not None and all(delivery.begun for delivery in found)):
            return found or []
        wiring.wait(min(step, left))
        left -= step
        step = min(2 * step, LONGEST_LOOK_SECONDS)


def is_awaited(execution: Execution) -> bool:
    """Say whether it is a Celery message whose result somebody may wait for."""
    return eta.is_awaited(execution.celery_id, str(execution.job_id), execution.kind)


def cancel(
    execution: Execution | str, *, actor: str | None = None, never_began: Callable[[Execution], None] | None = None,
) -> Execution:
    """Cancel one execution that has not ended.

    What has not begun never begins, also after a restart of everything. What runs is told to stop: a prefork child is
    ended, other pools' bodies see ``current().cancelled``; it ends ``cancelled`` and is not tried again, unless it
    succeeds before. The row keeps its state until that is recorded.

    Args:
        execution: an execution or its id.
        actor: who does it, for the audit.
        never_began: called when Redis has ended a Celery message that waited here and no worker has, so that its result and
            its chord hear of it; None to tell them through the Celery app of this process.

    Returns:
        The execution, with ``still_running``: the deliveries that were running and have been told to stop; and ``told``:
        whether Redis knows, None before the commit.

    Raises:
        NotFound: there is no such execution.
        Conflict: it has ended; the text says how.
    """
    key = execution.id if isinstance(execution, Execution) else str(execution)
    rows = Execution.objects.using(store.alias())
    running: RunningList[Running] = []
    with transaction.atomic(using=store.alias()):
        found = rows.select_for_update().filter(id=key).first()
        if found is None:
            raise NotFound(f"there is no execution {key[:100]!r}")
        if found.state not in lifecycle.OPEN:
            raise Conflict(f"the execution has ended already: it is {found.state}")
        now_us = wiring.now_us()
        if found.cancel_requested_at is None:
            found.cancel_requested_at = ids.from_us(now_us)
            rows.filter(id=key, state__in=lifecycle.OPEN).update(cancel_requested_at=found.cancel_requested_at)
            _write_cancel(found, actor, now_us)
        found.told = None                             # type: ignore[attr-defined]
        transaction.on_commit(lambda: _carry_out_cancel(found, running, never_began), using=store.alias())
    found.still_running = running                     # type: ignore[attr-defined]
    return found


def _write_cancel(execution: Execution, actor: str | None, now_us: int) -> None:
    job = Job(id=execution.job_id, tenant=execution.tenant, name=execution.job_name, version=execution.job_version)
    detail: Mapping[str, str] = {"execution": execution.id}
    store.write_event(job, "cancel", actor, now_us, detail)


def _carry_out_cancel(
    execution: Execution, running: RunningList[Running], never_began: Callable[[Execution], None] | None,
) -> None:
    lane = ids.lane_of(execution.tenant, wiring.config().lanes)
    queue, named = wiring.queue(), (lane, execution.id, str(execution.job_id), execution.tenant)
    try:
        first = cancel_in_redis(queue, *named)
    except QueueUnavailable as error:
        warnings.warn(
            f"the cancellation of {execution.id} is saved, but Redis could not be told ({error}): it may still start "
            "until the audit has told it, which it tries every other second",
            NotYetVoidedWarning,
            stacklevel=2,
        )
        execution.told = False                        # type: ignore[attr-defined]
        return
    execution.told = True                             # type: ignore[attr-defined]
    # Redis says "ended" once. What a worker has drawn is left to that worker, which knows whether it has begun.
    if first.state == "ended" and is_awaited(execution):
        (never_began or wiring.eta().tell)(execution)

    def look() -> RunningList[Running] | None:
        answer = queue.cancel(*named)
        if answer.state != "held":
            return []
        # Without a worker it is quarantine: nobody can know, and the audit says it again.
        return [Running(execution.id, answer.token, answer.worker, answer.begun)] if answer.worker else None

    if first.state == "held":
        running += settled(look)


def job_id_of(job: Job | uuid.UUID | str) -> uuid.UUID:
    """Return the id of a job that was given in some way.

    Raises:
        NotFound: the text is no job's id.
    """
    if isinstance(job, Job):
        return job.id
    try:
        return job if isinstance(job, uuid.UUID) else uuid.UUID(str(job))
    except ValueError:
        raise NotFound(f"there is no job {str(job)[:60]!r}") from None
