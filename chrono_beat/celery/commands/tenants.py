"""``chrono tenants …``: list, show, create, update, pause, resume, move and delete tenants."""
from __future__ import annotations

from typing import Any

import click

from chrono_beat.celery.commands import completion
from chrono_beat.celery.commands.options import all_of, limit_option, machine_option, missed_option
from chrono_beat.celery.commands.output import ACTOR, answer, as_json, command, lines, root, table

FIELDS = ("slug", "name", "pool", "weight", "max_running", "paused", "max_jobs", "create_rate", "create_burst",
          "spread_seconds", "failure_threshold", "lateness_objective_seconds", "retention_days")


@click.group()
def tenants() -> None:
    """Look after tenants: their shares, limits and pools."""


def facade(context: click.Context) -> Any:
    """Return the functions on tenants."""
    return root(context).tenants()


def facts(tenant: Any) -> dict[str, Any]:
    """Return what programs are told of a tenant."""
    return {name: getattr(tenant, name) for name in FIELDS}


slug_argument = click.argument("slug", shell_complete=completion.tenants)
limit_options = all_of(
    click.option("--name", default=None, help="For people."),
    click.option("--weight", default=None, type=int, help="Its share against other tenants."),
    click.option("--max-running", default=None, type=int, help="Executions that run at once."),
    click.option("--pool", default=None, help="Celery queue whose workers run its jobs; \"\" for the default one."),
    click.option("--max-jobs", default=None, type=int, help="Jobs that are not over."),
    click.option("--create-rate", default=None, type=float, help="Jobs created a second in the long run."),
    click.option("--create-burst", default=None, type=int, help="Jobs created at once after a pause."),
    click.option("--spread-seconds", default=None, type=int, help="Over how long its jobs' runs are spread."),
    click.option("--failure-threshold", default=None, type=float, help="Share of failures above which retries wait."),
    click.option("--lateness-objective-seconds", default=None, type=float,
                 help="p99 of lateness beyond which somebody is told; see the docs on alerts."),
    click.option("--retention-days", default=None, type=int, help="For how long history is kept."),
)
"""What a tenant may."""


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


@tenants.command("list")
@limit_option
@machine_option
@click.pass_context
@command
def list_tenants(context: click.Context, limit: int, machine: bool) -> None:
    """List tenants by slug."""
    rows = [facts(tenant) for tenant in facade(context).every()[:limit]]
    if machine:
        click.echo(as_json(rows))
        return
    names = FIELDS[:7]
    table(names, [tuple(row[name] for name in names) for row in rows])


@tenants.command()
@slug_argument
@machine_option
@click.pass_context
@command
def show(context: click.Context, slug: str, machine: bool) -> None:
    """Show what a tenant uses of its limits.

    And how late it was within the last hour.
    """
    found = facade(context).usage(slug)._asdict()
    if machine:
        click.echo(as_json({"slug": slug, **found}))
        return
    lines(found)
    if found["running"] is None:
        click.echo("Redis does not answer: what runs and waits is not known.", err=True)


def writing(name: str, help_text: str, done: str) -> None:
    """Add a command that writes a tenant's share and limits."""
    @tenants.command(name, help=help_text)
    @slug_argument
    @limit_options
    @machine_option
    @click.pass_context
    @command
    def _write(context: click.Context, slug: str, machine: bool, **given: Any) -> None:
        tenant = getattr(facade(context), name)(slug, **_given(given))
        click.echo(as_json(facts(tenant)) if machine else f"{done} {tenant.slug}")


writing("create", "Create a tenant.", "created")
writing("update", "Change a tenant's share and limits; what is not given stays.", "updated")


@tenants.command()
@slug_argument
@machine_option
@click.pass_context
@command
def pause(context: click.Context, slug: str, machine: bool) -> None:
    """Start nothing of a tenant until it is resumed."""
    answer(machine, f"paused {slug}", facade(context).pause(slug), slug=slug)


@tenants.command()
@slug_argument
@missed_option
@click.option("--limit", default=1_000, show_default=True, type=int, help="How many of a job --missed all runs.")
@machine_option
@click.pass_context
@command
def resume(context: click.Context, slug: str, missed: str, limit: int, machine: bool) -> None:
    """Let a tenant's jobs fire again from now on."""
    facade(context).resume(slug, missed=None if missed == "nothing" else missed, limit=limit, actor=ACTOR)
    answer(machine, f"resumed {slug}", slug=slug)


@tenants.command()
@slug_argument
@click.argument("pool")
@machine_option
@click.pass_context
@command
def move(context: click.Context, slug: str, pool: str, machine: bool) -> None:
    """Let the workers of POOL run a tenant's jobs; "" is the default pool."""
    answer(machine, f"moved {slug} to {pool or 'the default pool'}", facade(context).move(slug, pool), slug=slug, pool=pool)


@tenants.command()
@slug_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@machine_option
@click.pass_context
@command
def delete(context: click.Context, slug: str, yes: bool, machine: bool) -> None:
    """Delete a tenant with all its jobs; history stays. Asks first, unless --yes."""
    if not yes:
        click.confirm(f"Delete the tenant {slug} with all its jobs?", abort=True, err=True)
    running = facade(context).delete(slug, actor=ACTOR)
    stays = facade(context).every().filter(slug=slug).exists()
    done = f"{slug} has no jobs any more, but stays, paused" if stays else f"deleted {slug}; its history stays"
    answer(machine, done, running, slug=slug, deleted=not stays)
