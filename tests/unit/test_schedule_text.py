"""What cron text is read, what it means, and what is refused with which words."""

import json
import zoneinfo
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chrono_beat.core.cron_text import parse_cron
from chrono_beat.core.schedule import Cron, ScheduleError

zoneinfo.reset_tzpath(to=())

VECTORS = Path(__file__).parent.parent / "vectors"
FIELD_NAMES = ("minute", "hour", "day-of-month", "month", "day-of-week")
REFUSED = [line.split("\t") for line in (VECTORS / "cron-invalid.tsv").read_text().splitlines()]
ACCEPTED = [json.loads(line) for line in (VECTORS / "cron.jsonl").read_text().splitlines()]


def refusal(expression, timezone="UTC"):
    with pytest.raises(ScheduleError) as caught:
        Cron(expression, timezone)
    return caught.value


@pytest.mark.parametrize("vector", ACCEPTED, ids=lambda v: f"{v['expr']} {v['zone']} {v['after']}")
def test_next_runs_are_those_of_the_vectors(vector):
    schedule = Cron(vector["expr"], vector["zone"])
    wanted = [datetime.fromisoformat(instant) for instant in vector["next"]]

    found, t = [], datetime.fromisoformat(vector["after"])
    for _ in wanted:
        t = schedule.next_after(t)
        found.append(t)

    assert found == wanted, vector["why"]
    assert [schedule.previous_before(t) for t in wanted[1:]] == wanted[:-1]
    assert all(schedule.matches(t) for t in wanted)
    assert schedule.count_between(wanted[0], wanted[-1]) == len(wanted) - 1


@pytest.mark.parametrize(("text", "kind", "reason"), REFUSED, ids=[f"{kind} {text[:40]}" for text, kind, _ in REFUSED])
def test_texts_that_are_none_are_refused_with_their_field(text, kind, reason):
    error = refusal(json.loads(text))

    named = reason.partition(":")[0]
    if kind == "never":
        assert error.field == "day-of-month"
    elif named in FIELD_NAMES:
        assert error.field == named
    else:
        assert error.field in ("expression", *FIELD_NAMES)
    assert isinstance(error, ValueError)
    assert error.reason in str(error)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("@reboot", "start-up"),
        ("@every 5m", "interval"),
        ("@every 1.5h", "interval"),
        ("@fortnightly", "@weekly"),
        ("H * * * *", "`spread`"),
        ("H(0-29) * * * *", "`spread`"),
        ("0 0 * * H", "`spread`"),
        ("R R * * *", "`spread`"),
        ("TZ=UTC 0 0 * * *", "timezone"),
        ("CRON_TZ=Europe/London 0 0 * * *", "timezone"),
        ("30 8 * * * Europe/London", "timezone"),
        ("30 8 * * * UTC", "timezone"),
        ("30 8 * * * +02:00", "timezone"),
        ("*/30 * * * * *", "interval"),
        ("0 0 12 * * ? 2030", "interval"),
        ("0 0 30 2 *", "paused"),
        ("*/90 * * * *", "wider"),
        ("0 0 * * L", "5L"),
        ("0 0 15W,3 * *", "list"),
        ("0 0 25-5 * *", "two ranges"),
    ],
)
def test_a_refusal_says_the_mend(expression, words):
    assert words in refusal(expression).reason


@pytest.mark.parametrize("value", [None, 5, 1.5, b"0 9 * * *", ["0 9 * * *"], {"a": 1}, object(), True])
def test_what_is_no_text_is_refused_as_well(value):
    assert refusal(value).field == "expression"
    assert refusal("0 9 * * *", value).field == "timezone"


@pytest.mark.parametrize("text", ["0" * 200_000, "1-" * 100_000, "*/" + "9" * 100_000, " " * 200_000, "H(" * 100_000])
def test_long_texts_are_refused_before_they_are_read(text):
    error = refusal(text)

    assert "255" in error.reason
    assert len(str(error)) < 300


@settings(deadline=None, max_examples=300)
@given(st.one_of(st.text(), st.text("0123456789*?,/#@- LWHRMONTUE"), st.binary(), st.none(), st.integers()))
def test_every_input_is_read_or_refused_by_the_one_error(value):
    try:
        Cron(value)
    except ScheduleError:
        pass


@settings(deadline=None, max_examples=100)
@given(st.one_of(st.text(max_size=300), st.sampled_from(["/etc/passwd", "..", "Europe", "a" * 70_000, "\0"])))
def test_every_zone_is_known_or_refused_by_the_one_error(zone):
    try:
        Cron("0 9 * * *", zone)
    except ScheduleError as error:
        assert error.field == "timezone"


