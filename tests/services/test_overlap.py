"""Overlap through all the services: who starts when, who is told to stop, and how the rows end."""

import json
from datetime import timedelta

import pytest

from chrono_beat import telemetry
from chrono_beat.core.deliveries import REFUSED, Outcome, Settlement
from chrono_beat.core.records import RetryPolicy, Stop
from chrono_beat.services.reaper import Reaper
from chrono_beat.services.recorder import Recorder
from chrono_beat.services.streaks import ALERT_AT, Streaks
from tests.services.world import LEASE_US, MINUTE, NINE, SECOND, World, us

TICK_US = 100_000


class Bodies:
    """A worker whose bodies last, with a reaper beside it.

    Args:
        world: where it works; its own worker rests.
        lasts_us: how long a body runs, in microseconds.
        obedient: whether a body ends when it is told to.
    """

    def __init__(self, world, lasts_us, *, obedient=True):
        self.world, self.lasts_us, self.obedient = world, lasts_us, obedient
        world.working = False
        self.reaper = Reaper(world.queue, world.flow, world.config)
        self.running = {}                  # execution id -> (delivery, when it ends)
        self.spans = {}                    # execution id -> [start, end or None]
        self.told, self.words = [], {}
        self._next_reap = 0

    def run_until(self, instant_us):
        while self.world.now_us() < instant_us:
            self.world.run(us=TICK_US)
            self._hear()
            self._end()
            self._draw()
            if self.world.now_us() >= self._next_reap:
                self._next_reap = self.world.now_us() + self.reaper.turn(self.world.flow.monotonic_us())

    def _hear(self):
        for message in self.world.queue.wait_for_work([0], ["chrono"], "w", 0):
            stop = json.loads(message)
            assert stop.keys() == {"stop", "token", "why"}
            assert stop["why"] == "replace"
            self.told.append(stop["stop"])
            held = self.running.get(stop["stop"])
            if held is not None and held[0].token == stop["token"] and self.obedient:
                self.settle(held[0], "superseded")

    def _end(self):
        now = self.world.now_us()
        for delivery, ends_us in list(self.running.values()):
            if ends_us <= now:
                self.settle(delivery, "succeeded")
            else:
                hold = delivery.execution_id, delivery.token
                self.world.queue.renew(0, "w", [hold], LEASE_US)

    def _draw(self):
        now = self.world.now_us()
        for delivery in self.world.queue.draw(0, "chrono", 10, "w", LEASE_US):
            self.world.begin(0, delivery)
            self.running[delivery.execution_id] = delivery, now + self.lasts_us
            self.spans[delivery.execution_id] = [now, None]

    def settle(self, delivery, result):
        del self.running[delivery.execution_id]
        self.spans[delivery.execution_id][1] = self.world.now_us()
        settlement = Settlement((delivery.execution_id, delivery.token), result, {})
        self.words[delivery.execution_id] = self.world.queue.settle(0, "w", [settlement])[0]

    def starts(self):
        """Seconds after nine o'clock at which bodies began, to the nearest."""
        return [round((start - us()) / SECOND) for start, _ in self.spans.values()]

    def most_at_once(self):
        now = self.world.now_us()
        steps = sorted((at, sign) for start, end in self.spans.values()
                       for at, sign in ((start, 1), (now + 1 if end is None else end, -1)))
        at_once = most = 0
        for _, sign in steps:
            at_once += sign
            most = max(most, at_once)
        return most


@pytest.fixture
def heard():
    events = []
    unsubscribe = telemetry.subscribe(lambda event, fields: events.append((event, fields)))
    yield lambda name: [fields for event, fields in events if event == name]
    unsubscribe()


def minute(row):
    return (row.scheduled_us - us()) // MINUTE


