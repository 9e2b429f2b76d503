"""The timer wheel: never early, nothing lost, and the same answers as a plain sorted list."""

from __future__ import annotations

import tracemalloc
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chrono_beat.core.wheel import BACK_STEP_TICKS, MAX_HUSKS, RING_BITS, TICK_US, TimerWheel, _Ring

SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US
EPOCH_US = 1_767_344_400 * SECOND_US  # 2026-01-02 09:00 UTC
HORIZON_US = (1 << sum(RING_BITS)) * TICK_US


def full_wheel(count: int, *, due_us: int = EPOCH_US, apart_us: int = 0) -> TimerWheel[int]:
    wheel: TimerWheel[int] = TimerWheel(now_us=EPOCH_US - 60 * SECOND_US)
    for number in range(count):
        wheel.add(f"job-{number}", due_us + number * apart_us, number)
    return wheel


class SortedModel:
    """What the wheel must answer, with no wheel in it."""

    def __init__(self) -> None:
        self.waiting: dict[str, tuple[int, int]] = {}

    def add(self, key: str, due_us: int, serial: int) -> None:
        self.waiting[key] = (due_us, serial)

    def cancel(self, key: str) -> int | None:
        found = self.waiting.pop(key, None)
        return None if found is None else found[1]

    def advance(self, now_us: int, limit: int | None) -> list[int]:
        due = sorted(entry for entry in self.waiting.values() if entry[0] <= now_us)[:limit]
        serials = [serial for _, serial in due]
        self.waiting = {key: entry for key, entry in self.waiting.items() if entry[1] not in set(serials)}
        return serials


def stored_entries(wheel: TimerWheel[int]) -> list[tuple[int, str, int]]:
    slots = [slot for ring in wheel._rings for slot in ring.slots]
    return [entry for entries in (wheel._ripe, *wheel._beyond.values(), *slots) for entry in entries]


# Fires exactly when due ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wait_us",
    [1, 9_999, 10_000, 10_001, 2_559_999, 2_560_000, 5_005_000, 163_840_000, HOUR_US, HORIZON_US, 40 * 24 * HOUR_US],
)
def test_inv01_an_entry_fires_at_its_microsecond_and_not_one_before(wait_us: int) -> None:
    wheel: TimerWheel[str] = TimerWheel(now_us=EPOCH_US)
    wheel.add("job", EPOCH_US + wait_us, "item")

    assert wheel.advance(EPOCH_US + wait_us - 1) == []
    assert wheel.advance(EPOCH_US + wait_us) == ["item"]
    assert len(wheel) == 0


def test_inv01_entries_of_one_tick_wait_for_their_own_microsecond() -> None:
    wheel: TimerWheel[str] = TimerWheel(now_us=EPOCH_US)
    wheel.add("late", EPOCH_US + 25_900, "late")
    wheel.add("early", EPOCH_US + 25_100, "early")

    assert wheel.advance(EPOCH_US + 25_500) == ["early"]
    assert wheel.advance(EPOCH_US + 25_899) == []
    assert wheel.advance(EPOCH_US + 25_900) == ["late"]


def test_the_worked_example_of_the_module() -> None:
    wheel: TimerWheel[str] = TimerWheel(now_us=0)
    wheel.add("job", 5_005_000, "item")

    assert wheel.next_due_us() == 2_560_000
    assert wheel.advance(2_560_000) == []
    assert wheel.next_due_us() == 5_000_000
    assert wheel.advance(5_001_000) == []
    assert wheel.next_due_us() == 5_005_000
    assert wheel.advance(5_005_000) == ["item"]


def test_what_is_added_in_the_past_fires_at_the_next_advance() -> None:
    wheel: TimerWheel[str] = TimerWheel(now_us=EPOCH_US)
    wheel.add("past", EPOCH_US - HOUR_US, "past")
    wheel.add("before the epoch", -5, "before the epoch")

    assert wheel.advance(EPOCH_US) == ["before the epoch", "past"]


def test_the_order_is_by_due_time_then_by_adding() -> None:
    wheel: TimerWheel[str] = TimerWheel(now_us=EPOCH_US)
    for key, due_us in [("c", 7), ("a", 5), ("b", 5), ("d", 7)]:
        wheel.add(key, EPOCH_US + due_us * SECOND_US, key)

    assert wheel.advance(EPOCH_US + HOUR_US) == ["a", "b", "c", "d"]


def test_a_wheel_that_was_told_no_time_gives_the_same_answers() -> None:
    wheel: TimerWheel[str] = TimerWheel()
    wheel.add("job", EPOCH_US + 1, "item")

    assert wheel.advance(EPOCH_US) == []
    assert wheel.advance(EPOCH_US + 1) == ["item"]


# Replacing and cancelling ------------------------------------------------------------------------------------------


def test_adding_a_key_again_replaces_its_entry() -> None:
    wheel: TimerWheel[str] = TimerWheel(now_us=EPOCH_US)
    wheel.add("job", EPOCH_US + SECOND_US, "old")
    wheel.add("job", EPOCH_US + 2 * SECOND_US, "new")

    assert len(wheel) == 1
    assert wheel.advance(EPOCH_US + SECOND_US) == []
    assert wheel.advance(EPOCH_US + 2 * SECOND_US) == ["new"]


