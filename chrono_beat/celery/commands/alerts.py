"""``chrono alerts …``: list, mute, unmute and close alerts."""
from __future__ import annotations

import click

from chrono_beat.celery.commands.options import limit_option, machine_option, seconds
from chrono_beat.celery.commands.output import ACTOR, as_json, command, root, table


@click.group()
def alerts() -> None:
    """Look at what somebody should know, and quiet it."""


@alerts.command("list")
@click.option("--tenant", "-t", default=None, metavar="SLUG", help="Default: all tenants, and the deployment.")
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
    if mutes:
        names: tuple[str, ...] = ("id", "kind", "tenant", "subject", "until", "note", "created_by")
        found = of.mutes()[:limit]
    else:
        names = ("id", "kind", "tenant", "subject", "count", "first_at", "last_at", "told_at", "closed_at", "text")
        found = of.list(tenant, kind=kind, open_only=not everything)[:limit]
    rows = [{name: getattr(row, name) for name in names} for row in found]
    if machine:
        click.echo(as_json(rows))
        return
    table(names, [["; ".join(str(value).splitlines()) if name == "text" else value for name, value in row.items()]
                  for row in rows])


@alerts.command()
@click.option("--kind", default="", help="Default: all kinds.")
@click.option("--tenant", "-t", default="", metavar="SLUG", help="Default: all tenants, and the deployment.")
@click.option("--subject", default="", help="Job, reason, task …; default: all.")
@click.option("--for", "lasting", default=None, help="For 90s, 5m, 2h, 1d; default: until it is removed.")
@click.option("--note", default="", help="Why.")
@click.pass_context
@command
def mute(context: click.Context, kind: str, tenant: str, subject: str, lasting: str | None, note: str) -> None:
    """Note alerts and do not send them."""
    made = root(context).alerts().mute(
        kind, tenant, subject, lasting=seconds(lasting, "for"), note=note, actor=ACTOR)
    click.echo(f"mute {made.id}")


@alerts.command()
@click.argument("id", type=int)
@click.pass_context
@command
def unmute(context: click.Context, id: int) -> None:
    """Remove the mute with the number ID; what was noticed meanwhile is sent."""
    root(context).alerts().unmute(id)
    click.echo(f"unmuted {id}")


@alerts.command()
@click.argument("id", type=int)
@click.pass_context
@command
def close(context: click.Context, id: int) -> None:
    """Say that the alert with the number ID is over."""
    click.echo(f"closed {root(context).alerts().close(id).id}")
