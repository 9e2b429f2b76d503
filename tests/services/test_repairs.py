"""Redis is disposable: whatever it forgets is found in the rows, and runs once (invariants 3 and 4)."""

import copy
import itertools

import pytest

from chrono_beat import telemetry
from chrono_beat.core.deliveries import Hold, Settlement
from chrono_beat.core.errors import StoreUnavailable
from chrono_beat.core.recovery import LostGrant
from chrono_beat.services.audit import Audit
from chrono_beat.services.repairs import PASS_EVERY_US, Repairs
from chrono_beat.testing import memory_lane
from tests.services.world import LEASE_US, MINUTE, NINE, SECOND, World, us

ONCE = {"schedule_kind": "once", "expression": NINE.isoformat(), "anchor_us": None}
TENANTS = [f"t{number}" for number in range(10)]


@pytest.fixture
def heard():
    """Events of the audit's repairs, as (event, fields)."""
    events = []
    end = telemetry.subscribe(lambda event, fields: events.append((event, fields)))
    yield events
    end()


def of(heard, event, field):
    return [fields[field] for name, fields in heard if name == event]


def lost_world(jobs=10, **config):
    """A world with a dispatcher and repairs, whose jobs are due at nine and wait in their streams."""
    world = World(**config)
    for number in range(jobs):
        world.job(f"job {number}", tenant=TENANTS[number % 10], **ONCE)
    world.dispatcher()
    world.repairs = world.add(Repairs(world.store, world.queue, world.flow, world.config))
    world.working = False
    world.run_until(us() + SECOND)
    return world


class Holder:
    """A worker that holds deliveries, and renews them as ours do."""

    def __init__(self, world, count):
        self.world = world
        self.deliveries = world.queue.draw(0, "chrono", count, "holder", LEASE_US)
        self.until = dict.fromkeys((d.execution_id for d in self.deliveries), 0)
        for delivery in self.deliveries:
            world.begin(0, delivery)
            self.until[delivery.execution_id] = delivery.lease_expires_us

    def renew(self):
        queue, by_id = self.world.queue, {d.execution_id: d for d in self.deliveries}
        renewed = queue.renew(0, "holder", [Hold(d.execution_id, d.token) for d in self.deliveries], LEASE_US)
        lost = [LostGrant(Hold(id_, by_id[id_].token), self.until[id_], by_id[id_].grant) for id_ in renewed.unknown]
        return queue.bring_back(0, "holder", lost, LEASE_US)

    def finish(self):
        for delivery in self.deliveries:
            self.world.finish(0, delivery)


# -- a lost memory ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("forget", ["flush_redis", "become_another_server"])
def test_inv04_r125_a_thousand_queued_and_fifty_running_survive_a_flush(heard, forget):
    """Every execution ends exactly once in the history, and no body runs twice."""
    world = lost_world(1050)
    holder = Holder(world, 50)
    assert len(holder.deliveries) == 50
    world.run(seconds=2)

    getattr(world, forget)()
    world.run(seconds=10)
    assert len(holder.renew()) == 50
    for _ in range(4):
        world.run(seconds=20)
        holder.renew()
    holder.finish()
    world.working = True
    world.run(seconds=15)

    world.assert_each_ran_once()
    assert world.states() == {"succeeded": 1050}
    assert sum(map(len, of(heard, "republished", "execution_ids"))) == 1000
    assert sum(of(heard, "audited", "published")) == 1000
    assert min(at for _, at in world.runs[50:]) >= us() + 60 * SECOND      # nothing began in the quarantine


def test_inv04_what_ran_when_its_worker_and_redis_died_runs_again_under_the_same_id():
    """At least once: nobody brought it back. Its first delivery is forgotten, the key is the same."""
    world = lost_world(5)
    drawn = Holder(world, 2)
    world.flush_redis()
    world.working = True

    world.run(seconds=80)

    counts = world.run_counts()
    assert [counts[d.execution_id] for d in drawn.deliveries] == [2, 2]
    assert world.states() == {"succeeded": 5}


def test_inv04_a_holder_that_settles_in_the_quarantine_is_heard():
    world = lost_world(3)
    holder = Holder(world, 2)
    world.flush_redis()
    world.run(seconds=5)

    holder.finish()                                        # it never renewed
    world.working = True
    world.run(seconds=80)

    world.assert_each_ran_once()


