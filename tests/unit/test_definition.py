"""What a user may say of a job: everything wrong is named at once, with its field and the mend."""
import json
import math
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chrono_beat.core import ids, payload
from chrono_beat.core.config import Config
from chrono_beat.core.definition import FIELDS, JobDefinition, first_run, schedule_fields, validate, warnings_for
from chrono_beat.core.errors import InvalidInput
from chrono_beat.core.retry import Retry
from chrono_beat.core.schedule import CeleryCrontab, Cron, Interval, Once

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
WAYS = ("cron", "every", "at", "schedule", "timezone")


def definition(**given_values):
    said = {"name": "nightly", "task": "shop.report", "cron": "0 3 * * *"} | given_values
    if given_values.keys() & {"every", "at", "schedule"}:
        del said["cron"]
    when = {way: said.pop(way) for way in WAYS if way in said}
    return JobDefinition(**schedule_fields(**when), **said)


def checked(config=None, known_tasks=None, planned=False, **given_values):
    return validate(
        definition(**given_values), now_us=ids.to_us(NOW), config=config or Config(), known_tasks=known_tasks,
        planned=planned,
    )


def problem(**given_values):
    """The one problem of a definition."""
    with pytest.raises(InvalidInput) as refused:
        checked(**given_values)
    [found] = refused.value.problems
    return found


def test_defaults_are_those_of_the_documentation():
    job = checked()

    assert (job.tenant, job.timezone, job.concurrency) == ("default", "UTC", "forbid")
    assert (job.misfire, job.grace) == ("latest", None)
    assert (job.max_duration, job.expires_after, job.spread, job.pool, job.priority) == (21_600.0, None, None, "", 5)
    assert (job.args, job.kwargs, job.headers) == ("[]", "{}", "")
    assert job.retry == Retry(max_attempts=None, base=30.0, factor=2.0, maximum=3600.0, jitter=0.2)
    assert job.max_attempts() == 1
    assert checked(idempotent=True).max_attempts() == 3
    assert checked(idempotent=True, retry=Retry(max_attempts=1)).max_attempts() == 1


def test_the_documentation_has_every_field():
    page = (Path(__file__).parents[2] / "docs" / "jobs.rst").read_text()
    table = page.partition("What may be said of a job")[2].partition("What an edit does")[0]

    said = {*FIELDS} - {"schedule_kind", "expression", "written_as"}
    assert {name for name in said if f"``{name}``" not in table} == set()


def test_everything_wrong_is_told_at_once():
    with pytest.raises(InvalidInput) as refused:
        checked(name="", task="no such", priority=11, kwargs={"id": uuid.uuid4()}, cron="61 * * * *", max_duration=-1)

    assert [p.field for p in refused.value.problems] == ["name", "priority", "max_duration", "task", "kwargs", "cron"]
    assert isinstance(refused.value, ValueError)


@pytest.mark.parametrize(("given_values", "field", "words"), [
    ({"cron": "0 12 31 4 *"}, "cron", "create it paused instead"),
    ({"cron": "0 0 30 2 *"}, "cron", "day-of-month: no chosen month has such a day"),
    ({"cron": "*/61 * * * *"}, "cron", "step 61"),
    ({"cron": "*/0 * * * *"}, "cron", "step 0"),
    ({"cron": "60 * * * *"}, "cron", "minute: "),
    ({"cron": "0 24 * * *"}, "cron", "hour: "),
    ({"cron": "* * * *"}, "cron", "5 fields"),
    ({"cron": ""}, "cron", "5 fields"),
    ({"cron": "*/30 * * * * *"}, "cron", "interval"),
    ({"cron": "@reboot"}, "cron", "no meaning"),
    ({"cron": "H * * * *"}, "cron", "spread"),
    ({"cron": 5}, "cron", "text"),
    ({"timezone": "UTC+3"}, "timezone", ""),
    ({"timezone": "EST5EDT4"}, "timezone", ""),
    ({"timezone": "Europe/Nowhere"}, "timezone", ""),
    ({"timezone": ""}, "timezone", ""),
    ({"every": 0.5}, "every", "shorter than a second"),
    ({"every": timedelta(0)}, "every", "shorter than a second"),
    ({"every": math.nan}, "every", "no length of time"),
    ({"every": math.inf}, "every", ""),
    ({"every": True}, "every", "bool"),
    ({"every": "600"}, "every", "str"),
    ({"at": NOW - timedelta(minutes=2)}, "at", "has passed"),
    ({"at": datetime(2026, 5, 1)}, "at", "no zone"),
    ({"at": "soon"}, "at", "2026-01-02T09:00:00+00:00"),
    ({"schedule": "0 9 * * *"}, "schedule", "must be a Cron"),
    ({"start": datetime(2026, 5, 1)}, "start", "no zone"),
    ({"end": "2026-05-01T00:00:00Z", "start": "2026-06-01T00:00:00Z"}, "end", "after start"),
    ({"end": "2026-01-01T00:00:00Z"}, "end", "over already"),
    ({"end": "2026-01-02T13:00:00Z"}, "end", "before the first run"),
    ({"start": 3}, "start", "not an int"),
])
def test_a_schedule_that_cannot_be_meant_is_refused_under_the_name_it_was_given_by(given_values, field, words):
    found = problem(**given_values)

    assert found.field == field
    assert words in found.message


