"""What the system must not do, done to it: each protocol rule left out, and further mistakes.

A mutation gets ``change(owner, name, value)``, pytest's ``monkeypatch.setattr``, and changes stores, services or the model
of the worker. Beside it stands what shows it, whose run under the mutation breaks a promise, and without it none: the number
of a seed, or a course of ``courses.py`` where chance does not bring one.

Tried and not noticed, so not here: ``docs/simulation.rst`` says which, and by what they heal.
"""

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from chrono_beat.core import outcomes
from chrono_beat.core.deliveries import REFUSED
from chrono_beat.core.errors import QueueUnavailable, StoreUnavailable
from chrono_beat.core.ids import execution_id
from chrono_beat.core.lifecycle import OPEN, SCHEDULED
from chrono_beat.core.records import ScheduledExecution
from chrono_beat.services.dispatcher import Planner
from chrono_beat.services.lanes import Lanes
from chrono_beat.services.recorder import Recorder
from chrono_beat.testing import memory_jobs, memory_lane, memory_queue
from chrono_beat.testing.memory_copies import QUEUED
from chrono_beat.testing.memory_jobs import MemoryJobStore
from chrono_beat.testing.memory_lane import Lane
from chrono_beat.testing.memory_queue import MemoryQueueStore
from chrono_beat.testing.simulation import worker as simulated
from chrono_beat.testing.simulation.control import Call
from chrono_beat.testing.simulation.scenario import SECOND_US, Mishap, scenario
from chrono_beat.testing.simulation.witness import WitnessedStore
from chrono_beat.testing.simulation.worker import Worker
from tests.simulation import cap_mutations, courses

NEVER = 1 << 60


# -- the rules of the protocol ----------------------------------------------------------------------------------------


def guard(change):
    """Rule 1: a late mark moves a row whatever its state."""

    def mark_queued(self, published):
        for key, at_us in published:
            if key in self.executions:
                self.executions[key].state, self.executions[key].published_us = "queued", at_us
        return len(published)

    change(MemoryJobStore, "mark_queued", mark_queued)


def tombstone(change):
    """Rule 2: a settle leaves nothing in the marker's place."""
    change(Lane, "tombstone", lambda self, copy, state, outcome: self.copies.pop(copy.id, None))


def tomb_age(change):
    """Rule 2: the tombstone goes with the acknowledgement."""
    change(memory_queue, "TOMBSTONE_US", 0)
    change(memory_lane, "TOMBSTONE_US", 0)


def deadline(change):
    """Rule 3: a publish is accepted however late it arrives."""
    stock = MemoryQueueStore.publish
    change(MemoryQueueStore, "publish", lambda self, lane, generation, valid_until_us, items: stock(
        self, lane, generation, NEVER, items))


def generation(change):
    """Rule 4: nobody notices that a lane has lost its memory."""

    def flush(self):
        for number, lane in getattr(self, "lanes", {}).items():
            self.lanes[number] = Lane(number, lane.now, lane.generation, lane.replication_id)
        if not hasattr(self, "lanes"):
            stock(self)

    stock = MemoryQueueStore.flush
    change(MemoryQueueStore, "flush", flush)


def quarantine(change):
    """Rule 5: a new generation is open at once."""
    stock = MemoryQueueStore.open_lane
    change(MemoryQueueStore, "open_lane", lambda self, lane, generation, repl, us: stock(self, lane, generation, repl, 0))


def buffer(change):
    """Rule 6: a worker forgets an outcome once it is settled."""
    change(Worker, "_ask_recorded", lambda self, lane: None)


def judge(change):
    """Rule 7: an edit ends the rows of the old plan in its own transaction."""
    stock = Call._edit

    def edit(self, job, values):
        for row in self._store.rows(job.job_id) if values else ():
            if row.state in OPEN and row.state != "running":
                row.state, row.reason, row.finished_us = "cancelled", "superseded", self._store.now_us()
        stock(self, job, values)

    change(Call, "_edit", edit)


def sweep(change):
    """Rule 8: nobody ends the rows of an old plan."""
    change(MemoryJobStore, "superseded", lambda self, partitions, limit, running=False: [])


