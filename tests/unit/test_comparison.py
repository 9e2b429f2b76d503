"""Two schedulers side by side: every fire is paired, told as one side's, or lies where the other side is not known."""
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chrono_beat.core.comparison import Judged, Span, judge, tolerance_of, united

NOON = datetime(2026, 1, 7, 12, tzinfo=UTC)
FIVE = timedelta(seconds=5)


def at(*seconds):
    return tuple(NOON + timedelta(seconds=second) for second in seconds)


def span(start, end):
    return Span(*at(start, end))


DAY = span(0, 86_400)


def minutely(count, off=0.0, every=60):
    return at(*(60 + number * every + off for number in range(count)))


def test_equal_fires_are_all_paired_and_what_stands_alone_is_told():
    ours, theirs = minutely(100, 0.2), list(minutely(100, 1.0))
    theirs.remove(theirs[40])
    theirs.insert(60, theirs[59] + FIVE)

    found = judge(ours, DAY, theirs, [DAY], tolerance=timedelta(seconds=30))

    assert (found.old, found.shadow, found.matched, found.differs) == (100, 100, 99, True)
    assert found.only_shadow == (ours[40],)
    assert found.only_old == (theirs[60],)
    assert found.furthest_seconds == pytest.approx(0.8)


@pytest.mark.parametrize("offset", [0.0, 11.0, 14.9, 15.0, 15.1, 29.0])
def test_intervals_that_count_from_another_instant_agree_and_a_lost_fire_is_seen_all_the_same(offset):
    """Also where the one lies just between two of the other."""
    period, watched = timedelta(seconds=30), span(100, 6_000)
    ours, theirs = minutely(200, every=30), list(minutely(200, offset, every=30))
    options = {"tolerance": tolerance_of(ours, period), "period": period}

    whole = judge(ours, DAY, theirs, [watched], **options)
    lost = judge(ours, DAY, [fire for fire in theirs if fire != theirs[77]], [watched], **options)

    assert not whole.differs and whole.matched >= 195 and whole.furthest_seconds < 0.001
    assert abs(whole.phase_seconds) == pytest.approx(min(offset, 30 - offset))
    assert len(lost.only_shadow) == 1 and not lost.only_old


def test_a_beat_that_drifts_by_an_interval_has_fired_once_less():
    period = timedelta(seconds=30)
    ours = minutely(2_000, every=30)
    theirs = minutely(1_998, every=30.03)

    found = judge(ours, Span(NOON, ours[-1] + period), theirs, [Span(NOON, ours[-1] + period)],
                  tolerance=tolerance_of(ours, period), period=period)

    assert 1 <= len(found.only_shadow) <= 3 and not found.only_old


def test_the_ends_of_a_watch_a_restart_and_what_came_before_the_shadow_are_no_differences():
    ours, theirs = minutely(60), list(minutely(60, 0.5))
    shadow = Span(ours[10] - FIVE, ours[50] + FIVE)
    watches = [Span(NOON, theirs[20]), Span(theirs[23] + FIVE, theirs[59])]

    found = judge(ours, shadow, theirs[:21] + theirs[24:], watches, tolerance=timedelta(seconds=30))

    assert not found.differs
    assert found.matched == 11 + 27


def test_two_beats_at_once_are_seen():
    ours = minutely(10)

    found = judge(ours, DAY, sorted(ours + minutely(10, 0.1)), [DAY], tolerance=timedelta(seconds=30))

    assert (found.matched, len(found.only_old), found.only_shadow) == (10, 10, ())


def test_the_tolerance_is_half_the_shortest_gap_and_a_minute_at_most():
    assert tolerance_of(minutely(3), None) == timedelta(seconds=30)
    assert tolerance_of(at(0, 3_600, 3_610), None) == FIVE
    assert tolerance_of(at(0, 86_400), None) == tolerance_of((), None) == timedelta(seconds=60)
    assert tolerance_of((), timedelta(seconds=4)) == timedelta(seconds=2)


def test_spans_that_touch_are_one():
    assert united([span(50, 60), span(0, 10), span(10, 20), span(5, 8), span(52, 70)]) == [span(0, 20), span(50, 70)]


seconds = st.lists(st.integers(0, 900), max_size=30, unique=True).map(lambda given: at(*sorted(given)))
spans = st.lists(st.tuples(st.integers(0, 900), st.integers(0, 300)), max_size=3).map(
    lambda given: united(span(start, start + length) for start, length in given))


@given(seconds, seconds, spans, st.integers(1, 60), st.sampled_from([None, 7, 60]))
def test_each_fire_is_paired_alone_or_not_judged_and_never_two_of_these(ours, theirs, watches, tolerance, period):
    length = timedelta(seconds=tolerance)
    every = period and timedelta(seconds=period)

    found = judge(ours, span(100, 800), theirs, watches, tolerance=length, period=every)

    assert found.old == found.matched + len(found.only_old) <= len(theirs)
    assert found.shadow == found.matched + len(found.only_shadow) <= len(ours) * max(1, len(watches))
    assert found.furthest_seconds <= tolerance
    assert set(found.only_old) <= set(theirs)
    assert not watches or period or set(found.only_shadow) <= set(ours)
    if not watches:
        assert found == Judged()


@given(seconds, seconds, st.integers(1, 60))
def test_the_sides_can_be_exchanged(ours, theirs, tolerance):
    length = timedelta(seconds=tolerance)

    found = judge(ours, DAY, theirs, [DAY], tolerance=length)
    back = judge(theirs, DAY, ours, [DAY], tolerance=length)

    assert (found.matched, len(found.only_old), len(found.only_shadow)) == (
        back.matched, len(back.only_shadow), len(back.only_old))


@given(seconds, st.integers(1, 400), st.integers(0, 29))
def test_what_is_the_same_on_both_sides_never_differs_whatever_is_watched(fires, cut, late):
    """However the watch and the shadow's life lie, and also where theirs come late within the tolerance."""
    theirs = [fire + timedelta(seconds=late) for fire in fires]
    planned = [*fires]
    half = tolerance_of(planned, None)

    found = judge(fires, span(cut, 900), theirs, [span(0, cut + 100), span(cut + 150, 2_000)], tolerance=half)

    if timedelta(seconds=late) < half:
        assert not found.differs
