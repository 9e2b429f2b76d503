"""The dispatcher: which execution is due, and to Redis with it on time.

    planner   each second: prolong the partitions' leases; scan the due index a minute ahead; claim in bounded batches;
              load rows that are in nobody's wheel (retries, manual runs, what a dead dispatcher left behind)
    firing    publish what has become due
    marker    note in the database what was published
    lanes     keep the lanes' generations and the tenants' limits
    voids     tell Redis the edits that their callers could not tell it
    waker     wake the planner when somebody has changed a plan

Each is a thread, because each waits for something else: a bulk claim must not delay what is due now, a hanging Redis
must not let the partitions' leases run out, and a hanging database must not stop what was claimed before.

A dispatcher that dies loses nothing: its rows are in state ``scheduled`` under an epoch that ends with its lease, and
whoever takes its partitions reads them, overdue or not, in the same second.
"""
from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from chrono_beat.core import lifecycle
from chrono_beat.core.clock import Clock
from chrono_beat.core.config import Config
from chrono_beat.core.envelope import InvalidContent, Templates
from chrono_beat.core.errors import InvalidInput, StoreUnavailable
from chrono_beat.core.floods import Floods
from chrono_beat.core.ids import lane_of
from chrono_beat.core.policy import Answers, plan_claim, still_runs
from chrono_beat.core.records import MISSED, Claim, Content, DueJob, ScheduledExecution
from chrono_beat.host_clock import take_reading
from chrono_beat.ports import JobStore, QueueStore
from chrono_beat.services.firing import Firing, Marker
from chrono_beat.services.items import MAX_REASON_CHARACTERS, bury, publish_item
from chrono_beat.services.lanes import LaneKeeper, Lanes
from chrono_beat.services.partitions import Holding, Partitions
from chrono_beat.services.pending import Entry, Pending
from chrono_beat.services.service import Service
from chrono_beat.services.stopper import Stopper
from chrono_beat.services.voids import Voids
from chrono_beat.services.waker import Waker
from chrono_beat.telemetry import emit

logger = logging.getLogger(__name__)

MAX_AHEAD = 200_000
"""Executions that wait in memory; beyond that only what is due before the next look is claimed."""

BUSY_DUE = 1_000
"""Due executions from which on the firing thread counts as busy, and others put off what can wait."""

SHORTEST_LOOK_US = 20_000
"""Microseconds between two looks at the due index, however often somebody wakes the planner."""

RELOAD_GAP_US = 1_000_000
LEAVE_US = 3_000_000
"""Microseconds for which a leaving dispatcher waits for others to take its partitions."""

LEAVE_LOOK_US = 100_000


