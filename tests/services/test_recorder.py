"""From outcomes to history: retries, dead letters, replays after a crash, and outcomes that break a transaction."""

from datetime import timedelta

import pytest

from chrono_beat import telemetry
from chrono_beat.core.deliveries import Hold, Settlement
from chrono_beat.core.errors import QueueUnavailable, StoreUnavailable
from chrono_beat.core.records import RetryPolicy
from chrono_beat.services.recorder import LONGEST_WAIT_US, SHORTEST_WAIT_US, Recorder
from tests.services.world import LEASE_US, NINE, SECOND, World, us

ONCE = {"schedule_kind": "once", "expression": NINE.isoformat()}
THRICE = RetryPolicy(3, True, 30.0, 2.0, 3600.0, 0.0)
ERROR = {"error": {"type": "ValueError", "message": "no card", "traceback": "File …"}}


def failing(**fields):
    """A world whose job's body fails each time."""
    world = World()
    job = world.job(**ONCE, task="t.fails", **fields)
    world.answers["t.fails"] = ("failed", ERROR)
    world.dispatcher()
    return world, job


def test_a_failure_is_a_dead_letter_unless_a_retry_was_asked_for():
    world, job = failing()

    world.run_until(us() + 60 * SECOND)

    [row] = world.store.rows(job)
    assert (row.state, row.reason, row.attempt) == ("dead", "error", 1)
    assert row.error.startswith("ValueError: no card")


def test_failures_are_tried_again_after_back_off_through_the_same_due_index():
    world, job = failing(retry=THRICE)

    world.run_until(us() + 120 * SECOND)

    rows = world.store.rows(job)
    assert [(row.attempt, row.state, row.kind, row.retries) for row in rows] == [
        (1, "failed", "schedule", 0), (2, "failed", "retry", 1), (3, "dead", "retry", 2)]
    waits = [later.due_us - earlier.finished_us for earlier, later in zip(rows, rows[1:], strict=False)]
    assert waits == [30 * SECOND, 60 * SECOND]
    assert all(late <= 100_000 for late in world.lateness_us().values())
    ids = {world.headers[row.execution_id]["id"] for row in rows}
    assert ids == {rows[0].execution_id.rpartition(":")[0]}  # one Celery id for all attempts
    assert [world.headers[row.execution_id]["retries"] for row in rows] == [0, 1, 2]


@pytest.mark.parametrize(("most", "ends"), [
    (2, [("failed", "timeout"), ("dead", "timeout")]), (1, [("dead", "timeout")]),
])
def test_r143_a_hard_timeout_is_tried_again_while_the_policy_allows_it_and_never_lost(most, ends):
    world, job = failing(retry=RetryPolicy(most, True, 30.0, 2.0, 3600.0, 0.0))
    world.answers["t.fails"] = ("timeout", {"limit": "hard"})

    world.run_until(us() + 120 * SECOND)

    assert [(row.state, row.reason) for row in world.store.rows(job)] == ends
    assert len(world.runs) == most and world.queue.lanes[0].running == {}


def test_the_tasks_own_retry_becomes_an_attempt_with_its_countdown_and_arguments():
    world = World()
    job = world.job(**ONCE, task="t.retries")
    retry = {"countdown_us": 7 * SECOND, "args": '["again"]', "kwargs": "{}", "retries": 1, "max_retries": 3}

    def body(delivery):
        return ("retry", {"retry": retry}) if delivery.execution_id.endswith(":1") else ("succeeded", {})

    world.answers["t.retries"] = (body, {})
    world.dispatcher()
    world.run_until(us() + 20 * SECOND)

    first, second = world.store.rows(job)
    assert (first.state, second.state) == ("failed", "succeeded")
    assert second.due_us == first.finished_us + 7 * SECOND
    assert second.args == '["again"]'


def test_a_retry_survives_its_dispatcher():
    world, job = failing(retry=THRICE)
    world.run_until(us() + 5 * SECOND)

    world.kill("a")
    world.dispatcher("b")
    world.run_until(us() + 120 * SECOND)

    assert [row.state for row in world.store.rows(job)] == ["failed", "failed", "dead"]
    world.answers.clear()


