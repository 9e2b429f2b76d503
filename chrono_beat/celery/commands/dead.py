"""``chrono dead …``: list, show, replay and discard dead letters."""
from __future__ import annotations

from typing import Any

import click

from chrono_beat.celery.commands import progress
from chrono_beat.celery.commands.options import all_of, limit_option, machine_option, seconds, tenants_option
from chrono_beat.celery.commands.output import ACTOR, TROUBLE, as_json, command, root, table
from chrono_beat.celery.commands.shown import first_line, found_of, known
from chrono_beat.core.errors import InvalidInput, Problem


@click.group()
def dead() -> None:
    """Look after executions that failed for good."""


def chosen(context: click.Context, tenant: str | None, job: str | None, reason: str | None, older_than: str | None) -> Any:
    """Return the letters that the options mean.

    Raises:
        InvalidInput: a job is named without its tenant.
    """
    composition = root(context)
    if job is not None and tenant is None:
        raise InvalidInput(Problem("tenant", "give the tenant of the job, too"))
    return composition.dead_letters().list(
        tenant, job=None if job is None else composition.jobs().get(tenant, job), reason=reason,
        older_than=seconds(older_than, "older_than"))


options = all_of(
    tenants_option,
    click.option("--job", default=None, metavar="NAME", help="Only this job's; needs --tenant."),
    click.option("--reason", default=None, help="error, timeout, reap_cap, invalid, …"),
    click.option("--older", "older_than", default=None, help="Dead for longer than 90s, 5m, 2h, 1d."),
    limit_option,
)
"""What chooses letters."""


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
    found = found_of(context, choice["tenant"], chosen(context, **choice)[:limit])
    if machine:
        click.echo(as_json([facts(letter) for letter in found]))
        return
    table(("finished", "tenant", "job", "reason", "id", "error"), [
        (f"{letter.finished_at:%Y-%m-%d %H:%M:%S}Z", letter.tenant, letter.job_name, letter.reason, letter.id,
         first_line(letter.error)) for letter in found])


def acting(name: str, help_text: str, done: str) -> None:
    """Add a command that does one thing to letters: those that are named, or all that the options choose."""
    @dead.command(name, help=help_text)
    @click.argument("ids", nargs=-1)
    @click.option("--all", "everything", is_flag=True, help="All that the options choose, up to the limit.")
    @options
    @machine_option
    @click.pass_context
    @command
    def _act(
        context: click.Context, ids: tuple[str, ...], everything: bool, limit: int, machine: bool, **choice: Any,
    ) -> None:
        if bool(ids) == everything:
            raise InvalidInput(Problem("ids", "name executions, or give --all"))
        letters = chosen(context, **choice) if everything else ids
        many = min(limit, letters[:limit].count()) if everything else len(ids)
        if not many:
            known(context, choice["tenant"])
        with progress.bar(name, machine=machine, total=many) as went:
            handled = getattr(root(context).dead_letters(), f"{name}_all")(letters, limit=limit, actor=ACTOR, progress=went)
        if machine:
            click.echo(as_json({"executions": [execution.id for execution in handled.executions],
                                "refused": dict(handled.refused), "more": handled.more}))
        for execution in () if machine else handled.executions:
            click.echo(f"{done} {execution.id}")
        if not (machine or handled.executions or handled.refused):
            click.echo("no dead letter is chosen")
        for _, why in handled.refused:
            click.echo(f"Error: {why}", err=True)
        if handled.more:
            click.echo(f"There are more than {limit:,}: repeat the command for the rest.", err=True)
        if handled.refused:
            raise click.exceptions.Exit(TROUBLE)


acting("replay", "Run the occurrences of dead letters again.", "to be run now as")
acting("discard", "Put dead letters aside for good; they stay in the history.", "discarded")
