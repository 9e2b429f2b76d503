"""What only a real Redis can show of the queue: its keys, its slots, lost scripts, lost keys, broken connections."""
from __future__ import annotations

import os
import re
import socket
import threading

import pytest
import redis
from redis.crc import key_slot

from chrono_beat.core.config import Config
from chrono_beat.core.deliveries import Hold, Settlement
from chrono_beat.core.errors import QueueUnavailable
from chrono_beat.core.plain import PlainTask
from chrono_beat.core.records import WorkerReport
from chrono_beat.redis.keys import GLOBAL_KEYS, LANE_KEYS
from chrono_beat.redis.queue import RedisQueueStore
from chrono_beat.testing.servers import free_port
from tests.contract.queues import DAY, FAR, GENERATION, LANE, LEASE, SECOND, RedisBench, hold

pytestmark = pytest.mark.redis


@pytest.fixture
def bench(redis_url):
    bench = RedisBench(redis_url)
    yield bench
    bench.close()


def busy(bench):
    """Bring every kind of key into being."""
    store = bench.store
    bench.limit("a", max_running=1)
    bench.publish(*(bench.item(f"{t}{n}", tenant=t, priority=n) for t in "ab" for n in range(3)))
    bench.publish(bench.item("b0", number=2, tenant="b", attempt=2), bench.item("b1", number=2, tenant="b"))
    drawn = bench.draw(4)
    store.accept(LANE, "w1", [hold(d) for d in drawn])
    store.renew(LANE, "w1", [hold(d) for d in drawn], LEASE)
    store.give_back(LANE, "w1", [hold(drawn[0])])
    store.store_retry(LANE, hold(drawn[1]), {"countdown_us": 1})
    store.settle_and_draw(LANE, "w1", [Settlement(hold(drawn[1]), "retry", {})], "chrono", 2, -1)
    store.reap(LANE, 5, 10)
    store.void(LANE, "b2", 2)
    store.end_voided(LANE, bench.item("b2").execution_id, "b2", 2)
    store.still_held(LANE, hold(drawn[2]))
    store.recover(LANE, "w9", [])
    store.wake_worker("w1", [LANE], "{}")
    store.wake_dispatchers()
    store.report_worker(WorkerReport("w1", ["chrono"], [], 1, "solo", 0), LEASE)
    store.backlog(LANE, "chrono")
    store.acknowledge(LANE, bench.outcomes()[:1])
    bench.limit("c", paused=True)
    bench.publish(bench.item("c", tenant="c"), bench.item("d"), bench.item("d", number=2, attempt=2))
    bench.draw(20)
    bench.publish(bench.item("r", concurrency="replace"))
    bench.draw(20)
    bench.publish(bench.item("r", number=2, concurrency="replace", group="g", expires_us=bench.now() + LEASE))
    bench.publish(bench.item("e"), bench.item("f"), bench.item("g"), bench.item("h"))
    store.park(LANE, "w1", [(hold(delivery), "t.unknown") for delivery in bench.draw(2)])
    store.draw_parked(LANE, "w1", [parked.execution_id for parked in store.parked(LANE, 1)], LEASE)
    store.end_parked(LANE, LEASE, 10)
    store.give_back(LANE, "w1", [hold(bench.one())])
    store.publish_plain(LANE, [PlainTask("plain:t:1", "a", "chrono", 0, b"{}", countdown_us=FAR)])


# -- keys --------------------------------------------------------------------------------------------------------------


def test_every_key_that_a_script_touches_lies_in_the_slot_of_its_lane(bench):
    """Otherwise the scripts would run on one server and be refused by a cluster."""
    seen = []
    with redis.Redis.from_url(bench.url).monitor() as monitor:
        thread = threading.Thread(target=_listen, args=(monitor, seen))
        thread.start()
        busy(bench)
        bench.client.echo("end of the course")
        thread.join(20)

    in_scripts = [command for command in seen if command["client_type"] == "lua"]
    words = [word for command in in_scripts for word in command["command"].split()[1:]]
    keys = {word for word in words if re.match(r"chrono:\{", word)}
    assert len(in_scripts) > 100
    assert len(keys) > 20
    assert {key_slot(key.encode()) for key in keys} == {key_slot(b"0")}


