"""How fast the way from the due index into the streams is.

    python -m benchmarks.path --jobs 100000 --json              # due in one second, claimed ahead
    python -m benchmarks.path --jobs 100000 --cold --json       # the dispatcher starts when all is overdue already
    python -m benchmarks.path --steady 1000 --seconds 20 --json
    python -m benchmarks.path --idle 1000000 --seconds 30 --json

Measured on a PostgreSQL and a Redis started for this run, with the dispatchers in processes of their own. Publish
lateness is read from the streams afterwards: an entry's id is Redis' clock at the moment it became readable, so nothing
is sampled and nothing is disturbed. The rate of claims is read from the dates of their commits, over the middle eight
tenths of the rows, so neither the start of a process nor the wait for the due second counts.
"""
import argparse
import json
import os
import time
from contextlib import ExitStack
from typing import Any

from benchmarks.machine import PARTITIONS, Machine, shares, yardstick

SLOWEST_CLAIMS = 2_500                   # a second; how long before the due second the dispatchers start
LEAST_LEAD_SECONDS = 12.0
GIVE_UP_SECONDS = 180.0
POLL_SECONDS = 0.5
SETTLE_SECONDS = 5.0                     # from the start of a dispatcher until it counts as idle

# Ids grow with time, as those of new jobs do.
INSERT = """
INSERT INTO chrono_job
       (id, tenant, name, partition, schedule_kind, expression, anchor_at, task, kwargs, next_run_at, updated_at)
SELECT (lpad(to_hex(1764600000000 + n), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8'
            || substr(md5(n::text), 4, 15))::uuid,
       't' || (n %% %(tenants)s), 'job ' || n, abs(hashint4(n)) %% %(partitions)s, 'interval', %(period)s,
       to_timestamp(%(due)s + (n - 1) * %(apart)s), 'bench.nothing',
       '{"number": ' || n || ', "text": "' || repeat('x', 100) || '"}', to_timestamp(%(due)s + (n - 1) * %(apart)s), now()
FROM generate_series(1, %(jobs)s) AS n
"""
CLAIM_DATES = """
SELECT extract(epoch FROM at)::float8, sum(rows) OVER (ORDER BY at) FROM (
    SELECT pg_xact_commit_timestamp(xmin) AS at, count(*) AS rows FROM chrono_execution GROUP BY 1) AS commits ORDER BY 1
"""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000, help="jobs due in the same second")
    parser.add_argument("--tenants", type=int, default=1_000, help="tenants they belong to")
    parser.add_argument("--dispatchers", type=int, default=1, help="dispatcher processes")
    parser.add_argument("--cold", action="store_true", help="start the dispatchers when everything is due already")
    parser.add_argument("--steady", type=int, metavar="RATE", help="jobs due each second, evenly, instead of all at once")
    parser.add_argument("--idle", type=int, metavar="JOBS", help="jobs that are due tomorrow: what does waiting cost?")
    parser.add_argument("--seconds", type=int, default=20, help="length of --steady and --idle")
    parser.add_argument("--json", action="store_true", help="only the JSON object, as the last line")
    args = parser.parse_args()
    for name in ("jobs", "tenants", "dispatchers", "steady", "idle", "seconds"):
        if (value := getattr(args, name)) is not None and value < 1:
            parser.error(f"--{name} must be at least 1")
    return args


def query(sql: str, values: dict[str, object] | None = None) -> list[tuple[Any, ...]]:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return list(cursor.fetchall()) if cursor.description else []


def load(jobs: int, tenants: int, due: float, apart: float = 0.0) -> None:
    """Put the jobs into the due index, by SQL, and leave the database as one that has had them for a while."""
    query(INSERT, {"jobs": jobs, "tenants": tenants, "partitions": PARTITIONS, "due": due, "apart": apart, "period": "86400"})
    query("VACUUM (ANALYZE) chrono_job")
    query("CHECKPOINT")


def executions() -> int:
    return int(query("SELECT count(*) FROM chrono_execution")[0][0])


def wait_for_claims(jobs: int, until: float) -> bool:
    while executions() < jobs:
        if time.time() > until:
            return False
        time.sleep(POLL_SECONDS)
    return True


def claims_per_second() -> float | None:
    """Return the rate between the first and the last tenth of the rows; None for too few commits to tell."""
    dates = query(CLAIM_DATES)
    jobs = int(dates[-1][1]) if dates else 0
    inside = [(at, int(rows)) for at, rows in dates if jobs * 0.1 <= rows <= jobs * 0.9]
    if len(inside) < 2:
        return None
    return round((inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0]))


def wait_for_streams(client: Any, jobs: int, until: float) -> list[bytes]:
    """Wait until all entries are readable; return the streams' keys."""
    while True:
        streams = list(client.scan_iter(match="chrono:{*}:s:*", count=5_000))
        pipeline = client.pipeline(transaction=False)
        for stream in streams:
            pipeline.xlen(stream)
        if sum(pipeline.execute()) >= jobs or time.time() > until:
            return streams
        time.sleep(POLL_SECONDS)


