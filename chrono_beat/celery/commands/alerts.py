"""``chrono alerts …``: list, mute, unmute and close alerts."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from chrono_beat.celery.commands import completion
from chrono_beat.celery.commands.options import limit_option, machine_option, seconds
from chrono_beat.celery.commands.output import ACTOR, answer, as_json, command, root, table
from chrono_beat.celery.commands.shown import found_of, known

ALERT = ("id", "kind", "tenant", "subject", "count", "first_at", "last_at", "told_at", "closed_at", "text")
MUTE = ("id", "kind", "tenant", "subject", "until", "note", "created_by")


tenant_option = click.option(
    "--tenant", "-t", default=None, metavar="SLUG", shell_complete=completion.tenants,
    help="Default: all tenants, and the deployment.")


def facts(row: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return these columns of a row."""
    return {name: getattr(row, name) for name in names}


@click.group()
def alerts() -> None:
    """Look at what somebody should know, and quiet it."""


@alerts.command("list")
@tenant_option
@click.option("--kind", default=None, help="dead_letter, skipped, missed, …")
@click.option("--all", "everything", is_flag=True, help="Also those that are over.")
@click.option("--mutes", is_flag=True, help="The mutes in effect instead.")
@limit_option
@machine_option
@click.pass_context
@command
def list_alerts(
    context: click.Context, tenant: str | None, kind: str | None, everything: bool, mutes: bool, limit: int, machine: bool,
) -> None:
    """List alerts, the last noticed first."""
    of = root(context).alerts()
    names = MUTE if mutes else ALERT
    found = of.mutes(tenant, kind=kind) if mutes else of.list(tenant, kind=kind, open_only=not everything)
    rows = [facts(row, names) for row in found_of(context, tenant, found[:limit])]
    if machine:
        click.echo(as_json(rows))
        return
    table(names, [["; ".join(str(value).splitlines()) if name == "text" else value for name, value in row.items()]
                  for row in rows])


@alerts.command()
@click.option("--kind", default="", help="Default: all kinds.")
@tenant_option
@click.option("--subject", default="", help="Job, reason, task …; default: all.")
@click.option("--for", "lasting", default=None, help="For 90s, 5m, 2h, 1d; default: until it is removed.")
@click.option("--note", default="", help="Why.")
@machine_option
@click.pass_context
@command
def mute(
    context: click.Context, kind: str, tenant: str | None, subject: str, lasting: str | None, note: str, machine: bool,
) -> None:
    """Note alerts and do not send them."""
    made = root(context).alerts().mute(
        kind, known(context, tenant) or "", subject, lasting=seconds(lasting, "lasting"), note=note, actor=ACTOR)
    answer(machine, f"mute {made.id}", **facts(made, MUTE))


@alerts.command()
@click.argument("id", type=int)
@machine_option
@click.pass_context
@command
def unmute(context: click.Context, id: int, machine: bool) -> None:
    """Remove the mute with the number ID. What was noticed meanwhile is sent."""
    root(context).alerts().unmute(id)
    answer(machine, f"unmuted {id}", id=id)


@alerts.command()
@click.argument("id", type=int)
@machine_option
@click.pass_context
@command
def close(context: click.Context, id: int, machine: bool) -> None:
    """Say that the alert with the number ID is over."""
    closed = root(context).alerts().close(id)
    answer(machine, f"closed {closed.id}", **facts(closed, ALERT))
