"""The HTTP API at its edges: values beyond every calendar, wrong types, headers and methods that clients really send."""
import base64
import json
from datetime import timedelta

import pytest
from django.db import OperationalError
from django.test import Client

from chrono_beat_django import executions, jobs, keys
from chrono_beat_django.models import Execution, Job
from tests.django.test_api import REPORT, ROOT, acme, dead_letter, is_problem  # noqa: F401
from tests.django.test_jobs import NOON, claimed, clock, composition, queue  # noqa: F401

pytestmark = pytest.mark.django_db(transaction=True)
FAR = ("0001-01-01T00:00:00%2B14:00", "9999-12-31T23:59:59-14:00")
LISTS = {"/jobs": ("due_after", "due_before"), "/executions": ("since", "until")}


@pytest.fixture
def job(acme):  # noqa: F811
    return jobs.create(tenant="acme", **REPORT)


def cursor(*values):
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode()


@pytest.mark.parametrize("instant", FAR)
@pytest.mark.parametrize(("path", "field"), [(path, field) for path, fields in LISTS.items() for field in fields])
def test_an_instant_beyond_the_calendar_is_refused_under_its_own_name(acme, path, field, instant):  # noqa: F811
    is_problem(acme("GET", f"{path}?{field}={instant}"), 422, field)


@pytest.mark.parametrize("instant", [text.replace("%2B", "+") for text in FAR])
def test_a_cursor_beyond_the_calendar_is_none_of_ours(acme, instant):  # noqa: F811
    is_problem(acme("GET", f"/executions?cursor={cursor(instant, '1', 'x')}"), 422, "cursor")
    is_problem(acme("GET", f"/dead-letters?cursor={cursor(instant, 'x')}"), 422, "cursor")


def test_the_first_day_of_all_is_looked_through_like_any_other(acme):  # noqa: F811
    assert acme("GET", "/executions?until=1970-01-01T12:00:00Z").json()["items"] == []


def test_a_prefix_is_read_to_the_letter_on_every_engine(acme, job):  # noqa: F811
    assert [one["name"] for one in acme("GET", "/jobs?name_prefix=rep").json()["items"]] == ["report"]
    assert acme("GET", "/jobs?name_prefix=Rep").json()["items"] == []


def test_how_late_is_bounded_under_its_own_name(acme):  # noqa: F811
    is_problem(acme("GET", "/executions?late_over=99999999"), 422, "late_over")


@pytest.mark.parametrize("path", ["/", "", "/no\nsuch", "/jobs/%0a"])
def test_every_path_below_is_the_apis(acme, path):  # noqa: F811
    is_problem(acme("GET", path), 404)
    is_problem(acme("PUT", path), 404)


@pytest.mark.parametrize("path", ["/openapi.json", "/docs"])
def test_the_description_is_read_and_nothing_else(acme, path):  # noqa: F811
    assert acme("GET", path).status_code == acme("HEAD", path).status_code == 200
    for method in ("PUT", "POST", "OPTIONS"):
        is_problem(acme(method, path), 405, "method")


def test_head_answers_as_get_without_a_body_and_no_other_method_stands_for_one(acme, job):  # noqa: F811
    answer = acme("HEAD", f"/jobs/{job.id}")

    assert (answer.status_code, answer["ETag"], answer.content) == (200, '"1"', b"")
    assert is_problem(acme("OPTIONS", f"/jobs/{job.id}"), 405)["mend"] == "use one of DELETE, GET, PATCH"
    assert acme("HEAD", f"/jobs/{job.id}/trigger").status_code == 405


@pytest.mark.parametrize(("seen", "status"), [
    ("*", 200), ('"7", "1"', 200), ('W/"1"', 200), ('"7", "8"', 412), ('"1", x', 412), ("", 412), ('"0"', 412)])
