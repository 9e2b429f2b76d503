"""What other schedulers have is taken over once, with its meaning, and the rest is refused with a mend."""
import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.schedules import crontab, schedule, solar
from click.testing import CliRunner
from django_celery_beat.models import ClockedSchedule, CrontabSchedule, IntervalSchedule, PeriodicTask, SolarSchedule

from chrono_beat.celery import ChronoBeat
from chrono_beat.celery.commands import chrono
from chrono_beat.core import ids, imports
from chrono_beat.core.config import Config
from chrono_beat.core.errors import InvalidInput
from chrono_beat_django import import_tables, jobs, wiring
from chrono_beat_django.importing import bring_in
from chrono_beat_django.models import Job, Tenant
from tests.django.fakes import RecordingQueue

NOON = datetime(2026, 1, 7, 12, tzinfo=UTC)
SUNSET = solar.__new__(solar)                   # its constructor needs a library that knows where the sun is
SUNSET.event, SUNSET.lat, SUNSET.lon = "sunset", 51.5, 0.1
BEAT = {
    "monthly": {"task": "shop.bill", "schedule": crontab(minute="0", hour="9", day_of_week="mon", day_of_month="1-7")},
    "often": {"task": "shop.poll", "schedule": 30.0, "args": (1, "é"), "options": {"queue": "fast", "expires": 20}},
    "daily": {"task": "shop.report", "schedule": schedule(timedelta(days=1)), "kwargs": {"a": 1}},
    "dusk": {"task": "shop.lights", "schedule": SUNSET},
    "broken": {"schedule": 5},
}


@pytest.fixture(autouse=True)
def composition(transactional_db):
    Tenant.objects.get_or_create(slug="default")
    with wiring.override(queue=RecordingQueue(), now_us=lambda: ids.to_us(NOON), config=Config(partitions=8)):
        yield


def bring(entries=None, prefix="beat_schedule:", **options):
    entries = imports.from_beat_schedule(BEAT, "Europe/London") if entries is None else entries
    return bring_in(entries, prefix=prefix, tenant="default", **({"dry_run": False} | options))


def actions(lines):
    return {line.job.partition("/")[2]: line.action for line in lines}


def tables(**options):
    return bring(import_tables.read("UTC", NOON), import_tables.ORIGIN, **options)


def test_a_dry_run_says_what_would_become_of_each_entry_and_writes_nothing():
    lines = bring(dry_run=True)

    assert actions(lines) == {
        "monthly": "create", "often": "create", "daily": "create", "dusk": "refused", "broken": "refused"}
    assert Job.objects.count() == 0


def test_beat_schedule_is_taken_over_with_the_meaning_celery_gives_it():
    lines = {line.job: line for line in bring()}

    monthly, often = Job.objects.get(name="monthly"), Job.objects.get(name="often")
    assert imports.BOTH_DAYS in lines["default/monthly"].messages
    assert monthly.next_run_at == datetime(2026, 2, 2, 9, tzinfo=UTC)       # the first Monday; cron text: 12 January
    assert (monthly.timezone, monthly.max_attempts, monthly.source) == ("Europe/London", 1, "import")
    assert (often.expression, json.loads(often.args), often.expires_after_seconds) == ("30", [1, "é"], 20)
    assert any('queue "fast" is dropped' in message for message in lines["default/often"].messages)
    assert "solar" in lines["default/dusk"].messages[0]


def test_a_repeated_import_creates_nothing_twice_and_brings_changes_along():
    bring()
    jobs.pause(Job.objects.get(name="often"))
    jobs.update(Job.objects.get(name="often"), note="ours")
    changed = BEAT | {"often": BEAT["often"] | {"schedule": 60.0}}

    again, after = bring(), bring(imports.from_beat_schedule(changed, "Europe/London"))

    assert set(actions(again).values()) == {"unchanged", "refused"}
    assert actions(after)["often"] == "update"
    assert Job.objects.count() == 3
    often = Job.objects.get(name="often")
    assert (often.expression, often.paused, often.note) == ("60", True, "ours")


def test_a_shadow_keeps_what_it_will_be_and_a_repeated_import_leaves_it_one():
    bring(shadow=True, pools={"fast": "chrono.gold"})
    often = Job.objects.get(name="often")
    assert (often.target_kind, often.task, often.pool, often.queue) == (
        "shadow", "shop.poll", "chrono.relay", "chrono.gold")

    assert set(actions(bring(pools={"fast": "chrono.gold"})).values()) == {"unchanged", "refused"}
    assert actions(bring(pools={"fast": "chrono.silver"}))["often"] == "update"
    assert (Job.objects.get(name="often").target_kind, Job.objects.get(name="often").queue) == ("shadow", "chrono.silver")


