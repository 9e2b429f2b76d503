"""What is written into Redis by somebody else: set aside and counted, and in nobody's way."""
from __future__ import annotations

import pytest

from chrono_beat.core.deliveries import ALIEN, UNREADABLE
from chrono_beat.core.records import WorkerReport
from tests.contract.queues import LANE, LEASE, POOL, RedisBench, hold

pytestmark = pytest.mark.redis

STREAM = f"s:{POOL}:acme:5"
FIELDS = [{"foo": "bar"}, {"e": "no-such-execution", "p": "{"}, {"e": b"\xff\xfe", "p": b"\x80"}, {"e": "", "p": ""},
          {"a": "1", "b": "2", "c": "3"}]


@pytest.fixture
def bench(redis_url):
    bench = RedisBench(redis_url)
    yield bench
    bench.close()


def key(bench, *parts):
    return bench.store.keys.of(LANE, *parts)


@pytest.mark.parametrize("fields", FIELDS)
def test_an_entry_that_is_not_ours_is_removed_and_counted_and_the_draw_goes_on(bench, fields):
    bench.publish(bench.item("a"))
    bench.client.xadd(key(bench, STREAM), fields)
    bench.publish(bench.item("b"))

    drawn = bench.ids()

    assert [id_.partition(":")[0] for id_ in drawn] == ["a", "b"]
    assert bench.client.xlen(key(bench, STREAM)) == 2
    [outcome] = bench.record()
    assert (outcome.event, outcome.execution_id) == (ALIEN, "") and STREAM.split(":")[1] in outcome.detail["why"]
    assert bench.outcomes() == []


def test_a_copy_of_an_entry_runs_nothing_twice(bench):
    bench.publish(bench.item("a"))
    [(_, fields)] = bench.client.xrange(key(bench, STREAM))
    bench.client.xadd(key(bench, STREAM), fields)

    assert len(bench.ids()) == 1 and bench.ids() == []
    assert [outcome.event for outcome in bench.outcomes()] == [ALIEN]


@pytest.mark.parametrize("record", [b"garbage", b"", b"\xc1", b"\x90", b"\x81\xa5state\xa1q", b"\xff" * 100])
def test_a_record_that_cannot_be_read_stands_in_nobodys_way(bench, record):
    item = bench.item("a")
    bench.publish(item, bench.item("b"))
    bench.client.set(key(bench, "x:" + item.execution_id), record)

    drawn = bench.ids()
    again = bench.publish(item)
    bench.client.set(key(bench, "x:" + item.execution_id), record)
    bench.store.reap(LANE, 5, 100)

    assert [id_.partition(":")[0] for id_ in drawn] == ["b"]
    assert again == ["published"]                    # the database still has it: the audit publishes it anew


@pytest.mark.parametrize("name", ["front", "lease", "own"])
def test_names_of_nothing_are_passed_over(bench, name):
    bench.publish(bench.item("a"))
    delivery = bench.one()
    bench.store.give_back(LANE, "w1", [hold(delivery)])
    {
        "front": lambda: bench.client.lpush(key(bench, f"front:{POOL}:acme"), "nothing", b"\xff"),
        "lease": lambda: bench.client.zadd(key(bench, "lease"), {"nothing": 1, b"\xff": 1}),
        "own": lambda: bench.client.sadd(key(bench, "own:w1"), "nothing"),
    }[name]()

    assert bench.store.reap(LANE, 5, 100) == []
    assert bench.store.recover(LANE, "w1", []) == 0
    assert bench.one().execution_id == delivery.execution_id


OUTCOMES = [{"foo": "bar"}, {"event": "succeeded", "id": "x"}, {"event": b"\xff", "id": b"\xfe"}]


@pytest.mark.parametrize("fields", OUTCOMES)
def test_an_outcome_that_cannot_be_read_is_handed_on_as_such(bench, fields):
    bench.publish(bench.item("a"))
    bench.client.xadd(key(bench, "out"), fields)
    bench.settle(bench.one())

    events = [outcome.event for outcome in bench.record()]

    assert events == [UNREADABLE, "succeeded"] and bench.outcomes() == []


def test_a_heartbeat_that_cannot_be_read_hides_no_other(bench):
    for worker in ("a", "b", "c"):
        bench.store.report_worker(WorkerReport(worker, [POOL], [], 1, "solo", 0), LEASE)
    bench.client.set(bench.store.keys.anywhere("worker", "b"), b"\xff{")
    text = bench.client.get(bench.store.keys.anywhere("worker", "c"))
    bench.client.set(bench.store.keys.anywhere("worker", "c"), text[:-1] + b',"of_a_newer_release":1}')

    assert [report.worker for report in bench.store.workers()] == ["a", "c"]
