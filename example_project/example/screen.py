"""The live table of the demo: where to look, how each tenant fares, what fired last and how late.

The places stand first, and the rows of the last table are as many as the terminal has room for, so nothing that a reader
needs is cropped from 80 x 24 on. Without a terminal the places are printed at the start and the tables once, at the end.
"""
from datetime import timedelta
from typing import Any

from django.db.models import Count, Q
from django.utils import timezone
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from chrono_beat_django.models import Execution, Job

COMING_FROM_LINES = 34
"""From this height on there is room for what is to come."""

WORKER_FROM_COLUMNS = 100
COMING_ROWS = 5
MOST_ROWS = 100
PRINTED_ROWS = 16
TITLE_AND_HEADING_LINES = 3
COLOURS = {
    "succeeded": "green", "running": "cyan", "queued": "blue", "failed": "yellow", "dead": "red", "skipped": "magenta",
}
STATES = ("succeeded", "failed", "dead", "skipped", "running")


class Screen:
    """A rich live display; with silent=True it shows nothing and costs nothing."""

    def __init__(self, places: dict[str, str], *, silent: bool) -> None:
        self.places = places
        self.silent = silent
        self.console = Console()
        self.live = None if silent or not self.console.is_terminal else Live(console=self.console, auto_refresh=False)

    def __enter__(self) -> "Screen":
        if self.live:
            self.live.start()
        elif not self.silent:
            self.console.print(self.where())
        return self

    def __exit__(self, *exc: object) -> None:
        if self.live:
            self.live.stop()
        elif not self.silent:
            self.console.print(*self.tables(PRINTED_ROWS), sep="\n")

    def refresh(self) -> None:
        if self.live:
            self.live.update(self.picture(), refresh=True)

    def picture(self) -> Group:
        """Return what fits the terminal as it is now; one line is left for the cursor."""
        top = (self.where(), self.headline())
        coming = (self.coming(),) if self.console.height >= COMING_FROM_LINES else ()
        taken = sum(len(self.console.render_lines(part)) for part in (*top, *coming)) + TITLE_AND_HEADING_LINES + 1
        return Group(*top, self.recent(max(1, min(MOST_ROWS, self.console.height - taken))), *coming)

    def tables(self, rows: int) -> tuple[RenderableType, ...]:
        return self.headline(), self.recent(rows), self.coming()

    def where(self) -> Text:
        width = max(map(len, self.places))
        lines = [f"{name.ljust(width)}  {place}" for name, place in self.places.items()]
        return Text("\n".join([*lines, "Ctrl-C stops everything."]))

    def headline(self) -> Table:
        table = _table("Tenants")
        for column in ("tenant", "jobs", "succeeded", "failed, tried again", "dead", "skipped", "running"):
            table.add_column(column, justify="left" if column == "tenant" else "right")
        jobs = dict(Job.objects.values_list("tenant").annotate(n=Count("id")))
        counts = Execution.objects.values("tenant").order_by("tenant").annotate(
            **{state: Count("id", filter=Q(state=state)) for state in STATES})
        for row in counts:
            table.add_row(row["tenant"], str(jobs.get(row["tenant"], 0)), *(str(row[state]) for state in STATES))
        return table

    def recent(self, rows: int) -> Table:
        table = _table("What fired last")
        wide = self.console.width >= WORKER_FROM_COLUMNS
        for column in ("tenant", "job", "due (UTC)", "attempt", "state", "lateness", *(["worker"] if wide else [])):
            table.add_column(
                column, justify="right" if column == "lateness" else "left", no_wrap=True, min_width=len(column),
                ratio=1 if column == "job" else None,
            )
        fired = Execution.objects.filter(due_at__lte=timezone.now()).order_by("-due_at")[:rows]
        for row in fired:
            late = f"{(row.started_at - row.due_at) / timedelta(milliseconds=1):.0f} ms" if row.started_at else ""
            state = row.state + (f" ({row.reason})" if row.reason else "")
            worker = [(row.worker or "").split("@")[0]] if wide else []
            table.add_row(
                row.tenant, row.job_name, f"{row.due_at:%H:%M:%S.%f}"[:-4], str(row.attempt),
                Text(state, COLOURS.get(row.state, "")), late, *worker,
            )
        return table

    def coming(self) -> Table:
        table = _table(f"Coming up (of {Job.objects.count()} jobs)")
        for column in ("tenant", "job", "schedule", "zone", "next run (UTC)"):
            table.add_column(column, no_wrap=True)
        soon = timezone.now() + timedelta(seconds=60)
        for job in Job.objects.filter(next_run_at__gt=soon).order_by("next_run_at")[:COMING_ROWS]:
            schedule = f"every {job.expression} s" if job.schedule_kind == "interval" else job.expression
            table.add_row(job.tenant, job.name, schedule, job.timezone, f"{job.next_run_at:%Y-%m-%d %H:%M:%S}")
        return table

    def stopping(self) -> None:
        """Say why nothing moves any more."""
        if not self.silent:
            self.console.print("Waiting for what runs, then stopping ...")

    def farewell(self, verdict: dict[str, Any]) -> None:
        late = verdict["lateness_ms"]
        self.console.print(
            f"{verdict['executions']} executions of {verdict['jobs']} jobs and {verdict['tenants']} tenants: "
            f"{verdict['succeeded']} succeeded, {verdict['failed']} failed, {verdict['early']} early, "
            f"{verdict['duplicates']} duplicates, {verdict['lost']} lost; "
            f"lateness p50 {late['p50']} ms, p99 {late['p99']} ms, max {late['max']} ms. All stopped."
        )


def _table(title: str) -> Table:
    return Table(
        title=title, title_style="bold", expand=True, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
