"""Kill workers and children of workers, and count what runs; ``python -m benchmarks.caps --help``."""
import argparse
import time
from collections import Counter

from benchmarks.caps.site import CAPS, CapsSite
from benchmarks.chaos.command import add_options, carry_out, drain, show

KINDS = ("worker_killed", *["child_killed"] * 9)
"""What is done in turn, in an order that the seed shuffles; a worker takes seconds to come back."""

GAP_SECONDS = 0.5
WARM_UP_SECONDS = 2.0


def parse_arguments():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.caps", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="how many workers or children of workers are killed")
    add_options(parser, seeds="the bodies' lengths and the kills", evidence="logs, bodies, rows")
    args = parser.parse_args()
    if args.kills < 1:
        parser.error("--kills must be positive")
    return args


def main():
    args = parse_arguments()
    return carry_out(CapsSite(), args, lambda site: run(site, args))


def run(site, args):
    import django

    django.setup()
    from benchmarks.caps.sampler import Sampler
    from benchmarks.caps.site import Load
    from benchmarks.chaos.faults import Faults
    from chrono_beat_django.conf import config

    load, began = Load(args.seed), time.time()
    site.start()
    load.define()                       # where nobody claims yet, what is due first is missed and not run late
    tenants = {job.id: job.tenant for job in load.jobs.values()}
    sampler = Sampler(config().redis_url, config().key_prefix, config().lanes, CAPS, tenants)
    sampler.start()
    time.sleep(WARM_UP_SECONDS)
    faults = Faults(site, load, args.seed, KINDS)
    while len(faults.done) < args.kills:
        faults.strike()
        faults.mend()
        time.sleep(GAP_SECONDS)
    faults.mend_all()
    until = time.time()
    drained = drain(site, until)
    sampler.stop()
    return {**judge(site, load, faults, sampler, until, drained, tenants), "seconds": round(time.time() - began),
            "seed": args.seed}


def judge(site, load, faults, sampler, until, drained, tenants):
    from benchmarks.caps.sampler import most_at_once
    from benchmarks.chaos import settings, witnesses
    from chrono_beat.testing import history

    rows = [row for row in site.sql("SELECT * FROM chrono_execution ORDER BY due_at")
            if row["scheduled_at"].timestamp() <= until]
    known = {row["id"] for row in rows}
    seen = witnesses.Evidence(
        jobs=load.jobs, calls=[], faults=faults.done, rows=rows, changes=[], until=until, drained=drained, caps=CAPS,
        lines=[line for line in site.told()[0] if line["execution_id"] in known])
    told = seen.history()
    verdict = history.check(told, history.Limits(lease_us=witnesses.us(settings.LEASE_SECONDS)))
    show("finding", [str(finding) for finding in verdict.findings])
    show("not judged", verdict.unjudged)
    show("surprise", faults.surprises)
    show("over the cap", sampler.violations)
    kinds = Counter(finding.what for finding in verdict.findings)
    in_log = most_at_once(told.events, tenants)
    broken = sampler.violations or faults.surprises
    return {
        "verdict": "invalid" if broken else verdict.word, "kills": dict(Counter(fault.kind for fault in faults.done)),
        "samples": sampler.samples, "violations": len(sampler.violations) + kinds["over_cap"],
        "tenants": {tenant: {"cap": cap, "most_leases": sampler.most_leases[tenant], "most_slots": sampler.most_slots[tenant],
                             "most_in_log": in_log[tenant]} for tenant, cap in CAPS.items()},
        "executions": len(rows), "bodies": len(seen.began), "lost": kinds["lost"],
        "doubled": kinds["repeated"] + kinds["twice"], "explained_repeats": verdict.duplicates, "findings": dict(kinds),
        "states": dict(Counter(f"{row['state']} {row['reason']}".strip() for row in rows)),
    }


if __name__ == "__main__":
    raise SystemExit(main())