@pytest.mark.parametrize(("field", "value", "words"), [
    ("name", "", "empty"), ("name", "   ", "empty"), ("name", "a\nb", "printable"), ("name", "x" * 201, "200"),
    ("name", "\0", "NUL"), ("name", "\ud800", "surrogate"), ("name", None, "text"),
    ("task", "", "shop.tasks.send_report"), ("task", "two words", "task name"), ("task", "a." * 200 + "b", "task name"),
    ("task", 7, "text"),
    ("tenant", "Acme Inc", "slug"), ("tenant", "x" * 64, "slug"), ("tenant", "{acme}", "slug"), ("tenant", "", "slug"),
    ("pool", "gold", "chrono.gold"), ("pool", "chrono.", "chrono.gold"), ("pool", "chronogold", "chrono.gold"),
    ("pool", "chrono.a.b", "chrono.gold"), ("pool", None, "text"),
    ("concurrency", "queue", "forbid, allow, replace"), ("concurrency", "forbit", "did you mean forbid"),
    ("exclusion_group", "x" * 101, "at most 100"), ("exclusion_group", "a\nb", "printable"), ("exclusion_group", None, "text"),
    ("misfire", "lates", "did you mean latest"), ("idempotent", "maybe", "unknown, yes, no"),
    ("idempotent", [], "text"), ("key_scope", "execution", "occurrence, attempt"),
    ("priority", 10, "0 to 9"), ("priority", -1, "0 to 9"), ("priority", True, "bool"), ("priority", 1.5, "whole"),
    ("priority", None, "empty"), ("priority", "5", "str"),
    ("max_duration", 0, "seconds"), ("max_duration", -1, "seconds"), ("max_duration", 1e12, "seconds"),
    ("max_duration", math.nan, "nan"), ("max_duration", math.inf, "seconds"), ("max_duration", 10**400, "seconds"),
    ("soft_limit", False, "bool"), ("soft_limit", 21_600, "less than max_duration"),
    ("expires_after", timedelta(seconds=-1), "seconds"), ("grace", -0.1, "seconds"), ("grace", "1h", "str"),
    ("spread", -1, "seconds"), ("spread", 0.5, "whole"), ("spread", 90_000, "seconds"),
    ("misfire_cap", 0, "1 to"), ("max_occurrences", 0, "1 to"), ("max_occurrences", True, "bool"),
    ("max_occurrences", 3, "not available yet"),
    ("note", "x" * 2001, "2,000"), ("paused", "yes", "true or false"),
    ("retry", 3, "Retry"), ("retry", Retry(max_attempts=0), "max_attempts"), ("retry", Retry(base=-1), "base"),
    ("retry", Retry(factor=0.5), "factor"), ("retry", Retry(jitter=1.1), "jitter"),
    ("retry", Retry(jitter=math.nan), "jitter"), ("retry", Retry(base=60, maximum=30), "at least base"),
])
def test_a_wrong_value_is_refused_with_its_field_and_the_mend(field, value, words):
    found = problem(**{field: value})

    assert found.field == field
    assert words in found.message


def test_a_task_must_be_allowed_and_known_where_that_can_be_told():
    allowed = Config(allowed_tasks=("shop.*", "mail.send"))

    assert checked(config=allowed, task="mail.send").task == "mail.send"
    assert "ALLOWED_TASKS has shop.*, mail.send" in problem(config=allowed, task="os.system").message
    assert "did you mean shop.report?" in problem(known_tasks={"shop.report"}, task="shop.repotr").message
    assert checked(known_tasks={"daily report"}, task="daily report").task == "daily report"


