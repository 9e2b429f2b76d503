"""``chrono dead …``: list, show, replay and discard dead letters."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from chrono_beat.celery.commands.jobs import machine_option, seconds
from chrono_beat.celery.commands.output import ACTOR, as_json, command, root, table
from chrono_beat.core.errors import InvalidInput, Problem

MOST_SHOWN = 10_000


@click.group()
def dead() -> None:
    """Look after executions that failed for good."""


def chosen(context: click.Context, tenant: str | None, job: str | None, reason: str | None, older: str | None) -> Any:
    """Return the letters that the options mean.

    Raises:
        InvalidInput: a job is named without its tenant.
    """
    composition = root(context)
    if job is not None and tenant is None:
        raise InvalidInput(Problem("tenant", "give the tenant of the job, too"))
    return composition.dead_letters().list(
        tenant, job=None if job is None else composition.jobs().get(tenant, job), reason=reason,
        older_than=seconds(older, "older"))


def options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose letters."""
    for option in reversed((
        click.option("--tenant", "-t", default=None, metavar="SLUG", help="Default: all tenants."),
        click.option("--job", default=None, metavar="NAME", help="Only this job's; needs --tenant."),
        click.option("--reason", default=None, help="error, timeout, reap_cap, invalid, …"),
        click.option("--older", default=None, help="Dead for longer than 90s, 5m, 2h, 1d."),
        click.option("--limit", default=100, show_default=True, type=click.IntRange(1, MOST_SHOWN)),
    )):
        function = option(function)
    return function


def facts(letter: Any) -> dict[str, Any]:
    """Return what programs are told of a dead letter."""
    return {
        "id": letter.id, "tenant": letter.tenant, "job": letter.job_name, "reason": letter.reason, "kind": letter.kind,
        "attempt": letter.attempt, "scheduled_at": letter.scheduled_at, "finished_at": letter.finished_at,
        "error": letter.error,
    }


@dead.command("list")
@options
@machine_option
@click.pass_context
@command
def list_letters(context: click.Context, limit: int, machine: bool, **choice: Any) -> None:
    """List dead letters that nobody has handled, the newest first."""
    found = chosen(context, **choice)[:limit]
    if machine:
        click.echo(as_json([facts(letter) for letter in found]))
        return
    table(("finished", "tenant", "job", "reason", "id", "error"), [
        (f"{letter.finished_at:%Y-%m-%d %H:%M:%S}Z", letter.tenant, letter.job_name, letter.reason, letter.id,
         letter.error.splitlines()[0][:80] if letter.error else "") for letter in found])


def acting(name: str, help_text: str, done: str) -> None:
    """Add a command that does one thing to letters: those that are named, or all that the options choose."""
    @dead.command(name, help=help_text)
    @click.argument("ids", nargs=-1)
    @click.option("--all", "everything", is_flag=True, help="All that the options choose, up to the limit.")
    @options
    @click.pass_context
    @command
    def _act(context: click.Context, ids: tuple[str, ...], everything: bool, limit: int, **choice: Any) -> None:
        if bool(ids) == everything:
            raise InvalidInput(Problem("ids", "name executions, or give --all"))
        letters = chosen(context, **choice) if everything else ids
        handled = getattr(root(context).dead_letters(), f"{name}_all")(letters, limit=limit, actor=ACTOR)
        for execution in handled.executions:
            click.echo(f"{done} {execution.id}")
        for _, why in handled.refused:
            click.echo(f"Error: {why}", err=True)
        if handled.more:
            click.echo(f"There are more than {limit:,}: repeat the command for the rest.", err=True)
        if handled.refused:
            raise click.exceptions.Exit(2)


acting("replay", "Run the occurrences of dead letters again.", "to be run now as")
acting("discard", "Put dead letters aside for good; they stay in the history.", "discarded")
