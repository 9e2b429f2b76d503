"""What the services need from a database and from Redis: two protocols, no code.

``JobStore`` is kept by ``chrono_beat_django.store`` and ``chrono_beat.testing.memory_jobs``; ``QueueStore`` by
``chrono_beat.redis.queue`` and ``chrono_beat.testing.memory_queue``. One contract suite each (``tests/contract``) holds for
all of them. A lost race is a return value; a broken connection is StoreUnavailable or QueueUnavailable.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from chrono_beat.core.alerts import Finding, OpenAlert, Over, Receipt
from chrono_beat.core.crowding import TenantLoad
from chrono_beat.core.deliveries import Cancelled, Delivery, Hold, Outcome, Parked, Reaped, Running, Settlement
from chrono_beat.core.eta import EtaTask
from chrono_beat.core.findings import JobName, RetryHold
from chrono_beat.core.plain import PlainTask
from chrono_beat.core.records import (
    CancelRequest,
    Claim,
    DueJob,
    Ending,
    LaneRecord,
    LaneState,
    NewAttempt,
    OpenExecution,
    PartitionLease,
    PublishItem,
    PublishResult,
    RecordResult,
    ScheduledExecution,
    Start,
    Stop,
    TenantLimits,
    Void,
    WorkerReport,
)
from chrono_beat.core.recovery import LostGrant, OpenRow, Recorded, Renewed


class JobStore(Protocol):
    """The database: schedules, execution rows, partitions. Each method is one transaction; all of it or nothing is visible."""

    def now_us(self) -> int:
        """Return the database's clock (not the transaction's start)."""

    # -- partitions -------------------------------------------------------------------------------------------------

    def join(self, member: str, lease_us: int) -> list[str]:
        """Write the member's heartbeat, valid for *lease_us*; return all live members that are not leaving, sorted."""

    def leave(self, member: str, *, gone: bool) -> None:
        """Mark a member as leaving (it still fires what it owns), or, with *gone*, remove it."""

    def partitions(self) -> list[PartitionLease]:
        """Return every partition with its owner, by number."""

    def take_partitions(self, member: str, wanted: Iterable[int], lease_us: int) -> dict[int, int]:
        """Take those of *wanted* that nobody holds, whose lease has run out, that are offered, or that are already the member's
        own; raise their epoch by one. Returns {partition: new epoch} of what was taken."""

    def renew_partitions(self, member: str, epochs: Mapping[int, int], lease_us: int) -> set[int]:
        """Prolong leases; returns the partitions that are still the member's under that epoch."""

    def offer_partitions(self, member: str, epochs: Mapping[int, int]) -> None:
        """Ask others to take these partitions; the member goes on until they do."""

    def release_partitions(self, member: str, epochs: Mapping[int, int]) -> None:
        """Give up partitions at once; their epoch stays."""

    # -- lanes ------------------------------------------------------------------------------------------------------

    def lane(self, lane: int) -> LaneRecord:
        """Return a lane's generation; a lane that has no row yet gets one with generation 0."""

    def raise_generation(self, lane: int, seen: int, replication_id: str) -> LaneRecord:
        """Raise a lane's generation by one if it still is *seen*; returns the record as it then is."""

    def note_plain_tasks(self, lane: int, generation: int, there: bool) -> None:
        """Keep whether a lane has had plain tasks; nothing happens where it has another generation by now."""

    def may_be_running(self, lane: int, lanes: int) -> bool:
        """Say whether an open execution row of the lane's tenants was due before now."""

    # -- claim ------------------------------------------------------------------------------------------------------

    def due_jobs(
        self, partitions: Sequence[int], until_us: int, limit: int, without: Sequence[str] = (),
    ) -> list[DueJob]:
        """Return jobs of these partitions with next_run <= until, oldest first within a partition, at most *limit* in all.
        A range scan of (partition, next_run_at). Paused and quarantined jobs have no next run and are not in it. Jobs of the
        tenants *without* are left out."""

    def claim(self, member: str, claims: Sequence[Claim]) -> list[ScheduledExecution]:
        """Carry out a batch of claims in one transaction: advance next_run, write the execution rows.

        A claim whose epoch, next_run or version is no longer what was read changes nothing; the others go on.

        Returns:
            What was claimed and may go into the wheel, held by the claims' epochs: new rows, and rows of an older version
            that were scheduled or queued and are taken over (a publish replaces the copy that no worker has, rule 7).
        """

    def quarantine(self, job_id: str, version: int, reason: str) -> bool:
        """Take a job that can't be planned out of the due index with a visible reason; False if its version has moved on."""

    def load_scheduled(
        self, epochs: Mapping[int, int], until_us: int, limit: int, without: Sequence[str] = (),
    ) -> list[ScheduledExecution]:
        """Take rows in state scheduled of these partitions, due until then, that no or a lower epoch holds; mark them as held by
        the given epoch (only while the partition still has it). Oldest first. Those of the tenants *without* may be left out.

        Rows that are older than their job's version, but not than its plan_version, are taken over in place, with the new
        content: also those that a wheel holds, or that are queued (rule 7). Rows of an older plan, and those whose
        cancellation was asked for, are left alone."""

    def forget_holds(self, epochs: Mapping[int, int]) -> None:
        """Let go of all scheduled rows held under these epochs (the wheel was emptied), so that load_scheduled finds them."""

    def mark_queued(self, published: Sequence[tuple[str, int]]) -> int:
        """Move rows from scheduled to queued, with the instant of publishing (execution id, µs); returns how many moved."""

    # -- ETA tasks

    def add_eta_task(self, task: EtaTask) -> str:
        """Write an execution without a job: kind eta, due when the task says. Its instant is the one it is due at, raised by
        1 µs for as long as the task id has one there. A retry (retries > 0) that is there already and open is not written
        again. Within a transaction of the caller's it is part of it. Returns the execution's id.

        load_scheduled, load_open, open_executions and record treat such a row as one of a job that nobody ever edits."""

    # -- record -----------------------------------------------------------------------------------------------------

    def open_executions(self, execution_ids: Sequence[str]) -> dict[str, OpenExecution]:
        """Return those of the rows that exist and are open, by id."""

    def record(
        self, starts: Sequence[Start], endings: Sequence[Ending], attempts: Sequence[NewAttempt],
    ) -> RecordResult:
        """Write starts, endings and next attempts in one transaction. Every update names the states it may leave; a next attempt
        is written only if the attempt before it ended by this very call."""

    # -- keeping ----------------------------------------------------------------------------------------------------

    def superseded(
        self, partitions: Sequence[int], limit: int, *, running: bool = False,
    ) -> list[tuple[str, str, str, int]]:
        """Return (execution id, job id, tenant, job's version or GONE_VERSION) of open rows that nobody may publish any more
        (protocol rule 8): due, and their job is gone, or they are older than its plan_version and no claim meets them any
        more: next_run has passed them, the job is paused, or they are of another kind than schedule. With *running* also
        rows in that state: their worker may have died since. Looks at jobs with a void that is not done, so it costs nothing
        where nobody edits."""

    def pending_voids(self, limit: int) -> list[Void]:
        """Return voids that Redis may not know of, oldest first. Whoever edits or deletes a job writes one in the same
        transaction, however it is done."""

    def void_done(self, voids: Sequence[Void]) -> None:
        """Note that Redis knows these voids (of a job whose version has moved on since, nothing is noted); forget those
        whose job has no open rows of an older version left, also earlier ones."""

    def cancel_requests(self, partitions: Sequence[int], limit: int) -> list[CancelRequest]:
        """Return open rows whose cancellation was asked for, oldest request first."""

    # -- flags

    def upcoming_tasks(self, partitions: Sequence[int], until_us: int) -> list[tuple[str, str]]:
        """Return the pools ("" for the default one) and tasks of jobs without a flag whose next run comes by then, each pair
        once. A range scan of (partition, next_run_at)."""

    def flagged_tasks(self) -> list[tuple[str, str]]:
        """Return the pools and tasks of jobs that have a flag, each pair once."""

    def flag_jobs(self, pool: str, task: str, reason: str, until_us: int, limit: int) -> list[JobName]:
        """Flag the jobs of that pool and task whose next run comes by then; with the reason "" take the flag away from those
        that have one. Neither version nor plan changes. Returns the jobs that changed, at most *limit*."""

    def hold_retries(self, window_us: int, minimum: int, hold_us: int) -> tuple[list[RetryHold], list[str]]:
        """Hold back the retries of tenants with a failure_threshold that the share of failures has reached, among at least
        *minimum* runs that ended within *window_us* and since the tenant was changed last (a hold and its end count).
        Returns the new holds, and the slugs whose hold was over and is taken away. load_scheduled leaves rows of kind retry
        alone while their tenant is held."""

    # -- relay

    def message_queues(self, job_ids: Sequence[str]) -> dict[str, str | None]:
        """Return the queues of those of the jobs that exist and have a message target, by job id; None for shadows."""

    # -- audit

    def open_page(
        self, partitions: Sequence[int], after: OpenRow | None, age_us: int, limit: int,
    ) -> list[OpenRow]:
        """Return open rows due longer ago than *age_us*, in the order of *partitions* (ascending) and, in each, by (due_at, id);
        those behind the row *after*, whose partition is the first. A range scan of (partition, due_at) that ends at *limit*."""

    def load_open(self, execution_ids: Sequence[str]) -> list[ScheduledExecution]:
        """Return those of the rows that are open and may be published: of their job's version (protocol rule 8), and without a
        request to cancel them. Those of an older version are taken over as load_scheduled does, also where they run: Redis
        has lost the run (rule 7)."""

    def let_go(self, execution_ids: Sequence[str]) -> int:
        """Let no wheel hold these rows any longer, so that load_scheduled finds them; only rows in state scheduled. Returns how
        many that were."""

    def skips_in_a_row(self, job_ids: Sequence[str], most: int) -> dict[str, int]:
        """Return how many of each job's latest executions in a row were skipped because one before was active, at most
        *most*; one that started ends a row. A few index rows for each job."""

    def plans(self, job_ids: Sequence[str]) -> dict[str, DueJob]:
        """Return those of the jobs that exist, by id, due or not (next_run_us is 0 where they have none)."""

    def tenant_limits(self, changed_since_us: int) -> list[TenantLimits]:
        """Return the limits of tenants changed since then (0: all that differ from the defaults)."""

    def tenant_limits_after(self, slug: str, limit: int) -> list[TenantLimits]:
        """Return those that differ from the defaults, at most *limit*, in the order of slugs, from behind *slug* on."""

    def add_capped(self, spells: Sequence[tuple[str, int, int]]) -> None:
        """Add time spent capped to tenants' minutes: (tenant, start of the minute in µs, µs)."""

    def add_reaps(self, reaps: Sequence[tuple[str, int, int]]) -> None:
        """Add leases that ran out to tenants' minutes: (tenant, start of the minute in µs, how many)."""

    def loads(self, now_us: int) -> list[TenantLoad]:
        """Return what tenants did in their last five minutes (core.crowding) and the hour before; only those that did
        anything within both together, by slug."""

    def merge_rollups(self, now_us: int, retention_us: int, limit: int) -> int:
        """Merge minutes that are two days old into hours, and hours past the retention into days, at most *limit* rows, as
        one transaction; returns how many were merged."""

    def keep(self, now_us: int, retention_us: int, limit: int) -> int:
        """Make room: prepare the coming days' partitions where the engine has them, remove finished rows past retention (their
        tenant's, where it has one of its own), at most *limit* but for whole days; returns how many rows went."""

    def prune(self, now_us: int, retention_us: int, limit: int) -> int:
        """Remove changes of jobs, stored answers, closed alerts and what was seen of another beat that are too old, at most
        *limit* of each; returns the most that went of one kind."""


