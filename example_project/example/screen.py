"""The live table of the demo: what fired last, how late, and how each tenant fares."""
from datetime import timedelta
from typing import Any

from django.db.models import Count, Q
from django.utils import timezone
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from chrono_beat_django.models import Execution, Job

ROWS = 16
COLOURS = {
    "succeeded": "green", "running": "cyan", "queued": "blue", "failed": "yellow", "dead": "red", "skipped": "magenta",
}


class Screen:
    """A rich live display; with silent=True it shows nothing and costs nothing."""

    def __init__(self, places: dict[str, str], *, silent: bool) -> None:
        self.places = places
        self.console = Console()
        self.live = None if silent else Live(console=self.console, auto_refresh=False, screen=False)

    def __enter__(self) -> "Screen":
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self.live:
            self.live.stop()

    def refresh(self) -> None:
        if self.live:
            self.live.update(Group(self.headline(), self.recent(), self.coming()), refresh=True)

    def headline(self) -> Table:
        table = Table(title="Tenants", expand=True)
        for column in ("tenant", "jobs", "succeeded", "failed, tried again", "dead", "skipped", "running"):
            table.add_column(column, justify="left" if column == "tenant" else "right")
        jobs = dict(Job.objects.values_list("tenant").annotate(n=Count("id")))
        counts = Execution.objects.values("tenant").order_by("tenant").annotate(**{
            state: Count("id", filter=Q(state=state)) for state in ("succeeded", "failed", "dead", "skipped", "running")
        })
        for row in counts:
            states = (str(row[s]) for s in ("succeeded", "failed", "dead", "skipped", "running"))
            table.add_row(row["tenant"], str(jobs.get(row["tenant"], 0)), *states)
        return table

    def recent(self) -> Table:
        table = Table(title="What fired last", expand=True)
        for column in ("tenant", "job", "scheduled (UTC)", "attempt", "state", "lateness", "worker"):
            table.add_column(column, justify="right" if column == "lateness" else "left", no_wrap=True)
        fired = Execution.objects.filter(due_at__lte=timezone.now()).order_by("-due_at")[:ROWS]
        for row in fired:
            late = f"{(row.started_at - row.due_at) / timedelta(milliseconds=1):.0f} ms" if row.started_at else ""
            state = row.state + (f" ({row.reason})" if row.reason else "")
            table.add_row(
                row.tenant, row.job_name, f"{row.scheduled_at:%H:%M:%S.%f}"[:-4], str(row.attempt),
                Text(state, COLOURS.get(row.state, "")), late, (row.worker or "").split("@")[0],
            )
        return table

    def coming(self) -> Table:
        table = Table(title=f"Coming up (of {Job.objects.count()} jobs)", expand=True)
        for column in ("tenant", "job", "schedule", "zone", "next run (UTC)"):
            table.add_column(column, no_wrap=True)
        soon = timezone.now() + timedelta(seconds=60)
        for job in Job.objects.filter(next_run_at__gt=soon).order_by("next_run_at")[:5]:
            table.add_row(job.tenant, job.name, job.expression, job.timezone, f"{job.next_run_at:%Y-%m-%d %H:%M:%S}")
        places = [f"{name}: {place}" for name, place in self.places.items()]
        table.caption = "\n".join([*places, "Ctrl-C stops everything"])
        return table

    def farewell(self, verdict: dict[str, Any]) -> None:
        late = verdict["lateness_ms"]
        self.console.print(
            f"{verdict['executions']} executions of {verdict['jobs']} jobs and {verdict['tenants']} tenants: "
            f"{verdict['succeeded']} succeeded, {verdict['failed']} failed, {verdict['early']} early, "
            f"{verdict['duplicates']} duplicates, {verdict['lost']} lost; "
            f"lateness p50 {late['p50']} ms, p99 {late['p99']} ms, max {late['max']} ms. All stopped."
        )