def test_inv04_r127_a_thousand_finished_executions_that_come_back_run_nowhere(heard):
    """A replica that took over has an old memory: everything is queued there as it was at nine."""
    world = lost_world(1000)
    old = copy.deepcopy(world.queue.lanes)
    world.working = True
    world.run(seconds=10)
    assert world.states() == {"succeeded": 1000}

    world.queue.lanes = old
    world.become_another_server()
    world.run(seconds=100)

    world.assert_each_ran_once()
    assert of(heard, "republished", "execution_ids") == []


def test_inv04_a_failover_that_forgets_the_last_second_loses_and_repeats_nothing(heard):
    world = lost_world(100)
    holder = Holder(world, 20)
    world.run(seconds=3)
    old = copy.deepcopy(world.queue.lanes)
    holder.finish()                                        # recorded, and then forgotten
    late = Holder(world, 10)
    world.run(seconds=1)

    world.queue.lanes = old
    world.become_another_server()
    world.run(seconds=5)
    assert len(late.renew()) == 10
    world.run(seconds=20)
    late.finish()
    world.working = True
    world.run(seconds=60)

    world.assert_each_ran_once()
    assert world.states() == {"succeeded": 100}


def test_rule05_nothing_is_read_or_published_in_quarantine(heard):
    world = lost_world(5)
    Holder(world, 1)
    world.flush_redis()
    world.run(seconds=59)
    assert of(heard, "republished", "execution_ids") == []
    asked = len(of(heard, "audited", "lane"))

    world.run(seconds=5)

    assert len(of(heard, "republished", "execution_ids")[0]) == 5
    assert len(of(heard, "audited", "lane")) > asked


def test_rule06_an_outcome_that_was_settled_and_not_recorded_is_told_again():
    world = lost_world(2)
    holder = Holder(world, 1)
    world.recorder.turn = lambda now_us: SECOND             # nobody records
    holder.finish()
    world.run(seconds=1)
    world.flush_redis()
    del world.recorder.turn
    world.run(seconds=5)

    holder.finish()                                         # what the worker's buffer does
    world.working = True
    world.run(seconds=80)

    world.assert_each_ran_once()
    assert world.states() == {"succeeded": 2}


# -- single keys ------------------------------------------------------------------------------------------------------


def test_inv03_a_copy_that_vanished_is_published_again_within_a_pass(heard):
    world = lost_world(10)
    world.run(seconds=15)
    lane = world.queue.lanes[0]
    gone = list(lane.copies.values())[:4]
    for victim in gone:
        lane.remove_entry(victim)
        del lane.copies[victim.id]
    world.working = True

    world.run(us=PASS_EVERY_US + 2 * SECOND)

    world.assert_each_ran_once()
    assert sorted(of(heard, "republished", "execution_ids")[0]) == sorted(victim.id for victim in gone)


def test_inv03_a_deleted_stream_is_published_again(heard):
    world = lost_world(50)
    lane = world.queue.lanes[0]
    for victim in [c for c in lane.copies.values() if c.tenant == "t3"]:
        lane.remove_entry(victim)
        victim.lost_entry = True
    world.working = True

    world.run(us=PASS_EVERY_US + 2 * SECOND)

    world.assert_each_ran_once()
    assert len(of(heard, "republished", "execution_ids")[0]) == 5


def test_rule08_what_is_of_an_old_plan_or_to_be_cancelled_is_not_published_again(heard):
    world = lost_world(3)
    jobs = list(world.store.jobs)
    world.flush_redis()
    world.store.edit_job(jobs[0], {"paused": True, "next_run_us": None})
    for row in world.store.rows(jobs[1]):
        row.cancel_requested_us = world.now_us()
    world.working = True

    world.run(seconds=75)

    assert {execution_id.split(":")[0] for execution_id, _ in world.runs} == {jobs[2]}


def test_rule12_what_may_have_run_before_a_flush_is_not_called_cancelled():
    world = lost_world(1)
    [job] = world.store.jobs
    world.add(Audit(world.store, world.queue, world.flow, world.config))
    Holder(world, 1)                                        # its worker and Redis die together
    world.flush_redis()
    world.run(seconds=5)
    world.store.edit_job(job, {"paused": True, "next_run_us": None, "plan_version": 2})

    world.run(seconds=100)

    [row] = world.store.rows(job)
    assert (row.state, row.reason) == ("dead", "unknown")


