"""What goes wrong at a given instant: processes that stand still or die, memory that is lost, servers that are away."""
from __future__ import annotations

import copy
from collections.abc import Callable

from chrono_beat.testing.history import (
    CHILD_KILLED,
    MEMORY_LOST,
    QUEUE_AWAY,
    SERVICE_HIT,
    STORE_AWAY,
    WORKER_CUT,
    WORKER_PAUSED,
)
from chrono_beat.testing.simulation.deployment import Deployment
from chrono_beat.testing.simulation.engine import Process
from chrono_beat.testing.simulation.scenario import Mishap

FORGOTTEN_US = 1_000_000


def plan(site: Deployment, mishap: Mishap) -> None:
    """Let something go wrong at its instant."""
    site.flow.call_in(lambda: _strike(site, mishap), us=mishap.at_us)
    if mishap.kind == "failover":
        site.flow.call_in(lambda: _remember(site), us=mishap.at_us - FORGOTTEN_US)


def _strike(site: Deployment, mishap: Mishap) -> None:
    if site.calm:
        return
    site.note(f"{mishap.kind} {mishap.whom}" + (f" for {mishap.length_us / 1e6:.1f} s" if mishap.length_us else ""))
    what, _, kind = mishap.kind.partition(" ")
    if mishap.kind in KINDS:
        KINDS[mishap.kind](site, mishap)
        return
    those = site.of_kind(kind)
    if those:
        ON_PROCESSES[what](site, those[mishap.whom % len(those)], mishap)


def _still(site: Deployment, process: Process, mishap: Mishap) -> None:
    process.still_until_us = max(process.still_until_us, site.engine.now_us() + mishap.length_us)
    site.fault(WORKER_PAUSED if process.name in site.workers else SERVICE_HIT, mishap.length_us, process.name)


def _kill(site: Deployment, process: Process, mishap: Mishap) -> None:
    if mishap.kind == "kill child":
        return
    site.engine.end(process)


def _cut(site: Deployment, process: Process, mishap: Mishap) -> None:
    for wire in site.wires[process.name]:
        wire.cut_until_us = site.engine.now_us() + mishap.length_us
    site.fault(WORKER_CUT, mishap.length_us, process.name)


def _kill_child(site: Deployment, mishap: Mishap) -> None:
    names = sorted(site.workers)
    if names:
        name = names[mishap.whom % len(names)]
        site.fault(CHILD_KILLED, 0, name)
        site.workers[name].lose_child()


def _flush(site: Deployment, mishap: Mishap) -> None:
    site.fault(MEMORY_LOST)
    site.queue.flush()


def _remember(site: Deployment) -> None:
    site.remembered = copy.deepcopy(site.queue.lanes)


def _failover(site: Deployment, mishap: Mishap) -> None:
    site.fault(MEMORY_LOST)
    site.queue.lanes = site.remembered
    site.queue.repl += "+"


def _queue_away(site: Deployment, mishap: Mishap) -> None:
    site.fault(QUEUE_AWAY, mishap.length_us)
    site.queue.unavailable = True
    site.flow.call_in(lambda: setattr(site.queue, "unavailable", False), us=mishap.length_us)


def _store_away(site: Deployment, mishap: Mishap) -> None:
    site.fault(STORE_AWAY, mishap.length_us)
    site.store.unavailable = True
    site.flow.call_in(lambda: setattr(site.store, "unavailable", False), us=mishap.length_us)


def _step_host(site: Deployment, mishap: Mishap) -> None:
    processes = list(site.engine.processes.values())
    if processes:
        processes[mishap.whom % len(processes)].clock.off_us += (mishap.whom - 500) * 20_000


def _next(site: Deployment, mishap: Mishap) -> None:
    site.mischief.order(mishap.call, mishap.how, mishap.length_us)


KINDS: dict[str, Callable[[Deployment, Mishap], None]] = {
    "flush": _flush, "failover": _failover, "queue away": _queue_away, "store away": _store_away, "step host": _step_host,
    "kill child": _kill_child, "next": _next,
}
ON_PROCESSES: dict[str, Callable[[Deployment, Process, Mishap], None]] = {"still": _still, "kill": _kill, "cut": _cut}
