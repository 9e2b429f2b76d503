"""How fast the way from the due index into the streams is: N jobs due in one second.

    python -m benchmarks.path --jobs 100000 --json
    python -m benchmarks.path --jobs 100000 --cold --json      # the dispatcher starts when all is overdue already

Measured on a PostgreSQL and a Redis started for this run, with the dispatchers in processes of their own. Publish
lateness is read from the streams afterwards: an entry's id is Redis' clock at the moment it became readable, so nothing
is sampled and nothing is disturbed. Claims per second are the growth of the execution table between its first and its
last tenth.
"""
import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Any

PARTITIONS = 64
LOAD_SECONDS_PER_JOB = 1 / 8000          # how long before the due second the dispatchers start, to claim ahead
LEAST_LEAD_SECONDS = 12.0
MOST_LEAD_SECONDS = 55.0                 # within the horizon
GIVE_UP_SECONDS = 180.0
POLL_SECONDS = 0.25

INSERT = """
INSERT INTO chrono_job
       (id, tenant, name, partition, schedule_kind, expression, anchor_at, task, kwargs, next_run_at, updated_at)
SELECT gen_random_uuid(), 't' || (n %% %(tenants)s), 'job ' || n, n %% %(partitions)s, 'interval', '3600',
       to_timestamp(%(due)s), 'bench.nothing', '{"number": ' || n || ', "text": "' || repeat('x', 100) || '"}',
       to_timestamp(%(due)s), now()
FROM generate_series(1, %(jobs)s) AS n
"""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000, help="jobs due in the same second")
    parser.add_argument("--tenants", type=int, default=1_000, help="tenants they belong to")
    parser.add_argument("--dispatchers", type=int, default=1, help="dispatcher processes")
    parser.add_argument("--cold", action="store_true", help="start the dispatchers when everything is due already")
    parser.add_argument("--json", action="store_true", help="only the JSON object, as the last line")
    args = parser.parse_args()
    for name in ("jobs", "tenants", "dispatchers"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be at least 1")
    return args


def start_servers(stack: ExitStack) -> Any:
    from chrono_beat.testing.servers import PostgresServer, RedisServer

    redis = stack.enter_context(RedisServer(options={"stream-node-max-bytes": 1024}))
    postgres = stack.enter_context(PostgresServer(options={"shared_buffers": "1GB", "max_wal_size": "4GB"}))
    os.environ.update(
        BENCHMARK_DATABASE=json.dumps(postgres.create_database("bench")), BENCHMARK_REDIS_URL=redis.url,
        BENCHMARK_CHRONO_BEAT=json.dumps({"PARTITIONS": PARTITIONS}), DJANGO_SETTINGS_MODULE="benchmarks.settings",
    )
    return redis


def load(jobs: int, tenants: int, due: float) -> None:
    """Put the jobs into the due index, by SQL, and let the planner know them."""
    from django.db import connection

    with connection.cursor() as cursor:
        values = {"jobs": jobs, "tenants": tenants, "partitions": PARTITIONS, "due": due}
        cursor.execute(INSERT, values)
        cursor.execute("ANALYZE chrono_job")


def executions() -> int:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM chrono_execution")
        return int(cursor.fetchone()[0])


def watch_claims(jobs: int, until: float) -> float | None:
    """Return claims per second over the middle four fifths, or None where they were not seen to end."""
    low = high = None
    while time.time() < until:
        count, at = executions(), time.time()
        if low is None and count >= jobs * 0.1:
            low = (count, at)
        if count >= jobs * 0.9:
            high = (count, at)
            break
        time.sleep(POLL_SECONDS)
    if low is None or high is None:
        return None
    return (high[0] - low[0]) / (high[1] - low[1]) if high[1] > low[1] else None


def wait_for_streams(client: Any, jobs: int, until: float) -> list[bytes]:
    """Wait until all entries are readable; return the streams' keys."""
    while True:
        streams = list(client.scan_iter(match="chrono:{*}:s:*", count=5_000))
        pipeline = client.pipeline(transaction=False)
        for stream in streams:
            pipeline.xlen(stream)
        if sum(pipeline.execute()) >= jobs or time.time() > until:
            return streams
        time.sleep(0.5)


def lateness_ms(client: Any, streams: list[bytes], due: float) -> list[float]:
    """Return how long after the due time each entry became readable, sorted."""
    pipeline = client.pipeline(transaction=False)
    for stream in streams:
        pipeline.xrange(stream)
    ids = [entry_id for entries in pipeline.execute() for entry_id, _ in entries]
    return sorted(int(entry_id.split(b"-")[0]) - due * 1000 for entry_id in ids)


def measure(args: argparse.Namespace, stack: ExitStack) -> dict[str, Any]:
    redis_server = start_servers(stack)
    import django

    django.setup()
    from django.core.management import call_command
    from redis import Redis

    call_command("migrate", verbosity=0)
    client = Redis.from_url(redis_server.url)
    lead = min(MOST_LEAD_SECONDS, max(LEAST_LEAD_SECONDS, args.jobs * LOAD_SECONDS_PER_JOB))
    due = float(int(time.time() + 2 + args.jobs / 20_000 + (0 if args.cold else lead)))
    load(args.jobs, args.tenants, due)
    if args.cold:
        time.sleep(max(0.0, due + 1 - time.time()))
    command = [sys.executable, "-m", "benchmarks.dispatcher", "dispatch"]
    started = time.time()
    processes = [subprocess.Popen(command) for _ in range(args.dispatchers)]
    stack.callback(lambda: [process.terminate() for process in processes])
    claims = watch_claims(args.jobs, started + GIVE_UP_SECONDS)
    claimed_by = time.time()
    streams = wait_for_streams(client, args.jobs, max(due, started) + GIVE_UP_SECONDS)
    late = lateness_ms(client, streams, due)
    calls = client.info("commandstats")
    base = started - due if args.cold else 0.0            # cold: counted from the start of the dispatcher
    shifted = [value - base * 1000 for value in late]
    return {
        "jobs": args.jobs, "tenants": args.tenants, "dispatchers": args.dispatchers, "cold": args.cold,
        "readable": len(late),
        "publish_lateness_ms": {"p50": percentile(shifted, 0.50), "p99": percentile(shifted, 0.99)},
        "last_readable_ms": round(shifted[-1], 1) if shifted else None,
        "early": sum(1 for value in late if value < 0),
        "claims_per_s": round(claims) if claims else None,
        "claimed_before_due_s": round(due - claimed_by, 1),
        "rows_written": executions(),
        "redis_script_calls": int(calls.get("cmdstat_evalsha", {}).get("calls", 0)),
    }


def percentile(values: list[float], share: float) -> float | None:
    return round(values[min(len(values) - 1, int(len(values) * share))], 1) if values else None


def main() -> int:
    args = parse_arguments()
    with ExitStack() as stack:
        result = measure(args, stack)
    if not args.json:
        for name, value in result.items():
            print(f"{name:22} {value}")
    print(json.dumps(result))
    return 0 if result["readable"] == args.jobs and not result["early"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