def void_frees(change):
    """Rule 9: a voided copy keeps its lock until the audit ends it."""

    def drop_voided(self, copy):
        locks = copy.locks
        self.forget(copy)
        copy.locks = locks

    change(Lane, "drop_voided", drop_voided)


def start_window(change):
    """Rule 10: a body begins however long ago it was drawn."""
    change(simulated, "START_WINDOW_US", NEVER)


def unknown(change):
    """Rule 12: what may have run before the memory was lost is treated as if it had not."""
    stock = MemoryQueueStore.open_lane

    def open_lane(self, lane, *args):
        opened = stock(self, lane, *args)
        self.lanes[lane].unknown_before = 0
        return opened

    change(MemoryQueueStore, "open_lane", open_lane)


def decision(change):
    """Rule 11: a skip leaves no marker, so that the next publish decides anew."""
    stock = Lane.publish

    def publish(self, item, *args):
        letter = stock(self, item, *args)
        if letter == "s":
            del self.copies[item.execution_id]
        return letter

    change(Lane, "publish", publish)


def recorded_generation(change):
    """Rule 11: a skip that an older generation decided is recorded."""
    change(outcomes, "is_final", lambda event, token: event != "superseded" or token != "")
    change(outcomes, "_is_unknown", lambda execution, outcome: False)


def waiters(change):
    """Rule 13: who finds the lock taken does not wait in its line, but asks again later."""
    stock = Lane.publish

    def publish(self, item, *args):
        letter = stock(self, item, *args)
        if letter != "w":
            return letter
        self.remove_entry(self.copies.pop(item.execution_id))
        return "e"

    change(Lane, "publish", publish)


def last_grant(change):
    """Rule 14: what was requeued counts no more, although nobody else was granted it."""
    stock = MemoryQueueStore._settle

    def settle(self, it, settlement):
        copy = it.copies.get(settlement.hold.execution_id)
        return REFUSED if copy is not None and copy.state == QUEUED else stock(self, it, settlement)

    change(MemoryQueueStore, "_settle", settle)


# -- further mistakes -------------------------------------------------------------------------------------------------


def settle_without_token(change):
    """Invariant 6: whoever says that it has ended is believed."""
    stock = MemoryQueueStore._settle

    def settle(self, it, settlement):
        copy = it.copies.get(settlement.hold.execution_id)
        if copy is not None and copy.token:
            settlement = settlement._replace(hold=settlement.hold._replace(token=copy.token))
        return stock(self, it, settlement)

    change(MemoryQueueStore, "_settle", settle)


def renewals_stop_while_a_body_runs(change):
    """Invariant 6: the lease is renewed by the thread that runs the body."""
    stock = Worker.renew

    def renew(self, now_us):
        running = any(held.begun and not held.over for held in self.held.values())
        return 300_000 if running else stock(self, now_us)

    change(Worker, "renew", renew)


def claim_without_guards(change):
    """Invariant 4: a claim is carried out whoever owns the partition and whatever has become of the job."""
    stock = MemoryJobStore.claim

    def claim(self, member, claims):
        jobs = [(claim, self.jobs[claim.job_id]) for claim in claims if claim.job_id in self.jobs]
        return stock(self, member, [
            claim._replace(version=job.version, next_run_us=job.next_run_us) for claim, job in jobs])

    change(MemoryJobStore, "claim", claim)
    change(MemoryJobStore, "_owned", lambda self, member, epochs: {number: self._partitions[number] for number in epochs})


def publish_before_commit(change):
    """Invariant 2: what is claimed waits for its time before the claim is committed."""
    stock = Planner._claim

    def claim(self, claims, **again):
        self._enqueue([
            ScheduledExecution(
                execution_id(claim.job_id, it.scheduled_us, 1), claim.job_id, claim.partition, it.scheduled_us, it.due_us,
                it.due_us, 1, 0, "schedule", claim.version, claim.content)
            for claim in claims for it in claim.occurrences if it.state == SCHEDULED], self._partitions.holding.epochs)
        return stock(self, claims, **again)

    change(Planner, "_claim", claim)


