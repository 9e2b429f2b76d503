"""What became of tenants' executions over time, read from their rollups: counts, lateness, durations, time capped.

    figures.of("acme", start, end).lateness.p99     # seconds
    figures.worst(start, end, limit=10)             # the tenants that start latest, worst first
    figures.series("acme", start, end)              # points for a chart

A rollup counts where its *start* lies in [start, end), so adjoining ranges add up. What is older than two days is kept by
the hour, and what is older than the retention by the day (UTC): a range that begins within one leaves it out.
"""
from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Aggregate, Case, IntegerField, Max, QuerySet, Sum, TextField, Value, When
from django.db.models.functions import TruncDay, TruncHour, TruncMinute

from chrono_beat.core import field_checks as checks
from chrono_beat.core import lifecycle, rollup
from chrono_beat.core.errors import InvalidInput, Problem
from chrono_beat_django.models import SPANS, Rollup
from chrono_beat_django.store import definitions as store

LONGEST_SERIES = 1_500
"""Points that a series may have; a day has 1,440 minutes."""

LIMIT = checks.Number(1, 1_000, "tenants", whole=True)
ORDERS = {"lateness": "lateness_max_us", "capped": "capped_us", "duplicates": "duplicates", "dead": "dead",
          "failed": "failed", "skipped": "skipped", "missed": "missed", "started": "started"}
"""By what the worst tenants can be ordered: the p99 of lateness, or one of the sums."""

SECONDS = {"minute": 60, "hour": 3_600, "day": 86_400}

_COUNTS = ("started", *lifecycle.TERMINAL, "deliveries", "duplicates", "reaps")
_TRUNCATE = {"minute": TruncMinute, "hour": TruncHour, "day": TruncDay}


