"""Fixtures that every kind of test may use: real servers, one of each for a test process."""

import itertools
import os
import zoneinfo
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

import pytest
import redis

from chrono_beat.core.schedule import forget_shared
from chrono_beat.testing.servers import PostgresServer, RedisServer, ServerUnavailable


def started(server):
    """Start a server; where there is none, skip on a laptop and fail in continuous integration."""
    try:
        return server.start()
    except ServerUnavailable as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A real Redis. A test that stops, pauses or kills it must bring it back, or better start one of its own."""
    server = started(RedisServer())
    yield server
    server.stop()


@pytest.fixture(scope="session")
def _redis_databases(redis_server: RedisServer) -> Iterator[int]:
    # Number 0 is left alone: it is what a command without a number writes to.
    return itertools.cycle(range(1, redis_server.databases))


@pytest.fixture
def redis_url(redis_server: RedisServer, _redis_databases: Iterator[int]) -> str:
    """The URL of an empty logical database, for each test the next one: a straggler of the last writes elsewhere."""
    url = redis_server.url_of(next(_redis_databases))
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    return url


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A real PostgreSQL without fsync. Tests make databases of their own with ``create_database``."""
    server = started(PostgresServer(fsync=False))
    yield server
    server.stop()


@pytest.fixture
def release(tmp_path: Path) -> Iterator[Callable[[str, str], None]]:
    """Put a release of the zone data in place in which London has the clock of another zone.

    What has been loaded of the former one stays loaded, as in a process that lives through an update.
    """
    def change(name: str, london: str) -> None:
        folder = tmp_path / name
        (folder / "Europe").mkdir(parents=True, exist_ok=True)
        data = resources.files("tzdata").joinpath("zoneinfo", *london.split("/")).read_bytes()
        (folder / "Europe" / "London").write_bytes(data)
        if not name.startswith("nameless"):
            (folder / "tzdata.zi").write_text(f"# version {name}\n")
        zoneinfo.reset_tzpath(to=[str(folder)])

    forget_shared()
    yield change
    zoneinfo.reset_tzpath(to=())
    forget_shared()
