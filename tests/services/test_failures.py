"""The failure watch: retries of a tenant whose target is down wait, and go on."""
import pytest

from chrono_beat import telemetry
from chrono_beat.core.records import RetryPolicy
from chrono_beat.services.failures import FailureWatch
from chrono_beat.testing.memory_rows import MemoryTenant
from tests.services.world import NINE, SECOND, World, us

ONCE = {"schedule_kind": "once", "expression": NINE.isoformat()}
THRICE = RetryPolicy(3, True, 120.0, 2.0, 3600.0, 0.0)


@pytest.fixture
def heard():
    events = []
    end = telemetry.subscribe(lambda event, fields: events.append((event, dict(fields))))
    yield lambda *names: [(event, fields) for event, fields in events if event in names]
    end()


def test_a_tenant_that_fails_too_often_gets_its_retries_later_with_one_alert(heard):
    world = World()
    world.store.add_tenant(MemoryTenant(slug="acme", failure_threshold=0.5, max_running=100))
    jobs = [world.job(f"job {n}", tenant="acme", task="t.fails", retry=THRICE, **ONCE) for n in range(20)]
    world.answers["t.fails"] = ("failed", {})
    world.dispatcher()
    watch = FailureWatch(world.store, world.flow, world.config)

    world.run_until(us() + 10 * SECOND)
    watch.step(0)
    watch.step(0)
    world.answers.clear()                                               # the target is back
    world.run_until(us() + 305 * SECOND)
    held = world.states()
    world.run_until(us() + 311 * SECOND)
    watch.step(0)
    world.run_until(us() + 320 * SECOND)

    assert held == {"failed": 20, "scheduled": 20}
    assert world.states() == {"failed": 20, "succeeded": 20} and len(jobs) == 20
    assert heard("retries_held", "retries_released") == [
        ("retries_held", {"tenant": "acme", "failed": 20, "ended": 20, "until_us": us() + 310 * SECOND}),
        ("retries_released", {"tenant": "acme"})]


def test_a_row_that_makes_no_message_is_a_dead_letter_that_is_told_of(heard):
    world = World()
    world.store.add_execution(world.job("broken", args="[1,", next_run_us=None), us())
    world.dispatcher()

    world.run_until(us() + SECOND)

    assert world.states() == {"dead": 1}
    assert heard("dead_lettered") == [("dead_lettered", {"tenant": "default", "reason": "invalid", "count": 1})]


def test_a_dead_letter_is_told_of_by_tenant_and_reason(heard):
    world = World()
    world.store.add_tenant(MemoryTenant(slug="acme"))
    for name, tenant in (("a", "acme"), ("b", "acme"), ("c", "default")):
        world.job(name, tenant=tenant, task="t.fails", **ONCE)
    world.answers["t.fails"] = ("failed", {})
    world.dispatcher()

    world.run_until(us() + 10 * SECOND)

    told = {(fields["tenant"], fields["reason"]): 0 for _, fields in heard("dead_lettered")}
    for _, fields in heard("dead_lettered"):
        told[fields["tenant"], fields["reason"]] += fields["count"]
    assert told == {("acme", "error"): 2, ("default", "error"): 1}
