"""``celery -A proj chrono …`` as a user types it: output, JSON, exit status."""
import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from celery import Celery
from click.testing import CliRunner

from chrono_beat.celery.commands import chrono
from chrono_beat.core.errors import QueueUnavailable
from chrono_beat_django import jobs, wiring
from chrono_beat_django.models import Execution, Job, JobEvent

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.redis]

def test_create_says_when_it_runs_next_in_the_jobs_zone(run):
    out = run("jobs", "create", "nightly", "--task", "shop.report", "--cron", "30 2 * * *", "--timezone",
              "Europe/London")

    assert "created default/nightly, next run" in out
    assert "02:30:00 Europe/London" in out
    assert JobEvent.objects.get().actor == "command line"


@pytest.mark.parametrize(("arguments", "field"), [
    (["--cron", "*/61 * * * *"], "cron"),
    (["--cron", "* * * * *", "--timezone", "Europe/Nowhere"], "timezone"),
    (["--every", "soon"], "every"),
    (["--every", "-5"], "every"),
    (["--cron", "* * * * *", "--args", "[1,"], "args"),
    (["--cron", "* * * * *", "--kwargs", json.dumps({"blob": "x" * 5_000_000})], "kwargs"),
    (["--cron", "* * * * *", "--priority", "11"], "priority"),
    (["--cron", "* * * * *", "--every", "5s"], "schedule"),
    ([], "schedule"),
])
def test_wrong_input_names_the_field_and_writes_nothing(run, arguments, field):
    out = run("jobs", "create", "wrong", "--task", "shop.report", *arguments, status=2)

    assert f"Error: {field}: " in out
    assert field != "schedule" or "--cron, --every, --at and --crontab" in out
    assert not Job.objects.exists()
    assert not JobEvent.objects.exists()


def test_list_shows_people_a_table_and_programs_json(run, nightly):
    lines = run("jobs", "list").splitlines()
    told = json.loads(run("jobs", "list", "--json"))

    assert lines[0].split() == ["tenant", "name", "schedule", "target", "state", "next", "run"]
    assert "30 2 * * * (Europe/London)" in lines[1]
    assert [job["name"] for job in told] == ["nightly"]
    assert told[0]["state"] == "active"
    assert told[0]["next_run_at"].endswith("Z")


def test_show_has_the_last_executions(run, nightly):
    run("jobs", "trigger", "nightly")

    told = json.loads(run("jobs", "show", "nightly", "--json"))

    assert [row["state"] for row in told["executions"]] == ["scheduled"]
    assert "scheduled" in run("jobs", "show", "nightly")


def test_pause_and_resume(run, nightly):
    assert run("jobs", "pause", "nightly") == "paused default/nightly\n"
    assert jobs.get("default", "nightly").next_run_at is None

    assert "resumed default/nightly, next run" in run("jobs", "resume", "nightly")
    assert jobs.get("default", "nightly").next_run_at is not None


def test_trigger_makes_one_manual_execution_and_leaves_the_plan_alone(run, nightly):
    out = run("jobs", "trigger", "nightly")

    row = Execution.objects.get()
    assert row.id in out
    assert row.kind == "manual"
    assert jobs.get("default", "nightly").next_run_at == nightly.next_run_at


def test_trigger_says_what_is_in_the_way(run, nightly):
    run("jobs", "trigger", "nightly")
    Execution.objects.update(state="running", started_at=datetime(2026, 1, 1, 9, tzinfo=UTC))
    active = Execution.objects.get()

    assert f"it may be skipped, for {active.id}, which runs since 2026-01-01T09:00:00+00:00" in run(
        "jobs", "trigger", "nightly")


def test_delete_keeps_the_history(run, nightly):
    run("jobs", "trigger", "nightly")

    run("jobs", "delete", "nightly", status=1)                              # nobody said yes
    run("jobs", "delete", "nightly", "--yes")

    assert not Job.objects.exists()
    assert Execution.objects.count() == 1


