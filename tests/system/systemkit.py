"""What the tests of whole systems need: the example project on servers of its own, its processes, and two witnesses.

The witnesses know nothing of each other: the rows of executions in the database, and the lines that the tasks' bodies
write when they start. `Site.judge` holds the one against the other and both against what the schedules say.
"""
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psycopg
from psycopg.rows import dict_row

from chrono_beat.core import ids
from chrono_beat.testing.servers import PostgresServer, RedisServer

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "example_project"
PARTITIONS = 64
OPEN = ("scheduled", "queued", "running")
START_SECONDS = 60
STOP_SECONDS = 30
TAIL_CHARACTERS = 2500


def eventually(check, seconds=10.0, step=0.05, what=""):
    """Return the first true value of *check*; fail when the time is over."""
    deadline = time.monotonic() + seconds
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what or check}; last value {value!r}")
        time.sleep(step)


class Process:
    """A process of the example project; what it says goes to a file.

    Args:
        name: for people, and for its file.
        command: what follows the name of the Python.
        environment: of the process.
        log: the file.
    """

    def __init__(self, name, command, environment, log):
        self.name, self.log = name, log
        with log.open("wb") as out:
            self.popen = subprocess.Popen(
                [sys.executable, *command], cwd=EXAMPLE, env=environment, stdout=out, stderr=subprocess.STDOUT,
            )

    @property
    def alive(self):
        return self.popen.poll() is None

    def told(self):
        """Return everything that it has said."""
        return self.log.read_text(errors="replace")

    def says(self, text, seconds=START_SECONDS):
        """Wait until it has said something."""
        def said():
            assert self.alive, f"{self.name} ended with {self.popen.poll()}:\n{self.told()[-TAIL_CHARACTERS:]}"
            return text in self.told()

        eventually(said, seconds, what=f"{self.name} says {text!r}")
        return self

    def signal(self, number):
        self.popen.send_signal(number)

    def stop(self):
        """Ask it to end and wait for that; returns its exit status."""
        if self.alive:
            self.popen.terminate()
        return self.popen.wait(STOP_SECONDS)

    def kill(self):
        """End it as a crash would."""
        if self.alive:
            self.popen.kill()
            self.popen.send_signal(signal.SIGCONT)
        self.popen.wait(STOP_SECONDS)


