"""What redbeat wrote itself is read from a real Redis without its help."""
import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.schedules import crontab, schedule
from click.testing import CliRunner
from redbeat import RedBeatSchedulerEntry
from redbeat.schedules import rrule

from chrono_beat.celery import ChronoBeat
from chrono_beat.celery.commands import chrono
from chrono_beat.core import ids
from chrono_beat.core.config import Config
from chrono_beat.core.imports_redbeat import from_redbeat
from chrono_beat_django import wiring
from chrono_beat_django.models import Job, Tenant
from tests.django.fakes import RecordingQueue

NOON = datetime(2026, 1, 7, 12, tzinfo=UTC)

pytestmark = pytest.mark.redis


def test_the_keys_of_redbeat_are_taken_over_once(transactional_db, redis_url):
    Tenant.objects.get_or_create(slug="default")
    app = Celery("redbeat", broker=redis_url, set_as_current=False)
    ChronoBeat(app)
    app.conf.timezone = "Europe/London"
    for name, when in {"tab": crontab(minute="5", hour="9"), "often": schedule(timedelta(minutes=5)),
                       "rule": rrule("DAILY", dtstart=NOON)}.items():
        RedBeatSchedulerEntry(name, "t", when, args=[1], kwargs={"a": 2}, enabled=name != "tab",
                              last_run_at=NOON - timedelta(minutes=2), app=app).save()

    def run():
        done = CliRunner().invoke(chrono, ["import", "redbeat", "--apply", "--json"], obj=SimpleNamespace(app=app))
        return done.exit_code, {line["job"]: line["action"] for line in json.loads(done.output)}

    with wiring.override(queue=RecordingQueue(), now_us=lambda: ids.to_us(NOON), config=Config(partitions=8)):
        assert run() == (1, {"default/often": "create", "default/rule": "refused", "default/tab": "create"})
        assert run()[1]["default/often"] == "unchanged"

    tab, often = Job.objects.get(name="tab"), Job.objects.get(name="often")
    assert (tab.paused, tab.timezone, json.loads(tab.kwargs)) == (True, "Europe/London", {"a": 2})
    assert often.next_run_at.replace(microsecond=0) == NOON + timedelta(minutes=3)


def test_a_hash_that_cannot_be_read_is_refused_and_the_next_goes_on():
    good = {"definition": json.dumps({"task": "t", "schedule": {"__type__": "interval", "every": 9, "relative": False}})}

    found = list(from_redbeat([("bad", {"definition": "{"}), ("none", {"definition": "{}"}), ("good", good)], "UTC"))

    assert [bool(entry.problem) for entry in found] == [True, True, False]
