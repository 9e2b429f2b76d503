"""The world of the services' tests, on Django's tables: one virtual clock for database, dispatchers and workers."""
import json

from chrono_beat.core import ids
from chrono_beat.redis.queue import RedisQueueStore
from chrono_beat.services.recorder import Recorder
from chrono_beat_django.store import DjangoJobStore, sqlite_sql
from tests.services.world import SECOND, World, us


class TableWorld(World):
    """Each body notes the plan that its arguments name.

    Args:
        start: what the servers' clocks show at the beginning.
        monkeypatch: of the test.
        redis_url: of an empty database on a real Redis; None for a queue in memory.
    """

    def __init__(self, start, monkeypatch, redis_url=None):
        super().__init__(start, look_ahead_every=1)
        self.store = DjangoJobStore()
        if redis_url is not None:
            self.queue = SteppedRedis(redis_url, self.config, self.flow)
            self._watch_publishes()
        self.recorder = Recorder(self.store, self.queue, self.flow, self.config, reader="r", chance=lambda: 0.5)
        monkeypatch.setattr(sqlite_sql, "time", type("Time", (), {"time_ns": staticmethod(
            lambda: self.flow.wall_us() * 1000)}))
        self.working = False
        self.begun = []                        # (seconds from nine o'clock of the occurrence, plan)

    def begin(self, lane, delivery):
        super().begin(lane, delivery)
        _, kwargs, _ = json.loads(json.loads(delivery.payload)["body"])
        at = ids.parse_execution_id(delivery.execution_id).scheduled_us
        self.begun.append((round((at - us()) / SECOND), kwargs["plan"]))


class SteppedRedis(RedisQueueStore):
    """A real Redis whose lanes show what the world's clock shows, and where nobody waits."""

    unavailable, lanes = False, {}               # what the world asks of a queue in memory

    def __init__(self, url, config, flow):
        super().__init__(url, config)
        self._flow = flow

    def now_us(self):
        return self._flow.wall_us()

    def _set_clock(self, lane):
        off_us = self._flow.wall_us() - super().now_us()
        self._connection.client.hset(self.keys.meta(lane), "clock_offset_us", off_us)

    def _run(self, name, lane, *args):
        self._set_clock(lane)
        return super()._run(name, lane, *args)

    def _run_together(self, lane, calls):
        self._set_clock(lane)
        return super()._run_together(lane, calls)

    def lane_state(self, lane):
        self._set_clock(lane)
        return super().lane_state(lane)

    def wait_for_work(self, lanes, pools, worker, timeout_seconds):
        return []
