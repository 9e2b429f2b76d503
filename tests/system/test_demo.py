"""The demo, as a newcomer starts it, except that its virtualenv is the one the tests run in."""
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "example_project"

pytestmark = [pytest.mark.system, pytest.mark.redis, pytest.mark.celery]


def run_demo(*arguments, **options):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(EXAMPLE), str(EXAMPLE.parent)])}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    return subprocess.Popen(
        [sys.executable, "-m", "example.show", *arguments], cwd=EXAMPLE, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
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
def test_ctrl_c_stops_all_that_the_demo_started():
    demo = run_demo(start_new_session=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and len(children_of(demo.pid)) < 5:
        time.sleep(0.5)
    started = children_of(demo.pid)
    assert len(started) >= 5, "servers, workers and dispatcher are up"

    demo.send_signal(signal.SIGINT)
    demo.communicate(timeout=60)

    assert demo.returncode in (0, 1)
    assert [pid for pid in started if alive(pid)] == []


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
