"""Progress of long work: a bar on standard error, where that is a terminal and the answer is for people."""
from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Went = Callable[..., None]


@contextmanager
def bar(what: str, *, machine: bool, total: float | None = None) -> Iterator[Went]:
    """Show how far work has come within the block.

    Args:
        what: the work, for people.
        machine: the answer is for a program, so nothing is shown.
        total: how much there is; None where nobody knows.

    Yields:
        A function to be told how much was done since (1 unless given), and a better *total* where there is one.
    """
    if machine or not sys.stderr.isatty():
        yield lambda done=1, total=None: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=total)

        def went(done: float = 1, total: float | None = None) -> None:
            more: dict[str, Any] = {} if total is None else {"total": total}
            shown.update(task, advance=done, **more)

        yield went
