"""What the Django side tells Redis, written down instead of sent."""
from chrono_beat.core.deliveries import Cancelled
from chrono_beat.core.errors import QueueUnavailable


class RecordingQueue:
    """The few calls that definitions make.

    `voids` has (lane, job id, version) of each, `wakes` counts; with `away` every call fails as if Redis were gone.
    `found` has what looks at deliveries see, one after another; `looks` counts them. `knows` is what it says of an
    execution that is to be ended for good. `runs` has executions that run by tenant, `waits` those that wait by
    (pool, tenant).
    """

    def __init__(self):
        self.voids, self.wakes, self.away = [], 0, False
        self.looks, self.found = 0, []
        self.knows = "ended"
        self.runs, self.waits = {}, {}

    def void(self, lane, job_id, version):
        self._answer()
        self.voids.append((lane, job_id, version))

    def end_voided(self, lane, execution_id, job_id, version, tenant=""):
        self._answer()
        return self.knows

    def cancel(self, lane, execution_id, job_id, tenant=""):
        self._answer()
        return Cancelled("ended", "", "", False)

    def deliveries_of(self, lane, job_id, below_version, *, tenant=""):
        self._answer()
        self.looks += 1
        return self.found.pop(0) if self.found else []

    def set_tenants(self, lane, limits):
        self._answer()

    def running(self, lane, tenant):
        self._answer()
        return self.runs.get(tenant, 0)

    def backlog(self, lane, pool, tenant=None):
        self._answer()
        return {whose: count for (where, whose), count in self.waits.items() if where == pool and tenant in (None, whose)}

    def workers(self):
        self._answer()
        return []

    def wake_dispatchers(self):
        self._answer()
        self.wakes += 1

    def _answer(self):
        if self.away:
            raise QueueUnavailable("connection refused")