def test_an_overlap_is_recorded_as_skipped_with_a_row_for_each():
    world = World()
    job = world.job(expression="10", anchor_us=us())
    world.working = False
    world.dispatcher()
    world.run_until(us() + SECOND)
    [delivery] = world.queue.draw(0, "chrono", 10, "w", LEASE_US)
    world.begin(0, delivery)

    world.run_until(us() + 25 * SECOND)
    world.finish(0, delivery)
    world.working = True
    world.run_until(us() + 31 * SECOND)

    rows = world.store.rows(job)[:4]
    assert [(row.state, row.reason) for row in rows] == [
        ("succeeded", ""), ("skipped", "overlap"), ("skipped", "overlap"), ("succeeded", "")]
    assert [row.published_us is None for row in rows] == [False, True, True, False]


# -- crashes ----------------------------------------------------------------------------------------------------------

@pytest.fixture
def settled():
    """A world with an outcome of each end waiting to be recorded by hand."""
    world = World()
    world.answers["t.fails"] = ("failed", ERROR)
    world.job("good", **ONCE)
    world.job("bad", **ONCE, task="t.fails", retry=THRICE)
    world.dispatcher()
    world._next_record = 10**18                              # nobody records but the test
    world.run_until(us() + SECOND)
    recorder = Recorder(world.store, world.queue, world.flow, world.config, reader="r", chance=lambda: 0.5)
    return world, recorder


def history(world):
    return [(row.execution_id, row.state, row.attempt, row.retries) for row in world.store.rows()]


@pytest.mark.parametrize("step", range(1, 10))
def test_a_transaction_that_breaks_anywhere_leaves_nothing_and_is_repeated(settled, step):
    world, recorder = settled
    world.store.fail_at(step)

    for _ in range(3):
        recorder.turn(world.flow.monotonic_us())

    assert [(state, attempt) for _, state, attempt, _ in history(world)] == [
        ("succeeded", 1), ("failed", 1), ("scheduled", 2)]
    assert world.queue.read_outcomes(0, "r", LEASE_US, 10) == []


def test_a_crash_between_commit_and_acknowledgement_replays_harmlessly(settled):
    world, recorder = settled

    class NoAcknowledgement:
        def __getattr__(self, name):
            return getattr(world.queue, name)

        def acknowledge(self, lane, outcomes):
            raise QueueUnavailable("the process died")

    dying = Recorder(world.store, NoAcknowledgement(), world.flow, world.config, reader="r", chance=lambda: 0.5)
    dying.turn(world.flow.monotonic_us())
    committed = history(world)
    assert ("succeeded", 1) in [(state, attempt) for _, state, attempt, _ in committed]

    recorder.turn(world.flow.monotonic_us())

    assert history(world) == committed
    assert world.queue.read_outcomes(0, "r", LEASE_US, 10) == []


def test_one_reader_a_lane_at_a_time(settled):
    world, recorder = settled
    assert world.queue.read_outcomes(0, "another", LEASE_US, 1)

    recorder.turn(world.flow.monotonic_us())
    assert {state for _, state, *_ in history(world)} <= {"scheduled", "queued"}

    world.flow.advance(seconds=61)
    recorder.turn(world.flow.monotonic_us())
    assert "succeeded" in {state for _, state, *_ in history(world)}


def test_an_outcome_that_breaks_the_transaction_is_written_without_its_facts(settled, caplog):
    world, recorder = settled
    record = world.store.record

    def picky(starts, endings, attempts):
        if any(ending.error for ending in endings):
            raise ValueError("this text fits into no column")
        return record(starts, endings, attempts)

    world.store.record = picky
    recorder.turn(world.flow.monotonic_us())

    assert [(state, attempt) for _, state, attempt, _ in history(world)] == [
        ("succeeded", 1), ("failed", 1), ("scheduled", 2)]
    assert "cannot be recorded as it is" in caplog.text


def test_an_outcome_of_no_known_name_stands_in_nobodys_way(settled, caplog):
    world, recorder = settled
    read, heard = world.queue.read_outcomes, []
    unsubscribe = telemetry.subscribe(lambda event, fields: heard.append(event))

    def with_a_stranger(lane, reader, lease_us, limit):
        outcomes = read(lane, reader, lease_us, limit)
        strange = [o._replace(event="teleported", execution_id="x:20260102T090000Z:1") for o in outcomes[:1]]
        return [*strange, *outcomes]

    world.queue.read_outcomes = with_a_stranger
    recorder.turn(world.flow.monotonic_us())
    unsubscribe()

    assert "outcome_unknown" in heard
    assert "succeeded" in {state for _, state, *_ in history(world)}


