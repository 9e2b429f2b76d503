"""``sync`` makes the stored jobs what the code says, whoever else does so meanwhile, and leaves pauses to operators."""
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from celery import Celery

from chrono_beat import Retry, every, scheduled
from chrono_beat.celery import decorators
from chrono_beat.core import ids
from chrono_beat.core.config import Config
from chrono_beat.core.errors import InvalidInput
from chrono_beat.core.schedule import Interval
from chrono_beat_django import jobs, wiring
from chrono_beat_django.models import Job, JobEvent, Tenant
from chrono_beat_django.sync import REMOVED_NOTE, sync
from tests.crowd import at_once
from tests.django.fakes import RecordingQueue

NOON = datetime(2026, 1, 7, 12, tzinfo=UTC)
PROCESSES = 8


@pytest.fixture
def queue():
    return RecordingQueue()


@pytest.fixture(autouse=True)
def composition(transactional_db, monkeypatch, queue):
    monkeypatch.setattr(decorators, "_declarations", [])
    Tenant.objects.get_or_create(slug="default")
    with wiring.override(queue=queue, now_us=lambda: ids.to_us(NOON), config=Config(partitions=8)):
        yield


def code(*schedules):
    """An app as it would be after a deploy: one task for each (name, schedule, options)."""
    decorators._declarations.clear()
    app = Celery("deployed", fixups=[], set_as_current=False)
    for name, when, *options in schedules:
        def run():
            """Do what the job is there for."""

        app.task(shared=False, name=f"shop.{name}")(scheduled(when, name=name, **dict(*options))(run))
    return app


REPORT, CLEAN = ("report", "0 9 * * *"), ("clean", "0 3 * * *")


def job(name):
    return Job.objects.get(name=name)


def test_what_the_code_says_is_created_once():
    first = sync(code(REPORT, CLEAN))
    second = sync(code(REPORT, CLEAN))

    assert first.created == ("default/clean", "default/report")
    assert (second.created, second.updated, second.paused) == ((), (), ())
    assert second.unchanged == first.created
    assert (job("report").task, job("report").source, job("report").version) == ("shop.report", "decorator", 1)
    assert job("report").next_run_at == datetime(2026, 1, 8, 9, tzinfo=UTC)


@pytest.mark.parametrize("when", [
    every(minutes=10), "@hourly", Interval(60, anchor=NOON), Interval(60, start=NOON + timedelta(days=1)),
])
def test_every_kind_of_schedule_is_found_unchanged_again(when):
    options = {"kwargs": {"a": [1, "é"]}, "retry": Retry(max_attempts=2), "max_duration": timedelta(minutes=1)}
    sync(code(("report", when, options)))

    assert sync(code(("report", when, options))).unchanged == ("default/report",)
    assert JobEvent.objects.count() == 1


def test_changed_code_updates_the_job(queue):
    sync(code(REPORT))
    before = job("report")

    report = sync(code(("report", "0 10 * * *", {"priority": 1})), actor="deploy 7")

    assert report.updated == ("default/report",)
    after = job("report")
    assert (after.id, after.version, after.priority) == (before.id, 2, 1)
    assert after.next_run_at == datetime(2026, 1, 8, 10, tzinfo=UTC)
    assert queue.voids == [(0, str(before.id), 2)]
    assert JobEvent.objects.order_by("id").last().actor == "deploy 7"


def test_an_operators_pause_survives_a_deploy():
    sync(code(REPORT))
    jobs.pause(job("report"), note="supplier is down", actor="ada")

    assert sync(code(REPORT)).unchanged == ("default/report",)
    assert sync(code(("report", "0 10 * * *"))).updated == ("default/report",)

    stored = job("report")
    assert (stored.paused, stored.next_run_at, stored.note) == (True, None, "supplier is down")


def test_what_left_the_code_is_paused_with_a_note_and_comes_back():
    sync(code(REPORT, CLEAN))
    jobs.update(job("clean"), note="mine")

    assert sync(code(REPORT)).paused == ("default/clean",)
    gone = job("clean")
    assert (gone.paused, gone.next_run_at, gone.note) == (True, None, f"mine\n{REMOVED_NOTE}")
    assert sync(code(REPORT)).paused == ()

    assert sync(code(REPORT, CLEAN)).updated == ("default/clean",)
    back = job("clean")
    assert (back.paused, back.note, back.next_run_at) == (False, "mine", datetime(2026, 1, 8, 3, tzinfo=UTC))


def test_an_operators_pause_also_survives_leaving_and_coming_back():
    sync(code(REPORT, CLEAN))
    jobs.pause(job("clean"), actor="ada")
    assert sync(code(REPORT)).paused == ()

    sync(code(REPORT, CLEAN))

    assert job("clean").paused


