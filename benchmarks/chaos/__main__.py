"""Torment a deployment and judge what it did; ``python -m benchmarks.chaos --help``."""
import argparse
import json
import sys
import time
from collections import Counter

from benchmarks.chaos.command import add_options, carry_out, drain, show
from benchmarks.chaos.site import ChaosSite

WARM_UP_SECONDS = 4.0
TICK_SECONDS = 0.1


def parse_arguments():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long things go wrong")
    parser.add_argument("--faults", metavar="KINDS", help="comma-separated; only these kinds, or, after a minus, all but these")
    add_options(parser, seeds="jobs, calls and faults", evidence="logs, bodies, rows, faults")
    args = parser.parse_args()
    if args.minutes <= 0:
        parser.error("--minutes must be positive")
    return args


def main():
    args = parse_arguments()

    def say(text):
        print(f"{time.time() - began:7.1f} s  {text}", file=sys.stderr, flush=True) if not args.json else None

    began = time.time()
    return carry_out(ChaosSite(), args, lambda site: run(site, args, say))


def run(site, args, say):
    import django

    django.setup()
    from benchmarks.chaos.faults import Faults
    from benchmarks.chaos.load import Load

    load = Load(args.seed)
    site.start()
    load.define()
    say(f"{len(load.jobs)} jobs, {len(site.processes)} processes; seed {args.seed}")
    load.start()
    faults = Faults(site, load, args.seed, chosen(args.faults, Faults.KINDS))
    torment(faults, args.minutes * 60, say)
    load.stop()
    faults.mend_all()
    say("no more calls, no more faults")
    until = time.time()
    drained = drain(site, until)
    say(f"all has ended {time.time() - until:.1f} s later" if drained else "not all ended")
    write_down(site, calls=load.calls, faults=faults.done)
    return {**judge(site, load, faults, until, drained), "seed": args.seed}


def chosen(text, kinds):
    """Return the kinds that are meant by ``a,b``, ``-a,b``, or nothing at all."""
    named = {word.strip() for word in (text or "-").removeprefix("-").split(",") if word.strip()}
    if unknown := named - {*kinds}:
        raise SystemExit(f"--faults: no such kind: {', '.join(sorted(unknown))}; known are {', '.join(kinds)}")
    return [kind for kind in kinds if (kind in named) != (text or "-").startswith("-")]


def torment(faults, seconds, say):
    """Let things go wrong for a while."""
    end, next_at, told = time.time() + seconds, time.time() + WARM_UP_SECONDS, 0
    while time.time() < end:
        faults.mend()
        if time.time() >= next_at:
            next_at = faults.strike() + time.time()
        for fault in faults.done[told:]:
            say(f"{fault.kind} {' '.join(fault.names)} {fault.detail}")
        told = len(faults.done)
        time.sleep(TICK_SECONDS)


def judge(site, load, faults, until, drained):
    from benchmarks.chaos import settings, witnesses
    from chrono_beat.testing import history

    rows = site.sql("SELECT * FROM chrono_execution ORDER BY due_at")     # first: what has ended by then has its lines
    lines, events = site.told()
    # What is to come is left out, and attempts that failures have made are not.
    rows = [row for row in rows if row["scheduled_at"].timestamp() <= until]
    known = {row["id"] for row in rows}
    seen = witnesses.Evidence(
        jobs=load.all_jobs(site.sql("SELECT * FROM chrono_job")), calls=load.calls, faults=faults.done, rows=rows,
        changes=site.sql("SELECT * FROM chrono_job_event"), until=until, drained=drained,
        lines=[line for line in lines if line["due_at"] <= until or line["execution_id"] in known])
    told = seen.history()
    (site.directory / "history.txt").write_text("".join(f"{event}\n" for event in told.events))
    verdict = history.check(told, history.Limits(lease_us=witnesses.us(settings.LEASE_SECONDS), memory_excuses=True))
    given_up = witnesses.given_up(seen)
    show("surprise", faults.surprises)
    show("given up", given_up)
    for what in dict.fromkeys(finding.what for finding in verdict.findings):
        show("finding", [str(finding) for finding in verdict.findings if finding.what == what])
    show("not judged", verdict.unjudged)
    errors = Counter(f"{event['service']}: {event['error']}"[:160] for event in events if event["event"] == "service_failed")
    show("unexpected error", [f"{count} times: {text}" for text, count in errors.most_common()])
    kinds = Counter(finding.what for finding in verdict.findings)
    word = "invalid" if faults.surprises or given_up else verdict.word
    return {
        "verdict": word if faults.done else "unknown", "executions": len(seen.rows), "lost": kinds["lost"] + len(given_up),
        "early": kinds["early"], "overlaps": kinds["overlap"],
        "duplicate_starts": len(seen.began) - len({event.execution_id for event in seen.began}),
        "faults": dict(sorted(Counter(fault.kind for fault in faults.done).items())),
        "findings": dict(kinds), "surprises": len(faults.surprises), "unjudged": len(verdict.unjudged),
        "seconds_until_something_began": witnesses.recoveries(seen),
        "states": dict(Counter(f"{row['state']} {row['reason']}".strip() for row in seen.rows)),
        "bodies": len(seen.began), "unexpected_errors": sum(errors.values()),
        "calls": dict(Counter(f"{call.what}{' failed' if call.failed else ''}" for call in load.calls)),
    }


def write_down(site, **lists):
    """Put what this process knows beside the files of the others."""
    for name, entries in lists.items():
        (site.directory / f"{name}.jsonl").write_text("".join(json.dumps(vars(entry)) + "\n" for entry in entries))


if __name__ == "__main__":
    raise SystemExit(main())
