"""What happened to a deployment, as events, and the verdict on it: valid, invalid, or unknown.

Pure: events in, verdict out; nothing here knows how the system works, only what it promises. A history comes from a
simulation, or from a real deployment: its execution rows, a log that task bodies write, and the calls that were made.

**Order.** Events stand in the order in which they happened; where two have the same instant, the earlier one in the
list came first. Instants are microseconds since the epoch on one clock, the database's.

**Evidence.** Each event is of one witness. `Defined`, `Called`, `Committed`, `Returned`: whoever makes the calls. `Row`:
the database, once, when all is over. `Began` and `Stopped`: the bodies. `Fault`: whoever causes them. The others
(`Granted`, `LeaseEnded`, `Settled`, `Published`, `RowEnded`, `Capacity`, `Sampled`, `Sent`) sharpen the verdict and may
be left out: what only they could show is then not judged. What is missing although a judgement needs it makes the verdict
"unknown".

**Excuses.** A fault excuses by its time and by whom it hit. A repeat delivery of an execution needs a fault that hit
the worker of the delivery before; it is then counted as a duplicate, which at-least-once delivery allows. Without such
a fault it is a finding.

    events = [Defined(t0, "job", Plan("interval", "60", anchor_us=t0)), Row(...), Began(...), ...]
    verdict = check(History(events, until_us=t0 + 3_600_000_000))
    assert verdict.word == "valid", verdict.findings
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

MEMORY_LOST = "memory_lost"
WORKER_KILLED, WORKER_PAUSED, WORKER_CUT, CHILD_KILLED = "worker_killed", "worker_paused", "worker_cut", "child_killed"
QUEUE_AWAY, STORE_AWAY, SERVICE_HIT = "queue_away", "store_away", "service_hit"
FAULTS = (MEMORY_LOST, WORKER_KILLED, WORKER_PAUSED, WORKER_CUT, CHILD_KILLED, QUEUE_AWAY, STORE_AWAY, SERVICE_HIT)
ACTIONS = ("edit", "pause", "resume", "delete", "cancel", "trigger")


class Plan(NamedTuple):
    """What a job is to do: its schedule as stored, and the policies that a verdict depends on.

    Args:
        kind, expression, timezone: "cron", "interval" or "once", as in the job.
        anchor_us: the first run of an interval.
        start_us, end_us: bounds of the schedule; None for none.
        offset_us: this job's own part of its spread: due_at − scheduled_at.
        paused: nothing is planned.
        tenant: whose job it is.
        concurrency: "forbid", "allow" or "replace".
        group: exclusion group; "" for none.
        expires: whether its occurrences can expire.
    """

    kind: str = "interval"
    expression: str = "60"
    timezone: str = "UTC"
    anchor_us: int | None = None
    start_us: int | None = None
    end_us: int | None = None
    offset_us: int = 0
    paused: bool = False
    tenant: str = "default"
    concurrency: str = "forbid"
    group: str = ""
    expires: bool = False


class Defined(NamedTuple):
    """A job was created; it plans what comes after *at_us*."""

    at_us: int
    job_id: str
    plan: Plan
    version: int = 1


class Called(NamedTuple):
    """A control call began: one of ACTIONS. *call* numbers the calls; *execution_id* is what a cancel is about."""

    at_us: int
    call: int
    action: str
    job_id: str
    execution_id: str = ""


class Committed(NamedTuple):
    """A call's transaction committed.

    Args:
        version: the job's from then on.
        plan: the job's from then on; None where it is gone, or stays as it was.
        anew: schedule, zone or pause changed, or the job is gone: what was planned before and has not begun is void.
    """

    at_us: int
    call: int
    version: int
    plan: Plan | None = None
    anew: bool = False


class Returned(NamedTuple):
    """A call returned.

    Args:
        promised: it did so without an error and without a warning; only then it has promised something.
        execution_id: what a trigger has made.
    """

    at_us: int
    call: int
    promised: bool
    execution_id: str = ""


class Row(NamedTuple):
    """An execution row as it stands at the end; columns as in the database, None where they are empty."""

    execution_id: str
    job_id: str
    tenant: str
    kind: str
    attempt: int
    scheduled_us: int
    due_us: int
    version: int
    state: str
    reason: str = ""
    published_us: int | None = None
    started_us: int | None = None
    finished_us: int | None = None
    worker: str = ""
    deliveries: int = 0
    missed_count: int = 0
    first_missed_us: int | None = None


class RowEnded(NamedTuple):
    """A row entered a terminal state."""

    at_us: int
    execution_id: str
    state: str


class Published(NamedTuple):
    """A row was offered to the queue, and what that answered (a word of PublishResult)."""

    at_us: int
    execution_id: str
    reply: str


class Granted(NamedTuple):
    """A worker drew an execution."""

    at_us: int
    execution_id: str
    token: str
    worker: str


class LeaseEnded(NamedTuple):
    """A delivery's lease ended without a settlement: *why* is "expired", "withdrawn" (replace), "lost" (handed back by its
    worker) or "given_back" (it had not begun)."""

    at_us: int
    execution_id: str
    token: str
    why: str


class Began(NamedTuple):
    """A body began.

    Args:
        version: of the plan that the body runs, where it can be told; None where it cannot.
        key: the idempotency key that the body was given.
    """

    at_us: int
    execution_id: str
    token: str
    worker: str
    version: int | None = None
    key: str = ""


class Stopped(NamedTuple):
    """A body is over; one that was killed is, at its last sign of life. *how*: "returned", "raised" or "killed"."""

    at_us: int
    execution_id: str
    token: str
    how: str = "returned"


class Settled(NamedTuple):
    """A worker was told what its outcome counts."""

    at_us: int
    execution_id: str
    token: str
    result: str
    accepted: bool


class Capacity(NamedTuple):
    """From now on a tenant may run so many at once."""

    at_us: int
    tenant: str
    max_running: int


class Sampled(NamedTuple):
    """Somebody has counted: so many executions of a tenant were held under live leases, whatever the system's own count says."""

    at_us: int
    tenant: str
    running: int