def test_inv09_r154_runs_of_two_and_a_half_minutes_under_forbid_start_every_third_minute(heard):
    world = World()
    job = world.job()
    world.dispatcher()
    bodies = Bodies(world, 150 * SECOND)

    bodies.run_until(us() + 10 * MINUTE)

    rows = {minute(row): row for row in world.store.rows(job)}
    assert bodies.starts() == [0, 180, 360, 540]
    skipped = {m: row for m, row in rows.items() if row.state == "skipped"}
    assert sorted(skipped) == [1, 2, 4, 5, 7, 8]
    assert {row.reason for row in skipped.values()} == {"overlap"}
    assert skipped[8].error == f"{rows[6].execution_id} was active"
    assert [rows[m].state for m in (0, 3, 6)] == ["succeeded"] * 3
    assert bodies.most_at_once() == 1
    assert not heard("missed")
    assert not heard("skipped_in_a_row")


def test_inv09_r155_replace_starts_each_run_as_soon_as_the_one_before_has_stopped(heard):
    world = World()
    job = world.job(concurrency="replace")
    world.dispatcher()
    bodies = Bodies(world, 10 * MINUTE)

    bodies.run_until(us() + 3 * MINUTE + 30 * SECOND)

    rows = {minute(row): row for row in world.store.rows(job)}
    assert bodies.starts() == [0, 60, 120, 180]
    assert bodies.most_at_once() == 1
    assert [(rows[m].state, rows[m].reason) for m in range(3)] == [("cancelled", "superseded")] * 3
    assert rows[0].error == f"replaced by {rows[1].execution_id}"
    assert rows[3].state == "running"
    assert bodies.told == [rows[m].execution_id for m in range(3)], "told once each, by the dispatcher"
    assert not heard("withdrawn")


def test_inv06_r155_who_does_not_stop_loses_its_lease_after_the_grace_and_its_result_is_refused(heard):
    world = World(replace_grace=20)
    job = world.job(concurrency="replace", schedule_kind="cron", expression="*/5 * * * *")
    world.dispatcher()
    bodies = Bodies(world, 6 * MINUTE, obedient=False)

    bodies.run_until(us() + 7 * MINUTE)

    first, second = world.store.rows(job)[:2]
    assert (first.state, first.reason) == ("cancelled", "superseded")
    assert bodies.words[first.execution_id] == REFUSED
    start, end = bodies.spans[second.execution_id]
    assert end is None
    assert 20 * SECOND <= start - (us() + 5 * MINUTE) <= 22 * SECOND
    assert second.state == "running"
    assert len(bodies.told) >= 15, "again and again, by the reaper"
    assert [stop.execution_id for [stop] in [f["stops"] for f in heard("withdrawn")]] == [first.execution_id]


