"""What many tenants cost the draw and Redis' memory: ``python -m benchmarks.tenants --json``.

One hundred tenants have work. Beside them are none, many idle ones with limits of their own, or many paused ones with work
waiting. The same draws are made in each of these, and Redis counts the commands that its scripts ran.
"""
from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from benchmarks.machine import yardstick
from chrono_beat.core.records import PublishItem, TenantLimits
from chrono_beat.redis.queue import RedisQueueStore

LANE, POOL, LEASE_US = 0, "chrono", 60_000_000
ACTIVE, EACH, CREDIT = 100, 10, 10
BATCH = 250
PAYLOAD_BYTES = 700
MEASURING = ("info", "config", "evalsha", "script")


def names(prefix: str, count: int) -> list[str]:
    """Return slugs of tenants."""
    return [f"{prefix}{number:06d}" for number in range(count)]


def executions(store: RedisQueueStore, tenants: list[str], each: int = 1) -> Iterator[PublishItem]:
    """Yield *each* due executions of every tenant, each of a job of its own."""
    due_us = store.now_us() - 1
    for number in range(each):
        for tenant in tenants:
            job = f"{tenant}-{number}"
            yield PublishItem(f"{job}:20260102T090000Z:1", job, tenant, 1, 1, "schedule", POOL, 5, due_us, None, "forbid",
                              b"x" * PAYLOAD_BYTES)


def publish(store: RedisQueueStore, items: Iterator[PublishItem]) -> None:
    """Publish all of them, in batches."""
    batch: list[PublishItem] = []
    for item in items:
        batch.append(item)
        if len(batch) == BATCH:
            store.publish(LANE, 1, store.now_us() + LEASE_US, batch)
            batch = []
    if batch:
        store.publish(LANE, 1, store.now_us() + LEASE_US, batch)


def tell(store: RedisQueueStore, tenants: list[str], *, weight: int = 2, paused: bool = False) -> None:
    """Give tenants limits of their own."""
    now_us = store.now_us()
    store.set_tenants(LANE, [TenantLimits(tenant, weight, 20, paused, now_us) for tenant in tenants])


def commands(client: Any) -> dict[str, int]:
    """Return how often each command ran since the last reset, those left out that measure."""
    found = {name.removeprefix("cmdstat_"): row["calls"] for name, row in client.info("commandstats").items()}
    return {name: calls for name, calls in sorted(found.items()) if not name.startswith(MEASURING)}


def draws_beside(client: Any, store: RedisQueueStore, *, idle: int = 0, paused: int = 0) -> dict[str, Any]:
    """Draw all the work of the active tenants.

    Args:
        client: a ``redis.Redis`` of a server of its own; it is emptied.
        store: on the same server.
        idle: further tenants, without work and with limits of their own.
        paused: further tenants, paused and with one execution waiting each.

    Returns:
        ``commands`` by name, ``drawn`` executions, ``us_per_draw``.
    """
    client.flushdb()
    store.open_lane(LANE, 1, store.lane_state(LANE).replication_id, 0)
    tell(store, names("idle", idle))
    aside = names("paused", paused)
    tell(store, aside, paused=True)
    publish(store, executions(store, aside))
    store.draw(LANE, POOL, 1, "w", LEASE_US)              # the first draw of a lane looks for delayed tasks
    while client.exists(store.keys.of(LANE, "ready", POOL)):
        store.draw(LANE, POOL, 1000, "w", LEASE_US)       # the first look at a paused tenant sets it aside
    active = names("active", ACTIVE)
    tell(store, active)
    publish(store, executions(store, active, EACH))
    client.config_resetstat()
    began, drawn = time.perf_counter(), 0
    for _ in range(ACTIVE * EACH // CREDIT):
        drawn += len(store.draw(LANE, POOL, CREDIT, "w", LEASE_US))
    seconds = time.perf_counter() - began
    return {"commands": commands(client), "drawn": drawn, "us_per_draw": round(seconds * 1e6 * CREDIT / (ACTIVE * EACH))}


def bytes_per_tenant(client: Any, store: RedisQueueStore, count: int) -> dict[str, int]:
    """Return what one tenant takes: idle with the defaults, idle with limits of its own, with one queued execution."""
    client.flushdb()
    store.open_lane(LANE, 1, store.lane_state(LANE).replication_id, 0)
    some = names("some", count)

    def used() -> int:
        return int(client.info("memory")["used_memory"])

    start = used()
    store.set_tenants(LANE, [TenantLimits(tenant, 1, 20, False, 1) for tenant in some])
    idle = used()
    publish(store, executions(store, some))
    queued = used()
    tell(store, some)
    return {"idle": max(0, idle - start) // count, "one_queued": (queued - idle) // count,
            "own_limits": (used() - queued) // count}


def main() -> None:
    """Measure and print; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tenants", type=int, default=100_000)
    parser.add_argument("--json", action="store_true", help="print nothing but the last line")
    options = parser.parse_args()
    import redis

    from chrono_beat.testing.servers import RedisServer

    found: dict[str, Any] = {"tenants": options.tenants, "payload_bytes": PAYLOAD_BYTES, "yardstick_ms": yardstick()}
    for node_bytes in (1024, 4096):
        with ExitStack() as stack:
            server = stack.enter_context(RedisServer(options={"stream-node-max-bytes": node_bytes}))
            client, store = redis.Redis.from_url(server.url), RedisQueueStore(server.url)
            stack.callback(client.close)
            stack.callback(store.close)
            if node_bytes == 1024:
                draws_beside(client, store)                # scripts are loaded, memory is warm
                found["alone"] = draws_beside(client, store)
                found["idle"] = draws_beside(client, store, idle=options.tenants)
                found["paused"] = draws_beside(client, store, paused=options.tenants)
            found[f"bytes_per_tenant_{node_bytes}"] = bytes_per_tenant(client, store, min(options.tenants, 20_000))
    if not options.json:
        for name, value in found.items():
            print(f"{name}: {value}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
