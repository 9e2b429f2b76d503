"""Judges of bodies: none early, none twice without a fault, none of an old plan, none beside another."""
from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from chrono_beat.testing.history import (
    CHILD_KILLED,
    MEMORY_LOST,
    QUEUE_AWAY,
    STORE_AWAY,
    WORKER_CUT,
    WORKER_KILLED,
    WORKER_PAUSED,
    Began,
    Defined,
    Fault,
    Granted,
    History,
    LeaseEnded,
    Limits,
    Notes,
    Published,
    Row,
    RowEnded,
    Sent,
    Settled,
    Stopped,
)
from chrono_beat.testing.history_plans import Change, changes

ENDS_AT_ONCE = (WORKER_KILLED, CHILD_KILLED)
HOLDS_UP = (WORKER_PAUSED, WORKER_CUT, QUEUE_AWAY)
ENDS_WITH_PLAN = ("schedule", "retry", "manual")
NEVER = 1 << 62


@dataclass
class Body:
    """One delivery that began, and its places in the history."""

    began: Began
    begins: int
    job_id: str
    ends: int = NEVER
    stopped_us: int | None = None
    lease_ends: int = NEVER
    settles: int = NEVER

    @property
    def id(self) -> str:
        """The execution's id."""
        return self.began.execution_id


@dataclass
class Seen:
    """A history's bodies, put in order."""

    history: History
    limits: Limits
    bodies: list[Body] = field(default_factory=list)
    rows: dict[str, Row] = field(default_factory=dict)
    sent: dict[str, Sent] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def excuse(self, body: Body, again_us: int) -> str:
        """Say which fault may have cost a body its lease, or its outcome, before an instant; "" for none."""
        for fault in self.faults:
            if fault.at_us > again_us or fault.until_us < body.began.at_us - self.limits.lease_us:
                continue
            if fault.kind == MEMORY_LOST and (self.limits.memory_excuses or self._stayed_shut(fault)):
                return fault.kind
            hit = not fault.names or any(_is_of(body.began.worker, name) for name in fault.names)
            long = fault.until_us - fault.at_us > self.limits.lease_us // 2
            if hit and (fault.kind in ENDS_AT_ONCE or (fault.kind in HOLDS_UP and long)):
                return fault.kind
        return ""

    def _stayed_shut(self, lost: Fault) -> bool:
        """Say whether a lane that lost its memory could not be opened again before leases of before had run out."""
        return any(fault.kind == STORE_AWAY and fault.at_us <= lost.at_us + self.limits.lease_us // 2 <= fault.until_us
                   for fault in self.faults)

    def forgot(self, since_us: int, until_us: int) -> bool:
        """Say whether a memory was lost between two instants."""
        return any(f.kind == MEMORY_LOST and since_us <= f.at_us <= until_us for f in self.faults)


def _is_of(worker: str, name: str) -> bool:
    return worker == name or worker.startswith((f"{name}@", f"{name}#"))


def look(history: History, limits: Limits) -> Seen:
    """Put the bodies of a history in order."""
    seen = Seen(history, limits, faults=history.of(Fault), rows={row.execution_id: row for row in history.of(Row)},
                sent={event.execution_id: event for event in history.of(Sent)})
    open_: dict[tuple[str, str], Body] = {}
    for at, event in enumerate(history.events):
        if isinstance(event, Began):
            body = Body(event, at, event.execution_id.partition(":")[0])
            open_[event.execution_id, event.token] = body
            seen.bodies.append(body)
        elif isinstance(event, Stopped | LeaseEnded | Settled):
            found = open_.get((event.execution_id, event.token))
            if found is None:
                continue
            if isinstance(event, Stopped):
                found.ends, found.stopped_us = at, event.at_us
            elif isinstance(event, LeaseEnded):
                found.lease_ends = min(found.lease_ends, at)
            elif event.accepted:
                found.settles = min(found.settles, at)
    return seen


