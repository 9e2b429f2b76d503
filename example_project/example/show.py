"""Start everything the example needs, show what fires, stop everything: the second half of ``demo.py``.

Order of start: Redis, database, workers, dispatcher, admin, Flower, and only then the jobs, so nothing is late only
because the demo is still starting. Order of stop: dispatcher, workers, the rest.

Nothing outlives the demo, whichever way it ends: INT, TERM and HUP (the terminal was closed) stop all in order, and each
process has a guard that stops it as soon as this one is gone, by ``kill -9`` included (``chrono_beat.testing.guard``).
"""
import argparse
import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from chrono_beat.testing import guard
from chrono_beat.testing.servers import PostgresServer, RedisServer, ServerUnavailable, free_port

HERE = Path(__file__).resolve().parent.parent
STATE = HERE / ".state" / "demo"
LOGS = STATE / "logs"
WORKERS = ("one", "two")
START_TIMEOUT_SECONDS = 60
STOP_TIMEOUT_SECONDS = 20
ADMIN_USER = "admin"


class Stopped(Exception):
    """A signal before the demo was up, or a process of the demo that ended by itself."""


class Processes:
    """The processes of the demo: each logs to a file of its own, and has a guard that stops it with TERM, then KILL."""

    def __init__(self) -> None:
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str) -> None:
        with (LOGS / f"{name}.log").open("wb") as log:
            self.running[name] = guard.start(
                [sys.executable, *command], log=log, grace_seconds=STOP_TIMEOUT_SECONDS, directory=HERE)

    def check(self) -> None:
        for name, process in self.running.items():
            if process.poll() is not None:
                tail = (LOGS / f"{name}.log").read_text(errors="replace")[-2000:]
                raise Stopped(f"{name} ended by itself with status {process.returncode}:\n{tail}")

    def stop(self, *names: str) -> None:
        chosen = [self.running.pop(name) for name in names if name in self.running]
        for process in chosen:
            process.terminate()
        for process in chosen:
            process.wait()

    def stop_all(self) -> None:
        self.stop("dispatcher")
        self.stop(*WORKERS)
        self.stop(*list(self.running))


def start_servers(stack: ExitStack, engine: str) -> None:
    """Start Redis and, where asked for, PostgreSQL; tell the settings module through the environment."""
    redis = stack.enter_context(RedisServer())
    os.environ["EXAMPLE_REDIS_URL"] = redis.url.rsplit("/", 1)[0]
    if engine == "postgres":
        postgres = stack.enter_context(PostgresServer())
        os.environ["EXAMPLE_DATABASE"] = json.dumps(postgres.create_database("example"))


def start_system(processes: Processes, stop: threading.Event, ports: dict[str, int], password: str) -> None:
    """Start all processes, migrate while the workers come up, and load the jobs when everybody is ready."""
    from django.contrib.auth import get_user_model
    from django.core.management import call_command

    from chrono_beat_django import wiring

    from .celery import app

    celery = ("-m", "celery", "-A", "example")
    for name in WORKERS:
        processes.start(
            name, *celery, "worker", "-n", f"{name}@%h", "-P", "prefork", "-c", "2", "-Q", "celery,chrono",
            "-l", "INFO", "-E", "--without-gossip", "--without-mingle",
        )
    call_command("migrate", verbosity=0)
    get_user_model().objects.create_superuser(ADMIN_USER, "admin@example.org", password)
    processes.start("dispatcher", *celery, "chrono", "run")
    processes.start("admin", "manage.py", "runserver", f"127.0.0.1:{ports['admin']}", "--noreload")
    processes.start("flower", *celery, "flower", "--address=127.0.0.1", f"--port={ports['flower']}")
    wait_for_workers(processes, stop)
    call_command("load_catalogue", verbosity=0)
    wiring.sync(app, actor="demo")


def wait_for_workers(processes: Processes, stop: threading.Event) -> None:
    """Wait until both workers report that they draw and a dispatcher owns every partition, or somebody asks to stop."""
    from chrono_beat_django import wiring
    from chrono_beat_django.models import Partition

    queue = wiring.queue()
    until = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < until:
        processes.check()
        unowned = Partition.objects.filter(owner="").count()
        if len(queue.workers()) >= len(WORKERS) and not unowned and Partition.objects.exists():
            return
        if stop.wait(0.2):
            raise Stopped("it was asked to")
    raise Stopped(f"workers and dispatcher did not come up within {START_TIMEOUT_SECONDS} s; see {LOGS}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--for", dest="seconds", type=float)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--engine", choices=("sqlite", "postgres"), default="sqlite")
    return parser.parse_args()


def only_one() -> IO[str] | None:
    """Return an open file whose lock says that this demo runs; None where another one holds it."""
    STATE.parent.mkdir(exist_ok=True)
    lock = (STATE.parent / "demo.lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def stop_on_signals() -> threading.Event:
    """Return what is set by INT, TERM and HUP; after a HUP nothing is written to the terminal any more, for it is gone."""
    stop = threading.Event()
    terminals = [number for number in (1, 2) if os.isatty(number)]

    def hung_up(*_: object) -> None:
        null = os.open(os.devnull, os.O_WRONLY)
        for number in terminals:
            os.dup2(null, number)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:           # nohup
        signal.signal(signal.SIGHUP, hung_up)
    return stop


def main() -> int:
    args = parse_arguments()
    alone = only_one()
    if alone is None:
        print("Another demo of this checkout runs; stop it first.", file=sys.stderr)
        return 2
    shutil.rmtree(STATE, ignore_errors=True)
    LOGS.mkdir(parents=True)
    os.environ.update(
        DJANGO_SETTINGS_MODULE="example.settings", EXAMPLE_STATE_DIR=str(STATE),
        EXAMPLE_WORKER_LOG=str(STATE / "started.jsonl"),
        FLOWER_UNAUTHENTICATED_API="1",
    )
    stop = stop_on_signals()
    ports = {"admin": free_port(), "flower": free_port()}
    password = secrets.token_urlsafe(9)
    processes = Processes()
    with alone, ExitStack() as stack:
        try:
            start_servers(stack, args.engine)
            import django

            django.setup()
            stack.callback(processes.stop_all)
            start_system(processes, stop, ports, password)
            site = f"http://127.0.0.1:{ports['admin']}"
            return watch(args, stop, processes, {
                "dashboard": f"{site}/chrono/",
                "admin": f"{site}/admin/",
                "login": f"user {ADMIN_USER}, password {password}",
                "Flower": f"http://127.0.0.1:{ports['flower']}/",
                "logs": str(LOGS),
            })
        except (Stopped, ServerUnavailable) as reason:
            print(f"The demo stops: {reason}", file=sys.stderr)
            return 1


def watch(args: argparse.Namespace, stop: threading.Event, processes: Processes, places: dict[str, str]) -> int:
    """Look on until the time is over or Ctrl-C, then judge. Exit status 1 where anything was early or lost."""
    from .screen import Screen
    from .verdict import judge

    begun = time.monotonic()
    screen = Screen(places, silent=args.json)
    with screen:
        while not stop.wait(1.0):
            processes.check()
            screen.refresh()
            if args.seconds and time.monotonic() - begun >= args.seconds:
                break
    screen.stopping()
    verdict = judge(STATE / "started.jsonl")
    processes.stop_all()
    if args.json:
        print(json.dumps(verdict), flush=True)
    else:
        screen.farewell(verdict)
    return 1 if verdict["early"] or verdict["lost"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
