"""Look at a deployment from all sides and say what is wrong with it, each finding with its mend.

Every check stands alone: one that cannot be made (Redis is away, say) becomes a finding itself and the others go on.
"""
from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from typing import NamedTuple

import celery
import django
from django.db import connections

from chrono_beat import __version__
from chrono_beat.core import ids
from chrono_beat.core.errors import ChronoError, QueueUnavailable
from chrono_beat.core.targets import relay_pool
from chrono_beat.targets import http
from chrono_beat_django import wiring
from chrono_beat_django.models import Alert, Execution, Job, Tenant
from chrono_beat_django.store import layout

GOOD, WARNING, BAD = "ok", "warning", "error"
LEAST_REDIS = (6, 2)
LEAST_POSTGRES = (14, 0)
LEAST_SQLITE = (3, 35)
SKEW_WARNING_SECONDS = 1.0
SKEW_BAD_SECONDS = 30.0
INDEXES = ("chrono_job_due", "chrono_execution_open", "chrono_execution_free")
MOST_NAMED = 8
"""Names listed in one finding; the rest is counted."""


class Finding(NamedTuple):
    """One thing looked at.

    Args:
        check: short name, the same in every release.
        level: "ok", "warning" or "error".
        message: what was found.
        mend: what to do about it; "" where nothing need be done.
    """

    check: str
    level: str
    message: str
    mend: str = ""


def examine() -> list[Finding]:
    """Make every check; returns at least one finding of each."""
    findings: list[Finding] = []
    for name, check in CHECKS.items():
        try:
            findings += check()
        except QueueUnavailable as error:
            findings.append(Finding(name, BAD, f"Redis does not answer: {error}", "start Redis, or mend REDIS_URL"))
        except (ChronoError, django.db.Error) as error:
            known = wiring.database_trouble(error)
            found = (known, "run manage.py migrate, start the database, or mend DATABASES") if known else (
                f"{type(error).__name__}: {' '.join(str(error).split())}", "mend this first")
            findings.append(Finding(name, BAD, *found))
    return findings


def _versions() -> Iterator[Finding]:
    parts = {
        "chrono_beat": __version__, "Python": platform.python_version(), "Django": django.get_version(),
        "Celery": celery.__version__, "redis-py": version("redis"),
    }
    yield Finding("versions", GOOD, ", ".join(f"{name} {version}" for name, version in parts.items()))