def test_what_is_gone_there_is_reported_and_pruned_only_if_asked():
    bring()
    left = {"monthly": BEAT["monthly"]}

    reported = bring(imports.from_beat_schedule(left, "Europe/London"))
    assert (actions(reported)["often"], Job.objects.get(name="often").paused) == ("removed", False)
    bring(imports.from_beat_schedule(left, "Europe/London"), prune="pause", prune_all=True)
    assert Job.objects.get(name="often").paused
    bring(imports.from_beat_schedule(left, "Europe/London"), prune="delete", prune_all=True)
    assert [job.name for job in Job.objects.all()] == ["monthly"]


@pytest.mark.parametrize("left", [{}, {"monthly": BEAT["monthly"]}])
def test_pruning_most_of_what_there_is_takes_a_word_more_and_writes_nothing_without(left):
    bring()
    entries = list(imports.from_beat_schedule(left | ({"new": BEAT["daily"]} if left else {}), "Europe/London"))

    with pytest.raises(InvalidInput, match="--prune-all"):
        bring(entries, prune="delete")

    assert set(Job.objects.values_list("name", flat=True)) == {"monthly", "often", "daily"}
    bring(entries, prune="delete", prune_all=True)
    assert set(Job.objects.values_list("name", flat=True)) == {found.name for found in entries}


def test_pruning_less_than_half_goes_through():
    bring()

    lines = bring(imports.from_beat_schedule({key: BEAT[key] for key in ("monthly", "daily")}, "UTC"), prune="pause")

    assert actions(lines)["often"] == "pause"


def test_an_entry_that_cannot_be_read_any_more_is_not_gone():
    bring()
    broken = BEAT | {"often": BEAT["dusk"]}

    bring(imports.from_beat_schedule(broken, "Europe/London"), prune="delete")

    assert Job.objects.filter(name="often", paused=False).exists()


@pytest.mark.parametrize(("prune", "action", "paused"), [(None, "elsewhere", False), ("pause", "pause", True)])
def test_an_entry_that_another_tenant_has_now_is_still_active_in_the_old_one_until_it_is_pruned(prune, action, paused):
    Tenant.objects.create(slug="acme")
    bring()

    lines = bring(tenants={"shop.poll": "acme"}, prune=prune)

    [old] = [line for line in lines if line.job == "default/often"]
    assert (old.action, "acme" in old.messages[0]) == (action, True)
    assert Job.objects.get(name="often", tenant="default").paused is paused
    assert not Job.objects.get(name="often", tenant="acme").paused


def test_what_a_tenant_that_is_not_named_has_of_the_same_origin_is_told_and_left_alone():
    Tenant.objects.create(slug="acme")
    bring()

    lines = bring_in(imports.from_beat_schedule(BEAT, "UTC"), prefix="beat_schedule:", tenant="acme", dry_run=False,
                     prune="delete")

    assert {line.job for line in lines if line.action == "elsewhere"} == {
        "default/monthly", "default/often", "default/daily"}
    assert Job.objects.filter(tenant="default", paused=False).count() == 3


def test_an_expiry_without_a_zone_is_read_in_the_zone_of_the_app():
    naive = {"a": BEAT["often"] | {"options": {"expires": datetime(2026, 7, 1, 12)}}}

    [found] = imports.from_beat_schedule(naive, "Europe/London")

    assert found.definition.end == datetime(2026, 7, 1, 11, tzinfo=UTC)


def test_a_name_that_another_job_holds_is_refused_and_the_others_go_on():
    jobs.create(name="often", task="shop.own", cron="0 1 * * *")

    lines = actions(bring())

    assert (lines["often"], lines["daily"]) == ("refused", "create")
    assert Job.objects.get(name="often").task == "shop.own"


def test_tasks_and_queues_are_mapped_to_tenants_and_pools():
    Tenant.objects.create(slug="acme")

    bring(tenants={"shop.poll": "acme"}, pools={"fast": "chrono.fast"}, paused=True)

    often = Job.objects.get(name="often")
    assert (often.tenant, often.pool, often.paused) == ("acme", "chrono.fast", True)


