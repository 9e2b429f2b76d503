"""What there is to do meanwhile: jobs of every policy, and somebody who triggers, edits, pauses, cancels and deletes."""
from __future__ import annotations

import random
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

CALL_EVERY_SECONDS = 0.4
BURST_EVERY_SECONDS = 9.0
BURST_AHEAD_SECONDS = 5.0
BURST = 60
"""One-offs that are due at the same instant."""

LONGEST_CALL_SECONDS = 60.0
CAPS = {"default": 20, "slow": 3, "paid": 20}
"""How much each tenant may run at once."""


@dataclass
class Call:
    """A call on a job, and what came of it; instants are seconds since the epoch."""

    what: str
    job_id: str
    called_at: float
    returned_at: float = 0.0
    failed: str = ""
    """Why it failed, "" if it did not: then it promises nothing."""

    warned: str = ""
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass
class Made:
    """A job as it was when it was made; instants are seconds since the epoch."""

    id: str
    name: str
    tenant: str
    kind: str
    expression: str
    anchor: float
    made_at: float
    concurrency: str
    group: str
    deleted: bool = False


def as_made(job: Any, made_at: float) -> Made:
    """Return what is kept of a stored job."""
    anchor = job.anchor_at.timestamp() if job.anchor_at else made_at
    if job.schedule_kind == "interval":
        made_at = anchor                                   # the instant from which its first run was counted
    elif job.schedule_kind == "once":
        # A busy machine may take longer to make it than was left: then it runs at once, and is late.
        made_at = min(made_at, datetime.fromisoformat(job.expression).timestamp() - 0.001)
    return Made(
        str(job.id), job.name, job.tenant, job.schedule_kind, job.expression, anchor, made_at, job.concurrency,
        job.exclusion_group)


def definitions(random_: random.Random) -> list[dict[str, Any]]:
    """Return the jobs that are there from the beginning; every policy, several of each."""
    def work(seconds: float, fails: int = 0) -> dict[str, Any]:
        return {"seconds": seconds, "fails": fails}

    def some(low: float, high: float) -> float:
        return round(random_.uniform(low, high), 2)

    made: list[dict[str, Any]] = []
    for number in range(3):
        made += [
            {"name": f"steady {number}", "every": 1, "concurrency": "allow", "misfire": "all", "kwargs": work(0)},
            {"name": f"latest {number}", "every": 2, "concurrency": "allow", "kwargs": work(some(0, 0.5))},
            {"name": f"forbid {number}", "every": 2, "concurrency": "forbid", "kwargs": work(some(0.5, 3))},
            {"name": f"forbid, all {number}", "every": 3, "concurrency": "forbid", "misfire": "all", "tenant": "slow",
             "kwargs": work(some(0.5, 4))},
            {"name": f"again {number}", "every": 4, "concurrency": random_.choice(["allow", "forbid"]),
             "kwargs": work(some(0, 0.5), fails=number % 3)},
            {"name": f"replace {number}", "every": 3, "concurrency": "replace", "kwargs": work(some(2, 5))},
            {"name": f"group {number}", "every": 5, "concurrency": "allow", "exclusion_group": "one at a time",
             "kwargs": work(some(0.1, 0.6))},
            {"name": f"edited {number}", "every": 2, "concurrency": "allow", "misfire": "all", "kwargs": work(0.1)},
            {"name": f"moved {number}", "every": 2, "concurrency": "forbid", "kwargs": work(0.3)},
            {"name": f"paused {number}", "every": 2, "concurrency": "allow", "kwargs": work(0.2)},
        ]
    made += [
        {"name": "long", "every": 12, "concurrency": "forbid", "kwargs": work(9)},
        {"name": "cut off", "every": 7, "concurrency": "forbid", "max_duration": 2, "kwargs": work(6)},
        {"name": "minutely", "cron": "* * * * *", "kwargs": work(0)},
    ]
    return made