def next_run_stays(change):
    """Invariant 3: a claim does not advance the job."""
    stock = MemoryJobStore.claim
    change(MemoryJobStore, "claim", lambda self, member, claims: stock(
        self, member, [claim._replace(new_next_run_us=claim.next_run_us) for claim in claims]))


def reap_without_cap(change):
    """Invariant 6: an execution that ends every worker is handed out for ever."""
    stock = Lane.reap
    change(Lane, "reap", lambda self, copy, cap: stock(self, copy, NEVER))


def cap_counts_too_little(change):
    """Invariant 8: who runs is forgotten at each renewal."""
    stock = MemoryQueueStore.renew

    def renew(self, lane, worker, holds, lease_us):
        answer = stock(self, lane, worker, holds, lease_us)
        for hold in holds:
            for running in self.lanes[lane].running.values():
                running.discard(hold.execution_id)
        return answer

    change(MemoryQueueStore, "renew", renew)


def cap_counts_too_much(change):
    """Invariant 8: a slot is not given back at a reap."""
    stock = Lane.requeue

    def requeue(self, copy):
        stock(self, copy)
        self.running[copy.tenant].add(f"ghost of {copy.id} {copy.reaps}")
        self.running[copy.tenant].add(f"another of {copy.id} {copy.reaps}")

    change(Lane, "requeue", requeue)


def due_by_the_host_clock(change):
    """Invariant 1: a host's own wall clock says what is due, and Redis does not look."""
    from chrono_beat.services.dispatcher import Dispatcher

    made = Dispatcher.__init__

    def init(self, store, queue, clock, config, *, member):
        made(self, store, queue, clock, config, member=member)
        self.lanes.reached_us = lambda monotonic_us: clock.wall_us() if Lanes.reached_us(self.lanes, monotonic_us) else None

    stock = Lane.publish
    change(Dispatcher, "__init__", init)
    change(Lane, "publish", lambda self, item, *args: stock(self, item._replace(due_us=0), *args))


def void_forgotten(change):
    """Invariant 7: a call that could not tell Redis returns as if it had."""
    stock = Call._tell

    def tell(self):
        try:
            stock(self)
        except QueueUnavailable:
            self._store.voids.pop(self.job_id, None)
            self._until_us, self._phase = 0, "waiting"

    change(Call, "_tell", tell)


def retry_outside_the_transaction(change):
    """Rule 1: the end of an attempt and the next attempt are written one after the other."""
    stock = WitnessedStore.record
    counts = Counter()

    def record(self, starts, endings, attempts):
        result = stock(self, starts, endings, [])
        counts["calls"] += 1
        if attempts and counts["calls"] % 3 == 0:
            raise StoreUnavailable("the connection broke between the two")
        for attempt in attempts:
            if attempt.after in result.ended:
                self._add_attempt(attempt)
        return result

    change(WitnessedStore, "record", record)


def acknowledged_before_it_is_recorded(change):
    """Invariant 3: an outcome leaves Redis before the database has it."""
    stock = Recorder._record

    def record(self, lane, outcomes):
        self._queue.acknowledge(lane, outcomes)
        stock(self, lane, outcomes)

    change(Recorder, "_record", record)


def lock_freed_at_a_reap(change):
    """Rule 13: what was reaped and waits to be drawn again holds no lock."""
    stock = Lane.requeue

    def requeue(self, copy):
        stock(self, copy)
        self.unlock(copy.id, copy.locks)

    change(Lane, "requeue", requeue)


def voided_copies_are_drawn(change):
    """Invariant 7: a void holds for publishes only."""
    change(Lane, "is_voided", lambda self, copy: False)


def call_does_not_wait(change):
    """Rule 10: a call returns while deliveries of the old plan are drawn and not begun."""
    change(Call, "_is_settled", lambda self: True)


def older_plan_carried_over(change):
    """Rule 7: retries and manual runs of an old plan go on under the new one, as after an edit of the content alone."""
    change(memory_jobs, "PLAN", frozenset())


