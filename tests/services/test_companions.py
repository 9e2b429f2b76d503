"""Reaper, audit and keeper."""

from chrono_beat import telemetry
from chrono_beat.core.deliveries import Hold
from chrono_beat.services.audit import Audit
from chrono_beat.services.keeper import KEEP_EVERY_US, KEEP_LIMIT, PAUSE_US, Keeper
from chrono_beat.services.reaper import Reaper
from tests.services.world import LEASE_US, NINE, SECOND, World, us

ONCE = {"schedule_kind": "once", "expression": NINE.isoformat()}


def drawn(world):
    """Let everything due be drawn by a worker that then dies."""
    deliveries = world.queue.draw(0, "chrono", 100, "dead", LEASE_US)
    for delivery in deliveries:
        world.begin(0, delivery)
    return deliveries


def test_inv06_a_lost_worker_is_reaped_a_bounded_number_of_times():
    world = World(reap_cap=2)
    job = world.job(**ONCE)
    world.working = False
    world.dispatcher()
    world.run_until(us() + SECOND)
    reaper = Reaper(world.queue, world.flow, world.config)
    heard = []
    unsubscribe = telemetry.subscribe(lambda event, fields: heard.append(fields) if event == "reaped" else None)

    given = []
    for _ in range(3):
        given += drawn(world)
        world.run(seconds=61)
        reaper.turn(world.flow.monotonic_us())
    world.run(seconds=1)
    unsubscribe()

    assert len({d.execution_id for d in given}) == 1         # invariant 5: the same id each time
    assert len({d.token for d in given}) == 3                # and a token that grows
    [row] = world.store.rows(job)
    assert (row.state, row.reason, row.deliveries) == ("dead", "reap_cap", 3)
    assert [fields["reaped"][0].capped for fields in heard] == [False, False, True]


def test_r144_what_no_worker_could_run_is_kept_for_a_while_and_then_a_dead_letter():
    world = World(no_worker_after=600)
    job = world.job(**ONCE)
    world.working = False
    world.dispatcher()
    world.run_until(us() + SECOND)
    reaper = Reaper(world.queue, world.flow, world.config)
    heard = []
    unsubscribe = telemetry.subscribe(lambda event, fields: heard.append(fields) if event == "stranded" else None)
    [delivery] = world.queue.draw(0, "chrono", 1, "old", LEASE_US)
    world.queue.park(0, "old", [(Hold(delivery.execution_id, delivery.token), "t.renamed")])

    for _ in range(2):
        world.run(seconds=299)
        reaper.turn(world.flow.monotonic_us())
        assert {row.state for row in world.store.rows(job)} == {"queued"}
    world.run(seconds=5)
    reaper.turn(world.flow.monotonic_us())
    world.run(seconds=1)
    unsubscribe()

    [row] = world.store.rows(job)
    assert (row.state, row.reason, row.deliveries) == ("dead", "no_worker", 0) and "t.renamed" in row.error
    assert [each.task for fields in heard for each in fields["executions"]] == ["t.renamed"]


def test_the_reaper_looks_as_often_as_it_is_told():
    world = World(reap_every=0.5)

    assert Reaper(world.queue, world.flow, world.config).turn(0) == SECOND // 2


# -- audit ------------------------------------------------------------------------------------------------------------

def swept(world, audit, seconds=3):
    for _ in range(seconds):
        world.run(seconds=1)
        audit.turn(world.flow.monotonic_us())
    world.run(seconds=1)


def test_rule08_a_row_that_a_pause_overtook_is_ended_and_never_runs():
    world = World()
    job = world.job()
    dispatcher = world.dispatcher()
    audit = Audit(world.store, world.queue, world.flow, world.config, partitions=dispatcher.owned)
    world.run_until(us() - 10 * SECOND)
    assert world.states(job) == {"scheduled": 1}

    version = world.store.edit_job(job, {"paused": True, "next_run_us": None})
    world.queue.void(0, job, version)                        # what the call does once it has committed
    world.run_until(us())
    swept(world, audit)

    assert world.runs == []
    [row] = world.store.rows(job)
    assert (row.state, row.reason) == ("cancelled", "superseded")


def test_rule08_a_call_that_died_between_commit_and_void_is_finished_by_the_audit():
    world = World()
    job = world.job(**ONCE)
    world.working = False
    world.dispatcher()
    audit = Audit(world.store, world.queue, world.flow, world.config)
    world.run_until(us() + SECOND)                           # it is in the stream

    world.store.edit_job(job, {"paused": True, "next_run_us": None})
    swept(world, audit)
    world.working = True
    world.run(seconds=5)

    assert world.runs == []
    assert world.states(job) == {"cancelled": 1}


def test_rule08_what_a_worker_has_is_left_to_it():
    world = World()
    job = world.job(**ONCE)
    world.working = False
    world.dispatcher()
    audit = Audit(world.store, world.queue, world.flow, world.config)
    world.run_until(us() + SECOND)
    [delivery] = drawn(world)

    world.store.edit_job(job, {"paused": True, "next_run_us": None})
    swept(world, audit)
    world.finish(0, delivery)
    world.run(seconds=1)

    assert world.states(job) == {"succeeded": 1}


def test_a_deleted_job_leaves_its_rows_ended_as_deleted():
    world = World()
    job = world.job()
    world.dispatcher()
    audit = Audit(world.store, world.queue, world.flow, world.config)
    world.run_until(us() - SECOND)

    del world.store.jobs[job]
    world.queue.void(0, job, 2_147_483_647)
    world.run_until(us())
    swept(world, audit)

    [row] = world.store.rows(job)
    assert (row.state, row.reason) == ("cancelled", "deleted")
    assert world.runs == []


def test_an_audit_without_partitions_looks_at_nothing():
    world = World()
    world.store.unavailable = True

    Audit(world.store, world.queue, world.flow, world.config, partitions=list).step(0)


# -- keeper -----------------------------------------------------------------------------------------------------------

def test_finished_executions_past_retention_go_and_the_open_ones_stay():
    world = World(retention_days=1)
    job = world.job()
    world.dispatcher()
    world.run_until(us() + 10 * SECOND)
    assert world.states(job) == {"succeeded": 1, "scheduled": 1}
    keeper = Keeper(world.store, world.flow, world.config)

    world.flow.advance(seconds=86_401)

    assert keeper.turn(world.flow.monotonic_us()) == KEEP_EVERY_US
    assert world.states(job) == {"scheduled": 1}


def test_a_keeper_with_much_to_remove_goes_on_after_a_pause():
    world = World()
    world.store.keep = lambda now_us, retention_us, limit: limit

    assert Keeper(world.store, world.flow, world.config).turn(0) == PAUSE_US
    assert KEEP_LIMIT > 0