def test_rule12_what_may_have_run_before_a_flush_is_not_called_expired():
    """It is published again, and too late by then; but before the flush it may have run."""
    world = lost_world(0)
    job = world.job("in doubt", expires_after_seconds=30, **ONCE | {"next_run_us": us() + 5 * SECOND})
    world.run(seconds=6)
    Holder(world, 1)                                        # its worker and Redis die together
    world.flush_redis()
    world.working = True

    world.run(seconds=80)

    [row] = world.store.rows(job)
    assert (row.state, row.reason) == ("dead", "unknown")


def test_a_scheduled_row_that_no_wheel_has_is_let_go_and_runs(heard):
    world = lost_world(0)
    world.working = True
    job = world.job(next_run_us=None, paused=True)
    key = world.store.add_execution(job, world.now_us())
    row = world.store.executions[key]
    row.holder_epoch = 1                                    # held, by the book; but by no wheel

    world.run(seconds=50)

    assert of(heard, "audited", "let_go")[-1] == 1 or 1 in of(heard, "audited", "let_go")
    assert row.state == "succeeded"


def test_a_slow_pass_costs_what_the_setting_says(heard):
    world = lost_world(600, audit_rate=100)
    world.run(seconds=20)
    heard.clear()

    world.run(seconds=60)

    looked = sum(of(heard, "audited", "looked_at"))
    assert 600 <= looked <= 60 * 100
    assert max(of(heard, "audited", "looked_at")) <= 250


def test_an_audit_of_many_lanes_looks_at_those_that_can_be_read(heard):
    world = lost_world(40, lanes=4)
    world.flush_redis()
    world.working = True

    world.run(seconds=75)

    world.assert_each_ran_once()
    assert len({fields["lane"] for name, fields in heard if name == "republished"}) > 1


# -- misfire at load --------------------------------------------------------------------------------------------------


def claimed_then_alone(minutes, **job):
    """A dispatcher claims an occurrence of nine o'clock and dies; another one comes so much later."""
    world = World()
    job_id = world.job(**job)
    world.dispatcher("a")
    world.run_until(us() - 10 * SECOND)
    assert world.states() == {"scheduled": 1}
    world.kill("a")
    world.run_until(us() + minutes * MINUTE + SECOND)
    world.dispatcher("b")
    world.run(seconds=30)
    return world, job_id


@pytest.mark.parametrize(("job", "nine_runs"), [
    ({"misfire": "latest"}, False),                          # of several only the newest
    ({"misfire": "all"}, True),
    ({"misfire": "skip"}, False),
    ({"misfire": "latest", "expression": "3600"}, True),     # it is the newest, and within its grace
    ({"misfire": "latest", "expression": "3600", "grace_seconds": 120.0}, False),
    (ONCE, True),                                            # a reminder runs late, never not at all
])
def test_what_was_claimed_in_time_and_is_loaded_late_is_judged_by_its_misfire_policy(job, nine_runs):
    world, job_id = claimed_then_alone(5, **job)

    nine = world.store.rows(job_id)[0]
    assert nine.scheduled_us == us()
    if nine_runs:
        assert nine.state == "succeeded"
    else:
        assert (nine.state, nine.reason, nine.missed_count) == ("missed", "misfire", 1)
        assert nine.execution_id not in world.run_counts()
    assert set(world.run_counts().values()) <= {1}


def test_what_is_overdue_by_less_than_the_look_ahead_runs_as_it_is():
    """It is on its way from one dispatcher to the next."""
    world = World()
    job = world.job(misfire="skip", grace_seconds=0.0)
    world.dispatcher("a")
    world.run_until(us() - 2 * SECOND)
    world.kill("a")
    world.run_until(us() + 30 * SECOND)
    world.dispatcher("b")
    world.run(seconds=20)

    assert world.store.rows(job)[0].state == "succeeded"


def test_rule11_what_was_published_after_all_is_not_missed():
    """Its dispatcher died between publishing and marking; the row still says scheduled."""
    world = World()
    job = world.job(misfire="skip")
    member = world.dispatcher("a")
    member.marker.step = lambda now_us: SECOND
    world.working = False
    world.run_until(us() + SECOND)
    world.kill("a")
    world.run_until(us() + 3 * MINUTE)
    assert world.store.rows(job)[0].state == "scheduled"
    world.dispatcher("b")
    world.run(seconds=20)
    world.working = True
    world.run(seconds=5)

    assert world.store.rows(job)[0].state == "succeeded"


def test_rule12_what_was_due_before_the_generation_began_is_not_judged():
    world = World()
    job = world.job(misfire="skip")
    world.dispatcher("a")
    world.run_until(us() - 10 * SECOND)
    world.kill("a")
    world.run_until(us() + 3 * MINUTE)
    world.flush_redis()
    world.dispatcher("b")
    world.run(seconds=80)

    assert world.store.rows(job)[0].state == "succeeded"