def test_preview_lists_runs_in_the_zone(run, nightly):
    lines = run("jobs", "preview", "nightly", "--count", "3").splitlines()
    told = json.loads(run("jobs", "preview", "nightly", "--count", "3", "--json"))

    assert len([line for line in lines if "02:30:00 Europe/London" in line]) == 3
    assert len(told["runs"]) == 3
    assert told["timezone"] == "Europe/London"
    assert lines[0] == told["words"] == "At 02:30, on the clocks of Europe/London"
    assert told["words"] in run("jobs", "show", "nightly")


def test_doctor_names_what_is_missing_and_how_to_mend_it(run, nightly):
    told = json.loads(run("doctor", "--json", status=1))

    levels = {(finding["check"], finding["level"]) for finding in told}
    assert {("versions", "ok"), ("database", "ok"), ("indexes", "ok"), ("redis", "ok"), ("eviction", "ok")} <= levels
    assert ("dispatchers", "error") in levels
    assert ("workers", "error") in levels
    assert all(finding["mend"] for finding in told if finding["level"] == "error")
    people = run("doctor", status=1)
    assert "no live worker draws chrono" in people


def test_doctor_finds_an_evicting_redis(run, queue, redis_server):
    import redis

    client = redis.Redis.from_url(redis_server.url)
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        told = json.loads(run("doctor", "--json", status=1))
    finally:
        client.config_set("maxmemory-policy", "noeviction")

    assert ("eviction", "error") in {(finding["check"], finding["level"]) for finding in told}


class AwayQueue:
    """A Redis that does not answer."""

    def __getattr__(self, name):
        def refuse(*_, **__):
            raise QueueUnavailable("connection refused")

        return refuse


def test_doctor_goes_on_where_redis_is_away(run):
    with wiring.override(queue=AwayQueue()):
        told = json.loads(run("doctor", "--json", status=1))

    by_check = {finding["check"]: finding for finding in told}
    assert by_check["redis"]["level"] == "error"
    assert "connection refused" in by_check["redis"]["message"]
    assert by_check["database"]["level"] == "ok"


def test_an_edit_stands_where_redis_is_away(run, nightly):
    with wiring.override(queue=AwayQueue()):
        out = run("jobs", "pause", "nightly", status=1)

    assert "Warning: the edit of job" in out and "Redis could not be told" in out

    assert jobs.get("default", "nightly").paused


def test_unknown_roles_are_refused_before_anything_starts(run):
    assert "known are dispatch, record" in run("run", "--roles", "dispatch,dance", status=2)


def test_an_app_without_chrono_beat_is_told_what_to_add():
    done = CliRunner().invoke(chrono, ["jobs", "list"], obj=SimpleNamespace(app=Celery("bare", set_as_current=False)))

    assert done.exit_code == 2
    assert "add ChronoBeat(app)" in done.output


def test_sync_reports_what_it_did(run):
    told = json.loads(run("sync", "--json"))

    assert {"created", "updated", "unchanged", "paused"} <= told.keys()


def test_a_resume_may_look_back(run, nightly):
    run("jobs", "pause", "nightly")
    Job.objects.update(paused_at="2026-01-01T00:00:00Z")

    run("jobs", "resume", "nightly", "--missed", "all", "--limit", "3")

    assert [row.kind for row in Execution.objects.all()] == ["backfill"] * 3
    run("jobs", "resume", "nightly", "--missed", "some", status=2)


def test_backfill_says_what_it_did_and_from_where_to_go_on(run, nightly):
    line = ["jobs", "backfill", "nightly", "2025-01-01T00:00Z", "2025-01-11T00:00Z", "--limit", "4"]

    assert run(*line) == ("4 runs of default/nightly to be made up for, 0 were there already\n"
                          "6 are left out; go on from 2025-01-05T02:30:00Z\n")
    assert json.loads(run(*line, "--json")) == {
        "created": 0, "existing": 4, "left_out": 6, "go_on_from": "2025-01-05T02:30:00Z", "end": "2025-01-11T00:00:00Z"}
    assert "Error: start: " in run("jobs", "backfill", "nightly", "2025-01-01", "2025-01-11T00:00Z", status=2)