def test_the_tables_of_django_celery_beat_are_taken_over():
    tab = CrontabSchedule.objects.create(minute="30", hour="2", timezone="America/New_York")
    five = IntervalSchedule.objects.create(every=5, period="minutes")
    clock = ClockedSchedule.objects.create(clocked_time=NOON + timedelta(days=2))
    sun = SolarSchedule.objects.create(event="sunset", latitude=51.5, longitude=0.1)
    PeriodicTask.objects.create(
        name="tab", task="t", crontab=tab, enabled=False, description="why", args="[1]", headers='{"x": "y"}',
        expires=NOON + timedelta(days=30), start_time=NOON + timedelta(days=1), priority=3, exchange="e")
    PeriodicTask.objects.create(
        name="five", task="t", interval=five, last_run_at=NOON - timedelta(minutes=2), expire_seconds=60)
    PeriodicTask.objects.create(name="clock", task="t", clocked=clock, one_off=True)
    PeriodicTask.objects.create(name="sun", task="t", solar=sun)
    PeriodicTask.objects.create(name="next", task="t", crontab=tab, one_off=True)
    PeriodicTask.objects.create(name="text", task="t", interval=five)
    PeriodicTask.objects.filter(name="text").update(args="[1,")

    lines = tables()

    assert actions(lines) == {"tab": "create", "five": "create", "clock": "create", "sun": "refused", "next": "create",
                              "text": "refused"}
    found = {job.name: job for job in Job.objects.all()}
    assert (found["tab"].paused, found["tab"].note, found["tab"].priority) == (True, "why", 3)
    assert (found["tab"].start_at, found["tab"].end_at) == (NOON + timedelta(days=1), NOON + timedelta(days=30))
    assert (found["tab"].timezone, json.loads(found["tab"].headers)) == ("America/New_York", {"x": "y"})
    assert (found["five"].next_run_at, found["five"].expires_after_seconds) == (NOON + timedelta(minutes=3), 60)
    assert found["clock"].next_run_at == NOON + timedelta(days=2)
    assert (found["next"].schedule_kind, found["next"].next_run_at) == ("once", datetime(2026, 1, 8, 7, 30, tzinfo=UTC))


def test_what_ran_there_meanwhile_or_ran_once_here_is_not_planned_again():
    five = IntervalSchedule.objects.create(every=5, period="minutes")
    PeriodicTask.objects.create(name="five", task="t", interval=five, last_run_at=NOON)
    PeriodicTask.objects.create(name="one", task="t", interval=five, one_off=True)
    tables()
    PeriodicTask.objects.filter(name="five").update(last_run_at=NOON + timedelta(minutes=7))
    Job.objects.filter(name="one").update(finished_at=NOON, next_run_at=None)

    assert set(actions(tables()).values()) == {"unchanged"}
    assert Job.objects.get(name="one").next_run_at is None

    PeriodicTask.objects.filter(name="five").update(args="[2]")
    assert actions(tables())["five"] == "update"
    assert (Job.objects.get(name="five").args, Job.objects.get(name="five").anchor_at) == ("[2]", NOON)


def test_a_single_instant_that_is_moved_there_is_moved_here_also_after_it_has_run():
    clock = ClockedSchedule.objects.create(clocked_time=NOON + timedelta(days=2))
    PeriodicTask.objects.create(name="clock", task="t", clocked=clock, one_off=True)
    tables()

    ClockedSchedule.objects.update(clocked_time=NOON + timedelta(days=1))
    assert actions(tables()) == {"clock": "update"}
    assert Job.objects.get().next_run_at == NOON + timedelta(days=1)

    Job.objects.update(finished_at=NOON, next_run_at=None)
    assert actions(tables()) == {"clock": "unchanged"}
    ClockedSchedule.objects.update(clocked_time=NOON + timedelta(days=3))
    assert actions(tables()) == {"clock": "create"}
    assert Job.objects.get(finished_at=None).next_run_at == NOON + timedelta(days=3)


def test_what_has_run_its_one_time_there_stays_a_single_instant_here():
    tab = CrontabSchedule.objects.create(minute="30", hour="2", timezone="UTC")
    PeriodicTask.objects.create(name="one", task="t", crontab=tab, one_off=True)
    tables()
    PeriodicTask.objects.update(total_run_count=1, last_run_at=NOON)

    assert actions(tables()) == {"one": "unchanged"}
    assert (Job.objects.get().schedule_kind, Job.objects.get().next_run_at) == ("once", datetime(2026, 1, 8, 2, 30, tzinfo=UTC))


def test_the_zone_setting_of_django_celery_beat_is_obeyed(settings):
    settings.DJANGO_CELERY_BEAT_TZ_AWARE = False
    tab = CrontabSchedule.objects.create(minute="30", hour="2", timezone="America/New_York")
    PeriodicTask.objects.create(name="tab", task="t", crontab=tab)

    tables()

    assert Job.objects.get().timezone == "UTC"


