"""A deployment in memory whose time passes only from one step of a service to the next.

Stores and hosts have clocks of their own on one flow of time. `World.run` always takes the step that is due next, so
hours pass in moments and every run is the same. Nothing runs in threads.
"""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta

from chrono_beat.core.config import Config
from chrono_beat.core.deliveries import Hold, Settlement
from chrono_beat.core.ids import to_us
from chrono_beat.services.dispatcher import Dispatcher
from chrono_beat.services.recorder import Recorder
from chrono_beat.testing.clock import ManualClock
from chrono_beat.testing.memory_jobs import MemoryJob, MemoryJobStore
from chrono_beat.testing.memory_queue import MemoryQueueStore

NINE = datetime(2026, 1, 2, 9, tzinfo=UTC)
SECOND = 1_000_000
MINUTE = 60 * SECOND
WORK_EVERY_US = 50_000
LEASE_US = 60 * SECOND


def us(instant=NINE, **later):
    return to_us(instant + timedelta(**later))


class SkewedClock:
    """A clock that is off by so many microseconds, on another one's flow of time."""

    def __init__(self, flow, off_us=0):
        self.flow, self.off_us = flow, off_us

    def wall_us(self):
        return self.flow.wall_us() + self.off_us

    def monotonic_us(self):
        return self.flow.monotonic_us()

    def wait(self, event, timeout_us):
        raise AssertionError("services are stepped here; nothing sleeps")


class Member:
    """A dispatcher, and when each of its services wants its next step."""

    def __init__(self, world, name, off_us):
        self.world, self.name = world, name
        self.clock = SkewedClock(world.flow, off_us)
        self.dispatcher = Dispatcher(world.store, world.queue, self.clock, world.config, member=name)
        self.services = [s for s in self.dispatcher.services if s is not self.dispatcher.waker]
        self.next_us = dict.fromkeys(self.services, 0)
        self.paused = self.leaving = False

    def due_us(self):
        """Return when its next step is due, and whose it is."""
        best = None
        for service in self.services:
            at = 0 if service._wake.is_set() and not service.failures else self.next_us[service]
            if best is None or at < best[0]:
                best = (at, service)
        return best

    def step(self, service):
        now = self.clock.monotonic_us()
        service._wake.clear()
        if self.leaving and service is self.dispatcher.planner:
            wait = service.drain(now)
            if wait is None:
                self.world.kill(self.name)
                return
        else:
            wait = service.turn(now)
        self.next_us[service] = now + wait


