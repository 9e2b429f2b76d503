"""The HTTP API: what it does, what it refuses, and that no tenant sees another's rows."""
import json
from collections import Counter
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.test import Client
from schemathesis import GenerationMode

from chrono_beat.core import lifecycle, records
from chrono_beat.core.targets import TARGET_KINDS
from chrono_beat_django import jobs, keys
from chrono_beat_django.api import api
from chrono_beat_django.models import Execution, Job, Tenant
from tests.django.test_jobs import NOON, clock, composition, queue  # noqa: F401

pytestmark = pytest.mark.django_db(transaction=True)
ROOT = "/chrono/api/v1"
EXAMPLES = 6
REPORT = {"name": "report", "task": "shop.report", "cron": "0 9 * * *"}


class Caller:
    """A program with a key."""

    def __init__(self, tenant, scopes=keys.SCOPES):
        self.secret = keys.create(tenant, scopes).secret

    def __call__(self, method, path, body=None, **headers):
        named = {"Authorization": f"Bearer {self.secret}"} | {k.replace("_", "-"): v for k, v in headers.items()}
        data = body if isinstance(body, str) else "" if body is None else json.dumps(body)
        return Client(enforce_csrf_checks=True).generic(
            method, ROOT + path, data, content_type="application/json", headers=named)


@pytest.fixture
def acme():
    Tenant.objects.create(slug="acme")
    return Caller("acme")


@pytest.fixture
def globex():
    Tenant.objects.create(slug="globex")
    return Caller("globex")


def is_problem(answer, status, field=None):
    assert (answer.status_code, answer["Content-Type"]) == (status, "application/problem+json"), answer.content
    assert field is None or answer.json()["field"] == field
    return answer.json()


def dead_letter(job):
    return Execution.objects.create(
        id=f"{job.id}:20260107T110000Z:1", job_id=job.id, tenant=job.tenant, job_name=job.name, state="dead",
        reason="error", scheduled_at=NOON - timedelta(hours=1), due_at=NOON, first_due_at=NOON, finished_at=NOON)


def test_a_job_lives_from_create_to_delete(acme):
    made = acme("POST", "/jobs", {**REPORT, "idempotent": "no", "concurrency": "allow"})
    assert (made.status_code, made["ETag"]) == (201, '"1"')
    assert [one["code"] for one in made.json()["warnings"]] == ["not_idempotent"]
    path = f"/jobs/{made.json()['id']}"

    assert acme("GET", path).json()["next_run_at"] == "2026-01-08T09:00:00Z"
    is_problem(acme("PATCH", path, {"note": "x"}), 428, "If-Match")
    is_problem(acme("PATCH", path, {"note": "x"}, If_Match='"7"'), 412)
    assert acme("PATCH", path, {"note": "x"}, If_Match='"1"').json()["version"] == 2
    assert acme("POST", path + "/pause", {}).json()["paused"] is True
    assert acme("POST", path + "/resume", {"missed": "latest"}).json()["paused"] is False
    first = acme("POST", path + "/trigger", {"token": "t"})
    assert acme("POST", path + "/trigger", {"token": "t"}).json()["id"] == first.json()["id"]
    assert len(acme("GET", path + "/preview?count=3").json()["runs"]) == 3
    assert len(acme("POST", "/jobs/preview?count=2", REPORT).json()["runs"]) == 2
    done = acme("POST", path + "/backfill", {"start": "2026-01-01T00:00:00Z", "end": "2026-01-03T00:00:00Z"})
    assert done.status_code == 200, done.content
    assert acme("POST", f"/executions/{first.json()['id']}/cancel").status_code == 200
    assert acme("DELETE", path).json()["deleted"] is True
    is_problem(acme("GET", path), 404)


def test_a_change_that_redis_could_not_be_told_is_accepted_and_says_so(acme, queue):  # noqa: F811
    job = jobs.create(tenant="acme", **REPORT)
    queue.away = True

    with pytest.warns(UserWarning):
        answer = acme("POST", f"/jobs/{job.id}/pause", {})

    assert (answer.status_code, answer.json()["not_yet_voided"]) == (202, True)


