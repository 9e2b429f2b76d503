"""What runs late, and what does not run at all: outages, expiry, overlap, retries of hours, restored databases."""
from collections import Counter
from datetime import timedelta

import pytest

from chrono_beat import telemetry
from chrono_beat.core import policy
from chrono_beat.core.ids import from_us, parse_execution_id
from chrono_beat.core.records import RetryPolicy
from chrono_beat.testing.memory_rows import MemoryTenant
from tests.services.world import LEASE_US, MINUTE, NINE, SECOND, World, us

HOUR = timedelta(hours=1)
ONCE = {"schedule_kind": "once", "expression": NINE.isoformat()}


@pytest.fixture
def heard():
    events = []
    end = telemetry.subscribe(lambda event, fields: events.append((event, dict(fields))))
    yield lambda name: [fields for event, fields in events if event == name]
    end()


def minutes(world, job, state):
    """Return at which minutes after nine the job's occurrences of a state were scheduled."""
    return [(row.scheduled_us - us()) // MINUTE for row in world.store.rows(job) if row.state == state]


def test_r119_a_one_off_six_hours_ahead_is_nowhere_in_redis_until_it_is_due_and_runs_once():
    world = World(start=NINE - 6 * HOUR)
    job = world.job(**ONCE)
    world.dispatcher()

    world.working = False
    world.run_until(us() - 1)
    before = world.queue.backlog(0, world.config.default_pool)
    world.working = True
    world.run(seconds=5 * 60)

    assert before == {} and minutes(world, job, "succeeded") == [0]
    [(_, began_us)] = world.runs
    assert us() <= began_us < us(seconds=1)


# -- nobody dispatched ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("misfire", ["skip", "latest", "all"])
def test_r099_what_is_claimed_1_8_seconds_late_runs(misfire):
    world = World(start=NINE + timedelta(seconds=1.8))
    job = world.job(misfire=misfire)
    world.dispatcher()

    world.run(seconds=5)

    assert minutes(world, job, "succeeded") == [0]
    assert not minutes(world, job, "missed")


def test_r101_after_six_hours_without_a_dispatcher_a_per_minute_job_runs_once():
    world = World(start=NINE + 6 * HOUR - timedelta(seconds=30))
    job = world.job()
    world.dispatcher()

    world.run(seconds=20)

    assert minutes(world, job, "succeeded") == [359]
    [missed] = [row for row in world.store.rows(job) if row.state == "missed"]
    assert (missed.missed_count, missed.first_missed_us, missed.scheduled_us) == (359, us(), us(minutes=358))


def test_r101_inv08_asked_for_all_of_them_the_cap_holds_360_runs_back():
    world = World(start=NINE + 6 * HOUR - timedelta(seconds=30))
    world.store.add_tenant(MemoryTenant(slug="acme", max_running=7))
    job = world.job(tenant="acme", misfire="all", concurrency="allow")
    world.working = False
    world.dispatcher()
    drawn = []

    for _ in range(360):
        world.run(us=100_000)
        batch = world.queue.draw(0, "chrono", 100, "w", LEASE_US)
        drawn.append(len(batch))
        for delivery in batch:
            world.begin(0, delivery)
        for delivery in batch:
            world.finish(0, delivery)
        if minutes(world, job, "succeeded") == [*range(360)]:
            break

    assert minutes(world, job, "succeeded") == [*range(360)]
    assert max(drawn) == 7 and set(world.run_counts().values()) == {1}


class Counting:
    """A schedule that counts how often it is asked."""

    def __init__(self, schedule):
        self.schedule, self.asked = schedule, 0

    def __getattr__(self, name):
        self.asked += 1
        return getattr(self.schedule, name)


@pytest.mark.parametrize("away", [timedelta(hours=2), timedelta(days=2), timedelta(days=366)])
@pytest.mark.parametrize("kind", [("cron", "* * * * *"), ("interval", "60")])
@pytest.mark.parametrize(("misfire", "most"), [("latest", 8), ("skip", 8), ("all", 8 + 64 + 30)])
def test_the_next_run_and_the_count_of_the_missed_cost_the_same_after_hours_and_after_a_year(
    monkeypatch, away, kind, misfire, most,
):
    """The schedule is evaluated for what is written, never for what was missed; "all" bisects for its oldest."""
    world = World(start=NINE + away + timedelta(seconds=30))
    world.job(schedule_kind=kind[0], expression=kind[1], misfire=misfire)
    [due] = world.store.due_jobs(range(8), world.now_us(), 10)
    schedule = Counting(policy._schedule_of(due))
    monkeypatch.setattr(policy, "_schedule", lambda *parts: schedule)

    claim = policy.plan_claim(due, world.now_us(), world.now_us(), 1)

    ran = sum(o.state == "scheduled" for o in claim.occurrences)
    missed = sum(o.missed_count for o in claim.occurrences)
    assert schedule.asked <= most
    if misfire != "all":
        assert missed + ran == away // timedelta(minutes=1) + 1
        assert from_us(claim.new_next_run_us) == NINE + away + timedelta(minutes=1)


@pytest.mark.parametrize("period_seconds", [60, 3600])
def test_a_database_of_eleven_days_ago_makes_one_run_a_job_and_an_alert(heard, period_seconds):
    """A restored backup: what was due since is one row, and nobody is flooded."""
    away = timedelta(days=11)
    world = World(start=NINE + away + timedelta(seconds=10))
    job = world.job(expression=str(period_seconds), concurrency="forbid")
    world.dispatcher()

    world.run(seconds=40)

    count = away // timedelta(seconds=period_seconds)
    assert [row.scheduled_us for row in world.store.rows(job) if row.state == "succeeded"] == [us(NINE + away)]
    assert [(fields["name"], fields["count"], fields["first_us"]) for fields in heard("missed")] == [("job", count, us())]


# -- nobody worked ----------------------------------------------------------------------------------------------------

def test_r103_what_waited_past_its_expiry_does_not_run_when_workers_come():
    world = World()
    job = world.job(**ONCE, expires_after_seconds=300.0)
    world.working = False
    world.dispatcher()

    world.run_until(us(minutes=30))
    world.working = True
    world.run(seconds=5)

    assert [row.state for row in world.store.rows(job)] == ["expired"]
    assert not world.runs


def test_r134_workers_that_were_away_half_an_hour_find_the_fresh_one_and_no_backlog():
    world = World()
    job = world.job(expires_after_seconds=60.0)
    world.working = False
    world.dispatcher()

    world.run_until(us(minutes=30) + 5 * SECOND)
    world.working = True
    world.run(seconds=10)

    assert minutes(world, job, "succeeded") == [30]
    assert minutes(world, job, "expired") == [*range(30)]


# -- runs longer than the period --------------------------------------------------------------------------------------

def test_r154_a_run_of_two_and_a_half_minutes_skips_two_of_three():
    world = World()
    job = world.job()
    world.working = False
    world.dispatcher()
    world.run_until(us())
    running, begun = None, []

    while world.now_us() < us(minutes=10):
        if running is not None and world.now_us() >= running[1]:
            world.finish(0, running[0])
            running = None
        if running is None:
            for delivery in world.queue.draw(0, "chrono", 1, "w", LEASE_US):
                world.begin(0, delivery)
                begun.append(round((world.now_us() - us()) / MINUTE, 1))
                running = delivery, world.now_us() + 150 * SECOND
        world.run(us=500_000)

    assert begun == [0, 3, 6, 9]
    rows = {(row.scheduled_us - us()) // MINUTE: (row.state, row.reason) for row in world.store.rows(job)}
    assert [n for n in range(10) if rows[n] == ("skipped", "overlap")] == [1, 2, 4, 5, 7, 8]


# -- retries ----------------------------------------------------------------------------------------------------------

def test_r120_a_retry_in_two_hours_survives_redis_dispatchers_and_workers():
    """R120: the delay is a row in the database; after everything else was lost there is still one second attempt."""
    world = World()
    job = world.job(**ONCE, task="t.fails", retry=RetryPolicy(2, True, 7200.0, 1.0, 7200.0, 0.0))
    world.answers["t.fails"] = (lambda delivery: ("failed" if delivery.execution_id.endswith(":1") else "succeeded", {}), {})
    world.dispatcher()
    world.run_until(us(minutes=10))

    world.kill("a")
    world.working = False
    world.flush_redis()
    world.run_until(us(minutes=118))
    world.dispatcher("b")
    world.working = True
    world.run_until(us(minutes=123))

    first, second = world.store.rows(job)
    assert [(row.state, row.kind, row.attempt) for row in (first, second)] == [
        ("failed", "schedule", 1), ("succeeded", "retry", 2)]
    assert second.due_us == first.finished_us + 7200 * SECOND
    assert world.run_counts() == Counter([first.execution_id, second.execution_id])
    assert world.lateness_us()[second.execution_id] < SECOND


# -- backfills and replays --------------------------------------------------------------------------------------------

def test_r156_a_backfill_runs_in_order_one_after_another_while_live_runs_go_on():
    world = World()
    job = world.job()
    wanted = [world.store.add_execution(job, us(NINE - timedelta(days=1) + n * HOUR), kind="backfill") for n in range(24)]
    for key in wanted:
        row = world.store.executions[key]
        row.due_us = row.first_due_us = us() - SECOND
    world.working = False
    world.dispatcher()
    world.run_until(us())
    active, order, most = {}, [], Counter()

    while world.now_us() < us(minutes=10):
        for key in [key for key, (_, until) in active.items() if world.now_us() >= until]:
            world.finish(0, active.pop(key)[0])
        for delivery in world.queue.draw(0, "chrono", 10, "w", LEASE_US):
            world.begin(0, delivery)
            order.append(delivery.execution_id)
            active[delivery.execution_id] = delivery, world.now_us() + 20 * SECOND
        for kind, count in Counter(world.store.executions[key].kind for key in active).items():
            most[kind] = max(most[kind], count)
        world.run(us=500_000)

    assert [key for key in order if key in wanted] == wanted
    assert len([key for key in order if key not in wanted]) == 10
    assert most == {"backfill": 1, "schedule": 1}
    assert not [row for row in world.store.rows(job) if row.state == "skipped"]


def test_r070_inv08_what_a_resume_makes_up_for_is_held_back_by_the_tenants_cap():
    """R070: the newest occurrence of each of 300 paused jobs, never more than the cap at once."""
    world = World()
    world.store.add_tenant(MemoryTenant(slug="acme", max_running=20))
    for number in range(300):
        job = world.job(f"job {number}", tenant="acme", expression="3600", next_run_us=us(hours=1))
        key = world.store.add_execution(job, us(NINE - HOUR), kind="backfill")
        world.store.executions[key].due_us = us()
    world.working = False
    world.dispatcher()
    world.run_until(us() + SECOND)
    drawn = []

    while len(world.runs) < 300 and len(drawn) < 40:
        batch = world.queue.draw(0, "chrono", 100, "w", LEASE_US)
        drawn.append(len(batch))
        for delivery in batch:
            world.begin(0, delivery)
        assert not world.queue.draw(0, "chrono", 100, "w", LEASE_US)
        for delivery in batch:
            world.finish(0, delivery)
        world.run(us=50_000)

    assert drawn == [20] * 15
    world.run(seconds=1)
    assert world.states() == {"succeeded": 300}


def test_r151_a_replay_counts_anew_and_keeps_the_occurrences_key():
    """R151: with three attempts a replay has three of its own, and every one is a Celery task id of its own."""
    world = World()
    job = world.job(next_run_us=None, task="t.fails", retry=RetryPolicy(3, True, 30.0, 2.0, 3600.0, 0.0))
    world.answers["t.fails"] = ("failed", {})
    key = world.store.add_execution(job, us(), kind="replay", attempt=4)
    world.dispatcher()

    world.run_until(us(minutes=5))

    rows = world.store.rows(job)
    assert [(row.attempt, row.kind, row.retries, row.state) for row in rows] == [
        (4, "replay", 0, "failed"), (5, "replay", 1, "failed"), (6, "replay", 2, "dead")]
    for row in rows:
        headers = world.headers[row.execution_id]
        assert (headers["id"], headers["retries"]) == (row.execution_id, row.retries)
        assert headers["chrono"]["key"] == key.rpartition(":")[0]
        assert parse_execution_id(row.execution_id).scheduled_us == us()
