"""What tests of the admin's pages share: noon on a Wednesday, a queue that records, and somebody who may do all."""
from datetime import UTC, datetime, timedelta

from django.contrib.auth.models import User

from chrono_beat.core import ids
from chrono_beat.core.config import Config
from chrono_beat_django import jobs, wiring
from chrono_beat_django.models import Job, Tenant
from tests.django.fakes import RecordingQueue

NOON = datetime(2026, 1, 7, 12, 0, 0, tzinfo=UTC)           # a Wednesday


def at_noon():
    """A fixture: the composition root as it is at noon."""
    Tenant.objects.get_or_create(slug="default")
    with wiring.override(queue=RecordingQueue(), now_us=lambda: ids.to_us(NOON), config=Config(partitions=8)):
        yield


def superuser(client):
    """A fixture: the client of a superuser named ada."""
    client.force_login(User.objects.create_superuser("ada"))
    return client


def create(name="nightly", **given):
    """Create a job that runs each night unless told otherwise."""
    return jobs.create(**{"name": name, "task": "shop.report", "cron": "0 3 * * *"} | given)


def crowd(count, tenant="default", now=NOON, **fields):
    """Let a tenant have so many jobs that run next at 03:03."""
    at = (now + timedelta(days=1)).replace(hour=3, minute=3, second=0, microsecond=0)
    Job.objects.bulk_create([
        Job(**{"tenant": tenant, "name": f"other {number}", "task": "shop.report", "expression": "3 3 * * *", "timezone": "UTC",
               "partition": number % 8, "next_run_at": at} | fields) for number in range(count)])
