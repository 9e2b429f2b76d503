"""Judges of rows: each planned instant has one, each row was planned, has ended once and well, and was measured."""
from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set

from chrono_beat.testing.history import (
    MEMORY_LOST,
    QUEUE_AWAY,
    Began,
    Defined,
    Fault,
    History,
    LeaseEnded,
    Limits,
    Notes,
    Plan,
    Returned,
    Row,
    RowEnded,
    Settled,
)
from chrono_beat.testing.history_plans import Change, NotCountable, Span, changes, instants, spans

OPEN = ("scheduled", "queued", "running")
NEVER_RAN = ("skipped", "expired", "missed")
WORKER_FAULTS = ("worker_killed", "worker_paused", "worker_cut", "child_killed")


def _by_job(rows: Sequence[Row]) -> Mapping[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row.job_id].append(row)
    return found


def judge_identity(history: History, limits: Limits, notes: Notes) -> None:
    """Invariant 2: one row for each (job, scheduled_at, attempt). Invariant 3: each ends once."""
    rows = history.of(Row)
    for what, counts in (
        ("id", Counter(row.execution_id for row in rows)),
        ("attempt", Counter(f"{row.job_id} {row.scheduled_us} {row.attempt}" for row in rows)),
    ):
        for name, count in counts.items():
            if count > 1:
                notes.find(2, "twice", [name], [], f"{count} rows have this {what}")
    ended: dict[str, RowEnded] = {}
    for end in history.of(RowEnded):
        if end.execution_id in ended:
            first = ended[end.execution_id]
            notes.find(3, "twice", [end.execution_id], [first.at_us, end.at_us],
                       f"its row ended as {first.state} and again as {end.state}")
        ended.setdefault(end.execution_id, end)
    final = {row.execution_id: row for row in rows}
    for key, end in ended.items():
        if key in final and final[key].state != end.state:
            notes.find(3, "twice", [key], [end.at_us], f"its row ended as {end.state} and is {final[key].state} now")


def judge_ends(history: History, limits: Limits, notes: Notes) -> None:
    """Invariant 3: every row that was due has ended; a failed one has its next attempt."""
    rows = history.of(Row)
    ids = {(row.job_id, row.scheduled_us, row.attempt) for row in rows}
    for row in rows:
        if row.state in OPEN and row.due_us <= history.until_us and history.drained:
            notes.find(3, "lost", [row.execution_id], [row.due_us],
                       f"still {row.state} (kind {row.kind}, version {row.version})")
        if row.state == "failed" and (row.job_id, row.scheduled_us, row.attempt + 1) not in ids:
            notes.find(3, "lost", [row.execution_id], [row.finished_us or 0],
                       "it failed, which says that another attempt was written, and there is none")


def judge_plans(history: History, limits: Limits, notes: Notes) -> None:
    """Invariants 2 and 3: each instant of a plan has its row, and each row its plan."""
    calls = changes(history)
    rows = _by_job(history.of(Row))
    jobs, unknown = spans(history, calls)
    notes.unjudged.extend(unknown)
    by_job: dict[str, list[Span]] = defaultdict(list)
    for span in jobs:
        by_job[span.job_id].append(span)
    unsure = {call.job_id: call.called_us for call in reversed(calls)
              if call.committed_us is None and not history.commits_known and (call.promised or call.returned_us is None)}
    # Where time went on under faults, the last instants may not be claimed yet.
    last_us = history.until_us - (0 if history.drained else limits.plan_slack_us)
    faults = [fault for fault in history.of(Fault) if fault.kind not in WORKER_FAULTS]
    for job_id, own in by_job.items():
        named: set[int] = set()
        for span in own:
            last = history.until_us if span.to_us is None else min(span.to_us, history.until_us)
            try:
                due = list(instants(span.plan, span.from_us, last))
                ahead = instants(span.plan, last, last + limits.lease_us * 20)
                named |= {*due, *ahead}
            except NotCountable as error:
                notes.unjudged.append(f"the plan of {job_id}: {error}")
                named = set()
                break
            if span.to_us is not None:
                due = [at for at in due if at + span.plan.offset_us <= span.to_us - limits.plan_slack_us]
            judged_us = min(unsure.get(job_id, last_us), last_us)
            due = [at for at in due if at + span.plan.offset_us <= judged_us]
            late = {at for at in due if any(
                fault.at_us - limits.lease_us <= at <= fault.until_us + limits.lease_us for fault in faults)}
            _judge_instants(span, due, late, rows[job_id], [c for c in calls if c.job_id == job_id], notes)
        else:
            _judge_planned(job_id, named, own, rows[job_id], calls, notes)
    for job_id in rows.keys() - by_job.keys():
        notes.find(2, "unexpected", [job_id], [], "rows of a job that was never defined")


