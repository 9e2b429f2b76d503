"""The values that travel along the path: what is read from the due index, claimed, published, drawn and recorded.

They are named tuples, since a burst makes 100,000 of them. Instants are ``…_us``: microseconds since the epoch, UTC; a
length of time has its unit in its name; an optional number is None where absent.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

MISFIRE_POLICIES = ("skip", "latest", "all")
CONCURRENCY_POLICIES = ("forbid", "allow", "replace")
IDEMPOTENT = ("unknown", "yes", "no")
KEY_SCOPES = ("occurrence", "attempt")
SCHEDULE_KINDS = ("cron", "interval", "once", "celery")
GONE_VERSION = 2_147_483_647        # the version of a job that was deleted: newer than that of any row it left


def shown_without(record: Any, *hidden: str) -> str:
    """Return the ``repr`` of a named tuple without its fields of users' data: logs and reports of errors write records so."""
    pairs = zip(record._fields, record, strict=True)
    said = (f"{name}={'…' if name in hidden and value else repr(value)}" for name, value in pairs)
    return f"{type(record).__name__}({', '.join(said)})"


class Content(NamedTuple):
    """What is to be run, and how: all that a message and its publish need of a job.

    Args:
        tenant: slug of the tenant.
        name: the job's name.
        task: name of the Celery task.
        args: JSON array, as text, byte for byte as it was saved.
        kwargs: JSON object, as text, byte for byte as it was saved.
        headers: JSON object of further message headers, as text; "" for none.
        pool: the job's own pool, else its tenant's, else "" (the default pool).
        priority: 0 (first) to 9.
        soft_limit_seconds: soft time limit of the task; None for none.
        max_duration_seconds: hard bound of one run.
        expires_after_seconds: how long after its first due_at an occurrence may still start; None for ever.
        concurrency: one of CONCURRENCY_POLICIES.
        key_scope: "occurrence" or "attempt": which id the target gets as its idempotency key.
        exclusion_group: of the executions of a tenant's group at most one is active; "" for none.
    """

    tenant: str
    name: str
    task: str
    args: str
    kwargs: str
    headers: str
    pool: str
    priority: int
    soft_limit_seconds: float | None
    max_duration_seconds: float | None
    expires_after_seconds: float | None
    concurrency: str
    key_scope: str
    exclusion_group: str = ""

    def __repr__(self) -> str:
        return shown_without(self, "args", "kwargs", "headers")


class DueJob(NamedTuple):
    """A row of the due index whose next run lies before the look-ahead's end.

    With *replan* the job was edited around the store (by SQL): nothing of it is due; compute its next run from now and
    claim it without occurrences.
    """

    job_id: str
    partition: int
    next_run_us: int
    version: int
    schedule_kind: str
    expression: str
    timezone: str
    start_us: int | None
    end_us: int | None
    anchor_us: int | None
    spread_seconds: int
    misfire: str
    misfire_cap: int | None
    grace_seconds: float | None
    content: Content
    replan: bool = False


class Occurrence(NamedTuple):
    """One execution row that a claim writes: state "scheduled", or "missed" with how many instants it stands for."""

    scheduled_us: int
    due_us: int
    state: str = "scheduled"
    missed_count: int = 0
    first_missed_us: int | None = None


class Claim(NamedTuple):
    """The claim of one due job: it holds only if epoch, next run and version are still what was read.

    Args:
        job_id, partition, version, next_run_us: as read from the due index.
        epoch: the fencing number under which the claimant owns the partition.
        new_next_run_us: the first instant that is not claimed by this; None where nothing is left.
        occurrences: rows to write, oldest first. An occurrence whose row exists already and is open is taken over in place
            (new version, this epoch); one that has ended is left alone.
        content: copied into history fields (tenant, name).
    """

    job_id: str
    partition: int
    version: int
    next_run_us: int
    epoch: int
    new_next_run_us: int | None
    occurrences: Sequence[Occurrence]
    content: Content


class ScheduledExecution(NamedTuple):
    """An execution row, held by a dispatcher's epoch, with what its message needs.

    Args:
        queued: whether load_scheduled found it queued: it was published in time, with the content of an older version.
        options: of an execution without a job (`chrono_beat.core.eta`); None for any other.
        celery_id: its Celery task id.
    """

    execution_id: str
    job_id: str
    partition: int
    scheduled_us: int
    due_us: int
    first_due_us: int
    attempt: int
    retries: int
    kind: str
    version: int
    content: Content
    queued: bool = False
    options: str | None = None
    celery_id: str = ""

    def __repr__(self) -> str:
        return shown_without(self, "options")


class PublishItem(NamedTuple):
    """One execution on its way into a tenant's stream.

    Args:
        execution_id, job_id, tenant, version, attempt, kind: as in the row.
        pool: name of the pool, never empty.
        priority: 0 (first) to 9.
        due_us: nobody may read it before.
        expires_us: from this instant on it must not start any more; None for never.
        concurrency: one of CONCURRENCY_POLICIES; MISSED where it is not to run but to end as missed, unless it is there
            already.
        payload: the Celery message, a JSON document in UTF-8.
        group: exclusion group within the tenant; "" for none.
    """

    execution_id: str
    job_id: str
    tenant: str
    version: int
    attempt: int
    kind: str
    pool: str
    priority: int
    due_us: int
    expires_us: int | None
    concurrency: str
    payload: bytes
    group: str = ""

    def __repr__(self) -> str:
        return shown_without(self, "payload")


# What the publish script says of one item.
PUBLISHED, ALREADY, SKIPPED, WAITING, VOIDED, EARLY = "published", "already", "skipped", "waiting", "voided", "early"
MISSED = "missed"