def test_r155_a_dispatcher_that_dies_after_the_decision_changes_nothing():
    """Neither the word to the worker nor the end of the grace hang on it: both are kept in Redis."""
    world = World()
    job = world.job(concurrency="replace", schedule_kind="cron", expression="*/5 * * * *")
    dispatcher = world.dispatcher()
    dispatcher.stopper.add = lambda lane, stops: None
    bodies = Bodies(world, 20 * MINUTE)
    bodies.run_until(us() + 5 * MINUTE - SECOND)
    bodies.world.run_until(us() + 5 * MINUTE + SECOND // 10)
    world.kill("a")

    bodies.run_until(us() + 5 * MINUTE + 5 * SECOND)

    assert [row.state for row in world.store.rows(job)][:2] == ["cancelled", "running"]
    assert len(bodies.spans) == 2


def test_r155_replace_of_what_nobody_has_drawn_leaves_the_newest():
    world = World()
    job = world.job(concurrency="replace")
    world.dispatcher()
    world.working = False
    world.run_until(us() + 3 * MINUTE + SECOND)

    world.working = True
    world.run(seconds=1)

    rows = world.store.rows(job)[:4]
    assert [row.state for row in rows] == ["cancelled"] * 3 + ["succeeded"]
    assert [execution_id for execution_id, _ in world.runs] == [rows[3].execution_id]


def test_inv09_jobs_of_a_group_run_one_after_another_and_none_is_skipped():
    world = World()
    jobs = [world.job(f"job {n}", exclusion_group="nightly", schedule_kind="once", expression=NINE.isoformat())
            for n in range(4)]
    world.dispatcher()
    bodies = Bodies(world, 20 * SECOND)

    bodies.run_until(us() + 2 * MINUTE)

    assert [row.state for job in jobs for row in world.store.rows(job)] == ["succeeded"] * 4
    assert bodies.most_at_once() == 1
    assert [round(start / 5) * 5 for start in bodies.starts()] == [0, 20, 40, 60]


def test_one_that_waits_for_its_group_expires_while_it_waits():
    world = World()
    world.job("first", exclusion_group="g", schedule_kind="once", expression=NINE.isoformat())
    late = world.job("late", exclusion_group="g", schedule_kind="once",
                     expression=(NINE + timedelta(seconds=5)).isoformat(), next_run_us=us() + 5 * SECOND,
                     expires_after_seconds=30.0)
    world.dispatcher()
    bodies = Bodies(world, 5 * MINUTE)

    bodies.run_until(us() + 40 * SECOND)

    assert [row.state for row in world.store.rows(late)] == ["expired"]


def test_rule13_a_retry_that_comes_due_meanwhile_waits_and_goes_before_the_next_occurrence():
    world = World()
    job = world.job(retry=RetryPolicy(2, True, 90.0, 1.0, 3600.0, 0.0))
    world.dispatcher()
    bodies = Bodies(world, 45 * SECOND)
    bodies.run_until(us() + 10 * SECOND)
    [(delivery, _)] = bodies.running.values()

    bodies.settle(delivery, "failed")          # its retry is due 100 s after nine, while the run of 9:01 is active
    bodies.run_until(us() + 4 * MINUTE)

    assert bodies.starts() == [0, 60, 105, 180]
    states = {(minute(row), row.attempt): row.state for row in world.store.rows(job)}
    assert (states[0, 1], states[0, 2]) == ("failed", "succeeded")
    assert states[2, 1] == "skipped"
    assert bodies.most_at_once() == 1


def test_inv09_r152_a_manual_run_at_the_moment_of_the_schedule_never_runs_beside_it():
    """A thousand rounds; two dispatchers, of which now and then the one that has the job stands still past its lease."""
    world = World(partitions=2)
    rounds, period = 1_000, 3 * SECOND
    job = world.job(expression="3", misfire="all")
    world.dispatcher("a")
    world.dispatcher("b", off_us=40_000)
    world.run_until(us() - SECOND)
    manual = [world.store.add_execution(job, us() + n * period + 1 + n % 3) for n in range(rounds)]
    bodies = Bodies(world, SECOND // 2)
    fired_by = set()

    def owner():
        return world.store.partitions()[world.store.jobs[job].partition].owner

    for until in range(100, rounds + 1, 100):
        paused = owner()
        world.pause(paused)
        bodies.run_until(world.now_us() + 8 * SECOND)
        fired_by |= {paused, owner()}
        world.resume(paused)
        bodies.run_until(us() + until * period - SECOND)

    rows = [row for row in world.store.rows(job) if row.scheduled_us < us() + rounds * period]
    assert fired_by == {"a", "b"}
    assert bodies.most_at_once() == 1
    assert len(rows) == 2 * rounds
    assert {row.execution_id for row in rows} >= set(manual)
    assert world.states(job).keys() <= {"succeeded", "skipped", "scheduled"}
    assert set(world.run_counts().values()) == {1}
    by_id = {row.execution_id: row for row in rows}
    for row in rows:
        if row.state == "skipped":
            other = by_id[row.error.removesuffix(" was active")]
            assert other.state == "succeeded"
            assert bodies.spans[other.execution_id][1] >= row.finished_us, "it was in the way until later"


# -- skips in a row ----------------------------------------------------------------------------------------------------


def test_five_skips_in_a_row_are_told_once_a_streak(heard):
    world = World()
    job = world.job()
    world.dispatcher()
    bodies = Bodies(world, 8 * MINUTE - 10 * SECOND)

    bodies.run_until(us() + 7 * MINUTE + 30 * SECOND)
    [told] = heard("skipped_in_a_row")
    assert (told["job_id"], told["tenant"], told["count"]) == (job, "default", ALERT_AT)
    assert told["blocked_by"] == world.store.rows(job)[0].execution_id

    bodies.run_until(us() + 15 * MINUTE)
    assert len(heard("skipped_in_a_row")) == 2


def test_a_recorder_that_starts_anew_goes_on_counting_where_the_last_one_ended(heard):
    """A daily job needs five days for five skips; no process lives that long where there are deployments."""
    world = World()
    job = world.job()
    world.dispatcher()
    bodies = Bodies(world, 20 * MINUTE)

    for minutes in (1, 2, 3, 4, 5):
        bodies.run_until(us() + minutes * MINUTE + 10 * SECOND)
        assert world.states(job)["skipped"] == minutes and bool(heard("skipped_in_a_row")) == (minutes == 5)
        world.recorder = Recorder(world.store, world.queue, world.flow, world.config, reader="recorder")

    assert [told["job_id"] for told in heard("skipped_in_a_row")] == [job]


class History:
    """A database that knows how many skips there were, and counts how often it is asked."""

    def __init__(self, **counts):
        self.counts, self.asked = counts, []

    def skips_in_a_row(self, job_ids, most):
        self.asked += job_ids
        return {job: min(self.counts.get(job, 1), most) for job in job_ids}


def skipped(job):
    return Outcome("1-0", 0, 1, "skipped", f"{job}:20260102T090000Z:1", job, "t", 1, "", "", 0, 0, {})


def test_streaks_remember_a_bounded_number_of_jobs_and_ask_again_for_the_others(heard, monkeypatch):
    monkeypatch.setattr("chrono_beat.services.streaks.MAX_STREAKS", 2)
    streaks = Streaks(History(a=3))

    streaks.see(0, [skipped("a"), skipped("b")])
    streaks.see(0, [skipped("c"), skipped("b")])
    streaks.see(0, [skipped("a")])

    assert streaks._store.asked == ["a", "b", "c", "a"]


def test_a_lane_that_another_recorder_read_meanwhile_is_counted_from_history(heard):
    streaks = Streaks(History(a=4))
    streaks.see(0, [skipped("a")])

    streaks.leave(0)
    streaks._store.counts["a"] = 1                     # it ran meanwhile
    streaks.see(0, [skipped("a")])

    assert not heard("skipped_in_a_row")


def test_history_is_asked_for_a_bounded_number_of_jobs_at_once(heard, monkeypatch):
    monkeypatch.setattr("chrono_beat.services.streaks.ASKED_AT_ONCE", 2)
    streaks = Streaks(History(c=5))

    streaks.see(0, [skipped(job) for job in "abcc"])
    assert streaks._store.asked == ["a", "b"] and not heard("skipped_in_a_row")
    streaks.see(0, [skipped("c")])

    assert [fields["job_id"] for fields in heard("skipped_in_a_row")] == ["c"]


# -- the stopper -------------------------------------------------------------------------------------------------------


def test_a_stop_that_cannot_be_told_holds_nothing_up():
    world = World()
    dispatcher = world.dispatcher()
    world.queue.unavailable = True
    dispatcher.stopper.add(0, [Stop("a:20260102T090000Z:1", "1.1", "w"), Stop("b:20260102T090000Z:1", "1.2", "w")])

    dispatcher.stopper.turn(0)
    world.queue.unavailable = False
    dispatcher.stopper.turn(SECOND)

    assert [json.loads(message)["stop"][0] for message in world.queue.control["w"]] == ["b"]
