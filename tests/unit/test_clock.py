"""Bounds on other servers' clocks, the instant to fire by, deadlines, and the two clocks of a host."""
from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chrono_beat.core.clock import (
    DRIFT_PPM,
    MAX_READINGS,
    SPAN_US,
    Clock,
    FiringClock,
    Reading,
    ServerClock,
    deadline_us,
)
from chrono_beat.host_clock import SystemClock, take_reading
from chrono_beat.testing.clock import ManualClock

SECOND_US = 1_000_000
NINE_US = 1_767_344_400 * SECOND_US  # 2026-01-02 09:00 UTC


def server_read(*readings: tuple[int, int, int], drift_ppm: int = 0) -> ServerClock:
    server = ServerClock(drift_ppm=drift_ppm)
    for reading in readings:
        server.observe(Reading(*reading))
    return server


def exactly(monotonic_us: int, server_us: int) -> tuple[int, int, int]:
    """A reading that took no time."""
    return (monotonic_us, server_us, monotonic_us)


# Bounds ------------------------------------------------------------------------------------------------------------


def test_before_the_first_reading_nothing_is_known() -> None:
    server = ServerClock()

    assert server.at_least(0) is None
    assert server.at_most(0) is None


def test_a_reading_bounds_the_clock_by_its_question_and_its_answer() -> None:
    server = server_read((100_000_000, NINE_US, 100_030_000))

    assert server.at_least(100_030_000) == NINE_US
    assert server.at_most(100_000_000) == NINE_US
    assert server.at_least(100_130_000) == NINE_US + 100_000 - 1
    assert server.at_most(100_130_000) == NINE_US + 130_000 + 1


def test_bounds_give_way_by_the_drift_since_the_reading() -> None:
    server = server_read(exactly(0, NINE_US), drift_ppm=DRIFT_PPM)

    assert server.at_least(SECOND_US) == NINE_US + 999_498
    assert server.at_most(SECOND_US) == NINE_US + 1_000_502
    assert server.at_least(-SECOND_US) == NINE_US - 1_000_502


def test_the_tightest_reading_bounds_and_a_slow_one_does_no_harm() -> None:
    server = server_read((0, NINE_US, 2_000), (1_500_000, NINE_US + 1_501_000, 2_500_000))

    assert server.at_least(2_500_000) == NINE_US + 2_498_000 - 1
    assert server.at_most(2_500_000) == NINE_US + 2_500_000 + 1


def test_of_readings_close_together_the_best_is_kept() -> None:
    slow_first = (0, NINE_US, 90_000)
    best = exactly(200_000, NINE_US + 200_000)
    slow = (400_000, NINE_US + 410_000, 450_000)

    assert server_read(slow_first, best, slow).at_least(500_000) == NINE_US + 500_000 - 1
    assert server_read(slow_first, slow, best).at_least(500_000) == NINE_US + 500_000 - 1


def test_an_answer_before_its_question_is_refused() -> None:
    with pytest.raises(ValueError, match="before it was asked"):
        Reading(2, NINE_US, 1)


def test_the_number_of_readings_kept_is_bounded_however_often_the_clock_is_read() -> None:
    server = ServerClock()

    for number in range(1_000):
        assert not server.observe(Reading(number * 50_000, NINE_US + number * 50_000, number * 50_000))

    assert len(server._readings) == MAX_READINGS


def test_old_readings_leave_and_the_last_one_stays_however_old_it_is() -> None:
    tight, loose = exactly(0, NINE_US), (20 * SPAN_US, NINE_US + 20 * SPAN_US + 300_000, 20 * SPAN_US + 300_000)

    server = server_read(tight, loose)

    assert server.at_most(20 * SPAN_US) == NINE_US + 20 * SPAN_US + 300_000
    assert server.at_least(10_000 * SPAN_US) == NINE_US + 10_000 * SPAN_US - 1


# Steps -------------------------------------------------------------------------------------------------------------


def test_inv01_a_server_clock_that_was_set_back_is_believed_at_the_next_reading() -> None:
    server = server_read(exactly(0, NINE_US), exactly(SECOND_US, NINE_US + SECOND_US))

    stepped = server.observe(Reading(*exactly(2 * SECOND_US, NINE_US - 30 * SECOND_US)))

    assert stepped
    assert server.at_least(2 * SECOND_US) == NINE_US - 30 * SECOND_US


def test_a_server_clock_that_was_set_ahead_is_believed_at_the_next_reading() -> None:
    """Also what a host sees that was suspended: its monotonic clock stood still."""
    server = server_read(exactly(0, NINE_US))

    stepped = server.observe(Reading(*exactly(SECOND_US, NINE_US + 3_600 * SECOND_US)))

    assert stepped
    assert server.at_most(SECOND_US) == NINE_US + 3_600 * SECOND_US