class MessageSender(Protocol):
    """The way to the user's broker, for the relay."""

    def connect(self) -> None:
        """Connect, unless that is so already.

        Raises:
            BrokerUnavailable: it cannot be reached.
        """

    def send(self, queue: str, payload: bytes) -> None:
        """Send the message of an execution to a queue; when this returns, the broker has it.

        Args:
            queue: name of the Celery queue.
            payload: the message, as it was published to a pool.

        Raises:
            BrokerUnavailable: it was not sent, or nobody knows whether it was.
            InvalidInput: this message will never be sent.
        """

    def close(self) -> None:
        """Let go of the connection."""


class QueueStore(Protocol):
    """Redis: streams, leases, locks, outcomes. Each method that names a lane is one script call on that lane's slot."""

    def now_us(self) -> int:
        """Return Redis' clock."""

    def lane_state(self, lane: int) -> LaneState:
        """Return what Redis knows of the lane."""

    def open_lane(self, lane: int, generation: int, replication_id: str, quarantine_us: int) -> bool:
        """Open the lane under a new generation: remove every copy, marker, lease and lock that has an execution row, keep
        unrecorded outcomes and plain tasks; False if the lane already has this generation or a later one."""

    # -- dispatcher's side ------------------------------------------------------------------------------------------

    def publish(
        self, lane: int, generation: int, valid_until_us: int, items: Sequence[PublishItem],
    ) -> PublishResult:
        """Publish a batch; idempotent by execution id. See PublishResult for the answers."""

    def publish_plain(self, lane: int, tasks: Sequence[PlainTask]) -> list[str]:
        """Publish tasks without an execution row; idempotent by copy id. PUBLISHED or ALREADY for each. Accepted also in
        quarantine and where the lane has no generation, and drawn after it; a new generation leaves them there. None of
        their ends is an outcome: a settle with RAN_RETRY puts what store_retry keeps (pool, priority, payload, eta_us or
        countdown_us) in the task's place, any other drops it; past the cap of reaps it is handed out all the same."""

    def void(self, lane: int, job_id: str, version: int) -> None:
        """From now on no copy of the job older than *version* is published or drawn."""

    def end_voided(self, lane: int, execution_id: str, job_id: str, version: int, tenant: str = "") -> str:
        """Void what is older than *version*, drop the copy that no worker holds, free its lock and append the outcome
        "voided" (the audit's way to end a row), which carries *version*: it speaks of every row below it. *tenant* is
        for an execution without a copy. Returns "ended" (it never ran), "lost" (ended, too, but it may have run), "held"
        (a worker has it, or nobody can know: quarantine) or "done" (its outcome is on the way, or it was published
        anew)."""

    def deliveries_of(
        self, lane: int, job_id: str, below_version: int | None, *, tenant: str = "",
    ) -> list[Running] | None:
        """Return the deliveries of a job, of versions below (None: of any), that workers hold; with *job_id* "" all of
        *tenant*. None where nobody can know: the lane has no generation, or is in quarantine."""

    def cancel(self, lane: int, execution_id: str, job_id: str, tenant: str) -> Cancelled:
        """End the copy of an execution with the outcome "cancelled" and free its locks; where there is none, no later publish
        of it counts. What a worker holds is marked: it does not come back from there, and ends cancelled unless it
        succeeds."""

    def set_tenants(self, lane: int, limits: Sequence[TenantLimits]) -> None:
        """Tell the draw the limits of tenants; live at once, also lowered caps and pauses."""

    def reap(self, lane: int, cap: int, limit: int) -> list[Reaped]:
        """Requeue executions whose lease has run out, at the front of their tenant; past *cap* reaps append "reap_cap"."""

    def tend_locks(self, lane: int, limit: int) -> list[Stop]:
        """Do what time asks for at the locks, for at most *limit* executions: end those that were told to make room and
        whose grace is over ("superseded"; the next one gets the lock), and those that wait past their expiry. Returns all
        that were told: those not withdrawn are to be told again."""

    def tidy(self, lane: int, limit: int) -> int:
        """Let tenants leave that are first in line in a pool and have nothing there, as a draw would: nobody may draw from
        that pool any more. Void and expired copies that are met are taken away. And let some tenants back into line that
        were set aside and have room, where a key was deleted or has gone. Looks at a part of the lane, *limit* tenants,
        copies and slots of a pool there; the next call at the next part. Returns how many have left."""

    def lacking(self, lane: int, generation: int, execution_ids: Sequence[str]) -> list[str] | None:
        """Return those with no copy, grant, marker or outcome in the lane, and put back what points to the others; None where
        the lane cannot be read now (quarantine, or another generation)."""

    def read_outcomes(self, lane: int, reader: str, reader_lease_us: int, limit: int) -> list[Outcome] | None:
        """Return the oldest outcomes, in stream order; None where another reader has the lane (one reads at a time)."""

    def acknowledge(self, lane: int, outcomes: Sequence[Outcome]) -> None:
        """Remove recorded outcomes; their tombstones go 60 s later."""

    # -- worker's side ----------------------------------------------------------------------------------------------

    def draw(self, lane: int, pool: str, credit: int, worker: str, lease_us: int) -> list[Delivery]:
        """Draw up to *credit* executions of a pool by weighted fairness under caps, each with a lease and a token that grows.
        Expired ones are dropped with an outcome, voided ones without; nothing is drawn in quarantine."""

    def accept(self, lane: int, worker: str, holds: Sequence[Hold]) -> None:
        """Append "started" for deliveries that the pool has accepted."""

    def renew(self, lane: int, worker: str, holds: Sequence[Hold], lease_us: int) -> Renewed:
        """Prolong leases; says for which a newer grant exists, or which have ended without their worker, and which the lane
        does not know."""

    def bring_back(self, lane: int, worker: str, grants: Sequence[LostGrant], lease_us: int) -> list[str]:
        """Restore grants that the lane has lost: record, lease, slot, ownership, lock (rule 5). Only in quarantine, only where
        the lease had not run out by itself, and not where a newer grant or an outcome is there. Returns the execution ids
        that are the worker's again, under their old tokens."""

    def recorded(self, lane: int, generation: str, holds: Sequence[Hold]) -> Recorded:
        """Say which outcomes, settled under that generation, the worker need not keep any longer (rule 6).
        A server that took over has no say until the lane is opened anew (rule 4)."""

    def settle(self, lane: int, worker: str, settlements: Sequence[Settlement]) -> list[str]:
        """End deliveries: check token, remove the entry, release lease, slot and lock, append the outcome. A word each: SETTLED,
        DONE (a replay of the same outcome), REFUSED (not the last grant)."""

    def ready_weights(self, lane: int, pools: Sequence[str]) -> list[int]:
        """Return, for each pool, what its tenants that can be drawn from weigh together; estimated where they are many."""

    def settle_and_draw(
        self, lane: int, worker: str, settlements: Sequence[Settlement], pool: str, credit: int, lease_us: int,
        accepted: Sequence[Hold] = (),
    ) -> tuple[list[str], list[Delivery]]:
        """Accept, settle and draw in this order, in one round trip; what is empty (credit 0) is left out. Not a
        transaction: where the connection breaks, any of the three may have happened. Returns settle's words and
        draw's deliveries."""

    def give_back(self, lane: int, worker: str, holds: Sequence[Hold]) -> int:
        """Return deliveries that never began, to the front of their tenant; returns how many were the worker's."""

    def redraw(self, lane: int, worker: str, hold: Hold, lease_us: int) -> Delivery | None:
        """Grant a delivery that has not begun anew to its worker, under a new token and without pool and payload; None where
        it is not the worker's any more, or must not start now: then it went back to the front (rule 10)."""

    # -- tasks that a worker does not know

    def park(self, lane: int, worker: str, parks: Sequence[tuple[Hold, str]]) -> int:
        """Lay deliveries aside whose task (the text) the worker does not know, as if they had not been handed out. No draw
        finds them, so neither this worker nor another one of its kind gets them again. Returns how many were the worker's."""

    def parked(self, lane: int, limit: int) -> list[Parked]:
        """Return what lies aside, the oldest first."""

    def draw_parked(self, lane: int, worker: str, execution_ids: Sequence[str], lease_us: int) -> list[Delivery]:
        """Draw those of the executions that still lie aside and whose tenants have room, for a worker that knows their
        tasks."""

    def end_parked(self, lane: int, patience_us: int, limit: int) -> list[Parked]:
        """End what has lain aside for longer than that, with the outcome "no_worker"; expire and drop what must not run any
        more. Looks at *limit* executions, the oldest first; returns those that ended as "no_worker". Plain tasks stay: a
        worker takes them and says that they failed."""

    def store_retry(self, lane: int, hold: Hold, retry: Mapping[str, object]) -> bool:
        """Keep what ``self.retry()`` asked for, until the delivery is settled; False if the hold is stale."""

    def recover(self, lane: int, worker: str, held: Sequence[str]) -> int:
        """Give back every lease of the worker that is not in *held* (a draw's reply was lost); returns how many."""

    def still_held(self, lane: int, hold: Hold) -> bool:
        """Say whether the hold is the last grant and its lease has not run out."""

    # -- waking -----------------------------------------------------------------------------------------------------

    def wait_for_work(self, lanes: Sequence[int], pools: Sequence[str], worker: str, timeout_seconds: float) -> list[str]:
        """Block until a pool may have work, or a control message for the worker arrives; returns control messages (JSON texts).
        An empty list: woken, or the time is over."""

    def wake_worker(self, worker: str, lanes: Sequence[int], message: str = "") -> None:
        """Wake one worker out of wait_for_work, with a control message or without."""

    def wait_for_dispatch(self, timeout_seconds: float) -> bool:
        """Block until someone calls wake_dispatchers, or the time is over; True if woken."""

    def wake_dispatchers(self) -> None:
        """Make the dispatchers look at the due index at once (a trigger, a new job)."""

    # -- knowing ----------------------------------------------------------------------------------------------------

    def report_worker(self, report: WorkerReport, ttl_us: int) -> None:
        """Write a worker's heartbeat."""

    def workers(self) -> list[WorkerReport]:
        """Return the live workers."""

    def backlog(self, lane: int, pool: str, tenant: str | None = None) -> dict[str, int]:
        """Return {tenant: entries waiting} of a pool's ready and capped tenants, or of one tenant only."""

    def running(self, lane: int, tenant: str) -> int:
        """Return how many slots a tenant holds: drawn and not settled; what its cap counts."""

    def capped(self, lane: int, pools: Sequence[str], limit: int) -> tuple[int, list[str]]:
        """Return Redis' clock (µs) and the tenants whose work in these pools nothing but their cap holds back just now; looks
        at *limit* tenants of a pool at most."""

    def server_facts(self) -> dict[str, str]:
        """Return version, maxmemory policy, replication id and mode, for the doctor."""


