"""What the stored jobs will do: executions per minute, and the clock changes that touch them."""
from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from django.db.models import Count

from chrono_beat.core import field_checks as checks
from chrono_beat.core import forecast, ids
from chrono_beat.core.errors import InvalidInput, Problem
from chrono_beat.core.forecast import Busiest, Load, Peak
from chrono_beat.core.schedule import Schedule, ScheduleError, schedule_from_parts, zone_keys
from chrono_beat_django import wiring
from chrono_beat_django.models import Job, JobQuerySet, Tenant
from chrono_beat_django.store import definitions as store

HOURS = checks.Number(1, forecast.MAX_HOURS, "hours", whole=True, optional=False)


class Forecast(NamedTuple):
    """Executions to come.

    Args:
        start: the first minute, UTC.
        tenants: executions for each minute, by the tenant's slug.
        total: of all of these tenants.
        peaks: the fullest minutes of the total.
    """

    start: datetime
    tenants: dict[str, list[float]]
    total: list[float]
    peaks: list[Peak]


class Ahead(NamedTuple):
    """Executions to come, of which only the busiest tenants are told apart.

    Args:
        start: the first minute, UTC.
        total: executions for each minute, of all tenants.
        peaks: the fullest minutes.
        tenants: those with the fullest minutes, the fullest first.
        of: how many tenants have jobs.
    """

    start: datetime
    total: list[float]
    peaks: list[Peak]
    tenants: list[Busiest]
    of: int


class Transition(NamedTuple):
    """A clock change and a job that it touches; *how* is "moved", "skipped", "twice" or "once".

    *runs* are the instants at which it runs for the wall minutes that are left out or come twice, UTC.
    """

    at: datetime
    timezone: str
    tenant: str
    job: str
    how: str
    runs: tuple[datetime, ...]


def load(tenant: str | None = None, hours: int = 24) -> Forecast:
    """Count the executions of active jobs for each minute from now on; jobs that cannot be read are left out.

    Args:
        tenant: slug; None for all tenants.
        hours: how far to look, 1 to 168.

    Raises:
        InvalidInput: *hours* is out of range.
    """
    _check(hours)
    loads = _loads(tenant)
    start = ids.from_us(wiring.now_us()).replace(second=0, microsecond=0)
    runs = forecast.Runs(start, hours)
    readable = _readable(loads, runs)
    tenants = {slug: runs.together(found) for slug, found in sorted(readable.items())}
    return Forecast(start, tenants, *_in_all(readable, runs, start))


def busiest(tenant: str | None = None, count: int = 50, hours: int = 24) -> Ahead:
    """Count the executions of active jobs as :func:`load` does, but tell only the busiest tenants apart.

    With many tenants that is far cheaper: schedules that they have in common are computed once, and a tenant takes no
    memory for each minute.

    Args:
        tenant: slug; None for all tenants.
        count: how many tenants.
        hours: how far to look, 1 to 168.

    Raises:
        InvalidInput: *hours* is out of range.
    """
    _check(hours)
    start = ids.from_us(wiring.now_us()).replace(second=0, microsecond=0)
    runs = forecast.Runs(start, hours)
    readable = _readable(_loads(tenant), runs)
    return Ahead(start, *_in_all(readable, runs, start), forecast.fullest(readable, runs, count), len(readable))


def _check(hours: int) -> None:
    _, wrong = checks.number(hours, HOURS)
    if wrong:
        raise InvalidInput(Problem("hours", wrong))


