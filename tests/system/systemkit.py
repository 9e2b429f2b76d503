"""What the tests of whole systems need: the example project on servers of its own, its processes, and two witnesses.

The witnesses know nothing of each other: the rows of executions in the database, and the lines that the tasks' bodies
write when they start. `Site.judge` holds the one against the other and both against what the schedules say.
"""
import json
import subprocess
import sys
import time
from collections import Counter

import psycopg

from benchmarks.site import PARTITIONS, ROOT, START_SECONDS, STOP_SECONDS, Deployment, lines_of
from chrono_beat.core import ids
from chrono_beat.testing.patience import eventually

EXAMPLE = ROOT / "example_project"
OPEN = ("scheduled", "queued", "running")


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


class Site(Deployment):
    """The example project on servers of its own, with shorter leases of deliveries.

    Args:
        lease_seconds: how long such a lease lasts.
    """

    def __init__(self, lease_seconds=10.0):
        self._desk = None
        self._lease_seconds = lease_seconds
        # What was confirmed outlives a crash, as in production.
        super().__init__("example", EXAMPLE, postgres={"synchronous_commit": "on"})

    def variables(self):
        """Return what the example project reads from its environment."""
        self.worker_log = self.directory / "started.jsonl"
        self.worker_log.touch()
        return {
            "DJANGO_SETTINGS_MODULE": "tests.system.short_leases", "EXAMPLE_DATABASE": json.dumps(self.database),
            "EXAMPLE_REDIS_URL": self.redis.url.rsplit("/", 1)[0], "EXAMPLE_STATE_DIR": str(self.directory),
            "EXAMPLE_WORKER_LOG": str(self.worker_log), "CHRONO_TEST_LEASE_SECONDS": str(self._lease_seconds),
        }

    def close(self):
        """End everything that belongs to the site."""
        if self._desk is not None:
            self._desk.stdin.close()
            self._desk.wait(STOP_SECONDS)
            self._desk.stdout.close()
        super().close()

    # -- processes --------------------------------------------------------------------------------------------------

    def chrono(self, *line):
        """Run ``celery -A example chrono … --json``; returns its exit status and what it says."""
        done = subprocess.run(
            [sys.executable, "-m", "celery", "-A", self.app, "chrono", *line, "--json"], cwd=self.root, env=self.environment,
            capture_output=True, text=True, check=False, timeout=60)
        try:
            return done.returncode, json.loads(done.stdout)
        except ValueError:
            raise AssertionError((done.returncode, done.stdout[-2000:], done.stderr[-2000:])) from None

    def worker(self):
        """Start a worker with four children and wait until it is ready."""
        return self.start_worker().says(" ready.")

    def dispatchers(self, count):
        """Return that many dispatchers that run and share the partitions; starts and stops what is needed for it."""
        alive = self.named("dispatcher")
        for surplus in alive[count:]:
            surplus.stop()
        alive = alive[:count]
        while len(alive) < count:
            alive.append(self.start_dispatcher())
        self.shared_by(alive)
        return alive

    def stop_dispatchers(self):
        """Stop all dispatchers."""
        for process in self.named("dispatcher"):
            process.stop()

    def shared_by(self, dispatchers, seconds=START_SECONDS):
        """Wait until these own all the partitions, each its share."""
        names = sorted(process.name for process in dispatchers)

        def shared():
            owned = self.owners()
            return sorted(owned) == names and max(owned.values()) - min(owned.values()) <= 1 and owned

        return eventually(shared, seconds, what=f"{names} share the partitions; they are {self.owners()}")

    # -- the database -----------------------------------------------------------------------------------------------

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

    def intervals(self, *everies, task="shop.clean_up"):
        """Create a job for each of these intervals, in seconds; every one of their occurrences has to run."""
        made = self.ask("create", definitions=[{
            "name": f"each {every} s, number {next(self._numbers)}", "task": task, "every": every,
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
        """Return the lines of the workers' own log; ``at`` is this process' time, whatever clock the worker had, and
        ``wall`` that one."""
        epoch = time.time() - time.monotonic()             # of a clock that all processes share
        return [{**line, "at": epoch + line["monotonic"], "wall": line["at"]} for line in lines_of(self.worker_log)]

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
