"""A minute of chaos: whatever is killed, paused, cut off or forgotten, the history of it is valid."""
import json
import os
import subprocess
import sys

import pytest

from benchmarks.site import ROOT

pytestmark = [pytest.mark.system, pytest.mark.redis, pytest.mark.postgres, pytest.mark.celery, pytest.mark.timeout(400)]

SEED = 11
LEAST_KINDS = 8
BACK_WITHIN_SECONDS = 45.0             # a memory that is lost again and again, one quarantine after the other


def test_a_minute_of_random_faults_loses_nothing_and_repeats_only_what_a_fault_explains(redis_server, postgres_server):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.chaos", "--minutes", "1", "--seed", str(SEED), "--json"], cwd=ROOT,
        env=environment, capture_output=True, text=True, check=False, timeout=380)

    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-6000:])
    told = json.loads(done.stdout.splitlines()[-1])
    print(told)
    assert told["verdict"] == "valid", (told, done.stderr[-6000:])
    assert (told["lost"], told["early"], told["overlaps"]) == (0, 0, 0)
    assert told["executions"] > 500
    assert len(told["faults"]) >= LEAST_KINDS, told["faults"]
    recovered = told["seconds_until_something_began"]
    assert recovered.keys() == told["faults"].keys()
    assert all(seconds is not None and seconds < BACK_WITHIN_SECONDS for seconds in recovered.values()), recovered