def test_a_version_that_was_seen_is_named_as_http_has_it(acme, job, seen, status):  # noqa: F811
    for method in ("PATCH", "DELETE"):
        answer = acme(method, f"/jobs/{job.id}", {"paused": False}, If_Match=seen)
        assert answer.status_code == status if status == 200 else is_problem(answer, status, "If-Match")
    assert Job.objects.exists() == (status != 200)


def test_a_job_that_was_changed_since_is_not_deleted(acme, job):  # noqa: F811
    jobs.update(job, note="changed")

    is_problem(acme("DELETE", f"/jobs/{job.id}", If_Match='"1"'), 412, "If-Match")
    assert acme("DELETE", f"/jobs/{job.id}", If_Match='"2"').status_code == 200


@pytest.mark.parametrize(("field", "value"), [
    ("priority", "5"), ("priority", True), ("every", True), ("timeout", "1"), ("paused", "yes"), ("paused", 1),
    ("start", 1_800_000_000), ("end", 1_800_000_000_000), ("idempotent", 1), ("spread", 1.5)])
def test_a_value_of_another_type_is_refused_and_not_converted(acme, field, value):  # noqa: F811
    wrong = is_problem(acme("POST", "/jobs", {**REPORT, field: value}), 422)

    assert wrong["field"].split(".")[0] == field and not wrong["mend"].startswith("Value error")


def test_a_whole_number_may_be_written_with_a_point(acme):  # noqa: F811
    assert acme("POST", "/jobs", '{"name": "report", "task": "shop.report", "every": 60, "priority": 5.0}').status_code == 201


def test_what_may_all_be_left_out_needs_no_body(acme, job):  # noqa: F811
    for verb, status in (("pause", 200), ("resume", 200), ("trigger", 201)):
        assert acme("POST", f"/jobs/{job.id}/{verb}").status_code == status
    is_problem(acme("POST", f"/jobs/{job.id}/trigger", {"tokn": "x"}), 422, "tokn")


@pytest.mark.parametrize("body", ["", "null", "[]", '"x"', "5"])
def test_a_body_that_is_no_object_is_named(acme, body):  # noqa: F811
    assert is_problem(acme("POST", "/jobs", body), 422, "body")["mend"] == "must be a JSON object"


@pytest.mark.parametrize(("body", "mend"), [
    ('{"name": "a", "cron": "0 9 * * *", "cron": "0 3 * * *"}', 'has the key "cron" twice'),
    ('{"name": "a", "kwargs": {"to": 1, "to": 2}}', 'has the key "to" twice'),
    ('{"name": "a", "args": [NaN]}', "holds NaN, which JSON does not have; give null or a text"),
    ('{"name" "a"}', "is not JSON: Expecting ':' delimiter (line 1, column 9)"),
    ('{"name": "\xe9"}'.encode("latin-1"), "is not UTF-8"),
    ('{"args": ' + "[" * 50_000 + "]" * 50_000 + "}", "is nested deeper than 64 levels, or refers to itself")])
def test_a_body_that_could_be_understood_in_two_ways_or_none_is_refused_with_the_place(acme, body, mend):  # noqa: F811
    said = is_problem(Client().generic("POST", f"{ROOT}/jobs", body, content_type="application/json",
                                       headers={"Authorization": f"Bearer {acme.secret}"}), 400, "body")["mend"]

    assert said == mend


@pytest.mark.parametrize("number", ["2026", "1767225600", "-5", "1.5"])
def test_a_number_is_no_instant_in_a_text_either(acme, job, number):  # noqa: F811
    """A year or a date without dashes would count as seconds since the epoch."""
    for path, fields in LISTS.items():
        for field in fields:
            is_problem(acme("GET", f"{path}?{field}={number}"), 422, field)
    is_problem(acme("POST", "/jobs", {"name": "once", "task": "shop.report", "at": number}), 422, "at")
    is_problem(acme("POST", f"/jobs/{job.id}/backfill", {"start": number, "end": "2026-01-02T00:00:00Z"}), 422, "start")


