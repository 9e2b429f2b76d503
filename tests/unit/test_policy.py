"""What a claim writes: look-ahead, misfires, spread, rows that cannot be planned."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chrono_beat.core.ids import spread_us, to_us
from chrono_beat.core.policy import DEFAULT_MISFIRE_CAP, MAX_OCCURRENCES, plan_claim
from chrono_beat.core.records import Content, DueJob, Occurrence
from chrono_beat.core.schedule import ScheduleError, schedule_from_parts

CONTENT = Content("acme", "job", "t.noop", "[]", "{}", "", "", 5, None, 21600.0, None, "forbid", "occurrence")
NINE = datetime(2026, 1, 2, 9, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def due_job(kind="cron", expression="*/10 * * * *", *, next_run=NINE, anchor=NINE, **changed):
    job = DueJob("00000000-0000-7000-8000-000000000001", 3, to_us(next_run), 7, kind, expression, "UTC", None, None,
                 to_us(anchor), 0, "latest", None, None, CONTENT)
    return job._replace(**changed)


def plan(job, now, horizon=MINUTE, **options):
    return plan_claim(job, to_us(now), to_us(now + horizon), 5, **options)


def at(instant, due=None):
    return Occurrence(to_us(instant), to_us(due or instant))


def missed(last, count, first):
    return Occurrence(to_us(last), to_us(last), "missed", count, to_us(first))


def test_what_is_due_within_the_look_ahead_is_claimed_and_the_next_run_lies_behind_it():
    claim = plan(due_job(), NINE - timedelta(seconds=30))

    assert claim.occurrences == [at(NINE)]
    assert claim.new_next_run_us == to_us(NINE + 10 * MINUTE)
    assert (claim.partition, claim.version, claim.next_run_us, claim.epoch) == (3, 7, to_us(NINE), 5)


def test_all_occurrences_of_the_look_ahead_are_claimed_in_one_go():
    claim = plan(due_job("interval", "15"), NINE - timedelta(seconds=1))

    assert [o.scheduled_us - to_us(NINE) for o in claim.occurrences] == [0, 15_000_000, 30_000_000, 45_000_000]
    assert claim.new_next_run_us == to_us(NINE + MINUTE)


def test_one_claim_is_bounded_and_the_next_goes_on_from_there():
    claim = plan(due_job("interval", "1"), NINE - timedelta(seconds=1), 10 * MINUTE)

    assert len(claim.occurrences) == MAX_OCCURRENCES
    assert claim.new_next_run_us == to_us(NINE) + MAX_OCCURRENCES * 1_000_000


def test_a_schedule_that_is_over_has_no_next_run():
    claim = plan(due_job("once", NINE.isoformat()), NINE - timedelta(seconds=5))

    assert (claim.occurrences, claim.new_next_run_us) == ([at(NINE)], None)


# -- misfires ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(
    ("job", "now", "expected", "following"),
    [
        # One overdue occurrence runs late.
        (due_job(), NINE + 3 * MINUTE, [at(NINE)], NINE + 10 * MINUTE),
        # Of several only the latest; the others are one row.
        (due_job(), NINE + 63 * MINUTE, [missed(NINE + 50 * MINUTE, 6, NINE), at(NINE + HOUR)], NINE + 70 * MINUTE),
        (due_job(), NINE + 13 * MINUTE, [missed(NINE, 1, NINE), at(NINE + 10 * MINUTE)], NINE + 20 * MINUTE),
        # Due this very microsecond is overdue, and runs.
        (due_job(), NINE, [at(NINE)], NINE + 10 * MINUTE),
        # A one-off has no grace: a reminder runs late, never not at all.
        (due_job("once", NINE.isoformat()), NINE + 40 * DAY, [at(NINE)], None),
        (due_job("once", NINE.isoformat(), grace_seconds=60.0), NINE + HOUR, [missed(NINE, 1, NINE)], None),
        # Recurring: the longer of an hour and the period …
        (due_job("cron", "0 9 * * *"), NINE + 23 * HOUR, [at(NINE)], NINE + DAY),
        (due_job("interval", "7200"), NINE + 119 * MINUTE, [at(NINE)], NINE + 2 * HOUR),
        # … but at most a day.
        (due_job("cron", "0 9 2 * *"), NINE + DAY, [at(NINE)], datetime(2026, 2, 2, 9, tzinfo=UTC)),
        (due_job("cron", "0 9 2 * *"), NINE + 25 * HOUR, [missed(NINE, 1, NINE)], datetime(2026, 2, 2, 9, tzinfo=UTC)),
        # The job's own grace.
        (due_job("cron", "0 9 * * *", grace_seconds=600.0), NINE + 11 * MINUTE, [missed(NINE, 1, NINE)], NINE + DAY),
        (due_job("cron", "0 9 * * *", grace_seconds=600.0), NINE + 9 * MINUTE, [at(NINE)], NINE + DAY),
        # skip: what is later than a minute is missed.
        (due_job(misfire="skip"), NINE + MINUTE, [at(NINE)], NINE + 10 * MINUTE),
        (due_job(misfire="skip"), NINE + 2 * MINUTE, [missed(NINE, 1, NINE)], NINE + 10 * MINUTE),
        (due_job(misfire="skip"), NINE + 21 * MINUTE, [missed(NINE + 10 * MINUTE, 2, NINE),
                                                        at(NINE + 20 * MINUTE)], NINE + 30 * MINUTE),
        # all: every one of them, oldest first.
        (due_job(misfire="all"), NINE + 25 * MINUTE, [at(NINE), at(NINE + 10 * MINUTE), at(NINE + 20 * MINUTE)],
         NINE + 30 * MINUTE),
        (due_job(misfire="all", misfire_cap=2), NINE + 45 * MINUTE,
         [missed(NINE + 20 * MINUTE, 3, NINE), at(NINE + 30 * MINUTE), at(NINE + 40 * MINUTE)], NINE + 50 * MINUTE),
        (due_job(misfire="all", grace_seconds=900.0), NINE + 25 * MINUTE,
         [missed(NINE, 1, NINE), at(NINE + 10 * MINUTE), at(NINE + 20 * MINUTE)], NINE + 30 * MINUTE),
    ],
)
def test_misfire(job, now, expected, following):
    claim = plan(job, now, timedelta(seconds=10))

    assert claim.occurrences == expected
    assert claim.new_next_run_us == (following and to_us(following))


def test_all_runs_the_newest_up_to_the_default_cap_and_counts_the_rest_without_walking():
    weeks = timedelta(days=14)
    job = due_job("interval", "5", misfire="all")

    claim = plan(job, NINE + weeks, timedelta())

    overdue = weeks // timedelta(seconds=5) + 1
    first = to_us(NINE + weeks) - (DEFAULT_MISFIRE_CAP - 1) * 5_000_000
    assert claim.occurrences[0] == Occurrence(
        first - 5_000_000, first - 5_000_000, "missed", overdue - DEFAULT_MISFIRE_CAP, to_us(NINE))
    assert claim.occurrences[1] == Occurrence(first, first)
    assert len(claim.occurrences) == 1 + MAX_OCCURRENCES


def test_catching_up_in_several_claims_runs_each_once_and_misses_nothing_on_the_way():
    job, now = due_job("interval", "60", misfire="all"), NINE + timedelta(minutes=359, seconds=30)
    runs = []

    while job.next_run_us <= to_us(now):
        claim = plan(job, now, timedelta())
        runs += claim.occurrences
        job = job._replace(next_run_us=claim.new_next_run_us)

    assert [o.scheduled_us for o in runs] == [to_us(NINE + k * MINUTE) for k in range(360)]
    assert {o.state for o in runs} == {"scheduled"}


def test_overdue_ones_and_the_look_ahead_are_one_claim():
    claim = plan(due_job("interval", "20"), NINE + timedelta(seconds=50))

    assert claim.occurrences == [
        missed(NINE + timedelta(seconds=20), 2, NINE), at(NINE + timedelta(seconds=40)), at(NINE + MINUTE),
        at(NINE + timedelta(seconds=80)), at(NINE + timedelta(seconds=100)),
    ]


def test_a_first_instant_that_the_schedule_does_not_know_is_still_accounted_for():
    """Zone data or an edit may have moved the schedule away under a stored next run."""
    claim = plan(due_job(next_run=NINE + 3 * MINUTE), NINE + 25 * MINUTE)

    assert claim.occurrences == [
        missed(NINE + 10 * MINUTE, 2, NINE + 3 * MINUTE), at(NINE + 20 * MINUTE)]


@pytest.mark.parametrize("stored, now, first, following", [
    (NINE - HOUR, NINE - HOUR - MINUTE / 2, None, NINE),            # it has an hour yet by these data
    (NINE + HOUR, NINE + HOUR - MINUTE / 2, NINE + HOUR, NINE + DAY),   # it should have been run already
    (NINE - HOUR, NINE - HOUR + MINUTE, NINE - HOUR, NINE + DAY),   # due: it runs, and stands for nine o'clock
    (NINE + HOUR, NINE + HOUR + MINUTE, NINE + HOUR, NINE + DAY),
], ids=["to come, now later", "to come, now earlier", "due, now later", "due, now earlier"])
@pytest.mark.parametrize("answers", [None, {}])
def test_inv02_a_next_run_by_other_zone_data_is_one_run(stored, now, first, following, answers):
    claim = plan(due_job(expression="0 9 * * *", timezone="Europe/London", next_run=stored), now, answers=answers)

    assert (claim.occurrences, claim.new_next_run_us) == ([at(first)] if first else [], to_us(following))


@given(
    period=st.integers(1, 4_000), gap=st.integers(0, 200_000), misfire=st.sampled_from(["skip", "latest", "all"]),
    cap=st.integers(1, 100), grace=st.none() | st.integers(0, 10_000), spread=st.integers(0, 600),
)
def test_every_instant_is_claimed_or_counted_as_missed_exactly_once(period, gap, misfire, cap, grace, spread):
    job = due_job("interval", str(period), misfire=misfire, misfire_cap=cap, grace_seconds=grace, spread_seconds=spread)
    now, until = to_us(NINE) + gap * 1_000_000, to_us(NINE) + (gap + 60) * 1_000_000

    claim = plan_claim(job, now, until, 1)

    schedule = schedule_from_parts("interval", str(period), "UTC", anchor=NINE)
    runs = [o.scheduled_us for o in claim.occurrences if o.state == "scheduled"]
    lost = [o for o in claim.occurrences if o.state == "missed"]
    assert len(lost) <= 1
    assert runs == sorted(set(runs))
    accounted = len(runs) + sum(o.missed_count for o in lost)
    following = to_us(NINE) + accounted * period * 1_000_000
    assert claim.new_next_run_us == following
    assert all(schedule.matches(NINE + timedelta(microseconds=us - to_us(NINE))) for us in runs)
    if lost:
        assert (lost[0].first_missed_us, claim.occurrences[0]) == (to_us(NINE), lost[0])
        assert lost[0].scheduled_us == to_us(NINE) + (lost[0].missed_count - 1) * period * 1_000_000


# -- spread -----------------------------------------------------------------------------------------------------------

def test_spread_moves_when_it_may_be_read_and_not_what_the_schedule_said():
    job = due_job(spread_seconds=300)
    offset = spread_us(job.job_id, 300)

    claim = plan(job, NINE - timedelta(seconds=5))

    assert claim.occurrences == [Occurrence(to_us(NINE), to_us(NINE) + offset)]
    assert 0 < offset < 300_000_000


def test_an_occurrence_that_waits_for_its_spread_is_not_overdue():
    job = due_job("interval", "10", spread_seconds=86_400)
    offset = spread_us(job.job_id, 86_400)
    assert offset > 60_000_000

    claim = plan(job, NINE + timedelta(seconds=35))

    assert [o.state for o in claim.occurrences] == ["scheduled"] * 10
    assert claim.occurrences[0] == Occurrence(to_us(NINE), to_us(NINE) + offset)


# -- edits around the store, rows that cannot be planned ---------------------------------------------------------------

def test_a_job_that_was_edited_by_sql_is_planned_from_now_and_fires_nothing():
    claim = plan(due_job(replan=True), NINE + 65 * MINUTE)

    assert (claim.occurrences, claim.new_next_run_us) == ([], to_us(NINE + 70 * MINUTE))


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"expression": "0 12 31 4 *"}, "day-of-month"),               # never: April has no 31st
        ({"expression": "0 0 30 2 *"}, "day-of-month"),
        ({"expression": "61 * * * *"}, "minute"),
        ({"timezone": "UTC+3"}, "timezone"),
        ({"timezone": "Europe/Nowhere"}, "timezone"),
        ({"timezone": ""}, "timezone"),
        ({"schedule_kind": "solar"}, "kind"),
        ({"schedule_kind": "interval", "expression": "0"}, "period"),
        ({"schedule_kind": "interval", "expression": "60", "anchor_us": None}, "anchor"),
        ({"schedule_kind": "once", "expression": "tomorrow"}, "expression"),
        ({"spread_seconds": -1}, "spread"),
        ({"spread_seconds": 10**12}, "spread"),
        ({"misfire": "perhaps"}, "misfire"),
        ({"misfire_cap": 0}, "misfire_cap"),
        ({"grace_seconds": -5.0}, "grace"),
        ({"grace_seconds": float("nan")}, "grace"),
    ],
)
def test_a_row_that_cannot_be_planned_says_why(changed, field):
    with pytest.raises(ScheduleError) as refused:
        plan(due_job(**changed), NINE)

    assert refused.value.field == field
    assert refused.value.reason
