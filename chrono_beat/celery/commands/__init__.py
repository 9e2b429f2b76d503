"""``celery -A proj chrono …``: run the services, look after jobs, examine the deployment.

Exit codes: 0 done; 1 something is away or unhealthy; 2 the input is wrong, with the field named.
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
chrono.add_command(doctor.doctor)
