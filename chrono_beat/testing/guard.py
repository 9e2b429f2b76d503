"""Run one server as a child and make sure that it does not outlive whoever asked for it.

`start` runs this file as a script: standard library only, a single thread, no site packages, so that it is up
in some 20 ms. The rule: the server lives no longer than the guard, the guard no longer than the process that started
it, whichever way that one ends, ``kill -9`` included.

Two simpler ways fall short. ``PR_SET_PDEATHSIG``, set on a direct child, fires when the *thread* that started the
server ends, and Python code cannot run safely between fork and exec of a process with threads; here there is one
thread.
``atexit`` and signal handlers do not run on ``kill -9``, and handlers get in the way of those under test.

The guard learns of its parent's end from the pipe on its standard input (at once) and from its parent's process id
(within half a second, for when a forked sibling holds the pipe open). Where there is no ``PR_SET_PDEATHSIG`` (not
Linux), a guard that is itself killed by ``kill -9`` leaves the server behind.

Its one argument is a JSON object: ``command``, ``parent`` (process id), ``user`` (or null), the signals ``stop`` and
``death`` (sent if the guard dies), ``grace`` (seconds until SIGKILL), ``remove`` (a directory, or null). It writes the
server's process id as one line to standard output, stops the server on SIGTERM, and ends with its status.
"""

import ctypes
import json
import os
import pwd
import select
import shutil
import signal
import sys
import time
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

PARENT_CHECK_SECONDS = 0.5
PR_SET_PDEATHSIG = 1


def start(
    command: list[str],
    *,
    log: IO[bytes],
    grace_seconds: float,
    stop: int = signal.SIGTERM,
    death: int = signal.SIGKILL,
    user: str | None = None,
    remove: "Path | None" = None,
    directory: str | os.PathLike[str] = "/",
) -> "subprocess.Popen[bytes]":
    """Start a command under a guard of its own.

    Args:
        command: an absolute path and its arguments.
        log: where its output goes.
        grace_seconds: how long it may take to stop before it is ended with SIGKILL, and all of its session with it.
        stop: the signal that asks it to stop.
        death: the signal that it gets when the guard dies.
        user: whose it is; None for the present one.
        remove: a directory that goes when the caller is gone.
        directory: where it runs.

    Returns:
        The guard: SIGTERM stops the command, and its standard output has the command's process id as a line.
    """
    import subprocess  # here, because the script has no use for it and is to be up soon

    order = {
        "command": command,
        "parent": os.getpid(),
        "user": user,
        "stop": stop,
        "death": death,
        "grace": grace_seconds,
        "remove": None if remove is None else str(remove),
    }
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, json.dumps(order)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        cwd=directory,
        start_new_session=True,
    )


def spawn(command: list[str], user: str | None, death_signal: int) -> int:
    """Fork and execute *command* as *user*, in a session of its own; returns the process id."""
    guard_pid = os.getpid()
    # Loaded before the change of user, who may not be able to read this Python's library.
    libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        for ignored in (signal.SIGINT, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_DFL)
        if user is not None:
            entry = pwd.getpwnam(user)
            os.setgroups([])
            os.setgid(entry.pw_gid)
            os.setuid(entry.pw_uid)
        # After the change of user, which would clear it.
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
            if os.getppid() != guard_pid:
                os._exit(1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(2, 1)
        os.execv(command[0], command)
    except BaseException as error:
        os.write(2, f"{command[0]}: {error}\n".encode())
    os._exit(127)


def stop(pid: int, stop_signal: int, grace_seconds: float) -> int:
    """Ask the server to stop, then insist; returns its wait status."""
    os.kill(pid, stop_signal)
    os.kill(pid, signal.SIGCONT)  # a paused server would not hear of it
    deadline = time.monotonic() + grace_seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.01)
    os.killpg(pid, signal.SIGKILL)  # its children would lose who looks after them
    return os.waitpid(pid, 0)[1]


def main(order: dict[str, Any]) -> int:
    """Watch over the server until it ends, is to be stopped, or nobody is left who needs it."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    stopping: list[bool] = []
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    orphaned = os.getppid() != order["parent"]
    if orphaned:
        return 1
    pid = spawn(order["command"], order["user"], order["death"])
    os.write(1, f"{pid}\n".encode())

    ended, status = 0, 0
    while not (ended or stopping or orphaned):
        readable = select.select([0, wake_read], [], [], PARENT_CHECK_SECONDS)[0]
        if wake_read in readable:
            os.read(wake_read, 512)
        orphaned = (0 in readable and not os.read(0, 1)) or os.getppid() != order["parent"]
        ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        status = stop(pid, order["stop"], order["grace"])
    if orphaned and order["remove"]:
        shutil.rmtree(order["remove"], ignore_errors=True)
    return abs(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
