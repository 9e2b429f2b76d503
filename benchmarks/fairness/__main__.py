"""Does one tenant's flood delay the others?

    python -m benchmarks.fairness --json              # 200,000 at once, some five minutes
    python -m benchmarks.fairness --flood 2000 --seconds 5 --tenants 5 --no-peer

Tenants b1, b2 … have a job each that is due every second; tenant c has more 20 ms tasks than the worker's slots can do,
so no slot is ever idle. That goes on for so many seconds; then once more from the instant on at which tenant a has all
its executions due at once. The flood is the only difference. What is told is how late the b's bodies started, by the
clock of the host, on which all runs. The same load then goes through one FIFO queue of stock Celery, the peer.

Exit status 1: something of the b's was lost.
"""
from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from benchmarks.fairness.sites import MOST_AT_ONCE, ChronoSite, StockSite, lateness_ms
from benchmarks.machine import yardstick
from chrono_beat.testing.patience import eventually

CAP = 1_000
"""max_running of every tenant: nothing but the draw decides whose turn it is."""

SETTLE_SECONDS = 5.0
LOOK_EVERY_SECONDS = 0.25
BUSY_A_SLOT = 50
"""Tasks of 20 ms that a slot does in a second, at most."""

LOADED_A_SECOND = 3_000
"""What a dispatcher loads ahead in a second on a slow machine."""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flood", type=int, default=200_000, help="executions of tenant a that are due at once")
    parser.add_argument("--tenants", type=int, default=50, help="tenants b1, b2 …, each with one execution a second")
    parser.add_argument("--seconds", type=int, default=60, help="length of each of the two phases")
    parser.add_argument("--peer-seconds", type=int, default=15, help="length of each of the peer's two phases")
    parser.add_argument("--no-peer", action="store_true", help="leave stock Celery out")
    parser.add_argument("--pool", choices=("prefork", "threads"), default="prefork", help="the workers' pool")
    parser.add_argument("--slots", type=int, default=4, help="its size")
    parser.add_argument("--warm-up", type=int, default=10, help="seconds of load before a phase without the flood")
    parser.add_argument("--lead", type=int, default=10, help="seconds before the flood, beside those for loading it")
    parser.add_argument("--spare", type=int, default=20, help="seconds for which the busy tenant has work in reserve")
    parser.add_argument("--json", action="store_true", help="only the JSON object, as the last line")
    args = parser.parse_args()
    for name in ("flood", "tenants", "seconds", "peer_seconds", "slots", "warm_up", "lead", "spare"):
        if not 1 <= getattr(args, name) <= MOST_AT_ONCE:
            parser.error(f"--{name.replace('_', '-')} must be 1 to {MOST_AT_ONCE:,}")
    return args


def measure(args: argparse.Namespace, site: ChronoSite) -> dict[str, Any]:
    """Measure chrono_beat: a phase without the flood, and one that begins with it."""
    lead = args.lead + args.flood / LOADED_A_SECOND
    # What is due before the lane is first opened would have it wait for a lease, as after a lost memory.
    site.start(args.pool, args.slots)
    for slug in ("a", "c", *(f"b{number}" for number in range(args.tenants))):
        site.add_tenant(slug, CAP)
    begin = int(time.time()) + 1
    for number in range(args.tenants):
        site.add_job(f"b{number}", "probe", "fairness.probe", 1, begin + number / args.tenants)
    needed = args.slots * BUSY_A_SLOT * round(2 * args.seconds + args.warm_up + lead + args.spare)
    site.put("c", needed, begin)
    site.wait_until("c", needed, "queued", "running", "succeeded")
    calm = int(time.time()) + args.warm_up
    time.sleep(calm + args.seconds - time.time())
    due = int(time.time() + lead)
    site.put("a", args.flood, due)
    time.sleep(due - time.time())
    ahead = args.flood - int(site.sql(
        "SELECT count(*) AS n FROM chrono_execution WHERE tenant = 'a' AND state = 'scheduled' AND holder_epoch = 0")[0]["n"])
    done = site.count("c", "succeeded")
    time.sleep(due + args.seconds - time.time())
    ended = due + args.seconds
    flood_done, busy_done = site.count("a", "succeeded"), site.count("c", "succeeded") - done
    published = args.flood - site.count("a", "scheduled")
    await_probes(site.started, calm, ended, args.tenants * (ended - calm))
    without = lateness_ms(site.started, calm, calm + args.seconds)
    during = lateness_ms(site.started, due, ended)
    return {
        "without": figures(without), "while_it_is_claimed": figures(lateness_ms(site.started, calm + args.seconds, due)),
        "with": figures(during), "p50_ratio": ratio(without, during, 0.5), "p99_ratio": ratio(without, during, 0.99),
        "expected_a_phase": args.tenants * args.seconds,
        "lost": 2 * args.tenants * args.seconds - len(without) - len(during),
        "flood": {"executions": args.flood, "loaded_ahead": ahead, "published_meanwhile": published,
                  "done_meanwhile": flood_done},
        "busy_tenant_done_meanwhile": busy_done,
    }


