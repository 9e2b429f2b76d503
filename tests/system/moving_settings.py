"""Settings of the example project for moving in: entries of ``beat_schedule`` from the environment, and an observed beat."""
import json
import os

from tests.system.short_leases import *  # noqa: F403
from tests.system.short_leases import CHRONO_BEAT as _SHORT

CELERY_BEAT_SCHEDULE = {
    name: {"task": "shop.notify", "schedule": seconds, "args": [name]}
    for name, seconds in json.loads(os.environ["MOVING_ENTRIES"]).items()}
CHRONO_BEAT = {**_SHORT, "OBSERVE_BEAT": True}