def _listen(monitor, seen):
    while True:
        found = monitor.next_command()
        if "end of the course" in found["command"]:
            return
        seen.append(found)


def test_every_key_is_in_the_table_with_its_type(bench):
    busy(bench)
    patterns = [(re.compile(_shape("chrono:{0}:" + k.pattern)), k) for k in LANE_KEYS]
    patterns += [(re.compile(_shape("chrono:{all}:" + k.pattern)), k) for k in GLOBAL_KEYS]

    known = set()
    for name in (key.decode() for key in bench.client.keys("*")):
        found = [k for pattern, k in patterns if pattern.fullmatch(name)]
        assert len(found) == 1, name
        assert bench.client.type(name).decode() == found[0].type, name
        known.add(found[0].pattern)

    assert {k.pattern for k in (*LANE_KEYS, *GLOBAL_KEYS)} == known


def _shape(pattern):
    return "".join(".+" if part.startswith("<") else re.escape(part) for part in re.split(r"(<[^>]+>)", pattern))


def test_the_key_prefix_keeps_deployments_apart(bench):
    other = RedisQueueStore(bench.url, Config(key_prefix="other"))
    other.open_lane(LANE, 1, "x", 0)
    bench.publish(bench.item())
    assert other.draw(LANE, "chrono", 10, "w", LEASE) == []
    assert other.open_lane(LANE, 2, "x", 0)
    assert len(bench.draw()) == 1
    other.close()


def test_lanes_are_apart(bench):
    assert bench.store.open_lane(7, 3, "x", 0)
    bench.publish(bench.item())
    assert bench.store.draw(7, "chrono", 10, "w", LEASE) == []
    bench.store.publish(7, 3, bench.now() + FAR, [bench.item()])
    assert bench.store.draw(7, "chrono", 10, "w", LEASE)[0].token.startswith("3.")
    assert bench.store.wait_for_work([LANE, 7], ["chrono"], "w", 0.01) == []


def test_an_entry_id_that_comes_again_within_a_millisecond_is_not_passed_over(bench):
    """The stream is empty each time the lock is handed over, and a new one may begin with the id of the last."""
    for turn in range(200):
        bench.publish(*(bench.item(f"job{turn}", number=n, attempt=n) for n in (1, 2, 3)))
        for _ in range(3):
            bench.settle(bench.one())


def test_a_tenant_with_one_queued_execution_needs_little_memory(bench):
    """A bound, not a target: a first entry alone takes a stream node of the server's stream-node-max-bytes."""
    before = bench.client.info("memory")["used_memory"]
    bench.publish(*(bench.item(f"j{n}", tenant=f"t{n}", payload=b"x" * 600) for n in range(500)))
    assert (bench.client.info("memory")["used_memory"] - before) / 500 < 7000


# -- scripts and connections -------------------------------------------------------------------------------------------


def test_scripts_that_the_server_forgot_are_loaded_again(bench):
    bench.publish(bench.item("a"), bench.item("b"))
    bench.client.script_flush()
    first = bench.one()
    bench.client.script_flush()

    words, drawn = bench.store.settle_and_draw(
        LANE, "w1", [Settlement(hold(first), "succeeded", {})], "chrono", 5, LEASE, [hold(first)])

    assert words == ["settled"]
    assert [d.job_id for d in drawn] == ["b"]
    assert [event for event, _ in bench.events()] == ["started", "succeeded"]


def test_without_a_server_every_call_says_so():
    store = RedisQueueStore(f"redis://127.0.0.1:{free_port()}/0")
    calls = [
        store.now_us, lambda: store.lane_state(0), lambda: store.open_lane(0, 1, "", 0),
        lambda: store.publish(0, 1, 0, []), lambda: store.draw(0, "p", 1, "w", 1),
        lambda: store.settle_and_draw(0, "w", [Settlement(Hold("a", "1.1"), "lost", {})], "p", 1, 1),
        lambda: store.wait_for_work([0], ["p"], "w", 0.1), lambda: store.wake_worker("w", [0]),
        lambda: store.wait_for_dispatch(0.1), store.wake_dispatchers, store.workers,
        lambda: store.backlog(0, "p"), store.server_facts, lambda: store.read_outcomes(0, "r", 1, 1),
    ]
    for call in calls:
        with pytest.raises(QueueUnavailable):
            call()


