"""Scenarios about caps: three workers that die again and again, two lanes, two pools, and more work than the caps let run.

Beside their jobs the tenants send plain tasks into both pools, and they are moved between these. Lost memories, cut
connections and strikes at single calls come on top. Every draw is judged by the leases that are held at that moment.

    python -m chrono_beat.testing.simulation --theme caps --seed 1 --count 50
"""
from __future__ import annotations

import random

from chrono_beat.core.records import RetryPolicy
from chrono_beat.testing.simulation.scenario import (
    MEMORY_KINDS,
    SECOND_US,
    STILL_KINDS,
    WARM_UP_US,
    Mishap,
    Scenario,
    Wish,
)
from chrono_beat.testing.simulation.worker import Habits

TENANTS = {"default": 2, "acme": 1, "paid": 5}
"""Caps by tenant; of two lanes, "default" and "acme" share one."""

POOLS = ("chrono", "chrono.gold")
KILLS = 60
"""Of workers and of their children, in a seed."""

LONGEST_RESTART_US = SECOND_US
TASKS = ("tests.quick", "tests.long", "tests.fails")


def capped(seed: int) -> Scenario:
    """Draw a scenario from its seed; the same seed draws the same."""
    chance = random.Random(f"capped {seed}")
    made = Scenario(
        seed=seed, theme="caps", rate=chance.choice((0.0, 0.005, 0.02)), lanes=2, pools=POOLS, workers=3,
        slots=chance.choice((2, 4)), kills=chance.random() < 0.6, caps=dict(TENANTS),
        redis_off_us=chance.choice((0, -700_000, 400_000)), slow_start_us=chance.choice((30_000, 500_000)),
        horizon=chance.choice((5.0, 20.0)), longest_restart_us=LONGEST_RESTART_US)
    made.habits = {
        "tests.quick": Habits(20_000, 1_000_000), "tests.long": Habits(500_000, 6_000_000, hangs=0.05),
        "tests.fails": Habits(20_000, 1_000_000, fails=0.5, retries=0.5),
    }
    for number in range(6):
        made.jobs.append({
            "name": f"job {number}", "tenant": sorted(TENANTS)[number % 3], "task": chance.choice(TASKS),
            "expression": str(chance.choice((5, 7, 10))), "concurrency": chance.choice(("allow", "allow", "forbid")),
            "pool": chance.choice(("", "", POOLS[1])), "misfire": chance.choice(("latest", "all")),
            "retry": RetryPolicy(chance.choice((1, 3)), True, 1.0, 2.0, 10.0, 0.2),
        })
    for _ in range(KILLS):
        kind = chance.choice(("kill worker", "kill child", "kill child"))
        made.mishaps.append(Mishap(_instant(made, chance), kind, whom=chance.randrange(1000)))
    forgets = chance.choice((0, 0, 1, 2))
    for kinds, count in ((MEMORY_KINDS, forgets), (("cut worker", *STILL_KINDS), chance.randint(0, 4))):
        for _ in range(count):
            made.mishaps.append(Mishap(
                _instant(made, chance), chance.choice(kinds), round(chance.random() * 25 * SECOND_US), chance.randrange(1000)))
    for _ in range(chance.randint(4, 8)):
        made.wishes.append(Wish(_instant(made, chance), "send", chance.randrange(3), {
            "pool": chance.choice(POOLS), "task": chance.choice(TASKS), "count": chance.randint(1, 8),
            "countdown_us": chance.choice((0, 0, 3 * SECOND_US))}))
    for _ in range(chance.randint(1, 4)):
        made.wishes.append(Wish(
            _instant(made, chance), "move", chance.randrange(3), {"pool": chance.choice(("", POOLS[1]))}))
    made.mishaps.sort()
    made.wishes.sort(key=lambda wish: wish.at_us)
    return made


def _instant(made: Scenario, chance: random.Random) -> int:
    return WARM_UP_US + round(chance.random() * (made.faults_us - WARM_UP_US))
