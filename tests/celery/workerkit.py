"""What the tests of the worker need: a place in Redis, messages for it, worker processes, and patience with bounds."""
import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import redis
from celery import Celery

from chrono_beat.celery import ChronoBeat
from chrono_beat.core import ids
from chrono_beat.core.config import Config
from chrono_beat.core.records import PUBLISHED, PublishItem
from chrono_beat.redis.queue import RedisQueueStore
from chrono_beat.testing.patience import eventually

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 30
STOP_SECONDS = 15
MINUTE_US = 60_000_000
_numbers = itertools.count(1)


def message(eid, task, args, kwargs, *, tenant, retries=0, time_limit=None, soft_limit=None, **properties):
    """Return a protocol-2 Celery message as the publisher writes it."""
    parts = ids.parse_execution_id(eid)
    key = ids.occurrence_key(parts.job_id, parts.scheduled_us)
    instant = ids.format_instant(parts.scheduled_us)
    header = {
        "eid": eid, "job": parts.job_id, "name": "name of " + parts.job_id, "tenant": tenant, "scheduled_at": instant,
        "due_at": instant, "attempt": parts.attempt, "key": key, "pool": "chrono", "kind": "schedule", "v": 1,
    }
    return json.dumps({
        "body": json.dumps([args, kwargs, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]),
        "content-encoding": "utf-8", "content-type": "application/json",
        "headers": {"lang": "py", "task": task, "id": key, "root_id": key, "parent_id": None, "group": None,
                    "retries": retries, "timelimit": [time_limit, soft_limit],
                    "argsrepr": repr(args), "kwargsrepr": repr(kwargs),
                    "eta": None, "expires": None, "origin": "test", "ignore_result": False, "chrono": header},
        "properties": {"correlation_id": key, "reply_to": "", "priority": 4, **properties},
    }).encode()


