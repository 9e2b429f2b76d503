"""The relay: message targets reach the user's broker once, and nothing is lost where it is away."""

import json

import pytest

from chrono_beat import telemetry
from chrono_beat.core.errors import BrokerUnavailable, InvalidInput, Problem, QueueUnavailable, StoreUnavailable
from chrono_beat.services import relay as relay_module
from chrono_beat.services.reaper import Reaper
from chrono_beat.services.relay import Relay
from chrono_beat.services.watch import Watch
from tests.services.world import NINE, SECOND, World, us

ONCE = {"schedule_kind": "once", "expression": NINE.isoformat(), "pool": "chrono.relay", "target_kind": "message",
        "queue": "mail", "task": "shop.mail"}


class Broker:
    """A MessageSender that keeps what it got; *away*, *unsure* and *refusing* say what goes wrong."""

    def __init__(self):
        self.messages, self.away, self.unsure, self.refusing, self.after = [], False, False, False, None

    def connect(self):
        if self.away:
            raise BrokerUnavailable("away", perhaps_sent=False)

    def send(self, queue, payload):
        if self.refusing:
            raise InvalidInput(Problem("queue", "no such queue"))
        if self.away:
            raise BrokerUnavailable("away", perhaps_sent=False)
        self.messages.append((queue, json.loads(payload)["headers"]["id"]))
        if self.after:
            self.after()
        if self.unsure:
            raise BrokerUnavailable("broke off", perhaps_sent=True)

    def close(self):
        pass


class Desk:
    """A world in which jobs are due and a relay takes turns when told."""

    def __init__(self, jobs=1, **config):
        self.world = World(**config)
        self.jobs = [self.world.job(f"mail {number}", **ONCE) for number in range(jobs)]
        self.world.dispatcher()
        self.broker = Broker()
        self.relay = self.another()
        self.world.run_until(us() + SECOND)

    def another(self, name="a"):
        return Relay(self.world.store, self.world.queue, self.broker, self.world.flow, self.world.config, member=name)

    def turn(self, relay=None, times=1):
        for _ in range(times):
            (relay or self.relay).turn(self.world.flow.monotonic_us())
        self.world.run(seconds=1)

    def rows(self):
        return [(row.state, row.reason, row.deliveries) for row in self.world.store.rows()]


@pytest.fixture
def heard():
    events = []
    unsubscribe = telemetry.subscribe(lambda event, fields: events.append(event))
    yield events
    unsubscribe()


def test_of_a_shadow_nothing_is_sent_and_its_firing_is_recorded():
    desk = Desk(jobs=1)
    desk.world.job("shadow", **ONCE | {"target_kind": "shadow"})
    desk.world.run(seconds=5)

    desk.turn()

    assert len(desk.broker.messages) == 1
    assert sorted(row[1:] for row in desk.rows()) == [("handed_over", 1), ("shadow", 1)]


def test_what_is_due_is_handed_over_and_has_succeeded_then():
    desk = Desk(jobs=3)

    desk.turn()

    assert sorted(desk.broker.messages) == sorted(("mail", f"{job}:20260102T090000Z") for job in desk.jobs)
    assert desk.rows() == [("succeeded", "handed_over", 1)] * 3
    assert all(row.started_us and row.result == "handed over to mail" for row in desk.world.store.rows())


def test_only_so_many_are_drawn_at_once(monkeypatch):
    monkeypatch.setattr(relay_module, "BATCH", 2)
    desk = Desk(jobs=5)

    desk.turn()
    assert len(desk.broker.messages) == 2
    desk.turn(times=2)
    assert desk.rows() == [("succeeded", "handed_over", 1)] * 5


def test_while_the_broker_is_away_nothing_is_drawn_and_nothing_is_lost():
    desk = Desk(jobs=2)
    desk.broker.away = True

    waits = [desk.relay.turn(desk.world.flow.monotonic_us()) for _ in range(4)]
    assert waits == sorted(waits) and waits[0] < waits[-1], "each look comes later"
    assert [row.state for row in desk.world.store.rows()] == ["queued"] * 2
    desk.broker.away = False
    desk.turn()
    assert desk.rows() == [("succeeded", "handed_over", 1)] * 2


def test_what_was_not_sent_when_the_broker_goes_is_given_back_and_sent_once():
    desk = Desk(jobs=3)
    desk.broker.after = lambda: setattr(desk.broker, "away", True)

    desk.turn()
    assert len(desk.broker.messages) == 1
    desk.broker.away, desk.broker.after = False, None
    desk.turn(times=2)
    assert len(desk.broker.messages) == len({*desk.broker.messages}) == 3
    assert sorted(desk.rows()) == [("succeeded", "handed_over", 1)] * 3, "given back is not handed out"


def test_inv05_where_nobody_knows_it_is_sent_again_under_the_same_id_and_counted(heard):
    desk = Desk()
    desk.broker.unsure = True

    desk.turn()
    desk.broker.unsure = False
    desk.turn(times=2)

    assert desk.broker.messages == [("mail", f"{desk.jobs[0]}:20260102T090000Z")] * 2
    assert desk.rows() == [("succeeded", "handed_over", 2)]
    assert heard.count("relay_uncertain") == 1


