"""``chrono forecast`` and ``chrono transitions``: what the schedules will do."""
from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import click

from chrono_beat.celery.commands.options import machine_option, tenants_option
from chrono_beat.celery.commands.output import as_json, command, root, table
from chrono_beat.celery.commands.shown import known

MOST_RUNS = 8
"""Instants that a line of the table names."""

SAYS = {
    "moved": "its time does not exist; it runs at the end of the gap",
    "skipped": "its date does not exist; it does not run",
    "twice": "its time comes twice; it runs in both passes",
    "once": "its time comes twice; it runs in the first pass only",
}


@click.command("forecast")
@tenants_option
@click.option("--hours", default=24, show_default=True, type=click.IntRange(1, 168), help="How far to look.")
@machine_option
@click.pass_context
@command
def ahead(context: click.Context, tenant: str | None, hours: int, machine: bool) -> None:
    """Count the executions to come for each minute.

    The fullest minutes are shown with the spread that would help. Exact from the schedules; jobs with a spread count
    as their average.
    """
    found = root(context).forecasting().load(known(context, tenant), hours)
    if machine:
        click.echo(as_json({"start": found.start, "total": found.total, "tenants": found.tenants,
                            "peaks": [peak._asdict() for peak in found.peaks]}))
        return
    click.echo(f"{sum(found.total):,.0f} executions in {hours} h from {found.start:%Y-%m-%d %H:%M}Z")
    for slug, minutes in found.tenants.items():
        click.echo(f"  {slug}: {sum(minutes):,.0f}, at most {max(minutes):,.0f} a minute")
    table(("minute", "executions", "spread that helps", "then a minute"), [
        (f"{peak.at:%Y-%m-%d %H:%M}Z", f"{peak.executions:,.0f}",
         "not needed" if peak.spread_seconds is None else f"{peak.spread_seconds} s",
         "" if peak.spread_to is None else f"{peak.spread_to:,.0f}") for peak in found.peaks])


@click.command()
@click.option("--zone", default=None, metavar="ZONE", help="IANA zone; default: those of all jobs.")
@click.option("--year", default=None, type=int, help="Default: the 366 days from now.")
@tenants_option
@machine_option
@click.pass_context
@command
def transitions(
    context: click.Context, zone: str | None, year: int | None, tenant: str | None, machine: bool,
) -> None:
    """List the clock changes and the jobs that they touch.

    Each is moved, skipped, run twice, or run once, and at which instants. Jobs of every hour are touched by none.
    Paused jobs are listed, too.
    """
    found = root(context).forecasting().transitions(zone=zone, year=year, tenant=known(context, tenant))
    if machine:
        click.echo(as_json([line._asdict() for line in found]))
        return
    table(("change", "zone", "tenant", "job", "what happens", "runs then"), [
        (f"{line.at:%Y-%m-%d %H:%M}Z", line.timezone, line.tenant, line.job, f"{line.how}: {SAYS[line.how]}",
         _said(line.runs)) for line in found])


def _said(runs: Sequence[datetime]) -> str:
    if not runs:
        return "not at all"
    more = "" if len(runs) <= MOST_RUNS else f" and {len(runs) - MOST_RUNS} more"
    return " ".join(f"{run:%H:%M}Z" for run in runs[:MOST_RUNS]) + more
