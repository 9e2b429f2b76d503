"""The two connections to Redis of a process: an ordinary one, and one for calls that block.

A call that blocks for 5 s needs a socket that waits longer; an ordinary call that takes 10 s is taken for broken. Without
any limit a half-open connection would stop draws or renewals for ever. redis-py's own retries are off: after an error
nobody knows whether a draw ran, and a second one would take more work than the worker has room for.
"""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from chrono_beat.core.errors import QueueUnavailable

BLOCK_SECONDS = 5.0
BLOCKING_TIMEOUT_SECONDS = 15.0
TIMEOUT_SECONDS = 10.0
CONNECT_TIMEOUT_SECONDS = 5.0
IDLE_CHECK_SECONDS = 30          # a connection idle for longer is tried with a PING before it is used

# What says "not now" rather than "wrong": a broken connection; a server that loads, fails over, is a replica, is full.
UNAVAILABLE = (
    exceptions.ConnectionError, exceptions.TimeoutError, exceptions.BusyLoadingError, exceptions.ReadOnlyError,
    exceptions.OutOfMemoryError, exceptions.ClusterDownError, exceptions.MasterDownError,
)


@contextmanager
def reaching_redis() -> Iterator[None]:
    """Turn what says "not now" into QueueUnavailable."""
    try:
        yield
    except UNAVAILABLE as error:
        raise QueueUnavailable(f"Redis: {error}") from error


def _settings(socket_timeout: float) -> dict[str, Any]:
    return {
        "decode_responses": False, "protocol": 2, "socket_timeout": socket_timeout,
        "socket_connect_timeout": CONNECT_TIMEOUT_SECONDS, "health_check_interval": IDLE_CHECK_SECONDS,
        "retry": Retry(NoBackoff(), 0), "retry_on_error": [], "retry_on_timeout": False,
    }


class Connection:
    """Clients of one Redis.

    Args:
        url_or_client: a URL, or a ``redis.Redis`` whose connection settings are taken over.
    """

    client: redis.Redis
    blocking: redis.Redis

    def __init__(self, url_or_client: Any) -> None:
        self._source = url_or_client
        self.open()

    def open(self) -> None:
        """Make new clients; connections are made by the first call. In a forked child the parent's are left alone."""
        self.client = redis.Redis(connection_pool=self._pool(TIMEOUT_SECONDS))
        self.blocking = redis.Redis(connection_pool=self._pool(BLOCKING_TIMEOUT_SECONDS))

    def close(self) -> None:
        """Close all connections."""
        self.client.connection_pool.disconnect()
        self.blocking.connection_pool.disconnect()

    def _pool(self, socket_timeout: float) -> redis.ConnectionPool:
        settings = _settings(socket_timeout)
        if isinstance(self._source, str):
            if not self._source.startswith("unix:"):
                settings["socket_keepalive"] = True
            return redis.ConnectionPool.from_url(self._source, **settings)
        pool = self._source.connection_pool
        if "service_name" in pool.connection_kwargs or hasattr(pool, "sentinel_manager"):
            return pool                                  # Sentinel's pool finds the master itself
        # Notices of maintenance, which newer clients ask for by themselves, need another protocol than ours.
        taken = {k: v for k, v in pool.connection_kwargs.items() if "maint_notifications" not in k}
        return redis.ConnectionPool(pool.connection_class, **{**taken, **settings})
