"""The processes of a simulated deployment, and what becomes of them when they die."""
from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from chrono_beat.core.config import Config
from chrono_beat.core.errors import QueueUnavailable, StoreUnavailable
from chrono_beat.services.audit import Audit
from chrono_beat.services.dispatcher import Dispatcher
from chrono_beat.services.keeper import Keeper
from chrono_beat.services.reaper import Reaper
from chrono_beat.services.recorder import Recorder
from chrono_beat.services.repairs import Repairs
from chrono_beat.services.service import Service
from chrono_beat.testing.clock import ManualClock
from chrono_beat.testing.history import SERVICE_HIT, WORKER_CUT, WORKER_KILLED, WORKER_PAUSED, Fault
from chrono_beat.testing.memory_lane import Lane
from chrono_beat.testing.simulation.engine import Engine, Flag, HostClock, Process, Task
from chrono_beat.testing.simulation.scenario import LEASE_SECONDS, START_US, Scenario
from chrono_beat.testing.simulation.wires import Mischief, Wire
from chrono_beat.testing.simulation.witness import Witness, WitnessedQueue, WitnessedStore
from chrono_beat.testing.simulation.worker import Worker

PARTITIONS = 4
REAP_CAP = 3
MARK_US = 100_000


def config_of(scenario: Scenario) -> Config:
    """Return the settings of a simulated deployment: shorter leases, so that minutes are enough."""
    return Config(
        partitions=PARTITIONS, lanes=scenario.lanes, horizon=scenario.horizon, lease_ttl=LEASE_SECONDS,
        renew_every=LEASE_SECONDS / 3, stop_grace=3.0, reap_cap=REAP_CAP)