def lateness_ms(client: Any, streams: list[bytes]) -> list[float]:
    """Return how long after its due time each entry became readable, sorted."""
    from chrono_beat.core.ids import parse_execution_id

    pipeline = client.pipeline(transaction=False)
    for stream in streams:
        pipeline.xrange(stream)
    late = []
    for entries in pipeline.execute():
        for entry_id, fields in entries:
            due_us = parse_execution_id(fields[b"e"].decode()).scheduled_us
            # An entry's id has whole milliseconds, so a due time within one is rounded down as well.
            late.append(float(int(entry_id.split(b"-")[0]) - due_us // 1000))
    return sorted(late)


def measure_path(args: argparse.Namespace, machine: Machine) -> dict[str, Any]:
    """Measure a burst, or a steady rate."""
    from redis import Redis

    client = Redis.from_url(machine.redis.url)
    jobs = args.steady * args.seconds if args.steady else args.jobs
    loading = 4 + jobs / 5_000
    due = float(int(time.time() + loading + (0 if args.cold else lead_seconds(args))))
    load(jobs, args.tenants, due, 1 / args.steady if args.steady else 0.0)
    if args.cold:
        time.sleep(max(0.0, due + 1 - time.time()))
    machine.start_dispatchers(args.dispatchers)
    started = machine.cpu_seconds()
    claimed = None
    if not args.cold and not args.steady and wait_for_claims(jobs, due - 0.5):
        claimed = machine.cpu_seconds()
        rate = claims_per_second()
        time.sleep(max(0.0, due - 0.2 - time.time()))
    before = machine.cpu_seconds()
    if args.steady:
        time.sleep(max(0.0, due + args.seconds - time.time()))
    streams = wait_for_streams(client, jobs, max(due, time.time()) + GIVE_UP_SECONDS)
    after = machine.cpu_seconds()
    late = lateness_ms(client, streams)
    base_ms = (started["at"] - due) * 1000 if args.cold else 0.0     # cold: counted from the start of the dispatcher
    shifted = [value - base_ms for value in late]
    return {
        "jobs": jobs, "tenants": args.tenants, "dispatchers": args.dispatchers, "cold": args.cold, "steady": args.steady,
        "readable": len(late), "early": sum(1 for value in late if value < 0),
        "publish_lateness_ms": {name: percentile(shifted, share) for name, share in (("p50", 0.5), ("p99", 0.99))},
        "first_readable_ms": percentile(shifted, 0), "last_readable_ms": percentile(shifted, 1),
        "claims_per_s": rate if claimed else None,
        "claimed_before_due_s": round(due - claimed["at"], 1) if claimed else None,
        "claim_cpu_s": shares(started, claimed) if claimed else None, "publish_cpu_s": shares(before, after),
        "dispatcher_rss_mb": machine.dispatchers_rss_mb(),
    }


def lead_seconds(args: argparse.Namespace) -> float:
    """Return how long before the first due time the dispatchers start."""
    return LEAST_LEAD_SECONDS + (0 if args.steady else args.jobs / SLOWEST_CLAIMS)


def measure_idle(args: argparse.Namespace, machine: Machine) -> dict[str, Any]:
    """Measure what a dispatcher costs while nothing is due."""
    load(args.idle, args.tenants, time.time() + 86_400)
    machine.start_dispatchers(args.dispatchers)
    time.sleep(SETTLE_SECONDS)
    before = machine.cpu_seconds()
    time.sleep(args.seconds)
    used = shares(before, machine.cpu_seconds())
    return {
        "jobs": args.idle, "dispatchers": args.dispatchers, "idle_cpu_s": used,
        "idle_share_of_a_core": round((used["dispatchers"] + used["postgres"]) / used["wall"], 4),
        "dispatcher_rss_mb": machine.dispatchers_rss_mb(),
    }


def percentile(values: list[float], share: float) -> float | None:
    return round(values[min(len(values) - 1, int(len(values) * share))], 1) if values else None


def main() -> int:
    args = parse_arguments()
    with ExitStack() as stack:
        # A burst that takes long to claim, on a slow or busy machine, is to be claimed ahead all the same.
        machine = Machine(stack, HORIZON=min(600.0, max(60.0, lead_seconds(args) + 5)))
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        result = measure_idle(args, machine) if args.idle else measure_path(args, machine)
    result["yardstick_ms"] = yardstick()
    result["load1"] = round(os.getloadavg()[0], 1)
    if not args.json:
        for name, value in result.items():
            print(f"{name:22} {value}")
    print(json.dumps(result))
    return 0 if args.idle or (result["readable"] == result["jobs"] and not result["early"]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
