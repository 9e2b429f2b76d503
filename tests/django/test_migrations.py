"""The migrations fit the models, and every migrate leaves what the store rests on."""
from __future__ import annotations

import pytest
from django.core.management import call_command
from django.db import connection

from chrono_beat_django.models import Deployment, Lane, Partition, Tenant
from chrono_beat_django.store import DjangoJobStore, layout


@pytest.mark.django_db
def test_the_migrations_are_complete():
    call_command("makemigrations", "chrono_beat", check=True, dry_run=True, verbosity=0)


@pytest.mark.django_db
def test_a_migrated_database_has_its_partitions_lanes_and_a_tenant():
    assert list(Partition.objects.values_list("number", flat=True)) == list(range(8))
    assert list(Lane.objects.values_list("number", flat=True)) == [0]
    assert list(Tenant.objects.values_list("slug", flat=True)) == ["default"]
    assert DjangoJobStore().layout() == (8, 1)


@pytest.mark.django_db
def test_the_first_migrate_fixes_the_layout():
    layout.prepare("default", partitions=64, lanes=4)

    assert DjangoJobStore().layout() == (8, 1)
    assert (Partition.objects.count(), Lane.objects.count()) == (8, 1)


@pytest.mark.django_db
def test_a_later_migrate_puts_back_what_is_missing_and_leaves_the_rest():
    Partition.objects.filter(number=3).delete()
    Partition.objects.filter(number=4).update(owner="a", epoch=7)
    Tenant.objects.filter(slug="default").update(name="Ours")

    layout.prepare("default", partitions=8, lanes=1)

    assert Partition.objects.count() == 8
    assert (Partition.objects.get(number=4).owner, Partition.objects.get(number=4).epoch) == ("a", 7)
    assert Tenant.objects.get(slug="default").name == "Ours"


@pytest.mark.django_db(transaction=True)
def test_the_tables_can_be_taken_away_and_made_again():
    call_command("migrate", "chrono_beat", "zero", verbosity=0)
    assert not [name for name in connection.introspection.table_names() if name.startswith("chrono_")]

    call_command("migrate", "chrono_beat", verbosity=0)

    assert (Deployment.objects.get().partitions, Partition.objects.count(), Tenant.objects.count()) == (8, 8, 1)
