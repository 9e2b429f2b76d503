"""A dispatcher alone: it claims ahead, fires on time, and bears what it finds in the database."""

from datetime import timedelta

import pytest

from chrono_beat import telemetry
from chrono_beat.core.errors import StoreUnavailable
from chrono_beat.core.records import EARLY, PublishResult
from chrono_beat.testing.memory_jobs import MemoryTenant
from tests.services.world import NINE, SECOND, World, us

HALF_MINUTE = 30 * SECOND
LATEST_US = 60_000
"""Microseconds by which a run may follow its due time here: the worker looks every 50 ms."""

CREEP_US = 2_000
"""Microseconds by which a publish may follow: what is certain of a server's clock falls behind it between readings."""


@pytest.fixture
def events():
    heard = []
    unsubscribe = telemetry.subscribe(lambda event, fields: heard.append((event, dict(fields))))
    yield heard
    unsubscribe()


def told(events, name):
    return [fields for event, fields in events if event == name]


def test_an_occurrence_is_claimed_ahead_fires_when_due_and_is_recorded():
    world = World()
    job = world.job()
    world.dispatcher()

    world.run_until(us() - HALF_MINUTE)

    [row] = world.store.rows(job)
    assert (row.state, row.due_us) == ("scheduled", us())
    assert world.runs == []
    assert world.store.jobs[job].next_run_us == us(minutes=1)

    world.run_until(us() + 10 * SECOND)

    [row, following] = world.store.rows(job)
    assert (row.state, row.attempt, row.deliveries, row.worker) == ("succeeded", 1, 1, "w")
    assert us() <= row.published_us <= row.started_us <= us() + LATEST_US
    assert following.state == "scheduled"
    assert world.headers[row.execution_id]["chrono"]["name"] == "job"


def test_published_rows_are_marked_in_bulk_soon_after():
    world = World()
    world.working = False
    jobs = [world.job(f"job-{n}") for n in range(50)]
    world.dispatcher()

    world.run_until(us() + 300_000)

    assert {world.store.rows(job)[0].state for job in jobs} == {"queued"}
    assert all(0 <= world.store.rows(job)[0].published_us - us() <= CREEP_US for job in jobs)


def test_a_burst_is_claimed_ahead_in_bounded_batches_and_published_in_bounded_batches(events):
    world = World(claim_batch=100, publish_batch=40)
    world.working = False
    for n in range(1_000):
        world.job(f"job-{n}", schedule_kind="once", expression=NINE.isoformat())
    world.dispatcher()

    world.run_until(us() + SECOND)

    claims, published = told(events, "claimed"), told(events, "published")
    assert sum(c["executions"] for c in claims) == 1_000
    assert max(c["jobs"] for c in claims) <= 100
    assert sum(len(p["lateness_us"]) for p in published) == 1_000
    assert max(len(p["lateness_us"]) for p in published) <= 40
    assert max(max(p["lateness_us"]) for p in published) < 10_000
    assert world.states() == {"queued": 1_000}


# -- invariant 1 ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("off_seconds", [30, -30, 3_600, 0])
def test_inv01_a_host_clock_that_is_wrong_neither_hurries_nor_delays_anything(off_seconds):
    world = World()
    world.job()
    world.dispatcher(off_us=off_seconds * SECOND)

    world.run_until(us(minutes=3) + SECOND)

    assert len(world.runs) == 4
    world.assert_each_ran_once()
    assert max(world.lateness_us().values()) <= LATEST_US


def test_inv01_a_host_clock_that_is_set_while_things_wait_changes_nothing():
    world = World()
    world.job()
    world.dispatcher()

    for step in (-30, 3_600, -86_400):
        world.run(seconds=40)
        world.members["a"].clock.off_us += step * SECOND
    world.run_until(us(minutes=2) + SECOND)

    assert len(world.runs) == 3
    world.assert_each_ran_once()
    assert max(world.lateness_us().values()) <= LATEST_US


@pytest.mark.parametrize("redis_off_us", [700_000, -700_000])
def test_inv01_nothing_can_be_read_before_both_servers_clocks_have_reached_it(redis_off_us):
    world = World(redis_off_us=redis_off_us)
    world.job()
    world.dispatcher()

    world.run_until(us(minutes=1) + 2 * SECOND)

    readable = [at for instants in world.published_at.values() for at in instants]
    behind = max(0, -redis_off_us)
    assert [at - behind for at in readable] == pytest.approx([us(), us(minutes=1)], abs=5_000)
    assert all(at >= due + behind for at, due in zip(readable, [us(), us(minutes=1)], strict=True))


