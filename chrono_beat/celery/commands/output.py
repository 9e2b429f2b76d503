"""What all commands share: the composition root, tables for people, JSON for programs, errors with exit codes."""
from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NoReturn, TypeVar

import click

from chrono_beat.core.errors import (
    ChronoError,
    Conflict,
    InvalidInput,
    MisconfiguredError,
    NotFound,
    QueueUnavailable,
    StoreUnavailable,
)

CONTEXT = {"help_option_names": ["-h", "--help"]}
WRONG_INPUT, UNHEALTHY = 2, 1
ACTOR = "command line"

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
    """Say what is wrong on standard error and leave."""
    click.echo(f"Error: {message}", err=True)
    raise click.exceptions.Exit(status)


def command(function: F) -> F:
    """Turn typed errors into messages and exit codes."""
    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except InvalidInput as error:
            for problem in error.problems:
                click.echo(f"Error: {problem.field}: {problem.message}", err=True)
            raise click.exceptions.Exit(WRONG_INPUT) from None
        except (NotFound, Conflict, MisconfiguredError) as error:
            fail(str(error), WRONG_INPUT)
        except QueueUnavailable as error:
            fail(f"Redis does not answer: {error}", UNHEALTHY)
        except StoreUnavailable as error:
            fail(f"the database does not answer: {error}", UNHEALTHY)
        except ChronoError as error:
            fail(str(error), UNHEALTHY)

    return guarded      # type: ignore[return-value]


def as_json(value: Any) -> str:
    """Write a value as one line of JSON; instants in ISO 8601, UTC."""
    def other(item: Any) -> str:
        return item.isoformat().replace("+00:00", "Z") if isinstance(item, datetime) else str(item)

    return json.dumps(value, default=other, ensure_ascii=False)


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print rows under headings, each column as wide as its widest cell."""
    cells = [[*headings], *([str(cell) if cell is not None else "" for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
    for number, row in enumerate(cells):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        click.echo(click.style(line, bold=True) if number == 0 else line)


def local(instant: datetime | None, zone: str) -> str:
    """Write an instant in a job's zone, with the zone's name; "" for none."""
    from zoneinfo import ZoneInfo

    if instant is None:
        return ""
    return f"{instant.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M:%S} {zone}"