# -- outages ----------------------------------------------------------------------------------------------------------


def test_r131_r132_redis_away_for_ten_minutes_at_a_hundred_a_second():
    world = World(horizon=10, look_ahead_every=1)
    jobs = [world.job(f"job {n}", expression="1", tenant=f"t{n}", concurrency="allow") for n in range(100)]
    member = world.dispatcher()
    world.run_until(us() + 3 * SECOND)
    ran = len(world.runs)
    assert ran >= 300

    world.queue.unavailable = True
    world.run(seconds=1)
    most = 0
    for _ in range(60):
        world.run(seconds=10)
        most = max(most, len(member.pending) + len(member.marker._marks))
    assert len(world.runs) == ran
    assert most <= 100 * 12                                 # what was claimed ahead, and not one more
    world.queue.unavailable = False
    world.run(seconds=10)

    during = [row for row in world.store.rows() if us() + 4 * SECOND < row.scheduled_us < us() + 600 * SECOND]
    assert {row.state for row in during} == {"missed"}     # claimed ahead, and judged when they were loaded again
    missed = sum(row.missed_count for row in world.store.rows() if row.state == "missed")
    assert missed + len(world.runs) >= 100 * 613
    for job in jobs[:5]:
        mine = [row for row in world.store.rows(job) if row.state == "succeeded"]
        assert mine[-1].scheduled_us >= us() + 600 * SECOND
    assert set(world.run_counts().values()) == {1}


@pytest.mark.parametrize("call", ["claim", "load_scheduled"])
def test_r115_a_claim_or_a_load_whose_answer_was_lost_is_found_again(call):
    """The rows are held, and nobody knows."""
    world = World()
    job = world.job()
    world.dispatcher()
    world.run_until(us() - 65 * SECOND)
    key = world.store.add_execution(job, us() - 30 * SECOND)
    stock, left = getattr(world.store, call), itertools.count()

    def lose_the_answer(*args):
        answer = stock(*args)
        if answer and next(left) < 2:
            raise StoreUnavailable("the answer was lost after the commit")
        return answer

    setattr(world.store, call, lose_the_answer)
    world.run_until(us() + 10 * SECOND)

    assert next(left) >= 2
    assert world.store.executions[key].state == "succeeded"
    world.assert_each_ran_once()
    assert max(world.lateness_us().values()) < 2 * SECOND


def test_r115_the_database_away_for_half_a_minute_stops_no_loop_and_leaves_no_half_claim():
    world = World()
    world.job()
    world.job("each second", expression="1", concurrency="allow")
    dispatcher = world.dispatcher()
    world.run_until(us() + 20 * SECOND)

    world.store.unavailable = True
    world.run(seconds=30)
    world.store.unavailable = False
    world.run(seconds=30)

    assert all(service.failures == 0 for service in dispatcher.services)
    world.assert_each_ran_once()


def test_r112_a_dispatcher_killed_between_claim_and_publish_costs_no_run():
    world = World()
    job = world.job()
    world.dispatcher("a")
    stock = world.store.claim

    def claim_and_die(*args):
        stock(*args)
        world.store.claim = stock
        world.kill("a")
        raise StoreUnavailable("killed after the commit")

    world.store.claim = claim_and_die
    world.run_until(us() - 20 * SECOND)
    assert world.members == {} and world.states(job) == {"scheduled": 1}
    world.dispatcher("b")
    world.run_until(us() + SECOND)

    world.assert_each_ran_once()
    assert world.run_counts() == {world.store.rows(job)[0].execution_id: 1}


def test_a_settlement_of_another_kind_does_no_harm():
    """Nothing of a lane that was lost is left behind when all is over."""
    world = lost_world(20)
    holder = Holder(world, 5)
    world.flush_redis()
    world.run(seconds=5)
    holder.renew()
    world.queue.settle(0, "holder", [Settlement(Hold(d.execution_id, "1.999"), "succeeded", {}) for d in holder.deliveries])
    holder.finish()
    world.working = True
    world.run(seconds=150)

    lane = world.queue.lanes[0]
    assert world.states() == {"succeeded": 20}
    assert not lane.leases and not lane.locks and not lane.running and not lane.owned
    assert not [c for c in lane.copies.values() if c.state != memory_lane.SETTLED]
