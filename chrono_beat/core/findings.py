"""What those find who watch over jobs and tenants."""
from __future__ import annotations

from typing import NamedTuple


class JobName(NamedTuple):
    """A job, as people know it."""

    job_id: str
    tenant: str
    name: str


class RetryHold(NamedTuple):
    """A tenant whose retries wait until then, and why: so many failures among so many runs that ended."""

    tenant: str
    failed: int
    ended: int
    until_us: int