class Job:
    """A job that a test has defined.

    Args:
        id: its id.
        first: its first instant, in seconds since the epoch.
        every: seconds between two; None for a one-off.
    """

    def __init__(self, id, first, every):
        self.id, self.first, self.every = id, first, every

    def instants(self, until):
        """Return what the schedule names up to an instant, in microseconds since the epoch."""
        if self.every is None:
            return [round(self.first * 1e6)]
        return [round((self.first + number * self.every) * 1e6)
                for number in range(max(0, int((until - self.first) // self.every) + 1))]


class Site:
    """The example project on a PostgreSQL and a Redis of its own, migrated."""

    def __init__(self):
        self._stack = contextlib.ExitStack()
        self.directory = Path(tempfile.mkdtemp(prefix="chrono-beat-site-"))
        self._stack.callback(shutil.rmtree, self.directory, ignore_errors=True)
        self.redis = self._stack.enter_context(RedisServer())
        self.postgres = self._stack.enter_context(PostgresServer(fsync=False))
        self.worker_log = self.directory / "started.jsonl"
        self.worker_log.touch()
        self.environment = {
            **os.environ, "DJANGO_SETTINGS_MODULE": "tests.system.short_leases",
            # Kept connections, as a busy site has them; a new one for each task costs more than the task.
            "EXAMPLE_DATABASE": json.dumps({
                **self.postgres.create_database("site"), "CONN_MAX_AGE": 600, "CONN_HEALTH_CHECKS": True}),
            "EXAMPLE_REDIS_URL": self.redis.url.rsplit("/", 1)[0], "EXAMPLE_STATE_DIR": str(self.directory),
            "EXAMPLE_WORKER_LOG": str(self.worker_log), "PYTHONPATH": os.pathsep.join([str(EXAMPLE), str(ROOT)]),
            "PYTHONUNBUFFERED": "1",
        }
        self.processes = []
        self._numbers = itertools.count(1)
        self._desk = None
        subprocess.run([sys.executable, "manage.py", "migrate", "-v", "0"], cwd=EXAMPLE, env=self.environment, check=True)

    def close(self):
        """End everything that belongs to the site."""
        for process in self.processes:
            process.kill()
        if self._desk is not None:
            self._desk.stdin.close()
            self._desk.wait(STOP_SECONDS)
            self._desk.stdout.close()
        self._stack.close()

    # -- processes --------------------------------------------------------------------------------------------------

    def celery(self, name, *arguments):
        """Start ``celery -A example …``."""
        process = Process(name, ["-m", "celery", "-A", "example", *arguments], self.environment,
                          self.directory / f"{name}.log")
        self.processes.append(process)
        return process

    def worker(self):
        """Start a worker with four children and wait until it is ready."""
        name = f"worker{next(self._numbers)}"
        return self.celery(
            name, "worker", "-P", "prefork", "-c", "4", "-l", "INFO", "-n", f"{name}@%h", "--without-gossip",
            "--without-mingle", "--without-heartbeat",
        ).says(" ready.")

    def dispatchers(self, count):
        """Return that many dispatchers that run and share the partitions; starts and stops what is needed for it."""
        alive = [process for process in self.processes if process.name.startswith("dispatcher") and process.alive]
        for surplus in alive[count:]:
            surplus.stop()
        alive = alive[:count]
        while len(alive) < count:
            name = f"dispatcher{next(self._numbers)}"
            alive.append(self.celery(name, "chrono", "run", "--name", name))
        self.shared_by(alive)
        return alive

    def stop_dispatchers(self):
        """Stop all dispatchers."""
        for process in self.processes:
            if process.name.startswith("dispatcher"):
                process.stop()

    def shared_by(self, dispatchers, seconds=START_SECONDS):
        """Wait until these own all the partitions, each its share."""
        names = sorted(process.name for process in dispatchers)

        def shared():
            owned = self.owners()
            return sorted(owned) == names and max(owned.values()) - min(owned.values()) <= 1 and owned

        return eventually(shared, seconds, what=f"{names} share the partitions; they are {self.owners()}")

    def tails(self):
        """Return the last words of every process."""
        return "\n".join(f"--- {p.name} ({p.popen.poll()})\n{p.told()[-TAIL_CHARACTERS:]}" for p in self.processes)

    # -- the database -----------------------------------------------------------------------------------------------

    def sql(self, statement, *parameters):
        """Run a statement; returns its rows as dicts."""
        with psycopg.connect(self.postgres.dsn_of("site"), row_factory=dict_row) as connection:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def owners(self):
        """Return {owner: number of partitions} of the leases that count."""
        rows = self.sql("SELECT owner FROM chrono_partition WHERE owner <> '' AND expires_at > clock_timestamp()")
        assert len(rows) <= PARTITIONS
        counts = Counter(row["owner"] for row in rows)
        return counts if sum(counts.values()) == PARTITIONS else Counter()

    def rows(self, jobs):
        """Return the executions of jobs."""
        return self.sql("SELECT * FROM chrono_execution WHERE job_id = ANY(%s) ORDER BY due_at, attempt",
                        [job.id for job in jobs])

    # -- jobs -------------------------------------------------------------------------------------------------------

    def ask(self, request, **arguments):
        """Let the desk do something with jobs."""
        if self._desk is None:
            self._desk = subprocess.Popen(
                [sys.executable, "-m", "tests.system.desk"], cwd=ROOT, env=self.environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )
        self._desk.stdin.write(json.dumps([request, arguments]) + "\n")
        self._desk.stdin.flush()
        answer = json.loads(self._desk.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer["is"]

    def intervals(self, *everies):
        """Create a job for each of these intervals, in seconds; every one of their occurrences has to run."""
        made = self.ask("create", definitions=[{
            "name": f"each {every} s, number {next(self._numbers)}", "task": "shop.clean_up", "every": every,
            "concurrency": "allow", "misfire": "all",
        } for every in everies])
        return [Job(job["id"], job["anchor"] + every, every) for job, every in zip(made, everies, strict=True)]

    def one_offs(self, at, count, **others):
        """Create one-offs due at an instant."""
        names = [f"one-off {next(self._numbers)}" for _ in range(count)]
        made = self.ask("create_at", names=names, at=at.isoformat(), **{"task": "shop.clean_up", **others})
        return [Job(job["id"], at.timestamp(), None) for job in made]

    def one_offs_by_sql(self, at, count):
        """Put many one-offs into the table at once, as somebody who goes around the API would; they are planned from there.

        Their tenants take turns, so that no cap on what one of them runs holds up the rest.
        """
        made = [Job(ids.new_job_id(time.time_ns() // 1000, number), at.timestamp(), None) for number in range(count)]
        tenants = [f"crowd{number}" for number in range(4)]
        with psycopg.connect(self.postgres.dsn_of("site")) as connection, connection.cursor() as cursor:
            cursor.executemany("INSERT INTO chrono_tenant (slug) VALUES (%s) ON CONFLICT DO NOTHING",
                               [[tenant] for tenant in tenants])
            cursor.executemany(
                "INSERT INTO chrono_job (id, partition, tenant, name, task, schedule_kind, expression) "
                "VALUES (%s, %s, %s, %s, 'shop.clean_up', 'once', %s)",
                [(job.id, ids.partition_of(tenant, job.id, PARTITIONS), tenant, f"one of a crowd {number}", at.isoformat())
                 for number, job in enumerate(made) for tenant in [tenants[number % len(tenants)]]])
        return made

    def ended(self, jobs, until, seconds=30.0):
        """Wait until everything due by an instant has a row and has ended."""
        def open_or_missing():
            rows = self.sql(
                "SELECT count(*) AS made, count(*) FILTER (WHERE state = ANY(%s)) AS open FROM chrono_execution "
                "WHERE job_id = ANY(%s) AND attempt = 1 AND scheduled_at <= to_timestamp(%s)",
                list(OPEN), [job.id for job in jobs], until)[0]
            return rows["open"] or max(0, sum(len(job.instants(until)) for job in jobs) - rows["made"])

        eventually(lambda: not open_or_missing(), seconds, what="everything due has ended")

    # -- the verdict ------------------------------------------------------------------------------------------------

    def starts(self):
        """Return the lines of the workers' own log."""
        return [json.loads(line) for line in self.worker_log.read_text().splitlines()]

    def judge(self, jobs, until, forgive=""):
        """Hold rows, bodies that started and schedules against each other.

        Args:
            jobs: whose.
            until: seconds since the epoch; what is due later is left out.
            forgive: an execution may have failed with an error that contains this; "" for none may fail.

        Returns:
            Lateness of each start in seconds, with its due time, in the order of due times.
        """
        rows = [row for row in self.rows(jobs) if row["due_at"].timestamp() <= until]
        made = Counter((str(row["job_id"]), round(row["scheduled_at"].timestamp() * 1e6)) for row in rows)
        wanted = Counter((job.id, instant) for job in jobs for instant in job.instants(until))
        assert made == wanted, f"lost {wanted - made}, too many {made - wanted}"
        odd = [(row["id"], row["state"], row["reason"], row["error"][:300]) for row in rows
               if row["state"] != "succeeded" and not (forgive and row["state"] == "dead" and forgive in row["error"])]
        assert not odd, f"{len(odd)} did not succeed: {odd[:5]}"

        known = {row["id"]: row for row in self.rows(jobs)}
        theirs = {job.id for job in jobs}
        lines = [line for line in self.starts() if line["job_id"] in theirs]
        counts = Counter(line["execution_id"] for line in lines)
        assert not [key for key, count in counts.items() if count > 1], "some ran twice"
        assert not counts.keys() - known.keys(), "some ran that have no row"
        assert not [row["id"] for row in rows if not counts[row["id"]]], "some never ran, whatever their rows say"
        early = [line for line in lines if line["at"] < known[line["execution_id"]]["due_at"].timestamp()]
        assert not early, f"{len(early)} ran early: {early[:3]}"
        for row in rows:
            assert row["due_at"] <= row["started_at"] <= row["finished_at"], row
        return sorted((known[line["execution_id"]]["due_at"].timestamp(), line["at"] - line["due_at"])
                      for line in lines if line["due_at"] <= until)

    def finish(self, jobs, seconds=30.0, forgive=""):
        """Let everything end that is due by now, judge it, delete the jobs; returns what `judge` does."""
        until = time.time()
        self.ended(jobs, until, seconds)
        verdict = self.judge(jobs, until, forgive)
        self.ask("delete", ids=[job.id for job in jobs if job.every is not None])
        return verdict


def longest(verdict, since=0.0, until=float("inf")):
    """Return the longest lateness of what was due between two instants, in seconds."""
    return max((late for due, late in verdict if since <= due <= until), default=0.0)
