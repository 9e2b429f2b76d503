"""Time spent capped, from Redis' state to the minutes of tenants."""
from types import SimpleNamespace

import pytest

from chrono_beat import telemetry
from chrono_beat.core.errors import QueueUnavailable
from chrono_beat.services.capped import LONGEST_SPELL_US, CappedTime, by_minutes

SECOND = 1_000_000
MINUTE = 60 * SECOND
MIDNIGHT = 1_767_312_000 * SECOND


class Redis:
    """Answers who is capped; its clock runs beside the host's."""

    def __init__(self):
        self.at_us, self.tenants, self.away = MIDNIGHT, [], False

    def workers(self):
        return [SimpleNamespace(pools=("chrono", "chrono.gold")), SimpleNamespace(pools=("chrono",))]

    def capped(self, lane, pools, limit):
        assert pools == ["chrono", "chrono.gold"] and limit > 0
        if self.away:
            raise QueueUnavailable("away")
        return self.at_us, list(self.tenants)


@pytest.fixture
def site():
    redis, written = Redis(), {}

    def add(spells):
        for tenant, minute, us in spells:
            written[tenant, minute] = written.get((tenant, minute), 0) + us

    capped = CappedTime(SimpleNamespace(add_capped=add), redis)
    clock = SimpleNamespace(us=5 * SECOND)

    def run(seconds, lane=0):
        for _ in range(seconds):
            clock.us += SECOND
            redis.at_us += SECOND
            capped.look(lane, clock.us)

    return SimpleNamespace(redis=redis, written=written, capped=capped, clock=clock, run=run)


def test_a_tenant_capped_for_four_minutes_at_midnight_shows_while_it_still_is(site):
    site.run(1)
    site.redis.tenants = ["acme"]

    site.run(130)

    assert site.written["acme", MIDNIGHT] == pytest.approx(59 * SECOND, abs=SECOND)
    assert site.written["acme", MIDNIGHT + MINUTE] == 60 * SECOND
    site.run(110)
    site.redis.tenants = []
    site.run(20)
    assert sum(site.written.values()) == 240 * SECOND


def test_looks_that_come_more_often_than_each_second_ask_redis_nothing(site):
    site.run(1)
    site.redis.away = True

    for _ in range(20):
        site.clock.us += SECOND // 25
        site.capped.look(0, site.clock.us)


def test_what_nobody_saw_is_not_counted(site):
    """Redis was away for a minute, then another process recorded the lane for a minute."""
    site.redis.tenants = ["acme"]
    site.run(3)
    site.redis.away = True
    with pytest.raises(QueueUnavailable):
        site.run(1)
    site.redis.away = False
    site.clock.us += MINUTE
    site.redis.at_us += MINUTE
    site.run(3)
    site.capped.leave(0)
    site.clock.us += LONGEST_SPELL_US - SECOND
    site.redis.at_us += LONGEST_SPELL_US - SECOND
    site.run(20)

    assert sum(site.written.values()) <= (2 + 2 + 19) * SECOND


def test_what_is_written_is_told_to_whoever_counts(site):
    told = []
    end = telemetry.subscribe(lambda event, fields: told.append((event, fields)))
    try:
        site.redis.tenants = ["acme", "other"]
        site.run(12)
    finally:
        end()

    [(event, fields)] = told
    assert event == "capped" and fields["tenants"] == ["acme", "other"]
    assert fields["spent_us"][0] == sum(us for (tenant, _), us in site.written.items() if tenant == "acme") > 0


def test_a_span_is_cut_at_full_minutes():
    assert by_minutes(50, 2 * MINUTE + 5) == [(50, MINUTE), (MINUTE, 2 * MINUTE), (2 * MINUTE, 2 * MINUTE + 5)]
    assert by_minutes(MINUTE, 2 * MINUTE) == [(MINUTE, 2 * MINUTE)]
