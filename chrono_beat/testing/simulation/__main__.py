"""Run seeds; ``python -m chrono_beat.testing.simulation --help``."""
from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from chrono_beat.core.ids import from_us
from chrono_beat.testing.history import Capacity, Event, Row, Sampled
from chrono_beat.testing.simulation import Result, simulate


def main(arguments: list[str] | None = None) -> int:
    """Run one seed, or some, and say what was found; returns 1 where something was."""
    parser = argparse.ArgumentParser(prog="python -m chrono_beat.testing.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the seed, or the first of several")
    parser.add_argument("--count", type=int, default=1, help="how many seeds, one after the other")
    parser.add_argument("--theme", default="", choices=("", "caps"), help="caps: only what tries the caps of tenants")
    parser.add_argument("--trace", action="store_true", help="print what happened in a seed with a finding, or in the only one")
    parser.add_argument("--of", default="", help="trace only lines with this text, such as an execution's id")
    options = parser.parse_args(arguments)
    began, bad, kinds, kills, samples = time.monotonic(), 0, Counter[str](), 0, 0
    for seed in range(options.seed, options.seed + options.count):
        result = simulate(seed, options.theme)
        kills, samples = kills + result.kills, samples + result.samples
        if not result.ok:
            bad += 1
            kinds.update({found.what for found in result.verdict.findings} or {result.verdict.word})
        if not result.ok or options.count == 1:
            report(result, trace=options.trace, of=options.of)
    took = time.monotonic() - began
    if options.count > 1:
        print(f"{options.count} seeds, {bad} not valid, {took:.1f} s ({1000 * took / options.count:.0f} ms a seed) {dict(kinds)}")
        print(f"{kills} kills, live leases counted {samples} times")
    return 1 if bad else 0


def report(result: Result, *, trace: bool, of: str = "") -> None:
    """Print a result."""
    if trace:
        lines = [(event.at_us, _shown(event)) for event in result.history.events
                 if not isinstance(event, Row | Capacity | Sampled)]
        for at_us, text in sorted([*lines, *((at, f"    {text}") for at, text in result.notes)], key=lambda line: line[0]):
            if of in text:
                print(f"{from_us(at_us):%H:%M:%S.%f}  {text}")
        for row in result.history.of(Row):
            if of in row.execution_id:
                due = f"{from_us(row.due_us):%M:%S.%f}"
                print(f"row {row.execution_id[-22:]} {row.kind} v{row.version} due {due} {row.state} {row.reason}")
    verdict = result.verdict
    print(f"seed {result.scenario.seed} ({result.scenario.theme}): {verdict.word}; {result.steps} steps, "
          f"{len(result.history.of(Row))} rows, {verdict.duplicates} explained repeats")
    for found in verdict.findings:
        print(f"  {found}  [{', '.join(f'{from_us(at):%M:%S.%f}' for at in found.instants_us)}]")
    for text in (*verdict.unjudged, *result.surprises):
        print(f"  {text}")


def _shown(event: Event) -> str:
    fields = event._asdict()
    values = " ".join(f"{name}={value}" for name, value in fields.items() if name != "at_us" and value not in ("", None))
    return f"{type(event).__name__.lower()} {values}".replace("00000000-0000-7000-8000-00000000", "")


if __name__ == "__main__":
    sys.exit(main())