def test_inv01_what_redis_calls_early_is_tried_again_until_its_clock_is_there():
    world = World()
    world.job()
    world.dispatcher()
    publish, asked = world.queue.publish, []

    def too_early(lane, generation, valid_until_us, items):
        asked.append(world.now_us())
        if len(asked) <= 3:
            return PublishResult("", [EARLY] * len(items), world.now_us())
        return publish(lane, generation, valid_until_us, items)

    world.queue.publish = too_early
    world.run_until(us() + SECOND)

    assert len(asked) == 4
    assert asked[-1] - asked[0] >= 60_000                    # and not in a tight loop
    assert len(world.runs) == 1


def test_nothing_fires_before_both_clocks_have_been_read():
    world = World(start=NINE + timedelta(seconds=1))
    world.job(schedule_kind="once", expression=NINE.isoformat())
    world.queue.unavailable = True
    world.dispatcher()

    world.run(seconds=5)
    assert world.store.rows() == []

    world.queue.unavailable = False
    world.run(seconds=5)
    assert len(world.runs) == 1


# -- schedules over time ----------------------------------------------------------------------------------------------

def test_a_due_minute_fires_once_however_often_the_dispatcher_looks():
    world = World(start=NINE - timedelta(minutes=57), look_ahead_every=0.2)
    job = world.job(schedule_kind="cron", expression="4 * * * *", next_run_us=us(minutes=-56))
    world.dispatcher()

    world.run(seconds=140)

    assert len(world.runs) == 1
    assert len(world.store.rows(job)) == 1


def test_a_weekly_interval_runs_though_dispatchers_restart_daily():
    world, day = World(start=NINE - timedelta(seconds=15)), 86_400 * SECOND
    job = world.job(expression="604800", next_run_us=us() + 7 * day)

    for number in range(15):
        world.dispatcher(f"d{number}")
        world.run(seconds=30)
        world.kill(f"d{number}")
        world.flow.advance(seconds=86_400 - 30)

    assert [at for _, at in world.runs] == pytest.approx([us() + 7 * day, us() + 14 * day], abs=LATEST_US)
    assert [row.scheduled_us for row in world.store.rows(job)] == [us() + 7 * day, us() + 14 * day]