def _judge_instants(
    span: Span, due: Sequence[int], late: Set[int], rows: Sequence[Row], calls: Sequence[Change], notes: Notes,
) -> None:
    first = {row.scheduled_us: row for row in rows if row.attempt == 1}
    missed = [(row.scheduled_us if row.first_missed_us is None else row.first_missed_us, row.scheduled_us)
              for row in rows if row.state == "missed"]
    for at in due:
        row = first.get(at)
        if any(low <= at <= high for low, high in missed):
            continue
        if at in late and row is not None and (row.state, row.reason) == ("cancelled", "superseded") and any(
                call.committed_us is not None and call.committed_us <= at and call.anew for call in calls):
            continue     # claimed under an older plan; the new one, late because of a fault, judged it missed
        if row is None:
            notes.find(3, "lost", [span.job_id], [at], "its plan names this instant, and there is no row")
        elif row.state == "cancelled" and span.plan.concurrency != "replace" and not any(
                call.execution_id == row.execution_id
                or (call.committed_us is not None and call.committed_us > at and call.anew) for call in calls):
            notes.find(3, "lost", [row.execution_id], [at],
                       f"cancelled with version {row.version}, though the plan in force names this instant, too")


def _judge_planned(
    job_id: str, named: set[int], own: Sequence[Span], rows: Sequence[Row], calls: Sequence[Change], notes: Notes,
) -> None:
    triggered = {call.made for call in calls if call.action == "trigger"}
    unsure = any(call.action == "trigger" and not call.made and call.job_id == job_id for call in calls)
    ends = {(row.scheduled_us, row.attempt): row.state for row in rows}
    offsets = {span.plan.offset_us for span in own}
    for row in rows:
        if row.attempt > 1:
            if row.kind == "retry" and ends.get((row.scheduled_us, row.attempt - 1)) != "failed":
                notes.find(2, "unexpected", [row.execution_id], [row.due_us],
                           "an attempt after one that has not failed")
        elif row.kind == "schedule":
            if row.scheduled_us not in named:
                notes.find(2, "unexpected", [row.execution_id], [row.scheduled_us], "no plan names this instant")
            elif row.due_us - row.scheduled_us not in offsets:
                notes.find(1, "early" if row.due_us < row.scheduled_us + min(offsets) else "unexpected",
                           [row.execution_id], [row.due_us], "its due_at is not scheduled_at plus the job's spread")
        elif row.kind == "manual" and row.execution_id not in triggered and not unsure:
            notes.find(2, "unexpected", [row.execution_id], [row.scheduled_us], "nobody triggered it")


def judge_triggers(history: History, limits: Limits, notes: Notes) -> None:
    """Invariant 3: what a trigger has answered with exists."""
    ids = {row.execution_id for row in history.of(Row)}
    for back in history.of(Returned):
        if back.promised and back.execution_id and back.execution_id not in ids:
            notes.find(3, "lost", [back.execution_id], [back.at_us], "a trigger returned it, and there is no row")


def judge_states(history: History, limits: Limits, notes: Notes) -> None:
    """Invariants 3 and 9: a state and its reason fit what happened."""
    calls = changes(history)
    begun = {event.execution_id: event for event in reversed(history.of(Began))}
    results: dict[str, set[str]] = defaultdict(set)
    ended: set[str] = set()
    for event in history.events:
        if isinstance(event, RowEnded):
            ended.add(event.execution_id)
        elif isinstance(event, Settled) and event.accepted and event.execution_id not in ended:
            results[event.execution_id].add(event.result)
    faults = history.of(Fault)
    plans = {event.job_id: event.plan for event in history.of(Defined)}
    for row in history.of(Row):
        ran = row.execution_id in begun
        told = (row.finished_us or 0, row.due_us)
        if row.state in NEVER_RAN and ran:
            notes.find(3, "contradiction", [row.execution_id], [begun[row.execution_id].at_us, *told],
                       f"it is {row.state}, and a body of it began")
        if (row.state in ("succeeded", "failed") or (row.state, row.reason) == ("dead", "error")) and not ran:
            notes.find(3, "lost", [row.execution_id], told, f"it is {row.state}, and no body of it ever began")
        if row.state == "cancelled":
            _judge_cancelled(row, ran, results[row.execution_id], calls, plans, notes)
        why = _unexplained(row, [fault for fault in faults if fault.at_us <= max(told) + limits.lease_us], plans)
        if why:
            notes.find(3, "contradiction", [row.execution_id], told, why)