def test_a_cancel_that_redis_could_not_be_told_is_accepted_and_says_so(acme, queue):  # noqa: F811
    made = jobs.trigger(jobs.create(tenant="acme", **REPORT))
    queue.away = True

    with pytest.warns(UserWarning):
        answer = acme("POST", f"/executions/{made.id}/cancel")

    assert (answer.status_code, answer.json()["not_yet_told"]) == (202, True)


def test_the_schema_describes_every_field_of_an_answer_and_no_other(acme):
    described = api.get_openapi_schema()["components"]["schemas"]
    job = acme("POST", "/jobs", {**REPORT, "headers": {"x-token": "hunter2"}}).json()
    letter = dead_letter(jobs.get("acme", "report"))

    assert job["headers"] == {"x-token": "********"}
    for name, answer in {
        "JobOut": job, "JobPage": acme("GET", "/jobs").json(), "JobFacts": acme("GET", "/jobs").json()["items"][0],
        "ExecutionOut": acme("GET", "/executions").json()["items"][0], "UsageOut": acme("GET", "/tenant/usage").json(),
        "ExecutionShown": acme("GET", f"/executions/{letter.id}").json(),
        "Triggered": acme("POST", f"/jobs/{job['id']}/trigger", {}).json(),
    }.items():
        assert set(answer) == set(described[name]["properties"]) == set(described[name]["example"]), name


def test_the_examples_of_answers_have_values_that_there_are():
    described = api.get_openapi_schema()["components"]["schemas"]
    job, run = (described[name]["example"] for name in ("JobOut", "ExecutionOut"))

    assert job["target_kind"] in TARGET_KINDS and job["concurrency"] in records.CONCURRENCY_POLICIES
    assert run["kind"] in lifecycle.KINDS and run["state"] in lifecycle.STATES and run["reason"] in lifecycle.REASONS


def test_a_retry_policy_is_read_as_it_was_written_and_changed_in_part(acme):
    made = acme("POST", "/jobs", {**REPORT, "retry": {"max_attempts": 5, "base": 1}}).json()
    changed = acme("PATCH", f"/jobs/{made['id']}", {"retry": {"factor": 3}}, If_Match='"1"').json()

    assert made["retry"] == {"max_attempts": 5, "base": 1.0, "factor": 2.0, "maximum": 3600.0, "jitter": 0.2}
    assert changed["retry"] == {**made["retry"], "factor": 3.0}


def test_one_letter_is_replayed_and_another_discarded(acme):
    job = jobs.create(tenant="acme", **REPORT)
    path = f"/dead-letters/{dead_letter(job).id}"

    made = acme("POST", path + "/replay")
    assert (made.status_code, made.json()["attempt"]) == (201, 2)
    is_problem(acme("POST", path + "/discard"), 409)


@pytest.mark.parametrize(("query", "status"), [
    ("", 200), ("&until=2026-01-02T00:00:00Z", 200), ("&since=2026-01-01T00:00:00Z&until=2026-01-02T00:00:00Z", 200),
    ("&since=2026-01-01T00:00:00Z&until=2026-01-02T00:00:01Z", 422), ("&since=2026-01-01T00:00:00Z", 422),
    ("&since=2026-01-01T00:00:00Z&job=01900000-0000-7000-8000-000000000000", 200),
])
def test_how_late_they_were_is_looked_for_in_a_day_at_most_since_no_index_has_it(acme, query, status):
    answer = acme("GET", f"/executions?late_over=60{query}")

    assert answer.status_code == status
    assert status == 200 or (answer.json()["field"], "a day apart" in answer.json()["mend"]) == ("late_over", True)


def test_without_a_job_or_since_executions_of_one_day_are_listed(acme):
    job = jobs.create(tenant="acme", **REPORT)
    letter = dead_letter(job)
    Execution.objects.filter(id=letter.id).update(scheduled_at=NOON - timedelta(days=2))

    assert acme("GET", "/executions").json()["items"] == []
    assert len(acme("GET", f"/executions?job={job.id}").json()["items"]) == 1
    assert len(acme("GET", "/executions?since=2026-01-01T00:00:00Z").json()["items"]) == 1


