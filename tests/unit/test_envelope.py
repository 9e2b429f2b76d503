"""The message of an execution, read by Celery's and kombu's own readers."""

import json
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.worker.request import Context
from hypothesis import given
from hypothesis import strategies as st
from kombu import Connection
from kombu.transport.virtual import Message

from chrono_beat.core.config import Config
from chrono_beat.core.envelope import EMBED, MAX_KEPT_CHARACTERS, InvalidContent, Template, Templates
from chrono_beat.core.records import Content

JOB = "0197c0de-0000-7000-8000-000000000001"
NINE = 1_767_344_400_000_000
KEY = f"{JOB}:20260102T090000Z"
CONFIG = Config()
TEMPLATES = Templates(CONFIG)
CONTENT = Content("acme", "hold-42", "shop.expire_hold", '[1, "a"]', '{"hold": 42}', "", "", 5, 90.5, 21600.0, None,
                  "forbid", "occurrence")


def build(content=CONTENT, attempt=1, retries=0, due_us=NINE, kind="schedule"):
    made = TEMPLATES.of(content)
    return made.build(f"{KEY}:{attempt}", JOB, NINE, due_us, attempt, retries, kind)


def read(message):
    """Return the message as kombu's virtual transports hand it to a consumer."""
    with Connection("memory://") as connection:
        return Message(json.loads(message), channel=connection.channel())


def test_kombu_and_celery_read_the_body_as_args_kwargs_and_embed():
    message = read(build())
    message.accept = {"application/json"}

    args, kwargs, embed = message.decode()

    assert (args, kwargs) == ([1, "a"], {"hold": 42})
    assert embed == {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    assert message.delivery_info == {"exchange": "", "routing_key": "chrono"}


def test_the_headers_are_those_of_protocol_2():
    """Whatever Celery writes for a task, we write too; the values that say the same are the same."""
    app = Celery("t", broker="memory://")
    stock = app.amqp.as_task_v2(
        KEY, "shop.expire_hold", args=[1, "a"], kwargs={"hold": 42}, time_limit=21600, soft_time_limit=90.5, retries=0,
    )

    ours = json.loads(build())

    assert stock.headers.keys() - ours["headers"].keys() == set()
    differing = {name for name, value in stock.headers.items() if ours["headers"][name] != value}
    assert differing <= {"argsrepr", "kwargsrepr", "origin"}
    assert stock.properties.items() <= ours["properties"].items()


def test_a_replay_runs_under_its_execution_id_and_keeps_the_occurrences_key():
    """A result, or a revoke, of the occurrence's id must not be taken for the replay's."""
    for content, key in ((CONTENT, KEY), (CONTENT._replace(key_scope="attempt"), f"{KEY}:4")):
        document = json.loads(build(content, attempt=4, kind="replay"))

        assert document["headers"]["id"] == document["properties"]["correlation_id"] == f"{KEY}:4"
        assert document["headers"]["root_id"] == f"{KEY}:4"
        assert (document["headers"]["chrono"]["key"], document["headers"]["chrono"]["eid"]) == (key, f"{KEY}:4")


def test_a_request_made_of_the_headers_knows_its_execution():
    headers = json.loads(build(attempt=3, retries=2, due_us=NINE + 90_000_000, kind="retry"))["headers"]

    request = Context(headers)

    assert (request.id, request.root_id, request.retries, request.timelimit) == (KEY, KEY, 2, [21600, 90.5])
    assert request.chrono == {
        "v": 1, "eid": f"{KEY}:3", "job": JOB, "name": "hold-42", "tenant": "acme", "key": KEY, "pool": "chrono",
        "kind": "retry", "attempt": 3, "scheduled_at": "2026-01-02T09:00:00+00:00",
        "due_at": "2026-01-02T09:01:30+00:00",
    }


def test_all_attempts_have_one_celery_id_and_the_key_follows_its_scope():
    by_attempt = CONTENT._replace(key_scope="attempt")

    first, second = (json.loads(build(by_attempt, attempt=n))["headers"] for n in (1, 2))

    assert first["id"] == second["id"] == KEY
    assert (first["chrono"]["key"], second["chrono"]["key"]) == (f"{KEY}:1", f"{KEY}:2")


def test_the_same_execution_gives_the_same_bytes():
    assert build() == build()


@given(st.lists(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab_", min_size=1), inner, max_size=3),
    max_leaves=8,
), max_size=4), st.booleans(), st.sampled_from([None, 1, 2]))
def test_argument_texts_arrive_byte_for_byte(values, ascii_only, indent):
    args = json.dumps(values, ensure_ascii=ascii_only, indent=indent)
    kwargs = json.dumps({f"k{n}": value for n, value in enumerate(values)}, ensure_ascii=ascii_only, indent=indent)

    document = json.loads(build(CONTENT._replace(args=args, kwargs=kwargs)))

    assert document["body"] == f"[{args},{kwargs},{EMBED}]"