@pytest.mark.parametrize(("ways", "words"), [
    ({}, "none of them"), ({"cron": "* * * * *", "every": 5}, "cron and every"),
])
def test_a_schedule_is_given_in_exactly_one_way(ways, words):
    with pytest.raises(InvalidInput, match=words) as refused:
        schedule_fields(**ways)

    assert refused.value.field == "schedule"


@pytest.mark.parametrize(("ways", "kind", "expression"), [
    ({"cron": "0  9 * * MON-FRI"}, "cron", None),
    ({"every": 90}, "interval", "90"),
    ({"every": timedelta(minutes=10)}, "interval", "600"),
    ({"every": Interval(1.5)}, "interval", "1.5"),
    ({"at": datetime(2026, 3, 1, 9, tzinfo=UTC)}, "once", "2026-03-01T09:00:00Z"),
    ({"at": "2026-03-01T10:00:00+01:00"}, "once", "2026-03-01T09:00:00Z"),
    ({"schedule": Cron("@daily", "Europe/London")}, "cron", None),
    ({"schedule": Once(datetime(2026, 3, 1, tzinfo=UTC))}, "once", "2026-03-01T00:00:00Z"),
    ({"schedule": CeleryCrontab("0", "9", "*", "*", "*")}, "celery", None),
])
def test_each_way_of_giving_a_schedule_becomes_stored_parts_that_build_it_again(ways, kind, expression):
    job = checked(**ways)

    assert job.schedule_kind == kind
    assert expression is None or job.expression == expression
    stored = JobDefinition(name=job.name, task=job.task, schedule_kind=kind, expression=job.expression,
                           timezone=job.timezone)
    again = validate(stored, now_us=ids.to_us(NOW), config=Config())
    assert again == job                                 # what is stored is already in its stored form


def test_the_zone_of_a_schedule_value_counts_unless_another_is_given():
    london = Cron("0 9 * * *", "Europe/London")

    assert checked(schedule=london).timezone == "Europe/London"
    assert checked(schedule=london, timezone="Asia/Tokyo").timezone == "Asia/Tokyo"


@pytest.mark.parametrize(("spread", "ways"), [
    (60, {"cron": "* * * * *"}), (60, {"cron": "0,1 3 * * *"}), (90, {"every": 90}),
])
def test_a_spread_is_shorter_than_the_time_between_two_runs(spread, ways):
    assert "must be less than the time between two runs" in problem(spread=spread, **ways).message
    assert checked(spread=spread - 1, **ways).spread == spread - 1


def test_lengths_of_time_are_stored_in_seconds():
    job = checked(max_duration=timedelta(minutes=30), soft_limit=timedelta(minutes=5), expires_after=90,
                  grace=timedelta(0), spread=timedelta(seconds=30))

    assert (job.max_duration, job.soft_limit, job.expires_after) == (1800.0, 300.0, 90.0)
    assert (job.grace, job.spread) == (0.0, 30)
    assert checked(max_duration=None).max_duration is None


# -- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "mend"), [
    (datetime(2026, 1, 1), "isoformat"), (date(2026, 1, 1), "isoformat"), (uuid.uuid4(), "str(value)"),
    (Decimal("1.5"), "str(value)"), (timedelta(1), "total_seconds"), (b"x", "base64"), ({1}, "list"),
    (object(), "texts"),
    (math.nan, "null"), (math.inf, "null"), (10**5000, "as text"), ("\ud800", "surrogate"),
], ids=lambda value: type(value).__name__)
def test_r094_a_value_without_a_json_form_is_refused_by_its_key(value, mend):
    found = problem(kwargs={"order": {"lines": [1, value]}})

    assert found.field == "kwargs"
    assert '"order.lines[1]"' in found.message
    assert mend in found.message


@pytest.mark.parametrize(("field", "value", "words"), [
    ("args", "[1,", "not JSON"), ("args", '{"a": 1}', "JSON array"), ("kwargs", "[1]", "JSON object"),
    ("kwargs", '{"a": NaN}', "NaN"), ("kwargs", '{"a": -Infinity}', "Infinity"), ("kwargs", '{"a": 1e999}', "inf"),
    ("kwargs", '{"a": 1, "a": 2}', "twice"), ("args", "", "not JSON"), ("args", "[" + "9" * 5000 + "]", "digits"),
    ("args", '["\ud800"]', "surrogate"), ("args", "\ufeff[]", "BOM"), ("args", '["\0"]', "not JSON"),
    ("args", {"a": 1}, "list"), ("kwargs", [1], "dict"), ("kwargs", {1: 2}, "texts as keys"),
    ("kwargs", {"x": {"__type__": "datetime", "__value__": "2026"}}, "__type__"), ("args", 5, "list"),
])
def test_what_is_no_json_array_or_object_is_refused(field, value, words):
    found = problem(**{field: value})

    assert found.field == field
    assert words in found.message


