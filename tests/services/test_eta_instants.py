"""ETA tasks on the whole path but for Celery: from the due index to one run, whatever happens meanwhile."""
import json

import pytest

from chrono_beat.core.eta import EtaTask, job_id_of
from chrono_beat.core.ids import partition_of
from chrono_beat.services.audit import Audit
from chrono_beat.services.relay import Relay
from chrono_beat.services.repairs import Repairs
from tests.services.test_relay import Broker
from tests.services.world import LEASE_US, MINUTE, SECOND, World

TASK_ID = "6a0f2b0e-7d0a-4f3c-9a64-0b1e5d2c8f11"
HOUR = 60 * MINUTE
REST = {"pool": "chrono", "priority": 5, "embed": {"callbacks": None, "errbacks": None, "chain": None, "chord": None},
        "headers": {"lang": "py", "root_id": "r", "eta": None}, "properties": {"reply_to": ""}}


class Many(World):
    """A world with many workers that look for work at the same time."""

    workers = 8

    def __init__(self, **config):
        super().__init__(**config)
        self.dispatcher()
        for part in (Audit, Repairs):
            self.add(part(self.store, self.queue, self.flow, self.config))

    def later(self, countdown_us=6 * HOUR, task_id=TASK_ID, options=REST, **fields):
        partition = partition_of("acme", job_id_of(task_id), self.config.partitions)
        return self.store.add_eta_task(EtaTask(**{
            "task_id": task_id, "tenant": "acme", "partition": partition, "task": "shop.expire", "args": "[1]",
            "kwargs": "{}", "options": options if isinstance(options, str) else json.dumps(options), "retries": 0,
            "countdown_us": countdown_us, **fields}))

    def work(self):
        self._next_work = self.flow.monotonic_us() + 50_000
        for number in range(self.workers):
            drawn = self.queue.draw(0, self.config.default_pool, 1, f"w{number}", LEASE_US)
            for delivery in drawn:
                self.begin(0, delivery)
                self.finish(0, delivery)

    def skip(self, seconds):
        """Let hours pass at once, for everybody, and then some seconds step by step."""
        self.flow.advance(us=round((seconds - 5) * SECOND))
        self.run(5)

    def row(self, key):
        return self.store.executions[key]


def in_redis(world):
    return list(world.queue.lanes[0].copies)


def test_r119_six_hours_ahead_nothing_is_in_redis_until_due_and_eight_workers_run_it_once():
    world = Many()
    world.run(5)
    key = world.later()

    for _ in range(6):
        world.skip(3600 - 5)
        assert in_redis(world) == [] and world.runs == []
    world.run(29)
    assert in_redis(world) == [] and world.runs == []
    world.run(5)

    [(run, at_us)] = world.runs
    row = world.row(key)
    assert run == key and row.due_us <= at_us < row.due_us + SECOND
    assert (row.state, row.deliveries) == ("succeeded", 1)
    assert world.headers[key]["id"] == TASK_ID and world.headers[key]["root_id"] == "r"
    world.skip(3 * 3600)
    assert world.run_counts() == {key: 1}


def test_inv03_and_04_it_survives_a_flush_while_it_waits_and_while_it_is_queued():
    world = Many()
    waiting, queued = world.later(), world.later(2 * HOUR, "another")
    world.skip(3600)
    world.flush_redis()
    world.skip(3600 - 10)
    world.working = False
    world.run(20)
    assert in_redis(world) == [queued]
    world.flush_redis()
    world.working = True

    world.run(70)                                         # quarantine: something may have been running
    world.skip(4 * 3600)
    world.run(30)

    assert world.run_counts() == {queued: 1, waiting: 1}
    assert {world.row(key).state for key in (waiting, queued)} == {"succeeded"}


def test_inv02_another_dispatcher_takes_it_over_and_it_runs_once():
    world = Many()
    key = world.later(HOUR)
    world.skip(3600 - 30)
    world.kill("a")
    world.dispatcher("b")

    world.run(60)

    assert world.run_counts() == {key: 1} and world.row(key).state == "succeeded"


def test_r120_its_own_retry_of_two_hours_is_one_more_attempt_with_the_same_message():
    world = Many()
    key = world.later(HOUR)
    asked = {"countdown_us": 2 * HOUR, "args": "[2]", "kwargs": "{}", "retries": 1, "max_retries": 3}
    world.answers["shop.expire"] = (lambda delivery: ("retry", {"retry": asked}) if len(world.runs) == 1
                                    else ("succeeded", {}), {})

    world.skip(3600 - 5)
    world.run(10)
    assert in_redis(world) == [] or world.row(key).state == "failed"
    world.flush_redis()
    world.skip(2 * 3600)
    world.run(70)

    again = key[:-1] + "2"
    assert [run for run, _ in world.runs] == [key, again]
    assert (world.row(again).state, world.row(again).kind) == ("succeeded", "retry")
    assert (world.headers[again]["id"], world.headers[again]["retries"]) == (TASK_ID, 1)


def test_a_plain_failure_is_a_dead_letter_as_nobody_asked_for_another_try():
    world = Many()
    key = world.later(HOUR)
    world.answers["shop.expire"] = ("failed", {"error": {"type": "ValueError", "message": "no"}})

    world.skip(3600 - 5)
    world.run(15)

    assert world.run_counts() == {key: 1} and (world.row(key).state, world.row(key).reason) == ("dead", "error")


def test_one_that_was_cancelled_while_it_waited_never_runs():
    world = Many()
    key = world.later(HOUR)
    world.run(60)
    world.store.executions[key].cancel_requested_us = world.now_us()

    world.skip(3600 - 5)
    world.run(15)

    assert world.runs == [] and world.row(key).state == "cancelled"


def test_what_goes_to_a_stock_queue_is_handed_over_once():
    world = Many()
    broker = Broker()
    relay = Relay(world.store, world.queue, broker, world.flow, world.config, member="a")
    key = world.later(HOUR, options={**REST, "pool": "", "send": {"queue": "mail"}})

    world.skip(3600 - 5)
    world.run(15)
    for _ in range(3):
        relay.turn(world.flow.monotonic_us())
    world.run(1)

    assert broker.messages == [("mail", TASK_ID)]
    assert (world.row(key).state, world.row(key).reason, world.row(key).result) == (
        "succeeded", "handed_over", "handed over to mail")


@pytest.mark.parametrize("fields", [
    {"options": "nonsense"}, {"options": "[]"}, {"options": {**REST, "pool": None}}, {"options": {**REST, "embed": []}},
    {"options": {**REST, "pool": ""}}, {"args": "{}"}, {"kwargs": "[1"}, {"task": ""},
    {"args": json.dumps(["x" * 300_000])},
])
def test_a_row_that_makes_no_message_is_a_dead_letter_and_stops_no_other(fields):
    """Somebody may have written it with SQL."""
    world = Many()
    broken, other = world.later(HOUR, **fields), world.later(HOUR, "another")

    world.skip(3600 - 5)
    world.run(15)

    assert world.run_counts() == {other: 1}
    assert (world.row(broken).state, world.row(broken).reason) == ("dead", "invalid") and world.row(broken).error