def test_pruning_may_be_left_out_and_touches_only_what_came_from_code():
    sync(code(REPORT, CLEAN))
    jobs.create(name="by hand", task="shop.report", cron="0 3 * * *")

    assert sync(code(), prune=False).paused == ()
    assert sync(code()).paused == ("default/clean", "default/report")
    assert not job("by hand").paused


def test_a_one_off_that_has_run_is_not_made_again():
    at = {"when": None, "at": NOON + timedelta(minutes=1)}
    app = code(("report", None, {"at": at["at"]}))
    assert sync(app).created == ("default/report",)
    Job.objects.update(next_run_at=None, finished_at=NOON + timedelta(minutes=2))

    with wiring.override(now_us=lambda: ids.to_us(NOON + timedelta(days=1))):
        assert sync(app).unchanged == ("default/report",)

    assert Job.objects.count() == 1


@pytest.mark.parametrize(("schedules", "field", "words"), [
    ([REPORT, ("clean", "0 3 * * *", {"tenant": "nobody"})], "shop.clean: tenant", 'no tenant "nobody"'),
    ([REPORT, ("clean", "0 3 * * *", {"pool": "gold"})], "shop.clean: pool", "chrono.gold"),
    ([REPORT, ("clean", "0 3 * * *", {"kwargs": {"x": "y" * 300_000}})], "shop.clean: kwargs", "262,144"),
])
def test_a_wrong_declaration_is_named_by_its_task_and_nothing_is_written(schedules, field, words):
    with pytest.raises(InvalidInput, match=words) as refused:
        sync(code(*schedules))

    assert refused.value.field == field
    assert not Job.objects.exists()


def test_two_schedules_of_one_task_need_names():
    app = Celery("deployed", fixups=[], set_as_current=False)

    @app.task(shared=False, name="shop.report")
    @scheduled("0 9 * * *")
    @scheduled("0 17 * * *")
    def report():
        """Write."""

    with pytest.raises(InvalidInput, match="declared twice"):
        sync(app)


def test_a_job_of_somebody_else_is_not_taken_over():
    jobs.create(name="report", task="shop.other", cron="0 3 * * *")

    with pytest.raises(InvalidInput, match="does not come from code"):
        sync(code(REPORT))

    assert job("report").task == "shop.other"


def test_warnings_are_told():
    [warning] = sync(code(("report", "0 9 * * *", {"idempotent": False, "retry": Retry(max_attempts=3)}))).warnings

    assert warning.startswith("default/report: retry: ")


def test_eight_at_once_create_and_update_once():
    app = code(REPORT, CLEAN)
    created = at_once(PROCESSES, lambda _: sync(app))
    app = code(("report", "0 10 * * *"))
    updated = at_once(PROCESSES, lambda _: sync(app))

    assert [error for error in created + updated if isinstance(error, Exception)] == []
    assert sorted(name for report in created for name in report.created) == ["default/clean", "default/report"]
    assert [name for report in updated for name in report.updated] == ["default/report"]
    assert [name for report in updated for name in report.paused] == ["default/clean"]
    assert [job("report").version, job("clean").version] == [2, 2]
    assert JobEvent.objects.count() == 4


SYNC_PROCESS = """
import sys
import django
django.setup()
from celery import Celery
from chrono_beat import scheduled
from chrono_beat_django import wiring
from chrono_beat_django.sync import sync
from tests.django.fakes import RecordingQueue

app = Celery("deployed", fixups=[], set_as_current=False)
for number in range(20):
    @app.task(shared=False, name=f"shop.task{number}")
    @scheduled(f"{number} {sys.argv[1]} * * *")
    def run():
        pass

print("ready", flush=True)
sys.stdin.readline()
with wiring.override(queue=RecordingQueue()):
    report = sync(app)
print(len(report.created), len(report.updated), len(report.unchanged), len(report.paused), flush=True)
"""


@pytest.mark.postgres
def test_r111_eight_processes_of_a_deploy_on_postgresql(postgres_server):
    postgres_server.create_database("deployed_by_eight")
    environment = {
        **os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": os.getcwd(),
        "CHRONO_TEST_DSN": postgres_server.dsn_of("deployed_by_eight"),
    }
    subprocess.run([sys.executable, "-m", "django", "migrate", "-v0"], env=environment, check=True)

    for hour, column in ((3, 0), (4, 1)):                      # the first deploy creates, the second updates
        processes = [
            subprocess.Popen([sys.executable, "-c", SYNC_PROCESS, str(hour)], env=environment, text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for _ in range(PROCESSES)
        ]
        assert [process.stdout.readline() for process in processes] == ["ready\n"] * PROCESSES
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        told = [[int(number) for number in process.communicate(timeout=60)[0].split()] for process in processes]

        assert [process.returncode for process in processes] == [0] * PROCESSES
        assert [sum(numbers) for numbers in told] == [20] * PROCESSES
        assert sum(numbers[column] for numbers in told) == 20      # each job by exactly one of them
