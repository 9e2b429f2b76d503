"""A shadow goes live between two occurrences: what the old scheduler sent is not sent again, and nothing is left out."""
import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from celery import Celery
from click.testing import CliRunner

from chrono_beat.celery import ChronoBeat
from chrono_beat.celery.commands import chrono
from chrono_beat.core import ids, imports
from chrono_beat.core.config import Config
from chrono_beat.core.errors import Conflict
from chrono_beat_django import doctor, jobs, shadowing, wiring
from chrono_beat_django.importing import bring_in
from chrono_beat_django.models import Execution, Job, JobEvent, Tenant
from tests.django.fakes import RecordingQueue

NOON = datetime(2026, 1, 7, 12, tzinfo=UTC)
BEAT = {"poll": {"task": "shop.poll", "schedule": 60.0, "args": (1,), "options": {"queue": "fast"}},
        "bill": {"task": "shop.bill", "schedule": 3600.0}}


@pytest.fixture(autouse=True)
def clock(transactional_db):
    Tenant.objects.get_or_create(slug="default")
    clock = SimpleNamespace(now=NOON)
    with wiring.override(queue=RecordingQueue(), now_us=lambda: ids.to_us(clock.now), config=Config(partitions=8)):
        bring_in(imports.from_beat_schedule(BEAT, "UTC"), prefix="beat_schedule:", tenant="default", shadow=True,
                 pools={"fast": "chrono.gold"}, dry_run=False)
        yield clock


def claim(job, at, state="scheduled"):
    return Execution.objects.create(
        id=ids.execution_id(str(job.id), ids.to_us(at), 1), job_id=job.id, tenant=job.tenant, job_name=job.name,
        job_version=job.version, scheduled_at=at, due_at=at, first_due_at=at, state=state, partition=job.partition)


def test_what_is_due_later_is_sent_and_what_was_due_is_not(clock):
    poll = Job.objects.get(name="poll")
    Job.objects.filter(id=poll.id).update(next_run_at=NOON + timedelta(minutes=2))
    sent, coming = claim(poll, NOON - timedelta(seconds=20), "queued"), claim(poll, NOON + timedelta(seconds=40))

    live = shadowing.go_live(poll, actor="ann")

    assert (live.target_kind, live.task, live.pool, live.queue) == ("task", "shop.poll", "chrono.gold", "")
    assert live.next_run_at == NOON + timedelta(minutes=2)
    rows = {row.id: row for row in Execution.objects.filter(job_id=poll.id)}
    assert rows[sent.id].cancel_requested_at and not rows[coming.id].cancel_requested_at
    assert rows[coming.id].state == "scheduled"
    told = JobEvent.objects.filter(job_id=poll.id, action="go_live").get()
    assert told.actor == "ann" and json.loads(told.detail)["after"]["target_kind"] == "task"


@pytest.mark.parametrize("row", [False, True], ids=["not claimed yet", "claimed ahead"])
def test_it_waits_until_no_occurrence_is_near(clock, row):
    poll = Job.objects.get(name="poll")
    near = NOON + timedelta(seconds=9)
    Job.objects.filter(id=poll.id).update(next_run_at=NOON + timedelta(minutes=1) if row else near)
    if row:
        claim(poll, near)

    with pytest.raises(Conflict, match="12:00:09Z"):
        shadowing.go_live(poll)

    assert Job.objects.get(id=poll.id).target_kind == "shadow"
    clock.now = NOON + timedelta(seconds=20)
    Job.objects.filter(id=poll.id).update(next_run_at=NOON + timedelta(minutes=1))
    shadowing.go_live(poll)
    with pytest.raises(Conflict, match="no shadow"):
        shadowing.go_live(poll)


def test_a_repeated_import_leaves_alone_what_is_live(clock):
    poll = Job.objects.get(name="poll")
    Job.objects.filter(id=poll.id).update(next_run_at=NOON + timedelta(minutes=1))
    shadowing.go_live(poll)

    lines = bring_in(imports.from_beat_schedule(BEAT, "UTC"), prefix="beat_schedule:", tenant="default", shadow=True,
                     pools={"fast": "chrono.gold"}, dry_run=False)

    assert {line.action for line in lines} == {"unchanged"}
    assert Job.objects.get(name="poll").target_kind == "task"


def test_the_command_takes_names_or_all_and_tells_which_were_too_near(clock):
    app = Celery("moving", set_as_current=False)
    ChronoBeat(app)
    Job.objects.filter(name="poll").update(next_run_at=NOON + timedelta(seconds=3))
    Job.objects.filter(name="bill").update(next_run_at=NOON + timedelta(hours=1))

    def run(*line):
        return CliRunner().invoke(chrono, ["jobs", "go-live", *line], obj=SimpleNamespace(app=app))

    assert run().exit_code == 2 and run("poll", "--all").exit_code == 2 and run("none").exit_code == 3
    both = run("--all", "--json")
    assert both.exit_code == 1
    told = json.loads(both.stdout)
    assert [job["name"] for job in told["live"]] == ["bill"] and list(told["refused"]) == ["default/poll"]
    Job.objects.filter(name="poll").update(next_run_at=NOON + timedelta(minutes=3))
    done = run("poll")
    assert done.exit_code == 0 and "default/poll is live, next run" in done.output
    assert "no shadow is left" in run("--all").output
    assert {jobs.definition_of(job).target_kind for job in Job.objects.all()} == {"task"}


def test_the_doctor_names_the_relay_that_shadows_lack(clock, monkeypatch):
    def told(*pools):
        reports = [SimpleNamespace(pools=pools, tasks=(), worker="relay", pool_class="relay")] if pools else []
        monkeypatch.setattr(RecordingQueue, "workers", lambda self: reports, raising=False)
        return {(finding.check, finding.level): finding for finding in doctor._workers()}

    lacking = told()
    assert "role relay" in lacking["relay", doctor.BAD].mend
    assert not any("chrono.relay" in finding.mend for finding in lacking.values())
    assert ("relay", doctor.BAD) not in told("chrono.relay")