def key_of_the_delivery(change):
    """Invariant 5: each delivery has a key of its own."""
    stock = simulated.Witness.began
    change(simulated.Witness, "began", lambda self, hold, worker, key: stock(self, hold, worker, f"{key}:{hold.token}"))


def group_ignored(change):
    """Invariant 9: the exclusion group decides nothing."""
    stock = Lane.publish
    change(Lane, "publish", lambda self, item, *args: stock(self, item._replace(group=""), *args))


class Known(NamedTuple):
    """A mutation, a seed or a course that shows it, what is found, and what of the seed's scenario is changed.

    Where the model of a worker has changed since, another seed may be the one that shows it: the first thirty are tried then.
    """

    mutation: object
    shown_by: object
    what: str
    changes: dict = {}

    def scenarios(self):
        """Yield makers of scenarios that may show it, the known one first."""
        if callable(self.shown_by):
            yield self.shown_by
            return
        for seed in dict.fromkeys([self.shown_by, *range(30)]):
            yield lambda seed=seed: replace(scenario(seed), **self.changes)


ALONE = {"workers": 1, "slots": 2}
UNANSWERED = {"kinds": ("lost reply", "late"), "rate": 0.08}
KILLED_AND_FLUSHED = {
    "workers": 1,
    "mishaps": [Mishap(at * SECOND_US + late_us, kind) for at in (12, 30, 44)
                for kind, late_us in (("kill worker", 0), ("flush", 300_000))],
}
SLOW_BODIES = {"slow_start_us": 12_000_000}
HELD_OVER_A_FLUSH = {
    "kinds": ("still before",), "rate": 0.05, "mishaps": [Mishap(at * SECOND_US, "flush") for at in (12, 25, 38)]}
KNOWN = [
    Known(guard, 1, "twice"),
    Known(tombstone, 0, "refused"),
    Known(deadline, courses.publish_past_a_tombstone, "repeated"),
    Known(generation, 2, "lease"),
    Known(quarantine, 2, "lease"),
    Known(buffer, 38, "repeated"),
    Known(judge, 0, "lost"),
    Known(sweep, 0, "lost"),
    Known(void_frees, 39, "skipped"),
    Known(waiters, 85, "skipped"),
    Known(start_window, 16, "old_plan", SLOW_BODIES),
    Known(decision, courses.publish_after_a_skip, "contradiction"),
    Known(recorded_generation, 88, "lost", HELD_OVER_A_FLUSH),
    Known(tomb_age, 1, "repeated", UNANSWERED),
    Known(unknown, 8, "skipped", KILLED_AND_FLUSHED),
    Known(last_grant, 104, "refused", ALONE),
    Known(settle_without_token, 86, "stale"),
    Known(renewals_stop_while_a_body_runs, 2, "repeated"),
    Known(claim_without_guards, courses.edit_before_a_late_claim, "lost"),
    Known(publish_before_commit, courses.edit_before_a_slow_claim, "unexpected"),
    Known(next_run_stays, 2, "unexpected"),
    Known(reap_without_cap, 7, "repeated"),
    Known(cap_counts_too_little, 4, "over_cap"),
    Known(cap_counts_too_much, 4, "lost"),
    Known(due_by_the_host_clock, 0, "early"),
    Known(group_ignored, 53, "overlap"),
    Known(void_forgotten, 116, "old_plan"),
    Known(retry_outside_the_transaction, 1, "lost"),
    Known(acknowledged_before_it_is_recorded, 3, "repeated", {"kinds": ("crash before", "crash after"), "rate": 0.06}),
    Known(lock_freed_at_a_reap, 26, "overlap"),
    Known(voided_copies_are_drawn, 52, "old_plan"),
    Known(older_plan_carried_over, courses.edit_before_a_retry, "old_plan"),
    Known(call_does_not_wait, 142, "old_plan"),
    Known(key_of_the_delivery, 3, "repeated"),
    *(Known(mutation, cap_mutations.of(seed, changes), what) for mutation, seed, what, changes in cap_mutations.KNOWN),
]
