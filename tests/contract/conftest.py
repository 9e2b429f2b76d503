"""JobStore on memory, SQLite and PostgreSQL, each behind the same few handles for the contract suite.

The databases are files and servers with real commits: leases, locks and faults are what is tested. Each test finds
empty tables.
"""
from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import call_command
from django.db import OperationalError, connections
from django.db.models import F

from chrono_beat.core.ids import execution_id, from_us, partition_of, to_us
from chrono_beat.core.rollup import compact
from chrono_beat.testing.clock import ManualClock
from chrono_beat.testing.memory_jobs import PLAN, MemoryJob, MemoryJobStore, MemoryTenant
from chrono_beat_django import models
from chrono_beat_django.store import DjangoJobStore
from tests.settings import sqlite_database

PARTITIONS = 8


class MemoryBench:
    """Handles on the store in memory."""

    alias = None

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryJobStore(self.clock, partitions=PARTITIONS)

    def pass_time(self, us: int) -> None:
        """Let so much time go by, as far as leases of partitions and members are concerned."""
        self.clock.advance(us=us)

    def add_tenant(self, slug: str, **values: Any) -> None:
        self.store.add_tenant(MemoryTenant(slug=slug, **values))

    def add_job(self, name: str, **values: Any) -> str:
        return self.store.add_job(MemoryJob(name=name, **values))

    def edit(self, job_id: str, **values: Any) -> None:
        self.store.edit_job(job_id, values)

    def delete(self, job_id: str) -> None:
        self.store.delete_job(job_id)

    def add_execution(self, job_id: str, scheduled_us: int, **values: Any) -> str:
        return self.store.add_execution(job_id, scheduled_us, **values)

    def set_row(self, key: str, **values: Any) -> None:
        for name, value in values.items():
            setattr(self.store.executions[key], name, value)

    def job(self, job_id: str) -> Any:
        return dataclasses.replace(self.store.jobs[job_id])

    def rows(self, job_id: str | None = None) -> list[Any]:
        return [dataclasses.replace(row) for row in self.store.rows(job_id)]

    def rollups(self, span: str = "minute") -> dict[tuple[str, int], dict[str, Any]]:
        """Return {(tenant, start of the minute, hour or day): its numbers}."""
        rows = self.store.rollups if span == "minute" else self.store.merged[span]
        return {key: dataclasses.asdict(row) for key, row in rows.items()}

    def snapshot(self) -> Any:
        """Return all that can be seen, without dates of writing."""
        jobs = [(j.job_id, j.next_run_us, j.version, j.quarantined_reason, j.finished_us is None)
                for j in self.store.jobs.values()]
        leases = [p[:3] for p in self.store.partitions()] + [self.store.lane(0)[:3]]
        rows = [{**dataclasses.asdict(row), "finished_us": row.finished_us is None} for row in self.rows()]
        return jobs, leases, rows

    @contextmanager
    def fault(self, number: int, *, when: str) -> Iterator[None]:
        """Let the *number*-th step fail."""
        self.store.fail_at(number)
        try:
            yield
        finally:
            self.store.fail_at(None)

    def clean(self) -> None:
        self.__init__()


class DjangoBench:
    """Handles on a real database."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.store = DjangoJobStore(alias)
        self.clean()

    @property
    def connection(self) -> Any:
        return connections[self.alias]

    def execute(self, sql: str, *parameters: object) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, parameters)

    def clean(self) -> None:
        """Empty the tables; the partitions and lanes are nobody's."""
        for model in (models.Job, models.Execution, models.Dispatcher, models.JobEvent, models.Tenant, models.Lane,
                      models.PendingVoid, models.Rollup):
            self.execute(f"DELETE FROM {model._meta.db_table}")
        models.Partition.objects.using(self.alias).update(
            owner="", epoch=0, loaded_epoch=0, expires_at=models.FIRST_INSTANT, offered=False)
        models.Lane.objects.using(self.alias).create(number=0)
        models.Tenant.objects.using(self.alias).create(slug="default")

    def rollups(self, span: str = "minute") -> dict[tuple[str, int], dict[str, Any]]:
        """Return {(tenant, start of the minute, hour or day): its numbers}."""
        texts = ("lateness", "publish_lateness", "duration")
        found = {}
        for row in models.Rollup.objects.using(self.alias).filter(span=span).values():
            start_us = to_us(row["start"])
            found[row["tenant"], start_us] = {
                name: compact(value) if name in texts else value for name, value in row.items()
                if name not in ("id", "tenant", "span", "start")}
        return found

    def pass_time(self, us: int) -> None:
        """Move leases into the past: the database's clock is not ours to move."""
        for model in (models.Partition, models.Dispatcher):
            leased = model.objects.using(self.alias).filter(expires_at__gt=models.FIRST_INSTANT)
            leased.update(expires_at=F("expires_at") - (from_us(us) - from_us(0)))

    def add_tenant(self, slug: str, **values: Any) -> None:
        until_us = values.pop("retries_paused_until_us", None)
        values["retries_paused_until"] = None if until_us is None else from_us(until_us)
        models.Tenant.objects.using(self.alias).update_or_create(slug=slug, defaults=values)

    def add_job(self, name: str, **values: Any) -> str:
        job_id = values.pop("job_id", None) or str(models.new_job_id())
        tenant = values.get("tenant", "default")
        values.setdefault("partition", partition_of(tenant, job_id, PARTITIONS))
        defaults = {"schedule_kind": "interval", "expression": "60", "task": "tests.noop", "id": job_id, "name": name}
        models.Job.objects.using(self.alias).create(**defaults | _columns(values))
        return job_id

    def edit(self, job_id: str, **values: Any) -> None:
        planned = {} if PLAN.isdisjoint(values) else {"plan_version": F("version") + 1}
        models.Job.objects.using(self.alias).filter(id=job_id).update(
            version=F("version") + 1, **planned, **_columns(values))

    def delete(self, job_id: str) -> None:
        models.Job.objects.using(self.alias).filter(id=job_id).delete()

    def add_execution(self, job_id: str, scheduled_us: int, *, kind: str = "manual", attempt: int = 1) -> str:
        job, at = models.Job.objects.using(self.alias).get(id=job_id), from_us(scheduled_us)
        key = execution_id(job_id, scheduled_us, attempt)
        models.Execution.objects.using(self.alias).create(
            id=key, job_id=job_id, tenant=job.tenant, job_name=job.name, partition=job.partition, scheduled_at=at,
            due_at=at, first_due_at=at, attempt=attempt, kind=kind, job_version=job.version)
        return key

    def set_row(self, key: str, **values: Any) -> None:
        models.Execution.objects.using(self.alias).filter(id=key).update(**_columns(values))

    def job(self, job_id: str) -> Any:
        return _fields(models.Job.objects.using(self.alias).get(id=job_id))

    def rows(self, job_id: str | None = None) -> list[Any]:
        found = models.Execution.objects.using(self.alias).order_by("scheduled_at", "job_id", "attempt")
        return [_fields(row) for row in (found.filter(job_id=job_id) if job_id else found)]

    def snapshot(self) -> Any:
        """Return all that can be seen, without dates of writing."""
        jobs = [(str(j.id), j.next_run_at, j.version, j.quarantined_reason, j.finished_at is None)
                for j in models.Job.objects.using(self.alias).order_by("id")]
        leases = [p[:3] for p in self.store.partitions()] + [self.store.lane(0)[:3]]
        return jobs, leases, [{**vars(row), "finished_us": row.finished_us is None} for row in self.rows()]

    @contextmanager
    def fault(self, number: int, *, when: str) -> Iterator[None]:
        """Let the connection break at the *number*-th statement: "before" it is sent or "after" it was carried out."""
        count = 0

        def wrapper(execute, sql, params, many, context):
            nonlocal count
            count += 1
            if count == number and when == "before":
                raise OperationalError("the connection broke off (a fault that was asked for)")
            try:
                return execute(sql, params, many, context)
            finally:
                if count == number:
                    raise OperationalError("the answer was lost (a fault that was asked for)")

        with self.connection.execute_wrapper(wrapper):
            yield