def test_a_replaced_entry_counts_as_added_now() -> None:
    wheel: TimerWheel[str] = TimerWheel(now_us=EPOCH_US)
    due_us = EPOCH_US + SECOND_US
    wheel.add("a", due_us, "a")
    wheel.add("b", due_us, "b")
    wheel.add("a", due_us, "a again")

    assert wheel.advance(due_us) == ["b", "a again"]


@pytest.mark.parametrize("wait_us", [-SECOND_US, 0, SECOND_US, HOUR_US, 2 * HORIZON_US])
def test_a_cancelled_entry_never_fires(wait_us: int) -> None:
    wheel: TimerWheel[str] = TimerWheel(now_us=EPOCH_US)
    wheel.add("job", EPOCH_US + wait_us, "item")

    assert "job" in wheel
    assert wheel.cancel("job") == "item"
    assert wheel.cancel("job") is None
    assert "job" not in wheel
    assert len(wheel) == 0
    assert wheel.next_due_us() is None
    assert wheel.advance(EPOCH_US + 3 * HORIZON_US) == []


def test_cancelling_what_has_fired_answers_none() -> None:
    wheel = full_wheel(1)
    wheel.advance(EPOCH_US)

    assert wheel.cancel("job-0") is None


def test_clear_forgets_everything_and_leaves_a_usable_wheel() -> None:
    wheel = full_wheel(100, apart_us=SECOND_US)
    wheel.advance(EPOCH_US + 10 * SECOND_US)

    wheel.clear()

    assert len(wheel) == 0
    assert wheel.next_due_us() is None
    assert wheel.advance(EPOCH_US + HOUR_US) == []
    wheel.add("job", EPOCH_US + 2 * HOUR_US, 1)
    assert wheel.advance(EPOCH_US + 2 * HOUR_US) == [1]


def test_husks_of_cancelled_entries_are_bounded() -> None:
    """A job that is edited over and over must not fill the memory until its far due time comes."""
    wheel = full_wheel(10, due_us=EPOCH_US + HOUR_US)

    for _ in range(20 * MAX_HUSKS):
        wheel.add("edited", EPOCH_US + HOUR_US, -1)

    assert len(stored_entries(wheel)) <= MAX_HUSKS + len(wheel) + 1
    assert wheel.advance(EPOCH_US + HOUR_US) == [*range(10), -1]


# Jumps and back-steps ----------------------------------------------------------------------------------------------


def test_a_jump_of_hours_takes_occupied_slots_only(monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = full_wheel(3, apart_us=HOUR_US)
    taken: list[int] = []
    take = _Ring.take

    def count(ring: _Ring[int], position: int) -> object:
        taken.append(position)
        return take(ring, position)

    monkeypatch.setattr(_Ring, "take", count)

    assert wheel.advance(EPOCH_US + 30 * 24 * HOUR_US) == [0, 1, 2]
    assert len(taken) <= 3


def test_time_that_goes_back_fires_nothing_and_breaks_nothing() -> None:
    wheel = full_wheel(3, apart_us=SECOND_US)
    assert wheel.advance(EPOCH_US + SECOND_US) == [0, 1]

    assert wheel.advance(EPOCH_US - HOUR_US) == []

    wheel.add("added meanwhile", EPOCH_US - HOUR_US + SECOND_US, -1)
    assert wheel.advance(EPOCH_US - HOUR_US + SECOND_US - 1) == []
    assert wheel.advance(EPOCH_US - HOUR_US + SECOND_US) == [-1]
    assert wheel.advance(EPOCH_US + 2 * SECOND_US - 1) == []
    assert wheel.advance(EPOCH_US + 2 * SECOND_US) == [2]


def test_inv01_a_small_back_step_within_a_tick_keeps_what_was_ripe() -> None:
    wheel: TimerWheel[str] = TimerWheel(now_us=EPOCH_US)
    wheel.add("job", EPOCH_US + 5_000, "item")

    assert wheel.advance(EPOCH_US + 4_999) == []
    assert wheel.advance(EPOCH_US - 20 * TICK_US) == []
    assert wheel.next_due_us() == EPOCH_US + 5_000
    assert wheel.advance(EPOCH_US + 5_000) == ["item"]


# Bursts ------------------------------------------------------------------------------------------------------------


def test_a_burst_of_100_000_can_be_taken_in_pieces_in_order() -> None:
    wheel = full_wheel(100_000)

    pieces = []
    while piece := wheel.advance(EPOCH_US, limit=5_000):
        pieces.append(piece)

    assert [len(piece) for piece in pieces] == [5_000] * 20
    assert [number for piece in pieces for number in piece] == list(range(100_000))


def test_what_joins_a_half_fired_burst_takes_its_place_by_due_time() -> None:
    wheel = full_wheel(4)
    assert wheel.advance(EPOCH_US, limit=2) == [0, 1]

    wheel.add("older", EPOCH_US - 1, -1)
    wheel.add("same", EPOCH_US, 4)
    wheel.cancel("job-2")

    assert wheel.next_due_us() == EPOCH_US - 1
    assert wheel.advance(EPOCH_US, limit=2) == [-1, 3]
    assert wheel.advance(EPOCH_US) == [4]


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="limit"):
        TimerWheel[int]().advance(0, limit=0)


