"""QueueStore in memory and on Redis, behind the same few handles for the contract suite.

Time does not pass by itself as far as a test can tell: leases are long, and a test moves the clock. On Redis that is
the lane's ``clock_offset_us`` for the scripts, and shorter expiries for the keys.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import redis

from chrono_beat.core.config import Config
from chrono_beat.core.deliveries import Delivery, Hold, Outcome, Settlement
from chrono_beat.core.records import PublishItem, TenantLimits
from chrono_beat.redis.queue import RedisQueueStore
from chrono_beat.testing.clock import ManualClock
from chrono_beat.testing.memory_queue import MemoryQueueStore

LANE, GENERATION, POOL = 0, 1, "chrono"
SECOND = 1_000_000
DAY = 86_400 * SECOND
LEASE = 60 * SECOND
FAR = 3650 * DAY

# What may stay when everything is over, by the beginning of the name behind the lane's tag.
STAYS = ("meta", "out", "reader", "tenant:", "void:", "wake:", "ctl:")


class Bench:
    """A store with an open lane, and short ways to say what happens to it."""

    store: Any

    def now(self) -> int:
        return self.store.lane_state(LANE).now_us

    def advance(self, us: int) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        raise NotImplementedError

    def item(self, job: str = "job", number: int = 1, **values: Any) -> PublishItem:
        """An execution that has just become due; ``number`` tells occurrences of a job apart."""
        attempt = values.get("attempt", 1)
        fields: dict[str, Any] = {
            "execution_id": f"{job}:20260102T0900{number:02d}Z:{attempt}", "job_id": job, "tenant": "acme",
            "version": 1, "attempt": 1, "kind": "schedule", "pool": POOL, "priority": 5,
            "due_us": self.now() - SECOND, "expires_us": None, "concurrency": "forbid",
            "payload": b'{"job": "%s"}' % job.encode(),
        }
        return PublishItem(**{**fields, **values})

    def publish(self, *items: PublishItem, generation: int = GENERATION, valid_until_us: int | None = None) -> Any:
        until = self.now() + FAR if valid_until_us is None else valid_until_us
        result = self.store.publish(LANE, generation, until, items)
        return result.refused or list(result.replies)

    def draw(self, credit: int = 10, worker: str = "w1", pool: str = POOL, lease_us: int = LEASE) -> list[Delivery]:
        return self.store.draw(LANE, pool, credit, worker, lease_us)

    def one(self, worker: str = "w1", **values: Any) -> Delivery:
        drawn = self.draw(1, worker, **values)
        assert len(drawn) == 1, "nothing to draw"
        return drawn[0]

    def ids(self, credit: int = 10, **values: Any) -> list[str]:
        return [delivery.execution_id for delivery in self.draw(credit, **values)]

    def settle(self, delivery: Delivery, result: str = "succeeded", worker: str = "w1", **detail: Any) -> str:
        return self.store.settle(LANE, worker, [Settlement(hold(delivery), result, detail)])[0]

    def limit(
        self, tenant: str = "acme", *, weight: int = 1, max_running: int = 20, paused: bool = False, at: int = 0,
    ) -> None:
        self.store.set_tenants(LANE, [TenantLimits(tenant, weight, max_running, paused, at or self.now())])

    def outcomes(self) -> list[Outcome]:
        """Read all outcomes and leave them there."""
        found = self.store.read_outcomes(LANE, "reader", LEASE, 10_000)
        assert found is not None
        return found

    def events(self) -> list[tuple[str, str]]:
        return [(outcome.event, outcome.execution_id) for outcome in self.outcomes()]

    def record(self) -> list[Outcome]:
        """Read and acknowledge all outcomes."""
        outcomes = self.outcomes()
        self.store.acknowledge(LANE, outcomes)
        return outcomes

    def lapse(self, delivery: Delivery) -> None:
        """Let the delivery's lease run out and be reaped."""
        self.advance(LEASE + SECOND)
        assert delivery.execution_id in [r.execution_id for r in self.store.reap(LANE, 5, 100)]

    def leftovers(self) -> list[str]:
        """What is left of executions, tenants and leases."""
        raise NotImplementedError

    def wakes(self, pool: str = POOL) -> bool:
        """Take the wake token of a pool, if there is one."""
        raise NotImplementedError


class MemoryBench(Bench):
    def __init__(self, config: Config | None = None) -> None:
        self.clock = ManualClock()
        self.store = MemoryQueueStore(self.clock, config)
        assert self.store.open_lane(LANE, GENERATION, self.store.lane_state(LANE).replication_id, 0)

    def advance(self, us: int) -> None:
        self.clock.advance(us=us)

    def flush(self) -> None:
        self.store.flush()

    def leftovers(self) -> list[str]:
        self.store.lane_state(LANE)
        lane = self.store.lanes[LANE]
        places = ("copies", "streams", "fronts", "leases", "running", "owned", "locks", "waiters", "stops",
                  "ends")
        left = [f"{place}:{key}" for place in places for key in getattr(lane, place)]
        for pool, line in lane.lines.items():
            left += [f"{pool}:{tenant}" for tenant in (*line.ready, *line.capped)]
        return left

    def wakes(self, pool: str = POOL) -> bool:
        lane = self.store.lanes[LANE]
        woken = pool in lane.wake
        lane.wake.discard(pool)
        return woken


class RedisBench(Bench):
    def __init__(self, url: str, config: Config | None = None) -> None:
        self.url = url
        self.client = redis.Redis.from_url(url)
        self.client.flushdb()
        self.store = RedisQueueStore(url, config)
        assert self.store.open_lane(LANE, GENERATION, self.store.lane_state(LANE).replication_id, 0)

    def close(self) -> None:
        self.store.close()
        self.client.close()

    def key(self, *parts: str) -> str:
        return self.store.keys.of(LANE, *parts)

    def names(self) -> list[str]:
        """All keys of the lane, without what they have in common."""
        base = self.store.keys.base(LANE)
        return sorted(name.decode().removeprefix(base) for name in self.client.keys(base.replace("{", "\\{") + "*"))

    def advance(self, us: int) -> None:
        self.client.hincrby(self.store.keys.meta(LANE), "clock_offset_us", us)
        for name in self.client.keys("*"):
            left_ms = self.client.pttl(name)
            if left_ms >= 0:
                self.client.pexpire(name, left_ms - us // 1000)          # 0 or less removes it

    def flush(self) -> None:
        self.client.flushdb()

    def leftovers(self) -> list[str]:
        return [name for name in self.names() if not name.startswith(STAYS)]

    def wakes(self, pool: str = POOL) -> bool:
        return self.client.lpop(self.key("wake", pool)) is not None


def hold(delivery: Delivery) -> Hold:
    return Hold(delivery.execution_id, delivery.token)


def queue_bench(request: Any) -> Iterator[Bench]:
    """The fixture of every contract test; its parameter says which store."""
    if request.param == "memory":
        yield MemoryBench()
        return
    bench = RedisBench(request.getfixturevalue("redis_url"))
    yield bench
    bench.close()
