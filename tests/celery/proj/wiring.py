"""The composition root of the test app: settings from environment variables."""
import os
from functools import cache

from chrono_beat.core.callback import HttpTarget, encode_secret
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
        reap_cap=int(os.environ.get("CHRONO_TEST_REAP_CAP", 5)),
        no_worker_after=float(os.environ.get("CHRONO_TEST_NO_WORKER_AFTER", 600)),
        lanes=int(os.environ.get("CHRONO_TEST_LANES", 1)),
        http_allowed_addresses=("127.0.0.0/8",),
        allowed_tasks=tuple(os.environ.get("CHRONO_TEST_ALLOWED_TASKS", "*").split()),
    )


def http_target(job_id, execution_id):
    """Return the target of jobs whose id ends in a port: a server of the test's."""
    port = job_id.rpartition("-")[2]
    if not port.isdecimal():
        return None
    return HttpTarget(url=f"http://127.0.0.1:{port}/{job_id}", body='{"of": "the database"}', timeout_seconds=5,
                      headers='{"Authorization": "Bearer s3cret-s3cret"}', secrets=(encode_secret(b"secret"),))


@cache
def queue():
    return RedisQueueStore(config().redis_url, config())