@pytest.mark.parametrize(("path", "queries"), [("/executions", 5), ("/dead-letters", 3)])
def test_a_list_of_many_rows_asks_as_often_as_one_of_few(acme, path, queries, django_assert_num_queries):
    letters = [dead_letter(jobs.create(tenant="acme", **{**REPORT, "name": f"j{n}"})) for n in range(7)]
    acme("GET", path)                                                       # the use of the key is noted once a minute

    for limit in (1, len(letters)):
        with django_assert_num_queries(queries):
            assert len(acme("GET", f"{path}?limit={limit}").json()["items"]) == limit


def test_lists_have_filters_and_pages_and_as_many_queries_for_many_rows(acme, django_assert_max_num_queries):
    for n in range(5):
        jobs.create(tenant="acme", **{**REPORT, "name": f"j{n}"})
    with django_assert_max_num_queries(5):
        first = acme("GET", "/jobs?limit=3&name_prefix=j").json()
    rest = acme("GET", f"/jobs?limit=3&name_prefix=j&cursor={first['next_cursor']}").json()

    assert [job["name"] for page in (first, rest) for job in page["items"]] == ["j0", "j1", "j2", "j3", "j4"]
    assert rest["next_cursor"] is None
    assert acme("GET", "/jobs?paused=true").json()["items"] == []
    is_problem(acme("GET", "/jobs?cursor=nonsense"), 422, "cursor")


@pytest.mark.parametrize(("said", "hours"), [
    ({}, []), ({"missed": "nothing"}, []), ({"missed": "latest"}, [16]), ({"missed": "all", "limit": 3}, [14, 15, 16]),
    ({"missed": "all"}, [13, 14, 15, 16])])
def test_a_resume_makes_up_for_what_was_asked_of_what_fell_into_the_pause(acme, clock, said, hours):  # noqa: F811
    job = jobs.create(tenant="acme", **{**REPORT, "cron": "0 * * * *"})
    clock.now += timedelta(minutes=1)
    acme("POST", f"/jobs/{job.id}/pause")
    clock.now += timedelta(hours=4)

    assert acme("POST", f"/jobs/{job.id}/resume", said).status_code == 200
    made = acme("GET", f"/executions?job={job.id}").json()["items"]
    assert [(one["kind"], one["scheduled_at"]) for one in reversed(made)] == [
        ("backfill", f"2026-01-07T{hour}:00:00Z") for hour in hours]


def test_a_backfill_obeys_limit_pace_and_token(acme):
    job = jobs.create(tenant="acme", **{**REPORT, "cron": "0 * * * *"})
    asked = {"start": "2026-01-07T03:00:00Z", "end": "2026-01-07T08:00:00Z", "limit": 2, "pace": 60, "token": "t"}

    said = acme("POST", f"/jobs/{job.id}/backfill", asked).json()
    assert said == {"created": 2, "existing": 0, "left_out": 3, "go_on_from": "2026-01-07T05:00:00Z", "end": asked["end"]}
    assert acme("POST", f"/jobs/{job.id}/backfill", asked).json() == said
    made = Execution.objects.order_by("scheduled_at")
    assert [row.due_at - NOON for row in made] == [timedelta(0), timedelta(seconds=60)]


@pytest.mark.parametrize(("query", "names"), [
    ("", "abc"), ("task=shop.clean", "b"), ("paused=true", "c"), ("paused=false", "ab"), ("flagged=true", "a"),
    ("flagged=false", "bc"), ("finished=true", "d"), ("due_after=2026-01-08T09:00:00Z", "a"),
    ("due_before=2026-01-08T09:00:00Z", "b")])
def test_each_filter_of_jobs_leaves_the_others_out(acme, query, names):
    for name, own in {"a": {}, "b": {"task": "shop.clean", "cron": "0 8 * * *"}, "c": {"paused": True}, "d": {}}.items():
        jobs.create(tenant="acme", **{**REPORT, "name": name, **own})
    Job.objects.filter(name="a").update(flagged_reason="no worker")
    Job.objects.filter(name="d").update(finished_at=NOON, next_run_at=None)

    assert [one["name"] for one in acme("GET", f"/jobs?{query}").json()["items"]] == list(names)


