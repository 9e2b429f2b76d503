"""The two connections to Redis of a process: an ordinary one, and one for calls that block.

A call that blocks for 5 s needs a socket that waits longer; an ordinary call that takes 10 s is taken for broken. Without
any limit a half-open connection would stop draws or renewals for ever. Where somebody waits for the call (a request, a
page, a command) it may take 2 s only, and after one that was not answered the next ones are refused at once (``silence.py``).
redis-py's own retries are off: after an error nobody knows whether a draw ran, and a second one would take more work than
the worker has room for.
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
from chrono_beat.redis.silence import Silence

BLOCK_SECONDS = 5.0
BLOCKING_TIMEOUT_SECONDS = 15.0
TIMEOUT_SECONDS = 10.0
CONNECT_TIMEOUT_SECONDS = 5.0
PROMPT_TIMEOUT_SECONDS = 2.0     # where somebody waits: far above what any call takes, and a lost packet is sent again within 1 s
IDLE_CHECK_SECONDS = 30          # a connection idle for longer is tried with a PING before it is used

# What says "not now" rather than "wrong": a broken connection; a server that loads, fails over, is a replica, is full.
UNAVAILABLE = (
    exceptions.ConnectionError, exceptions.TimeoutError, exceptions.BusyLoadingError, exceptions.ReadOnlyError,
    exceptions.OutOfMemoryError, exceptions.ClusterDownError, exceptions.MasterDownError,
)


def _settings(socket_timeout: float, connect_timeout: float) -> dict[str, Any]:
    return {
        "decode_responses": False, "protocol": 2, "socket_timeout": socket_timeout,
        "socket_connect_timeout": connect_timeout, "health_check_interval": IDLE_CHECK_SECONDS,
        "retry": Retry(NoBackoff(), 0), "retry_on_error": [], "retry_on_timeout": False,
    }


class Connection:
    """Clients of one Redis.

    Args:
        url_or_client: a URL, or a ``redis.Redis`` whose connection settings are taken over.
        silence: where somebody waits for the calls: for how long nobody asks after one that was not answered; None for
            processes that wait themselves.
    """

    client: redis.Redis
    blocking: redis.Redis

    def __init__(self, url_or_client: Any, silence: Silence | None = None) -> None:
        self._source = url_or_client
        self._silence = silence
        self.open()

    def open(self) -> None:
        """Make new clients; connections are made by the first call. In a forked child the parent's are left alone."""
        self.client = redis.Redis(connection_pool=self._pool(
            TIMEOUT_SECONDS if self._silence is None else PROMPT_TIMEOUT_SECONDS))
        self.blocking = redis.Redis(connection_pool=self._pool(BLOCKING_TIMEOUT_SECONDS))

    def close(self) -> None:
        """Close all connections."""
        self.client.connection_pool.disconnect()
        self.blocking.connection_pool.disconnect()

    @contextmanager
    def reaching(self) -> Iterator[None]:
        """Turn what says "not now" into QueueUnavailable; each call goes through this."""
        if self._silence is not None:
            self._silence.check()
        try:
            yield
        except UNAVAILABLE as error:
            if self._silence is not None:
                (self._silence.begin if isinstance(error, exceptions.TimeoutError) else self._silence.end)()
            raise QueueUnavailable(f"Redis: {error}") from error
        if self._silence is not None:
            self._silence.end()

    def _pool(self, socket_timeout: float) -> redis.ConnectionPool:
        settings = _settings(socket_timeout, min(socket_timeout, CONNECT_TIMEOUT_SECONDS))
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