def test_what_was_found_in_redis_and_is_not_ours_is_counted_and_let_go(settled):
    world, recorder = settled
    read, heard = world.queue.read_outcomes, []
    unsubscribe = telemetry.subscribe(lambda event, fields: heard.append((event, fields)))

    def with_garbage(lane, reader, lease_us, limit):
        outcomes = read(lane, reader, lease_us, limit)
        garbage = [o._replace(event=event, execution_id="", detail={"why": "no record"})
                   for event in ("alien", "unreadable") for o in outcomes[:1]]
        return [*garbage, *outcomes]

    world.queue.read_outcomes = with_garbage
    recorder.turn(world.flow.monotonic_us())
    unsubscribe()

    assert [fields["what"] for event, fields in heard if event == "set_aside"] == ["alien", "unreadable"]
    assert "outcome_unknown" not in {event for event, _ in heard}
    assert "succeeded" in {state for _, state, *_ in history(world)}


def test_the_first_of_two_ends_counts_also_within_one_batch(settled):
    world, recorder = settled
    read, record, calls = world.queue.read_outcomes, world.store.record, []

    def twice(lane, reader, lease_us, limit):
        outcomes = read(lane, reader, lease_us, limit)
        ends = [o for o in outcomes if o.event == "succeeded"]
        return [*outcomes, *(o._replace(event="failed", entry_id=f"{o.entry_id}9", detail=ERROR) for o in ends)]

    world.queue.read_outcomes = twice
    world.store.record = lambda *args: calls.append(args) or record(*args)
    recorder.turn(world.flow.monotonic_us())

    assert len(calls) == 2
    assert [(state, attempt) for _, state, attempt, _ in history(world)] == [
        ("succeeded", 1), ("failed", 1), ("scheduled", 2)]


def test_an_idle_recorder_looks_less_often():
    world = World()
    recorder = world.recorder

    waits = [recorder.step(0) for _ in range(6)]

    assert waits[0] < waits[1] <= waits[-1] == LONGEST_WAIT_US
    assert SHORTEST_WAIT_US < LONGEST_WAIT_US


# -- rules ------------------------------------------------------------------------------------------------------------

def test_rule11_a_skip_of_an_older_generation_is_not_recorded():
    world = World()
    job = world.job(expression="10", anchor_us=us())
    world.working = False
    world.dispatcher()
    world.run_until(us() + SECOND)
    [delivery] = world.queue.draw(0, "chrono", 10, "w", LEASE_US)
    world.begin(0, delivery)
    world.recorder.turn(world.flow.monotonic_us())
    world._next_record = 10**18
    world.run_until(us() + 11 * SECOND)
    assert [o.event for o in world.queue.read_outcomes(0, "recorder", LEASE_US, 10)] == ["skipped"]

    world.store.raise_generation(0, 1, "r2")
    world.recorder.turn(world.flow.monotonic_us())

    assert world.store.rows(job)[1].state in ("scheduled", "queued")


def test_a_stale_holders_end_is_refused_and_the_last_grants_counts():
    world = World()
    job = world.job(**ONCE)
    world.working = False
    world.dispatcher()
    world.run_until(us() + SECOND)
    [stale] = world.queue.draw(0, "chrono", 10, "w1", LEASE_US)
    world.begin(0, stale)
    world.run(seconds=61)
    world.queue.reap(0, 5, 10)
    [fresh] = world.queue.draw(0, "chrono", 10, "w2", LEASE_US)

    words = [world.queue.settle(0, "w", [Settlement(Hold(d.execution_id, d.token), result, {})])
             for d, result in ((stale, "failed"), (fresh, "succeeded"))]
    world.run(seconds=1)

    assert words == [["refused"], ["settled"]]
    [row] = world.store.rows(job)
    assert (row.state, row.deliveries) == ("succeeded", 2)


def test_a_misfire_is_not_judged_for_a_retry():
    """Back-off may last longer than any grace; a dispatcher may have been away when it ended."""
    world, job = failing(retry=THRICE, misfire="skip", grace_seconds=1.0)
    world.run_until(us() + 5 * SECOND)
    world.kill("a")
    world.flow.advance(seconds=timedelta(days=2).total_seconds())
    world.answers.clear()
    world.dispatcher("b")
    world.run(seconds=10)

    assert [row.state for row in world.store.rows(job)] == ["failed", "succeeded"]


def test_an_outage_of_the_database_only_delays_history():
    world = World()
    job = world.job(**ONCE)
    world.dispatcher()
    record, left = world.store.record, [StoreUnavailable("gone")] * 3

    def away(*args):
        if left:
            raise left.pop()
        return record(*args)

    world.store.record = away
    world.run_until(us() + 5 * SECOND)

    assert world.states(job) == {"succeeded": 1}
