"""What the firing thread sends, and what it must not: deadlines, epochs, generations, refusals."""

import pytest

from chrono_beat.core.errors import QueueUnavailable
from chrono_beat.core.ids import lane_of
from chrono_beat.core.records import PublishResult
from chrono_beat.testing.memory_jobs import MemoryTenant
from tests.services.world import NINE, SECOND, World, us

ONCE = {"schedule_kind": "once", "expression": NINE.isoformat()}
HAS_IT = PublishResult("", ["already"], 0)


class Wire:
    """Stands between a dispatcher's firing thread and Redis."""

    def __init__(self, world, name="a"):
        self.queue, self.calls, self.answers, self.world = world.queue, [], [], world
        world.members[name].dispatcher.firing._queue = self

    def publish(self, lane, generation, valid_until_us, items):
        self.calls.append((lane, generation, valid_until_us, [item.execution_id for item in items]))
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            if isinstance(answer, PublishResult):
                return answer._replace(now_us=self.world.now_us())
            return PublishResult(answer, [], self.world.now_us())
        return self.queue.publish(lane, generation, valid_until_us, items)


@pytest.fixture
def world():
    world = World()
    world.dispatcher("a")
    world.run(seconds=3)
    return world


def claimed(world, count=1):
    """Let jobs be claimed that are due at nine; returns their ids and the wheel's entries, taken out of it."""
    jobs = [world.job(f"job-{n}", **ONCE) for n in range(count)]
    world.run_until(us() - 10 * SECOND)
    pending = world.members["a"].dispatcher.pending
    pending.advance(us(), 1_000)
    entries = pending.take(0, 1_000)
    assert len(entries) == count
    return jobs, entries


def test_rule03_one_that_was_stopped_sends_nothing_before_its_lease_is_confirmed_again(world):
    wire = Wire(world)
    world.job(**ONCE)
    world.run_until(us() - 10 * SECOND)
    member = world.members["a"]

    world.pause("a")
    world.run(seconds=60)
    member.step(member.dispatcher.firing)                    # of all its threads this one wakes first
    assert wire.calls == []

    world.resume("a")
    world.run(seconds=3)
    assert len(world.runs) == 1


def test_rule03_the_deadline_is_the_lease_after_the_start_of_the_renewal_less_the_margin(world):
    wire = Wire(world)
    world.job(**ONCE)

    world.run_until(us() + SECOND)

    [(_, generation, valid_until_us, _)] = wire.calls
    assert generation == 1
    assert us() + 3_400_000 <= valid_until_us <= us() + 4_500_000      # 5 s of lease less 0.5 s, renewed each second


def test_inv02_what_was_read_under_an_epoch_that_is_over_is_not_sent(world):
    [job], [entry] = claimed(world)
    wire = Wire(world)

    world.members["a"].dispatcher.pending.add([entry._replace(epoch=entry.epoch - 1)])
    world.run_until(us() + 5 * SECOND)

    assert wire.calls == []


def test_rule04_what_was_read_under_a_generation_that_is_over_is_not_sent_under_the_new_one(world):
    [job], [entry] = claimed(world)
    wire = Wire(world)

    world.members["a"].dispatcher.pending.add([entry._replace(generation=entry.generation - 1)])
    world.run_until(us() + 5 * SECOND)

    assert wire.calls == []


@pytest.mark.parametrize("why", ["deadline", "generation", "quarantine"])
def test_rule04_a_refused_batch_is_read_anew_from_the_database_and_runs_once(world, why):
    wire = Wire(world)
    world.job(**ONCE)
    wire.answers = [why]
    forgotten = []
    forget_holds = world.store.forget_holds
    world.store.forget_holds = lambda epochs: forgotten.append(world.now_us()) or forget_holds(epochs)

    world.run_until(us() + 4 * SECOND)

    assert len(forgotten) == 1
    assert len(wire.calls) == 2
    assert len(world.runs) == 1


def test_rule03_after_a_refused_deadline_the_lease_is_renewed_before_anything_is_sent(world):
    wire = Wire(world)
    world.job(**ONCE)
    wire.answers = ["deadline"]

    world.run_until(us() + 4 * SECOND)

    first, second = (valid_until_us for _, _, valid_until_us, _ in wire.calls)
    assert second > first


