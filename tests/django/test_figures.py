"""Reading rollups: one query each, on both engines, and what a reader of a chart may conclude from it."""
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from chrono_beat.core.errors import InvalidInput
from chrono_beat.core.rollup import histogram
from chrono_beat_django import figures
from chrono_beat_django.models import Rollup
from chrono_beat_django.store import definitions as store

NOON = datetime(2026, 1, 7, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
SECOND_US = 1_000_000

pytestmark = pytest.mark.django_db(transaction=True)


def add(tenant="acme", start=NOON, span="minute", *, late=(), lasted=(), **counts):
    us = [int(seconds * SECOND_US) for seconds in late]
    Rollup.objects.create(
        tenant=tenant, span=span, start=start, started=len(us), lateness=histogram(us), lateness_max_us=max(us, default=0),
        duration=histogram([int(seconds * SECOND_US) for seconds in lasted]), **counts)


@contextmanager
def one_query():
    with CaptureQueriesContext(connections[store.alias()]) as asked:
        yield
    assert len(asked) == 1


def test_a_tenants_figures_are_summed_over_minutes_hours_and_days_that_start_in_the_range():
    add(late=[1] * 50 + [100] * 50, lasted=[2], succeeded=90, dead=10, deliveries=110, duplicates=10, capped_us=5 * SECOND_US)
    add(start=NOON - HOUR, span="hour", late=[1] * 100, capped_us=SECOND_US)
    add(start=NOON - 12 * HOUR, span="day", late=[1])
    add(start=NOON + MINUTE, late=[500])
    add(tenant="other", late=[500])

    with one_query():
        found = figures.of("acme", NOON - 12 * HOUR, NOON + MINUTE)

    assert (found.started, found.succeeded, found.dead, found.deliveries, found.duplicates) == (201, 90, 10, 110, 10)
    assert (found.capped_seconds, found.lateness_max_seconds, found.seconds) == (6, 100, 12 * 3_600 + 60)
    assert (found.lateness.count, found.publish_lateness.p99) == (201, None)
    assert (found.lateness.p50, found.lateness.p99) == (pytest.approx(1, rel=0.021), pytest.approx(100, rel=0.021))
    assert found.duration.p50 == pytest.approx(2, rel=0.021)


def test_adjoining_ranges_add_up():
    for minute in range(6):
        add(start=NOON + minute * MINUTE, late=[1])

    whole, *halves = (figures.of("acme", NOON + a * MINUTE, NOON + b * MINUTE).started for a, b in ((0, 6), (0, 3), (3, 6)))

    assert whole == sum(halves) == 6


def test_a_tenant_without_rollups_has_figures_of_nothing():
    found = figures.of("nobody", NOON, NOON + HOUR)

    assert (found.started, found.lateness, found.capped_seconds) == (0, figures.Spread(0, None, None), 0)


def test_the_worst_tenants_come_first_by_the_p99_and_not_by_their_one_latest_start():
    add("one_outlier", late=[1] * 999 + [900])
    add("always_late", late=[60] * 10)
    add("good", late=[2] * 10)
    add("idle", succeeded=3)

    with one_query():
        found = figures.worst(NOON, NOON + HOUR, limit=2)

    assert [line.tenant for line in found] == ["always_late", "good"]
    assert [line.tenant for line in figures.worst(NOON, NOON + HOUR)] == ["always_late", "good", "one_outlier"]


def test_the_worst_by_a_sum_are_those_that_have_most_of_it():
    add("some", dead=2)
    add("some", start=NOON + MINUTE, dead=2)
    add("more", dead=3)
    add("none", succeeded=9)

    assert [(line.tenant, line.dead) for line in figures.worst(NOON, NOON + HOUR, by="dead")] == [("some", 4), ("more", 3)]


def test_a_series_has_a_point_for_each_minute_or_hour_in_which_something_happened():
    add(late=[1])
    add("other", late=[3])
    add(start=NOON + 90 * MINUTE, late=[1, 1])

    with one_query():
        minutes = figures.series("acme", NOON, NOON + 2 * HOUR)
    hours = figures.series(None, NOON, NOON + 2 * HOUR, span="hour")

    assert [(p.start, p.seconds, p.started) for p in minutes] == [(NOON, 60, 1), (NOON + 90 * MINUTE, 60, 2)]
    assert [(p.start, p.seconds, p.started, p.tenant) for p in hours] == [(NOON, 3600, 2, None), (NOON + HOUR, 3600, 2, None)]


def test_a_point_says_how_long_it_is_where_only_the_hour_or_the_day_is_kept():
    add(start=NOON - 12 * HOUR, span="day", late=[1] * 40)
    add(start=NOON, span="hour", late=[1] * 20)
    add(start=NOON + HOUR, late=[1])

    points = figures.series("acme", NOON - 12 * HOUR, NOON + 2 * HOUR)

    assert [(p.seconds, p.started) for p in points] == [(86_400, 40), (3_600, 20), (60, 1)]


def test_the_span_of_a_series_fits_its_range():
    add(start=NOON + MINUTE, late=[1])

    lengths = [figures.series("acme", NOON, NOON + timedelta(days=days))[0].seconds for days in (1, 2, 90)]

    assert lengths == [60, 3_600, 86_400]


@pytest.mark.parametrize(("ask", "field"), [
    (lambda: figures.of("acme", NOON, NOON), "end"),
    (lambda: figures.of("acme", NOON.replace(tzinfo=None), NOON), "start"),
    (lambda: figures.worst(NOON, NOON + HOUR, by="colour"), "by"),
    (lambda: figures.worst(NOON, NOON + HOUR, limit=0), "limit"),
    (lambda: figures.series("acme", NOON, NOON + HOUR, span="week"), "span"),
    (lambda: figures.series("acme", NOON, NOON + timedelta(days=9), span="minute"), "span"),
])
def test_what_cannot_be_read_is_refused_with_the_argument_that_is_wrong(ask, field):
    with pytest.raises(InvalidInput) as refused:
        ask()

    assert [problem.field for problem in refused.value.problems] == [field]
