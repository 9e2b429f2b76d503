"""Laws of histograms: they add up in any order, and a percentile is as exact as is said."""
from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chrono_beat.core.rollup import LONGEST_US, RELATIVE_ERROR, SHORTEST_US, compact, count, histogram, merge, percentile

values = st.lists(st.integers(0, LONGEST_US), max_size=60)


@given(values.filter(bool), st.floats(0.001, 1))
def test_a_percentile_is_as_exact_as_stated(durations, share):
    true = max(SHORTEST_US, sorted(durations)[math.ceil(share * len(durations)) - 1])

    assert percentile(histogram(durations), share) == pytest.approx(true, rel=RELATIVE_ERROR * 1.001)


@given(values, values, values)
def test_merging_is_the_histogram_of_all_in_any_order(a, b, c):
    one, two, three = map(histogram, (a, b, c))

    assert merge([one, merge([two, three])]) == merge([merge([three, one]), two]) == histogram(a + b + c)
    assert count(merge([one, two])) == len(a) + len(b)


@given(values, values)
def test_two_texts_one_behind_the_other_are_their_sum(a, b):
    assert compact(f"{histogram(a)} {histogram(b)}") == histogram(a + b)


def test_a_text_of_nothing_has_no_percentile_and_what_is_none_is_passed_over():
    assert percentile("", 0.5) is None
    assert merge(["x:1 3 :2 5:-1 ²:1 171:2"]) == "171:2"


@pytest.mark.parametrize("share", [0, -1, 1.1])
def test_a_share_out_of_range_is_refused(share):
    with pytest.raises(ValueError, match="share"):
        percentile("1:1", share)
