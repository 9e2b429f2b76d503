"""Answers are shared, small, right from many threads, and found in few steps; no test here looks at a clock."""

import random
import threading
import zoneinfo
from datetime import UTC, datetime, timedelta

import pytest

from chrono_beat.core import calendar, zones
from chrono_beat.core.instants import Instants
from chrono_beat.core.schedule import CeleryCrontab, Cron, computations, forget_shared, schedule_from_parts
from chrono_beat.core.shared import MAX_GAPS

zoneinfo.reset_tzpath(to=())

T0 = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture(autouse=True)
def nothing_known():
    forget_shared()


def cost(work):
    before = computations()
    work()
    return computations() - before


def test_a_hundred_thousand_jobs_of_one_schedule_cost_a_few_computations():
    def plan():
        for job in range(100_000):
            schedule = schedule_from_parts("cron", "0 9 * * *", "Europe/London")
            assert schedule.next_after(T0 + timedelta(milliseconds=job)) == T0 + timedelta(hours=9)

    assert cost(plan) <= 10


def test_any_instants_of_one_wait_cost_a_few_computations():
    drawn = random.Random(5)

    def plan():
        for _ in range(2_000):
            t = T0 + timedelta(hours=9) + drawn.random() * (DAY - timedelta(microseconds=2))
            schedule = Cron("0 9 * * *")
            assert schedule.next_after(t) == T0 + timedelta(hours=33)
            assert schedule.previous_before(t + timedelta(microseconds=1)) == T0 + timedelta(hours=9)

    assert cost(plan) <= 4
    assert cost(lambda: Cron("0 9 * * *").previous_before(T0 + timedelta(hours=33))) == 0


def test_walking_from_run_to_run_costs_one_computation_each():
    schedule = Cron("*/5 * * * *", "America/New_York")

    def walk():
        t = T0
        for _ in range(500):
            t = schedule.next_after(t)

    assert cost(walk) <= 501


def test_spellings_of_one_meaning_share_their_answers():
    Cron("0 9 * * mon-fri", "UTC").next_after(T0)

    assert cost(lambda: Cron("00 9 * * 1-5", "UTC").next_after(T0)) == 0
    assert cost(lambda: Cron("00 9 * * 1-5", "Europe/London").next_after(T0)) > 0


def test_bounds_do_not_divide_the_shared_answers():
    Cron("0 9 * * *").next_after(T0)

    assert cost(lambda: Cron("0 9 * * *", start=T0 - DAY, end=T0 + DAY).next_after(T0)) == 0


def test_what_is_known_of_a_schedule_stays_small_and_right():
    schedule = Cron("0 * * * *", "Australia/Lord_Howe")
    drawn = random.Random(7)
    questions = [T0 + timedelta(minutes=drawn.randrange(400 * 1_440)) for _ in range(600)]

    answers = [schedule.next_after(t) for t in questions]

    starts, gaps = schedule.shared()._known
    assert len(starts) == len(gaps) == MAX_GAPS
    forget_shared()
    for t, answer in zip(reversed(questions), reversed(answers), strict=True):
        assert schedule.next_after(t) == answer
        assert schedule.previous_before(answer + timedelta(seconds=1)) == answer


def test_many_threads_get_the_same_answers():
    schedule = Cron("*/20 1-3 * * *", "Europe/London")
    start = datetime(2026, 10, 24, tzinfo=UTC)
    questions = [start + timedelta(minutes=7 * k) for k in range(400)]
    expected = [schedule.next_after(t) for t in questions]
    wrong = []

    def ask(seed):
        order = list(range(len(questions)))
        random.Random(seed).shuffle(order)
        same = Cron("*/20 1-3 * * *", "Europe/London")
        wrong.extend(k for k in order if same.next_after(questions[k]) != expected[k])

    forget_shared()
    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


class Steps:
    """Counts the work of a search: looks at the named minutes, at months, at offsets."""

    def __init__(self, monkeypatch):
        self.taken = 0
        for owner, name in [(calendar.WallCalendar, "next"), (calendar.WallCalendar, "previous"),
                            (calendar.WallCalendar, "count"), (calendar.WallCalendar, "_days_of"),
                            (zones.Timeline, "stretch_at"), (zones.Timeline, "_look"), (Instants, "_count")]:
            self._count(monkeypatch, owner, name)

    def _count(self, monkeypatch, owner, name):
        original = getattr(owner, name)

        def counted(*args, **kwargs):
            self.taken += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)