def _database() -> Iterator[Finding]:
    connection = connections["default"]
    connection.ensure_connection()
    if connection.vendor == "postgresql":
        number = connection.pg_version
        release, least, name = (number // 10_000, number % 10_000), LEAST_POSTGRES, "PostgreSQL"
    elif connection.vendor == "sqlite":
        release, least, name = tuple(connection.Database.sqlite_version_info[:2]), LEAST_SQLITE, "SQLite"
    else:
        yield Finding("database", BAD, f"{connection.vendor} is not supported", "use PostgreSQL or SQLite")
        return
    text = f"{name} {release[0]}.{release[1]}"
    if release < least:
        yield Finding("database", BAD, f"{text} is too old", f"upgrade to {name} {least[0]}.{least[1]} or newer")
    elif name == "SQLite":
        yield Finding("database", GOOD, f"{text}: good for one dispatcher on one machine")
    else:
        yield Finding("database", GOOD, text)
    partitions, lanes = layout.read("default")
    config = wiring.config()
    if (partitions, lanes) != (config.partitions, config.lanes):
        yield Finding(
            "database", BAD, f"migrated with PARTITIONS={partitions}, LANES={lanes}, settings say {config.partitions}, "
            f"{config.lanes}", "set them back: they are fixed at the first migrate",
        )


def _indexes() -> Iterator[Finding]:
    connection = connections["default"]
    table = "pg_indexes" if connection.vendor == "postgresql" else "sqlite_master"
    column = "indexname" if connection.vendor == "postgresql" else "name"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {column} FROM {table}")
        there = {row[0] for row in cursor.fetchall()}
    missing = [name for name in INDEXES if name not in there]
    if missing:
        yield Finding("indexes", BAD, f"missing: {', '.join(missing)}", "run manage.py migrate, or create them anew")
    else:
        yield Finding("indexes", GOOD, "the due indexes are there")


def _redis() -> Iterator[Finding]:
    facts = wiring.queue().server_facts()
    release = tuple(int(part) for part in facts.get("version", "0.0").split(".")[:2])
    text = f"{facts.get('name', 'Redis')} {facts.get('version', '?')}"
    if release < LEAST_REDIS:
        yield Finding("redis", BAD, f"{text} is too old", "upgrade to Redis 6.2 or Valkey 7.2")
    else:
        yield Finding("redis", GOOD, text)
    policy = facts.get("maxmemory_policy", "")
    if not policy:
        yield Finding("eviction", WARNING, "the eviction policy could not be read", "see that it is noeviction")
    elif policy != "noeviction":
        yield Finding(
            "eviction", BAD, f"maxmemory-policy is {policy}: streams and locks may be evicted",
            "set maxmemory-policy noeviction",
        )
    else:
        yield Finding("eviction", GOOD, "maxmemory-policy is noeviction")


def _clocks() -> Iterator[Finding]:
    for name, read in (("database", wiring.store().now_us), ("Redis", wiring.queue().now_us)):
        before = time.time_ns() // 1000
        there = read()
        after = time.time_ns() // 1000
        skew = (there - (before + after) // 2) / 1e6
        level = BAD if abs(skew) > SKEW_BAD_SECONDS else WARNING if abs(skew) > SKEW_WARNING_SECONDS else GOOD
        mend = "" if level == GOOD else "synchronise the clocks (NTP); jobs wait for the slowest of them"
        doubt = (after - before) / 2e6
        yield Finding("clocks", level, f"{name} is {skew:+.3f} s from this host, give or take {doubt:.3f} s", mend)


def _dispatchers() -> Iterator[Finding]:
    store = wiring.store()
    now_us = store.now_us()
    leases = store.partitions()
    unowned = [lease for lease in leases if not lease.owner or lease.expires_us < now_us]
    owners = {lease.owner for lease in leases} - {""}
    if not leases:
        yield Finding("dispatchers", BAD, "there are no partitions", "run manage.py migrate")
    elif unowned:
        yield Finding(
            "dispatchers", BAD, f"{len(unowned)} of {len(leases)} partitions have no live owner: nothing fires there",
            "start celery -A proj chrono run",
        )
    else:
        yield Finding("dispatchers", GOOD, f"{len(leases)} partitions owned by {', '.join(sorted(owners))}")


def _pools_in_use() -> set[str]:
    default = wiring.config().default_pool
    pools = dict(Tenant.objects.values_list("slug", "pool"))
    live = Job.objects.unfinished().filter(paused=False).values_list("tenant", "pool").distinct().order_by()
    return {pool or pools.get(tenant, "") or default for tenant, pool in live}


def _workers() -> Iterator[Finding]:
    reports = wiring.queue().workers()
    # A relay draws the pool of messages and runs no tasks.
    relays = relay_pool(wiring.config())
    workers = [report for report in reports if list(report.pools) != [relays]]
    drawn = {pool for report in reports for pool in report.pools}
    used = _pools_in_use()
    if relays in used - drawn:
        yield Finding(
            "relay", BAD, "jobs have a message or shadow target, and no live relay draws them",
            "start chrono run with the role relay",
        )
    unserved = sorted(used - drawn - {relays})
    if unserved:
        yield Finding(
            "workers", BAD, f"no live worker draws {_named(unserved)}",
            f"start celery -A proj worker -Q celery,{','.join(unserved[:MOST_NAMED])}",
        )
    known = {task for worker in workers for task in worker.tasks}
    live = Job.objects.unfinished().filter(paused=False).exclude(target_kind__in=("message", "shadow"))
    wanted = set(live.values_list("task", flat=True).distinct().order_by())
    unknown = sorted(wanted - known) if workers else []
    if unknown:
        yield Finding(
            "workers", BAD, f"no live worker knows the tasks {_named(unknown)}", "deploy their code, pause the jobs",
        )
    if workers and not unserved and not unknown:
        yield Finding("workers", GOOD, f"{len(workers)} live, drawing {_named(sorted(drawn))}")
    elif not workers and not unserved:
        yield Finding("workers", WARNING, "no live worker, and no job that needs one")
    soft = sorted(worker.worker for worker in workers if "prefork" not in worker.pool_class)
    if soft:
        yield Finding(
            "workers", WARNING, f"{_named(soft)}: a body that holds the interpreter for a whole lease may run twice",
            "use the prefork pool for such tasks",
        )


def _quarantine() -> Iterator[Finding]:
    rows = Job.objects.unfinished().exclude(quarantined_reason="")
    first = rows.first()
    if first is not None:
        yield Finding(
            "jobs", BAD, f"{rows.count()} quarantined; the first is {first}: {first.quarantined_reason}",
            "correct them; saving a job plans it anew",
        )
    else:
        yield Finding("jobs", GOOD, "none is quarantined")
    overdue = ids.from_us(wiring.now_us() - 60_000_000)
    waiting = Execution.objects.filter(state="scheduled", due_at__lt=overdue).count()
    if waiting:
        yield Finding("jobs", WARNING, f"{waiting} executions are overdue by over a minute", "see dispatchers, clocks")


def _alerts() -> Iterator[Finding]:
    config = wiring.config()
    wrong = http.wrong_place(config.alert_url, config) if config.alert_url else None
    if wrong:
        yield Finding("alerts", BAD, f"ALERT_URL cannot be called: {wrong}", "correct it, or say where it may lead")
    elif not config.alert_emails and not config.alert_url:
        yield Finding("alerts", WARNING, "no operator is told of alerts", "set ALERT_EMAILS, or ALERT_URL and ALERT_SECRETS")
    else:
        to = [f"{len(config.alert_emails)} addresses"] * bool(config.alert_emails) + ["ALERT_URL"] * bool(config.alert_url)
        yield Finding("alerts", GOOD, f"operators are told at {' and '.join(to)}")
    bare = Tenant.objects.exclude(alert_url="").filter(webhook_secret="").order_by("slug")
    if names := list(bare.values_list("slug", flat=True)):
        yield Finding("alerts", WARNING, f"alerts go unsigned to tenants {_named(names)}",
                      "give them a secret: tenant_secrets.rotate_webhook_secret")
    unsent = Alert.objects.filter(closed_at__isnull=True, attempts__gt=0).count()
    if unsent:
        yield Finding("alerts", WARNING, f"{unsent} alerts have not reached everybody yet; the log of chrono run says why")


def _named(names: Iterable[str]) -> str:
    listed = list(names)
    rest = len(listed) - MOST_NAMED
    return ", ".join(listed[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


CHECKS: dict[str, Callable[[], Iterator[Finding]]] = {
    "versions": _versions, "database": _database, "indexes": _indexes, "redis": _redis, "clocks": _clocks,
    "dispatchers": _dispatchers, "workers": _workers, "jobs": _quarantine, "alerts": _alerts,
}
