"""What Redis holds, looked at again and again; and what ran at once, from what the bodies wrote."""
from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping

import redis

from chrono_beat.redis.keys import Keys
from chrono_beat.testing import history as told

EVERY_SECONDS = 0.02


class Sampler(threading.Thread):
    """Counts, many times a second, the live leases of each tenant and the executions that hold a slot of it.

    Args:
        url: of the Redis database that chrono_beat has.
        prefix: of its keys.
        lanes: how many.
        caps: by tenant.
        tenants: by job.
    """

    def __init__(self, url: str, prefix: str, lanes: int, caps: Mapping[str, int], tenants: Mapping[str, str]) -> None:
        super().__init__(name="sampler", daemon=True)
        self.samples = 0
        self.violations: list[str] = []
        self.most_leases: Counter[str] = Counter()
        self.most_slots: Counter[str] = Counter()
        self._redis = redis.Redis.from_url(url, decode_responses=True)
        self._keys, self._lanes = Keys(prefix), range(lanes)
        self._caps, self._tenants = caps, tenants
        self._over = threading.Event()

    def stop(self) -> None:
        """End the sampling."""
        self._over.set()
        self.join()

    def run(self) -> None:
        """Sample until it is over."""
        while not self._over.wait(EVERY_SECONDS):
            leases, slots = self._look()
            self.samples += 1
            for name, found, most in (("leases", leases, self.most_leases), ("slots", slots, self.most_slots)):
                for tenant, count in found.items():
                    most[tenant] = max(most[tenant], count)
                    if count > self._caps[tenant]:
                        self.violations.append(f"{count} {name} of {tenant}, whose cap is {self._caps[tenant]}")

    def _look(self) -> tuple[Counter[str], Counter[str]]:
        """Return the live leases and the slots that are held, by tenant, all at one instant."""
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.time()
            for lane in self._lanes:
                pipe.zrange(self._keys.of(lane, "lease"), 0, -1, withscores=True)
                for tenant in self._caps:
                    pipe.scard(self._keys.of(lane, "run", tenant))
            (seconds, micros), *rest = pipe.execute()
        now_us, leases, slots = seconds * 1_000_000 + micros, Counter[str](), Counter[str]()
        for _ in self._lanes:
            held, *counts = rest[:1 + len(self._caps)]
            del rest[:1 + len(self._caps)]
            leases.update(self._tenants[id_.partition(":")[0]] for id_, until_us in held if until_us > now_us)
            slots.update(dict(zip(self._caps, counts, strict=True)))
        return leases, slots


def most_at_once(events: Iterable[object], tenants: Mapping[str, str]) -> Counter[str]:
    """Return how many bodies of each tenant ran at once at most; one that was killed is over at its last word.

    Args:
        events: in order.
        tenants: by job.
    """
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for event in events:
        if isinstance(event, told.Began | told.Stopped):
            tenant = tenants[event.execution_id.partition(":")[0]]
            now[tenant] += 1 if isinstance(event, told.Began) else -1
            most[tenant] = max(most[tenant], now[tenant])
    return most
