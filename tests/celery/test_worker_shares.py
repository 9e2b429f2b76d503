"""A worker's credit over several lanes: by what is ready in each, and nothing of it is left over."""
import random
import types
from collections import Counter

import pytest

from chrono_beat.celery.worker.io import WorkerIO
from chrono_beat.celery.worker.shares import REFRESH_SECONDS, Line, Shares
from chrono_beat.core.config import Config
from chrono_beat.core.deliveries import RAN_OK
from chrono_beat.core.records import PublishItem, TenantLimits
from chrono_beat.testing.clock import ManualClock
from chrono_beat.testing.memory_queue import MemoryQueueStore

pytestmark = pytest.mark.celery

A, B, C = Line(0, "chrono"), Line(1, "chrono"), Line(2, "chrono")


class Bench:
    """A worker without threads on two lanes in memory; tenant a is in the first, b in the second."""

    def __init__(self, slots):
        self.clock, self.seen, self.number = ManualClock(), Counter(), 0
        self.queue = MemoryQueueStore(self.clock, Config(lanes=2))
        for lane, tenant, weight in ((0, "a", 3), (1, "b", 1)):
            self.queue.open_lane(lane, 1, self.queue.lane_state(lane).replication_id, 0)
            self.queue.set_tenants(lane, [TenantLimits(tenant, weight, 1000, False, 1)])
        self.io = WorkerIO(
            types.SimpleNamespace(queue=self.queue, config=Config(lanes=2)), "w@test",
            free_slots=lambda own, accepted: slots - own, pools=lambda: ["chrono"], deliver=self.take, hear=print, knows=bool)
        self.io._drawing = True

    def take(self, helds):
        self.seen.update(held.delivery.tenant for held in helds)

    def fill(self, lane, tenant, count):
        now = self.clock.wall_us()
        self.number += count
        self.queue.publish(lane, 1, now + 10**9, [
            PublishItem(f"{tenant}{n}:20260102T090000Z:1", f"{tenant}{n}", tenant, 1, 1, "schedule", "chrono", 5, now - 1,
                        None, "allow", b"{}") for n in range(self.number - count, self.number)])

    def cycle(self, ends):
        for held in self.io.held()[:ends]:
            held.end(RAN_OK, {})
        self.io._look_for_work()
        self.io._cycle()


@pytest.mark.parametrize("slots", [1, 4, 32])
@pytest.mark.parametrize("seed", range(3))
def test_inv08_weights_three_to_one_hold_across_lanes_however_many_end_at_a_time(slots, seed):
    bench, chance = Bench(slots), random.Random(seed)
    bench.fill(0, "a", 1300)
    bench.fill(1, "b", 1300)

    while bench.seen.total() < 1200:
        bench.cycle(chance.randint(1, slots))

    assert bench.seen["a"] / bench.seen.total() == pytest.approx(0.75, abs=0.05)


def test_what_one_lane_leaves_the_other_gets_at_once_and_owes_nothing_for():
    bench = Bench(8)
    bench.fill(1, "b", 500)
    for _ in range(30):
        bench.cycle(8)
        assert len(bench.io.held()) == 8, "no slot is left free"
    lent = Counter(bench.seen)
    bench.fill(0, "a", 500)
    bench.io._shares._due = 0.0                                 # the second is over

    for _ in range(30):
        bench.cycle(8)

    assert lent == {"b": 240}
    assert (bench.seen["a"]) / 240 == pytest.approx(0.75, abs=0.05)


def test_weights_are_looked_up_once_a_while_and_never_for_one_line():
    shares = Shares()
    assert not shares.is_due([A], 0.0)
    assert shares.is_due([A, B], 0.0)
    shares.weigh({A: 3, B: 0}, 0.0)
    assert not shares.is_due([A, B], REFRESH_SECONDS - 0.1)
    assert shares.is_due([A, B], REFRESH_SECONDS)


def test_a_line_without_work_is_asked_as_one_of_weight_one():
    shares = Shares()
    shares.weigh({A: 3, B: 0}, 0.0)

    assert shares.allot([A, B], 400) == {A: 300, B: 100}


def test_a_pool_that_comes_later_begins_where_the_others_are():
    shares = Shares()
    shares.allot([A, B], 100)

    assert shares.allot([A, B, C], 30) == {A: 10, B: 10, C: 10}


def test_nothing_is_asked_of_nobody():
    assert Shares().allot([], 5) == {}
    assert Shares().allot([A], 0) == {}


def test_inv08_nothing_drawn_ahead_stands_in_the_way_of_another_tenant():
    """The credit is the free slots, so a flood waits in its stream and not in the worker: who comes later has the next slot."""
    bench = Bench(slots=4)
    bench.fill(0, "a", 500)
    bench.cycle(0)
    assert bench.seen == {"a": 4} and len(bench.io.held()) == 4

    bench.fill(0, "late", 3)
    for _ in range(3):
        bench.cycle(ends=0)
        assert len(bench.io.held()) == 4, "without a free slot nothing is drawn"
    bench.cycle(ends=1)

    assert bench.seen == {"a": 4, "late": 1}
    for _ in range(2):
        bench.cycle(ends=4)
        assert len(bench.io.held()) == 4
    assert bench.seen["late"] == 3
