"""What a look at the due index costs does not depend on how many jobs there are, nor on how often somebody edits one."""
from collections import Counter

from tests.services.world import MINUTE, SECOND, World, us

JOBS = 10_000
DUE = 20
HOUR = 60 * MINUTE


def counted(stock, name, read, calls):
    def count(*args):
        rows = stock(*args)
        read[name] += len(rows)
        calls[name] += 1
        return rows

    return count


def test_r116_with_ten_thousand_jobs_and_an_edit_each_five_seconds_only_what_is_due_is_read():
    """Two minutes of it. Others read all jobs anew at each edit."""
    world = World()
    for number in range(JOBS):
        world.job(f"far {number}", next_run_us=us() + 2 * HOUR + number * 100_000, anchor_us=us() + 2 * HOUR)
    for number in range(DUE):
        world.job(f"minutely {number}")
    far = [job_id for job_id, job in world.store.jobs.items() if job.name.startswith("far")]
    read, calls = Counter(), Counter()
    for name in ("due_jobs", "load_scheduled"):
        setattr(world.store, name, counted(getattr(world.store, name), name, read, calls))
    dispatcher = world.dispatcher()
    world.run_until(us() - 5 * SECOND)
    read.clear()

    edits = 24
    for number in range(edits):
        world.run(seconds=5)
        world.store.edit_job(far[number], {"args": f"[{number}]"})
        dispatcher.planner.wake()

    due = sum(row.due_us <= world.now_us() + MINUTE for row in world.store.rows())
    print(f"{dict(read)} rows in {dict(calls)} calls; {due} executions were due, {edits} edits")
    assert len(world.runs) == 2 * DUE
    assert max(world.lateness_us().values()) < 2 * SECOND
    assert sum(read.values()) <= due + edits