def judge_early(history: History, limits: Limits, notes: Notes) -> None:
    """Invariant 1: no body begins, and nothing is granted, before its due_at."""
    due = {event.execution_id: event.due_us for event in history.events if isinstance(event, Row | Sent)}
    for event in history.events:
        if isinstance(event, Began | Granted) and event.at_us < due.get(event.execution_id, 0) - limits.clock_error_us:
            word = "granted" if isinstance(event, Granted) else "began"
            early = due[event.execution_id] - event.at_us
            notes.find(1, "early", [event.execution_id], [event.at_us, due[event.execution_id]], f"{word} {early} µs early")


def judge_repeats(history: History, limits: Limits, notes: Notes) -> None:
    """Invariants 5 and 6: a repeat delivery has the same key and a fault that explains it; none after an accepted end."""
    seen = look(history, limits)
    by_execution: dict[str, list[Body]] = defaultdict(list)
    for body in seen.bodies:
        if body.id not in seen.sent:                   # `history_tenants.judge_plain` does those
            by_execution[body.id].append(body)
    for key, bodies in by_execution.items():
        if key not in seen.rows:
            notes.find(3, "unexpected", [key], [bodies[0].began.at_us], "a body began, and there is no row")
        keys = {body.began.key for body in bodies if body.began.key}
        if len(keys) > 1:
            notes.find(5, "repeated", [key], [b.began.at_us for b in bodies], f"under several keys: {', '.join(sorted(keys))}")
        for earlier, later in zip(bodies, bodies[1:], strict=False):
            times = [earlier.began.at_us, later.began.at_us]
            if earlier.began.token == later.began.token:
                notes.find(6, "repeated", [key], times, f"began twice under the token {later.began.token}")
            elif not seen.excuse(earlier, later.began.at_us):
                notes.find(6, "repeated", [key], times,
                           f"began again in {later.began.worker}, and no fault hit {earlier.began.worker}")
            else:
                notes.duplicates += 1
    _judge_after_end(seen, by_execution, notes)


def _judge_after_end(seen: Seen, by_execution: Mapping[str, list[Body]], notes: Notes) -> None:
    """Nothing begins after its outcome was accepted or its row ended. The one rest: the memory of an outcome was lost before it
    was recorded, and its worker, who would have told it again, with it."""
    accepted: dict[str, Settled] = {}
    ended: dict[str, tuple[int, str]] = {}
    for event in seen.history.events:
        if isinstance(event, Settled) and event.execution_id in seen.sent:
            continue
        if isinstance(event, Settled) and event.accepted and event.result != "lost":
            first = accepted.setdefault(event.execution_id, event)
            ended.setdefault(event.execution_id, (event.at_us, "its outcome had been accepted"))
            if first.token != event.token and not _is_rest(seen, by_execution.get(event.execution_id, []), event.at_us):
                notes.find(2, "twice", [event.execution_id], [first.at_us, event.at_us], "two of its outcomes were accepted")
        elif isinstance(event, RowEnded):
            ended.setdefault(event.execution_id, (event.at_us, "its row had ended"))
        elif isinstance(event, Began) and event.execution_id in ended and event.execution_id in by_execution:
            since_us, what = ended[event.execution_id]
            if not _is_rest(seen, by_execution[event.execution_id], event.at_us):
                notes.find(6, "repeated", [event.execution_id], [since_us, event.at_us], f"a body began after {what}")


def _is_rest(seen: Seen, bodies: Sequence[Body], at_us: int) -> bool:
    return any(seen.forgot(body.began.at_us, at_us) and seen.excuse(body, at_us) for body in bodies
               if body.began.at_us < at_us)