def test_r165_executions_are_found_by_how_late_they_started_shown_and_cancelled(run, nightly):
    """A run that started 90 s late: its instants by stage, its lateness, and the list of what was later than a minute."""
    for _ in range(2):
        run("jobs", "trigger", "nightly")
    late, open_ = Execution.objects.order_by("scheduled_at")
    Execution.objects.filter(id=late.id).update(
        state="succeeded", published_at=late.due_at + timedelta(seconds=80), started_at=late.due_at + timedelta(seconds=90),
        finished_at=late.due_at + timedelta(seconds=92), deliveries=2)

    (found,) = json.loads(run("executions", "list", "--late", "60s", "--json"))
    assert (found["id"], found["publish_lateness"], found["lateness"], found["duration"], found["deliveries"]) == (
        late.id, 80, 90, 2, 2)
    assert run("executions", "list", "--late", "2m", "--json") == "[]\n"
    assert "90.000" in run("executions", "list", "--tenant", "default", "--job", "nightly", "--state", "succeeded")
    assert "lateness             90.000 s" in run("executions", "show", late.id)
    assert run("executions", "cancel", open_.id) == f"cancelled {open_.id}\n"
    open_.refresh_from_db()
    assert open_.cancel_requested_at is not None
    assert "it is succeeded" in run("executions", "cancel", late.id, status=4)


@pytest.mark.parametrize(("line", "field"), [
    (("--state", "runing"), "state: "), (("--from", "2026-01-02T09:00"), "from: "), (("--late", "soon"), "late: "),
    (("--job", "nightly"), "tenant: "), (("--reason", "bad luck"), "reason: "),
])
def test_a_search_for_executions_that_makes_no_sense_names_the_option(run, line, field):
    assert f"Error: {field}" in run("executions", "list", *line, status=2)


def test_dead_letters_are_listed_replayed_and_discarded(run, nightly):
    for _ in range(3):
        run("jobs", "trigger", "nightly")
    Execution.objects.update(state="dead", reason="error", error="ValueError: no card\n…", finished_at="2026-01-01T00:00:00Z")
    first, second, third = Execution.objects.order_by("scheduled_at")

    assert "ValueError: no card" in run("dead", "list", "--older", "1d")
    assert len(json.loads(run("dead", "list", "--json", "--tenant", "default", "--job", "nightly"))) == 3
    assert f"to be run now as {first.id[:-1]}2" in run("dead", "replay", first.id)
    assert "was replayed at" in run("dead", "discard", first.id, status=1)
    out = run("dead", "discard", "--all", "--reason", "error", "--limit", "1")
    assert "discarded" in out and "repeat the command for the rest" in out
    assert len(json.loads(run("dead", "list", "--json"))) == 1
    assert "Error: ids: " in run("dead", "replay", status=2)
    assert "Error: tenant: " in run("dead", "list", "--job", "nightly", status=2)


def test_a_url_or_a_queue_is_created_with_its_warning_and_without_its_secrets(run):
    run("jobs", "create", "hook", "--url", "https://shop.example/hook", "--timeout", "5s", "--cron", "0 9 * * *",
        "--headers", '{"Authorization": "Bearer s3cret"}')
    out = run("jobs", "create", "mail", "--task", "shop.mail", "--queue", "mail", "--cron", "0 9 * * *")

    shown = run("jobs", "show", "hook", "--json")
    assert json.loads(shown)["target_kind"] == "http" and "s3cret" not in shown
    assert jobs.get("default", "hook").timeout_seconds == 5.0
    assert "Warning: queue: the execution has succeeded as soon as the broker has the message" in out
    assert "Error: url: " in run("jobs", "create", "x", "--url", "http://127.0.0.1/", "--cron", "0 9 * * *", status=2)
