"""The composition root of the test app: settings from environment variables."""
import os
from functools import cache

from chrono_beat.core.config import Config
from chrono_beat.redis.queue import RedisQueueStore


@cache
def config():
    return Config(
        redis_url=os.environ["CHRONO_TEST_URL"],
        key_prefix=os.environ["CHRONO_TEST_PREFIX"],
        lease_ttl=float(os.environ.get("CHRONO_TEST_LEASE_TTL", 60)),
        renew_every=float(os.environ.get("CHRONO_TEST_RENEW_EVERY", 20)),
        stop_grace=float(os.environ.get("CHRONO_TEST_STOP_GRACE", 30)),
        start_window=float(os.environ.get("CHRONO_TEST_START_WINDOW", 2)),
        lanes=int(os.environ.get("CHRONO_TEST_LANES", 1)),
    )


@cache
def queue():
    return RedisQueueStore(config().redis_url, config())
