"""What each page of the admin costs: ``python -m benchmarks.admin --json``.

A PostgreSQL of its own is filled by SQL, and Django answers each page in this process, ROUNDS times. Printed are the
statements of a page, the median and the longest time, templates included.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from benchmarks.machine import yardstick

ROUNDS = 3
MOST_QUERIES, MOST_SECONDS = 20, 2.0
ADMIN = "/admin/chrono_beat/"


def pages() -> Iterator[tuple[Any, ...]]:
    """Yield (name, address) of the pages that are measured, with what is posted to it if anything: every list, its filters, a
    row of each, and the pages that ask."""
    from django.contrib import admin
    from django.contrib.admin.utils import quote

    from benchmarks.admin.load import LARGEST
    from chrono_beat_django.models import Execution, Job

    for model in admin.site._registry:
        if model._meta.app_label == "chrono_beat":
            yield f"{model._meta.model_name}s", f"{ADMIN}{model._meta.model_name}/"
            if (row := model._default_manager.order_by("pk").first()) is not None:
                yield f"one {model._meta.model_name}", f"{ADMIN}{model._meta.model_name}/{quote(row.pk)}/change/"
    job = Job.objects.order_by("-id").first()
    dead = Execution.objects.dead_letters().filter(tenant=LARGEST).order_by("-finished_at").first()
    assert job is not None and dead is not None
    yield "add a job", f"{ADMIN}job/add/"
    yield "history of a job", f"{ADMIN}job/{job.pk}/history/"
    for name, query in (("second page", "p=2"), ("last page", "p=100"), ("a tenant's", f"tenant={LARGEST}"),
                        ("name contains", "q=shop+7777"), ("a tenant's name", f"q={LARGEST}/report+of+shop+77"),
                        ("id", f"q={job.pk}"), ("paused", "state=paused"), ("intervals", "schedule_kind__exact=interval")):
        yield f"jobs: {name}", f"{ADMIN}job/?{query}"
    for name, query in (
        ("second page", "p=2"), ("last page", "p=100"), ("a week", "period=week"), ("any time", "period=any"),
        ("with those due later", "later=yes"), ("due later", "later=only"), ("due later, any time", "later=only&period=any"),
        ("a tenant's due later", f"later=only&tenant={LARGEST}"),
        ("a tenant's", f"tenant={LARGEST}"), ("a tenant's, any time", f"tenant={LARGEST}&period=any"),
        ("a small tenant's", "tenant=t001"), ("dead", "state__exact=dead"),
        ("running", "state__exact=running"), ("expired, of which there are none", "state__exact=expired"),
        ("manual, of which there are none", "kind__exact=manual"),
        ("manual, of which there are none, any time", "kind__exact=manual&period=any"),
        ("late by an hour, any time", "late=3600&period=any"), ("dead, any time", "state__exact=dead&period=any"),
        ("a small tenant's, any time", "tenant=t001&period=any"),
        ("late by a minute", "late=60"), ("late by an hour, of which there are none", "late=3600"),
        ("open dead letters", "letters=open"), ("handled dead letters", "letters=handled"),
        ("a tenant's open dead letters", f"letters=open&tenant={LARGEST}"), ("of a job", f"job_id={job.pk}"),
        ("of jobs by name", "q=report+of+shop+77"), ("id", f"q={dead.id}"),
    ):
        yield f"executions: {name}", f"{ADMIN}execution/?{query}"
    yield "a dead letter", f"{ADMIN}execution/{quote(dead.id)}/change/"
    yield "changes of a job", f"{ADMIN}jobevent/?job_id={job.pk}"
    yield "changes: a tenant's", f"{ADMIN}jobevent/?tenant={LARGEST}"
    yield "the largest tenant", f"{ADMIN}tenant/{LARGEST}/change/"
    yield "what is typed is previewed", f"{ADMIN}job/{job.pk}/preview/", {
        "name": job.name, "task": job.task, "schedule_kind": "cron", "expression": "*/5 * * * *", "timezone": "Europe/London"}
    some = [row.pk for row in Job.objects.order_by("tenant", "name")[:100]]
    for action in ("pause_jobs", "resume_jobs", "trigger_jobs"):
        yield f"before {action} of 100", f"{ADMIN}job/", {"action": action, "_selected_action": some}
    yield "a backfill of 100 is counted", f"{ADMIN}job/", {
        "action": "backfill_jobs", "_selected_action": some, "start": "2026-01-01", "end": "2026-01-08", "limit": "1000"}


def measure(client: Any, address: str, posted: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return what a page costs: ``queries``, ``median_s``, ``longest_s``, and the ``slowest`` statement."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    seconds, slowest = [], {"time": "0", "sql": ""}
    for _ in range(ROUNDS):
        with CaptureQueriesContext(connection) as seen:
            began = time.perf_counter()
            answer = client.get(address) if posted is None else client.post(address, posted)
            seconds.append(time.perf_counter() - began)
        assert answer.status_code == 200, (address, answer.status_code)
        slowest = max([slowest, *seen.captured_queries], key=lambda query: float(query["time"]))
    return {"queries": len(seen), "median_s": round(statistics.median(seconds), 3), "longest_s": round(max(seconds), 3),
            "slowest": {"s": float(slowest["time"]), "sql": slowest["sql"][:2_000]}}


def sizes() -> dict[str, Any]:
    """Return what the tables take, in GB."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("""SELECT sum(pg_relation_size(c.oid)) / 1e9, sum(pg_indexes_size(c.oid)) / 1e9 FROM pg_class c
            WHERE c.relkind = 'r' AND c.relname LIKE 'chrono_execution%%'""")
        rows, indexes = cursor.fetchone()
    return {"executions_gb": round(float(rows), 2), "their_indexes_gb": round(float(indexes), 2)}


def main() -> None:
    """Measure and print; the last line is JSON, and the exit status says whether all pages are within bounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--executions", type=int, default=10_000_000)
    parser.add_argument("--json", action="store_true", help="print nothing but the last line")
    options = parser.parse_args()

    from chrono_beat.testing.servers import PostgresServer

    with ExitStack() as stack:
        server = stack.enter_context(PostgresServer(fsync=False, options={
            "shared_buffers": "1GB", "max_wal_size": "4GB", "jit": "off"}))
        os.environ.update(BENCHMARK_DATABASE=json.dumps(server.create_database("admin")),
                          BENCHMARK_REDIS_URL="redis://127.0.0.1:1/0", DJANGO_SETTINGS_MODULE="benchmarks.admin.settings")
        import django

        django.setup()
        found = _measured(options)
    if not options.json:
        for name, cost in found["pages"].items():
            print(f"{name:45} {cost['queries']:3} {cost['median_s']:7.3f} {cost['longest_s']:7.3f}")
    print(json.dumps(found))
    sys.exit(bool(found["beyond"]))


def _measured(options: Any) -> dict[str, Any]:
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client

    from benchmarks.admin.load import load

    call_command("migrate", verbosity=0)
    began = time.perf_counter()
    load(options.jobs, options.executions)
    loaded = round(time.perf_counter() - began)
    client = Client()
    client.force_login(User.objects.create_superuser("ada"))
    client.get("/admin/")
    costs = {name: measure(client, *asked) for name, *asked in pages()}
    beyond = [name for name, cost in costs.items()
              if cost["queries"] > MOST_QUERIES or cost["median_s"] > MOST_SECONDS]
    return {"jobs": options.jobs, "executions": options.executions, "yardstick_ms": yardstick(), "load_s": loaded, **sizes(),
            "beyond": beyond, "pages": costs}


if __name__ == "__main__":
    main()