def _loads(tenant: str | None) -> dict[str, Counter[Load]]:
    """Return how many active jobs of each tenant have each load."""
    spreads = dict(Tenant.objects.using(store.alias()).filter(paused=False).values_list("slug", "spread_seconds"))
    loads: dict[str, Counter[Load]] = {}
    # The database puts equal schedules together, so that what is read and worked out goes by those and not by jobs.
    rows = _jobs(tenant).filter(paused=False, next_run_at__isnull=False).order_by().values_list(
        "tenant", "spread_seconds", "schedule_kind", "expression", "timezone", "start_at", "end_at", "anchor_at",
    ).annotate(jobs=Count("id"))
    for slug, own, *parts, jobs in rows.iterator(chunk_size=5_000):
        if slug in spreads:
            spread = own if own is not None else spreads[slug] or 0
            found = Load(*parts, spread_seconds=spread)
            loads.setdefault(slug, Counter())[found if found.kind != "interval" else _counted(found)] += jobs
    return loads


def _in_all(tenants: dict[str, dict[Load, int]], runs: forecast.Runs, start: datetime) -> tuple[list[float], list[Peak]]:
    """Return the executions of all tenants for each minute, and the fullest minutes."""
    loads: Counter[Load] = Counter()
    for found in tenants.values():
        loads.update(found)
    total = runs.together(loads)
    return total, forecast.peaks(total, start)


def _readable(tenants: dict[str, Counter[Load]], runs: forecast.Runs) -> dict[str, dict[Load, int]]:
    """Leave out what makes no schedule; it is quarantined at its claim."""
    known: dict[Load, bool] = {}

    def makes_a_schedule(load: Load) -> bool:
        if load not in known:
            try:
                runs.of(load)
                known[load] = True
            except ScheduleError:
                known[load] = False
        return known[load]

    return {slug: {load: jobs for load, jobs in loads.items() if makes_a_schedule(load)} for slug, loads in tenants.items()}


def transitions(
    *, zone: str | None = None, year: int | None = None, tenant: str | None = None,
) -> list[Transition]:
    """Return the clock changes and the jobs that they touch, in order (R059).

    Args:
        zone: IANA key; None for the zones of all jobs.
        year: the year in UTC; None for the 366 days from now.
        tenant: slug; None for all tenants.

    Raises:
        InvalidInput: the zone is none, or the year is not from 1900 to 2999.
    """
    if zone is not None and (not isinstance(zone, str) or zone not in zone_keys()):
        shown = checks.cut(str(zone))
        raise InvalidInput(Problem("zone", f"{shown} is not an IANA zone; use a name such as 'Europe/London'"))
    if year is not None and (not isinstance(year, int) or not 1900 <= year <= 2999):
        raise InvalidInput(Problem("year", "must be a whole number from 1900 to 2999"))
    now = ids.from_us(wiring.now_us())
    start = now if year is None else datetime(year, 1, 1, tzinfo=UTC) - timedelta(seconds=1)
    end = now + timedelta(days=366) if year is None else datetime(year + 1, 1, 1, tzinfo=UTC) - timedelta(seconds=1)
    rows = _jobs(tenant).filter(schedule_kind__in=("cron", "celery"))
    if zone is not None:
        rows = rows.filter(timezone=zone)
    known: dict[tuple[object, ...], list[forecast.Touched]] = {}
    found = []
    for slug, name, *parts in rows.order_by().values_list(
            "tenant", "name", "schedule_kind", "expression", "timezone", "start_at", "end_at").iterator():
        key = tuple(parts)
        if key not in known:
            schedule = _read(Load(*parts))
            known[key] = [] if schedule is None else forecast.touches(schedule, start, end)
        found += [Transition(touched.at, parts[2], slug, name, touched.how, touched.runs) for touched in known[key]]
    return sorted(found)


def _jobs(tenant: str | None) -> JobQuerySet:
    rows = Job.objects.using(store.alias()).unfinished()
    return rows if tenant is None else rows.of(tenant)


def _counted(found: Load) -> Load:
    try:
        return forecast.grouped(found)
    except (ValueError, ZeroDivisionError):
        return found                                        # no number of seconds: left out below


def _read(found: Load) -> Schedule | None:
    try:
        return schedule_from_parts(found.kind, found.expression, found.timezone, start=found.start, end=found.end,
                                   anchor=found.anchor)
    except ScheduleError:
        return None                                         # quarantined at its claim
