"""The demo, as a newcomer starts it, except that its virtualenv is the one the tests run in."""
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from chrono_beat.testing.patience import eventually

EXAMPLE = Path(__file__).resolve().parents[2] / "example_project"

pytestmark = [pytest.mark.system, pytest.mark.redis, pytest.mark.celery]


def run_demo(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(EXAMPLE), str(EXAMPLE.parent)])}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    return subprocess.Popen(
        [sys.executable, "-m", "example.show", *arguments], cwd=EXAMPLE, env=environment, text=True,
        stdout=stdout, stderr=stderr, **options,
    )


@pytest.mark.timeout(240)
@pytest.mark.parametrize("engine", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_the_demo_loses_nothing_and_is_never_early(engine):
    demo = run_demo("--for", "20", "--json", "--engine", engine)
    out, err = demo.communicate(timeout=200)

    assert demo.returncode == 0, (out[-2000:], err[-3000:])
    verdict = json.loads(out.splitlines()[-1])
    assert set(verdict) >= {
        "executions", "succeeded", "failed", "early", "duplicates", "lost", "lateness_ms", "tenants", "jobs",
    }
    assert (verdict["early"], verdict["lost"], verdict["duplicates"]) == (0, 0, 0)
    assert verdict["tenants"] == 3
    assert verdict["jobs"] >= 60
    assert verdict["succeeded"] >= 20
    assert verdict["lateness_ms"]["p50"] >= 0


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_all_that_the_demo_started_ends_with_it(number):
    """Also where the demo itself has no time to stop anything."""
    demo = run_demo(start_new_session=True)
    started = everything_of(demo, demo.stdout)

    demo.send_signal(number)
    demo.communicate(timeout=60)

    assert demo.returncode == -signal.SIGKILL if number == signal.SIGKILL else demo.returncode in (0, 1)
    seconds_left = 45 if number == signal.SIGKILL else 0
    eventually(lambda: not [pid for pid in started if alive(pid)], seconds_left, what="all has ended")


@pytest.mark.timeout(120)
def test_all_that_the_demo_started_ends_when_its_terminal_is_closed():
    ours, theirs = os.openpty()
    demo = run_demo(stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
                    preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
    os.close(theirs)
    with open(ours, encoding="utf-8") as terminal:
        started = everything_of(demo, terminal)

    assert demo.wait(60) in (0, 1)
    assert [pid for pid in started if alive(pid)] == []


def everything_of(demo, says):
    """Return the process ids of what the demo started, once it says that it is up: servers, workers, dispatcher, pages."""
    assert any("Ctrl-C stops everything" in line for line in says), demo.poll()
    started = children_of(demo.pid)
    assert len(started) >= 12, "six processes, each with its guard"
    return started


def children_of(pid):
    """Return the process ids below *pid*, at any depth."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(") ", 1)[1].split()
            except (OSError, IndexError):
                continue
            parents[int(entry.name)] = int(fields[1])
    found, frontier = [], [pid]
    while frontier:
        parent = frontier.pop()
        below = [child for child, above in parents.items() if above == parent]
        found += below
        frontier += below
    return found


def alive(pid):
    """Say whether a process is there and not merely waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False