@pytest.mark.parametrize("value", ["[" * 100_000, "[" * 65 + "]" * 65, '["' + "[" * 100_000, '{"a":' * 50_000])
def test_deep_nesting_is_refused_without_a_recursion_error(value):
    assert problem(args=value).field == "args"


def test_values_that_are_deep_shared_or_refer_to_themselves_are_refused():
    deep, shared, round_about = [], ["x"], []
    for _ in range(10_000):
        deep = [deep]
    for _ in range(60):
        shared = [shared, shared]                           # 2⁶⁰ values to who walks them all
    round_about.append(round_about)

    assert problem(args=deep).code == problem(args=round_about).code == "too_deep"
    assert problem(args=shared).code == "too_large"


def test_brackets_inside_texts_are_no_nesting():
    text = json.dumps(["[" * 1000, '\\"[[[' * 100, "}]"])

    assert checked(args=text).args == text


def test_r133_five_megabytes_are_refused_with_the_limit_named():
    for given_values in ({"kwargs": {"blob": "x" * 5_000_000}}, {"kwargs": json.dumps({"blob": "x" * 5_000_000})}):
        found = problem(**given_values)

        assert (found.field, found.code) == ("kwargs", "too_large")
        assert "262,144 bytes" in found.message


def test_r133_a_payload_just_under_the_limit_is_kept_byte_for_byte():
    config = Config(max_payload=1000)
    text = '{ "blob" : "' + "é" * 490 + '"  }'              # blanks and letters of two bytes stay as they are
    args = "[" + " " * (1000 - len(text.encode()) - 2) + "]"

    job = checked(config=config, kwargs=text, args=args)

    assert (job.kwargs, job.args) == (text, args)
    assert problem(config=config, kwargs=text, args=args + " ").code == "too_large"


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=5), VALUES))
def test_what_json_can_carry_comes_back_as_it_was(kwargs):
    _, text, problems = payload.arguments((), kwargs, 1 << 20)

    assert problems or json.loads(text) == kwargs
    assert payload.arguments("[]", text, 1 << 20)[1:] == (text, problems)


@given(st.text() | st.binary().map(repr))
def test_any_text_as_arguments_is_kept_or_refused_but_never_an_error(text):
    args, _, problems = payload.arguments(text, None, 1 << 20)

    assert problems or (args == text and isinstance(json.loads(text), list))


@pytest.mark.parametrize(("headers", "words"), [
    ({"task": "x"}, "set by Celery"), ({"chrono_tenant": "x"}, "set by Celery"), ({"Chrono-X": 1}, "set by Celery"),
    ({"a": [1]}, "must be a text"), ({"a": NOW}, "isoformat"), ({"": 1}, "not a name"), ({"a\n": 1}, "not a name"),
    ("[1]", "JSON object"), ({"a": "x" * 9000}, "may take 8,192"),
    (dict.fromkeys(map(str, range(9000))), "may take 8,192"), ({1: 2}, "texts as keys"),
])
def test_headers_are_json_scalars_under_free_names(headers, words):
    found = problem(headers=headers)

    assert found.field == "headers"
    assert words in found.message


def test_headers_are_kept_as_text():
    assert checked(headers={"trace": "abc", "n": 1}).headers == '{"trace": "abc", "n": 1}'
    assert checked(headers={}).headers == checked(headers="{}").headers == ""


# -- planning ---------------------------------------------------------------------------------------------------------


def test_a_schedule_that_stays_as_it_is_may_be_over():
    past = {"at": NOW - timedelta(days=1)}

    assert checked(planned=True, **past).schedule_kind == "once"
    assert problem(**past).code == "past"


@pytest.mark.parametrize(("ways", "first"), [
    ({"at": NOW - timedelta(seconds=60)}, NOW - timedelta(seconds=60)),                     # a minute late runs at once
    ({"at": NOW - timedelta(seconds=61)}, None),
    ({"cron": "0 15 * * *", "start": NOW - timedelta(minutes=2)}, datetime(2026, 1, 2, 15, tzinfo=UTC)),
    ({"cron": "0 15 * * *", "start": NOW + timedelta(hours=3.5)}, datetime(2026, 1, 3, 15, tzinfo=UTC)),
    ({"every": timedelta(days=1), "start": NOW + timedelta(seconds=30)}, NOW + timedelta(seconds=30)),
    ({"every": 3600}, NOW + timedelta(hours=1)),
])
def test_the_first_run_of_a_schedule_planned_now(ways, first):
    job = checked(planned=True, **ways)

    assert first_run(job.schedule(NOW), job.schedule_kind, NOW) == first


