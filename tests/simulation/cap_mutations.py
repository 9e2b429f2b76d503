"""Mistakes about caps and plain tasks that the scenarios of theme "caps" must notice; see ``mutations.py``."""

from dataclasses import replace

from chrono_beat.core.records import ALREADY
from chrono_beat.testing.memory_lane import Lane
from chrono_beat.testing.memory_plain import PlainInMemory
from chrono_beat.testing.memory_queue import MemoryQueueStore
from chrono_beat.testing.simulation.capped import capped
from chrono_beat.testing.simulation.scenario import SECOND_US, Mishap
from chrono_beat.testing.simulation.worker import Habits

PLENTY = 1000


def _free_another(lane, copy):
    """Free the place of somebody else of the tenant, who is running."""
    for id_ in sorted(lane.running.get(copy.tenant, ()))[:1]:
        lane.running[copy.tenant].discard(id_)


def draw_forgets_the_cap(change):
    """Invariant 8: a draw takes what is there."""
    change(Lane, "cap_room", lambda self, tenant: PLENTY)


def each_pool_counts_for_itself(change):
    """Invariant 8: a tenant has its cap once in every pool."""
    stock = MemoryQueueStore.draw

    def draw(self, lane, pool, *args):
        self.lanes[lane].drawn_from = pool
        return stock(self, lane, pool, *args)

    def cap_room(self, tenant):
        running = [id_ for id_ in self.running.get(tenant, ()) if self.copies[id_].pool == getattr(self, "drawn_from", "")]
        limits = self.limits.get(tenant)
        return (limits.max_running if limits else PLENTY) - len(running)

    change(MemoryQueueStore, "draw", draw)
    change(Lane, "cap_room", cap_room)


def reap_frees_two_places(change):
    """Invariant 8: what is reaped frees its place, and the release that belongs to it frees one again."""
    stock = Lane.requeue

    def requeue(self, copy):
        stock(self, copy)
        _free_another(self, copy)

    change(Lane, "requeue", requeue)


def replayed_settle_frees_a_place(change):
    """Invariant 8 and rule 2: a settle that comes again gives a place back again."""
    stock = MemoryQueueStore._settle

    def settle(self, it, settlement):
        copy = it.copies.get(settlement.hold.execution_id)
        over = copy is not None and copy.state == "s" and copy.token == settlement.hold.token
        word = stock(self, it, settlement)
        if over:
            _free_another(it, copy)
        return word

    change(MemoryQueueStore, "_settle", settle)


def new_generation_frees_all_places(change):
    """Invariant 8 and rule 5: what is brought back after a lost memory takes no place."""
    stock = MemoryQueueStore._hold

    def hold(self, it, copy, worker, until_us):
        was_there = copy.id in it.leases
        stock(self, it, copy, worker, until_us)
        if not was_there:
            it.running[copy.tenant].discard(copy.id)

    change(MemoryQueueStore, "_hold", hold)


def plain_task_is_dropped_at_a_reap(change):
    """Plain tasks: nothing is lost with a worker."""
    stock = Lane.requeue

    def requeue(self, copy):
        stock(self, copy)
        if copy.plain:
            self.remove_entry(copy)
            del self.copies[copy.id]

    change(Lane, "requeue", requeue)


def plain_task_is_sent_twice(change):
    """Plain tasks: a message whose reply was lost comes again, and is another task."""
    stock = PlainInMemory.publish_plain

    def publish_plain(self, lane, tasks):
        replies = stock(self, lane, tasks)
        for task, reply in zip(tasks, replies, strict=True):
            if reply == ALREADY:
                with self._in(lane) as it:
                    it.copies.pop(task.copy_id, None)
                stock(self, lane, [task])
        return replies

    change(PlainInMemory, "publish_plain", publish_plain)


def of(seed, changes):
    """Return what makes the scenario of a seed, some of it changed."""
    return lambda: replace(capped(seed), **changes)


LOST_REPLIES = {"kinds": ("lost reply",), "rate": 0.08}
FLUSHED_BESIDE_LONG_BODIES = {
    "mishaps": [Mishap(at * SECOND_US, "flush") for at in (12, 27, 42)],
    "habits": {"tests.quick": Habits(2 * SECOND_US, 9 * SECOND_US), "tests.long": Habits(5 * SECOND_US, 15 * SECOND_US),
               "tests.fails": Habits(2 * SECOND_US, 6 * SECOND_US)}}
KNOWN = (
    (draw_forgets_the_cap, 0, "over_cap", {}),
    (each_pool_counts_for_itself, 1, "over_cap", {}),
    (reap_frees_two_places, 1, "over_cap", {}),
    (replayed_settle_frees_a_place, 0, "over_cap", {}),
    (new_generation_frees_all_places, 1, "over_cap", FLUSHED_BESIDE_LONG_BODIES),
    (plain_task_is_dropped_at_a_reap, 1, "lost", {}),
    (plain_task_is_sent_twice, 4, "repeated", LOST_REPLIES),
)
"""Mutation, seed that shows it, what is found, and what of the seed's scenario is changed."""
