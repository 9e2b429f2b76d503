"""``celery -A proj chrono …``: run the services, look after jobs, examine the deployment.

Every exit status stands in ``output.STATUSES``.
"""
from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from chrono_beat.celery.commands import (
    ahead,
    alerts,
    dead,
    doctor,
    executions,
    importing,
    jobs,
    keys,
    run,
    shadow,
    sync,
    tenants,
    top,
    zones,
)
from chrono_beat.celery.commands.output import CODES, CONTEXT, MACHINE, TROUBLE, tell_program, typed
from chrono_beat.core.errors import Problem


@contextmanager
def usage_errors_told() -> Iterator[None]:
    """Tell a program of words within the block that are wrong."""
    try:
        yield
    except click.UsageError as error:
        field = getattr(getattr(error, "param", None), "name", None) or ""
        named = typed(error.ctx, field) if error.ctx else field
        tell_program(error.exit_code, [Problem(named, error.format_message())])
        raise


class Chrono(click.Group):
    """The group of all commands.

    With ``--json`` a program is told, too, that its words are wrong or that nobody said yes; ``NO_COLOR`` is obeyed.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[MACHINE] = "--json" in args
        if os.environ.get("NO_COLOR"):
            ctx.color = False
        with usage_errors_told():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with usage_errors_told():
                return super().invoke(ctx)
        except click.Abort:
            tell_program(TROUBLE, [Problem("", "asked, and got no yes; --yes does not ask", CODES[TROUBLE])])
            raise


@click.group(cls=Chrono, context_settings=CONTEXT)
def chrono() -> None:
    """Schedules that fire on time: services, jobs, examination."""


chrono.add_command(run.run)
chrono.add_command(jobs.jobs)
chrono.add_command(executions.executions)
chrono.add_command(dead.dead)
chrono.add_command(alerts.alerts)
chrono.add_command(keys.keys)
chrono.add_command(tenants.tenants)
chrono.add_command(sync.sync)
chrono.add_command(importing.importing)
chrono.add_command(ahead.ahead)
chrono.add_command(ahead.transitions)
chrono.add_command(shadow.shadow)
chrono.add_command(zones.zones)
chrono.add_command(top.top)
chrono.add_command(doctor.doctor)
