"""One tenant has so much due that the look-ahead needs long for it: what that does to the others."""
from datetime import timedelta

import pytest

from tests.services.world import NINE, SECOND, World, us

ONCE = {"schedule_kind": "once", "expression": NINE.isoformat()}
FLOOD = 2_000
BATCH_TAKES_US = 200_000
OTHERS = 5


def flooded(world, count):
    for number in range(count):
        world.job(f"flood {number}", tenant="a", **ONCE)


def each_second(world):
    return [world.job("each second", tenant=f"b{n}", schedule_kind="interval", expression="1", misfire="all",
                      concurrency="allow") for n in range(OTHERS)]


class Published:
    """What went to Redis, in batches, each of which takes its time."""

    def __init__(self, world, takes_us=0):
        self.batches, stock = [], world.queue.publish

        def publish(lane, generation, valid_until_us, items):
            self.batches.append([item.execution_id for item in items])
            world.flow.advance(us=takes_us)
            return stock(lane, generation, valid_until_us, items)

        world.queue.publish = publish


def test_inv08_a_flood_delays_what_is_due_of_others_meanwhile_by_one_batch_at_most():
    world = World(start=NINE - timedelta(seconds=5), claim_batch=5_000)
    world.working = False
    flooded(world, FLOOD)
    others = each_second(world)
    published = Published(world, takes_us=BATCH_TAKES_US)
    world.dispatcher()

    world.run_until(us() + 5 * SECOND)

    assert sum(map(len, published.batches)) >= FLOOD and len(published.batches) > 15
    rows = [row for job in others for row in world.store.rows(job) if row.due_us <= us() + 3 * SECOND]
    late = [world.published_at[row.execution_id][0] - row.due_us for row in rows]
    assert len(late) == 4 * OTHERS                         # the batch on its way when they came due, and their own
    assert max(late) <= 2 * BATCH_TAKES_US + 50_000


@pytest.mark.parametrize("kind", ["jobs", "rows"])
def test_inv08_the_look_ahead_finds_what_stands_behind_the_overdue_of_one_tenant(kind):
    """Batches of the look-ahead are small here, so that a few thousand rows take as many looks as millions do."""
    world = World(start=NINE + timedelta(seconds=1), claim_batch=20)
    world.working = False
    published = Published(world)
    world.dispatcher()
    world.run(seconds=3)
    if kind == "jobs":
        flooded(world, 1_000)
        later = {"schedule_kind": "once", "expression": (NINE + timedelta(milliseconds=500)).isoformat(),
                 "next_run_us": us(milliseconds=500)}
        others = [f"{world.job('later', tenant=f'b{n}', **later)}:" for n in range(OTHERS)]
    else:
        backfilled = world.job("backfilled", tenant="a", next_run_us=None)
        for number in range(1_000):
            world.store.add_execution(backfilled, us() - number, kind="backfill")
        others = [world.store.add_execution(world.job("triggered", tenant=f"b{n}", next_run_us=None), us(milliseconds=500))
                  for n in range(OTHERS)]

    world.run(seconds=5)

    order = [execution_id for batch in published.batches for execution_id in batch]
    assert len(order) == 1_000 + OTHERS
    assert max(next(n for n, found in enumerate(order) if found.startswith(other)) for other in others) <= 60


def test_inv08_once_the_flood_is_over_nobody_is_left_out_any_more():
    world = World(start=NINE + timedelta(seconds=1), claim_batch=20)
    flooded(world, 200)
    looks, stock = [], world.store.due_jobs

    def due_jobs(partitions, until_us, limit, without=()):
        looks.append(list(without))
        return stock(partitions, until_us, limit, without)

    world.store.due_jobs = due_jobs
    world.dispatcher()
    world.run(seconds=5)
    assert ["a"] in looks

    looks.clear()
    last = world.job("last", tenant="a", next_run_us=None)
    row = world.store.add_execution(last, world.now_us())
    world.run(seconds=5)

    assert looks and not any(looks)
    assert world.run_counts()[row] == 1
