"""R105: a transient error in the first query of any service leaves nothing half alive; one that lasts is seen from outside."""
import pytest

from chrono_beat.core.errors import QueueUnavailable, StoreUnavailable
from chrono_beat.services.reaper import Reaper
from chrono_beat.services.service import HEALTHY_WITHIN_US, Runner
from tests.services.world import LEASE_US, NINE, SECOND, World, us

FIRST_QUERIES = [
    ("store", "due_jobs"), ("store", "claim"), ("store", "load_scheduled"), ("store", "join"), ("store", "take_partitions"),
    ("store", "renew_partitions"), ("store", "now_us"), ("store", "lane"), ("store", "mark_queued"), ("store", "tenant_limits"),
    ("queue", "publish"), ("queue", "lane_state"), ("queue", "read_outcomes"), ("queue", "acknowledge"), ("store", "record"),
]


def failing_once(target, name, error):
    """Let the first call of a method raise; returns the list of its calls."""
    stock, calls = getattr(target, name), []

    def first_fails(*args, **kwargs):
        calls.append(name)
        if len(calls) == 1:
            raise error
        return stock(*args, **kwargs)

    setattr(target, name, first_fails)
    return calls


@pytest.mark.parametrize("unexpected", [False, True], ids=["unavailable", "unexpected"])
@pytest.mark.parametrize(("side", "query"), FIRST_QUERIES, ids=[query for _, query in FIRST_QUERIES])
def test_r105_a_first_query_that_fails_is_asked_again(side, query, unexpected):
    world = World()
    world.job()
    away = {"store": StoreUnavailable, "queue": QueueUnavailable}[side]
    calls = failing_once(getattr(world, side), query, RuntimeError("unheard of") if unexpected else away("away"))
    dispatcher = world.dispatcher()

    world.run_until(us(minutes=1) + 5 * SECOND)

    assert len(calls) > 1
    assert len(world.runs) == 2
    world.assert_each_ran_once()
    assert Runner(dispatcher.services[:3], world.flow).unhealthy() == []


def test_r105_a_first_reap_that_fails_is_asked_again():
    world = World()
    world.job(schedule_kind="once", expression=NINE.isoformat())
    world.dispatcher()
    world.working = False
    world.run_until(us() + SECOND)
    [delivery] = world.queue.draw(0, "chrono", 1, "dead", LEASE_US)
    reaper = Reaper(world.queue, world.flow, world.config)
    calls = failing_once(world.queue, "reap", QueueUnavailable("away"))
    world.run(seconds=LEASE_US / SECOND + 1)

    wait_us = reaper.turn(world.flow.monotonic_us())
    world.run(us=wait_us)
    reaper.turn(world.flow.monotonic_us())

    assert len(calls) == 2
    assert [d.execution_id for d in world.queue.draw(0, "chrono", 1, "w", LEASE_US)] == [delivery.execution_id]


def test_r105_a_service_that_never_gets_through_is_unhealthy_within_half_a_minute():
    world = World()
    world.job()

    def never(*args):
        raise RuntimeError("unheard of")

    world.store.due_jobs = never
    dispatcher = world.dispatcher()
    runner = Runner([service for service in dispatcher.services if service is not dispatcher.waker], world.flow)

    world.run(seconds=1)
    assert runner.unhealthy() == []
    world.run(us=HEALTHY_WITHIN_US + 2 * SECOND)
    assert runner.unhealthy() == ["planner"]


def test_an_entry_that_can_never_be_published_holds_up_no_neighbour():
    world = World()
    for number in range(20):
        world.job(f"job {number}")
    world.dispatcher()
    stock = world.queue.publish

    def breaks_at_seven(lane, generation, valid_until_us, items):
        if any(item.job_id.endswith("7") and item.job_id[-2] == "0" for item in items):
            raise RuntimeError("unheard of")
        return stock(lane, generation, valid_until_us, items)

    world.queue.publish = breaks_at_seven
    world.run_until(us() + 4 * SECOND)

    assert len(world.runs) == 19
    assert max(world.lateness_us().values()) < 3 * SECOND
    world.queue.publish = stock
    world.run(seconds=2)
    assert len(world.runs) == 20
    world.assert_each_ran_once()