@pytest.mark.parametrize(("given_values", "fields"), [
    ({}, []),
    ({"idempotent": False}, []),
    ({"idempotent": False, "retry": Retry(max_attempts=3)}, ["retry"]),
    ({"idempotent": False, "concurrency": "allow", "retry": Retry(max_attempts=2)}, ["retry", "concurrency"]),
    ({"idempotent": False, "concurrency": "replace"}, ["concurrency"]),
    ({"idempotent": True, "concurrency": "allow"}, []),
])
def test_warnings_name_what_may_run_twice_where_that_does_harm(given_values, fields):
    assert [w.field for w in warnings_for(checked(**given_values))] == fields


HOOK = "https://shop.example/hooks/report"


def target(**given_values):
    return checked(**{"task": "", **given_values})


def test_an_http_target_is_a_url_and_is_tried_three_times():
    job = target(target_kind="http", url=HOOK, kwargs={"a": 1}, headers={"Authorization": "Bearer abc"})

    assert (job.task, job.url, job.max_attempts()) == ("chrono_beat.http", HOOK, 3)
    assert job.headers == '{"Authorization": "Bearer abc"}' and "abc" not in repr(job)
    assert warnings_for(job) == []
    assert [w.field for w in warnings_for(target(target_kind="http", url="http://shop.example/"))] == ["url"]


def test_a_message_target_goes_to_the_relays_pool_and_says_what_it_does_not_do():
    job = checked(target_kind="message", queue="mail")

    assert (job.task, job.queue, job.pool) == ("shop.report", "mail", "chrono.relay")
    [warning] = warnings_for(job)
    assert warning.field == "queue" and '"forbid" does not see' in warning.message


@pytest.mark.parametrize(("given_values", "field", "words"), [
    ({"target_kind": "mail"}, "target_kind", "task, http, message"),
    ({"target_kind": "task", "task": "shop.report", "url": HOOK}, "url", "set target_kind"),
    ({"target_kind": "task", "task": "shop.report", "queue": "mail"}, "queue", "set target_kind"),
    ({"target_kind": "task", "task": "chrono_beat.http"}, "task", "give url"),
    ({"target_kind": "task", "task": "shop.report", "pool": "chrono.relay"}, "pool", "belongs to the relay"),
    ({"target_kind": "http", "url": ""}, "url", "must not be empty"),
    ({"target_kind": "http", "url": "http://127.0.0.1/"}, "url", "HTTP_ALLOWED_ADDRESSES"),
    ({"target_kind": "http", "url": HOOK, "task": "shop.report"}, "task", "one target"),
    ({"target_kind": "http", "url": HOOK, "args": [1]}, "args", "kwargs"),
    ({"target_kind": "http", "url": HOOK, "timeout": 60, "max_duration": 30}, "timeout", "at most max_duration"),
    ({"target_kind": "http", "url": HOOK, "timeout": 0}, "timeout", "seconds"),
    ({"target_kind": "http", "url": HOOK, "headers": {"Host": "x"}}, "headers", "set by chrono_beat"),
    ({"target_kind": "http", "url": HOOK, "pool": "chrono.relay"}, "pool", "belongs to the relay"),
    ({"target_kind": "message", "task": "shop.report"}, "queue", "must not be empty"),
    ({"target_kind": "message", "task": "shop.report", "queue": "chrono.gold"}, "queue", "is a pool"),
    ({"target_kind": "message", "task": "shop.report", "queue": "a b"}, "queue", "not a queue"),
    ({"target_kind": "message", "task": "shop.report", "queue": "mail", "pool": "chrono.gold"}, "pool", "leave it empty"),
    ({"target_kind": "message", "queue": "mail"}, "task", "must not be empty"),
    ({"url": 7}, "url", "must be a text"),
])
def test_a_target_that_cannot_be_is_refused_with_the_mend(given_values, field, words):
    with pytest.raises(InvalidInput) as refused:
        target(**given_values)

    assert [(p.field, words in p.message) for p in refused.value.problems] == [(field, True)]
