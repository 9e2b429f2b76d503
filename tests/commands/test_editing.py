"""``chrono jobs create`` and ``update``: every field has an option, an edit is shown before it is made, and may be tried."""
import dataclasses
import json
import uuid

import pytest

from chrono_beat.celery.commands import options
from chrono_beat.core import ids
from chrono_beat.core.definition import FIELDS
from chrono_beat.core.retry import Retry
from chrono_beat_django import jobs, wiring
from chrono_beat_django.models import Job, JobEvent, Tenant
from tests.django.adminkit import NOON, crowd

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.redis]


def test_every_field_of_a_definition_has_an_option_and_only_fields_have():
    assert {*options.SAID} | {*options.OF_ITS_OWN} == {*FIELDS}
    assert not {*options.SAID} & {*options.OF_ITS_OWN}
    assert {*options.RETRY} == {field.name for field in dataclasses.fields(Retry)}


EVERY_OPTION = (
    ("--cron", "0 9 * * *", "expression", "0 9 * * *"),
    ("--timezone", "Europe/London", "timezone", "Europe/London"),
    ("--start", "2030-01-01T00:00Z", "start", "2030-01-01T00:00:00Z"),
    ("--end", "2031-01-01T00:00Z", "end", "2031-01-01T00:00:00Z"),
    ("--args", "[1]", "args", "[1]"),
    ("--kwargs", '{"a": 2}', "kwargs", '{"a": 2}'),
    ("--headers", '{"x": "y"}', "headers", '{"x": "y"}'),
    ("--pool", "chrono.gold", "pool", "chrono.gold"),
    ("--priority", "3", "priority", 3),
    ("--soft-limit", "1m", "soft_limit", 60),
    ("--max-duration", "2m", "max_duration", 120),
    ("--expires-after", "3m", "expires_after", 180),
    ("--concurrency", "replace", "concurrency", "replace"),
    ("--exclusion-group", "till", "exclusion_group", "till"),
    ("--misfire", "all", "misfire", "all"),
    ("--misfire-cap", "7", "misfire_cap", 7),
    ("--grace", "4m", "grace", 240),
    ("--spread", "5m", "spread", 300),
    ("--idempotent", "yes", "idempotent", "yes"),
    ("--key-scope", "attempt", "key_scope", "attempt"),
    ("--note", "why", "note", "why"),
    ("--task", "shop.report", "task", "shop.report"),
    ("--target-kind", "task", "target_kind", "task"),
)
RETRY = ["--max-attempts", "4", "--retry-base", "5s", "--retry-factor", "3", "--retry-maximum", "1h", "--retry-jitter", "0.5"]


def test_create_and_update_take_the_same_options_and_store_each(run):
    line = [part for flag, text, _, _ in EVERY_OPTION for part in (flag, text)]
    run("jobs", "create", "full", *line, *RETRY, "--paused")
    run("jobs", "create", "bare", "--task", "shop.report", "--every", "1h")

    run("jobs", "update", "bare", *line, *RETRY, "--paused")

    for name in ("full", "bare"):
        told = json.loads(run("jobs", "show", name, "--json"))
        assert {field: told[field] for _, _, field, _ in EVERY_OPTION} == {field: value for _, _, field, value in EVERY_OPTION}
        assert told["retry"] == {"max_attempts": 4, "base": 5, "factor": 3, "maximum": 3600, "jitter": 0.5}
        assert told["paused"] is True


def test_an_update_shows_what_it_changes_and_changes_nothing_else(run, nightly):
    before = json.loads(run("jobs", "show", "nightly", "--json"))

    out = run("jobs", "update", "nightly", "--cron", "0 4 * * *", "--retry-base", "5s")

    after = json.loads(run("jobs", "show", "nightly", "--json"))
    assert {field for field in before if before[field] != after[field]} == {
        "expression", "next_run_at", "version", "retry", "words"}
    assert after["retry"]["maximum"] == before["retry"]["maximum"]
    lines = out.splitlines()
    assert ["expression", "30 2 * * *", "0 4 * * *"] in [[part.strip() for part in line.split("  ") if part] for line in lines]
    assert "02:30:00 Europe/London" in out and "04:00:00 Europe/London" in out
    assert lines[-1].startswith("updated default/nightly to version 2, next run ")
    assert JobEvent.objects.order_by("-id").first().actor == "command line"


def test_a_dry_run_of_an_update_and_of_a_create_writes_nothing(run, nightly):
    assert "Nothing was written." in run("jobs", "update", "nightly", "--priority", "1", "--dry-run")
    told = json.loads(run("jobs", "update", "nightly", "--priority", "1", "--dry-run", "--json"))
    assert (told["saved"], told["changed"]) == (False, {"priority": [5, 1]})
    line = ("--task", "shop.report", "--every", "5m", "--dry-run")
    assert "Nothing was written." in run("jobs", "create", "other", *line)
    run("jobs", "create", "nightly", *line, status=4)                      # it says what the real one would say
    run("jobs", "create", "other", "--tenant", "nobody", *line, status=3)

    assert Job.objects.get().priority == 5
    assert JobEvent.objects.count() == 1


def test_an_update_of_another_version_than_was_seen_is_refused(run, nightly):
    run("jobs", "update", "nightly", "--if-version", "1", "--priority", "1")
    out = run("jobs", "update", "nightly", "--if-version", "1", "--priority", "2", status=4)

    assert "is at version 2, not 1" in out
    assert jobs.get("default", "nightly").priority == 1
    assert "is so already" in run("jobs", "update", "nightly", "--priority", "1")