def test_readings_that_differ_by_less_than_the_round_trip_are_no_step() -> None:
    server = server_read((0, NINE_US, 20_000))

    assert not server.observe(Reading(SECOND_US, NINE_US + SECOND_US - 15_000, SECOND_US + 20_000))


def test_an_answer_that_arrives_after_newer_ones_does_not_undo_a_step() -> None:
    server = server_read(exactly(0, NINE_US), exactly(3 * SECOND_US, NINE_US - 30 * SECOND_US))

    assert server.observe(Reading(*exactly(SECOND_US, NINE_US + SECOND_US)))
    assert server.at_least(3 * SECOND_US) == NINE_US - 30 * SECOND_US


@dataclass
class Server:
    """A server whose clock ticks wrongly by so many ppm."""

    start_us: int
    ppm: int

    def at(self, monotonic_us: int) -> int:
        return self.start_us + monotonic_us + monotonic_us * self.ppm // 1_000_000


@settings(max_examples=300, deadline=None)
@given(
    ppm=st.integers(-DRIFT_PPM, DRIFT_PPM),
    questions=st.lists(
        st.tuples(st.integers(0, 5 * SECOND_US), st.integers(0, 300_000), st.integers(0, 300_000)),
        min_size=1,
        max_size=30,
    ),
    later_us=st.integers(0, 100 * SECOND_US),
)
def test_inv01_the_bounds_hold_for_every_clock_within_the_drift(
    ppm: int, questions: list[tuple[int, int, int]], later_us: int
) -> None:
    truth = Server(NINE_US, ppm)
    server = ServerClock()
    monotonic_us = 0

    for pause_us, way_there_us, way_back_us in questions:
        asked_us = monotonic_us + pause_us
        looked_us = asked_us + way_there_us
        monotonic_us = looked_us + way_back_us
        assert not server.observe(Reading(asked_us, truth.at(looked_us), monotonic_us))

    for instant_us in (monotonic_us, monotonic_us + later_us):
        reached, not_passed = server.at_least(instant_us), server.at_most(instant_us)
        assert reached is not None and not_passed is not None
        assert reached <= truth.at(instant_us) <= not_passed


# The firing clock --------------------------------------------------------------------------------------------------


def test_inv01_nothing_fires_before_every_server_was_read() -> None:
    firing = FiringClock({"database": server_read(exactly(0, NINE_US)), "redis": ServerClock()})

    assert firing.now_us(0) is None


def test_inv01_the_slowest_server_decides_when_to_fire() -> None:
    database, redis = server_read(exactly(0, NINE_US)), server_read(exactly(0, NINE_US - 2 * SECOND_US))

    assert FiringClock({"database": database, "redis": redis}).now_us(0) == NINE_US - 2 * SECOND_US


@pytest.mark.parametrize("ahead_seconds", [-30, 0, 30])
def test_inv01_a_wrong_host_wall_clock_changes_no_firing_and_shows_as_skew(ahead_seconds: int) -> None:
    host = ManualClock(wall_us=NINE_US + ahead_seconds * SECOND_US)
    servers = {"database": ServerClock(), "redis": ServerClock()}
    for server in servers.values():
        server.observe(take_reading(host, lambda: NINE_US))
    firing = FiringClock(servers)

    assert firing.now_us(host.monotonic_us()) == NINE_US
    skews = firing.skew_us(wall_us=host.wall_us(), monotonic_us=host.monotonic_us())
    assert skews == {"database": ahead_seconds * SECOND_US, "redis": ahead_seconds * SECOND_US}


def test_a_step_of_the_host_wall_clock_neither_repeats_nor_silences() -> None:
    host = ManualClock(wall_us=NINE_US)
    server = ServerClock()
    server.observe(take_reading(host, lambda: NINE_US))
    firing = FiringClock({"database": server})

    host.step_wall(-12 * 3_600 * SECOND_US)
    host.advance(seconds=60)

    now_us = firing.now_us(host.monotonic_us())
    assert now_us is not None
    assert NINE_US + 59 * SECOND_US < now_us <= NINE_US + 60 * SECOND_US


def test_the_skew_of_a_server_that_was_not_read_is_not_invented() -> None:
    assert FiringClock({"redis": ServerClock()}).skew_us(wall_us=NINE_US, monotonic_us=0) == {}


def test_a_firing_clock_without_servers_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        FiringClock({})


# Deadlines (protocol rule 3) ---------------------------------------------------------------------------------------

LEASE_US, MARGIN_US = 5 * SECOND_US, 500_000


def deadline(server: ServerClock, renewal_started_us: int) -> int | None:
    return deadline_us(server, renewal_started_us=renewal_started_us, lease_us=LEASE_US, margin_us=MARGIN_US)


