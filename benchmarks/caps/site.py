"""The deployment whose workers are killed: that of the chaos on two lanes and two pools, and jobs that are due for more than
the caps allow."""
from __future__ import annotations

import random
import time
from typing import Any

from benchmarks.chaos.load import Made, as_made
from benchmarks.chaos.site import ChaosSite

POOLS = ("chrono", "chrono.gold")
CAPS = {"default": 3, "acme": 1, "gold": 2}
"""How much each tenant may run at once; "gold" lives in a lane of its own. The workers have eleven slots."""

JOBS_PER_TENANT = 6
EVERY_SECONDS = 2
SHORTEST_SECONDS, LONGEST_SECONDS = 0.2, 2.0


class CapsSite(ChaosSite):
    """Two dispatchers and three workers that draw both pools."""

    worker_options = ("-Q", ",".join(POOLS))

    def variables(self):
        """Return where servers and files are, and which settings hold."""
        return {**super().variables(), "DJANGO_SETTINGS_MODULE": "benchmarks.caps.settings"}


class Load:
    """Jobs of every tenant in both pools, some of which fail at first.

    Args:
        seed: of the bodies' lengths.
    """

    def __init__(self, seed: int) -> None:
        self.jobs: dict[str, Made] = {}
        self.next_burst = 0.0
        self._random = random.Random(seed)

    def define(self) -> None:
        """Create tenants and jobs."""
        from chrono_beat.core.retry import Retry
        from chrono_beat_django import jobs
        from chrono_beat_django.models import Tenant

        for tenant, cap in CAPS.items():
            Tenant.objects.update_or_create(slug=tenant, defaults={"max_running": cap})
            for number in range(JOBS_PER_TENANT):
                made_at = time.time()
                work: dict[str, Any] = {
                    "seconds": round(self._random.uniform(SHORTEST_SECONDS, LONGEST_SECONDS), 2), "fails": number % 3 == 2}
                job = jobs.create(
                    name=f"{tenant} {number}", task="chaos.work", tenant=tenant, every=EVERY_SECONDS, kwargs=work,
                    pool=POOLS[number % 2], retry=Retry(max_attempts=3, base=1, factor=2, maximum=4, jitter=0.2))
                self.jobs[str(job.id)] = as_made(job, made_at)
