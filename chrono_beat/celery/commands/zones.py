"""``chrono zones``: what an update of the zone data moves."""
from __future__ import annotations

import click

from chrono_beat.celery.commands import progress
from chrono_beat.celery.commands.options import machine_option
from chrono_beat.celery.commands.output import as_json, command, root, table


@click.command()
@click.option("--apply", is_flag=True, help="Move the plans; by default they are only listed.")
@machine_option
@click.pass_context
@command
def zones(context: click.Context, apply: bool, machine: bool) -> None:
    """List the jobs that other zone data would move.

    Their next run is another one by this host's data; --apply moves them. The services do so by themselves after
    start and once an hour, where the host's release is the newer one.
    """
    with progress.bar("zone data", machine=machine) as went:
        found = root(context).zone_data().report(apply=apply, progress=went)
    if machine:
        click.echo(as_json({"planned_with": found.planned_with, "in_use": found.in_use,
                            "moves": [move._asdict() for move in found.moves]}))
        return
    click.echo(f"planned with {found.planned_with or 'unknown'}, in use {found.in_use or 'unknown'}")
    table(("tenant", "job", "zone", "planned", "by these data"), [
        (move.tenant, move.job, move.timezone, f"{move.before:%Y-%m-%d %H:%M}Z", f"{move.after:%Y-%m-%d %H:%M}Z")
        for move in found.moves])
    click.echo(f"{len(found.moves):,} {'moved' if apply else 'would move; --apply does it'}")
