"""What commands that torment a deployment have in common: options, the wait for the end, what is printed and what is left."""
import contextlib
import json
import sys
import time
from pathlib import Path

DRAIN_SECONDS = 120.0
SHOWN = 12
"""Findings of a kind that are printed."""


def add_options(parser, *, seeds, evidence):
    """Add the options of every such command.

    Args:
        seeds: for people, what the seed decides.
        evidence: for people, what is left where it is kept.
    """
    parser.add_argument("--seed", type=int, default=1, help=f"of {seeds}")
    parser.add_argument("--json", action="store_true", help="only the JSON object, as the last line")
    parser.add_argument("--keep", metavar="DIRECTORY", help=f"where to leave the evidence: {evidence}")


def carry_out(site, args, run):
    """Do it, print the result, leave the evidence where that is asked for; returns the exit status, 1 for invalid."""
    try:
        result = run(site)
    finally:
        if args.keep:
            keep(site, Path(args.keep))
        site.close()
    if not args.json:
        for name, value in result.items():
            print(f"{name:22} {value}")
    print(json.dumps(result))
    return 1 if result["verdict"] == "invalid" else 0


def drain(site, until):
    """Wait until everything due by an instant has ended; returns whether it has."""
    deadline = time.time() + DRAIN_SECONDS
    while time.time() < deadline:
        left = site.sql(
            "SELECT count(*) AS rows FROM chrono_execution WHERE state IN ('scheduled', 'queued', 'running') "
            "AND due_at <= to_timestamp(%s)", until)[0]["rows"]
        unclaimed = site.sql(
            "SELECT count(*) AS jobs FROM chrono_job WHERE next_run_at <= to_timestamp(%s)", until)[0]["jobs"]
        if not left and not unclaimed:
            return True
        time.sleep(0.5)
    return False


def show(what, texts):
    for text in texts[:SHOWN]:
        print(f"{what}: {text}", file=sys.stderr)
    if len(texts) > SHOWN:
        print(f"{what}: and {len(texts) - SHOWN} more", file=sys.stderr)


def keep(site, directory):
    """Leave the evidence where somebody can look at it."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in site.directory.iterdir():
        if path.is_file():
            (directory / path.name).write_bytes(path.read_bytes())
    with contextlib.suppress(Exception):
        rows = site.sql("SELECT * FROM chrono_execution ORDER BY due_at")
        (directory / "rows.jsonl").write_text("".join(json.dumps(row, default=str) + "\n" for row in rows))
