"""From what was seen of a run to a history that `chrono_beat.testing.history` can judge.

Four witnesses that know nothing of each other: the rows and the audit of changes in the database, the lines that bodies
write, the calls as their caller saw them, and the faults as they were caused. All clocks are this machine's.
"""
from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.chaos.faults import Fault
from benchmarks.chaos.load import CAPS, Call, Made
from chrono_beat.testing import history as told

ANEW = ("move", "pause", "resume", "delete")
"""Calls that plan anew, or end a plan."""

KINDS = {
    "dispatcher_killed": [told.SERVICE_HIT], "dispatcher_paused": [told.SERVICE_HIT], "dispatcher_ended": [told.SERVICE_HIT],
    "worker_killed": [told.WORKER_KILLED], "worker_paused": [told.WORKER_PAUSED], "child_killed": [told.CHILD_KILLED],
    "worker_ended": [],                                # what it has it ends, or hands back before it began: no excuse
    "redis_cut": [told.WORKER_CUT], "redis_paused": [told.QUEUE_AWAY], "redis_flushed": [told.MEMORY_LOST],
    "redis_restarted": [told.MEMORY_LOST, told.QUEUE_AWAY], "redis_lost_in_a_rush": [told.MEMORY_LOST, told.QUEUE_AWAY],
    "database_cut": [told.STORE_AWAY], "database_restarted": [told.STORE_AWAY], "database_crashed": [told.STORE_AWAY],
}


@dataclass
class Evidence:
    """All that was seen of a run.

    Args:
        jobs: by id, as they were when they were made.
        calls: numbered by their place.
        rows: of executions, as they are at the end.
        changes: rows of the audit of changes; their actor is the number of the call.
        lines: of bodies.
        until: seconds since the epoch; what is due later is not judged.
        drained: whether all that was due by then has ended.
        caps: how much each tenant may run at once.
    """

    jobs: Mapping[str, Made]
    calls: Sequence[Call]
    faults: Sequence[Fault]
    rows: Sequence[Mapping[str, Any]]
    changes: Sequence[Mapping[str, Any]]
    lines: Sequence[Mapping[str, Any]]
    until: float
    drained: bool
    caps: Mapping[str, int] = field(default_factory=lambda: CAPS)
    began: list[told.Began] = field(default_factory=list)

    def history(self) -> told.History:
        """Return all of it as events."""
        events: list[tuple[int, Any]] = []
        events += self._plans()
        events += self._calls()
        events += self._bodies()
        events += self._withdrawn()
        events += [(us(fault.at), event) for fault in self.faults for event in faults_of(fault)]
        events.sort(key=lambda event: event[0])
        self.began = [event for _, event in events if isinstance(event, told.Began)]
        return told.History(
            [*(event for _, event in events), *map(row_of, self.rows)], until_us=us(self.until), drained=self.drained)

    def _plans(self) -> Iterable[tuple[int, Any]]:
        first = min(map(us, (job.made_at for job in self.jobs.values())))
        for tenant, cap in self.caps.items():
            yield first, told.Capacity(first, tenant, cap)
        for job in self.jobs.values():
            yield us(job.made_at), told.Defined(us(job.made_at), job.id, plan_of(job))

    def _calls(self) -> Iterable[tuple[int, Any]]:
        committed = {int(change["actor"]): change for change in self.changes if change["actor"].isdigit()}
        for number, call in enumerate(self.calls):
            if call.what not in ("edit", "move", "pause", "resume", "delete", "cancel", "trigger"):
                continue
            action = "edit" if call.what == "move" else call.what
            yield us(call.called_at), told.Called(
                us(call.called_at), number, action, call.job_id, call.detail.get("execution_id", ""))
            change, made = committed.get(number), call.detail.get("answer", "") if action == "trigger" else ""
            if change is not None:
                at_us = us(change["at"].timestamp())
                if action == "trigger":
                    made = json.loads(change["detail"])["execution"]
                yield at_us, told.Committed(
                    at_us, number, change["version"], self._plan_after(call, change), call.what in ANEW)
            elif not call.failed:                      # it was so already
                yield us(call.called_at), told.Committed(us(call.called_at), number, 0)
            yield us(call.returned_at), told.Returned(
                us(call.returned_at), number, not call.failed and not call.warned, made)

    def _plan_after(self, call: Call, change: Mapping[str, Any]) -> told.Plan | None:
        before = plan_of(self.jobs[call.job_id])
        at_us = us(change["at"].timestamp())
        if call.what == "move":
            return before._replace(expression=str(call.detail["every"]), anchor_us=at_us)
        if call.what in ("pause", "resume"):
            return before._replace(paused=call.what == "pause")
        return None

    def _bodies(self) -> Iterable[tuple[int, Any]]:
        numbers = {call.detail["mark"]: number for number, call in enumerate(self.calls) if "mark" in call.detail}
        versions = {int(change["actor"]): change["version"] for change in self.changes if change["actor"].isdigit()}
        open_: dict[tuple[str, str], dict[str, Any]] = {}
        ends: list[tuple[int, Any]] = []
        for line in self.lines:
            key = line["execution_id"], line["token"]
            if line["what"] == "begin":
                if key in open_:
                    ends.append(stop_of(key, open_.pop(key)))
                version = None
                if line["job"].startswith("edited"):
                    version = versions[numbers[line["mark"]]] if line["mark"] else 1
                yield us(line["at"]), told.Began(us(line["at"]), *key, line["worker"], version, line["key"])
            open_[key] = {**line, "how": line.get("how", "killed")}
        yield from ends
        yield from (stop_of(key, last) for key, last in open_.items())


    def _withdrawn(self) -> Iterable[tuple[int, Any]]:
        """A body in a thread cannot be killed: at its max_duration it is told to stop, and loses its lease at once."""
        timed_out = {row["id"]: date_us(row["finished_at"]) or 0 for row in self.rows if row["reason"] == "timeout"}
        for line in self.lines:
            if line.get("how") == "cancelled" and (at_us := timed_out.get(line["execution_id"])):
                yield at_us, told.LeaseEnded(at_us, line["execution_id"], line["token"], "withdrawn")