def test_a_crontab_file_becomes_runs_of_one_task(tmp_path):
    text = "\n".join((
        "# jobs", "MAILTO=ops@example.org", "0 9 * * mon-fri  /bin/report --to a\\%b%first%second", "CRON_TZ=Asia/Tokyo",
        "@daily /bin/clean", "@reboot /bin/boot", "61 * * * * /bin/wrong", "5 5 * * *"))

    lines = bring(imports.from_crontab(text, source="tab", task="ops.run", timezone="UTC"), "crontab:tab:")

    report, clean = Job.objects.get(name__startswith="/bin/report"), Job.objects.get(name__startswith="/bin/clean")
    assert json.loads(report.kwargs) == {
        "command": "/bin/report --to a%b", "stdin": "first\nsecond\n", "env": {"MAILTO": "ops@example.org"}}
    assert (report.timezone, clean.timezone, clean.task) == ("UTC", "Asia/Tokyo", "ops.run")
    assert [line.action for line in lines] == ["create", "create", "refused", "refused", "refused"]


def test_a_system_crontab_names_the_user():
    [found] = imports.from_crontab("*/5 * * * * root /bin/a b", source="s", task="ops.run", timezone="UTC", system=True)

    assert found.definition.kwargs == {"command": "/bin/a b", "user": "root"}


def test_a_zone_in_place_of_a_command_is_refused():
    [found] = imports.from_crontab("30 8 * * * Europe/London", source="s", task="ops.run", timezone="UTC")

    assert "CRON_TZ=Europe/London" in found.problem


def test_crontab_files_of_one_name_are_told_apart_by_their_folder_or_the_name_given(tmp_path):
    app = Celery("moving", set_as_current=False)
    ChronoBeat(app)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tab").write_text(f"0 9 * * * /bin/{folder}\n")
        done = CliRunner().invoke(
            chrono, ["import", "crontab", str(tmp_path / folder / "tab"), "--task", "ops.run", "--timezone", "UTC",
                     "--prune", "delete", "--apply"], obj=SimpleNamespace(app=app))
        assert done.exit_code == 0, done.output
    (tmp_path / "a" / "tab").write_text("0 9 * * * /bin/c\n")
    CliRunner().invoke(
        chrono, ["import", "crontab", str(tmp_path / "a" / "tab"), "--task", "ops.run", "--timezone", "UTC", "--name",
                 "host1", "--apply"], obj=SimpleNamespace(app=app))

    assert [origin.rpartition(":")[0] for origin in Job.objects.order_by("id").values_list("origin", flat=True)] == [
        *(f"crontab:{tmp_path.resolve()}/{folder}/tab" for folder in ("a", "b")), "crontab:host1"]


def test_the_command_writes_only_with_apply_and_its_exit_status_tells_refusals():
    app = Celery("moving", set_as_current=False)
    ChronoBeat(app)
    app.conf.update(beat_schedule=BEAT, timezone="Asia/Tokyo")

    def run(*line):
        return CliRunner().invoke(chrono, ["import", *line], obj=SimpleNamespace(app=app))

    dry = run("beat-schedule")
    assert (dry.exit_code, Job.objects.count()) == (1, 0), dry.output
    assert "Nothing was written" in dry.output
    assert run("beat-schedule", "--apply", "--json").exit_code == 1
    assert Job.objects.get(name="monthly").timezone == "Asia/Tokyo"
    assert run("crontab").exit_code == 2


@pytest.mark.parametrize(("backend", "expires", "added"), [
    ("file://{}", 86_400, True), ("redis://", 86_400, False), ("file://{}", None, False)])
def test_the_entry_that_celery_adds_for_results_that_expire_is_taken_over_where_celery_adds_it(
        tmp_path, backend, expires, added):
    app = Celery("moving", set_as_current=False)
    ChronoBeat(app)
    app.conf.update(beat_schedule={"daily": BEAT["daily"]}, timezone="UTC",
                    result_backend=backend.format(tmp_path), result_expires=expires)

    def run(*line):
        return CliRunner().invoke(chrono, line, obj=SimpleNamespace(app=app))

    done = run("import", "beat-schedule", "--apply")
    assert ("without it, results that have expired stay" in done.stdout) is added, done.output
    cleanup = Job.objects.filter(name="celery.backend_cleanup", task="celery.backend_cleanup")
    assert [(job.next_run_at, job.expires_after_seconds) for job in cleanup] == (
        [(NOON.replace(day=8, hour=4), 12 * 3600)] if added else [])
    assert ("celery.backend_cleanup: 1 agree" in run("shadow").stdout) is added


def test_a_result_backend_that_cannot_be_asked_is_named():
    app = Celery("moving", set_as_current=False, backend="file:///nowhere/at/all")
    ChronoBeat(app)

    done = CliRunner().invoke(chrono, ["import", "beat-schedule"], obj=SimpleNamespace(app=app))

    assert done.exit_code == 2 and "result_backend: cannot be used" in done.stderr


def test_a_report_says_celerys_fields_as_they_are_written(composition):
    assert {line.job: line.schedule for line in bring(dry_run=True)}["default/monthly"] == "celery 0 9 mon 1-7 * Europe/London"
