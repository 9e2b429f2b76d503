"""Tenants beside each other, in real processes."""
import contextlib
import subprocess
import sys
import time

import pytest

from benchmarks.fairness.sites import ChronoSite
from benchmarks.site import ROOT
from chrono_beat.testing.patience import eventually

pytestmark = [pytest.mark.system, pytest.mark.redis, pytest.mark.postgres, pytest.mark.celery, pytest.mark.timeout(300)]

TENANTS = 3


def test_r164_a_dispatcher_without_any_task_code_fires_the_jobs_of_all_tenants(redis_server, postgres_server):
    with contextlib.closing(ChronoSite()) as site:
        site.app = "tests.system.taskless"
        known = subprocess.run(
            [sys.executable, "-c", "from tests.system.taskless import app; print(*app.tasks)"], cwd=ROOT,
            env=site.environment, capture_output=True, text=True, check=True).stdout.split()
        assert not [name for name in known if not name.startswith(("celery.", "chrono_beat."))]
        tenants = [f"tenant{number}" for number in range(TENANTS)]
        for number, tenant in enumerate(tenants):
            site.add_tenant(tenant, 10)
            site.add_job(tenant, "job", f"code{number}.nobody.has", 1, int(time.time()) + 1)

        site.start_dispatcher()

        eventually(lambda: all(site.count(tenant, "queued") >= 2 for tenant in tenants), 60, what="all have been fired")
