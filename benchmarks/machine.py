"""What a benchmark runs on: servers of its own, dispatchers in processes of their own, and the CPU that each used."""
from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

PARTITIONS = 64
_TICKS = os.sysconf("SC_CLK_TCK")
STOP_SECONDS = 10.0


class Machine:
    """PostgreSQL, Redis and dispatchers, started for one run and gone with it.

    Args:
        stack: ends them all.
        settings: further settings of ``CHRONO_BEAT``.
    """

    def __init__(self, stack: ExitStack, **settings: object) -> None:
        from chrono_beat.testing.servers import PostgresServer, RedisServer

        self.redis = stack.enter_context(RedisServer(options={"stream-node-max-bytes": 1024}))
        # Durable as in production. Commits are dated, so that the rate of claims is read afterwards and nobody has to
        # count rows while they are written.
        self.postgres = stack.enter_context(PostgresServer(options={
            "shared_buffers": "1GB", "max_wal_size": "4GB", "track_commit_timestamp": "on"}))
        os.environ.update(
            BENCHMARK_DATABASE=json.dumps(self.postgres.create_database("bench")),
            BENCHMARK_REDIS_URL=self.redis.url,
            BENCHMARK_CHRONO_BEAT=json.dumps({"PARTITIONS": PARTITIONS, **settings}),
            DJANGO_SETTINGS_MODULE="benchmarks.settings",
        )
        self._dispatchers: list[subprocess.Popen[bytes]] = []
        stack.callback(self._stop)

    def start_dispatchers(self, count: int) -> None:
        """Start dispatcher processes; returns at once."""
        command = [sys.executable, "-m", "benchmarks.dispatcher", "dispatch"]
        self._dispatchers += [subprocess.Popen(command) for _ in range(count)]

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU seconds that each part has used so far, and the time as ``at``."""
        return {
            "postgres": cpu_seconds(self.postgres.pid, children=True), "redis": cpu_seconds(self.redis.pid),
            "dispatchers": sum(cpu_seconds(process.pid) for process in self._dispatchers), "at": time.time(),
        }

    def dispatchers_rss_mb(self) -> list[float]:
        """Return the resident memory of each dispatcher."""
        pages = [int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) for process in self._dispatchers]
        return [round(count * os.sysconf("SC_PAGE_SIZE") / 1e6, 1) for count in pages]

    def _stop(self) -> None:
        for process in self._dispatchers:
            process.terminate()
        for process in self._dispatchers:
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def cpu_seconds(pid: int | None, *, children: bool = False) -> float:
    """Return what a process has used so far; with its children, those included that have ended."""
    if pid is None:
        return 0.0
    fields = _stat(pid)
    ticks = sum(map(int, fields[11:15 if children else 13]))
    if children:
        for other in Path("/proc").iterdir():
            if other.name.isdigit() and (found := _stat(int(other.name))) and int(found[1]) == pid:
                ticks += int(found[11]) + int(found[12])
    return ticks / _TICKS


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat from the state on: the parent is [1], utime [11], stime, cutime, cstime."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:                                        # it has ended in the meantime
        return []


def shares(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Return the CPU seconds used in between, and the length of that span as ``wall``."""
    used = {name: round(after[name] - before[name], 2) for name in before if name != "at"}
    return {**used, "wall": round(after["at"] - before["at"], 2)}


def yardstick() -> dict[str, float]:
    """Return what a fixed piece of Python takes here and now, in ms: the machine beside which the figures stand.

    Where ``wall`` is well above ``cpu``, other processes had the cores.
    """
    wall, cpu = time.perf_counter(), time.process_time()
    sum(number * number for number in range(2_000_000))
    spent = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
    return {name: round(seconds * 1000) for name, seconds in spent.items()}