class Deployment:
    """Stores, processes and their wires.

    Args:
        scenario: what there is.
        note: told of what goes wrong, for the trace.
    """

    def __init__(self, scenario: Scenario, note: Callable[[str], object]) -> None:
        self.scenario, self.note = scenario, note
        self.chance = random.Random(f"deployment {scenario.seed}")
        self.flow = ManualClock(wall_us=START_US)
        self.config = config_of(scenario)
        self.witness = Witness(self.flow)
        self.store = WitnessedStore(self.flow, self.witness, partitions=PARTITIONS, lanes=scenario.lanes)
        self.queue = WitnessedQueue(HostClock(self.flow, scenario.redis_off_us), self.config, self.witness)
        self.engine = Engine(self.flow, self._died)
        self.mischief = Mischief(
            self.engine, random.Random(f"mischief {scenario.seed}"), scenario.rate, scenario.longest_still_us,
            self._struck)
        if scenario.kinds is not None:
            self.mischief.kinds = scenario.kinds
        self.workers: dict[str, Worker] = {}
        self.wires: dict[str, list[Wire]] = {}
        self.services: list[Service] = []
        self.calm = False
        self.remembered: dict[int, Lane] = {}
        self._numbers: Counter[str] = Counter()
        self._starts: dict[str, Callable[[str], Process]] = {
            "dispatcher": self._dispatcher, "recorder": self._recorder, "reaper": self._reaper, "audit": self._audit,
            "worker": self._worker,
        }

    def start(self) -> None:
        """Start every process."""
        counts = {"recorder": 2, "reaper": 1, "audit": 1, "worker": self.scenario.workers}
        for kind, count in {"dispatcher": self.scenario.dispatchers, **counts}.items():
            for _ in range(count):
                self.add(kind)

    def add(self, kind: str) -> None:
        """Start a process of a kind, under a name that none had before."""
        self._numbers[kind] += 1
        process = self._starts[kind](f"{kind}{self._numbers[kind]}")
        self.engine.add(process)

    def of_kind(self, kind: str) -> list[Process]:
        """Return the live processes of a kind."""
        return [process for name, process in self.engine.processes.items() if name.startswith(kind)]

    def clock(self) -> HostClock:
        """Return the clock of the next host."""
        skews = self.scenario.skews_us
        return HostClock(self.flow, skews[sum(self._numbers.values()) % len(skews)])

    def wire(self, process: Process) -> tuple[Any, Any]:
        """Return database and Redis as a process reaches them."""
        store = Wire(self.store, process, self.mischief, StoreUnavailable)
        queue = Wire(self.queue, process, self.mischief, QueueUnavailable)
        self.wires[process.name] = [store, queue]
        return store, queue

    # -- kinds ------------------------------------------------------------------------------------------------------

    def _serve(self, process: Process, *services: Service) -> Process:
        for service in services:
            self.services.append(service)
            flag = Flag()
            service._wake = flag                                   # type: ignore[assignment]  # an Event has a lock
            process.tasks.append(Task(service.name, self._turn(service), is_woken=_can_be_woken(service), flag=flag))
        return process

    def _turn(self, service: Service) -> Callable[[int], int]:
        def turn(now_us: int) -> int:
            service._wake.clear()
            return service.turn(now_us)

        return turn

    def _dispatcher(self, name: str) -> Process:
        process = Process(name, self.clock())
        dispatcher = Dispatcher(*self.wire(process), process.clock, self.config, member=name)
        marker = dispatcher.marker
        self._serve(process, *(s for s in dispatcher.services if s not in (dispatcher.waker, marker)))
        self.services.append(marker)
        # Looking ten times a second whether there is something to mark would be most of a simulation's steps.
        process.tasks.append(Task("marker", self._turn(marker), is_woken=lambda: bool(marker._marks) and not marker.failures))
        process.tasks[-1].turn = _patient(process.tasks[-1].turn, marker)
        return process

    def _recorder(self, name: str) -> Process:
        process = Process(name, self.clock())
        recorder = Recorder(*self.wire(process), process.clock, self.config, reader=name, chance=self.chance.random)
        return self._serve(process, recorder)

    def _reaper(self, name: str) -> Process:
        process = Process(name, self.clock())
        return self._serve(process, Reaper(self.wire(process)[1], process.clock, self.config, self.store))

    def _audit(self, name: str) -> Process:
        process = Process(name, self.clock())
        store, queue = self.wire(process)
        return self._serve(
            process, Audit(store, queue, process.clock, self.config), Repairs(store, queue, process.clock, self.config),
            Keeper(store, process.clock, self.config))

    def _worker(self, name: str) -> Process:
        clock = self.clock()
        worker = Worker(
            name, clock, None, self.config, self.witness, random.Random(f"{name} {self.scenario.seed}"),
            self.scenario.habits, self.scenario.slots, self.scenario.kills, self.scenario.slow_start_us, lambda: self.calm,
            self.scenario.pools)
        process = worker.process()
        worker.queue = self.wire(process)[1]
        self.workers[name] = worker
        return process

    # -- what goes wrong --------------------------------------------------------------------------------------------

    def fault(self, kind: str, length_us: int = 0, *names: str) -> None:
        """Write a fault down."""
        now = self.witness.now_us()
        self.witness.add(Fault(now, kind, now + length_us, names))

    def _struck(self, kind: str, process: Process, name: str, us: int) -> None:
        length = f" for {us / 1e6:.1f} s" if us else ""
        self.note(f"{process.name}: {kind} at {name}{length}")
        if process.name not in self.workers:
            self.fault(SERVICE_HIT, us, process.name)
        elif kind == "still":
            self.fault(WORKER_PAUSED, us, process.name)
        elif kind == "slow":
            self.fault(WORKER_CUT, us, process.name)

    def _died(self, process: Process) -> None:
        self.note(f"{process.name}: dies")
        self.wires.pop(process.name, None)
        kind = process.name.rstrip("0123456789")
        if self.workers.pop(process.name, None) is not None:
            self.fault(WORKER_KILLED, 0, process.name)
        else:
            self.fault(SERVICE_HIT, 0, process.name)
        if kind in self._starts:
            self.flow.call_in(lambda: self.add(kind), us=1 + round(self.chance.random() * self.scenario.longest_restart_us))

    def mend(self) -> None:
        """Let nothing go wrong any more."""
        self.calm = True
        self.mischief.rate = 0.0
        self.store.unavailable = self.queue.unavailable = False
        for process in self.engine.processes.values():
            process.still_until_us = 0
        for wires in self.wires.values():
            for wire in wires:
                wire.cut_until_us = 0

    def wake_workers(self) -> None:
        """Do what the wake tokens of Redis do for idle workers."""
        for worker in self.workers.values():
            if len(worker.held) < worker.slots:
                worker.woken = True


def _can_be_woken(service: Service) -> Callable[[], bool]:
    return lambda: not service.failures


def _patient(turn: Callable[[int], int], marker: Any) -> Callable[[int], int]:
    def patient(now_us: int) -> int:
        wait_us = turn(now_us)
        return wait_us if marker._marks or marker.failures else 1_000_000

    return patient
