"""What all commands share: the composition root, tables for people, JSON for programs, errors with exit statuses."""
from __future__ import annotations

import functools
import json
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, NoReturn, TypeVar

import click

from chrono_beat.core.errors import (
    BrokerUnavailable,
    ChronoError,
    Conflict,
    InvalidInput,
    MisconfiguredError,
    NotFound,
    NotYetVoidedWarning,
    Problem,
    QueueUnavailable,
    QuotaExceeded,
)
from chrono_beat.core.field_checks import unstorable

CONTEXT = {"help_option_names": ["-h", "--help"]}
ACTOR = "command line"
MACHINE = "chrono_beat.machine"
"""Key of click's ``Context.meta``: whether the answer is for a program."""

INDENT = "    "

TROUBLE, WRONG_INPUT, NOT_THERE, IN_THE_WAY = 1, 2, 3, 4
STATUSES = {
    0: "done",
    TROUBLE: "trouble was found, a part of the work was refused, or the database, Redis or the broker does not answer",
    WRONG_INPUT: "the input or the settings are wrong; the field and the mend are named, and nothing was written",
    NOT_THERE: "what was named does not exist",
    IN_THE_WAY: "something stands in the way: it was changed meanwhile, the name is taken, it has ended, a limit is reached",
}
"""Exit statuses of all commands."""

CODES = {TROUBLE: "trouble", WRONG_INPUT: "invalid", NOT_THERE: "not_found", IN_THE_WAY: "conflict"}
"""What programs are told of a problem that has no code of its own."""

_STATUS_OF: tuple[tuple[type[ChronoError], int], ...] = (
    (NotFound, NOT_THERE), (QuotaExceeded, IN_THE_WAY), (Conflict, IN_THE_WAY), (InvalidInput, WRONG_INPUT),
    (MisconfiguredError, WRONG_INPUT), (ChronoError, TROUBLE),
)
"""The first that fits: an unknown tenant is wrong input as well, and not there."""

_AWAY: tuple[tuple[type[ChronoError], str], ...] = (
    (QueueUnavailable, "Redis does not answer: "), (BrokerUnavailable, "the broker does not answer: "),
)

F = TypeVar("F", bound=Callable[..., Any])


def root(context: click.Context) -> Any:
    """Return the composition root of the Celery app that ``-A`` names."""
    app = context.obj.app
    extension = getattr(app, "chrono_beat", None)
    if extension is None:
        fail("the Celery app has no chrono_beat: add ChronoBeat(app) where it is made", WRONG_INPUT)
    app.loader.import_default_modules()
    return extension.root


def fail(message: str, status: int) -> NoReturn:
    """Say what is wrong on standard error, for a program on standard output as well, and leave."""
    click.echo(f"Error: {message}", err=True)
    tell_program(status, [Problem("", message, CODES[status])])
    raise click.exceptions.Exit(status)


def tell_program(status: int, problems: Iterable[Problem]) -> None:
    """Write what is wrong as one JSON object to standard output, where ``--json`` asks for that."""
    context = click.get_current_context(silent=True)
    if context is not None and context.meta.get(MACHINE):
        click.echo(as_json({"error": {"status": status, "problems": [as_facts(problem) for problem in problems]}}))


def typed(context: click.Context, field: str) -> str:
    """Return a field as people type it, where its option has another word for it: "from" of ``--from`` for "start"."""
    flags = {option.name: max(option.opts, key=len) for option in context.command.params if isinstance(option, click.Option)}
    return flags.get(field, field).lstrip("-").replace("-", "_")


def as_facts(problem: Problem) -> dict[str, str]:
    """Return what programs are told of a problem."""
    return {"field": problem.field, "message": problem.message, "code": problem.code}


def command(function: F) -> F:
    """Turn typed errors into messages and exit statuses."""
    @functools.wraps(function)
    def guarded(context: click.Context, *args: Any, **kwargs: Any) -> Any:
        try:
            with _untold() as untold:
                _refuse_unstorable(kwargs)
                done = function(context, *args, **kwargs)
            if untold:
                raise click.exceptions.Exit(TROUBLE)
            return done
        except ChronoError as error:
            status = next(status for kind, status in _STATUS_OF if isinstance(error, kind))
            if isinstance(error, InvalidInput):
                problems = [replace(problem, field=typed(context, problem.field)) for problem in error.problems]
                tell("Error", problems)
                tell_program(status, problems)
                raise click.exceptions.Exit(status) from None
            fail(_trouble(context, error) or _away(error) + str(error), status)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            why = _trouble(context, error)
            if why is None:
                raise
            fail(why, TROUBLE)

    return guarded      # type: ignore[return-value]


