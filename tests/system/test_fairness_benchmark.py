"""The benchmark of fairness, with a flood so small that it says nothing about speed."""
import json
import os
import subprocess
import sys

import pytest

from benchmarks.site import ROOT

pytestmark = [pytest.mark.system, pytest.mark.redis, pytest.mark.postgres, pytest.mark.celery, pytest.mark.timeout(180)]

TENANTS, SECONDS, PEER_SECONDS, FLOOD = 3, 1, 1, 60


def test_inv08_a_flood_of_one_tenant_loses_nothing_of_the_others_and_the_peer_stands_beside(redis_server, postgres_server):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    options = {"flood": FLOOD, "tenants": TENANTS, "seconds": SECONDS, "peer-seconds": PEER_SECONDS, "warm-up": 1, "lead": 2,
               "spare": 1, "slots": 2, "pool": "prefork"}      # stock Celery 5.6 on threads rests between acknowledgements
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.fairness", "--json", *(f"--{name}={value}" for name, value in options.items())],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=170)

    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-6000:])
    told = json.loads(done.stdout.splitlines()[-1])
    print(told)
    assert told["lost"] == 0
    assert told["without"]["started"] == told["with"]["started"] == told["expected_a_phase"] == TENANTS * SECONDS
    assert told["p50_ratio"] > 0 and told["p99_ratio"] > 0
    assert told["flood"].keys() == {"executions", "loaded_ahead", "published_meanwhile", "done_meanwhile"}
    assert told["flood"]["executions"] == FLOOD
    peer = told["stock_celery"]
    assert peer["without"]["started"] == TENANTS * PEER_SECONDS
    assert peer["with"]["started"] + peer["not_started_when_stopped"] == TENANTS * PEER_SECONDS
