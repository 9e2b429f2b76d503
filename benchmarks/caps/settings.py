"""Django's and Celery's settings: those of the chaos, on two lanes."""
from benchmarks.chaos.settings import *  # noqa: F403
from benchmarks.chaos.settings import CHRONO_BEAT as _CHAOS

CHRONO_BEAT = {**_CHAOS, "LANES": 2}