def stop_of(key: tuple[str, str], last: Mapping[str, Any]) -> tuple[int, told.Stopped]:
    """Return the end of a body, given its last line."""
    how = {"succeeded": "returned", "cancelled": "returned", "failed": "raised"}.get(last["how"], "killed")
    return us(last["at"]), told.Stopped(us(last["at"]), *key, how)


def plan_of(job: Made) -> told.Plan:
    """Return what a job was to do when it was made."""
    return told.Plan(
        job.kind, job.expression, anchor_us=us(job.anchor) if job.kind == "interval" else None, tenant=job.tenant,
        concurrency=job.concurrency, group=job.group)


def faults_of(fault: Fault) -> Iterable[told.Fault]:
    """Return what a fault means to the judges."""
    for kind in KINDS[fault.kind]:
        names = fault.names if fault.kind.startswith(("worker", "child")) else []
        yield told.Fault(us(fault.at), kind, us(fault.until), tuple(names))


def row_of(row: Mapping[str, Any]) -> told.Row:
    """Return an execution's row."""
    return told.Row(
        row["id"], str(row["job_id"]), row["tenant"], row["kind"], row["attempt"], date_us(row["scheduled_at"]) or 0,
        date_us(row["due_at"]) or 0, row["job_version"], row["state"], row["reason"], date_us(row["published_at"]),
        date_us(row["started_at"]), date_us(row["finished_at"]), row["worker"], row["deliveries"], row["missed_count"],
        date_us(row["first_missed_at"]))


def us(seconds: float) -> int:
    """Return seconds as microseconds."""
    return round(seconds * 1_000_000)


def date_us(value: Any) -> int | None:
    """Return a date as microseconds since the epoch."""
    return None if value is None else us(value.timestamp())


def given_up(seen: Evidence) -> list[str]:
    """Return executions that ended as unknown though nobody had edited, ended or cancelled anything of their job, and nothing
    replaces its runs: these had to be published again (invariant 4)."""
    touched = {call.job_id for call in seen.calls if call.what != "trigger"}
    return [f"{row['id']} of {seen.jobs[str(row['job_id'])].name} ended as unknown, and nobody had touched its job"
            for row in seen.rows if row["reason"] == "unknown" and str(row["job_id"]) not in touched
            and str(row["job_id"]) in seen.jobs and seen.jobs[str(row["job_id"])].concurrency != "replace"]


def recoveries(seen: Evidence) -> dict[str, float | None]:
    """Return for each kind of fault the longest time from its end until something began, None where nothing did."""
    slowest: dict[str, float | None] = {}
    for fault in seen.faults:
        after = next((event.at_us / 1e6 for event in seen.began if event.at_us / 1e6 > fault.until), None)
        took = None if after is None else round(after - fault.until, 2)
        known = slowest.get(fault.kind, 0.0)
        slowest[fault.kind] = None if took is None or known is None else max(known, took)
    return slowest
