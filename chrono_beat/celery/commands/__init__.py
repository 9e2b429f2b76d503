"""``celery -A proj chrono …``: run the services, look after jobs, examine the deployment.

Every exit status stands in ``output.STATUSES``.
"""
from __future__ import annotations

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
from chrono_beat.celery.commands.output import CONTEXT


@click.group(context_settings=CONTEXT)
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