class Planner(Service):
    """Keeps partitions, and claims and loads what is due within the look-ahead.

    Args:
        store: the database.
        clock: the host's clocks.
        config: batch sizes, look-ahead, number of lanes.
        partitions: this member's share.
        lanes: generations and clocks.
        pending: where claimed executions wait.
        wake_firing: called when something new waits, or a lease was prolonged.
    """

    def __init__(
        self, store: JobStore, clock: Clock, config: Config, *, partitions: Partitions, lanes: Lanes, pending: Pending,
        wake_firing: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__("planner", clock, drain_us=LEAVE_US + 2_000_000)
        self._store = store
        self._config = config
        self._partitions = partitions
        self._lanes = lanes
        self._pending = pending
        self._wake_firing = wake_firing
        self._templates = Templates(config)
        self._horizon_us = round(config.horizon * 1_000_000)
        self._look_every_us = round(config.look_ahead_every * 1_000_000)
        self._renew_every_us = round(config.partition_renew_every * 1_000_000)
        self._renew_at_us = self._look_at_us = self._reload_at_us = 0
        self._looked_us = 0
        self._woken = False
        self._first_partition = 0                          # where the next look begins
        self._first_rows: dict[int, tuple[str, int, int]] = {}     # partition: first row of the last batch from there on
        self._read_under: dict[int, int] = {}      # lane: generation under which its rows were read (rule 4)
        self._unanswered = False                   # a claim or a load broke off: it may have been carried out
        self._floods = Floods(self._look_every_us, config.claim_batch)
        self._leave_until_us: int | None = None

    # -- steps ------------------------------------------------------------------------------------------------------

    def step(self, now_us: int) -> int:
        """Renew if it is time, then do one batch of the look-ahead if it is time."""
        if now_us >= self._renew_at_us:
            self._renew(now_us)
        if now_us >= self._reload_at_us and (why := self._why_reload()):
            self._reload(now_us, why)
        if self._woken:
            self._look_at_us = min(self._look_at_us, self._looked_us + SHORTEST_LOOK_US)
        if now_us >= self._look_at_us:
            self._woken = False                            # before the look: a wake during it asks for another
            more = self._look_ahead()
            self._looked_us = now_us
            self._look_at_us = now_us + (0 if more else self._look_every_us)
        return min(self._renew_at_us, self._look_at_us) - self.clock.monotonic_us()

    def wake(self) -> None:
        """Look at the due index at once."""
        self._woken = True
        super().wake()

    def _renew(self, now_us: int) -> None:
        if self._lanes.database.observe(take_reading(self.clock, self._store.now_us)):
            emit("clock_stepped", of="database")
        change = self._partitions.renew()
        if gone := change.lost | change.taken:             # a partition that was taken again has a new epoch
            self._pending.drop(gone)
        if change.taken:
            self._look_at_us = 0
        self._renew_at_us = now_us + self._renew_every_us
        self._measure_skew()
        self._wake_firing()

    def _measure_skew(self) -> None:
        monotonic_us, wall_us = self.clock.monotonic_us(), self.clock.wall_us()
        for name, server in (("database", self._lanes.database), ("redis", self._lanes.clocks[0])):
            low, high = server.at_least(monotonic_us), server.at_most(monotonic_us)
            if low is not None and high is not None:
                emit("clock_skew", of=name, skew_us=wall_us - (low + high) // 2)

    def drain(self, now_us: int) -> int | None:
        """Hand the partitions over: go on as before until others have taken them, or nobody is there to."""
        if self._leave_until_us is None:
            self._leave_until_us = now_us + LEAVE_US
            self._partitions.leave()
        self._renew_at_us = 0
        self.step(now_us)
        if self._partitions.holding.epochs and self._partitions.others and now_us < self._leave_until_us:
            return LEAVE_LOOK_US
        self._partitions.release()
        self._pending.clear()
        return None

    # -- rule 4 -----------------------------------------------------------------------------------------------------

    def _why_reload(self) -> str:
        """Say why what waits in memory has to be read anew; "" for no reason, or nothing to read it for."""
        usable = self._lanes.usable
        if not usable or not self._partitions.holding.epochs:
            return ""
        if any(self._read_under.get(lane) != generation for lane, generation in usable.items()):
            return "a lane has a new generation, or came back"
        # What an unanswered call has taken is held under our epoch and stands in no wheel; only a reload reads it. Firing
        # goes on meanwhile: it must not wait for a database that is away.
        return self._pending.reload_wanted or ("the database did not answer" if self._unanswered else "")

    def _reload(self, now_us: int, why: str) -> None:
        """Empty the wheel and let go of its rows, so that the look-ahead reads them as they are now (rule 4)."""
        usable = dict(self._lanes.usable)
        self._renew(now_us)                                # first: what is refused for its deadline would be again
        self._pending.clear()
        self._store.forget_holds(self._partitions.holding.epochs)
        self._read_under = usable
        self._pending.reload_wanted = ""
        self._unanswered = False
        self._look_at_us = 0
        self._reload_at_us = now_us + RELOAD_GAP_US
        emit("reloaded", member=self._partitions.member, why=why)

    # -- look-ahead -------------------------------------------------------------------------------------------------

    def _look_ahead(self) -> bool:
        """Claim and load one batch each; returns whether there may be more."""
        holding = self._partitions.holding
        reached_us = self._lanes.reached_us(self.clock.monotonic_us())
        if reached_us is None or not holding.epochs or self._pending.reload_wanted:
            return False                                   # without Redis nothing piles up in memory
        crowded = len(self._pending) >= MAX_AHEAD or self._pending.due_count() >= BUSY_DUE
        until_us = reached_us + (self._look_every_us if crowded else self._horizon_us)
        limit = self._config.claim_batch
        # Each look goes on where the last one filled its batch: what was claimed before it leaves a trail of dead index
        # entries, and one full partition must not hold up the others.
        numbers = sorted(holding.epochs, key=lambda number: (number < self._first_partition, number))
        # Invariant 8: what stands behind one tenant's flood is looked for past it, once a second.
        without = self._floods.left_out(self.clock.monotonic_us())
        due = self._store.due_jobs(numbers, until_us, limit, without)
        if due:
            self._claim_due(due, reached_us, until_us, holding)
        rows = self._taken(lambda: self._store.load_scheduled(holding.epochs, until_us, limit, without))
        if rows:
            self._enqueue(rows, holding.epochs, missed=self._judge(rows, reached_us))
            emit("loaded", member=self._partitions.member, executions=len(rows))
        self._floods.note(([found.content.tenant for found in scan] for scan in (due, rows)), all_of_them=not without)
        return bool(without) or self._goes_on(due, numbers, limit) or len(rows) >= limit

    def _taken(self, take: Callable[[], list[ScheduledExecution]]) -> list[ScheduledExecution]:
        """Make a call that takes rows; where it breaks off nobody knows whether it has."""
        try:
            return take()
        except StoreUnavailable:
            self._unanswered = True
            raise

    def _judge(self, rows: Sequence[ScheduledExecution], reached_us: int) -> set[str]:
        """Return the ids of those that have come too late by their job's misfire policy.

        Only rows that are overdue by more than the look-ahead: they were claimed in time and nobody was there to publish
        them. What is overdue by less is on its way from one dispatcher to another, and runs. One that is queued was
        published when it was due, and takes its job's new content over (rule 7). Rule 12: what was due before the lane's
        generation began may have run, and is not judged.
        """
        unknown_before, lanes = self._lanes.unknown_before, self._lanes.count
        late = [row for row in rows if row.due_us < reached_us - self._horizon_us and row.kind == "schedule"
                and row.attempt == 1 and not row.queued
                and row.due_us >= unknown_before.get(lane_of(row.content.tenant, lanes), 0)]
        plans = self._store.plans(list({row.job_id for row in late})) if late else {}
        missed = set()
        for row in late:
            try:
                if row.job_id in plans and not still_runs(plans[row.job_id], row.scheduled_us, reached_us):
                    missed.add(row.execution_id)
            except InvalidInput as error:
                logger.warning("job %s cannot be judged, %s runs: %s", row.job_id, row.execution_id, error)
        return missed

    def _goes_on(self, due: Sequence[DueJob], numbers: Sequence[int], limit: int) -> bool:
        """Say whether another batch is to be looked for at once, and from which partition on."""
        if not due:
            return False
        first = due[0]
        row = (first.job_id, first.next_run_us, first.version)
        # A batch that begins where an earlier one began has brought nothing forward: not again before the next second.
        stuck = self._first_rows.get(first.partition) == row
        self._first_rows[first.partition] = row
        if len(due) >= limit:
            found = {job.partition for job in due}
            last = max(index for index, number in enumerate(numbers) if number in found)
            self._first_partition = numbers[(last + stuck) % len(numbers)]
        return not stuck

    def _claim_due(self, due: Sequence[DueJob], reached_us: int, until_us: int, holding: Holding) -> None:
        claims: list[Claim] = []
        answers: Answers = {}
        for job in due:
            epoch = holding.epochs.get(job.partition)
            if epoch is None:
                continue
            # One row that makes no sense costs its neighbours nothing.
            try:
                self._templates.of(job.content)
                claims.append(plan_claim(job, reached_us, until_us, epoch, answers=answers))
            except (InvalidInput, InvalidContent) as error:
                self._quarantine(job.job_id, job.version, job.content, str(error))
            except Exception as error:
                logger.exception("job %s cannot be planned", job.job_id)
                self._quarantine(job.job_id, job.version, job.content, f"cannot be planned: {error!r}")
        rows = self._claim(claims)
        missed = [(claim, row) for claim in claims for row in claim.occurrences if row.state == lifecycle.MISSED]
        for claim, row in missed:
            emit("missed", job_id=claim.job_id, tenant=claim.content.tenant, name=claim.content.name,
                 count=row.missed_count, first_us=row.first_missed_us, last_us=row.scheduled_us)
        emit("claimed", member=self._partitions.member, jobs=len(claims), executions=len(rows), missed=len(missed))
        self._enqueue(rows, holding.epochs)

    def _claim(self, claims: Sequence[Claim], *, again: bool = True) -> list[ScheduledExecution]:
        """Carry out claims in one transaction; where a row breaks it, in smaller ones until that row stands alone.

        Args:
            again: whether a claim that stands alone is tried once more; a passing fault is to quarantine nobody.
        """
        if not claims:
            return []
        try:
            return self._taken(lambda: self._store.claim(self._partitions.member, claims))
        except StoreUnavailable:
            raise
        except Exception as error:
            if len(claims) > 1:
                half = len(claims) // 2
                return self._claim(claims[:half]) + self._claim(claims[half:])
            if again:
                return self._claim(claims, again=False)
            logger.exception("job %s cannot be claimed", claims[0].job_id)
            self._quarantine(
                claims[0].job_id, claims[0].version, claims[0].content, f"cannot be claimed: {error!r}")
            return []

    def _quarantine(self, job_id: str, version: int, content: Content, reason: str) -> None:
        reason = reason[:MAX_REASON_CHARACTERS]
        if self._store.quarantine(job_id, version, reason):
            emit("quarantined", job_id=job_id, tenant=content.tenant, name=content.name, reason=reason)

    # -- into the wheel ---------------------------------------------------------------------------------------------

    def _enqueue(
        self, rows: Iterable[ScheduledExecution], epochs: Mapping[int, int], missed: Collection[str] = (),
    ) -> None:
        """Build the messages of rows that are held, and let them wait for their due time.

        Those that are *missed* go the same way: Redis alone knows whether one was published by somebody after all.
        """
        usable, lanes = self._lanes.usable, self._lanes.count
        read_under = {lane: g for lane, g in usable.items() if self._read_under.get(lane) == g}
        entries: list[Entry] = []
        for row in rows:
            lane = lane_of(row.content.tenant, lanes)
            generation = read_under.get(lane)
            if generation is None:
                # Rule 5: not read for publishing in quarantine. The row stays held; all are read anew when it is over.
                self._read_under.pop(lane, None)
                continue
            try:
                item = publish_item(self._templates, row)
            except InvalidContent as error:
                self._bury(row, str(error))
                continue
            if row.execution_id in missed:
                item = item._replace(concurrency=MISSED, payload=b"")
            entries.append(Entry(item, row.partition, epochs[row.partition], lane, generation))
        if entries:
            self._pending.add(entries)
            self._wake_firing()

    def _bury(self, row: ScheduledExecution, reason: str) -> None:
        """End an open row that makes no message, and take its job out of the due index."""
        self._quarantine(row.job_id, row.version, row.content, reason)
        at_us = self._lanes.database.at_least(self.clock.monotonic_us()) or row.due_us
        bury(self._store, row, reason, at_us)


class Dispatcher:
    """One member of the dispatchers of a deployment: the services above, wired together.

    Args:
        store: the database.
        queue: Redis.
        clock: the host's clocks.
        config: the deployment's settings.
        member: a name that no other process has, also none that died lately.

    `services` lists the services in the order in which they stop.
    """

    def __init__(self, store: JobStore, queue: QueueStore, clock: Clock, config: Config, *, member: str) -> None:
        self.member = member
        self.partitions = Partitions(store, clock, member, config)
        self.lanes = Lanes(config.lanes)
        self.pending = Pending(config.lanes)
        self.planner = Planner(
            store, clock, config, partitions=self.partitions, lanes=self.lanes, pending=self.pending,
            wake_firing=lambda: self.firing.wake(),
        )
        self.marker = Marker(store, clock, lambda: self.pending.due_count() >= BUSY_DUE)
        self.stopper = Stopper(queue, clock)
        self.lane_keeper = LaneKeeper(store, queue, clock, config, self.lanes, self._lanes_changed)
        self.firing = Firing(
            queue, clock, config, pending=self.pending, partitions=self.partitions, lanes=self.lanes,
            marker=self.marker, stopper=self.stopper, ask_lanes=self.lane_keeper.wake, ask_planner=self.planner.wake,
        )
        self.voids = Voids(store, queue, clock, config.lanes)
        self.waker = Waker(queue, clock, self.planner.wake)
        self.services: tuple[Service, ...] = (
            self.planner, self.firing, self.marker, self.stopper, self.waker, self.voids, self.lane_keeper)

    def _lanes_changed(self) -> None:
        self.planner.wake()
        self.firing.wake()

    def owned(self) -> list[int]:
        """Return the numbers of the partitions that are this member's now."""
        return sorted(self.partitions.holding.epochs)