def test_rule03_a_deadline_is_the_start_of_the_renewal_in_the_judges_time_and_lease_less_margin() -> None:
    server = server_read(exactly(0, NINE_US))

    assert deadline(server, 0) == NINE_US + LEASE_US - MARGIN_US
    assert deadline(server, SECOND_US) == NINE_US + SECOND_US - 1 + LEASE_US - MARGIN_US


def test_rule03_without_an_earlier_reading_there_is_no_deadline() -> None:
    assert deadline(ServerClock(), 0) is None
    assert deadline(server_read(exactly(SECOND_US, NINE_US)), SECOND_US - 1) is None


def test_rule03_a_reading_soon_after_the_first_leaves_the_renewal_between_them_its_deadline() -> None:
    server = server_read((100_000, NINE_US, 150_000), exactly(300_000, NINE_US + 200_000))

    assert deadline(server, 200_000) == NINE_US + 50_000 - 1 + LEASE_US - MARGIN_US


def test_rule03_a_host_that_stood_still_does_not_win_time_by_a_later_reading() -> None:
    """A suspended virtual machine's monotonic clock misses the minute in which its partition was taken over."""
    server = server_read(exactly(0, NINE_US))
    renewal_started_us = SECOND_US
    after_a_minute = Reading(*exactly(1_100_000, NINE_US + 61_100_000))

    before = deadline(server, renewal_started_us)
    assert server.observe(after_a_minute)

    assert before is not None and before < NINE_US + 6 * SECOND_US
    assert deadline(server, renewal_started_us) is None


# The host's clocks -------------------------------------------------------------------------------------------------


def test_the_system_clock_keeps_the_protocol_and_its_monotonic_clock_does_not_go_back() -> None:
    clock: Clock = SystemClock()

    first_us, second_us = clock.monotonic_us(), clock.monotonic_us()

    assert first_us <= second_us
    assert clock.wall_us() > NINE_US - 10 * 365 * 24 * 3_600 * SECOND_US


def test_the_system_clock_does_not_wait_for_what_is_set_or_for_no_time() -> None:
    clock: Clock = SystemClock()
    event = threading.Event()

    assert clock.wait(event, 0) is False
    assert clock.wait(event, -5) is False
    event.set()
    assert clock.wait(event, 10**18) is True


def test_the_manual_clock_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(wall_us=NINE_US, monotonic_us=7)

    assert (clock.wall_us(), clock.monotonic_us()) == (NINE_US, 7)
    clock.advance(seconds=1.5, us=3)
    assert (clock.wall_us(), clock.monotonic_us()) == (NINE_US + 1_500_003, 1_500_010)


def test_the_manual_wall_clock_steps_alone() -> None:
    clock = ManualClock(wall_us=NINE_US, monotonic_us=7)

    clock.step_wall(-SECOND_US)

    assert (clock.wall_us(), clock.monotonic_us()) == (NINE_US - SECOND_US, 7)


def test_manual_time_does_not_pass_backwards() -> None:
    with pytest.raises(ValueError, match="step_wall"):
        ManualClock().advance(us=-1)


def test_a_wait_on_the_manual_clock_lets_its_time_pass() -> None:
    clock: Clock = ManualClock(monotonic_us=0)

    assert clock.wait(threading.Event(), SECOND_US) is False
    assert clock.monotonic_us() == SECOND_US
    assert clock.wait(threading.Event(), -1) is False
    assert clock.monotonic_us() == SECOND_US


def test_a_wait_for_what_is_set_lets_no_time_pass() -> None:
    clock, event = ManualClock(monotonic_us=0), threading.Event()
    event.set()

    assert clock.wait(event, SECOND_US) is True
    assert clock.monotonic_us() == 0


def test_planned_calls_are_made_at_their_instants_in_order() -> None:
    clock = ManualClock(monotonic_us=0)
    made: list[tuple[str, int]] = []
    clock.call_at(30, lambda: made.append(("c", clock.monotonic_us())))
    clock.call_in(lambda: made.append(("a", clock.monotonic_us())), us=10)
    clock.call_at(10, lambda: clock.call_in(lambda: made.append(("b", clock.monotonic_us())), us=5))

    clock.advance(us=20)
    assert made == [("a", 10), ("b", 15)]
    clock.wait(threading.Event(), 20)
    assert made == [("a", 10), ("b", 15), ("c", 30)]
    assert clock.monotonic_us() == 40


def test_a_planned_call_ends_a_wait_at_its_instant() -> None:
    clock, event = ManualClock(monotonic_us=0), threading.Event()
    clock.call_in(event.set, seconds=0.25)

    assert clock.wait(event, SECOND_US) is True
    assert clock.monotonic_us() == 250_000


def test_take_reading_brackets_the_question_with_the_monotonic_clock() -> None:
    clock = ManualClock(monotonic_us=0)

    def answer_after_a_while() -> int:
        clock.advance(us=10)
        return NINE_US

    assert take_reading(clock, answer_after_a_while) == Reading(0, NINE_US, 10)
