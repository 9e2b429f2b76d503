"""``celery -A proj chrono …`` as a user types it, on a real Redis."""
from types import SimpleNamespace

import pytest
from celery import Celery
from click.testing import CliRunner

from chrono_beat.celery import ChronoBeat
from chrono_beat.celery.commands import chrono
from chrono_beat.redis.queue import RedisQueueStore
from chrono_beat_django import conf, jobs, wiring

app = Celery("commands", set_as_current=False)
ChronoBeat(app)


@app.task(name="shop.report", shared=False)          # shared, it would be in every other test's app
def report():
    """Do nothing."""


@pytest.fixture
def queue(redis_url):
    """A real Redis behind the commands, its lane open."""
    made = RedisQueueStore(redis_url, conf.config())
    made.open_lane(0, 1, made.lane_state(0).replication_id, 0)
    with wiring.override(queue=made):
        yield made


@pytest.fixture
def run(queue):
    """Return a function that runs a command line and looks at its exit status."""
    def run(*line, status=0):
        done = CliRunner().invoke(chrono, line, obj=SimpleNamespace(app=app))
        assert done.exit_code == status, (done.output, done.exception)
        return done.output

    return run


@pytest.fixture
def nightly(run):
    run("jobs", "create", "nightly", "--task", "shop.report", "--cron", "30 2 * * *", "--timezone", "Europe/London")
    return jobs.get("default", "nightly")
