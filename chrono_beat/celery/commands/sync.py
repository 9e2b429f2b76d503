"""``chrono sync``: make the stored jobs match what ``@scheduled`` says in the code."""
from __future__ import annotations

import click

from chrono_beat.celery.commands.output import as_json, command, root


@click.command()
@click.option("--no-prune", is_flag=True, help="Leave jobs alone whose decorator is gone; by default they are paused.")
@click.option("--json", "machine", is_flag=True, help="One JSON object.")
@click.pass_context
@command
def sync(context: click.Context, no_prune: bool, machine: bool) -> None:
    """Make jobs match the decorators in the code.

    They are created, updated or paused. May be run by any number of processes at the same time and on every deploy.
    An operator's pause stays.
    """
    report = root(context).sync(context.obj.app, prune=not no_prune)
    facts = report._asdict() if hasattr(report, "_asdict") else vars(report)
    if machine:
        click.echo(as_json(facts))
        return
    for warning in facts.pop("warnings", ()):
        click.echo(f"Warning: {warning}", err=True)
    for what, names in facts.items():
        listed = ", ".join(str(name) for name in names) if not isinstance(names, int) else str(names)
        click.echo(f"{what}: {listed or 'none'}")