def test_memory_is_a_few_machine_words_an_entry() -> None:
    """The bound that the module states, without the callers' keys and items."""
    keys = [f"job-{number}" for number in range(20_000)]
    wheel: TimerWheel[None] = TimerWheel(now_us=EPOCH_US)

    tracemalloc.start()
    for number, key in enumerate(keys):
        wheel.add(key, EPOCH_US + number * 3_000, None)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert used / len(keys) < 200


# Sleeping ----------------------------------------------------------------------------------------------------------


def test_an_empty_wheel_names_no_time_to_wake() -> None:
    assert TimerWheel[int](now_us=EPOCH_US).next_due_us() is None


@pytest.mark.parametrize("wait_us", [1, 15_000, 3 * SECOND_US, 170 * SECOND_US, 3 * HORIZON_US + 7])
def test_a_sleeper_that_follows_next_due_wakes_a_few_times_and_fires_on_time(wait_us: int) -> None:
    wheel: TimerWheel[str] = TimerWheel(now_us=EPOCH_US)
    wheel.add("job", EPOCH_US + wait_us, "item")

    wakes = 0
    while (wake_us := wheel.next_due_us()) is not None:
        assert wake_us <= EPOCH_US + wait_us
        fired = wheel.advance(wake_us)
        wakes += 1

    assert fired == ["item"]
    assert wake_us is None
    assert wakes <= len(RING_BITS) + 2


# The law -----------------------------------------------------------------------------------------------------------

KEYS = st.sampled_from([f"job-{number}" for number in range(12)])
# Steps of every size that has a branch of its own: inside a tick, over each ring's turn, far ahead, and back.
STEPS_US = st.one_of(
    st.integers(0, 3 * TICK_US),
    st.integers(0, 6 * SECOND_US),
    st.integers(0, 400 * SECOND_US),
    st.integers(0, 3 * HORIZON_US),
    st.integers(-2 * BACK_STEP_TICKS * TICK_US, 0),
    st.integers(-2 * HORIZON_US, 0),
)
OPERATIONS = st.one_of(
    st.tuples(st.just("add"), KEYS, STEPS_US),
    st.tuples(st.just("cancel"), KEYS, st.just(0)),
    st.tuples(st.just("advance"), st.sampled_from([None, 1, 2, 5]), STEPS_US),
)


@settings(max_examples=300, deadline=None)
@given(
    start_us=st.integers(0, 2 * HORIZON_US),
    max_husks=st.sampled_from([0, 2, MAX_HUSKS]),
    operations=st.lists(OPERATIONS, max_size=60),
)
@example(  # a far turn is entered, its entry moves to a ring
    start_us=0,
    max_husks=MAX_HUSKS,
    operations=[("add", "job-0", 2 * HORIZON_US + 5 * SECOND_US), ("advance", None, 2 * HORIZON_US + SECOND_US)],
)
@example(  # a coarse slot with a husk is entered
    start_us=0,
    max_husks=MAX_HUSKS,
    operations=[("add", "job-0", 5 * SECOND_US), ("cancel", "job-0", 0), ("advance", None, 3 * SECOND_US)],
)
def test_inv01_the_wheel_answers_like_a_sorted_list(
    start_us: int, max_husks: int, operations: list[tuple[str, object, int]]
) -> None:
    with mock.patch("chrono_beat.core.wheel.MAX_HUSKS", max_husks):
        compare_with_model(start_us, operations)


def compare_with_model(start_us: int, operations: list[tuple[str, object, int]]) -> None:
    now_us = start_us
    wheel: TimerWheel[int] = TimerWheel(now_us=start_us)
    model = SortedModel()

    for serial, (verb, operand, step_us) in enumerate(operations):
        if verb == "add":
            wheel.add(str(operand), now_us + step_us, serial)
            model.add(str(operand), now_us + step_us, serial)
        elif verb == "cancel":
            assert wheel.cancel(str(operand)) == model.cancel(str(operand))
        else:
            assert operand is None or isinstance(operand, int)
            now_us += step_us
            assert wheel.advance(now_us, limit=operand) == model.advance(now_us, operand)
            assert wheel._tick - now_us // TICK_US <= BACK_STEP_TICKS or now_us < 0
        # What costs O(1) only as long as it holds: ripe means reached, and every husk is counted.
        assert all(due_us // TICK_US <= wheel._tick for due_us, _, _ in wheel._ripe)
        assert len(stored_entries(wheel)) == len(wheel) + wheel._husks
        assert len(wheel) == len(model.waiting)
        earliest_us = min((due_us for due_us, _ in model.waiting.values()), default=None)
        bound_us = wheel.next_due_us()
        assert (bound_us is None) == (earliest_us is None)
        assert bound_us is None or earliest_us is None or bound_us <= earliest_us
