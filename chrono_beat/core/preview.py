"""What people should know before they save a schedule: its next runs, with notes, and warnings where many err."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from chrono_beat.core.calendar import DAY_SECONDS
from chrono_beat.core.cron_text import Step
from chrono_beat.core.instants import Instants
from chrono_beat.core.schedule_base import Schedule, read_instant
from chrono_beat.core.schedule_error import ScheduleError
from chrono_beat.core.schedule_kinds import CeleryCrontab, Interval, WallSchedule
from chrono_beat.core.zones import Change, from_seconds, timeline, to_seconds

MAX_RUNS = 1_000
"""Runs that a preview shows at most."""

LOOK_AHEAD_DAYS = 400
"""How far ahead clock changes are warned about: a year and a bit, so that the next pair is seen."""

RARE = timedelta(days=366)
"""A schedule that waits longer than this for a run is rare."""

_ROUNDS = {"minute": "hour", "hour": "day", "day-of-month": "month", "month": "year", "day-of-week": "week"}
_UNITS = {"minute": "minute", "hour": "hour", "day-of-month": "day", "month": "month", "day-of-week": "day"}


@dataclass(frozen=True, slots=True)
class ScheduleWarning:
    """Something that is allowed and that many people do not mean.

    Args:
        code: ``"both_day_fields"``, ``"uneven_step"``, ``"clock_change"``, ``"elapsed_time"``, ``"rare"`` or
            ``"no_runs"``.
        field: the field that it is about, named as in :class:`ScheduleError`.
        message: a sentence for people.
    """

    code: str
    field: str
    message: str


@dataclass(frozen=True, slots=True)
class PreviewRun:
    """One run to come.

    Args:
        at: the instant, in UTC.
        local: the same instant in the schedule's zone.
        notes: sentences about this run, empty for an ordinary one.
    """

    at: datetime
    local: datetime
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Preview:
    """The next runs of a schedule and the warnings about it."""

    runs: tuple[PreviewRun, ...]
    warnings: tuple[ScheduleWarning, ...]


def preview(schedule: Schedule, after: datetime, count: int = 10) -> Preview:
    """Show the next runs with notes, and warn where people err.

    Args:
        schedule: any kind; an interval must have its anchor.
        after: an aware datetime; runs are strictly later.
        count: how many runs to show, 1 to 1,000; fewer come where the schedule ends.

    Raises:
        ScheduleError: *after* is naive, or *count* is out of range.
    """
    after = read_instant("instant", after)
    if type(count) is not int or not 1 <= count <= MAX_RUNS:
        raise ScheduleError("count", f"give a whole number from 1 to {MAX_RUNS}")
    zone = timeline(schedule.timezone).zone
    runs: list[PreviewRun] = []
    at = schedule.next_after(after)
    while at is not None and len(runs) < count:
        notes = tuple(_run_notes(schedule, at)) if isinstance(schedule, WallSchedule) else ()
        runs.append(PreviewRun(at, at.astimezone(zone), notes))
        at = schedule.next_after(at)
    return Preview(tuple(runs), warnings_of(schedule, after))


def preview_notes(schedule: Schedule, after: datetime, count: int = 10) -> list[str]:
    """Return what :func:`preview` has to say as sentences: the warnings, then the notes of the next *count* runs.

    Raises:
        ScheduleError: *after* is naive, or *count* is out of range.
    """
    seen = preview(schedule, after, count)
    notes = [warning.message for warning in seen.warnings]
    return notes + [f"{run.local:%Y-%m-%d %H:%M}: {note}" for run in seen.runs for note in run.notes]


def warnings_of(schedule: Schedule, after: datetime) -> tuple[ScheduleWarning, ...]:
    """Return the warnings about a schedule, looking ahead from *after*.

    Raises:
        ScheduleError: *after* is naive.
    """
    after = read_instant("instant", after)
    found: list[ScheduleWarning] = []
    if isinstance(schedule, WallSchedule):
        instants = schedule.shared().instants
        found += _day_warnings(schedule, instants)
        found += (_step_warning(step) for step in schedule.steps() if step.last_gap != step.step)
        found += _clock_warnings(schedule, instants, after)
    elif isinstance(schedule, Interval):
        found += _interval_warnings(schedule, after)
    return tuple(found + list(_wait_warnings(schedule, after)))


def _day_warnings(schedule: WallSchedule, instants: Instants) -> Iterator[ScheduleWarning]:
    days = instants.fields.days
    if days.any_date or days.any_weekday:
        return
    if isinstance(schedule, CeleryCrontab):
        message = "both day fields are set: it runs only on days that fit both, as in Celery; cron text takes either"
    else:
        message = "both day fields are set: it runs on days that fit either of them, as in cron; Celery wants both"
    yield ScheduleWarning("both_day_fields", "day-of-month", message)


def _step_warning(step: Step) -> ScheduleWarning:
    unit, round_ = _UNITS[step.field], _ROUNDS[step.field]
    if step.field == "day-of-month":
        message = f"{step.item} starts again in each month, so the gap at its end is not {step.step} days"
    else:
        gap = f"{step.last_gap} {unit}" + ("" if step.last_gap == 1 else "s")
        message = f"{step.item} starts again in each {round_}, so the gap at its end is {gap}, not {step.step}"
    return ScheduleWarning("uneven_step", step.field, message)


def _clock_warnings(schedule: WallSchedule, instants: Instants, after: datetime) -> Iterator[ScheduleWarning]:
    now, _ = to_seconds(after)
    for change in instants.timeline.changes_between(now, now + LOOK_AHEAD_DAYS * DAY_SECONDS):
        if not instants.touched_by(change):
            continue
        if change.after > change.before:
            made_up = instants.made_up(change)
            happens = "those dates do not exist, and nothing runs for them" if made_up is None else (
                f"what would run then runs once, at {_wall(made_up + change.after)}")
        elif instants.fields.ticks:
            happens = "the schedule runs in both passes"
        else:
            happens = "each time runs in the first pass only"
        yield ScheduleWarning("clock_change", "hour", f"{_change(schedule.timezone, change)}: {happens}")
        return


def _interval_warnings(schedule: Interval, after: datetime) -> Iterator[ScheduleWarning]:
    now, _ = to_seconds(after)
    moves = timeline(schedule.timezone).changes_between(now, now + LOOK_AHEAD_DAYS * DAY_SECONDS)
    if moves and not schedule.period % timedelta(days=1):
        yield ScheduleWarning(
            "elapsed_time", "period",
            f"an interval counts elapsed time, so its time of day moves when clocks change in {schedule.timezone}; "
            "for a fixed time of day use cron text")


def _wait_warnings(schedule: Schedule, after: datetime) -> Iterator[ScheduleWarning]:
    first = schedule.next_after(after)
    if first is None:
        yield ScheduleWarning("no_runs", "expression", "no run is left")
        return
    second = schedule.next_after(first)
    waits = [first - after] + ([second - first] if second else [])
    if not isinstance(schedule, WallSchedule) or max(waits) <= RARE:
        return
    later = f", then on {second:%Y-%m-%d}" if second else ""
    yield ScheduleWarning("rare", "expression", f"it runs once in years: on {first:%Y-%m-%d}{later}")


def _run_notes(schedule: WallSchedule, at: datetime) -> Iterator[str]:
    instants = schedule.shared().instants
    utc, _ = to_seconds(at)
    kind, change = instants.tell(utc)
    if change is None:
        return
    changes = _change(schedule.timezone, change)
    if kind == "moved":
        wall = instants.calendar.next(change.at + change.before)
        named = _wall(wall) if wall is not None else ""
        yield f"{changes}: the run of {named} moves to {_wall(utc + change.after)}"
    elif kind == "second":
        yield f"{changes}: this is the second pass of {_wall(utc + change.after)}"
    elif instants.fields.ticks:
        yield f"{changes}: {_wall(utc + change.before)} comes twice, and this runs both times"
    else:
        yield f"{changes}: {_wall(utc + change.before)} comes twice, and this runs the first time only"


def _change(zone: str, change: Change) -> str:
    old, new = change.at + change.before, change.at + change.after
    way = "forward" if new > old else "back"
    return f"clocks change in {zone} on {from_seconds(old):%Y-%m-%d}, {way} from {_wall(old)} to {_wall(new)}"


def _wall(wall: int) -> str:
    return f"{from_seconds(wall):%H:%M}"