@pytest.mark.parametrize(("query", "names"), [
    ("", "cba"), ("state=dead", "ba"), ("reason=timeout", "b"), ("since=2026-01-07T10:00:00Z", "cb"),
    ("until=2026-01-07T11:00:00Z", "ba"), ("late_over=59", "b"), ("job=b", "b")])
def test_each_filter_of_executions_and_letters_leaves_the_others_out(acme, query, names):
    for hour, (name, own) in enumerate({
            "a": {}, "b": {"reason": "timeout", "started_at": NOON + timedelta(minutes=1)},
            "c": {"state": "succeeded", "reason": "", "finished_at": NOON + timedelta(hours=1)}}.items()):
        letter = dead_letter(jobs.create(tenant="acme", **{**REPORT, "name": name}))
        Execution.objects.filter(id=letter.id).update(**{
            "scheduled_at": NOON - timedelta(hours=3 - hour), "finished_at": NOON + timedelta(minutes=hour), **own})
    query = query.replace("job=b", f"job={jobs.get('acme', 'b').id}")

    assert [one["job_name"] for one in acme("GET", f"/executions?{query}").json()["items"]] == list(names)
    if query.partition("=")[0] in ("", "reason", "job"):
        found = acme("GET", f"/dead-letters?{query}").json()["items"]
        assert [one["job_name"] for one in found] == [name for name in names if name != "c"]


def test_letters_are_put_aside_together(acme):
    letter = dead_letter(jobs.create(tenant="acme", **REPORT))

    done = acme("POST", "/dead-letters/discard", {"ids": [letter.id]}).json()
    assert [one["handled_as"] for one in done["executions"]] == ["discarded"]
    assert acme("GET", "/dead-letters").json()["items"] == []


def test_dead_letters_are_listed_and_replayed(acme):
    letter = dead_letter(jobs.create(tenant="acme", **REPORT))

    assert [one["id"] for one in acme("GET", "/dead-letters").json()["items"]] == [letter.id]
    done = acme("POST", "/dead-letters/replay", {"ids": [letter.id, "x"]}).json()
    assert (len(done["executions"]), [one["id"] for one in done["refused"]]) == (1, ["x"])
    assert len(acme("GET", f"/executions/{letter.id}").json()["attempts"]) == 2
    assert acme("GET", "/tenant/usage").json()["jobs"] == 1


def test_a_tenant_sees_that_it_is_paused(acme):
    before = acme("GET", "/tenant/usage").json()["paused"]
    Tenant.objects.filter(slug="acme").update(paused=True)

    assert (before, acme("GET", "/tenant/usage").json()["paused"]) == (False, True)


def test_every_refusal_is_a_problem(acme):
    is_problem(acme("GET", "/nothing"), 404)
    assert is_problem(acme("PUT", "/jobs"), 405)["mend"]
    is_problem(acme("POST", "/jobs", "{"), 400)
    is_problem(acme("POST", "/jobs", {**REPORT, "cron": "nonsense"}), 422, "cron")
    is_problem(acme("POST", "/jobs", {**REPORT, "colour": 1}), 422, "colour")
    is_problem(acme("POST", "/jobs", {**REPORT, "note": "x" * 400_000}), 413, "body")
    is_problem(acme("GET", "/jobs?name_prefix=%00"), 422)
    for path in ("/jobs", "/executions", "/dead-letters"):
        is_problem(acme("GET", f"{path}?pausd=true"), 422, "pausd")
    is_problem(Client().get(ROOT + "/jobs"), 401)
    is_problem(Caller("acme", ["read"])("POST", "/jobs", REPORT), 403)
    Tenant.objects.filter(slug="acme").update(create_tokens=0, create_counted_at=NOON)
    refused = acme("POST", "/jobs", REPORT)
    assert (is_problem(refused, 429, "tenant")["retry_after_seconds"], refused["Retry-After"]) == (0.01, "1")