def test_texts_that_need_escaping_survive():
    odd = CONTENT._replace(name='a "quoted" \\ name\u2028', tenant="acme", headers=' {"trace": "ä\\n", "n": 1} ')

    headers = json.loads(build(odd))["headers"]

    assert headers["chrono"]["name"] == 'a "quoted" \\ name\u2028'
    assert (headers["trace"], headers["n"], headers["lang"]) == ("ä\n", 1, "py")


def test_the_pool_is_the_jobs_own_or_the_default():
    assert TEMPLATES.of(CONTENT).pool == "chrono"
    assert TEMPLATES.of(CONTENT._replace(pool="chrono.gold")).pool == "chrono.gold"


def test_no_limits_are_null():
    unlimited = CONTENT._replace(max_duration_seconds=None, soft_limit_seconds=None)

    assert json.loads(build(unlimited))["headers"]["timelimit"] == [None, None]


def test_templates_are_kept_by_content_unless_they_are_large():
    large = CONTENT._replace(args=json.dumps(["x" * MAX_KEPT_CHARACTERS]))

    assert TEMPLATES.of(CONTENT) is TEMPLATES.of(CONTENT._replace())
    assert TEMPLATES.of(large) is not TEMPLATES.of(large)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"args": "[1,"}, "args: is not JSON"),
        ({"args": ""}, "args: "),
        ({"args": "{}"}, "args: must be a JSON array"),
        ({"kwargs": "[]"}, "kwargs: must be a JSON object"),
        ({"args": "[NaN]"}, "args: holds NaN"),
        ({"args": "[" * 100_000}, "args: "),
        ({"args": '["' + "x" * 300_000 + '"]'}, "262,144"),
        ({"kwargs": '{"a": {"__type__": "date", "__value__": 1}}'}, "__type__"),
        ({"headers": '{"id": "mine"}'}, "headers: "),
        ({"headers": '{"chrono": {}}'}, "headers: "),
        ({"headers": "nonsense"}, "headers: "),
        ({"task": ""}, "task: "),
        ({"task": "rm -rf /"}, "task: "),
        ({"priority": 10}, "priority: "),
        ({"priority": -1}, "priority: "),
        ({"max_duration_seconds": -1.0}, "max_duration: "),
        ({"soft_limit_seconds": float("nan")}, "soft_limit: "),
        ({"expires_after_seconds": 1e300}, "expires_after: "),
        ({"concurrency": "maybe"}, "concurrency: "),
        ({"key_scope": "galaxy"}, "key_scope: "), ({"exclusion_group": "\ud800"}, "exclusion_group: "),
        ({"name": "\ud800"}, "surrogate"),
    ],
)
def test_content_that_no_worker_could_read_is_refused_with_its_field(changed, said):
    with pytest.raises(InvalidContent) as refused:
        TEMPLATES.of(CONTENT._replace(**changed))

    assert said in str(refused.value)


def test_a_task_that_jobs_may_not_run_is_refused():
    config = SimpleNamespace(allowed_tasks=("shop.reports.*",), max_payload=1_000)

    with pytest.raises(InvalidContent, match="ALLOWED_TASKS"):
        Template(CONTENT, "chrono", config)


def test_jobs_that_differ_in_their_group_only_share_all_that_costs():
    templates = Templates(CONFIG)

    templates.of(CONTENT)
    templates.of(CONTENT._replace(exclusion_group="billing"))

    assert len(templates._shapes) == 1

