"""What a seed stands for: jobs, how their bodies behave, what is asked of them, and what goes wrong when."""
from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from chrono_beat.core.records import RetryPolicy
from chrono_beat.testing.simulation.worker import Habits

SECOND_US = 1_000_000
START_US = 1_767_344_400 * SECOND_US
LEASE_SECONDS = 10.0
FAULTS_US = 50 * SECOND_US
WARM_UP_US = 4 * SECOND_US

NOT_YET: dict[str, str] = {}
"""What is not tried yet, and why not."""


class Mishap(NamedTuple):
    """Something that goes wrong at an instant after the start: a kind of `mishaps.KINDS`, for how long, to whom (a number).

    Kind "next" strikes the next call of a store's method *call* in the way *how*, one of `wires.Mischief.kinds`.
    """

    at_us: int
    kind: str
    length_us: int = 0
    whom: int = 0
    call: str = ""
    how: str = ""


class Wish(NamedTuple):
    """A control call that somebody makes; "send" and "move" are about the tenant of that job."""

    at_us: int
    action: str
    job: int
    values: Mapping[str, Any] = {}


@dataclass(kw_only=True)
class Scenario:
    """A deployment and what happens to it; instants are microseconds after its start.

    Args:
        rate: how often a single effect is struck.
        kinds: of strikes; None for all.
        redis_off_us: by how much Redis' clock is ahead of the database's.
        skews_us: of the hosts' clocks, in turn.
        caps: tenants' max_running.
        lanes: how many there are.
        pools: that every worker draws.
        longest_restart_us: how long a process that died is missing at most.
    """

    seed: int
    theme: str
    jobs: list[dict[str, Any]] = field(default_factory=list)
    habits: dict[str, Habits] = field(default_factory=dict)
    mishaps: list[Mishap] = field(default_factory=list)
    wishes: list[Wish] = field(default_factory=list)
    rate: float = 0.0
    kinds: tuple[str, ...] | None = None
    redis_off_us: int = 0
    skews_us: tuple[int, ...] = (0,)
    caps: dict[str, int] = field(default_factory=dict)
    dispatchers: int = 2
    workers: int = 2
    slots: int = 3
    kills: bool = True
    slow_start_us: int = 50_000
    horizon: float = 20.0
    faults_us: int = FAULTS_US
    lanes: int = 1
    pools: tuple[str, ...] = ("chrono",)
    longest_restart_us: int = 6 * SECOND_US
    longest_still_us: int = round(3 * LEASE_SECONDS * SECOND_US)


THEMES = ("strikes", "edits", "memory", "pauses", "overlap", "retries", "outages", "workers", "everything")
MEMORY_KINDS = ("flush", "failover")
STILL_KINDS = ("still dispatcher", "still worker", "still recorder", "still reaper", "kill dispatcher", "kill recorder")
WORKER_KINDS = ("kill worker", "kill child", "cut worker", "still worker")
AWAY_KINDS = ("queue away", "store away")
CLOCK_KINDS = ("step host",)