def judge_leases(history: History, limits: Limits, notes: Notes) -> None:
    """Invariant 6: one live lease for each execution, growing tokens, and no outcome of a stale holder."""
    seen = look(history, limits)
    live: dict[str, Granted] = {}
    last: dict[str, Granted] = {}
    reaps: Counter[str] = Counter()
    begun = {(body.id, body.began.token) for body in seen.bodies}
    replaced = {event.job_id for event in history.of(Defined) if event.plan.concurrency == "replace"}
    over: set[tuple[str, str]] = set()                # what its worker, or somebody for it, has given up
    for event in history.events:
        if isinstance(event, Granted):
            before = last.get(event.execution_id)
            held = live.get(event.execution_id)
            if held is not None:
                notes.find(6, "lease", [event.execution_id], [held.at_us, event.at_us],
                           f"granted to {event.worker} while {held.worker} had it")
            if before is not None and _number(event.token) <= _number(before.token):
                notes.find(6, "lease", [event.execution_id], [before.at_us, event.at_us],
                           f"token {event.token} after {before.token}")
            live[event.execution_id] = last[event.execution_id] = event
        elif isinstance(event, Fault) and event.kind == MEMORY_LOST:
            reaps.clear()                              # they are counted in that memory, which holds no lease of before
            begun -= {(grant.execution_id, grant.token) for grant in last.values()}
        elif isinstance(event, RowEnded):
            over.add((event.execution_id, ""))
        elif isinstance(event, LeaseEnded):
            if event.why in ("expired", "lost") and (event.execution_id, event.token) in begun:
                begun.discard((event.execution_id, event.token))
                reaps[event.execution_id] += 1
                if reaps[event.execution_id] == limits.reap_cap + 2 and event.execution_id not in seen.sent:
                    notes.find(6, "repeated", [event.execution_id], [event.at_us],
                               f"taken from its workers {limits.reap_cap + 2} times; the cap is {limits.reap_cap}")
            if event.why != "expired":
                over.add((event.execution_id, event.token))
            if event.execution_id in live and live[event.execution_id].token == event.token:
                del live[event.execution_id]
        elif isinstance(event, Settled) and event.accepted:
            newest = last.get(event.execution_id)
            if newest is not None and newest.token != event.token and not seen.forgot(newest.at_us, event.at_us) and not (
                    event.execution_id in seen.sent and event.result == "retry"):
                notes.find(6, "stale", [event.execution_id], [newest.at_us, event.at_us],
                           f"an outcome under token {event.token} was accepted after token {newest.token} was granted")
            if event.execution_id in live and live[event.execution_id].token == event.token:
                del live[event.execution_id]
        elif isinstance(event, Settled) and not over & {(event.execution_id, ""), (event.execution_id, event.token)}:
            if event.execution_id.partition(":")[0] in replaced:
                continue                               # it may have been withdrawn at the end of its lease
            newest = last.get(event.execution_id)
            if newest is not None and newest.token == event.token and not seen.forgot(newest.at_us, event.at_us):
                notes.find(6, "refused", [event.execution_id], [newest.at_us, event.at_us],
                           f"an outcome under the last token granted, {event.token}, was refused")


def _number(token: str) -> tuple[int, ...]:
    return tuple(int(part) for part in token.split(".") if part.isdigit())


def judge_calls(history: History, limits: Limits, notes: Notes) -> None:
    """Invariant 7: when a call has returned, nothing of the old plan begins."""
    seen = look(history, limits)
    calls = changes(history)
    for call in calls:
        if not call.promised or call.action in ("trigger", "resume"):
            continue
        for body in seen.bodies:
            if body.job_id != call.job_id or body.begins < call.returned_at:
                continue
            if call.action == "cancel":
                old = body.id == call.execution_id
            elif body.began.version is not None and call.version is not None:
                old = body.began.version < call.version
            else:
                old = call.action in ("pause", "delete") and ":" in body.id and not _resumed(call, calls, body)
            if old or _is_carried_over(call, seen.rows.get(body.id)):
                notes.find(7, "old_plan", [body.id], [call.returned_us or 0, body.began.at_us],
                           f"began after {call.action} had returned")


def _is_carried_over(call: Change, row: Row | None) -> bool:
    """Say whether a row is of an occurrence or a trigger before a call that planned anew: no version of it runs then."""
    return call.anew and call.action != "cancel" and row is not None and row.kind in ENDS_WITH_PLAN and (
        row.scheduled_us < call.called_us)


def _resumed(call: Change, calls: Iterable[Change], body: Body) -> bool:
    return any(other.job_id == call.job_id and other.called_us >= call.called_us and other.called_us <= body.began.at_us
               and (other.action == "resume" or (other.action == "trigger" and other.made == body.id)) for other in calls)


