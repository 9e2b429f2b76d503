"""Charts as pictures made on the server: geometry for a template, which writes the SVG. Pure.

A picture has a title and a description for screen readers, and the same numbers stand in a table beside it. Colours are
classes of the style sheet, so that one picture serves light and dark.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

WIDTH, HEIGHT = 640, 200
LEFT, RIGHT, TOP, BOTTOM = 56, 8, 10, 24
MOST_POINTS = 300
"""Points of a line; what has more is drawn by the highest of each stretch."""
STRETCHES = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360)
"""Minutes for which a point may stand."""
MOST_ROWS = 48
"""Rows of the table beside a chart."""
TICKS = 4


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart: its name in the legend, and its points in the picture's coordinates."""

    name: str
    number: int
    pieces: tuple[str, ...]
    dots: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """A label on an axis."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """What the template draws.

    Args:
        key: unique on the page; ids are made of it.
        title, description: what a screen reader says.
        names: of the lines, which are the table's columns.
        rows: (time, figures as text), one for each stretch of the range that has any.
    """

    key: str
    title: str
    description: str
    names: tuple[str, ...]
    lines: tuple[Line, ...]
    across: tuple[Mark, ...]
    up: tuple[Mark, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    base: int = HEIGHT - BOTTOM


def chart(
    key: str, title: str, unit: str, start: datetime, end: datetime,
    values: Sequence[tuple[str, Sequence[tuple[datetime, float | None]]]],
) -> Chart:
    """Lay a chart out.

    Args:
        key: unique on the page, letters only.
        title: what is shown.
        unit: of the values, as a word; "s" is written beside each number.
        start, end: the range across; what lies outside is left out.
        values: (name, points in order) of each line; None is a gap.
    """
    suffix = " s" if unit == "s" else ""
    step = stretch(end - start)
    stretches = (end - start) / step
    merged = [(name, _merge(points, start, end, step)) for name, points in values]
    top = ceiling(max((value for _, points in merged for value in points.values()), default=0.0))
    lines = tuple(Line(name, number, *_draw(points, top, stretches)) for number, (name, points) in enumerate(merged, 1))
    share = (end - start) / MOST_ROWS
    tables = [_merge(points, start, end, share) for _, points in values]
    rows = tuple(
        (_clock(start + index * share, end - start),
         tuple(written(table[index]) + suffix if index in table else "–" for table in tables))
        for index in range(MOST_ROWS) if any(index in table for table in tables))
    highest = "; ".join(
        f"{name}: at most {written(max(points.values()))}{suffix}" if points else f"{name}: nothing"
        for name, points in merged)
    return Chart(
        key, title, f"{start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC. {highest}.",
        tuple(name for name, _ in values), lines,
        tuple(Mark(round(_x(part / TICKS), 1), _clock(start + (end - start) * part / TICKS, end - start)
                   + (" UTC" if part == TICKS else "")) for part in range(TICKS + 1)),
        tuple(Mark(round(_y(top * part / TICKS, top), 1), written(top * part / TICKS) + suffix) for part in range(TICKS + 1)),
        rows)


def stretch(length: timedelta) -> timedelta:
    """Return how long a point of a chart stands for, so that there are `MOST_POINTS` at most.

    A round number of minutes: what comes every five minutes would be in some stretches of 4.8 and not in others, and draw
    dips that are none.
    """
    return next((found for found in map(_minutes, STRETCHES) if length / found <= MOST_POINTS), length / MOST_POINTS)


def _minutes(number: int) -> timedelta:
    return timedelta(minutes=number)


def ceiling(value: float) -> float:
    """Return the round number at or above a value that an axis ends with."""
    if value <= 0 or not math.isfinite(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((factor * power for factor in (1, 2, 4, 5, 8) if factor * power >= value), 10 * power)


def written(value: float) -> str:
    """Write a number with three digits that count, as a reader of an axis wants it."""
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.001 else "0"


def _merge(
    points: Sequence[tuple[datetime, float | None]], start: datetime, end: datetime, step: timedelta,
) -> dict[int, float]:
    """Return the highest value of each stretch that has any; a peak is never smoothed away."""
    found: dict[int, float] = {}
    for at, value in points:
        if value is not None and start <= at < end:
            index = int((at - start) / step)
            found[index] = max(value, found.get(index, value))
    return found


def _draw(points: dict[int, float], top: float, stretches: float) -> tuple[tuple[str, ...], tuple[tuple[float, float], ...]]:
    pieces: list[list[tuple[float, float]]] = []
    before = None
    # Two stretches without any figure are a gap, not a slope; with few points in a long range more is bridged.
    bridge = max(2, 2 * stretches // max(1, min(len(points), 60)))
    for index, value in sorted(points.items()):
        if before is None or index - before > bridge:
            pieces.append([])
        pieces[-1].append((round(_x(index / stretches), 1), round(_y(value, top), 1)))
        before = index
    return (tuple(" ".join(f"{x},{y}" for x, y in piece) for piece in pieces if len(piece) > 1),
            tuple(piece[0] for piece in pieces if len(piece) == 1))


def _x(share: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * share


def _y(value: float, top: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top)


def _clock(at: datetime, length: timedelta) -> str:
    return f"{at:%d %b}" if length > timedelta(days=2) else f"{at:%H:%M}"