@pytest.mark.parametrize(("token", "wrong"), [("", "at least 1 character"), ("x" * 201, "at most 200 characters")])
def test_the_length_of_a_token_is_counted_in_characters(acme, job, token, wrong):  # noqa: F811
    assert wrong in is_problem(acme("POST", f"/jobs/{job.id}/trigger", {"token": token}), 422, "token")["mend"]


def test_what_a_server_behind_the_api_said_is_logged_and_not_answered(acme, monkeypatch, caplog):  # noqa: F811
    def away(*_, **__):
        raise OperationalError("too many clients\nfor role ada")

    monkeypatch.setattr(jobs, "list", away)
    answer = acme("GET", "/jobs")

    assert (is_problem(answer, 503)["code"], answer["Retry-After"]) == ("unavailable", "5")
    assert b"clients" not in answer.content
    assert "GET '/chrono/api/v1/jobs' could not be answered: OperationalError: too many clients" in caplog.messages


def pages(acme, query):  # noqa: F811
    """Return the ids of each page of a list."""
    found, cursor = [], ""
    while cursor is not None:
        answer = acme("GET", query + (f"&cursor={cursor}" if cursor else "")).json()
        found.append([one["id"] for one in answer["items"]])
        cursor = answer["next_cursor"]
    return found


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
def test_rows_of_the_same_instant_are_on_one_page_each(acme, job, limit):  # noqa: F811
    others = [jobs.create(tenant="acme", **{**REPORT, "name": f"j{n}"}) for n in range(3)]
    rows = [claimed(other, NOON - timedelta(hours=1), state=state, attempt=attempt)
            for other, state in zip(others, ("scheduled", "succeeded", "queued"), strict=True) for attempt in (1, 2)]
    rows += [dead_letter(job)]
    newest = [row.id for row in sorted(rows, key=lambda row: (row.scheduled_at, row.attempt, row.id), reverse=True)]

    found = pages(acme, f"/executions?limit={limit}")
    assert sum(found, []) == newest and {len(page) for page in found[:-1]} <= {limit}
    Execution.objects.update(state="dead", finished_at=NOON)
    assert sum(pages(acme, f"/dead-letters?limit={limit}"), []) == sorted(newest, reverse=True)


def test_a_run_that_begins_while_a_page_is_read_does_not_end_the_list(acme, job, monkeypatch):  # noqa: F811
    ids = [claimed(job, NOON - timedelta(minutes=minute)).id for minute in range(4)]
    read = executions._of

    def begins(rows, keys):
        Execution.objects.filter(id=ids[0]).update(state="running")
        return read(rows, keys)

    monkeypatch.setattr(executions, "_of", begins)

    assert pages(acme, "/executions?state=scheduled&limit=2") == [ids[1:2], ids[2:]]


def test_what_is_missing_or_taken_or_not_there_is_named(acme, job):  # noqa: F811
    assert is_problem(acme("POST", "/jobs", {"cron": "0 9 * * *"}), 422, "name")["mend"] == "must be given"
    is_problem(acme("POST", "/jobs", REPORT), 409, "name")
    is_problem(acme("GET", "/jobs/01900000-0000-7000-8000-000000000000"), 404, "job_id")
    is_problem(acme("GET", "/executions/none"), 404, "execution_id")


def test_a_body_says_how_long_it_is_and_djangos_limit_counts_too(acme, settings):  # noqa: F811
    is_problem(acme("POST", "/jobs", REPORT, Transfer_Encoding="chunked"), 411, "Content-Length")
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1_000
    assert "1,000 bytes" in is_problem(acme("POST", "/jobs", {**REPORT, "note": "x" * 1_000}), 413, "body")["mend"]


@pytest.mark.parametrize("scheme", ["", "Basic ", "Token "])
def test_a_key_that_is_shown_in_a_wrong_way_is_not_logged(acme, settings, caplog, scheme):  # noqa: F811
    settings.DEBUG = True
    secret = keys.create("acme").secret

    is_problem(Client().get(ROOT + "/jobs", HTTP_AUTHORIZATION=scheme + secret), 401, "Authorization")
    assert secret not in caplog.text
