"""What the stored jobs will do, per tenant and in all, and what a clock change does to them."""
import json
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from celery import Celery
from click.testing import CliRunner

from chrono_beat.celery import ChronoBeat
from chrono_beat.celery.commands import chrono
from chrono_beat.core import forecast, ids
from chrono_beat.core.config import Config
from chrono_beat.core.errors import InvalidInput
from chrono_beat_django import forecasting, jobs, wiring
from chrono_beat_django.models import Job, Tenant
from tests.django.fakes import RecordingQueue

NOON = datetime(2026, 1, 7, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def composition(transactional_db):
    Tenant.objects.get_or_create(slug="default")
    Tenant.objects.create(slug="acme", spread_seconds=600)
    with wiring.override(queue=RecordingQueue(), now_us=lambda: ids.to_us(NOON), config=Config(partitions=8)):
        jobs.create(name="hourly", task="t", cron="0 * * * *")
        jobs.create(name="night", task="t", cron="30 1 * * *", timezone="Europe/London")
        jobs.create(name="spread", task="t", cron="0 13 * * *", tenant="acme")
        jobs.create(name="paused", task="t", cron="* * * * *", paused=True)
        yield


def chrono_command(*line):
    app = Celery("ahead", set_as_current=False)
    ChronoBeat(app)
    return CliRunner().invoke(chrono, line, obj=SimpleNamespace(app=app))


def test_a_forecast_counts_active_jobs_by_tenant_with_the_tenants_spread():
    found = forecasting.load(hours=2)

    assert set(found.tenants) == {"acme", "default"}
    assert (found.tenants["default"][0], found.tenants["default"][60]) == (1, 1)
    assert (found.tenants["acme"][60], sum(found.total)) == (pytest.approx(0.1), pytest.approx(3))


def test_the_busiest_tenants_add_up_to_the_same():
    found, load = forecasting.busiest(count=1, hours=2), forecasting.load(hours=2)

    assert (found.total, found.peaks, found.of) == (load.total, load.peaks, 2)
    assert [(each.tenant, each.executions) for each in found.tenants] == [("default", sum(load.tenants["default"]))]


def test_a_job_that_cannot_be_read_and_a_paused_tenant_are_left_out():
    Job.objects.filter(name="hourly").update(expression="not cron")
    Tenant.objects.filter(slug="acme").update(paused=True)

    assert sum(forecasting.load(hours=2).total) == 0


def test_r059_the_jobs_that_a_clock_change_touches_are_listed():
    found = forecasting.transitions(year=2026)

    assert [(line.at, line.job, line.how) for line in found] == [
        (datetime(2026, 3, 29, 1, tzinfo=UTC), "night", "moved"), (datetime(2026, 10, 25, 1, tzinfo=UTC), "night", "once")]
    assert forecasting.transitions(zone="Europe/Paris", year=2026) == []
    with pytest.raises(InvalidInput, match="IANA"):
        forecasting.transitions(zone="Mars/Base")


def test_r053_the_projects_zone_setting_changes_no_plan(settings):
    before = list(Job.objects.order_by("name").values_list("name", "timezone", "next_run_at"))

    settings.TIME_ZONE = settings.CELERY_TIMEZONE = "Asia/Tokyo"
    jobs.update(Job.objects.get(name="hourly"), note="touched under the other setting")

    assert list(Job.objects.order_by("name").values_list("name", "timezone", "next_run_at")) == before


def test_the_commands_say_it_to_people_and_to_programs():
    assert "executions in 24 h" in chrono_command("forecast").output
    assert len(json.loads(chrono_command("forecast", "--hours", "2", "--json").output)["total"]) == 120
    assert "once: its time comes twice" in chrono_command("transitions", "--year", "2026").output
    assert chrono_command("transitions", "--zone", "Mars/Base").exit_code == 2
    assert [line["how"] for line in json.loads(chrono_command("transitions", "--year", "2026", "--json").output)] == [
        "moved", "once"]


def test_equal_schedules_are_worked_out_once_for_all_jobs_and_tenants(monkeypatch):
    for number in range(3):
        jobs.create(name=f"five {number}", task="t", cron="*/5 * * * *", tenant="acme", spread=0)
        jobs.create(name=f"five {number}", task="t", cron="*/5 * * * *", tenant="default")
    worked_out, runs = [], forecast._runs
    monkeypatch.setattr(forecast, "_runs", lambda schedule, *span: worked_out.append(schedule) or runs(schedule, *span))

    found = forecasting.load(hours=2)

    assert [str(schedule.expression) for schedule in worked_out].count("*/5 * * * *") == 1
    assert (found.tenants["acme"][5], found.tenants["default"][5]) == (3, 3)
