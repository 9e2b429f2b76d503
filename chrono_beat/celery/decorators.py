"""Say at a task when it runs: ``@scheduled``.

A decorator runs while modules are imported, when settings may not be there yet and a shared task must not be looked at
(that would finish the app before it is configured). So it only notes what was said; ``chrono sync`` writes it into the
database. What is wrong with a schedule in itself is refused at once, at the line that has it.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from chrono_beat.core import definition as definitions
from chrono_beat.core import ids
from chrono_beat.core.config import Config
from chrono_beat.core.definition import JobDefinition
from chrono_beat.core.errors import InvalidInput, Problem
from chrono_beat.core.retry import Retry
from chrono_beat.core.schedule import Interval, Schedule, ScheduleError

ATTRIBUTE = "__chrono_scheduled__"
_ANY_TIME_US = ids.to_us(datetime(2026, 1, 1, tzinfo=UTC))      # a check at import must not depend on when that is
_DEFAULT = JobDefinition(name="", task="", schedule_kind="", expression="")
_LARGEST = 1 << 40

Target = TypeVar("Target")


class Declaration(NamedTuple):
    """What one ``@scheduled`` says.

    Args:
        target: the function or task below the decorator.
        definition: what was said; the task's name, and the job's where none was given, are "" until sync knows them.
    """

    target: Any
    definition: JobDefinition


_declarations: list[Declaration] = []


def scheduled(
    when: str | Schedule | None = None,
    *,
    every: timedelta | float | Interval | None = None,
    at: datetime | str | None = None,
    timezone: str | None = None,
    start: datetime | str | None = None,
    end: datetime | str | None = None,
    tenant: str | None = None,
    name: str | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    headers: Mapping[str, Any] | None = None,
    pool: str = _DEFAULT.pool,
    priority: int = _DEFAULT.priority,
    soft_limit: timedelta | float | None = _DEFAULT.soft_limit,
    max_duration: timedelta | float | None = _DEFAULT.max_duration,
    expires_after: timedelta | float | None = _DEFAULT.expires_after,
    concurrency: str = _DEFAULT.concurrency,
    exclusion_group: str = _DEFAULT.exclusion_group,
    misfire: str = _DEFAULT.misfire,
    misfire_cap: int | None = _DEFAULT.misfire_cap,
    grace: timedelta | float | None = _DEFAULT.grace,
    spread: timedelta | int | None = _DEFAULT.spread,
    max_occurrences: int | None = _DEFAULT.max_occurrences,
    retry: Retry = _DEFAULT.retry,
    idempotent: str | bool = _DEFAULT.idempotent,
    key_scope: str = _DEFAULT.key_scope,
) -> Callable[[Target], Target]:
    """Declare that a task runs by a schedule; several on one task are several jobs.

    It stands above or below ``@shared_task`` or ``@app.task`` and returns what it decorates, unchanged.

    Args:
        when: a cron text, or a schedule value such as ``every(minutes=10)``; else give *every* or *at*.
        every: a timedelta, seconds or an Interval.
        at: an aware datetime or its ISO text.
        tenant: slug of the tenant; None for the default one.
        name: the job's name; None for the task's. Needed where a task has more than one schedule for a tenant.

    The other arguments are those of :class:`chrono_beat.core.definition.JobDefinition`.

    Raises:
        ScheduleError: there is no such schedule.
        InvalidInput: something else that needs no settings to be seen.
    """
    way = "cron" if when is None or isinstance(when, str) else "schedule"
    fields = definitions.schedule_fields(every=every, at=at, timezone=timezone, **{way: when})
    fields |= {key: value for key, value in (("start", start), ("end", end)) if value is not None}
    definition = JobDefinition(
        name="" if name is None else name, task="", tenant=tenant, args=args, kwargs=kwargs, headers=headers, pool=pool,
        priority=priority, soft_limit=soft_limit, max_duration=max_duration, expires_after=expires_after,
        concurrency=concurrency, exclusion_group=exclusion_group, misfire=misfire, misfire_cap=misfire_cap, grace=grace,
        spread=spread, max_occurrences=max_occurrences, retry=retry, idempotent=idempotent, key_scope=key_scope,
        **fields,
    )
    _refuse_at_import(definition, name)

    def declare(target: Target) -> Target:
        _declarations.append(Declaration(target, definition))
        if _is_plain_function(target):
            target.__dict__.setdefault(ATTRIBUTE, []).append(definition)
        return target

    return declare


def every(
    *, weeks: float = 0, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0,
) -> Interval:
    """Return the schedule that runs each so many seconds, in elapsed time.

    Raises:
        ScheduleError: the period is shorter than a second, or no length of time.
    """
    try:
        period = timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
    except (OverflowError, ValueError, TypeError) as error:
        raise ScheduleError("period", f"it is no length of time: {error}") from None
    return Interval(period)


def registered() -> tuple[Declaration, ...]:
    """Return what was declared in the modules imported so far, in their order."""
    return tuple(_declarations)


def declared_for(app: Any) -> Iterator[JobDefinition]:
    """Yield the definitions of an app's tasks, with task and name filled in.

    Call it when all modules with tasks have been imported.

    Raises:
        InvalidInput: a function is scheduled but is no task of the app.
    """
    seen: set[int] = set()
    for task_name in sorted(app.tasks):
        for definition in getattr(app.tasks[task_name].run, ATTRIBUTE, ()):
            seen.add(id(definition))
            yield replace(definition, task=task_name, name=definition.name or task_name)
    strays: list[Problem] = []
    for target, definition in _declarations:
        if id(definition) in seen:
            continue
        if _is_plain_function(target):
            where = f"{target.__module__}.{target.__qualname__}"
            strays.append(Problem(where, "is scheduled but is no Celery task; add @shared_task", "unknown"))
        elif target.name in app.tasks:
            yield replace(definition, task=target.name, name=definition.name or target.name)
    if strays:
        raise InvalidInput(*strays)


def _refuse_at_import(definition: JobDefinition, name: str | None) -> None:
    """Refuse what is wrong whatever the settings are; the rest is seen by sync."""
    definition.schedule(datetime(2026, 1, 1, tzinfo=UTC))
    definitions.validate(
        replace(definition, task="task", name="task" if name is None else name, pool=""),
        now_us=_ANY_TIME_US, config=Config(max_payload=_LARGEST), planned=True,
    )


def _is_plain_function(target: object) -> bool:
    """Tell a function from a task without evaluating the promise that a lazy or shared task is."""
    return type(target).__name__ in ("function", "builtin_function_or_method")
