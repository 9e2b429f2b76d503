"""A deployment in virtual time, with faults drawn from a seed, and the judgement of what it did.

The real services run on the memory stores: planner, firing, marker, lane keeper, stopper, recorder, reaper, audit, keeper.
Workers and control calls are small models of the real ones. Nothing runs in threads and nothing sleeps: a seed stands
for one course of events, down to the last call, and brings it back whenever it is asked for.

    python -m chrono_beat.testing.simulation --seed 7 --trace

While faults go on, any effect (one call of a store) may fail: the request or its reply is lost, the process dies just
before or after it, stands still for up to three leases, or the request takes effect twice, or late. Beside that whole
servers go away, forget everything, or forget their last second. Then everything is mended, and what was due has to end.
"""
from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from chrono_beat import telemetry
from chrono_beat.core.errors import QueueUnavailable, StoreUnavailable
from chrono_beat.core.lifecycle import OPEN
from chrono_beat.core.plain import is_plain
from chrono_beat.testing.history import (
    CHILD_KILLED,
    WORKER_KILLED,
    Capacity,
    Defined,
    Fault,
    History,
    Limits,
    Row,
    Verdict,
    check,
)
from chrono_beat.testing.memory_jobs import MemoryJob, MemoryTenant
from chrono_beat.testing.simulation import mishaps
from chrono_beat.testing.simulation.capped import capped
from chrono_beat.testing.simulation.control import Call, next_run, plan_of
from chrono_beat.testing.simulation.deployment import REAP_CAP, Deployment
from chrono_beat.testing.simulation.engine import Process, Task
from chrono_beat.testing.simulation.scenario import LEASE_SECONDS, Scenario, Wish, scenario
from chrono_beat.testing.simulation.tenancy import Move, Send

TOLD = frozenset({
    "lane_opened", "partitions_lost", "partitions_taken", "publish_refused", "missed", "reloaded", "reaped", "voided",
    "publish_skipped", "republished", "audited",
})
"""Events of services that stand in a trace."""

DRAIN_US = 150_000_000
LOOK_US = 2_000_000
PLAN_SLACK_US = 60_000_000
LIMITS = Limits(lease_us=round(LEASE_SECONDS * 1_000_000), plan_slack_us=PLAN_SLACK_US, reap_cap=REAP_CAP)


@dataclass(frozen=True)
class Result:
    """What a simulation came to.

    Args:
        scenario: what it was.
        history: what happened.
        verdict: the judgement of it.
        surprises: errors of services that nobody expected.
        notes: faults and calls, as lines with the seconds since the start.
        steps: how many there were.
        samples: how often live leases were counted.
        most_running: of them at once, by tenant.
    """

    scenario: Scenario
    history: History
    verdict: Verdict
    surprises: tuple[str, ...]
    notes: tuple[tuple[int, str], ...]
    steps: int
    samples: int = 0
    most_running: Mapping[str, int] = field(default_factory=dict)

    @property
    def kills(self) -> int:
        """How many workers, and children of workers, were killed."""
        return sum(fault.kind in (WORKER_KILLED, CHILD_KILLED) for fault in self.history.of(Fault))

    @property
    def ok(self) -> bool:
        """Whether the history is valid and nothing surprised."""
        return self.verdict.word == "valid" and not self.surprises