def test_a_draw_whose_connection_broke_is_not_repeated_and_can_be_recovered(bench):
    """The server carries the draw out, the reply is lost: a second draw by the client would take too much."""
    bench.publish(bench.item("a"), bench.item("b"))
    with _CutsReplies(bench.url) as proxy:
        store = RedisQueueStore(proxy.url)
        store.now_us()
        assert store.draw(LANE, "chrono", 0, "w1", LEASE) == []          # the script is known now
        proxy.cut = True
        with pytest.raises(QueueUnavailable):
            store.draw(LANE, "chrono", 1, "w1", LEASE)
        store.close()

    assert [d.job_id for d in bench.draw()] == ["b"]
    assert bench.store.recover(LANE, "w1", [bench.item("b").execution_id]) == 1
    assert [d.job_id for d in bench.draw()] == ["a"]


class _CutsReplies:
    """Stands between a client and the server; once *cut* is set it passes a request on and drops the connection."""

    def __init__(self, url):
        found = re.match(r"redis://([^:/]+):(\d+)/(\d+)", url)
        self.target, self.cut = (found[1], int(found[2])), False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/{found[3]}"

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with client, socket.create_connection(self.target) as server:
            while request := client.recv(65536):
                server.sendall(request)
                reply = server.recv(65536)
                if self.cut:
                    return
                client.sendall(reply)