def test_an_edit_just_before_the_minute_takes_nobody_elses_run():
    world = World()
    jobs = [world.job(f"job-{n}") for n in range(9)]
    dispatcher = world.dispatcher()

    world.run_until(us(minutes=1) - SECOND // 2)
    jobs.append(world.job("late", next_run_us=us(minutes=1)))
    dispatcher.planner.wake()                                # as the store's caller does through Redis
    world.run_until(us(minutes=2) + SECOND)

    for minute in (1, 2):
        rows = [row for row in world.store.rows() if row.scheduled_us == us(minutes=minute)]
        assert len(rows) == 10
        assert max(row.started_us - row.due_us for row in rows) <= 1_500_000
    world.assert_each_ran_once()


def test_a_new_job_is_found_within_the_second_without_being_woken():
    world = World()
    world.dispatcher()
    world.run_until(us())

    world.job(schedule_kind="once", expression=NINE.isoformat())
    world.run(seconds=1.2)

    assert len(world.runs) == 1


def test_missed_occurrences_become_one_row_and_the_latest_runs(events):
    world = World(start=NINE + timedelta(minutes=30, seconds=20))
    job = world.job()
    world.dispatcher()

    world.run(seconds=20)

    rows = {row.state: row for row in world.store.rows(job)}
    assert rows.keys() == {"missed", "succeeded", "scheduled"}
    assert (rows["missed"].scheduled_us, rows["missed"].missed_count) == (us(minutes=29), 30)
    assert (rows["missed"].first_missed_us, rows["missed"].reason) == (us(), "misfire")
    assert rows["succeeded"].scheduled_us == us(minutes=30)
    assert [fields["count"] for fields in told(events, "missed")] == [30]


def test_more_overdue_occurrences_than_one_claim_takes_all_run():
    world = World(start=NINE + timedelta(minutes=150, seconds=1))
    world.job(misfire="all", concurrency="allow")
    world.dispatcher()

    world.run(seconds=10)

    assert len(world.runs) == 151
    world.assert_each_ran_once()


def test_a_spread_job_fires_at_its_offset():
    world = World()
    world.store.add_tenant(MemoryTenant(slug="default", spread_seconds=20))
    job = world.job()
    world.dispatcher()

    world.run_until(us() + 25 * SECOND)

    row = world.store.rows(job)[0]
    assert row.scheduled_us == us() and 0 < row.due_us - us() < 20 * SECOND
    assert 0 <= row.started_us - row.due_us <= LATEST_US


def test_rows_from_elsewhere_come_in_by_the_same_index():
    """Manual runs, retries and backfills are rows that no wheel holds."""
    world = World()
    job = world.job(next_run_us=None)
    dispatcher = world.dispatcher()
    world.run_until(us())

    execution_id = world.store.add_execution(job, us(seconds=3))
    dispatcher.planner.wake()
    world.run(seconds=5)

    assert [id_ for id_, _ in world.runs] == [execution_id]
    assert world.headers[execution_id]["chrono"]["kind"] == "manual"


def test_a_job_edited_by_sql_is_planned_from_now():
    world = World()
    job = world.job(next_run_us=us(minutes=-30), replan=True)
    world.dispatcher()

    world.run_until(us() + SECOND)

    assert [row.scheduled_us for row in world.store.rows(job)] == [us(), us(minutes=1)]
    assert len(world.runs) == 1


# -- poison -----------------------------------------------------------------------------------------------------------

POISON = {
    "a date that never comes": {"schedule_kind": "cron", "expression": "0 12 31 4 *"},
    "another": {"schedule_kind": "cron", "expression": "0 0 30 2 *"},
    "no zone": {"schedule_kind": "cron", "expression": "* * * * *", "timezone": "UTC+3"},
    "a zone that is gone": {"schedule_kind": "cron", "expression": "* * * * *", "timezone": "Europe/Nowhere"},
    "bad args": {"args": "[1,"},
    "bad kwargs": {"kwargs": "[]"},
    "5 MB of arguments": {"args": '["' + "x" * 5_000_000 + '"]'},
    "no task": {"task": "not a task"},
    "a negative spread": {"spread_seconds": -7},
    "a negative duration": {"max_duration_seconds": -1.0},
    "an absurd priority": {"priority": 4_711},
    "no kind": {"schedule_kind": "lunar"},
}


def test_r093_rows_that_make_no_sense_are_quarantined_with_a_reason_and_999_neighbours_fire_on_time(events):
    world = World(claim_batch=250)
    world.working = False
    good = [world.job(f"good-{n}", schedule_kind="once", expression=NINE.isoformat()) for n in range(999)]
    bad = {name: world.job(name, **fields) for name, fields in POISON.items()}
    world.dispatcher()

    world.run_until(us() + SECOND)

    assert all(world.store.rows(job)[0].published_us == pytest.approx(us(), abs=20_000) for job in good)
    for name, job in bad.items():
        assert world.store.jobs[job].quarantined_reason, name
        assert world.store.jobs[job].next_run_us is None
        assert world.store.rows(job) == [], name             # never run with something else instead
    assert {fields["name"] for fields in told(events, "quarantined")} == POISON.keys()


def test_a_row_that_breaks_the_transaction_of_a_claim_is_found_and_its_neighbours_go_on(caplog):
    world = World()
    jobs = [world.job(f"job-{n}") for n in range(20)]
    claim = world.store.claim

    def picky(member, claims):
        if any(c.job_id == jobs[7] for c in claims):
            raise OverflowError("this number fits into no column")
        return claim(member, claims)

    world.store.claim = picky
    world.dispatcher()
    world.run_until(us() + SECOND)

    assert len(world.runs) == 19
    assert "fits into no column" in world.store.jobs[jobs[7]].quarantined_reason


def test_a_claimed_row_whose_job_has_become_unreadable_ends_dead_with_the_reason():
    world = World()
    job = world.job(next_run_us=None)
    execution_id = world.store.add_execution(job, us())
    world.store.jobs[job].args = "[1,"
    world.dispatcher()

    world.run_until(us() + SECOND)

    row = world.store.executions[execution_id]
    assert (row.state, row.reason) == ("dead", "invalid")
    assert "args" in row.error
    assert world.store.jobs[job].quarantined_reason


# -- the database away ------------------------------------------------------------------------------------------------

def test_what_was_claimed_fires_while_the_database_is_away_within_the_lease():
    world = World()
    world.working = False
    world.job()
    world.dispatcher()
    world.run_until(us() - 2 * SECOND)

    world.store.unavailable = True
    world.run(seconds=3)

    [[published_us]] = world.published_at.values()
    assert 0 <= published_us - us() <= CREEP_US


def test_marks_wait_for_the_database_and_are_written_when_it_is_back():
    world = World()
    world.working = False
    job = world.job()
    world.dispatcher()
    world.run_until(us() - 2 * SECOND)
    world.store.unavailable = True
    world.run(seconds=3)

    world.store.unavailable = False
    world.run(seconds=6)

    assert world.store.rows(job)[0].state == "queued"
    assert 0 <= world.store.rows(job)[0].published_us - us() <= CREEP_US


def test_dispatching_goes_on_soon_after_an_outage_of_hours():
    world = World()
    world.job(concurrency="allow")
    dispatcher = world.dispatcher()
    world.run_until(us() + 10 * SECOND)

    world.store.unavailable = True
    world.run(seconds=60)
    world.flow.advance(seconds=3 * 3_600)
    world.run(seconds=10)
    assert not dispatcher.planner.healthy(world.flow.monotonic_us())
    world.store.unavailable = False
    back = world.now_us()
    world.run(seconds=90)

    world.assert_each_ran_once()
    assert min(at for _, at in world.runs if at > back) <= back + 30 * SECOND
    assert dispatcher.planner.healthy(world.flow.monotonic_us())


@pytest.mark.parametrize("step", range(1, 25))
def test_a_transaction_that_fails_anywhere_at_the_start_is_tried_again(step):
    """A transient error in one start-up step must not leave the dispatcher half alive."""
    world = World()
    world.job()
    world.store.fail_at(step)
    world.dispatcher()

    world.run_until(us() + SECOND)

    assert len(world.runs) == 1
    world.assert_each_ran_once()


def test_marks_are_bounded(monkeypatch, events):
    world = World()
    dispatcher = world.dispatcher()
    monkeypatch.setattr("chrono_beat.services.firing.MAX_MARKS", 10)

    dispatcher.marker.add([(f"id-{n}", n) for n in range(12)])

    assert told(events, "marks_dropped") == [{"count": 2}]


def test_marks_wait_a_little_while_there_is_much_to_fire():
    world, busy, marked = World(), True, []
    world.store.mark_queued = lambda rows: marked.append(len(rows))
    from chrono_beat.services.firing import LONGEST_DEFER_US, Marker

    marker = Marker(world.store, world.flow, lambda: busy)
    marker.add([("x", 1)])
    marker.step(world.flow.monotonic_us())
    assert marked == []

    world.flow.advance(us=LONGEST_DEFER_US)
    marker.step(world.flow.monotonic_us())
    assert marked == [1]


def test_the_waker_wakes_the_planner():
    world = World()
    woken = []
    dispatcher = world.dispatcher()
    dispatcher.waker._wake_planner = lambda: woken.append(1)

    world.queue.wake_dispatchers()
    dispatcher.waker.step(0)

    assert woken == [1]


def test_a_mark_that_fails_is_kept():
    world, left = World(), [StoreUnavailable("gone")]
    dispatcher = world.dispatcher()

    def mark_queued(rows):
        if left:
            raise left.pop()
        done.extend(rows)

    done = []
    world.store.mark_queued = mark_queued
    dispatcher.marker.add([("x", 1)])
    dispatcher.marker.turn(world.flow.monotonic_us())
    assert done == []
    dispatcher.marker.turn(world.flow.monotonic_us())
    assert done == [("x", 1)]




@pytest.mark.parametrize("call", ["claim", "load_scheduled"])
def test_what_an_unanswered_call_has_taken_is_read_anew(call):
    """It is held under the dispatcher's own epoch and stands in no wheel, so no scan would ever find it."""
    world = World()
    job = world.job()
    stock, left = getattr(world.store, call), [StoreUnavailable("the reply was lost")]

    def take(*args):
        found = stock(*args)
        if found and left:
            raise left.pop()
        return found

    setattr(world.store, call, take)
    if call == "load_scheduled":
        world.store.jobs[job].next_run_us = None
        world.store.add_execution(job, us())
    world.dispatcher()

    world.run_until(us() + SECOND)

    assert not left
    assert world.run_counts() == {world.store.rows(job)[0].execution_id: 1}