def test_refusals_without_end_do_not_become_a_storm(world):
    wire = Wire(world)
    world.job(**ONCE)
    wire.answers = ["deadline"] * 1_000

    world.run_until(us() + 10 * SECOND)

    assert 5 <= len(wire.calls) <= 15


def test_a_batch_without_an_answer_is_sent_again_as_it_is(world):
    wire = Wire(world)
    for n in range(3):
        world.job(f"job-{n}", **ONCE)
    wire.answers = [QueueUnavailable("broken off")]

    world.run_until(us() + 2 * SECOND)

    assert len(wire.calls) == 2
    assert wire.calls[0][3] == wire.calls[1][3]
    world.assert_each_ran_once()
    assert len(world.runs) == 3


def test_a_row_that_a_crash_left_half_published_is_answered_already_and_marked(world):
    [job], [entry] = claimed(world)
    world.working = False
    world.run_until(us())
    assert world.queue.publish(0, 1, us() + SECOND, [entry.item]).replies == ["published"]

    world.members["a"].dispatcher.pending.add([entry])
    world.run_until(us() + SECOND)

    assert world.store.rows(job)[0].state == "queued"


def test_a_lane_that_is_away_stops_no_other_lane():
    world = World(lanes=2)
    tenants = {}
    for n in range(20):
        tenants.setdefault(lane_of(f"t{n}", 2), f"t{n}")
    for tenant in tenants.values():
        world.store.add_tenant(MemoryTenant(slug=tenant))
    there, away = (
        world.job(f"in-{lane}", tenant=tenants[lane], concurrency="allow", misfire="all") for lane in (0, 1))
    world.dispatcher("a")
    world.run_until(us() - 5 * SECOND)
    lane_state, publish = world.queue.lane_state, world.queue.publish
    cut = True

    def only_lane_0(call):
        def through(lane, *args):
            if cut and lane == 1:
                raise QueueUnavailable("this node is gone")
            return call(lane, *args)
        return through

    world.queue.lane_state, world.queue.publish = only_lane_0(lane_state), only_lane_0(publish)
    world.run_until(us(minutes=2) + SECOND)

    assert world.states(there)["succeeded"] == 3
    assert world.states(away)["succeeded"] == 0
    assert [row.started_us - row.due_us for row in world.store.rows(there)[:3]] == pytest.approx([0] * 3, abs=100_000)

    cut = False
    world.run(seconds=5)

    # What was claimed for it meanwhile is read from the database, under the generation that it still has.
    assert world.states(away)["succeeded"] == 3
    world.assert_each_ran_once()


def test_inv08_what_is_due_of_others_goes_in_the_next_batch_however_much_one_tenant_has_due(world):
    world.working = False
    for n in range(2_000):
        world.job(f"flood-{n}", tenant="a", **ONCE)
    others = [world.job("alone", tenant=f"b{n}", **ONCE) for n in range(5)]
    wire = Wire(world)

    world.run_until(us() + SECOND)

    batches = [call[3] for call in wire.calls]
    assert len(batches) > 10 and sum(map(len, batches)) == 2_005
    assert {job for job in others if any(entry.startswith(job) for entry in batches[0])} == set(others)


@pytest.mark.parametrize(("version", "calls"), [(2, 2), (1, 1)])
def test_rule07_what_a_worker_has_in_an_older_version_is_offered_once_more_after_the_start_window(world, version, calls):
    """Given back unbegun, the older copy is void: nothing of the row would be in Redis until the audit looks."""
    _, [entry] = claimed(world)
    wire = Wire(world)
    wire.answers = [HAS_IT] * 3
    world.members["a"].dispatcher.pending.add([entry._replace(item=entry.item._replace(version=version))])

    world.run_until(us() + 30 * SECOND)

    assert len(wire.calls) == calls and all(call[3] == [entry.item.execution_id] for call in wire.calls)


def test_rule02_nothing_is_offered_once_more_when_its_tombstone_may_be_gone(world):
    _, [entry] = claimed(world)
    wire = Wire(world)
    wire.answers = [HAS_IT] * 3
    world.members["a"].dispatcher.pending.add([entry._replace(item=entry.item._replace(version=2))])
    world.run_until(us() + SECOND)
    assert len(wire.calls) == 1

    world.pause("a")
    world.run(seconds=60)
    world.resume("a")
    world.run(seconds=10)

    assert len(wire.calls) == 1
