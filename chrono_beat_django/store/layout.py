"""What every ``migrate`` sees to: triggers, the coming days' tables, the rows of partitions and lanes, a tenant."""
from __future__ import annotations

from django.db import connections

from chrono_beat_django.models import Deployment, Lane, Partition, Tenant
from chrono_beat_django.store import triggers
from chrono_beat_django.store.postgres_days import PostgresDays


def prepare(alias: str, partitions: int, lanes: int) -> None:
    """Write what is missing; what a deployment has is never changed.

    Args:
        alias: the database that was migrated.
        partitions, lanes: how many a database that has none yet gets, for good.
    """
    connection = connections[alias]
    if Deployment._meta.db_table not in connection.introspection.table_names():
        return
    triggers.install(connection)
    if connection.vendor == "postgresql":
        PostgresDays(alias).prepare_days()
    if not Tenant.objects.using(alias).exists():
        Tenant.objects.using(alias).get_or_create(slug="default")
    Deployment.objects.using(alias).get_or_create(id=1, defaults={"partitions": partitions, "lanes": lanes})
    fixed = Deployment.objects.using(alias).get(id=1)
    for model, count in ((Partition, fixed.partitions), (Lane, fixed.lanes)):
        present = set(model.objects.using(alias).values_list("number", flat=True))
        missing = [model(number=number) for number in range(count) if number not in present]
        model.objects.using(alias).bulk_create(missing, ignore_conflicts=True)


def read(alias: str) -> tuple[int, int]:
    """Return how many partitions and lanes the database was made for; (0, 0) where it has not been migrated yet."""
    row = Deployment.objects.using(alias).values_list("partitions", "lanes").filter(id=1).first()
    return row or (0, 0)