def _columns(values: dict[str, Any]) -> dict[str, Any]:
    """Turn the names of the store in memory into the models'."""
    special = {"execution_id": "id", "retry": None}
    columns = {}
    for name, value in values.items():
        if name == "retry":
            columns |= {"max_attempts": value.max_attempts if value.explicit else None,
                        "retry_base_seconds": value.base_seconds, "retry_factor": value.factor,
                        "retry_maximum_seconds": value.maximum_seconds, "retry_jitter": value.jitter}
        elif name.endswith("_us"):
            columns[name[:-3] + "_at"] = None if value is None else from_us(value)
        else:
            columns[special.get(name, name)] = value
    return columns


def _fields(row: Any) -> SimpleNamespace:
    """Turn a model's columns into the names of the store in memory."""
    fields = {}
    for field in row._meta.concrete_fields:
        value = getattr(row, field.attname)
        if field.name.endswith("_at"):
            fields[field.name[:-3] + "_us"] = None if value is None else to_us(value)
        else:
            fields[field.name] = str(value) if isinstance(value, uuid.UUID) else value
    key = "execution_id" if isinstance(row, models.Execution) else "job_id"
    return SimpleNamespace(**fields, **{key: fields["id"]})


@contextmanager
def _database(alias: str, settings: dict[str, Any], blocker: Any) -> Iterator[str]:
    """Make a migrated database known under an alias of its own."""
    connections.databases[alias] = settings
    connections.configure_settings(connections.databases)
    with blocker.unblock():
        call_command("migrate", "chrono_beat", database=alias, verbosity=0, skip_checks=True)
        yield alias
        connections[alias].close()
    del connections.databases[alias]


@pytest.fixture(scope="session")
def sqlite_alias(tmp_path_factory: pytest.TempPathFactory, django_db_blocker: Any) -> Iterator[str]:
    """A migrated SQLite file."""
    path = tmp_path_factory.mktemp("contract") / "jobs.sqlite3"
    with _database("contract_sqlite", sqlite_database(path), django_db_blocker) as alias:
        yield alias


@pytest.fixture(scope="session")
def postgres_alias(postgres_server: Any, django_db_blocker: Any) -> Iterator[str]:
    """A migrated database on a real PostgreSQL."""
    settings = postgres_server.create_database("contract_jobs")
    with _database("contract_postgres", settings, django_db_blocker) as alias:
        yield alias


@pytest.fixture
def sqlite_bench(sqlite_alias: str, django_db_blocker: Any) -> Iterator[DjangoBench]:
    """The store on SQLite, empty."""
    with django_db_blocker.unblock():
        yield DjangoBench(sqlite_alias)


@pytest.fixture
def postgres_bench(postgres_alias: str, django_db_blocker: Any) -> Iterator[DjangoBench]:
    """The store on PostgreSQL, empty."""
    with django_db_blocker.unblock():
        yield DjangoBench(postgres_alias)


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def bench(request: pytest.FixtureRequest) -> Any:
    """Each store in turn."""
    return MemoryBench() if request.param == "memory" else request.getfixturevalue(f"{request.param}_bench")


@pytest.fixture
def store(bench: Any) -> Any:
    """The store itself."""
    return bench.store