SLOW_ELSEWHERE = [
    (Cron("0 0 * 2 MON#5"), datetime(2072, 3, 1, tzinfo=UTC), datetime(2112, 2, 29, tzinfo=UTC)),
    (CeleryCrontab("0", "0", "mon", "29", "2"), datetime(2072, 3, 1, tzinfo=UTC), datetime(2112, 2, 29, tzinfo=UTC)),
    (Cron("0 0 29 2 *"), datetime(1896, 3, 1, tzinfo=UTC), datetime(1904, 2, 29, tzinfo=UTC)),
    (Cron("* * * * *", "Pacific/Apia"), datetime(2011, 12, 30, 9, 59, tzinfo=UTC),
     datetime(2011, 12, 30, 10, tzinfo=UTC)),
    (Cron("*/30 * * * *", "Pacific/Fakaofo"), datetime(2011, 12, 30, 10, 50, tzinfo=UTC),
     datetime(2011, 12, 30, 11, tzinfo=UTC)),
    (Cron("30 2 * * *", "Antarctica/Troll"), datetime(2026, 3, 29, 0, 30, tzinfo=UTC),
     datetime(2026, 3, 29, 1, tzinfo=UTC)),
    (Cron("0 0 30 12 *", "Pacific/Apia"), datetime(2011, 6, 1, tzinfo=UTC), datetime(2012, 12, 29, 10, tzinfo=UTC)),
    (Cron("0 0 29 2 *"), datetime(9996, 3, 1, tzinfo=UTC), None),
]


@pytest.mark.parametrize(("schedule", "t", "expected"), SLOW_ELSEWHERE, ids=lambda value: str(value))
def test_long_waits_and_gaps_take_few_steps(monkeypatch, schedule, t, expected):
    steps = Steps(monkeypatch)

    assert schedule.next_after(t) == expected
    assert steps.taken < 200


def test_looking_back_takes_few_steps(monkeypatch):
    steps = Steps(monkeypatch)

    assert Cron("0 0 * 2 MON#5").previous_before(datetime(2112, 2, 1, tzinfo=UTC)) == datetime(2072, 2, 29, tzinfo=UTC)
    assert steps.taken < 200


@pytest.mark.parametrize("expression", ["* * * * *", "*/15 1-3 * * *", "0 9 * * *"])
def test_counting_far_stops_at_the_limit(monkeypatch, expression):
    steps = Steps(monkeypatch)

    assert Cron(expression, "Europe/London").count_between(T0, datetime(9000, 1, 1, tzinfo=UTC)) == 10_001
    assert steps.taken < 2_000


def test_counting_rare_runs_over_millennia_takes_steps_by_clock_changes_not_by_years(monkeypatch):
    steps = Steps(monkeypatch)

    assert Cron("0 0 1 1 *", "Europe/London").count_between(T0 - DAY, datetime(9000, 1, 2, tzinfo=UTC)) == 6_975
    assert steps.taken < 4_000


@pytest.mark.parametrize(
    ("expression", "zone"),
    [("30 2 * * SUN", "America/New_York"), ("*/20 1-2 8-14 3 *", "America/New_York"), ("0 0 13 * FRI", "Europe/London"),
     ("0 0 * 2 MON#5", "Asia/Gaza"), ("15,45 1 * 10,11 *", "Australia/Lord_Howe")],
)
def test_counts_of_far_years_are_those_of_walking(expression, zone):
    """Years outside 1800 to 2100 are counted by their kind; here one by one."""
    instants = Cron(expression, zone).shared().instants
    for year in (1753, 1796, 2100, 2399, 2444, 5000, 9997):
        start, end = ((datetime(y, 1, 1) - datetime(1, 1, 1)).days * 86_400 for y in (year, year + 1))
        walked, t = 0, start
        while (t := instants.first_from(t)) is not None and t < end:
            walked, t = walked + 1, t + 1

        assert instants.count(start, end, 100_000) == walked

    start, middle, end = ((datetime(y, 1, 1) - datetime(1, 1, 1)).days * 86_400 for y in (2050, 2333, 4000))
    whole = instants.count(start + 5, end - 5, 1_000_000)
    assert whole == instants.count(start + 5, middle + 99, 1_000_000) + instants.count(middle + 99, end - 5, 1_000_000)