class Simulation:
    """One run.

    Args:
        scenario: what happens.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.notes: list[tuple[int, str]] = []
        self.surprises: list[str] = []
        self.site = Deployment(scenario, self.note)
        self._began_us = self.site.engine.now_us()
        self._numbers = itertools.count(1)

    def note(self, text: str) -> None:
        """Write a line into the trace."""
        self.notes.append((self.site.witness.now_us(), text))

    def run(self) -> Result:
        """Let it all happen, mend everything, let it end, and judge."""
        with _quiet(self._hear):
            self._define()
            self.site.start()
            for mishap in self.scenario.mishaps:
                mishaps.plan(self.site, mishap)
            for wish in self.scenario.wishes:
                self.site.flow.call_in(self._caller(wish), us=wish.at_us)
            self.site.engine.run(self._began_us + self.scenario.faults_us)
            self.site.mend()
            self.note("everything is mended")
            until_us = self.site.witness.now_us()
            end_us = self.site.engine.now_us() + DRAIN_US
            while self.site.engine.now_us() < end_us and not self._has_ended(until_us):
                self.site.engine.run(min(self.site.engine.now_us() + LOOK_US, end_us))
        events = [*self.site.witness.events, *self._rows()]
        history = History(events, until_us, commits_known=True)
        return Result(self.scenario, history, check(history, LIMITS), tuple(self.surprises), tuple(self.notes),
                      self.site.engine.steps, self.site.witness.samples, self.site.witness.most)

    def _define(self) -> None:
        witness, store = self.site.witness, self.site.store
        for tenant in sorted({"default", *(job["tenant"] for job in self.scenario.jobs)}):
            cap = self.scenario.caps.get(tenant, 20)
            store.add_tenant(MemoryTenant(slug=tenant, max_running=cap))
            witness.add(Capacity(witness.now_us(), tenant, cap))
        for fields in self.scenario.jobs:
            job = MemoryJob(**fields)
            if job.schedule_kind == "interval":
                job.anchor_us = witness.now_us() + 1_000_000
            job.next_run_us = next_run(job, witness.now_us())
            store.add_job(job)
            witness.add(Defined(witness.now_us(), job.job_id, plan_of(job), job.version))

    def _caller(self, wish: Wish) -> Any:
        def begin() -> None:
            if self.site.calm:
                return
            if wish.action in ("send", "move"):
                self._begin_for_tenant(wish)
                return
            job_ids = sorted({event.job_id for event in self.site.witness.events if isinstance(event, Defined)})
            job_id = job_ids[wish.job]
            execution = ""
            if wish.action == "cancel":
                waiting = [r.execution_id for r in self.site.store.rows(job_id) if r.state in OPEN]
                if not waiting:
                    return
                execution = waiting[0]
            number = next(self._numbers)
            process = Process(f"caller{number}", self.site.clock())
            store, queue = self.site.wire(process)
            call = Call(
                number, wish.action, job_id, wish.values, store=self.site.store, wired=store, queue=queue,
                witness=self.site.witness, lanes=self.scenario.lanes, execution_id=execution)
            process.tasks.append(Task("call", call.turn))
            self.note(f"{process.name}: {wish.action} {job_id[-4:]} {dict(wish.values) or ''}")
            self.site.engine.add(process)

        return begin

    def _begin_for_tenant(self, wish: Wish) -> None:
        number, tenant = next(self._numbers), str(self.scenario.jobs[wish.job]["tenant"])
        process = Process(f"caller{number}", self.site.clock())
        store, queue = self.site.wire(process)
        self.note(f"{process.name}: {wish.action} {tenant} {dict(wish.values)}")
        turn = Send(number, queue, lanes=self.scenario.lanes, tenant=tenant, **wish.values).turn if wish.action == "send" else (
            Move(self._numbers, tenant=tenant, store=self.site.store, wired=store, queue=queue, witness=self.site.witness,
                 lanes=self.scenario.lanes, **wish.values).turn)
        process.tasks.append(Task(wish.action, turn))
        self.site.engine.add(process)

    def _has_ended(self, until_us: int) -> bool:
        store, site = self.site.store, self.site
        if any(row.state in OPEN and row.due_us <= until_us for row in store.executions.values()):
            return False
        if any(job.next_run_us is not None and job.next_run_us <= until_us for job in store.jobs.values()):
            return False
        if site.queue.open_plain():
            return False
        return not any(held.begun for worker in site.workers.values() for held in worker.held.values()
                       if is_plain(held.delivery.execution_id)
                       or store.executions[held.delivery.execution_id].due_us <= until_us)

    def _rows(self) -> Iterator[Row]:
        for row in self.site.store.rows():
            yield Row(
                row.execution_id, row.job_id, row.tenant, row.kind, row.attempt, row.scheduled_us, row.due_us, row.job_version,
                row.state, row.reason, row.published_us, row.started_us, row.finished_us, row.worker, row.deliveries,
                row.missed_count, row.first_missed_us)

    def _hear(self, event: str, fields: Any) -> None:
        if event == "service_failed" and not isinstance(fields["error"], (QueueUnavailable, StoreUnavailable)):
            self.surprises.append(f"{fields['service']}: {fields['error']!r}")
        elif event in ("quarantined", "outcome_unknown"):
            self.surprises.append(f"{event}: {fields}")
        elif event in ("published", "lane_reachable"):
            self.site.wake_workers()
        if event in TOLD:
            self.note(f"{event} " + " ".join(f"{name}={value}" for name, value in fields.items()))


@contextmanager
def _quiet(hear: Any) -> Iterator[None]:
    """Listen to the services' events, and keep what they log of faults to themselves."""
    logger = logging.getLogger("chrono_beat")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    end = telemetry.subscribe(hear)
    try:
        yield
    finally:
        end()
        logger.setLevel(level)


def simulate(seed: int, theme: str = "") -> Result:
    """Run what a seed stands for; among the scenarios about caps if *theme* is "caps"."""
    return Simulation((capped if theme == "caps" else scenario)(seed)).run()


def summary(results: list[Result]) -> dict[str, int]:
    """Count the findings of several runs by what they are."""
    return dict(Counter(found.what for result in results for found in result.verdict.findings))