def measure_peer(args: argparse.Namespace, site: ChronoSite) -> dict[str, Any]:
    """Measure one shared queue of stock Celery under the same load."""
    for process in site.processes:
        process.kill_all()
    peer = StockSite(site)
    peer.start(args.pool, args.slots)
    seconds = args.peer_seconds
    calm = int(time.time()) + args.warm_up
    peer.send_probes(args.tenants, calm, seconds)
    time.sleep(calm + seconds - time.time())
    await_probes(peer.started, calm, calm + seconds, args.tenants * seconds)
    peer.flood(args.flood)
    flooded = time.time()
    peer.send_probes(args.tenants, flooded, seconds)
    time.sleep(flooded + seconds - time.time())
    await_probes(peer.started, flooded, flooded + seconds, args.tenants * seconds)
    peer.stop()
    without = lateness_ms(peer.started, calm, calm + seconds)
    during = lateness_ms(peer.started, flooded, flooded + seconds)
    missing = args.tenants * seconds - len(during)
    return {
        "seconds": seconds, "without": figures(without), "with": figures(during), "not_started_when_stopped": missing,
        "p99_ratio": ratio(without, during, 0.99) if not missing else None,
        "waiting_ahead_of_the_last_one": int(peer.redis.llen("everybody")),
    }


def await_probes(path: Path, start: float, end: float, expected: int) -> None:
    """Give the probes that were due in a span `SETTLE_SECONDS` more to start; those that do not are reported as such."""
    with contextlib.suppress(AssertionError):
        eventually(lambda: len(lateness_ms(path, start, end)) >= expected, SETTLE_SECONDS, step=LOOK_EVERY_SECONDS)


def figures(late: list[float]) -> dict[str, float | int | None]:
    """Return what is told of lateness: how many started, and percentiles in ms."""
    return {"started": len(late), **{f"p{round(share * 100)}_ms": percentile(late, share) for share in (0.5, 0.9, 0.99, 1)}}


def percentile(late: list[float], share: float) -> float | None:
    return round(late[min(len(late) - 1, int(len(late) * share))], 1) if late else None


def ratio(without: list[float], during: list[float], share: float) -> float | None:
    before, after = percentile(without, share), percentile(during, share)
    return round(after / before, 3) if before and after is not None else None


def main() -> int:
    args = parse_arguments()
    with contextlib.closing(ChronoSite()) as site:
        result = measure(args, site)
        if not args.no_peer:
            result["stock_celery"] = measure_peer(args, site)
    result |= {"pool": args.pool, "slots": args.slots, "seconds": args.seconds, "tenants": args.tenants,
               "yardstick_ms": yardstick(), "load1": round(os.getloadavg()[0], 1)}
    if not args.json:
        for name, value in result.items():
            print(f"{name:28} {value}")
    print(json.dumps(result))
    return 1 if result["lost"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
