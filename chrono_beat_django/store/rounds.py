"""Several endings of one row in one batch: the order of the outcome stream decides, so they go in rounds."""
from __future__ import annotations

from collections.abc import Iterator, Sequence

from chrono_beat.core.records import Ending


def first_of_each(endings: Sequence[Ending]) -> Iterator[list[Ending]]:
    """Yield batches in which each row occurs once: all first endings, then the second ones of rows that have any, …"""
    left = list(endings)
    while left:
        batch: dict[str, Ending] = {}
        later = []
        for ending in left:
            if batch.setdefault(ending.execution_id, ending) is not ending:
                later.append(ending)
        yield list(batch.values())
        left = later
