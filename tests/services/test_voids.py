"""Voids that Redis was not told: told before a lane is opened anew, and each second."""
import pytest

from chrono_beat.core.errors import QueueUnavailable
from chrono_beat.core.records import GONE_VERSION
from chrono_beat.services.lanes import LaneKeeper, Lanes
from chrono_beat.services.voids import MAX_VOIDS, Voids, replay
from tests.services.world import SECOND, World, us


@pytest.fixture
def world():
    return World()


def told(world, lane=0):
    return {job_id: version for job_id, (version, _) in world.queue.lanes[lane].voids.items()}


def test_inv07_a_lane_is_opened_anew_only_when_its_pending_voids_are_in(world):
    """The memory that knew the void is gone; the row that it is for may be in a wheel, or come back from a worker."""
    job_id = world.job()
    world.store.edit_job(job_id, {"args": "[2]"})
    order, opens = [], world.queue.open_lane
    world.queue.open_lane = lambda *args: (order.append(told(world)), opens(*args))[1]

    LaneKeeper(world.store, world.queue, world.flow, world.config, Lanes(1)).step(0)

    assert order == [{job_id: 2}]
    assert world.store.pending_voids(10) == []


def test_an_edit_that_redis_was_not_told_is_told_within_a_second_of_its_return(world):
    world.dispatcher("a")
    world.working = False
    job_id = world.job()
    world.run_until(us(seconds=1))
    assert [row.state for row in world.store.rows(job_id)][:1] == ["queued"]
    world.queue.unavailable = True
    world.store.delete_job(job_id)
    world.run(seconds=5)
    world.queue.unavailable = False

    world.run(seconds=1.1)

    assert told(world) == {job_id: GONE_VERSION}
    world.working = True
    world.run(seconds=60)
    assert world.runs == []


def test_a_lane_that_is_away_does_not_hold_up_the_voids_of_others():
    world = World(lanes=2)
    jobs = {slug: world.job(slug, tenant=slug) for slug in map(str, range(20))}
    for job_id in jobs.values():
        world.store.edit_job(job_id, {"args": "[2]"})
    stock, tries = world.queue.void, []

    def void(lane, job_id, version):
        if lane == 0:
            tries.append(job_id)
            raise QueueUnavailable("gone")
        stock(lane, job_id, version)

    world.queue.void = void
    with pytest.raises(QueueUnavailable):
        replay(world.store, world.queue, 2)

    left = {void.job_id for void in world.store.pending_voids(100)}
    assert len(left) > 1 and told(world, 1).keys() == set(jobs.values()) - left
    assert len(tries) == 1                              # each may take a connection's time-out


def test_many_voids_are_told_at_once(world):
    for number in range(MAX_VOIDS + 1):
        world.store.edit_job(world.job(f"j{number}"), {"args": "[2]"})
    voids = Voids(world.store, world.queue, world.flow, 1)

    assert (voids.step(0), voids.step(0)) == (0, SECOND)
    assert len(told(world)) == MAX_VOIDS + 1
