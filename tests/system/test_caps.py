"""Workers and their children are killed while more is due than the caps allow: the benchmark of caps, in short."""
import json
import os
import subprocess
import sys

import pytest

from benchmarks.caps.site import CAPS
from benchmarks.site import ROOT

pytestmark = [pytest.mark.system, pytest.mark.redis, pytest.mark.postgres, pytest.mark.celery, pytest.mark.timeout(240)]

KILLS = 10


def test_inv08_no_tenant_runs_more_than_its_cap_while_workers_are_killed(redis_server, postgres_server):
    """R162: by live leases and slots in Redis, many times a second, and by what the bodies wrote."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.caps", "--kills", str(KILLS), "--json"], cwd=ROOT, env=environment,
        capture_output=True, text=True, check=False, timeout=220)

    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-6000:])
    told = json.loads(done.stdout.splitlines()[-1])
    print(told)
    assert told["verdict"] == "valid", (told, done.stderr[-6000:])
    assert sum(told["kills"].values()) == KILLS and told["kills"]["worker_killed"]
    assert (told["violations"], told["lost"], told["doubled"]) == (0, 0, 0)
    assert told["samples"] > 100
    assert {name: tenant["most_leases"] for name, tenant in told["tenants"].items()} == CAPS, "the caps were reached"