class World:
    """Stores, dispatchers, a recorder and a worker that finishes all it draws at once.

    Args:
        start: what the servers' clocks show at the beginning.
        config: settings that differ from the defaults; 8 partitions unless said.
        redis_off_us: by how much Redis' clock is ahead of the database's, in microseconds.
    """

    def __init__(self, start=NINE - timedelta(seconds=90), *, redis_off_us=0, **config):
        self.config = Config(**{"partitions": 8, **config})
        self.flow = ManualClock(wall_us=to_us(start))
        self.redis_clock = SkewedClock(self.flow, redis_off_us)
        self.store = MemoryJobStore(self.flow, partitions=self.config.partitions, lanes=self.config.lanes)
        self.queue = MemoryQueueStore(self.redis_clock, self.config)
        self.members = {}
        self.recorder = Recorder(
            self.store, self.queue, self.flow, self.config, reader="recorder", chance=lambda: 0.5)
        self.working = True
        self.runs = []                # (execution id, the database's µs when its body began)
        self.headers = {}             # execution id -> headers of its message
        self.answers = {}             # task name -> (result, detail) of a body; "succeeded" without
        self.published_at = {}        # execution id -> the database's µs when it first could be read
        self._companions = {}         # other services -> when each wants its next step
        self._next_work = self._next_record = 0
        self._watch_publishes()

    def _watch_publishes(self):
        stock = self.queue.publish

        def publish(lane, generation, valid_until_us, items):
            result = stock(lane, generation, valid_until_us, items)
            for item, reply in zip(items, result.replies, strict=False):
                if reply == "published":
                    self.published_at.setdefault(item.execution_id, []).append(self.flow.wall_us())
            return result

        self.queue.publish = publish

    # -- what tests do ----------------------------------------------------------------------------------------------

    def now_us(self):
        return self.flow.wall_us()

    def dispatcher(self, name="a", *, off_us=0):
        self.members[name] = Member(self, name, off_us)
        return self.members[name].dispatcher

    def add(self, service):
        """Let a service that belongs to no dispatcher take its steps, too."""
        self._companions[service] = 0
        return service

    def job(self, name="job", **fields):
        """Add a job, by default every minute from nine o'clock on."""
        fields.setdefault("next_run_us", us())
        fields.setdefault("anchor_us", us())
        return self.store.add_job(MemoryJob(name=name, **fields))

    def kill(self, name):
        """End a dispatcher as SIGKILL does."""
        del self.members[name]

    def stop(self, name):
        """Ask a dispatcher to leave, as SIGTERM does."""
        self.members[name].leaving = True
        self.members[name].dispatcher.planner.wake()

    def flush_redis(self):
        """Let Redis forget everything, as FLUSHALL does."""
        self.queue.flush()

    def become_another_server(self):
        """Let a replica take over from Redis' primary."""
        self.queue.repl += "+"

    def pause(self, name):
        """Let a dispatcher stand still, as SIGSTOP does."""
        self.members[name].paused = True

    def resume(self, name):
        self.members[name].paused = False

    def run_until(self, instant_us):
        """Let time pass until the database's clock shows an instant."""
        self.run(us=instant_us - self.now_us())

    def run(self, seconds=0, us=0):
        """Let time pass, step by step."""
        end = self.flow.monotonic_us() + round(seconds * SECOND) + us
        while True:
            due = [(*m.due_us(), m) for m in self.members.values() if not m.paused]
            at, service, member = min(due, key=lambda entry: entry[0], default=(end + 1, None, None))
            other = min(self._companions, key=self._companions.get, default=None)
            at = min(at, self._next_work if self.working else end + 1, self._next_record,
                     end + 1 if other is None else self._companions[other])
            if at > end:
                break
            self._pass_to(at)
            now = self.flow.monotonic_us()
            if self._next_record <= now:
                self._next_record = now + max(self.recorder.turn(now), 1)
            elif self.working and self._next_work <= now:
                self.work()
            elif other is not None and self._companions[other] <= now:
                self._companions[other] = now + max(other.turn(now), 1)
            elif member is not None:
                member.step(service)
        self._pass_to(end)

    def _pass_to(self, monotonic_us):
        self.flow.advance(us=max(0, monotonic_us - self.flow.monotonic_us()))

    def work(self):
        """Draw all there is, run it, settle it."""
        self._next_work = self.flow.monotonic_us() + WORK_EVERY_US
        if self.queue.unavailable:
            return
        for lane in range(self.config.lanes):
            known = self.queue.lanes.get(lane)
            if known is not None and known.replication_id != self.queue.repl:
                continue                                   # another server: workers wait until it is opened anew
            while drawn := self.queue.draw(lane, self.config.default_pool, 100, "w", LEASE_US):
                for delivery in drawn:
                    self.begin(lane, delivery)
                    self.finish(lane, delivery)

    def begin(self, lane, delivery):
        headers = json.loads(delivery.payload)["headers"]
        self.headers[delivery.execution_id] = headers
        self.runs.append((delivery.execution_id, self.now_us()))
        self.queue.accept(lane, "w", [Hold(delivery.execution_id, delivery.token)])

    def finish(self, lane, delivery):
        hold = Hold(delivery.execution_id, delivery.token)
        result, detail = self.answers.get(self.headers[delivery.execution_id]["task"], ("succeeded", {}))
        if callable(result):
            result, detail = result(delivery)
        if result == "retry":
            self.queue.store_retry(lane, hold, detail["retry"])
            detail = {}
        self.queue.settle(lane, "w", [Settlement(hold, result, detail)])

    # -- what tests look at -----------------------------------------------------------------------------------------

    def owners(self):
        return Counter(lease.owner for lease in self.store.partitions())

    def run_counts(self):
        return Counter(execution_id for execution_id, _ in self.runs)

    def lateness_us(self):
        """Return for each run the microseconds from its due time to its body."""
        return {execution_id: at - self.store.executions[execution_id].due_us for execution_id, at in self.runs}

    def states(self, job_id=None):
        return Counter(row.state for row in self.store.rows(job_id))

    def assert_each_ran_once(self):
        """Every row has ended well, every one that ran did so once, and none early."""
        assert set(self.run_counts().values()) <= {1}, self.run_counts().most_common(3)
        assert all(late >= 0 for late in self.lateness_us().values())
        due = [row for row in self.store.rows() if row.due_us < self.now_us() - SECOND]
        left = [row for row in due if row.state not in ("succeeded", "missed")]
        assert not left, left[:3]
