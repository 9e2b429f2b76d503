"""``chrono doctor``: what is wrong with this deployment, and the mend."""
from __future__ import annotations

import click

from chrono_beat.celery.commands.output import TROUBLE, as_json, command, root

MARKS = {"ok": ("ok", "green"), "warning": ("warning", "yellow"), "error": ("ERROR", "red")}


@click.command()
@click.option("--json", "machine", is_flag=True, help="A JSON array of findings.")
@click.pass_context
@command
def doctor(context: click.Context, machine: bool) -> None:
    """Examine this deployment, and say what to mend.

    Versions, database, Redis, clocks, dispatchers, workers, alerts. Exit status 1 where something is wrong.
    """
    findings = root(context).examine()
    if machine:
        click.echo(as_json([finding._asdict() for finding in findings]))
    else:
        for finding in findings:
            word, colour = MARKS[finding.level]
            click.echo(f"{click.style(word.ljust(8), fg=colour)} {finding.check.ljust(12)} {finding.message}")
            if finding.mend:
                click.echo(f"{' ' * 22}-> {finding.mend}")
    if any(finding.level == "error" for finding in findings):
        raise click.exceptions.Exit(TROUBLE)