class AlertStore(Protocol):
    """Where alerts are kept. Each method is one transaction; instants are microseconds since the epoch."""

    def note_alerts(self, noticed: Sequence[Finding | Over], now_us: int) -> None:
        """Write findings down: one open alert for each kind, tenant and subject; an `Over` closes it.

        Beyond MAX_SUBJECTS open alerts of a kind and tenant, those of further subjects are one with the subject MORE.
        """

    def close_quiet_alerts(self, before_us: int, now_us: int) -> None:
        """Close those that were not noticed since."""

    def claim_alert(self, now_us: int, claim_us: int) -> OpenAlert | None:
        """Take an alert that somebody is to be told of, for so long; None: there is none.

        It is open, not muted, and nobody else has claimed it; by its receipts somebody is to be told of what is new, or to
        be tried again. Of several who ask at once one gets it.
        """

    def alert_told(self, alert: OpenAlert, receipts: Mapping[str, Receipt], now_us: int) -> None:
        """Note how far the receivers of a claimed alert are now, and end the claim."""


class AlertSender(Protocol):
    """A way to tell one receiver of an alert; its name is the same in each process, and without blanks."""

    name: str

    def send(self, alert: OpenAlert) -> None:
        """Tell of an alert. It takes a few seconds at most.

        Raises:
            Exception: of any kind; it is tried again later.
        """


class AlertWays(Protocol):
    """Who is to be told of an alert, and how."""

    def __call__(self, alert: OpenAlert) -> Sequence[AlertSender]:
        """Return a sender for each receiver: one that fails is tried again by itself."""
