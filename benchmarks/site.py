"""A whole deployment on this machine: servers of its own, dispatchers and Celery workers in real processes.

System tests and the chaos benchmark both stand on it; what they put in and how they judge is theirs.
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

from chrono_beat.testing.patience import eventually
from chrono_beat.testing.servers import PostgresServer, RedisServer

ROOT = Path(__file__).resolve().parents[1]
PARTITIONS = 64
DATABASE = "site"
START_SECONDS = 60
STOP_SECONDS = 30
TAIL_CHARACTERS = 2500


class Process:
    """A process of the deployment; what it says goes to a file. It leads a process group of its own.

    Args:
        name: for people, and for its file.
        command: what follows the name of the Python.
        environment: of the process.
        log: the file; added to where it exists.
        directory: where it runs.
    """

    def __init__(self, name, command, environment, log, directory):
        self.name, self.log = name, log
        self._began = time.monotonic()
        with log.open("ab") as out:
            self.popen = subprocess.Popen(
                [sys.executable, *command], cwd=directory, env=environment, stdout=out, stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def age_seconds(self):
        return time.monotonic() - self._began

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

    def rss_mb(self):
        """Return its resident memory, in megabytes."""
        pages = int(Path(f"/proc/{self.popen.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def signal(self, number):
        self.popen.send_signal(number)

    def signal_all(self, number):
        """Send a signal to the process and to all its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, number)

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

    def kill_all(self):
        """End it and all its children, as the loss of a machine would."""
        self.signal_all(signal.SIGKILL)
        self.popen.wait(STOP_SECONDS)


class Deployment:
    """A PostgreSQL and a Redis, migrated, and what runs on them; `close` ends it all.

    Args:
        app: the Celery app, as after ``celery -A``.
        directory: where its processes run.
        postgres: further settings of postgresql.conf.
    """

    worker_options = ()
    """What a worker is started with beside its name and its pool."""

    def __init__(self, app, directory, postgres=None):
        self.app, self.root = app, directory
        self._stack = contextlib.ExitStack()
        self.directory = Path(tempfile.mkdtemp(prefix="chrono-beat-site-"))
        self._stack.callback(shutil.rmtree, self.directory, ignore_errors=True)
        self.processes = []
        self._numbers = itertools.count(1)
        try:
            self.redis = self._stack.enter_context(RedisServer())
            self.postgres = self._stack.enter_context(PostgresServer(fsync=False, options=postgres))
            # Kept connections, as a busy site has them; a new one for each task costs more than the task.
            self.database = {
                **self.postgres.create_database(DATABASE), "CONN_MAX_AGE": 600, "CONN_HEALTH_CHECKS": True}
            self.environment = {
                **os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join([str(directory), str(ROOT)]),
                **self.variables(),
            }
            subprocess.run([sys.executable, "-m", "django", "migrate", "-v", "0"], cwd=directory, env=self.environment,
                           check=True)
        except BaseException:
            self._stack.close()
            raise

    def variables(self):
        """Return further variables of its processes' environment; called when the servers run."""
        return {}

    def close(self):
        """End everything that belongs to the deployment."""
        for process in self.processes:
            process.signal_all(signal.SIGCONT)
            process.kill_all()
        self._stack.close()

    # -- processes --------------------------------------------------------------------------------------------------

    def celery(self, name, *arguments, **environment):
        """Start ``celery -A <app> …``.

        Args:
            name: of the process.
            arguments: what follows the app.
            environment: further variables of its environment.
        """
        process = Process(name, ["-m", "celery", "-A", self.app, *arguments], {**self.environment, **environment},
                          self.directory / f"{name}.log", self.root)
        self.processes.append(process)
        return process

    def start_worker(self, pool="prefork", children=4, **environment):
        """Start a worker; returns at once."""
        name = f"worker{next(self._numbers)}"
        return self.celery(
            name, "worker", "-P", pool, "-c", str(children), "-l", "INFO", "-n", f"{name}@%h", "--without-gossip",
            "--without-mingle", "--without-heartbeat", *self.worker_options, **environment)

    def start_dispatcher(self, **environment):
        """Start a dispatcher with all services; returns at once."""
        name = f"dispatcher{next(self._numbers)}"
        return self.celery(name, "chrono", "run", "--name", name, **environment)

    def named(self, kind):
        """Return the processes that live and whose name begins so."""
        return [process for process in self.processes if process.name.startswith(kind) and process.alive]

    def tails(self):
        """Return the last words of every process."""
        return "\n".join(f"--- {p.name} ({p.popen.poll()})\n{p.told()[-TAIL_CHARACTERS:]}" for p in self.processes)

    # -- the database -----------------------------------------------------------------------------------------------

    def sql(self, statement, *parameters):
        """Run a statement; returns its rows as dicts."""
        with psycopg.connect(self.postgres.dsn_of(DATABASE), row_factory=dict_row) as connection:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def owners(self):
        """Return {owner: number of partitions} of the leases that count; empty while a partition has no owner."""
        rows = self.sql("SELECT owner FROM chrono_partition WHERE owner <> '' AND expires_at > clock_timestamp()")
        assert len(rows) <= PARTITIONS
        counts = Counter(row["owner"] for row in rows)
        return counts if sum(counts.values()) == PARTITIONS else Counter()


def lines_of(path):
    """Return the JSON objects of a file that processes append lines to; a line cut off by a kill is left out."""
    found = []
    for line in path.read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found
