"""``chrono keys …``: make, list, rotate and revoke the API keys of tenants."""
from __future__ import annotations

from typing import Any

import click

from chrono_beat.celery.commands import completion
from chrono_beat.celery.commands.options import machine_option, seconds, tenants_option
from chrono_beat.celery.commands.output import ACTOR, answer, as_json, command, root, table
from chrono_beat.celery.commands.shown import found_of

NAMES = ("tenant", "prefix", "name", "scopes", "expires_at", "revoked_at", "last_used_at")


@click.group()
def keys() -> None:
    """Look after the keys that open the HTTP API to tenants."""


def facts(key: Any) -> dict[str, Any]:
    """Return what programs are told of a key; its secret is not there to be told."""
    return {name: getattr(key, name) for name in NAMES}


def show(made: Any, machine: bool) -> None:
    """Print a new key, the only time that it can be."""
    if machine:
        click.echo(as_json({"secret": made.secret, **facts(made.row)}))
        return
    click.echo(made.secret)
    click.echo("This is shown once. Store it where the program that uses it finds it.", err=True)


@keys.command("create")
@click.argument("tenant", shell_complete=completion.tenants)
@click.option("--scope", "scopes", multiple=True, default=("read",), show_default=True, help="read, write, operate.")
@click.option("--name", default="", help="For people.")
@click.option("--expires-in", default=None, help="Valid for 12h, 90d; default: until it is revoked.")
@machine_option
@click.pass_context
@command
def create(
    context: click.Context, tenant: str, scopes: tuple[str, ...], name: str, expires_in: str | None, machine: bool,
) -> None:
    """Make a key for TENANT and print it."""
    show(root(context).keys().create(
        tenant, scopes, name=name, expires_in=seconds(expires_in, "expires_in"), actor=ACTOR), machine)


@keys.command("list")
@tenants_option
@machine_option
@click.pass_context
@command
def list_keys(context: click.Context, tenant: str | None, machine: bool) -> None:
    """List keys, without their secrets."""
    rows = [facts(row) for row in found_of(context, tenant, root(context).keys().list(tenant))]
    if machine:
        click.echo(as_json(rows))
        return
    table(NAMES, [tuple(row.values()) for row in rows])


@keys.command("rotate")
@click.argument("prefix")
@click.option("--overlap", default="7d", show_default=True, help="How long the old key is valid beside the new one.")
@machine_option
@click.pass_context
@command
def rotate(context: click.Context, prefix: str, overlap: str, machine: bool) -> None:
    """Make another key with the same rights as PREFIX and print it."""
    show(root(context).keys().rotate(prefix, overlap=seconds(overlap, "overlap"), actor=ACTOR), machine)


@keys.command("revoke")
@click.argument("prefix")
@machine_option
@click.pass_context
@command
def revoke(context: click.Context, prefix: str, machine: bool) -> None:
    """Let the key PREFIX be valid no more."""
    revoked = root(context).keys().revoke(prefix)
    answer(machine, f"revoked {revoked.prefix}", **facts(revoked))
