"""``chrono top``: tenants, dispatchers, partitions and workers as they stand, live on a terminal."""
from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import click

from chrono_beat.celery.commands.options import Range, machine_option
from chrono_beat.celery.commands.output import as_json, command, root, table
from chrono_beat.core.errors import StoreUnavailable

KEYS = {"l": "lateness", "b": "backlog", "r": "running", "s": "started", "c": "capped", "f": "failed", "d": "dead"}
"""Keys of the live view, and the order that each chooses."""

QUIT = ("q", "\x1b", "\x04")
SHOWN_PARTITIONS = 8
MOST_OF_A_KEY = 16
"""Bytes that one key sends at most; those of a cursor key are none of ours together."""
HEADINGS = (
    "tenant", "backlog", "running", "late p50", "late p99", "started/s", "failed/s", "dead", "skipped", "twice", "capped s", "",
)

LEFT_OUT = ("skipped", "twice", "failed/s", "capped s", "started/s", "late p50", "running")
"""Columns that a narrow terminal goes without, the first of them first."""

GAP = 2

Read = Callable[[str], Any]


@click.command()
@click.option("--once", is_flag=True, help="Print it once; so it is where the output is no terminal.")
@click.option("--by", default="lateness", show_default=True, type=click.Choice([*KEYS.values()]), help="Worst by what.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 50), help="How many tenants.")
@click.option("--minutes", default=5, show_default=True, type=click.IntRange(1, 1_440), help="Of the figures per tenant.")
@click.option("--interval", default=5.0, show_default=True, type=Range(0.5, 3_600), metavar="SECONDS",
              help="Between two looks.")
@machine_option
@click.pass_context
@command
def top(
    context: click.Context, once: bool, by: str, limit: int, minutes: int, interval: float, machine: bool,
) -> None:
    """Watch tenants, dispatchers, partitions and workers.

    Tenants stand worst first. Keys: q quits, the others sort.
    """
    overview = root(context).overview()

    def read(order: str) -> Any:
        return overview.read(by=order, limit=limit, minutes=minutes)

    if machine:
        click.echo(as_json(asdict(read(by))))
    elif once or not (sys.stdin.isatty() and sys.stdout.isatty()):
        show(read(by))
    else:
        with keyboard() as key, contextlib.suppress(KeyboardInterrupt):
            watch(read, key, by, interval)


def show(found: Any) -> None:
    """Print how things stand."""
    for line in summary(found):
        click.echo(line)
    click.echo()
    table(HEADINGS, [cells(row) for row in found.tenants])
    click.echo()
    table(("pool", "workers", "slots", "waiting"), [(row.pool, row.workers, row.slots, row.waiting) for row in found.pools])


def summary(found: Any) -> list[str]:
    """Return the lines above the tables."""
    lines = [f"{found.at:%Y-%m-%d %H:%M:%S}Z   waiting {found.waiting:,}   dead letters {found.dead_letters:,}"
             f"{'+' if found.more_dead_letters else ''}   open alerts {found.open_alerts}"]
    if found.redis_away:
        lines.append("Redis does not answer: backlog, caps and workers are not known.")
    if found.dispatchers:
        lines.append("dispatchers " + ", ".join(
            f"{row.name} ({row.partitions}{', leaving' if row.leaving else ''})" for row in found.dispatchers))
    else:
        lines.append("No dispatcher is alive: nothing fires. Start one by chrono run.")
    if found.without_owner:
        shown = ", ".join(str(number) for number in found.without_owner[:SHOWN_PARTITIONS])
        more = ", …" if len(found.without_owner) > SHOWN_PARTITIONS else ""
        lines.append(f"{len(found.without_owner)} of {found.partitions} partitions have no owner: {shown}{more}")
    else:
        lines.append(f"all {found.partitions} partitions have an owner")
    lines.append(f"tenants by {found.by}, figures of {found.minutes} minutes")
    return lines


def cells(row: Any) -> tuple[str, ...]:
    """Return a tenant's line."""
    running = "?" if row.running is None else str(row.running)
    marks = [word for word, holds in (("capped", row.capped), ("paused", row.paused)) if holds]
    return (
        row.tenant, f"{row.backlog:,}", running if row.max_running is None else f"{running}/{row.max_running}",
        _seconds(row.lateness_p50), _seconds(row.lateness_p99), f"{row.started_per_second:.2f}",
        f"{row.failed_per_second:.2f}", str(row.dead), str(row.skipped), str(row.duplicates), f"{row.capped_seconds:.1f}",
        " ".join(marks),
    )


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3f} s"