class Load(threading.Thread):
    """Defines the jobs and goes on calling until `stop`; one thread, so calls do not overlap.

    Args:
        seed: of the choices.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(name="load", daemon=True)
        self.jobs: dict[str, Made] = {}
        self.calls: list[Call] = []
        self.next_burst = 0.0
        """When the next one-offs are due, in seconds since the epoch."""

        self._random = random.Random(seed)
        self._over = threading.Event()
        self._burst_at = 0.0
        self._number = 0

    # -- what the harness calls -----------------------------------------------------------------------------------

    def define(self) -> None:
        """Create the jobs that are there from the beginning."""
        from chrono_beat.core.retry import Retry
        from chrono_beat_django.models import Tenant

        for tenant, cap in CAPS.items():
            Tenant.objects.update_or_create(slug=tenant, defaults={"max_running": cap})
        retry = Retry(max_attempts=3, base=1, factor=2, maximum=4, jitter=0.2)
        for definition in definitions(self._random):
            self._create({"retry": retry, **definition})

    def stop(self) -> None:
        """End the calls and wait for the last one."""
        self._over.set()
        self.join(LONGEST_CALL_SECONDS)

    # -- the calls ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Call, until it is over."""
        from django.db import close_old_connections

        ways = [self._trigger, self._edit] * 4 + [self._cancel] * 3
        ways += [self._move, self._pause, self._resume, self._replace_job]
        while not self._over.wait(self._random.uniform(0.5, 1.5) * CALL_EVERY_SECONDS):
            close_old_connections()
            if time.time() > self._burst_at:
                self._burst()
            self._random.choice(ways)()

    def _call(self, what: str, job_id: str, function: Callable[[str], Any], **detail: Any) -> Call:
        call = Call(what, job_id, time.time(), detail=detail)
        number = str(len(self.calls))
        self.calls.append(call)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                answer = function(number)
                call.detail["answer"] = str(getattr(answer, "id", ""))
            except Exception as error:
                call.failed = f"{type(error).__name__}: {error}"[:300]
        call.warned = "; ".join(str(warning.message) for warning in caught)[:300]
        call.returned_at = time.time()
        return call

    def _create(self, definition: dict[str, Any], actor: str = "") -> Made:
        from chrono_beat_django import jobs

        made_at = time.time()
        job = jobs.create(task="chaos.work", actor=actor, **{"tenant": "default", **definition})
        made = as_made(job, made_at)
        self.jobs[made.id] = made
        return made

    def _chosen(self, *beginnings: str) -> Made:
        return self._random.choice([
            job for job in self.jobs.values() if job.name.startswith(beginnings)])

    def _trigger(self) -> None:
        from chrono_beat_django import jobs

        job = self._chosen("steady", "latest", "forbid", "again", "group", "replace")
        self._call("trigger", job.id, lambda actor: jobs.trigger(job.id, actor=actor))

    def _edit(self) -> None:
        """Change what a job does and not when: all its instants still have to be there."""
        from chrono_beat_django import jobs

        job = self._chosen("edited")
        self._number += 1
        mark = str(self._number)
        kwargs = {"seconds": 0.1, "mark": mark}
        self._call("edit", job.id, lambda actor: jobs.update(job.id, kwargs=kwargs, actor=actor), mark=mark)

    def _move(self) -> None:
        from chrono_beat_django import jobs

        job = self._chosen("moved")
        every = self._random.choice([2, 3, 4])
        self._call("move", job.id, lambda actor: jobs.update(job.id, every=every, actor=actor), every=every)

    def _pause(self) -> None:
        from chrono_beat_django import jobs

        job = self._chosen("paused")
        self._call("pause", job.id, lambda actor: jobs.pause(job.id, actor=actor))

    def _resume(self) -> None:
        from chrono_beat_django import jobs

        job = self._chosen("paused")
        self._call("resume", job.id, lambda actor: jobs.resume(job.id, actor=actor))

    def _replace_job(self) -> None:
        """Delete a job that was made for it, or make the next one."""
        from chrono_beat_django import jobs

        there = [job for job in self.jobs.values() if job.name.startswith("passing") and not job.deleted]
        if there:
            call = self._call("delete", there[0].id, lambda actor: jobs.delete(there[0].id, actor=actor))
            there[0].deleted = not call.failed or "NotFound" in call.failed
            return
        self._number += 1
        definition = {"name": f"passing {self._number}", "every": 1, "concurrency": "allow", "kwargs": {"seconds": 0.1}}
        self._call("create", "", lambda actor: self._create(definition, actor))

    def _cancel(self) -> None:
        """Cancel an execution that runs, if there is one, else one that is to come."""
        from chrono_beat_django import jobs
        from chrono_beat_django.models import Execution

        rows: list[Execution] = []
        self._call("look", "", lambda actor: rows.extend(
            Execution.objects.filter(state__in=("running", "queued"), job_name__startswith="forbid")[:20]))
        if rows:
            row = self._random.choice(rows)
            self._call("cancel", str(row.job_id), lambda actor: jobs.cancel(row.id, actor=actor), execution_id=row.id)

    def _burst(self) -> None:
        """Make one-offs that are all due at the same instant."""
        due = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=BURST_AHEAD_SECONDS)
        self._burst_at, self.next_burst = time.time() + BURST_EVERY_SECONDS, due.timestamp()
        self._number += 1

        def create(actor: str) -> None:
            from django.db import transaction

            with transaction.atomic():
                for number in range(BURST):
                    self._create({"name": f"at once {self._number}.{number}", "at": due, "tenant": "paid"}, actor)

        known = set(self.jobs)
        if self._call("burst", "", create, due=due.timestamp()).failed:
            for job_id in self.jobs.keys() - known:        # if they are there after all, the table knows them
                del self.jobs[job_id]

    def all_jobs(self, rows: Iterable[Mapping[str, Any]]) -> dict[str, Made]:
        """Return all jobs that were made, also those whose making seemed to fail, given the table as it is now."""
        found = {str(row["id"]): as_made(SimpleNamespace(**row), row["created_at"].timestamp()) for row in rows}
        return {**found, **self.jobs}