def scenario(seed: int) -> Scenario:
    """Draw a scenario from its seed; the same seed draws the same."""
    chance = random.Random(f"scenario {seed}")
    theme = THEMES[seed % len(THEMES)]
    whole = theme == "everything"
    made = Scenario(
        seed=seed, theme=theme, rate=chance.choice((0.02, 0.05) if theme == "strikes" else (0.0, 0.004, 0.012, 0.03)),
        redis_off_us=chance.choice((0, 0, -700_000, 400_000, 1_500_000)),
        skews_us=tuple(chance.choice((0, 0, 3, -3, 40, -3600)) * SECOND_US for _ in range(3)),
        workers=chance.choice((1, 2, 2, 3)), slots=chance.choice((1, 2, 4)), kills=chance.random() < 0.6,
        slow_start_us=chance.choice((30_000, 30_000, 500_000, 4_000_000)), horizon=chance.choice((5.0, 20.0, 60.0)),
    )
    _add_jobs(made, chance, theme)
    if theme in ("memory", "everything"):
        _add(made, chance, MEMORY_KINDS, chance.randint(1, 2), 0)
    if theme in ("pauses", "everything"):
        _add(made, chance, STILL_KINDS, chance.randint(1, 4), round(3 * LEASE_SECONDS))
    if theme in ("workers", "retries", "overlap") or whole:
        _add(made, chance, WORKER_KINDS, chance.randint(1, 3), round(3 * LEASE_SECONDS))
    if theme in ("outages", "everything"):
        _add(made, chance, AWAY_KINDS, chance.randint(1, 2), 25)
    if chance.random() < 0.3:
        _add(made, chance, CLOCK_KINDS, 2, 0)
    if theme in ("edits", "everything") or chance.random() < 0.25:
        _add_wishes(made, chance, chance.randint(2, 6))
    made.mishaps.sort()
    made.wishes.sort(key=lambda wish: wish.at_us)
    return made


def _add_jobs(made: Scenario, chance: random.Random, theme: str) -> None:
    long = theme in ("overlap", "everything")
    made.habits["tests.quick"] = Habits(20_000, 1_500_000)
    made.habits["tests.long"] = Habits(1_000_000, 9_000_000, hangs=0.1)
    made.habits["tests.poison"] = Habits(20_000, 300_000, dies=1.0)
    made.habits["tests.fails"] = Habits(20_000, 2_000_000, fails=0.5, retries=0.3)
    for number in range(chance.randint(2, 4)):
        task = chance.choice(("tests.quick", "tests.long", "tests.long", "tests.fails") if long else
                             ("tests.quick", "tests.quick", "tests.long", "tests.fails"))
        if theme == "workers" and number == 0:
            task = "tests.poison"
        if theme == "retries":
            task = "tests.fails"
        concurrency = chance.choice(("forbid", "forbid", "allow", "replace")) if long else chance.choice(("forbid", "allow"))
        made.jobs.append({
            "name": f"job {number}", "tenant": chance.choice(("default", "default", "acme")), "task": task,
            "expression": str(chance.choice((4, 5, 7, 10, 15))), "concurrency": concurrency,
            "retry": RetryPolicy(chance.choice((1, 2, 3)), True, chance.choice((1.0, 3.0)), 2.0, 20.0, 0.2),
            "misfire": chance.choice(("latest", "latest", "all")),
            "expires_after_seconds": chance.choice((None, None, None, 6.0)),
            **({"exclusion_group": chance.choice(("", "", "g"))} if long else {}),
        })
    if chance.random() < 0.4:
        made.caps["default"] = chance.choice((1, 2))


def _add(made: Scenario, chance: random.Random, kinds: tuple[str, ...], count: int, longest_seconds: int) -> None:
    for _ in range(count):
        kind = chance.choice(kinds)
        at_us = WARM_UP_US + round(chance.random() * (made.faults_us - WARM_UP_US))
        if kind not in NOT_YET:
            made.mishaps.append(Mishap(
                at_us, kind, round(chance.random() * longest_seconds * SECOND_US), chance.randrange(1000)))


def _add_wishes(made: Scenario, chance: random.Random, count: int) -> None:
    for _ in range(count):
        action = chance.choice(("edit", "edit", "edit", "pause", "resume", "resume", "delete", "trigger", "cancel"))
        values: dict[str, Any] = {}
        if action == "edit":
            anew = chance.random() < 0.5
            values = {"expression": str(chance.choice((4, 6, 8)))} if anew else {"priority": chance.randrange(10)}
        at_us = WARM_UP_US + round(chance.random() * (made.faults_us - WARM_UP_US))
        wish = Wish(at_us, action, chance.randrange(len(made.jobs)), values)
        if action not in NOT_YET:
            made.wishes.append(wish)