@dataclass(frozen=True, slots=True)
class Spread:
    """How long something took: how often it was measured, the median and the 99th percentile; seconds, 2 % off at most.

    Both are None where it was never measured.
    """

    count: int
    p50: float | None
    p99: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What became of executions within *seconds* from *start* on.

    Args:
        tenant: its slug; None for all tenants together.
        start: the first instant, UTC.
        seconds: length of the range; of a point in a series that of its minute, hour or day.
        started: executions that started for the first time.
        succeeded, failed, dead, skipped, cancelled, expired, missed: executions that ended so. Missed ones are
            occurrences, not rows.
        deliveries: to workers, of the executions that ended.
        duplicates: those of them beyond the first of an execution.
        reaps: leases that ran out, since a worker died or was cut off.
        capped_seconds: time for which nothing but its cap held back work; of several tenants the sum.
        lateness: due to started.
        lateness_max_seconds: the latest start.
        publish_lateness: due to readable for workers, of those that ended.
        duration: started to finished.
    """

    tenant: str | None
    start: datetime
    seconds: int
    started: int = 0
    succeeded: int = 0
    failed: int = 0
    dead: int = 0
    skipped: int = 0
    cancelled: int = 0
    expired: int = 0
    missed: int = 0
    deliveries: int = 0
    duplicates: int = 0
    reaps: int = 0
    capped_seconds: float = 0.0
    lateness: Spread = Spread(0, None, None)
    lateness_max_seconds: float = 0.0
    publish_lateness: Spread = Spread(0, None, None)
    duration: Spread = Spread(0, None, None)


def of(tenant: str | None, start: datetime | str, end: datetime | str) -> Figures:
    """Return a tenant's figures over a range of time. One query.

    Args:
        tenant: slug; None for all tenants together. One that is not known has no figures, and that is no error.
        start, end: aware, [start, end).

    Raises:
        InvalidInput: a bound has no zone, or the end is not after the start.
    """
    first, last = _range(start, end)
    row = _rows(tenant, first, last).aggregate(**_sums())
    return _figures(row, tenant, first, round((last - first).total_seconds()))


def worst(
    start: datetime | str, end: datetime | str, *, by: str = "lateness", limit: int = 20, among: Collection[str] | None = None,
) -> list[Figures]:
    """Return the tenants that fare worst over a range of time, worst first. One query.

    Args:
        start, end: aware, [start, end).
        by: one of `ORDERS`; tenants that have none of it are left out.
        limit: tenants, 1 to 1,000.
        among: look at these tenants only; None for all.

    Raises:
        InvalidInput: an argument is none of these.
    """
    problems = []
    wrong = checks.not_one_of(by, tuple(ORDERS))
    if wrong:
        problems.append(Problem("by", wrong, "unknown"))
    _, wrong = checks.number(limit, LIMIT)
    if wrong:
        problems.append(Problem("limit", wrong))
    if problems:
        raise InvalidInput(*problems)
    first, last = _range(start, end)
    seconds, column = round((last - first).total_seconds()), ORDERS[by]
    some = _rows(None, first, last)
    rows = (some if among is None else some.filter(tenant__in=among)).values("tenant").order_by().annotate(**_sums())
    rows = rows.filter(**{f"sum_{column}__gt": 0}).order_by(f"-sum_{column}", "tenant")
    if by != "lateness":
        return [_figures(row, row["tenant"], first, seconds) for row in rows[:limit]]
    found: list[Figures] = []
    for row in rows.iterator(chunk_size=limit):
        # No percentile passes the longest one, and rows come longest first: all others are better than these.
        bound = row["sum_lateness_max_us"] / 1e6 * (1 + rollup.RELATIVE_ERROR)
        if len(found) == limit and bound <= _p99(found[-1]):
            break
        found.append(_figures(row, row["tenant"], first, seconds))
        found = sorted(found, key=_p99, reverse=True)[:limit]
    return found


def each_of(tenants: Sequence[str], start: datetime | str, end: datetime | str) -> list[Figures]:
    """Return the figures of some tenants over a range of time, in the order in which they are named. One query.

    Args:
        tenants: slugs; one without figures has zeros.
        start, end: aware, [start, end).

    Raises:
        InvalidInput: a bound has no zone, or the end is not after the start.
    """
    first, last = _range(start, end)
    seconds = round((last - first).total_seconds())
    rows = _rows(None, first, last).filter(tenant__in=tenants).values("tenant").order_by().annotate(**_sums())
    found = {row["tenant"]: _figures(row, row["tenant"], first, seconds) for row in rows}
    return [found.get(tenant) or Figures(tenant=tenant, start=first, seconds=seconds) for tenant in tenants]


def series(
    tenant: str | None, start: datetime | str, end: datetime | str, *, span: str | None = None,
) -> list[Figures]:
    """Return figures for each minute, hour or day of a range in which anything happened, in order. One query.

    Args:
        tenant: slug; None for all tenants together.
        start, end: aware, [start, end).
        span: "minute", "hour" or "day" (UTC); None for the finest of at most `LONGEST_SERIES` points. Where only a
            coarser one is kept its point stands at its start, and says its length.

    Raises:
        InvalidInput: an argument is none of these, or that would be more than `LONGEST_SERIES` points.
    """
    first, last = _range(start, end)
    seconds = (last - first).total_seconds()
    if span is None:
        span = next((span for span in SPANS if seconds / SECONDS[span] <= LONGEST_SERIES), SPANS[-1])
    wrong = checks.not_one_of(span, SPANS)
    if wrong:
        raise InvalidInput(Problem("span", wrong, "unknown"))
    if seconds / SECONDS[span] > LONGEST_SERIES:
        raise InvalidInput(Problem("span", f"a series has at most {LONGEST_SERIES} points; take a longer span, or less time"))
    rows = _rows(tenant, first, last).annotate(point=_TRUNCATE[span]("start", tzinfo=UTC)).values("point").order_by("point")
    return [
        _figures(row, tenant, row["point"], max(SECONDS[span], row["longest"]))
        for row in rows.annotate(longest=Max(_LENGTH), **_sums())
    ]


class _Joined(Aggregate):
    """Histograms added up in the database, by writing one behind the other."""

    output_field = TextField()

    def as_sql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        """On PostgreSQL."""
        return super().as_sql(compiler, connection, **{"template": "STRING_AGG(%(expressions)s, ' ')", **extra})

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        """On SQLite."""
        return self.as_sql(compiler, connection, template="GROUP_CONCAT(%(expressions)s, ' ')", **extra)


_LENGTH = Case(*(When(span=span, then=Value(seconds)) for span, seconds in SECONDS.items()), output_field=IntegerField())


def _sums() -> dict[str, Any]:
    return {
        **{f"sum_{name}": Sum(name) for name in (*_COUNTS, "capped_us")},
        "sum_lateness_max_us": Max("lateness_max_us"),
        **{f"all_{name}": _Joined(name) for name in ("lateness", "publish_lateness", "duration")},
    }


def _rows(tenant: str | None, start: datetime, end: datetime) -> QuerySet[Rollup]:
    """Return the rollups of a range; naming the spans lets both of the table's indexes be used."""
    rows = Rollup.objects.using(store.alias()).filter(span__in=SPANS, start__gte=start, start__lt=end)
    return rows if tenant is None else rows.filter(tenant=tenant)


def _figures(row: Mapping[str, Any], tenant: str | None, start: datetime, seconds: int) -> Figures:
    return Figures(
        tenant=tenant, start=start, seconds=seconds, capped_seconds=(row["sum_capped_us"] or 0) / 1e6,
        lateness_max_seconds=(row["sum_lateness_max_us"] or 0) / 1e6,
        lateness=_spread(row["all_lateness"]), publish_lateness=_spread(row["all_publish_lateness"]),
        duration=_spread(row["all_duration"]), **{name: row[f"sum_{name}"] or 0 for name in _COUNTS},
    )


def _spread(text: str | None) -> Spread:
    whole = rollup.compact(text or "")
    p50, p99 = (rollup.percentile(whole, share) for share in (0.5, 0.99))
    return Spread(rollup.count(whole), None if p50 is None else p50 / 1e6, None if p99 is None else p99 / 1e6)


def _p99(found: Figures) -> float:
    return found.lateness.p99 or 0.0


def _range(start: datetime | str, end: datetime | str) -> tuple[datetime, datetime]:
    problems, bounds = [], []
    for field, given in (("start", start), ("end", end)):
        value, wrong = checks.instant(given)
        if value is None:
            problems.append(Problem(field, wrong or "give an aware datetime"))
        else:
            bounds.append(value)
    if not problems and bounds[1] - bounds[0] < timedelta(microseconds=1):
        problems.append(Problem("end", "must be after start"))
    if problems:
        raise InvalidInput(*problems)
    return bounds[0], bounds[1]