@pytest.mark.parametrize(
    "zone",
    ["localtime", "posixrules", "Factory", "right/Europe/London", "posix/UTC", "America", "Europe/Nowhere", "UTC+3",
     "EST5EDT4", "europe/london", "", " ", "../UTC", "tzdata.zi", "zone.tab"],
)
def test_r051_a_zone_is_an_exact_key(zone):
    assert refusal("0 9 * * *", zone).field == "timezone"


def test_r051_a_refused_zone_comes_with_a_suggestion():
    assert "'Europe/London'" in refusal("0 9 * * *", "europe/london").reason
    assert "'America/New_York'" in refusal("0 9 * * *", "America/NewYork").reason
    assert "Etc/GMT-3" in refusal("0 9 * * *", "UTC+3").reason


def fields(expression):
    return parse_cron(expression).fields


SAME_MEANING = [
    ("0 0 * * MON-FRI", "0 0 * * 1-5"),
    ("0 0 * * FRI-MON", "0 0 * * 0,1,5,6"),
    ("0 0 * * 5-7", "0 0 * * 0,5,6"),
    ("0 0 * * 1-7/2", "0 0 * * 0,1,3,5"),
    ("0 0 * * 7-2", "0 0 * * 0-2"),
    ("0 0 * * 7-7", "0 0 * * 0"),
    ("0 0 * * 3/2", "0 0 * * 3,5"),
    ("0 22-2/3 * * *", "0 1,22 * * *"),
    ("50-10/7 * * * *", "4,50,57 * * * *"),
    ("0 0 1 NOV-FEB *", "0 0 1 1,2,11,12 *"),
    ("5-5 * * * *", "5 * * * *"),
    ("0 0 * * FRI-FRI", "0 0 * * 5"),
    ("15-15/5 * * * *", "15 * * * *"),
    ("\t0   0 *  * *\r\n", "0 0 * * *"),
    ("0 0 */1 * MON", "0 0 * * 1"),
    ("0 0 ? * MON", "0 0 * * 1"),
    ("0 0 * * frI#1,FRI#1", "0 0 * * 5#1"),
    ("0 0 * * 7#2,7L", "0 0 * * 0#2,0L"),
    ("00 09 01 01 *", "0 9 1 1 *"),
    ("@hourly", "0 * * * *"),
    ("@Daily", "@midnight"),
    ("@weekly", "0 0 * * SUN"),
    ("@yearly", "@annually"),
]


@pytest.mark.parametrize(("one", "other"), SAME_MEANING)
def test_spellings_of_one_meaning(one, other):
    assert fields(one) == fields(other)


@pytest.mark.parametrize(
    ("expression", "ticks"),
    [
        ("* * * * *", True), ("0 * * * *", True), ("5,35 0-23 * * *", True), ("0 */1 * * *", True),
        ("*/15 1-3 * * *", True), ("0/30 2 * * *", True), ("0-59 2 * * *", True), ("0-29,30-59 2 * * *", True),
        ("0-59/20 2 * * *", True),
        ("30 1 * * *", False), ("0,30 1 * * *", False), ("0 0-5 * * *", False), ("0 */2 * * *", False),
        ("*/60 1 * * *", False), ("0-30/10 1 * * *", False),
    ],
)
def test_a_schedule_ticks_by_all_hours_or_by_open_minutes(expression, ticks):
    assert fields(expression).ticks is ticks


def test_the_text_is_kept_with_single_blanks():
    assert Cron(" 0  9\t* * mon-fri \n").expression == "0 9 * * mon-fri"


def test_r011_steps_wider_than_the_field_and_wrong_numbers_are_refused():
    for expression, field in [("*/61 * * * *", "minute"), ("*/0 * * * *", "minute"), ("60 * * * *", "minute"),
                              ("0 24 * * *", "hour"), ("0 0 * *", "expression"), ("", "expression")]:
        assert refusal(expression).field == field


def test_r007_days_that_no_month_has_are_refused_with_their_field():
    for expression in ("0 12 31 4 *", "0 0 30 2 *"):
        error = refusal(expression)

        assert (error.field, error.code) == ("day-of-month", "never")


def test_days_that_some_february_has_are_taken():
    assert Cron("0 0 29 2 *").next_after(datetime(2026, 1, 1, tzinfo=UTC)) == datetime(2028, 2, 29, tzinfo=UTC)
    assert Cron("0 0 30 2 MON").next_after(datetime(2026, 1, 1, tzinfo=UTC)) == datetime(2026, 2, 2, tzinfo=UTC)
