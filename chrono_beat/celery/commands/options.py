"""The options that several commands share, and the one table of those that say what a job is.

Each field of :class:`~chrono_beat.core.definition.JobDefinition` has its line in the table, so ``jobs create`` and ``jobs
update`` take the same options, and a field that was forgotten fails when this module is imported.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import click

from chrono_beat.celery.commands import completion
from chrono_beat.core import definition as definitions
from chrono_beat.core import targets
from chrono_beat.core.definition import FIELDS, JobDefinition
from chrono_beat.core.errors import InvalidInput, Problem
from chrono_beat.core.records import CONCURRENCY_POLICIES, IDEMPOTENT, KEY_SCOPES, MISFIRE_POLICIES
from chrono_beat.core.retry import Retry
from chrono_beat.core.schedule import CeleryCrontab, ScheduleError

F = TypeVar("F", bound=Callable[..., Any])

MOST_SHOWN = 10_000
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
EMPTY = "none"
"""What is written where an option is to have no value."""

tenant_option = click.option(
    "--tenant", "-t", default=None, metavar="SLUG", shell_complete=completion.tenants, help="Default: the default tenant.")
tenants_option = click.option(
    "--tenant", "-t", default=None, metavar="SLUG", shell_complete=completion.tenants, help="Default: all tenants.")
job_argument = click.argument("name", shell_complete=completion.jobs)
machine_option = click.option("--json", "machine", is_flag=True, help="JSON instead of a table.")
limit_option = click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1, MOST_SHOWN), help="How many at most.")
missed_option = click.option(
    "--missed", default="nothing", show_default=True, type=click.Choice(["nothing", "latest", "all"]),
    help="Which of what fell into the pause to run.")
if_version_option = click.option(
    "--if-version", type=int, metavar="N", help="Only if the job is still at this version; exit status 4 if not.")


class Range(click.FloatRange):
    """A range of numbers, which "nan" is not in although nothing is less or more than it."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if math.isnan(found := super().convert(value, param, ctx)):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return found


