"""Jobs and executions by the million, made by the database itself.

Half of the jobs belong to one tenant, the rest to the others in turn. Job n ran at regular intervals over DAYS days up to now;
of 97 executions 94 succeeded, and one each failed, was skipped and is a dead letter (half of these were seen to). The newest
ones are open: scheduled for an hour later, queued or running.
"""
from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import connection
from django.utils.timezone import now

from chrono_beat.core.rollup import histogram

TENANTS, LARGEST, DAYS = 100, "t000", 4
OPEN_SECONDS = 60
"""Executions of so many seconds before the end are open."""

_JOB_ID = "('01900000-0000-7000-8000-' || lpad(to_hex({n}), 12, '0'))::uuid"
_TENANT = f"CASE WHEN mod({{n}}, 2) = 0 THEN '{LARGEST}' ELSE 't' || lpad(mod({{n}} / 2, {TENANTS})::text, 3, '0') END"

JOBS = f"""INSERT INTO chrono_job (id, tenant, name, partition, task, expression, next_run_at, created_by)
    SELECT {_JOB_ID.format(n="n")}, {_TENANT.format(n="n")}, 'report of shop ' || n, mod(n, 64), 'shop.report', '0 3 * * *',
        clock_timestamp() + n * interval '80 milliseconds', 'ada'
    FROM generate_series(0, %s - 1) n"""
EVENTS = """INSERT INTO chrono_job_event (at, job_id, tenant, job_name, version, action, actor, detail)
    SELECT clock_timestamp() - interval '5 days', id, tenant, name, 1, 'create', 'ada',
        '{"after": {"cron": "0 3 * * *", "task": "shop.report"}}' FROM chrono_job"""
ALERTS = """INSERT INTO chrono_alert (kind, tenant, subject, text, first_at, last_at, closed_at)
    SELECT 'dead_letter', 't' || lpad(mod(n, 100)::text, 3, '0'), 'report of shop ' || n, 'it failed for good',
        at, at, CASE WHEN n > 1000 THEN at + interval '1 hour' END
    FROM (SELECT n, clock_timestamp() - n * interval '1 minute' AS at FROM generate_series(1, 100000) n) rows"""

# %(first)s to %(last)s are executions of one day, counted from the oldest on; `step` lies between two of them.
EXECUTIONS = f"""INSERT INTO {{table}} (id, job_id, tenant, job_name, partition, scheduled_at, due_at, first_due_at, state,
        reason, deliveries, published_at, started_at, finished_at, worker, error, handled_at, handled_as, holder_epoch)
    SELECT job_id || ':' || to_char(at AT TIME ZONE 'UTC', 'YYYYMMDD"T"HH24MISS') || '.' || to_char(at, 'US') || 'Z:1', job_id,
        tenant, name, mod(n, 64), at, CASE state WHEN 'scheduled' THEN at + interval '1 hour' ELSE at END, at, state,
        CASE state WHEN 'dead' THEN 'error' WHEN 'failed' THEN 'error' WHEN 'skipped' THEN 'overlap' ELSE '' END,
        CASE WHEN state IN ('scheduled', 'queued', 'skipped') THEN 0 ELSE 1 END,
        CASE WHEN state NOT IN ('scheduled', 'skipped') THEN at + interval '8 ms' END,
        CASE WHEN state NOT IN ('scheduled', 'queued', 'skipped') THEN at + late END,
        CASE WHEN state NOT IN ('scheduled', 'queued', 'running') THEN at + late + interval '2 s' END,
        'celery@worker1',
        CASE WHEN state IN ('dead', 'failed') THEN 'ValueError: no such shop' || repeat(' at a line of the traceback', 20)
            ELSE '' END,
        CASE WHEN state = 'dead' AND mod(n, 4) < 2 THEN at + interval '1 hour' END,
        CASE WHEN state = 'dead' AND mod(n, 4) < 2 THEN 'discarded' ELSE '' END, 1
    FROM (
        SELECT n, {_JOB_ID.format(n="mod(n, %(jobs)s)")} AS job_id, {_TENANT.format(n="(mod(n, %(jobs)s))")} AS tenant,
            'report of shop ' || mod(n, %(jobs)s) AS name, at, (20 + mod(n, 40)) * interval '1 ms'
                + CASE WHEN mod(n, 1000) = 1 THEN interval '90 s' ELSE interval '0' END AS late,
            CASE WHEN at > %(end)s::timestamptz - interval '20 s' THEN 'scheduled'
                WHEN at > %(end)s::timestamptz - interval '40 s' THEN 'queued'
                WHEN at > %(end)s::timestamptz - interval '{OPEN_SECONDS} s' THEN 'running'
                WHEN mod(n, 97) = 1 THEN 'dead' WHEN mod(n, 97) = 2 THEN 'failed' WHEN mod(n, 97) = 3 THEN 'skipped'
                ELSE 'succeeded' END AS state
        FROM (SELECT n, %(start)s::timestamptz + n * %(step)s::interval AS at FROM generate_series(%(first)s, %(last)s) n) t
    ) rows"""


def load(jobs: int, executions: int) -> None:
    """Fill an empty, migrated database, and let the planner look at it."""
    from chrono_beat_django.models import Rollup, Tenant

    Tenant.objects.bulk_create(
        Tenant(slug=f"t{number:03}", max_jobs=10_000_000) for number in range(TENANTS))
    _run("SET maintenance_work_mem = '1GB'")
    _run("ALTER TABLE chrono_job DISABLE TRIGGER USER")            # they would plan anew what is planned already
    _run(JOBS, [jobs])
    _run("ALTER TABLE chrono_job ENABLE TRIGGER USER")
    _run(EVENTS)
    _run(ALERTS)
    _load_executions(jobs, executions)
    minute = now().replace(second=0, microsecond=0)
    late = histogram([20_000 + 1_000 * number for number in range(40)])
    for tenant in range(TENANTS):
        Rollup.objects.bulk_create(Rollup(tenant=f"t{tenant:03}", span="minute", start=minute - timedelta(minutes=back),
                                          started=40, succeeded=40, lateness=late, lateness_max_us=59_000)
                                   for back in range(1, 600))
    for table in ("chrono_job", "chrono_job_event", "chrono_execution", "chrono_rollup", "chrono_tenant", "chrono_alert"):
        _run(f"VACUUM ANALYZE {table}")


def _load_executions(jobs: int, executions: int) -> None:
    """Make each day's table by itself and attach it, so that its indexes are built over all rows at once."""
    end = now() + timedelta(seconds=20)
    start, step = end - timedelta(days=DAYS), timedelta(days=DAYS) / executions
    first = 0
    while first < executions:
        day = (start + first * step).replace(hour=0, minute=0, second=0, microsecond=0)
        following = day + timedelta(days=1)
        last = min(executions, -((start - following) // step)) - 1
        table = f"chrono_execution_{day:%Y%m%d}"
        _run(f"DROP TABLE IF EXISTS {table}")
        _run(f"CREATE TABLE {table} (LIKE chrono_execution INCLUDING DEFAULTS INCLUDING CONSTRAINTS)")
        _run(EXECUTIONS.format(table=table), {"first": first, "last": last, "start": start, "end": end, "step": step,
                                              "jobs": jobs})
        _run(f"ALTER TABLE chrono_execution ATTACH PARTITION {table} FOR VALUES FROM (%s) TO (%s)", [day, following])
        first = last + 1


def _run(sql: str, parameters: Any = None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