def _judge_cancelled(
    row: Row, ran: bool, results: set[str], calls: Sequence[Change], plans: Mapping[str, Plan], notes: Notes,
) -> None:
    replaced = row.job_id in plans and plans[row.job_id].concurrency == "replace" and row.reason == "superseded"
    told = replaced or any(call.execution_id == row.execution_id for call in calls)
    if ran and results and not results & {"revoked", "superseded"} and not (told and "succeeded" not in results):
        notes.find(3, "contradiction", [row.execution_id], [row.finished_us or 0],
                   f"it is cancelled, and its body ran and ended as {', '.join(sorted(results))}")
    # A call whose commit is not in evidence may have made any version.
    asked = any(
        call.job_id == row.job_id and call.action != "trigger" and (
            call.execution_id == row.execution_id
            or (not call.execution_id and (call.version is None or call.version > row.version)))
        for call in calls)
    if not asked and not replaced:
        notes.find(7, "contradiction", [row.execution_id], [row.finished_us or 0], "it is cancelled, and nobody asked for that")


def _unexplained(row: Row, before: Sequence[Fault], plans: Mapping[str, Plan]) -> str:
    if row.state == "expired" and row.job_id in plans and not plans[row.job_id].expires:
        return "it is expired, and its job has no expiry"
    if row.state == "dead" and row.reason == "unknown" and not any(
            fault.kind in (*WORKER_FAULTS, QUEUE_AWAY, MEMORY_LOST) for fault in before):
        return "it is dead for an unknown reason, and neither a memory was lost nor a worker hit"
    if row.state == "dead" and row.reason in ("worker_lost", "reap_cap") and not any(
            fault.kind in (*WORKER_FAULTS, QUEUE_AWAY, MEMORY_LOST) for fault in before):
        return f"it is dead as {row.reason}, and no worker was hit"
    if row.state == "dead" and row.reason == "invalid":
        return "it is dead as invalid, and its message was well"
    if row.state == "missed" and not before:
        return "it is missed, and nothing stood in its way"
    return ""


def judge_measures(history: History, limits: Limits, notes: Notes) -> None:
    """Invariant 10: what ran says when it was published and started, by whom, and how often it was handed out."""
    faults = [fault for fault in history.of(Fault) if fault.kind not in WORKER_FAULTS]
    memory = [fault for fault in faults if fault.kind == MEMORY_LOST]
    lapsed = {event.execution_id for event in history.of(LeaseEnded) if event.why == "expired"}
    for row in history.of(Row):
        if row.state not in ("succeeded", "failed") and (row.state, row.reason) != ("dead", "error"):
            continue
        end = row.finished_us
        # A row's instants are by Redis' clock, which may be off: a fault a moment later by another one counts, too.
        hit = any(fault.at_us <= (end or fault.at_us) + limits.lease_us and
                  fault.until_us >= row.due_us - limits.lease_us for fault in faults)
        lost = any(row.due_us <= fault.at_us <= (end or fault.at_us) + limits.lease_us for fault in memory)
        absent = [name for name, value, excused in (
            ("finished_at", end, False), ("deliveries", row.deliveries or None, lost), ("worker", row.worker or None, lost),
            ("started_at", row.started_us, lost or row.execution_id in lapsed), ("published_at", row.published_us, hit),
        ) if value is None and not excused]
        if absent:
            notes.find(10, "unmeasured", [row.execution_id], [row.due_us], f"without {', '.join(absent)}")
        steps = [at for at in (row.due_us, row.published_us, row.started_us, end) if at is not None]
        # Repeat deliveries move "published" and "started" about; only what a single one of them says is in order.
        if row.deliveries == 1 and not hit and steps != sorted(steps):
            notes.find(10, "unmeasured", [row.execution_id], steps, "due, published, started, finished are out of order")




JUDGES = (judge_identity, judge_ends, judge_plans, judge_triggers, judge_states, judge_measures)