class Site:
    """A prefix and a broker of its own on a Redis server.

    Args:
        server: a RedisServer.
        settings: of Config, for the workers too: lease_ttl, renew_every, lanes.
    """

    def __init__(self, server, **settings):
        number = next(_numbers)
        self.url, self.broker = server.url_of(2), server.url_of(3 + number % 60)
        self.prefix = f"site{number}-{os.getpid()}"
        self.config = Config(redis_url=self.url, key_prefix=self.prefix, **settings)
        self.queue = RedisQueueStore(self.url, self.config)
        self.redis = redis.Redis.from_url(self.url, decode_responses=True)
        redis.Redis.from_url(self.broker).flushdb()
        for lane in range(self.config.lanes):
            self.queue.open_lane(lane, 1, self.queue.lane_state(lane).replication_id, 0)
        self._outcomes = []
        self._jobs = itertools.count(1)
        self.workers = []

    @property
    def environment(self):
        # Without Django: nothing in chrono_beat needs it, and Celery would set it up where its settings are named.
        inherited = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
        return {
            **inherited, "PYTHONPATH": str(ROOT), "CHRONO_TEST_URL": self.url, "CHRONO_TEST_BROKER": self.broker,
            "CHRONO_TEST_PREFIX": self.prefix, "CHRONO_TEST_LEASE_TTL": str(self.config.lease_ttl),
            "CHRONO_TEST_RENEW_EVERY": str(self.config.renew_every), "CHRONO_TEST_LANES": str(self.config.lanes),
            "CHRONO_TEST_STOP_GRACE": str(self.config.stop_grace),
            "CHRONO_TEST_START_WINDOW": str(self.config.start_window),
            "CHRONO_TEST_REAP_CAP": str(self.config.reap_cap), "CHRONO_TEST_NO_WORKER_AFTER": str(self.config.no_worker_after),
        }

    def worker(self, pool="prefork", concurrency=2, *options, queues="chrono,celery", wait=True, **environment):
        """Start a worker and wait until it draws; with ``wait=False`` call its ``ready`` later."""
        worker = Worker(self, pool, concurrency, options, queues, environment)
        self.workers.append(worker)
        return worker.ready() if wait else worker

    def publish(self, task, *args, tenant="acme", pool="chrono", job=None, attempt=1, retries=0, concurrency="forbid",
                raw=None, time_limit=None, soft_limit=None, reply=PUBLISHED, scheduled_us=None, kind="schedule", **kwargs):
        """Publish one execution that is due; returns its id. *raw* is another payload, or makes one of the right one."""
        now_us = self.queue.now_us()
        job = job or f"job{next(self._jobs)}"
        eid = ids.execution_id(job, scheduled_us or now_us // 1_000_000 * 1_000_000, attempt)
        name = task if "." in task or "_" in task and task == "slow_late" else f"tests.celery.proj.{task}"
        payload = message(eid, name, list(args), kwargs, tenant=tenant, retries=retries, time_limit=time_limit,
                                 soft_limit=soft_limit)
        if raw is not None:
            payload = raw(payload) if callable(raw) else raw
        item = PublishItem(eid, job, tenant, 1, attempt, kind, pool, 4, now_us - 1000, None, concurrency, payload)
        lane = ids.lane_of(tenant, self.config.lanes)
        result = self.queue.publish(lane, 1, now_us + MINUTE_US, [item])
        assert list(result.replies) == [reply], result
        return eid

    def sender(self):
        """Return an app that sends to this site's workers, as a web process would."""
        app = Celery("sender", broker=self.broker, backend=self.broker, set_as_current=False)
        ChronoBeat(app)._root = SimpleNamespace(
            config=lambda: self.config, queue=lambda: self.queue)
        return app

    def outcomes(self, eid=None):
        """Return the outcomes so far, of all or of one execution, in order."""
        for lane in range(self.config.lanes):
            found = self.queue.read_outcomes(lane, "test", 60_000_000, 1000) or []
            self.queue.acknowledge(lane, found)
            self._outcomes += found
        return [outcome for outcome in self._outcomes if eid in (None, outcome.execution_id)]

    def events(self, eid):
        return [outcome.event for outcome in self.outcomes(eid)]

    def ending(self, eid, seconds=10.0):
        """Wait for the outcome that ends an execution."""
        def ends():
            return [outcome for outcome in self.outcomes(eid) if outcome.event != "started"]

        return eventually(ends, seconds, what=f"an ending of {eid}")[0]

    def journal(self, event=None, **facts):
        """Return what bodies noted."""
        notes = [json.loads(text) for text in self.redis.lrange(f"{self.prefix}-journal", 0, -1)]
        wanted = {"event": event, **facts} if event else facts
        return [note for note in notes if all(note.get(key) == value for key, value in wanted.items())]

    def stop(self, eid, why="cancel", token=None):
        """Tell the worker that runs an execution to stop it; returns the token that it has."""
        def starts():
            return [outcome for outcome in self.outcomes(eid) if outcome.event == "started"]

        started = eventually(starts, what=f"a start of {eid}")[-1]
        text = json.dumps({"stop": eid, "token": token or started.token, "why": why})
        self.queue.wake_worker(started.worker, [0], text)
        return started.token

    def marker(self, eid, lane=0):
        """Return what Redis knows of an execution."""
        script = "local x = redis.call('GET', KEYS[1]); return x and cjson.encode(cmsgpack.unpack(x))"
        found = self.redis.eval(script, 1, f"{self.prefix}:{{{lane}}}:x:{eid}")
        return json.loads(found) if found else {}

    def leases(self):
        return sum(self.redis.zcard(f"{self.prefix}:{{{lane}}}:lease") for lane in range(self.config.lanes))

    def begun(self, name, seconds=10.0, times=1):
        """Wait until a body noted its beginning."""
        return eventually(lambda: len(self.journal("begin", name=name)) >= times and self.journal("begin", name=name),
                          seconds, what=f"begin of {name}")

    def close(self):
        for worker in self.workers:
            worker.kill()
            print(f"--- end of the log of {worker.name}\n{worker.text()[-3000:]}")      # pytest shows it for a failed test
            worker.log.unlink()
        keys = list(self.redis.scan_iter(f"{self.prefix}*", count=1000))
        if keys:
            self.redis.delete(*keys)
        self.queue.close()
        self.redis.close()


class Worker:
    """A ``celery worker`` process."""

    def __init__(self, site, pool, concurrency, options, queues, environment):
        self.site, self.pool = site, pool
        self.name = f"w{next(_numbers)}@test"
        self.log = Path(f"/tmp/{site.prefix}-{self.name}.log")
        command = [sys.executable, "-m", "celery", "-A", "tests.celery.proj", "worker", "-P", pool, "-n", self.name,
                   "-l", "INFO", "--without-gossip", "--without-mingle", "-E", *options]
        if not any(option.startswith("--autoscale") for option in options):
            command += ["-c", str(concurrency)]
        if queues:
            command += ["-Q", queues]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=site.environment | environment, stdout=self.log.open("wb"), stderr=subprocess.STDOUT,
            start_new_session=True)
        self.pid = self.process.pid

    def ready(self):
        """Wait until it draws."""
        eventually(self._draws, START_SECONDS, what=f"start of {self.name}")
        return self

    def _draws(self):
        assert self.process.poll() is None, self.text()
        return " ready." in self.text() and self.report() is not None

    def report(self):
        return next((r for r in self.site.queue.workers() if r.worker.startswith(self.name + "#")), None)

    def text(self):
        return self.log.read_text(errors="replace")

    def stats(self, timeout=5):
        """Return what ``inspect stats`` tells of chrono_beat.

        Over a connection of its own: all apps of one broker URL share kombu's pool of connections, and those that lie in it
        may have been cut by what another test did to Redis.
        """
        app = Celery("client", broker=self.site.broker)
        with app.connection() as connection:
            found = app.control.inspect(destination=[self.name], timeout=timeout, connection=connection).stats()
        return found[self.name]["chrono_beat"]

    def signal(self, number):
        os.kill(self.pid, number)

    def children(self):
        found = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [int(pid) for pid in found]

    def wait(self, seconds=STOP_SECONDS):
        """Wait for its end; returns the exit status."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} does not end:\n{self.text()[-3000:]}") from None

    def kill(self):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()

    def tracebacks(self):
        return re.findall(r"^Traceback.*", self.text(), re.MULTILINE)
