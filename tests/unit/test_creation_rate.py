"""The token bucket behind a tenant's rate of creation."""
from hypothesis import given
from hypothesis import strategies as st

from chrono_beat.core.quotas import MAX_STEP_BACK_US, SECOND_US, Bucket

NOON_US = 1_767_787_200 * SECOND_US


def test_a_burst_is_taken_at_once_and_then_one_each_time_a_token_has_come_back():
    bucket = Bucket(rate=2, burst=3)
    for _ in range(3):
        bucket = bucket.take(NOON_US)

    assert bucket.take(NOON_US) is None
    assert bucket.wait_seconds(NOON_US) == 0.5
    assert bucket.take(NOON_US + SECOND_US // 2 - 1) is None
    assert bucket.take(NOON_US + SECOND_US // 2).tokens == 0


def test_nothing_comes_back_beyond_the_burst():
    empty = Bucket(rate=100, burst=3, tokens=0, counted_us=NOON_US)

    assert empty.at(NOON_US + 3600 * SECOND_US).tokens == 3


def test_a_rate_of_nothing_has_no_time_to_try_again():
    assert Bucket(rate=0, burst=1, tokens=0, counted_us=NOON_US).wait_seconds(NOON_US) is None


def test_a_clock_that_was_set_back_far_is_believed_and_gives_nothing():
    found = Bucket(rate=1, burst=3, tokens=1, counted_us=NOON_US).at(NOON_US - MAX_STEP_BACK_US - 1)

    assert (found.tokens, found.counted_us) == (1, NOON_US - MAX_STEP_BACK_US - 1)


@given(st.lists(st.integers(0, 20 * SECOND_US), min_size=1, max_size=60), st.integers(1, 5), st.integers(1, 4))
def test_in_whatever_order_instants_come_no_more_is_given_than_burst_and_rate_allow(offsets, burst, rate):
    bucket, given_out = Bucket(rate=rate, burst=burst), 0
    for offset in offsets:
        left = bucket.take(NOON_US + offset)
        if left is not None:
            bucket, given_out = left, given_out + 1

    assert given_out <= burst + rate * (max(offsets) - offsets[0] if max(offsets) > offsets[0] else 0) / SECOND_US + 1e-6
