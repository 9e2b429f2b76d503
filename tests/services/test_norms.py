"""What the keeper's process tells of tenants that are out of their norm: once, and once that it is over."""
from chrono_beat import telemetry
from chrono_beat.core.crowding import Load, TenantLoad
from chrono_beat.core.rollup import MINUTE_US, histogram
from chrono_beat.services.norms import LOOK_EVERY_US, Norms
from chrono_beat.services.reaper import Reaper
from chrono_beat.testing.memory_rows import MemoryRollup, MemoryTenant
from tests.services.world import LEASE_US, NINE, World, us

SECOND = 1_000_000
ONCE = {"schedule_kind": "once", "expression": NINE.isoformat(), "anchor_us": None}


def told_by(steps):
    heard = []
    stop = telemetry.subscribe(lambda event, fields: heard.append((event, dict(fields))))
    try:
        steps()
    finally:
        stop()
    return heard


def test_what_lasts_is_told_once_and_its_end_once():
    world = World()
    norms = Norms(world.store, world.flow)
    world.store.loads = lambda now_us: [TenantLoad("acme", Load(9, lateness=histogram([late] * 9)), objective_us=SECOND)]

    late = 5 * SECOND
    broken = told_by(lambda: [norms.step(0) for _ in range(3)])
    late = SECOND // 2
    met = told_by(lambda: [norms.step(0) for _ in range(3)])

    assert [event for event, _ in broken] == ["lateness_objective_broken"]
    assert met == [("lateness_objective_met", {"tenant": "acme"})]


def test_a_flood_of_one_tenant_is_told_as_crowding_the_other_and_ends_by_itself():
    world = World()
    norms = Norms(world.store, world.flow)
    minute = world.store.now_us() // MINUTE_US * MINUTE_US

    def add(tenant, ago, starts, late):
        world.store.rollups[tenant, minute - ago * MINUTE_US] = MemoryRollup(
            started=starts, lateness=histogram([late] * starts))

    for ago in range(6, 60):
        add("acme", ago, 10, SECOND // 5)
        add("globex", ago, 5, SECOND // 5)
    for ago in range(1, 6):
        add("acme", ago, 10, 4 * SECOND)
        add("globex", ago, 400, 9 * SECOND)

    crowded = told_by(lambda: norms.step(0))
    world.flow.advance(seconds=400)
    over = told_by(lambda: norms.step(0))

    assert [(event, fields["tenant"], fields["by"]) for event, fields in crowded] == [("crowded", "acme", "globex")]
    assert over == [("uncrowded", {"tenant": "acme"})]


def test_it_looks_each_minute():
    world = World()

    assert Norms(world.store, world.flow).turn(0) == LOOK_EVERY_US


def test_what_lasts_for_hours_is_told_each_hour():
    """An alert that is not noticed for a day is taken for over."""
    world = World()
    norms = Norms(world.store, world.flow)
    world.store.loads = lambda now_us: [TenantLoad("acme", Load(9, lateness=histogram([9 * SECOND] * 9)), objective_us=SECOND)]

    told = told_by(lambda: [norms.step(minute * LOOK_EVERY_US) for minute in range(150)])

    assert [event for event, _ in told] == ["lateness_objective_broken"] * 3


def test_workers_that_die_more_often_than_usual_are_told_of_and_that_it_is_over():
    """The reaper counts what it reaps in the tenant's minutes, also what it reaped while the database was away."""
    world = World(lease_ttl=60.0)
    world.working = False
    world.store.add_tenant(MemoryTenant(slug="acme"))
    for number in range(6):
        world.job(f"once {number}", tenant="acme", **ONCE)
    world.dispatcher()
    world.run_until(us() + SECOND)
    reaper = Reaper(world.queue, world.flow, world.config, world.store)
    norms = Norms(world.store, world.flow)
    assert len(world.queue.draw(0, "chrono", 10, "w", LEASE_US)) == 6
    world.run(seconds=61)

    world.store.unavailable = True
    reaper.turn(world.flow.monotonic_us())
    world.store.unavailable = False
    reaper.turn(world.flow.monotonic_us())
    world.run(seconds=60)
    high = told_by(lambda: [norms.step(0) for _ in range(2)])
    world.run(seconds=400)
    over = told_by(lambda: norms.step(0))

    assert high == [("reaps_high", {"tenant": "acme", "reaps": 6, "usual": 0.0})]
    assert over == [("reaps_usual", {"tenant": "acme"})]