def test_none_empties_what_may_be_empty(run, nightly):
    run("jobs", "update", "nightly", "--grace", "5m", "--max-duration", "none", "--misfire-cap", "3")
    run("jobs", "update", "nightly", "--grace", "none", "--misfire-cap", "none")

    told = json.loads(run("jobs", "show", "nightly", "--json"))
    assert (told["grace"], told["max_duration"], told["misfire_cap"]) == (None, None, None)
    assert "Error: priority: 'none' is not a number" in run("jobs", "update", "nightly", "--priority", "none", status=2)


def test_another_target_takes_the_place_of_the_old_one(run, nightly):
    run("jobs", "update", "nightly", "--url", "https://shop.example/hook", "--timeout", "5s")
    assert jobs.get("default", "nightly").target_kind == "http"
    run("jobs", "update", "nightly", "--task", "shop.report", "--queue", "mail")
    job = jobs.get("default", "nightly")
    assert (job.target_kind, job.queue, job.url) == ("message", "mail", "")


def test_celerys_own_fields_keep_the_zone_of_the_job(run, nightly):
    run("jobs", "update", "nightly", "--crontab", "*/10 8-17 1-5 * *")
    job = jobs.get("default", "nightly")
    assert (job.schedule_kind, job.timezone) == ("celery", "Europe/London")
    assert "Error: crontab: " in run("jobs", "update", "nightly", "--crontab", "* *", status=2)
    assert "Error: crontab: hour: " in run("jobs", "update", "nightly", "--crontab", "* 25 * * *", status=2)


def test_a_job_that_may_not_run_twice_and_yet_is_retried_is_warned_of_wherever_it_is_written(run, nightly):
    line = ("--idempotent", "no", "--max-attempts", "3")
    made = run("jobs", "create", "charge", "--task", "shop.report", "--every", "1h", *line)
    changed = run("jobs", "update", "nightly", *line)
    told = json.loads(run("jobs", "update", "nightly", "--note", "x", "--json").splitlines()[-1])

    for out in (made, changed):
        assert "Warning: retry: the job is marked as not idempotent" in out
    assert [warning["code"] for warning in told["warnings"]] == ["not_idempotent"]


def test_a_task_that_the_app_does_not_know_is_asked_about(run):
    out = run("jobs", "create", "typo", "--task", "shop.reprot", "--every", "1h")
    assert "Warning: task: this app has no task shop.reprot; did you mean shop.report?" in out


def test_history_says_who_changed_what_also_of_a_job_that_is_gone(run, nightly):
    run("jobs", "update", "nightly", "--priority", "1")
    run("jobs", "pause", "nightly", "--note", "moving")
    run("jobs", "delete", "nightly", "--yes")

    rows = json.loads(run("jobs", "history", "--id", str(nightly.id), "--json"))
    assert [row["action"] for row in rows] == ["delete", "pause", "update", "create"]
    assert "priority: 5 -> 1" in run("jobs", "history", "--id", str(nightly.id))
    assert json.loads(run("jobs", "history", "--id", str(uuid.uuid4()), "--json")) == []
    run("jobs", "history", "nightly", status=3)
    run("jobs", "history", status=2)


def test_jobs_are_listed_by_what_is_asked_for_and_page_by_page(run, nightly):
    for number in range(3):
        run("jobs", "create", f"poll {number}", "--task", "shop.poll", "--every", "1h", *(["--paused"] if number else []))
    Job.objects.filter(name="poll 2").update(quarantined_reason="no schedule")

    def names(*line):
        return [job["name"] for job in json.loads(run("jobs", "list", "--json", *line).splitlines()[0])]

    assert names("--prefix", "poll", "--paused") == ["poll 1", "poll 2"]
    assert names("--task", "shop.report") == ["nightly"]
    assert names("--troubled") == ["poll 2"]
    assert names("--finished") == []
    assert names("--limit", "2") == ["nightly", "poll 0"]
    assert names("--limit", "2", "--after", "default/poll 0") == ["poll 1", "poll 2"]
    assert "go on with --after 'default/poll 0'" in run("jobs", "list", "--limit", "2")
    assert "Error: after: " in run("jobs", "list", "--after", "poll", status=2)


def test_a_spread_is_proposed_by_a_figure_of_the_whole_deployment_that_says_so(run):
    Tenant.objects.create(slug="acme")
    crowd(600, "acme")
    line = ("report", "--task", "shop.report", "--cron", "3 3 * * *")
    said = "note: 03:03Z is crowded: at least 600 other jobs of the whole deployment"

    with wiring.override(now_us=lambda: ids.to_us(NOON)):
        assert said in run("jobs", "create", *line, "--dry-run")
        assert said in run("jobs", "create", *line)
        assert said in run("jobs", "preview", "report")
        assert said in run("jobs", "update", "report", "--note", "x", "--dry-run")
        assert "is crowded" not in run("jobs", "update", "report", "--spread", "5m")


@pytest.mark.parametrize(("source", "change", "undone"), [
    ("import", ("--priority", "1"), True), ("import", ("--target-kind", "shadow"), False),
    ("import", ("--misfire", "skip"), False), ("decorator", ("--misfire", "skip"), True), ("", ("--priority", "1"), False)])
def test_who_makes_the_job_what_it_was_is_told_where_somebody_does(run, nightly, source, change, undone):
    Job.objects.update(source=source)

    told = json.loads(run("jobs", "update", "nightly", *change, "--dry-run", "--json"))

    assert ("undone" in [warning["code"] for warning in told["warnings"]]) is undone