def test_a_forked_child_uses_connections_of_its_own(bench):
    bench.store.now_us()
    child = os.fork()
    if child == 0:
        try:
            bench.store.reset_after_fork()
            ok = bench.publish(bench.item("child")) == ["published"]
        except BaseException:
            ok = False
        os._exit(0 if ok else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert bench.publish(bench.item("parent")) == ["published"]
    assert sorted(d.job_id for d in bench.draw()) == ["child", "parent"]


def test_a_client_may_be_given_instead_of_a_url(bench):
    text_client = redis.Redis.from_url(bench.url, decode_responses=True)
    store = RedisQueueStore(text_client)
    bench.publish(bench.item(payload=b"\xff\x00"))
    assert store.draw(LANE, "chrono", 1, "w", LEASE)[0].payload == b"\xff\x00"
    store.close()


def test_every_dispatcher_hears_one_call(bench):
    others = [RedisQueueStore(bench.url) for _ in range(3)]
    bench.store.wake_dispatchers()
    assert all(other.wait_for_dispatch(0.01) for other in others)
    for other in others:
        other.close()


# -- invariant 4: whatever is lost in Redis ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["s", "places", "ready", "lock", "x", "floor", "run", "own", "lease"])
def test_inv04_a_key_that_was_deleted_loses_no_queued_execution(bench, kind):
    """The audit publishes open rows again; that must bring back what cannot be drawn any more, and add nothing."""
    items = [bench.item(n, tenant=n[0], priority=5) for n in ("a1", "a2", "b1")]
    bench.publish(*items)
    for name in bench.names():
        if name.split(":")[0] == kind:
            bench.client.delete(bench.key(name))

    bench.publish(*items)

    drawn = []
    for _ in range(3):
        drawn += bench.draw()
    assert sorted(d.job_id for d in drawn) == ["a1", "a2", "b1"]
    assert [bench.settle(d) for d in drawn] == ["settled"] * 3


def begin_stream(bench):
    """Let the ids of tenant a's stream begin at the same place each time, as they may within one millisecond."""
    stream = bench.key("s", "chrono", "a", "5")
    bench.client.delete(stream)
    bench.client.xdel(stream, bench.client.xadd(stream, {"e": "", "p": ""}, id="9000000000000-0"))


@pytest.mark.parametrize("again", [("a1", "a2"), ("a2", "a1")])
def test_inv04_copies_whose_stream_begins_anew_do_not_take_each_other_away(bench, again):
    """The entry id that a copy had may be another one's in the new stream."""
    items = {n: bench.item(n, tenant="a") for n in ("a1", "a2")}
    begin_stream(bench)
    bench.publish(*items.values())
    begin_stream(bench)

    bench.publish(*(items[n] for n in again))

    assert sorted(d.job_id for d in bench.draw()) == ["a1", "a2"]


def test_inv04_a_stream_that_begins_below_what_was_read_is_read_from_its_beginning(bench):
    items = [bench.item(f"a{n}", tenant="a") for n in range(5)]
    begin_stream(bench)
    bench.publish(*items[:3])
    drawn = bench.draw(2)
    begin_stream(bench)

    bench.publish(*items[3:])

    assert [d.job_id for d in bench.draw()] == ["a3", "a4"]
    bench.publish(items[2])
    assert bench.one().job_id == "a2"
    assert [bench.settle(d) for d in drawn] == ["settled", "settled"]


def test_a_tenant_whose_stream_ends_with_what_is_not_ours_leaves_the_line(bench):
    """However much of it there is: a tenant without entries must not stay, to be set aside beside its next entry."""
    bench.publish(bench.item(tenant="acme"))
    for n in range(300):
        bench.client.xadd(bench.key("s", "chrono", "acme", "5"), {"e": f"none-{n}", "p": ""})

    assert [bench.settle(d) for d in bench.draw(2)] == ["settled"]

    assert not {"ready:chrono", "floor:chrono", "places:chrono"} & set(bench.names())


@pytest.mark.parametrize("plain", [False, True])
def test_inv08_the_slot_of_a_run_whose_record_was_deleted_is_free_once_its_lease_is_over(bench, plain):
    """Nobody can say any more whose slot it was; with a cap of one nothing of the tenant would ever run again."""
    bench.limit(max_running=1)
    first, second = bench.item("a1"), bench.item("a2")
    if plain:
        bench.store.publish_plain(LANE, [PlainTask("plain:a:1", "acme", "chrono", 5, b"{}")])
    else:
        bench.publish(first)
    delivery = bench.one()
    bench.publish(second)
    assert bench.draw() == []
    bench.client.delete(bench.key("x", delivery.execution_id))
    bench.settle(delivery)

    bench.store.tidy(LANE, 100)
    assert bench.draw() == [], "its body may still run"
    bench.advance(LEASE + SECOND)
    bench.store.reap(LANE, 5, 100)
    bench.store.tidy(LANE, 100)

    assert bench.one().execution_id == second.execution_id
    assert bench.client.scard(bench.key("run", "acme")) == 1


@pytest.mark.parametrize("kind", ["tenant", "held"])
def test_inv08_a_tenant_that_was_set_aside_comes_back_where_nothing_says_that_it_may(bench, kind):
    """As when the limits of a deleted one have gone by themselves."""
    bench.limit(paused=True)
    bench.publish(bench.item())
    assert bench.draw() == []
    bench.client.delete(bench.key(kind, "acme"))
    if kind == "held":
        bench.store.tidy(LANE, 100)
        assert bench.draw() == [], "it is paused"
        bench.limit()

    bench.store.tidy(LANE, 100)

    assert bench.wakes()
    bench.settle(bench.one())
    bench.record()
    bench.draw()
    bench.advance(DAY)
    assert bench.leftovers() == []


@pytest.mark.parametrize("kind", ["s", "front", "places", "ready", "x", "run", "own", "lease"])
def test_inv04_a_key_that_was_deleted_loses_no_delivered_execution(bench, kind):
    items = [bench.item(n, tenant=n[0]) for n in ("a1", "a2", "b1", "b2")]
    bench.publish(*items)
    drawn = bench.draw()
    bench.store.give_back(LANE, "w1", [hold(d) for d in drawn[:2]])
    for name in bench.names():
        if name.split(":")[0] == kind:
            bench.client.delete(bench.key(name))

    ended = set()
    for _ in range(12):
        bench.publish(*(item for item in items if item.job_id not in ended))
        bench.advance(LEASE + SECOND)
        bench.store.reap(LANE, 10, 100)
        for delivery in bench.draw():
            assert bench.settle(delivery) == "settled"
        ended |= {outcome.job_id for outcome in bench.record()}

    assert ended == {"a1", "a2", "b1", "b2"}


def test_inv04_an_outcome_that_was_deleted_before_it_was_recorded_is_run_again(bench):
    item = bench.item()
    bench.publish(item)
    bench.settle(bench.one())
    bench.client.delete(bench.key("out"))

    assert bench.publish(item) == ["published"]
    assert bench.one().deliveries == 2


def test_inv04_waiters_whose_lock_or_queue_was_deleted_come_forward(bench):
    waiting = [bench.item(number=n, attempt=2) for n in (2, 3)]
    bench.publish(bench.item(number=1), *waiting)
    running = bench.one()
    bench.client.delete(bench.key("lockwait", "job"))
    assert bench.publish(*waiting) == ["waiting", "waiting"]
    bench.settle(running)
    assert bench.one().execution_id == waiting[0].execution_id
    bench.client.delete(bench.key("lock", "job"))
    assert bench.publish(waiting[1]) == ["published"]


# -- invariant 9: two dispatchers at once ------------------------------------------------------------------------------


def test_inv09_r152_two_dispatchers_at_the_same_moment_never_make_two_of_a_job_active(bench):
    """A thousand rounds: one publishes the schedule's occurrence, the other a manual run, as soon as both are there."""
    rounds = 1_000
    stores = [RedisQueueStore(bench.url) for _ in range(2)]
    gate = threading.Barrier(3, timeout=30)
    replies = [[], []]

    def publish(which):
        for n in range(rounds):
            item = bench.item("job", n, kind=("schedule", "manual")[which], execution_id=f"job:2026{n:04d}T09000{which}Z:1")
            gate.wait()
            replies[which] += stores[which].publish(LANE, 1, item.due_us + 3600 * SECOND, [item]).replies
            gate.wait()

    threads = [threading.Thread(target=publish, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    drawn = []
    for n in range(rounds):
        gate.wait()
        early = bench.draw()                              # at times before the second one is published
        gate.wait()
        held = early + bench.draw()
        assert len(held) == 1, n
        drawn += held
        bench.settle(held[0])
    for thread, store in zip(threads, stores, strict=True):
        thread.join()
        store.close()

    pairs = {tuple(pair) for pair in zip(*replies, strict=True)}
    assert pairs <= {("published", "skipped"), ("skipped", "published")}
    assert len({d.execution_id for d in drawn}) == rounds


@pytest.mark.parametrize("phase", ["queued", "running", "given back", "waiting", "settled"])
@pytest.mark.parametrize("kind", [
    "s", "places", "ready", "capped", "held", "floor", "front", "lock", "lockwait", "x", "run", "own", "lease", "ends", "out",
    "reader", "wake", "tenant",
])
def test_inv04_whichever_key_is_deleted_each_execution_ends_once(bench, kind, phase):
    """Only what lacks is published again, as the audit does; a key a time, while executions are in every state."""
    bench.limit(max_running=3)
    items = [bench.item(n, expires_us=bench.now() + 100 * DAY) for n in ("a1", "a2", "a3", "a4", "a5")]
    waiter = bench.item("a1", 2, attempt=2, kind="retry", expires_us=bench.now() + 100 * DAY)
    bench.publish(*items, *([waiter] if phase == "waiting" else []))
    rows = {item.execution_id: item for item in (*items, *([waiter] if phase == "waiting" else []))}
    drawn = bench.draw(5) if phase != "queued" else []
    if phase == "given back":
        bench.store.give_back(LANE, "w1", [hold(d) for d in drawn])
        drawn = []
    if phase == "settled":
        for delivery in drawn:
            bench.settle(delivery)
    victims = [name for name in bench.names() if name.split(":")[0] == kind]
    if kind == "x":
        victims = victims[:1]                                # one record; without any of them it is another generation
    for name in victims:
        bench.client.delete(bench.key(name))

    ended = []
    for turn in range(20):
        lost = bench.store.lacking(LANE, GENERATION, list(rows))
        bench.publish(*(rows[key] for key in lost))
        if turn == 2:
            for delivery in drawn:                           # bodies end meanwhile
                bench.settle(delivery)
        for delivery in bench.draw(3, "w2"):
            assert bench.settle(delivery, worker="w2") == "settled"
        for outcome in bench.record():
            if outcome.event != "started" and rows.pop(outcome.execution_id, None):
                ended.append(outcome.execution_id)
        bench.advance(10 * SECOND)
        bench.store.reap(LANE, 10, 100)
        if not rows:
            break

    assert not rows, (rows.keys(), bench.names())
    assert len(set(ended)) == len(ended)
    bench.advance(LEASE + SECOND)
    bench.store.reap(LANE, 10, 100)
    bench.draw(3)
    bench.advance(DAY)
    # Of a record that was deleted nobody knows where its entry stood: that stays until the next generation.
    assert kind == "x" or not [name for name in bench.leftovers() if not name.startswith("x:")]


def test_inv04_scripts_that_the_server_forgot_are_loaded_again(bench):
    """SCRIPT FLUSH, a restart, a failover: nothing of a call has run that is answered NOSCRIPT."""
    bench.publish(bench.item("a"))
    delivery = bench.one()
    for call in (
        lambda: bench.store.lacking(LANE, GENERATION, [delivery.execution_id]),
        lambda: bench.store.renew(LANE, "w1", [hold(delivery)], LEASE),
        lambda: bench.store.recorded(LANE, str(GENERATION), [hold(delivery)]),
        lambda: bench.store.bring_back(LANE, "w1", [], LEASE),
        lambda: bench.settle(delivery),
        lambda: bench.publish(bench.item("b")),
        lambda: bench.draw(),
    ):
        bench.client.script_flush()
        call()
    assert [event for event, _ in bench.events()] == ["succeeded"]


def test_r129_workers_that_come_and_go_under_ever_new_names_leave_no_keys(bench):
    """Pods: each generation draws, is told something, dies with what it holds, and never comes back."""
    store = bench.store
    sizes = []
    for generation in range(50):
        worker = f"pod-{generation}@host#{generation:06x}"
        store.report_worker(WorkerReport(worker, ["chrono"], ["t"], 1, "prefork", 0), 15 * SECOND)
        bench.publish(bench.item("a", number=generation), bench.item("b", number=generation))
        for delivery in bench.draw(2, worker):
            store.accept(LANE, worker, [hold(delivery)])
        store.wake_worker(worker, [LANE], "{}")
        bench.advance(2 * 3_600 * SECOND)
        store.reap(LANE, 1000, 100)
        for delivery in bench.draw(10, "heir"):
            assert bench.settle(delivery, worker="heir") == "settled"
        bench.record()
        bench.advance(120 * SECOND)
        bench.draw()
        store.report_worker(WorkerReport("heir", ["chrono"], ["t"], 1, "prefork", 0), 15 * SECOND)
        sizes.append(len(bench.names()))

    assert sizes[-1] <= sizes[4]
    assert [name for name in bench.names() if name.split(":")[0] in ("own", "x", "s", "front", "run")] == []


def test_only_a_tenant_with_limits_of_its_own_has_a_key(bench):
    """And each such key goes by itself where nobody tells the limits again, as after the tenant was deleted by SQL."""
    hour, key = 3600 * SECOND, bench.key("tenant", "acme")

    bench.limit(at=bench.now() - 2 * hour)
    assert not bench.client.exists(key)
    bench.limit(weight=3, at=bench.now() - hour)
    assert bench.client.pttl(key) == pytest.approx(8 * 86_400_000, abs=10_000)
    bench.limit()
    bench.limit(weight=3, at=bench.now() - hour)
    assert bench.client.hget(key, "weight") == b"1", "an older change that comes late is no news"

    bench.advance(hour + SECOND)
    assert not bench.client.exists(key)