def test_inv06_never_knowing_ends_at_the_cap_of_reaps():
    desk = Desk(reap_cap=2)
    desk.broker.unsure = True

    for _ in range(6):
        desk.turn()

    assert [row[:2] for row in desk.rows()] == [("dead", "reap_cap")]
    assert len(desk.broker.messages) == 3


def test_a_relay_that_dies_between_send_and_settle_repeats_under_the_same_id():
    desk = Desk()
    desk.world.add(Reaper(desk.world.queue, desk.world.flow, desk.world.config))

    def dies():
        raise MemoryError

    desk.broker.after = dies
    desk.relay.turn(desk.world.flow.monotonic_us())
    desk.broker.after = None
    desk.world.run(seconds=62)
    desk.turn(desk.another("b"))

    assert desk.broker.messages == [("mail", f"{desk.jobs[0]}:20260102T090000Z")] * 2
    assert desk.rows() == [("succeeded", "handed_over", 2)]


def test_what_was_sent_is_settled_when_redis_is_back_and_not_sent_again():
    desk = Desk()
    desk.broker.after = lambda: setattr(desk.world.queue, "unavailable", True)

    desk.relay.turn(desk.world.flow.monotonic_us())
    desk.broker.after = None
    desk.world.queue.unavailable = False
    desk.turn(times=2)

    assert len(desk.broker.messages) == 1
    assert desk.rows() == [("succeeded", "handed_over", 1)]


def test_inv04_what_redis_forgot_after_the_settle_is_told_again_and_not_sent_again():
    desk = Desk()
    desk.relay.turn(desk.world.flow.monotonic_us())
    desk.world.flush_redis()

    for _ in range(90):
        desk.turn()

    assert len(desk.broker.messages) == 1
    assert [row[:2] for row in desk.rows()] == [("succeeded", "handed_over")]


def test_a_database_that_is_away_gives_all_back(monkeypatch):
    desk = Desk(jobs=2)
    stock = desk.world.store.message_queues

    def away(job_ids):
        raise StoreUnavailable("away")

    monkeypatch.setattr(desk.world.store, "message_queues", away)
    desk.turn()
    assert desk.broker.messages == []
    monkeypatch.setattr(desk.world.store, "message_queues", stock)
    desk.turn()
    assert desk.rows() == [("succeeded", "handed_over", 1)] * 2


def test_a_draw_whose_answer_was_lost_is_taken_back(monkeypatch):
    desk = Desk()
    stock = desk.world.queue.draw

    def lost(*args):
        stock(*args)
        raise QueueUnavailable("broke off")

    monkeypatch.setattr(desk.world.queue, "draw", lost)
    desk.relay.turn(desk.world.flow.monotonic_us())
    monkeypatch.setattr(desk.world.queue, "draw", stock)
    desk.turn()
    assert desk.rows() == [("succeeded", "handed_over", 1)]


def test_rule10_what_was_not_begun_within_the_window_goes_back():
    desk = Desk(jobs=3)
    desk.broker.after = lambda: desk.world.flow.advance(us=3 * SECOND)

    desk.turn()
    assert len(desk.broker.messages) == 1
    desk.broker.after = None
    desk.turn(times=2)
    assert len({*desk.broker.messages}) == len(desk.broker.messages) == 3


def test_what_can_never_be_sent_is_a_dead_letter_and_stops_no_other():
    desk = Desk(jobs=2)
    desk.world.store.jobs[desk.jobs[0]].queue = ""

    desk.turn()
    assert sorted(row[:2] for row in desk.rows()) == [("dead", "invalid"), ("succeeded", "handed_over")]
    assert "has none any more" in "".join(row.error for row in desk.world.store.rows())


def test_a_refused_message_is_a_dead_letter():
    desk = Desk()
    desk.broker.refusing = True

    desk.turn()
    [row] = desk.world.store.rows()
    assert (row.state, row.reason) == ("dead", "invalid") and "no such queue" in row.error


def test_jobs_with_a_message_target_are_flagged_only_where_there_is_no_relay(heard):
    world = World()
    world.job("mail", **ONCE)
    watch = Watch(world.store, world.queue, world.flow, world.config)
    relay = Relay(world.store, world.queue, Broker(), world.flow, world.config, member="a")

    for _ in range(10):
        watch.turn(world.flow.monotonic_us())
        world.flow.advance(us=5 * SECOND)
    assert "no_worker" in heard
    relay.turn(world.flow.monotonic_us())
    watch.turn(world.flow.monotonic_us())
    assert "worker_found" in heard


def test_a_relay_that_leaves_says_so():
    desk = Desk()
    desk.turn()
    assert [report.worker for report in desk.world.queue.workers()] == ["relay@a"]

    assert desk.relay.drain(desk.world.flow.monotonic_us()) is None
    assert desk.world.queue.workers() == []