def watch(read: Read, key: Callable[[float], str], by: str, interval: float, console: Any = None) -> None:
    """Show how things stand, again and again, until a key ends it.

    Args:
        read: looks once, in the order that it is given.
        key: waits so many seconds at most for a key; "" for none.
        by: the first order.
        interval: seconds between two looks.
        console: a rich console; None for the terminal.
    """
    from rich.console import Console
    from rich.live import Live

    trouble, found = "", None
    console = console or Console()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            try:
                trouble, found = "", read(by)
            except StoreUnavailable as error:               # it may come back while somebody watches
                trouble = f"The database does not answer: {error}"
            live.update(picture(found, trouble, console.width), refresh=True)
            pressed = key(interval).lower()
            if pressed in QUIT:
                return
            by = KEYS.get(pressed, by)


def columns_for(rows: Sequence[Sequence[str]], room: int) -> list[int]:
    """Return the places of the columns that have room, of rows like HEADINGS."""
    widths = {place: max(len(row[place]) for row in (HEADINGS, *rows)) + GAP for place in range(len(HEADINGS))}
    for heading in LEFT_OUT:
        if sum(widths.values()) <= room:
            break
        del widths[HEADINGS.index(heading)]
    return [*widths]


def picture(found: Any, trouble: str, room: int) -> Any:
    """Return what a terminal with *room* columns shows: the last look, and what is wrong with the present one."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    def table() -> Table:
        return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))

    parts: list[Any] = [Text(trouble, style="bold red")] if trouble else []
    if found is not None:
        wrong = found.redis_away or not found.dispatchers or found.without_owner
        parts += [Text(line, style="bold" if place == 0 else "red" if wrong and place < 3 else "")
                  for place, line in enumerate(summary(found))]
        rows = [cells(row) for row in found.tenants]
        places = columns_for(rows, room)
        tenants = table()
        for place in places:
            tenants.add_column(HEADINGS[place], justify="right" if 0 < place < len(HEADINGS) - 1 else "left", no_wrap=True)
        for row, line in zip(found.tenants, rows, strict=True):
            tenants.add_row(*(Text(line[place]) for place in places), style="yellow" if row.capped or row.dead else "")
        pools = table()
        for heading in ("pool", "workers", "slots", "waiting"):
            pools.add_column(heading, justify="left" if heading == "pool" else "right")
        for row in found.pools:
            pools.add_row(Text(row.pool), str(row.workers), str(row.slots), str(row.waiting),
                          style="red" if row.waiting and not row.workers else "")
        hidden = [heading for place, heading in enumerate(HEADINGS) if place not in places]
        parts += [Text(), tenants, Text(), pools, Text()]
        parts += [Text(f"no room for {', '.join(hidden)}", style="dim")] if hidden else []
    parts.append(Text("q quits; sort by " + ", ".join(f"{key} {order}" for key, order in KEYS.items()), style="dim"))
    return Group(*parts)


@contextmanager
def keyboard() -> Iterator[Callable[[float], str]]:
    """Read single keys from the terminal within the block; yields what waits for one."""
    import termios
    import tty

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)

    def key(seconds: float) -> str:
        ready, _, _ = select.select([number], [], [], seconds)
        return os.read(number, MOST_OF_A_KEY).decode(errors="replace") if ready else ""

    try:
        tty.setcbreak(number)
        yield key
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)