def _refuse_unstorable(given: Mapping[str, Any]) -> None:
    """Refuse what no database keeps: bytes that are no UTF-8 come as halves of surrogate pairs."""
    problems = [
        Problem(name, "is no UTF-8 text") for name, value in given.items()
        for text in (value if isinstance(value, tuple) else (value,)) if isinstance(text, str)
        if unstorable(text)]
    if problems:
        raise InvalidInput(*problems)


def _trouble(context: click.Context, error: Exception) -> str | None:
    """Say what the database has against it; None where it is not that."""
    extension = getattr(context.obj.app, "chrono_beat", None)
    return None if extension is None else extension.root.database_trouble(error)


def _away(error: ChronoError) -> str:
    return next((said for kind, said in _AWAY if isinstance(error, kind)), "")


@contextmanager
def _untold() -> Iterator[list[str]]:
    """Say what is saved and could not be told to Redis as people read it; yields a list of these.

    Invariant 7: such a call promises nothing until it is repeated, so its exit status is not "done".
    """
    found: list[str] = []
    with warnings.catch_warnings():
        others = warnings.showwarning
        warnings.simplefilter("always", NotYetVoidedWarning)

        def show(message: Warning | str, category: type[Warning], *where: Any, **how: Any) -> None:
            if issubclass(category, NotYetVoidedWarning):
                found.append(str(message))
                click.echo(f"Warning: {message}", err=True)
            else:
                others(message, category, *where, **how)

        warnings.showwarning = show
        yield found


def tell(what: str, problems: Iterable[Problem]) -> None:
    """Write problems with their fields to standard error; *what* is "Error" or "Warning"."""
    for problem in problems:
        click.echo(f"{what}: {problem.field}: {problem.message}", err=True)


def as_json(value: Any) -> str:
    """Write a value as one line of JSON; instants in ISO 8601, UTC."""
    def other(item: Any) -> Any:
        if isinstance(item, datetime):
            return item.isoformat().replace("+00:00", "Z")
        return sorted(item) if isinstance(item, (set, frozenset)) else str(item)

    return json.dumps(value, default=other, ensure_ascii=False)


def plain(value: Any) -> str:
    """Write a value for people: instants in UTC, to the second; numbers to four digits; "" for none."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}Z"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {plain(part) or 'none'}" for key, part in value.items())
    return ", ".join(value) if isinstance(value, (list, tuple)) else str(value)


def lines(facts: Mapping[str, Any]) -> None:
    """Print what has a value, a line each."""
    width = max(map(len, facts), default=0)
    for key, value in facts.items():
        if value not in ("", None):
            click.echo(f"{key.ljust(width)}  {plain(value)}")


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print rows under headings, each column as wide as its widest cell; says so where there are none.

    On a terminal that is too narrow the columns that have no room follow on indented lines, headings likewise:
    nothing is cut, so that an id can be copied. Elsewhere a row is a line.
    """
    cells = [[*headings], *([plain(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for number, row in enumerate(cells):
        for place, columns in enumerate(_folded(widths, room)):
            line = "  ".join(row[column].ljust(widths[column]) for column in columns).rstrip()
            if line:
                line = INDENT + line if place else line
                click.echo(click.style(line, bold=True) if number == 0 else line)
    if len(cells) == 1:
        click.echo("none")


def _folded(widths: Sequence[int], room: int | None) -> list[list[int]]:
    """Return the columns of each line of a row."""
    folded: list[list[int]] = [[]]
    left = room
    for column, width in enumerate(widths):
        if left is not None and room is not None and folded[-1] and width > left:
            folded.append([])
            left = room - len(INDENT)
        folded[-1].append(column)
        left = None if left is None else left - width - 2
    return folded


def local(instant: datetime | None, zone: str) -> str:
    """Write an instant in a job's zone, with the zone's name; "" for none."""
    from zoneinfo import ZoneInfo

    if instant is None:
        return ""
    return f"{instant.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M:%S} {zone}"


def answer(machine: bool, done: str, running: Iterable[Any] | None = None, **facts: Any) -> None:
    """Say what a change did: people read *done* and what runs and goes on, programs get *facts* and ``still_running``."""
    if machine:
        going = {} if running is None else {"still_running": [delivery._asdict() for delivery in running]}
        click.echo(as_json(facts | going))
        return
    click.echo(done)
    going_on(running or ())


def going_on(running: Iterable[Any]) -> None:
    """Say which deliveries run and go on after a change."""
    for delivery in running or ():
        click.echo(f"{delivery.execution_id} runs on {delivery.worker} and goes on")