def all_of(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return one decorator that adds all of these, the first one on top of the help."""
    return lambda function: functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), function)


def seconds(text: str | None, field: str) -> timedelta | None:
    """Read ``90``, ``90s``, ``5m``, ``2h`` or ``1d``.

    Raises:
        InvalidInput: the text is none of these, or less than nothing.
    """
    if text is None:
        return None
    number, unit = (text[:-1], UNITS[text[-1:].lower()]) if text[-1:].lower() in UNITS else (text, 1)
    try:
        length = timedelta(seconds=float(number) * unit)
    except (ValueError, OverflowError):
        length = None
    if length is None or length < timedelta():
        raise InvalidInput(Problem(field, f"{text!r} is not a length of time; write 90, 90s, 5m, 2h or 1d"))
    return length


def number(text: str, field: str) -> float:
    """Read a number; whether it may be this one the validator says.

    Raises:
        InvalidInput: the text is none.
    """
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise InvalidInput(Problem(field, f"{text!r} is not a number")) from None


def _as_it_is(value: Any, field: str) -> Any:
    return value


def _or_none(read: Callable[[str, str], Any]) -> Callable[[str, str], Any]:
    return lambda text, field: None if text == EMPTY else read(text, field)


class Said(NamedTuple):
    """How the command line says one field.

    Args:
        flag: the option.
        help: a line for people.
        read: turns the text into a value of the field; called with the field's name, too.
        kind: a click type; None for a text.
    """

    flag: str
    help: str
    read: Callable[[Any, str], Any] = _as_it_is
    kind: Any = None


_length, _instant, _whole = _or_none(seconds), _or_none(_as_it_is), _or_none(number)

WAYS = {
    "cron": Said("--cron", 'Five fields: "0 9 * * mon-fri".'),
    "every": Said("--every", "An interval: 90s, 5m, 2h, 1d.", seconds),
    "at": Said("--at", "One run, ISO 8601 with offset: 2026-01-02T09:00Z."),
    "crontab": Said("--crontab", "Five fields as Celery's crontab takes them: minute, hour, day of week, day of month, "
                                  "month.", lambda text, field: _crontab(text)),
}
"""The ways to give a schedule; they stand for the fields schedule_kind, expression and written_as."""

RETRY = {
    "max_attempts": Said("--max-attempts", "Attempts in all; 1: no automatic retry; none: 3 where idempotent, else 1.", _whole),
    "base": Said("--retry-base", "Wait before the second attempt: 30s.", lambda text, field: _in_seconds(text, field)),
    "factor": Said("--retry-factor", "By which each further wait grows.", number),
    "maximum": Said("--retry-maximum", "Longest wait: 1h.", lambda text, field: _in_seconds(text, field)),
    "jitter": Said("--retry-jitter", "Share of a wait that is drawn at random, 0 to 1.", number),
}
"""The fields of Retry, which is the field retry."""

OF_ITS_OWN = ("name", "tenant", "schedule_kind", "expression", "written_as", "retry")
"""Fields that an argument, --tenant, WAYS or RETRY say."""

SAID = {
    "task": Said("--task", "Name of the Celery task."),
    "target_kind": Said("--target-kind", "Follows from --task, --url and --queue unless given.",
                        kind=click.Choice(targets.TARGET_KINDS)),
    "url": Said("--url", "Instead of a task: where the kwargs are posted to."),
    "timeout": Said("--timeout", "Bound of one call of the URL: 30s.", _length),
    "queue": Said("--queue", "Send the task's message to this queue of stock workers."),
    "timezone": Said("--timezone", "IANA zone of the schedule; UTC unless given."),
    "start": Said("--start", "No run before: 2026-01-02T09:00Z. An interval's first run.", _instant),
    "end": Said("--end", "No run at or after: 2026-01-02T09:00Z.", _instant),
    "anchor": Said("--anchor", "An instant that an interval runs at.", _instant),
    "args": Said("--args", "JSON array."),
    "kwargs": Said("--kwargs", "JSON object."),
    "headers": Said("--headers", "JSON object: headers of the message, or of the call."),
    "pool": Said("--pool", 'Celery queue whose workers run it; "" for the tenant\'s.'),
    "priority": Said("--priority", "0 (first) to 9; 5 unless given.", number),
    "soft_limit": Said("--soft-limit", "After how long the task is told to stop: 5m.", _length),
    "max_duration": Said("--max-duration", "Bound of one run: 90s, 5m; 6h unless given.", _length),
    "expires_after": Said("--expires-after", "How late it may still start: 90s, 5m, 2h.", _length),
    "concurrency": Said("--concurrency", "What happens to a run whose predecessor is active.",
                        kind=click.Choice(CONCURRENCY_POLICIES)),
    "exclusion_group": Said("--exclusion-group", 'Jobs of the tenant with the same word never run at once; "" for none.'),
    "misfire": Said("--misfire", "What happens to runs that nobody was there to fire.", kind=click.Choice(MISFIRE_POLICIES)),
    "misfire_cap": Said("--misfire-cap", "How many --misfire all runs at most.", _whole),
    "grace": Said("--grace", "How late a run may be before it counts as missed: 90s.", _length),
    "spread": Said("--spread", "Over how long jobs of one instant are spread: 5m; none: the tenant's.", _length),
    "max_occurrences": Said("--max-occurrences", "Scheduled runs in all; not available yet.", _whole),
    "idempotent": Said("--idempotent", "Whether running twice does no harm.", kind=click.Choice(IDEMPOTENT)),
    "key_scope": Said("--key-scope", "Which id the target gets as its key.", kind=click.Choice(KEY_SCOPES)),
    "paused": Said("--paused/--not-paused", "Keep it without firing it."),
    "note": Said("--note", "For people."),
}
TABLE = {**WAYS, **{field: SAID[field] for field in FIELDS if field not in OF_ITS_OWN},
         **{field.name: RETRY[field.name] for field in fields(Retry)}}


def definition_options(function: F) -> F:
    """Add an option for every field of a definition but its name and tenant; what is not given is None."""
    return all_of(*(
        click.option(said.flag, name, default=None, help=said.help, type=said.kind) for name, said in TABLE.items()
    ))(function)


def said_of(given: Mapping[str, Any], before: JobDefinition | None = None) -> dict[str, Any]:
    """Return the fields of a definition that the options in *given* say; what is no option of the table is left out.

    Args:
        given: values by the names in TABLE, None for what was not given.
        before: the definition that they change; None for a new one, which needs a schedule.

    Raises:
        InvalidInput: a text cannot be read, or the schedule is given in no way or in more than one.
    """
    values = {name: said.read(given[name], name) for name, said in TABLE.items() if given.get(name) is not None}
    ways = {way: values.pop(way) for way in WAYS if way in values}
    retry = {name: values.pop(name) for name in RETRY if name in values}
    if ways or before is None:
        if len(ways) != 1:
            raise InvalidInput(Problem("schedule", "give exactly one of --cron, --every, --at and --crontab"))
        if "crontab" in ways:
            ways["schedule"] = ways.pop("crontab")
        zone = values.pop("timezone", None)
        when = definitions.schedule_fields(**ways, timezone=zone)
        if "schedule" in ways:                                  # a value with a zone and bounds of its own
            when = {"schedule_kind": when["schedule_kind"], "expression": when["expression"], "written_as": "crontab"}
            when |= {} if zone is None else {"timezone": zone}
        values = when | values
    if retry:
        values["retry"] = replace(Retry() if before is None else before.retry, **retry)
    return _with_kind(values, before)


def _with_kind(values: dict[str, Any], before: JobDefinition | None) -> dict[str, Any]:
    """Add the kind of target where it follows from what is said of it."""
    if "target_kind" in values:
        return values
    if before is None or values.get("url") or values.get("queue"):
        kind = targets.kind_of_target(url=values.get("url"), queue=values.get("queue"))
    elif values.get("task") and before.target_kind == "http":
        kind = "task"
    else:
        return values
    return values | {"target_kind": kind}


def _in_seconds(text: str, field: str) -> float:
    found = seconds(text, field)
    assert found is not None
    return found.total_seconds()


def _crontab(text: str) -> CeleryCrontab:
    parts = text.split()
    if len(parts) != 5:
        raise InvalidInput(Problem("crontab", "give five fields: minute, hour, day of week, day of month, month"))
    try:
        return CeleryCrontab(*parts)
    except ScheduleError as error:
        raise InvalidInput(Problem("crontab", f"{error.field}: {error.reason}")) from error