def test_a_post_with_the_same_key_is_carried_out_once(acme, globex):
    first = acme("POST", "/jobs", REPORT, Idempotency_Key="k")
    again = acme("POST", "/jobs", REPORT, Idempotency_Key="k")

    assert (first.status_code, again.content, Job.objects.filter(tenant="acme").count()) == (201, first.content, 1)
    is_problem(acme("POST", "/jobs", {**REPORT, "name": "x"}, Idempotency_Key="k"), 422, "Idempotency-Key")
    other = acme("POST", "/jobs", {**REPORT, "name": "other"}).json()["id"]
    assert acme("POST", f"/jobs/{first.json()['id']}/pause", Idempotency_Key="p").status_code == 200
    is_problem(acme("POST", f"/jobs/{other}/pause", Idempotency_Key="p"), 422, "Idempotency-Key")
    assert globex("POST", "/jobs", REPORT, Idempotency_Key="k").json()["id"] != first.json()["id"]
    assert (again["ETag"], again["Idempotent-Replayed"]) == (first["ETag"], "true")


def test_a_request_that_was_refused_or_died_leaves_its_key_free(acme, monkeypatch):
    is_problem(acme("POST", "/jobs", {**REPORT, "cron": "nonsense"}, Idempotency_Key="k"), 422)
    with monkeypatch.context() as patch:
        patch.setattr("chrono_beat_django.jobs.warnings_for", lambda job: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            acme("POST", "/jobs", REPORT, Idempotency_Key="k")
    assert not Job.objects.exists()

    assert acme("POST", "/jobs", REPORT, Idempotency_Key="k").status_code == 201


def test_no_route_shows_or_touches_another_tenants_rows(acme, globex):
    """Walks over the schema, so that a new route is covered by itself."""
    secret = jobs.create(tenant="globex", **{**REPORT, "name": "hidden-name"})
    letter = dead_letter(secret)
    before = list(Job.objects.filter(tenant="globex").values()), list(Execution.objects.values())
    bodies = {"backfill": {"start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z"},
              "jobs": REPORT, "preview": REPORT, "replay": {"ids": [letter.id]}, "discard": {"ids": [letter.id]}}
    for path, methods in api.get_openapi_schema()["paths"].items():
        for method in methods:
            route = path.split("/api/v1")[1].replace("{job_id}", str(secret.id)).replace("{execution_id}", letter.id)
            answer = acme(method.upper(), route, bodies.get(route.rsplit("/", 1)[1], {}), If_Match='"1"')
            assert answer.status_code == 404 if "{" in path else answer.status_code < 300, (method, path, answer.content)
            assert b"hidden-name" not in answer.content and b"globex" not in answer.content
    for query in (f"/executions?job={secret.id}", f"/dead-letters?job={secret.id}", "/jobs?name_prefix=hidden"):
        assert acme("GET", query).json()["items"] == []

    assert before == (list(Job.objects.filter(tenant="globex").values()), list(Execution.objects.values()))


def test_each_route_asks_for_the_scope_that_the_page_of_the_api_says(acme):
    """Walks over the schema, so that a new route has to be said here: what reads, what writes; the rest operates."""
    reads, writes = {"preview_definition"}, {"create_job", "update_job", "delete_job"}
    callers = {scope: Caller("acme", [scope]) for scope in keys.SCOPES}
    nobody = "01900000-0000-7000-8000-000000000000"
    for path, operations in api.get_openapi_schema()["paths"].items():
        route = path.split("/api/v1")[1].replace("{job_id}", nobody).replace("{execution_id}", nobody)
        for method, operation in operations.items():
            name = operation["operationId"]
            wanted = "read" if method == "get" or name in reads else "write" if name in writes else "operate"
            refused = {scope for scope, caller in callers.items() if caller(method.upper(), route).status_code == 403}
            assert refused == set(keys.SCOPES) - {wanted}, name


def test_another_tenants_id_is_answered_as_one_that_does_not_exist(acme, globex):
    """To the letter, so that nobody can find out which ids there are."""
    secret = jobs.create(tenant="globex", **REPORT)
    nobody = "01900000-0000-7000-8000-000000000000"
    for path, operations in api.get_openapi_schema()["paths"].items():
        for method in operations if "{" in path else ():
            answers = []
            for job, letter in ((str(secret.id), dead_letter), (nobody, None)):
                execution = f"{job}:20260107T110000Z:1"
                if letter and not Execution.objects.filter(id=execution).exists():
                    letter(secret)
                route = path.split("/api/v1")[1].replace("{job_id}", job).replace("{execution_id}", execution)
                body = {"start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z"} if "backfill" in path else {}
                answer = acme(method.upper(), route, body, If_Match='"7"')
                answers.append((answer.status_code, sorted(answer.items()), answer.content.replace(job.encode(), b"")))
            assert answers[0] == answers[1] and answers[0][0] == 404, (method, path)


def test_a_key_is_rotated_with_both_valid_for_a_while_and_revoked_at_once(acme, clock):  # noqa: F811
    made = keys.create("acme", expires_in=None)
    new = keys.rotate(made.row.prefix, overlap=60)

    assert keys.authenticate(made.secret) and keys.authenticate(new.secret)
    assert keys.authenticate(made.secret[:-1] + "!") is None
    assert made.secret not in str(list(keys.list("acme").values()))
    clock.now += timedelta(seconds=61)
    assert keys.authenticate(made.secret) is None
    keys.revoke(new.row.prefix)
    assert keys.authenticate(new.secret) is None


def test_a_key_that_expires_is_followed_by_one_that_lives_as_long(acme, clock):  # noqa: F811
    made = keys.create("acme", expires_in=600)
    clock.now += timedelta(seconds=500)
    new = keys.rotate(made.row.prefix, overlap=60)

    clock.now += timedelta(seconds=599)
    assert keys.authenticate(new.secret) and not keys.authenticate(made.secret)
    clock.now += timedelta(seconds=1)
    assert keys.authenticate(new.secret) is None


def test_the_use_of_a_key_is_noted_once_a_minute(acme, django_assert_num_queries):
    secret = keys.create("acme").secret
    keys.authenticate(secret)
    with django_assert_num_queries(2):
        keys.authenticate(secret)


def test_the_schema_can_be_printed(capsys):
    call_command("chrono_openapi")

    assert "/chrono/api/v1/jobs" in json.loads(capsys.readouterr().out)["paths"]


def test_every_route_says_with_which_problems_it_refuses():
    """With an example of each, in the form in which it is really given."""
    schema = api.get_openapi_schema()
    known = set(schema["components"]["schemas"]["ProblemOut"]["properties"])
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            refused = {status: answer for status, answer in operation["responses"].items() if status >= 400}
            assert {401, 403, 422, 503} <= set(refused) and (404 in refused) == ("{" in path)
            for status, answer in refused.items():
                [(kind, content)] = answer["content"].items()
                assert kind == "application/problem+json" and content["example"]["status"] == status
                assert set(content["example"]) <= known and content["example"]["mend"] and content["example"]["code"]


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_whatever_the_schema_allows_or_not_is_never_an_error_of_the_server(acme, mode):
    """Examples by schemathesis, in the process itself: a bounded number, the same each time, valid ones and invalid ones.

    Each answer has a status, a content type and a body that the schema names for this route; none is 5xx.
    """
    import schemathesis
    from django.core.wsgi import get_wsgi_application
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    job = jobs.create(tenant="acme", **REPORT)
    there = {"job_id": str(job.id), "execution_id": dead_letter(job).id}
    schema = schemathesis.openapi.from_dict(json.loads(json.dumps(api.get_openapi_schema(), default=str)))
    app = get_wsgi_application()
    judged = [not_a_server_error, checks.status_code_conformance, checks.content_type_conformance,
              checks.response_schema_conformance]
    tried = Counter()
    for operation in sorted((found.ok() for found in schema.get_all_operations()), key=lambda one: one.method == "delete"):
        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
                  suppress_health_check=list(HealthCheck))
        def send(case):
            tried[case.operation.label] += 1
            if tried[case.operation.label] % 2:                     # else an id that nothing has
                case.path_parameters.update((name, there[name]) for name in case.path_parameters)
            case.headers.pop("Host", None)                          # Django refuses a strange one before any route sees it
            answer = case.call(base_url="http://testserver", app=app, headers={"Authorization": f"Bearer {acme.secret}"})
            case.validate_response(answer, checks=judged)

        send()

    assert len(tried) == sum(map(len, api.get_openapi_schema()["paths"].values()))
    assert all(count <= EXAMPLES for count in tried.values())