class Sent(NamedTuple):
    """A plain task was sent, and is in Redis: there is no row behind it. *due_us*: nobody may begin it before."""

    at_us: int
    execution_id: str
    tenant: str
    due_us: int = 0


class Fault(NamedTuple):
    """Something was made to go wrong.

    Args:
        kind: one of FAULTS.
        until_us: when it was over; the same instant for one that has no length.
        names: the workers (or services) that it hit; empty for all.
    """

    at_us: int
    kind: str
    until_us: int
    names: tuple[str, ...] = ()


Event = (
    Defined | Called | Committed | Returned | Row | RowEnded | Published | Granted | LeaseEnded | Began | Stopped
    | Settled | Capacity | Sampled | Sent | Fault
)
E = TypeVar("E", bound=tuple[object, ...])


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a history may be excused.

    Args:
        lease_us: how long a delivery's lease lasts.
        plan_slack_us: an instant so shortly before its plan was changed may be unclaimed: so long may an outage last.
        clock_error_us: by how much the witnesses' clocks may differ.
        reap_cap: how often an execution may be taken from its worker before it is given up.
        memory_excuses: a lost memory alone excuses a repeat delivery or an overlap. Where every worker is watched it
            does not: healthy workers bring their leases and outcomes back.
    """

    lease_us: int = 60_000_000
    plan_slack_us: int = 30_000_000
    clock_error_us: int = 0
    memory_excuses: bool = False
    reap_cap: int = 5


@dataclass(frozen=True)
class History:
    """A run of a deployment.

    Args:
        events: in the order in which they happened; rows may stand anywhere.
        until_us: what is due later is not judged.
        drained: since then all faults are over and there was time for everything to end.
        commits_known: a call without a `Committed` has changed nothing.
    """

    events: Sequence[Event]
    until_us: int
    drained: bool = True
    commits_known: bool = False

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of a kind, in order."""
        return [event for event in self.events if isinstance(event, kind)]


class Finding(NamedTuple):
    """A broken promise.

    Args:
        invariant: its number, 1 to 10.
        what: a word: "early", "twice", "lost", "unexpected", "repeated", "lease", "stale", "refused", "old_plan", "overlap",
            "skipped", "overtaken", "over_cap", "contradiction", "unmeasured".
        ids: executions, or the job.
        instants_us: when.
        why: a sentence for people.
    """

    invariant: int
    what: str
    ids: tuple[str, ...]
    instants_us: tuple[int, ...]
    why: str

    def __str__(self) -> str:
        return f"invariant {self.invariant}, {self.what}: {', '.join(self.ids)}: {self.why}"


@dataclass(frozen=True)
class Verdict:
    """The judgement.

    Args:
        word: "invalid" with findings; "unknown" where evidence is missing; else "valid".
        findings: every broken promise.
        unjudged: what could not be judged, and for want of which evidence.
        duplicates: repeat deliveries that a fault explains.
    """

    word: str
    findings: tuple[Finding, ...] = ()
    unjudged: tuple[str, ...] = ()
    duplicates: int = 0


@dataclass
class Notes:
    """What the judges write down."""

    findings: list[Finding] = field(default_factory=list)
    unjudged: list[str] = field(default_factory=list)
    duplicates: int = 0

    def find(self, invariant: int, what: str, ids: Iterable[str], instants_us: Iterable[int], why: str) -> None:
        """Note a broken promise."""
        self.findings.append(Finding(invariant, what, tuple(ids), tuple(instants_us), why))


def check(history: History, limits: Limits | None = None) -> Verdict:
    """Judge a history against the ten invariants.

    Args:
        history: what happened.
        limits: what may be excused; the defaults are those of a simulation with default leases.
    """
    from chrono_beat.testing import history_bodies, history_rows, history_tenants

    limits = limits or Limits()
    notes = Notes()
    if not any(isinstance(event, Began) for event in history.events):
        notes.unjudged.append("no body began")
    if not history.drained:
        notes.unjudged.append("it was not left alone until everything had ended")
    for judge in (*history_rows.JUDGES, *history_bodies.JUDGES, *history_tenants.JUDGES):
        judge(history, limits, notes)
    word = "invalid" if notes.findings else "unknown" if notes.unjudged else "valid"
    return Verdict(word, tuple(notes.findings), tuple(notes.unjudged), notes.duplicates)
