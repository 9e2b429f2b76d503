"""Settings of the example project with shorter leases of deliveries.

After Redis has lost its memory nothing starts for one such lease; a test need not wait a minute for that. Longer than a
few seconds all the same, since a worker on a busy machine must be able to renew in time.
"""
import os

from example.settings import *  # noqa: F403
from example.settings import CHRONO_BEAT as _EXAMPLE

LEASE_SECONDS = float(os.environ.get("CHRONO_TEST_LEASE_SECONDS", "10"))

CELERY_IMPORTS = ("tests.system.retrying",)
CHRONO_BEAT = {
    **_EXAMPLE, "LEASE_TTL": LEASE_SECONDS, "RENEW_EVERY": 0.3 * LEASE_SECONDS, "ETA_THRESHOLD": 10.0,
}
