"""What goes wrong: each kind of fault is a method, and what has to be done about it later stands on an agenda."""
from __future__ import annotations

import heapq
import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import redis

from benchmarks.chaos.load import Load
from benchmarks.chaos.settings import LEASE_SECONDS, PARTITION_LEASE_SECONDS
from benchmarks.chaos.site import DISPATCHERS, WORKERS, ChaosSite
from benchmarks.site import DATABASE, Process

SHORTEST_GAP_SECONDS = 1.0
LONGEST_GAP_SECONDS = 3.5
PATIENCE_SECONDS = 15.0
"""How long a burst is waited for."""

GROWN_UP_SECONDS = 8.0
"""How old a worker is that has surely begun to work."""

WARM_SECONDS = 40.0
"""How long a process may take to end after TERM: its longest body, and the 10 s for which Celery mourns a child."""


@dataclass
class Fault:
    """Something that went wrong, from when until when (seconds since the epoch), and for whom."""

    kind: str
    at: float
    until: float
    names: list[str] = field(default_factory=list)
    detail: str = ""


class Faults:
    """Strikes, mends, and keeps the list.

    Args:
        site: what is tormented.
        load: says when a rush comes.
        seed: of the choices.
        kinds: some of `KINDS`.
    """

    KINDS = (
        "dispatcher_killed", "dispatcher_paused", "dispatcher_ended", "worker_killed", "child_killed", "worker_paused",
        "worker_ended", "redis_cut", "redis_restarted", "redis_lost_in_a_rush", "redis_flushed", "redis_paused",
        "database_cut", "database_restarted", "database_crashed",
    )

    def __init__(self, site: ChaosSite, load: Load, seed: int, kinds: Sequence[str] = KINDS) -> None:
        self.done: list[Fault] = []
        self.surprises: list[str] = []
        """Processes that ended though nobody had touched them."""

        self._site, self._load = site, load
        self._random = random.Random(seed)
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._touched: set[str] = set()               # processes that were killed or asked to end
        self._roles: dict[str, tuple[str, int]] = {}
        for process, role in zip(site.named("worker"), WORKERS, strict=True):
            self._roles[process.name] = role
        self._kinds = list(kinds)
        self._deck: list[str] = []

    # -- the course -----------------------------------------------------------------------------------------------

    def strike(self) -> float:
        """Let the next thing go wrong; every kind comes once before any comes again. Returns the seconds to the next."""
        if not self._deck:
            self._deck = list(self._kinds)
            self._random.shuffle(self._deck)
        getattr(self, "_" + self._deck.pop())()
        return self._random.uniform(SHORTEST_GAP_SECONDS, LONGEST_GAP_SECONDS)

    def mend(self) -> None:
        """Do what is due on the agenda."""
        while self._agenda and self._agenda[0][0] <= time.time():
            heapq.heappop(self._agenda)[2]()
        for process in self._site.processes:
            if not process.alive and process.name not in self._touched:
                self._touched.add(process.name)
                self.surprises.append(f"{process.name} ended with {process.popen.poll()}")
                self._succeed(process)

    def mend_all(self) -> None:
        """Bring everything back."""
        while self._agenda:
            time.sleep(max(0.0, min(1.0, self._agenda[0][0] - time.time())))
            self.mend()
        self.mend()
        assert len(self._site.named("dispatcher")) >= DISPATCHERS and len(self._site.named("worker")) >= len(WORKERS)

    def _later(self, seconds: float, action: Callable[[], None]) -> float:
        at = time.time() + seconds
        heapq.heappush(self._agenda, (at, next(self._order), action))
        return at

    def _note(self, kind: str, seconds: float = 0.0, names: list[str] | None = None, detail: str = "",
              since: float | None = None) -> None:
        at = since or time.time()
        self.done.append(Fault(kind, at, time.time() + seconds, names or [], detail))

    # -- processes --------------------------------------------------------------------------------------------------

    def _one(self, kind: str) -> Process | None:
        able = [process for process in self._site.named(kind) if process.name not in self._touched]
        return self._random.choice(able) if able else None

    def _succeed(self, process: Process) -> None:
        if process.name.startswith("dispatcher"):
            self._site.start_dispatcher()
        else:
            role = self._roles[process.name]
            self._roles[self._site.start_worker(*role).name] = role

    def _kill(self, kind: str, *, all_of_it: bool) -> None:
        process = self._one(kind)
        if process is None:
            return
        self._touched.add(process.name)
        gap = self._random.uniform(0, 3)
        self._note(f"{kind}_killed", gap, [process.name], "with its children" if all_of_it else "")
        process.kill_all() if all_of_it else process.kill()
        self._later(gap, lambda: self._succeed(process))

    def _dispatcher_killed(self) -> None:
        self._kill("dispatcher", all_of_it=False)

    def _worker_killed(self) -> None:
        self._kill("worker", all_of_it=self._random.random() < 0.5)

    def _pause(self, kind: str, seconds: float, *, all_of_it: bool) -> None:
        process = self._one(kind)
        if process is None:
            return
        send = process.signal_all if all_of_it else process.signal
        self._note(f"{kind}_paused", seconds, [process.name], f"{seconds:.1f} s" + " with its children" * all_of_it)
        send(signal.SIGSTOP)
        self._later(seconds, lambda: send(signal.SIGCONT))

    def _dispatcher_paused(self) -> None:
        self._pause("dispatcher", self._random.uniform(0.3, 3) * PARTITION_LEASE_SECONDS, all_of_it=False)

    def _worker_paused(self) -> None:
        self._pause("worker", self._random.uniform(0.3, 2.5) * LEASE_SECONDS, all_of_it=self._random.random() < 0.5)

    def _end(self, kind: str) -> None:
        process = self._one(kind)
        if process is None:
            return
        self._touched.add(process.name)
        self._note(f"{kind}_ended", 0.0, [process.name])
        process.signal(signal.SIGCONT)
        process.popen.terminate()
        deadline = time.time() + WARM_SECONDS

        def follow() -> None:
            if process.alive and time.time() < deadline:
                self._later(0.2, follow)
                return
            if process.alive:
                self.surprises.append(f"{process.name} did not end within {WARM_SECONDS:g} s of TERM")
                process.kill_all()
            self._succeed(process)

        follow()

    def _dispatcher_ended(self) -> None:
        self._end("dispatcher")

    def _worker_ended(self) -> None:
        self._end("worker")

    def _child_killed(self) -> None:
        """Kill a child of a prefork worker, as the kernel does when memory is short. Celery gives a worker up whose first child
        is gone when it begins to work, so those that only start are let alone."""
        able = [(process, child) for process in self._site.named("worker")
                if process.name not in self._touched and self._grown_up(process)
                for child in children(process.popen.pid)]
        if not able:
            return
        process, child = self._random.choice(able)
        self._note("child_killed", 0.0, [process.name], str(child))
        try:
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def _grown_up(self, process: Process) -> bool:
        return process.age_seconds > GROWN_UP_SECONDS and " ready." in process.told()

    # -- Redis --------------------------------------------------------------------------------------------------------

    def _client(self) -> Any:
        return redis.Redis(port=self._site.redis.port, socket_timeout=5)

    def _redis_cut(self) -> None:
        self._note("redis_cut")
        with self._client() as client:
            for kind in ("normal", "pubsub"):
                client.client_kill_filter(_type=kind, skipme=True)

    def _redis_restarted(self) -> None:
        self._lose_redis("redis_restarted")

    def _lose_redis(self, kind: str) -> None:
        away = self._random.choice([0.0, self._random.uniform(0.5, 5)])
        began = time.time()
        self._site.redis.kill()
        time.sleep(away)
        self._site.redis.restart()
        self._note(kind, since=began, detail=f"away for {time.time() - began:.1f} s, its memory lost")

    def _redis_lost_in_a_rush(self) -> None:
        deadline = time.time() + PATIENCE_SECONDS
        while self._load.next_burst < time.time() + 0.2 and time.time() < deadline:
            time.sleep(0.05)
            self.mend()
        wait = self._load.next_burst + self._random.uniform(0.05, 0.4) - time.time()
        time.sleep(max(0.0, min(wait, PATIENCE_SECONDS)))
        self._lose_redis("redis_lost_in_a_rush")

    def _redis_flushed(self) -> None:
        self._note("redis_flushed")
        with self._client() as client:
            client.flushall()

    def _redis_paused(self) -> None:
        pid = self._site.redis.pid
        if pid is None:
            return
        seconds = self._random.uniform(0.5, 4)
        self._note("redis_paused", seconds, detail=f"{seconds:.1f} s")
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)                                # here and not later: no other fault of Redis meanwhile
        os.kill(pid, signal.SIGCONT)

    # -- PostgreSQL -----------------------------------------------------------------------------------------------------

    def _database_cut(self) -> None:
        self._note("database_cut")
        with psycopg.connect(self._site.postgres.dsn_of("postgres"), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
                [DATABASE])

    def _database_restarted(self) -> None:
        began = time.time()
        self._site.postgres.restart()
        self._note("database_restarted", since=began, detail=f"{time.time() - began:.1f} s")

    def _database_crashed(self) -> None:
        began = time.time()
        self._site.postgres.kill()
        time.sleep(self._random.choice([0.0, 2.0]))
        self._site.postgres.restart()
        self._note("database_crashed", since=began, detail=f"{time.time() - began:.1f} s")


def children(pid: int) -> list[int]:
    """Return the direct children of a process."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