class Stop(NamedTuple):
    """A running delivery that was told to make room for another execution (policy replace).

    Args:
        execution_id, token: which delivery.
        worker: who runs it, and is to be told.
        withdrawn: its grace is over and its lease has been taken away: nothing it says counts any more.
    """

    execution_id: str
    token: str
    worker: str
    withdrawn: bool = False


class PublishResult(NamedTuple):
    """What became of a publish call.

    Args:
        refused: "" where the call was carried out; else why all of it was refused: "deadline" (after valid_until),
            "generation" (the lane has another one: empty the wheel, load it anew) or "quarantine" (try again later).
        replies: a word for each item, in order: PUBLISHED; ALREADY (a copy or its outcome is there); SKIPPED (overlap; an
            outcome "skipped" or "superseded" was appended); WAITING (in a lock's queue); VOIDED (an older version than
            the job's void); EARLY (Redis' clock has not reached due_us: nothing was done, try again); MISSED
            (as was asked for; the outcome was appended).
        now_us: Redis' clock.
        stops: the running deliveries that are to stop now.
    """

    refused: str
    replies: Sequence[str]
    now_us: int
    stops: Sequence[Stop] = ()


class LaneState(NamedTuple):
    """What Redis knows of a lane: generation None where its key is missing.

    *unknown_before_us*: what was due before this instant may have run in a lost generation (rule 12); 0 where nothing can.
    *has_plain_tasks*: whether this memory has had any; what runs of them has no row.
    """

    generation: int | None
    replication_id: str
    opened_replication_id: str
    quarantine_until_us: int
    now_us: int
    unknown_before_us: int = 0
    has_plain_tasks: bool = False


class LaneRecord(NamedTuple):
    """What the database knows of a lane.

    *has_plain_tasks*: whether Redis was seen to have had any there; kept for the time when it has forgotten them.
    """

    lane: int
    generation: int
    replication_id: str
    began_us: int
    has_plain_tasks: bool = False


class RetryPolicy(NamedTuple):
    """A job's policy for plain failures.

    Args:
        max_attempts: attempts in all; 1 is "no automatic retry".
        explicit: whether it was set on the job; only then it also ends what the task's own retry asks for.
        base_seconds, factor, maximum_seconds, jitter: delay before attempt n + 1 is min(maximum, base × factor^(n−1)) ± jitter.
    """

    max_attempts: int
    explicit: bool
    base_seconds: float
    factor: float
    maximum_seconds: float
    jitter: float


class OpenExecution(NamedTuple):
    """What the recorder must know of a row to decide about its end."""

    execution_id: str
    job_id: str
    tenant: str
    partition: int
    scheduled_us: int
    first_due_us: int
    attempt: int
    retries: int
    state: str
    version: int
    retry: RetryPolicy
    due_us: int = 0


class Start(NamedTuple):
    """A running delivery to be written into its row."""

    execution_id: str
    started_us: int
    worker: str
    deliveries: int


class Ending(NamedTuple):
    """A terminal state to be written into an open row.

    Args:
        execution_id: which row.
        state: one of lifecycle.TERMINAL.
        reason: one of lifecycle.REASONS, or "".
        finished_us: Redis' clock at the end.
        worker: where it ran, "" for nowhere.
        deliveries: how often it was handed out.
        error: short text for people: type, message, tail of the traceback; "" for none.
        if_version: where not None the row must still have this version (skips and cancels, protocol rule 11).
        if_generation: where not None the lane must still have this generation in the database (likewise).
        lane: the lane of if_generation.
        result: short text for people on what a success brought; "" for none.
    """

    execution_id: str
    state: str
    reason: str
    finished_us: int
    worker: str
    deliveries: int
    error: str
    if_version: int | None = None
    if_generation: int | None = None
    lane: int = 0
    result: str = ""


class NewAttempt(NamedTuple):
    """The next attempt, written in the transaction that ends the one before it, and only if that one was open.

    Args:
        after: execution id of the attempt that failed.
        attempt: its number + 1.
        retries: what the task will read as ``request.retries``.
        due_us: when it may be read.
        args, kwargs: JSON texts where they differ from the job's, else None.
    """

    after: str
    attempt: int
    retries: int
    due_us: int
    args: str | None = None
    kwargs: str | None = None

    def __repr__(self) -> str:
        return shown_without(self, "args", "kwargs")


class Void(NamedTuple):
    """An edit that Redis may not know of yet: no copy of the job below *version* may be published or drawn."""

    job_id: str
    tenant: str
    version: int


class CancelRequest(NamedTuple):
    """An open execution whose cancellation was asked for."""

    execution_id: str
    job_id: str
    tenant: str
    state: str
    due_us: int


class RecordResult(NamedTuple):
    """What a record transaction did.

    Args:
        ended: ids of rows that ended now.
        ignored: ids of those whose outcome came too late or did not fit.
        started: tenant and lateness (due to started, µs) of each row that started now for the first time.
    """

    ended: Sequence[str]
    ignored: Sequence[str]
    started: Sequence[tuple[str, int]] = ()


class PartitionLease(NamedTuple):
    """A partition as the database has it; owner "" for nobody; offered: its owner asks others to take it."""

    partition: int
    owner: str
    epoch: int
    expires_us: int
    offered: bool


class TenantLimits(NamedTuple):
    """What the draw must know of a tenant."""

    tenant: str
    weight: int
    max_running: int
    paused: bool
    changed_us: int


ANY_TASK = "*"
"""Among the tasks of a worker's report: it takes any (the relay, which runs none)."""


class WorkerReport(NamedTuple):
    """A live worker: what it draws and what it can run."""

    worker: str
    pools: Sequence[str]
    tasks: Sequence[str]
    concurrency: int
    pool_class: str
    seen_us: int
