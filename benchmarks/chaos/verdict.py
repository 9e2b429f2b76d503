"""What must have been true: rows, bodies, calls and faults held against each other.

Pure: evidence in, findings out. Four witnesses that know nothing of each other: the rows of executions, the lines that
bodies write, the calls that were made, and the faults that were caused. What a fault excuses is looked for by its time
and by whom it hit, so a repeat delivery beside an unrelated fault is a finding.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.chaos.faults import Fault
from benchmarks.chaos.load import Call, Made

OPEN = ("scheduled", "queued", "running")
NEVER_RAN = ("skipped", "missed", "expired")
MEMORY_LOST = ("redis_restarted", "redis_lost_in_a_rush", "redis_flushed")
PLAN_SLACK_SECONDS = 30.0
"""Before a call that plans anew, what nobody had claimed yet may be left out: so long may an outage have lasted."""


@dataclass
class Body:
    """One delivery that a worker began; instants are seconds since the epoch."""

    execution_id: str
    token: str
    key: str
    job_id: str
    worker: str
    begun_at: float
    last_at: float
    due_at: float
    mark: str
    how: str = "killed"


@dataclass
class Evidence:
    """All that was seen of a run.

    Args:
        until: seconds since the epoch; what is due later is left out.
        lease_seconds: of a delivery.
    """

    jobs: Mapping[str, Made]
    calls: Sequence[Call]
    faults: Sequence[Fault]
    rows: Sequence[Mapping[str, Any]]
    lines: Sequence[Mapping[str, Any]]
    events: Sequence[Mapping[str, Any]]
    until: float
    lease_seconds: float
    bodies: list[Body] = field(init=False)

    def __post_init__(self) -> None:
        found: dict[tuple[str, str], list[Body]] = defaultdict(list)
        for line in self.lines:
            key = line["execution_id"], line["token"]
            if line["what"] == "begin":
                found[key].append(Body(
                    *key, line["key"], line["job_id"], line["worker"], line["at"], line["at"], line["due_at"],
                    line["mark"]))
            elif found[key]:
                found[key][-1].last_at = line["at"]
                found[key][-1].how = line.get("how", found[key][-1].how)
        self.bodies = sorted((body for group in found.values() for body in group), key=lambda body: body.begun_at)


def findings(seen: Evidence) -> dict[str, list[str]]:
    """Return everything that must not be, by kind; empty lists for a run that was as promised."""
    rows = {row["id"]: row for row in seen.rows}
    by_execution: dict[str, list[Body]] = defaultdict(list)
    for body in seen.bodies:
        by_execution[body.execution_id].append(body)
    return {
        "lost": [*_open(seen), *_no_row(seen), *_never_ran(seen, by_execution)],
        "early": [f"{body.execution_id}: {body.due_at - body.begun_at:.6f} s" for body in seen.bodies
                  if body.begun_at < body.due_at or (body.execution_id in rows and
                                                     body.begun_at < _at(rows[body.execution_id]["due_at"]))],
        "overlaps": _overlaps(seen, by_execution),
        "duplicates": _duplicates(seen, by_execution),
        "contradictions": _contradictions(rows, by_execution, seen.until),
        "old_plans": [*_after_pause(seen, rows), *_old_marks(seen)],
    }


def repeats(seen: Evidence) -> int:
    """Return how many bodies began an execution that had begun before."""
    return len(seen.bodies) - len({body.execution_id for body in seen.bodies})


# -- lost -------------------------------------------------------------------------------------------------------------


def _open(seen: Evidence) -> list[str]:
    return [f"{row['id']} is still {row['state']} (kind {row['kind']}, version {row['job_version']})" for row in seen.rows
            if row["state"] in OPEN and _at(row["due_at"]) <= seen.until]


def _no_row(seen: Evidence) -> list[str]:
    """Instants that a schedule named and for which nothing stands in the history; triggers that made no row."""
    made: dict[str, set[int]] = defaultdict(set)
    missed: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in seen.rows:
        at = round(_at(row["scheduled_at"]) * 1e3)
        made[str(row["job_id"])].add(at)
        if row["state"] == "missed":
            missed[str(row["job_id"])].append((round(_at(row["first_missed_at"] or row["scheduled_at"]) * 1e3), at))
    found = []
    for job in seen.jobs.values():
        for instant in _instants(job, seen.until):
            if instant not in made[job.id] and not any(low <= instant <= high for low, high in missed[job.id]):
                found.append(f"{job.name} at {instant / 1e3:.3f} has no row")
    ids = {row["id"] for row in seen.rows}
    found += [f"trigger of {seen.jobs[call.job_id].name}: {call.detail['answer']} has no row" for call in seen.calls
              if call.what == "trigger" and not call.failed and call.detail["answer"] not in ids]
    return found


def _instants(job: Made, until: float) -> list[int]:
    """Return what the job's first plan named, in ms."""
    if job.until is not None:
        until = job.until - PLAN_SLACK_SECONDS
    if job.name.startswith("at once"):
        return [round(job.anchor * 1e3)] if job.anchor <= until else []
    if job.every is None:
        return []
    return [round((job.anchor + number * job.every) * 1e3) for number in range(1, int((until - job.anchor) // job.every) + 1)]


def _never_ran(seen: Evidence, by_execution: Mapping[str, list[Body]]) -> list[str]:
    return [f"{row['id']} is {row['state']} and no body of it ever began" for row in seen.rows
            if (row["state"] == "succeeded" or (row["state"] in ("failed", "dead") and row["reason"] == "error"))
            and row["id"] not in by_execution]


# -- twice ------------------------------------------------------------------------------------------------------------


def _overlaps(seen: Evidence, by_execution: Mapping[str, list[Body]]) -> list[str]:
    kept_apart: dict[str, list[Body]] = defaultdict(list)
    for body in seen.bodies:
        job = seen.jobs.get(body.job_id)
        if job is not None and job.concurrency in ("forbid", "replace"):
            kept_apart[f"job {job.name}"].append(body)
        if job is not None and job.group:
            kept_apart[f"group {job.group}"].append(body)
    found = []
    for name, bodies in kept_apart.items():
        for index, later in enumerate(bodies):
            for earlier in bodies[:index]:
                if later.begun_at >= earlier.last_at or later.execution_id == earlier.execution_id:
                    continue
                if not _excuse(seen, earlier, later.begun_at) and not any(
                        other.token != earlier.token and earlier.begun_at < other.begun_at <= later.begun_at
                        for other in by_execution[earlier.execution_id]):
                    found.append(f"{name}: {earlier.execution_id} (until {earlier.last_at:.3f}, {earlier.worker}) and "
                                 f"{later.execution_id} (from {later.begun_at:.3f}, {later.worker})")
    return found


def _duplicates(seen: Evidence, by_execution: Mapping[str, list[Body]]) -> list[str]:
    found = []
    for execution_id, bodies in by_execution.items():
        if len({body.key for body in bodies}) > 1:
            found.append(f"{execution_id} ran under several keys")
        for earlier, later in zip(bodies, bodies[1:], strict=False):
            if earlier.token == later.token:
                found.append(f"{execution_id} began twice under the token {later.token}")
            elif not _excuse(seen, earlier, later.begun_at):
                found.append(f"{execution_id} began at {earlier.begun_at:.3f} in {earlier.worker} (until "
                             f"{earlier.last_at:.3f}, {earlier.how}) and again at {later.begun_at:.3f} in {later.worker}")
    return found


def _excuse(seen: Evidence, body: Body, again_at: float) -> str:
    """Say which fault may have cost a body its lease, or its outcome, before an instant; "" for none."""
    worker = body.worker.partition("@")[0]
    for fault in seen.faults:
        if fault.at > again_at or fault.until < body.begun_at - seen.lease_seconds:
            continue
        if fault.kind in MEMORY_LOST:
            return fault.kind
        if worker in fault.names and (fault.kind in ("worker_killed", "child_killed", "worker_ended")
                                      or fault.until - fault.at > seen.lease_seconds / 2):
            return fault.kind
    return ""


# -- history and control ----------------------------------------------------------------------------------------------


def _contradictions(
    rows: Mapping[str, Mapping[str, Any]], by_execution: Mapping[str, list[Body]], until: float,
) -> list[str]:
    found = [f"{key} ran and has no row" for key, bodies in by_execution.items()
             if key not in rows and bodies[0].begun_at <= until]
    found += [f"{key} is {row['state']} ({row['reason']}) and ran" for key, row in rows.items()
              if row["state"] in NEVER_RAN and key in by_execution]
    return found


def _after_pause(seen: Evidence, rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Bodies of a job that began after a pause or a deletion had returned (invariant 7)."""
    found = []
    for number, call in enumerate(seen.calls):
        if call.what not in ("pause", "delete") or call.failed or call.warned:
            continue
        resumed = min((other.called_at for other in seen.calls[number:] if other.what == "resume"
                       and other.job_id == call.job_id), default=float("inf"))
        found += [f"{body.execution_id} began {body.begun_at - call.returned_at:.3f} s after {call.what} had returned"
                  for body in seen.bodies if body.job_id == call.job_id and call.returned_at < body.begun_at < resumed
                  and rows.get(body.execution_id, {}).get("kind") != "manual"]
    return found


def _old_marks(seen: Evidence) -> list[str]:
    """Bodies that began with the content from before an edit that had returned."""
    found = []
    edits = [call for call in seen.calls if call.what == "edit" and not call.failed and not call.warned]
    for body in seen.bodies:
        before = [int(call.detail["mark"]) for call in edits
                  if call.job_id == body.job_id and call.returned_at < body.begun_at]
        if before and int(body.mark or 0) < max(before):
            found.append(f"{body.execution_id} began with the content of edit {body.mark or 0}, edit {max(before)} "
                         "had returned")
    return found


def _at(value: Any) -> float:
    return float(value.timestamp())


def recoveries(seen: Evidence) -> dict[str, float | None]:
    """Return for each kind of fault the longest time from its end until something began, None where nothing did."""
    slowest: dict[str, float | None] = {}
    for fault in seen.faults:
        after = _first(body.begun_at for body in seen.bodies if body.begun_at > fault.until)
        took = None if after is None else round(after - fault.until, 2)
        known = slowest.get(fault.kind, 0.0)
        slowest[fault.kind] = None if took is None or known is None else max(known, took)
    return slowest


def _first(instants: Iterable[float]) -> float | None:
    return next(iter(instants), None)