def judge_overlaps(history: History, limits: Limits, notes: Notes) -> None:
    """Invariant 9: bodies that are to be kept apart do not run at once, unless the earlier one's lease had ended."""
    seen = look(history, limits)
    precise = bool(history.of(Granted))                # then ends of leases are in evidence, too
    plans = {event.job_id: event.plan for event in history.of(Defined)}
    apart: dict[tuple[str, str], list[Body]] = defaultdict(list)
    for body in seen.bodies:
        plan = plans.get(body.job_id)
        if plan is not None and plan.concurrency != "allow":
            backfill = (row := seen.rows.get(body.id)) is not None and row.kind == "backfill"
            apart["job", f"{body.job_id}{' backfill' if backfill else ''}"].append(body)
        if plan is not None and plan.group:
            apart["group", f"{plan.tenant} {plan.group}"].append(body)
    for (what, name), bodies in apart.items():
        for index, later in enumerate(bodies):
            for earlier in bodies[:index]:
                over = min(earlier.ends, earlier.lease_ends, earlier.settles) < later.begins
                excused = not precise and seen.excuse(earlier, later.began.at_us)
                if not over and not excused and earlier.id != later.id:
                    notes.find(9, "overlap", [earlier.id, later.id], [earlier.began.at_us, later.began.at_us],
                               f"both ran at once, which their {what} {name} forbids")


def judge_skips(history: History, limits: Limits, notes: Notes) -> None:
    """Invariant 9: a skip has another execution in its way, and a retry that waits is not overtaken."""
    rows: dict[str, list[Row]] = defaultdict(list)
    for row in history.of(Row):
        rows[row.job_id].append(row)
    calls = changes(history)
    granted = {event.execution_id for event in history.of(Granted)}
    for own in rows.values():
        for row in own:
            if row.state == "skipped" and not any(_is_in_the_way(other, row, calls, granted) for other in own):
                notes.find(9, "skipped", [row.execution_id], [row.due_us, row.finished_us or 0],
                           "nothing of its job was active then")
    _judge_overtaken(history, limits, notes)


def _is_in_the_way(other: Row, row: Row, calls: Iterable[Change], granted: Set[str]) -> bool:
    decided = row.finished_us or row.due_us
    if other.execution_id == row.execution_id or other.due_us > decided:
        return False
    if other.state in ("skipped", "missed") and other.execution_id not in granted:
        return False
    if other.finished_us is not None and other.finished_us < row.due_us:
        return False
    # Voided before, and no worker had it: it stood in nobody's way (rule 9).
    return not (other.state == "cancelled" and not other.started_us and other.execution_id not in granted and any(
        call.promised and call.job_id == row.job_id and (call.version or 0) > other.version
        and (call.returned_us or NEVER) <= row.due_us for call in calls))


def _changed(calls: Iterable[Change], job_id: str, from_us: int, to_us: int) -> bool:
    """Say whether an edit voided the job's copies in that time: what a lost worker had of them is published anew by the audit,
    and holds no lock until then (rules 7 and 9)."""
    return any(call.job_id == job_id and call.version is not None and from_us <= (call.committed_us or NEVER) <= to_us
               for call in calls)


def _judge_overtaken(history: History, limits: Limits, notes: Notes) -> None:
    seen = look(history, limits)
    plans = {event.job_id: event.plan.concurrency for event in history.of(Defined)}
    rows, begun = seen.rows, {body.id: body for body in reversed(seen.bodies)}
    offered: dict[str, int] = {}
    for event in history.of(Published):
        row = rows.get(event.execution_id)
        if row is not None and event.reply != "voided" and event.at_us >= row.due_us:
            offered.setdefault(event.execution_id, event.at_us)
    calls = changes(history)
    for key, at_us in offered.items():
        row = rows[key]
        if row.kind != "retry" or key not in begun or plans.get(row.job_id) == "allow":
            continue
        for other, later_us in offered.items():
            if (rows[other].job_id == row.job_id and rows[other].kind == "schedule" and later_us > at_us
                    and other in begun and begun[other].begins < begun[key].begins
                    and not seen.forgot(at_us - limits.lease_us, begun[other].began.at_us)
                    and not _changed(calls, row.job_id, at_us, begun[other].began.at_us)):
                notes.find(9, "overtaken", [key, other], [at_us, begun[other].began.at_us],
                           "a retry that waited was overtaken by a later occurrence")


JUDGES = (judge_early, judge_repeats, judge_leases, judge_calls, judge_overlaps, judge_skips)
