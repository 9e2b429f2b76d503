"""What the stored jobs will do, per tenant and in all, and what a clock change does to them."""
import json
import re
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
from chrono_beat.core.schedule import CeleryCrontab
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


@pytest.mark.parametrize(("look", "given", "field"), [
    (look, {"hours": hours}, "hours") for look in (forecasting.load, forecasting.busiest)
    for hours in (0, 100 * 8_766, 1.5, "x", None, float("nan"))
] + [(forecasting.transitions, {"year": year}, "year") for year in (1, 10**9, "x", 2026.5)]
  + [(forecasting.transitions, {"zone": zone}, "zone") for zone in ("x" * 100_000, ["Europe/Paris"], 7)])
def test_what_reaches_too_far_or_is_of_another_type_is_refused_by_its_field(look, given, field):
    with pytest.raises(InvalidInput) as refused:
        look(**given)

    assert refused.value.field == field and len(str(refused.value)) < 200


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


NEW_YORK = "America/New_York"
TOUCHED = {                        # schedule: what the changes of 2026-03-08 and 2026-11-01 do to it, and its runs then
    "30 2 * * *": [("moved", ["07:00"])],
    "30 1 * * *": [("once", ["05:30"])],
    "0 0-5 * * *": [("moved", ["07:00"]), ("once", ["05:00"])],
    "0 */2 * * *": [("moved", ["07:00"])],
    "*/15 1-3 * * *": [("moved", ["07:00"]), ("twice", [
        "05:00", "05:15", "05:30", "05:45", "06:00", "06:15", "06:30", "06:45"])],
    "0 2 8 * *": [("moved", ["07:00"])],
    "15 1,2 * * sun": [("moved", ["07:00"]), ("once", ["05:15"])],
    "0 * * * *": [], "*/15 * * * *": [], "5,35 0-23 * * *": [],
    "30 2 * * mon-fri": [], "0 9 * * *": [], "0 3 * * *": [], "30 2 9 3 *": [],
}


def test_r059_of_new_york_exactly_the_jobs_whose_wall_time_is_left_out_or_comes_twice_with_their_instants():
    """R059: of 2026-03-08 those with fires in 02:00 to 02:59; jobs of every hour and intervals are not."""
    for cron in TOUCHED:
        jobs.create(name=cron, task="t", cron=cron, timezone=NEW_YORK)
    jobs.create(name="celery", task="t", schedule=CeleryCrontab("0", "2", timezone=NEW_YORK), paused=True)
    jobs.create(name="later", task="t", cron="30 2 * * *", timezone=NEW_YORK, start="2026-06-01T00:00Z")
    jobs.create(name="interval", task="t", every=3600, timezone=NEW_YORK)
    jobs.create(name="elsewhere", task="t", cron="30 2 * * *", timezone="America/Chicago")
    done = jobs.create(name="over", task="t", cron="30 2 * * *", timezone=NEW_YORK)
    Job.objects.filter(id=done.id).update(finished_at=NOON)

    lines = json.loads(chrono_command("transitions", "--zone", NEW_YORK, "--year", "2026", "--json").output)

    spring, autumn = "2026-03-08T07:00:00Z", "2026-11-01T06:00:00Z"
    wanted = {(spring if how == "moved" else autumn, job, how, tuple(f"{at[:4]}-{day}T{run}:00Z" for run in runs))
              for job, found in [*TOUCHED.items(), ("celery", [("moved", ["07:00"])])] for how, runs in found
              for at, day in [(spring, "03-08") if how == "moved" else (autumn, "11-01")]}
    assert {(line["at"], line["job"], line["how"], tuple(line["runs"])) for line in lines} == wanted
    assert len(lines) == len(wanted)
    said = chrono_command("transitions", "--zone", NEW_YORK, "--year", "2026").output
    assert re.search(r"30 2 \* \* \* +moved: its time does not exist; it runs at the end of the gap +07:00Z", said)


def test_r053_the_projects_zone_setting_changes_no_plan(settings):
    before = list(Job.objects.order_by("name").values_list("name", "timezone", "next_run_at"))

    settings.TIME_ZONE = settings.CELERY_TIMEZONE = "Asia/Tokyo"
    jobs.update(Job.objects.get(name="hourly"), note="touched under the other setting")

    assert list(Job.objects.order_by("name").values_list("name", "timezone", "next_run_at")) == before


def test_the_commands_say_it_to_people_and_to_programs():
    assert "executions in 24 h" in chrono_command("forecast").output
    assert len(json.loads(chrono_command("forecast", "--hours", "2", "--json").output)["total"]) == 120
    assert "once: its time comes twice; it runs in the first pass only" in chrono_command("transitions", "--year", "2026").output
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
