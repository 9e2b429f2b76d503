"""Processes on one flow of virtual time, one step at a time: who is due next steps, and nothing runs in threads.

A process is a set of tasks, each a function that does a bounded piece of work and says when it wants to be called
again. It can be stopped for a while, between two steps or in the middle of one, and it can die in the middle of a step.
For a stop in the middle the step calls `Engine.stand_still`, under which all other processes go on; so of two that stand
still at once, the later one goes on first.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from chrono_beat.core.clock import Signal
from chrono_beat.testing.clock import ManualClock

NEVER_US = 1 << 62


class Crash(BaseException):
    """The process dies here. No code of its own may catch it."""


class HostClock:
    """A host's clocks on the engine's flow of time; its wall clock may be off by any number of microseconds."""

    def __init__(self, flow: ManualClock, off_us: int = 0) -> None:
        self._flow, self.off_us = flow, off_us

    def wall_us(self) -> int:
        """Return the host's wall clock."""
        return self._flow.wall_us() + self.off_us

    def monotonic_us(self) -> int:
        """Return the host's monotonic clock."""
        return self._flow.monotonic_us()

    def wait(self, event: Signal, timeout_us: int) -> bool:
        """Refuse: whatever sleeps here would stop the time."""
        raise AssertionError("processes are stepped; nothing sleeps")


class Flag:
    """What wakes a task: an event without a lock, for there are no threads here."""

    __slots__ = ("up",)

    def __init__(self, up: bool = False) -> None:
        self.up = up

    def set(self) -> None:
        """Wake the task."""
        self.up = True

    def clear(self) -> None:
        """Let it sleep."""
        self.up = False

    def is_set(self) -> bool:
        """Say whether it is to be woken."""
        return self.up


ASK = Flag(up=True)


@dataclass(eq=False)
class Task:
    """A loop of a process: *turn* gets the monotonic clock and returns microseconds until its next call.

    It is called before its time where *flag* is up and *is_woken* says so, too.
    """

    name: str
    turn: Callable[[int], int]
    next_us: int = 0
    is_woken: Callable[[], bool] = lambda: False
    flag: Flag = ASK
    busy: bool = False


@dataclass(eq=False)
class Process:
    """What runs on one host and dies together."""

    name: str
    clock: HostClock
    tasks: list[Task] = field(default_factory=list)
    still_until_us: int = 0
    alive: bool = True
    on_death: Callable[[], object] = lambda: None


class Engine:
    """Steps processes in the order of time.

    Args:
        flow: the time; its wall clock is the database's.
        on_death: called with a process that has crashed, after it was taken away.
    """

    def __init__(self, flow: ManualClock, on_death: Callable[[Process], object] = lambda process: None) -> None:
        self.flow = flow
        self.processes: dict[str, Process] = {}
        self.steps = 0
        self._on_death = on_death
        self._latest_us = NEVER_US

    def now_us(self) -> int:
        """Return the monotonic clock."""
        return self.flow.monotonic_us()

    def add(self, process: Process) -> None:
        """Let a process take part from now on."""
        self.processes[process.name] = process

    def end(self, process: Process) -> None:
        """Take a process away as SIGKILL does; a step of it that stands still ends with a Crash when it goes on."""
        if process.alive:
            process.alive = False
            self.processes.pop(process.name, None)
            process.on_death()
            self._on_death(process)

    def run(self, until_us: int, done: Callable[[], bool] = lambda: False) -> None:
        """Step whatever is due until an instant of the monotonic clock, or until *done* says so (asked each step)."""
        while not done():
            at_us, process, task = self._next(until_us)
            if process is None or task is None:
                self._pass_to(until_us)
                return
            self._pass_to(at_us)
            self._step(process, task)

    def _next(self, until_us: int) -> tuple[int, Process | None, Task | None]:
        # Most of a simulation's time goes by in here: no look costs more than it has to.
        best_us, best_process, best_task = until_us + 1, None, None
        now_us = self.flow.monotonic_us()
        for process in self.processes.values():
            earliest = process.still_until_us
            if earliest >= best_us:
                continue
            may_be_woken = now_us if now_us > earliest else earliest
            for task in process.tasks:
                if task.busy:
                    continue
                at_us = task.next_us
                if at_us < earliest:
                    at_us = earliest
                if at_us > may_be_woken and may_be_woken < best_us and task.flag.up and task.is_woken():
                    at_us = may_be_woken
                if at_us < best_us:
                    best_us, best_process, best_task = at_us, process, task
        return best_us, best_process, best_task

    def _pass_to(self, monotonic_us: int) -> None:
        ahead = monotonic_us - self.flow.monotonic_us()
        if ahead > 0:
            self.flow.advance(us=ahead)

    def _step(self, process: Process, task: Task) -> None:
        self.steps += 1
        task.busy = True
        try:
            wait_us = task.turn(self.flow.monotonic_us())
            task.next_us = self.flow.monotonic_us() + max(wait_us, 1)
        except Crash:
            self.end(process)
        finally:
            task.busy = False

    def stand_still(self, process: Process, us: int, *, whole: bool) -> None:
        """Let time pass in the middle of a step, for the task alone or, with *whole*, for its whole process."""
        end_us = min(self.flow.monotonic_us() + us, self._latest_us)
        if whole:
            process.still_until_us = max(process.still_until_us, end_us)
        outer, self._latest_us = self._latest_us, end_us
        try:
            self.run(end_us)
        finally:
            self._latest_us = outer
        if not process.alive:
            raise Crash
