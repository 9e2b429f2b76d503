"""Jobs beside Celery's own schedule classes on a virtual clock: the same fires, or a report of where they differ."""
import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.schedules import crontab, schedule
from click.testing import CliRunner

from chrono_beat.celery import ChronoBeat
from chrono_beat.celery.commands import chrono
from chrono_beat.core import ids
from chrono_beat.core.config import Config
from chrono_beat.core.shadow import compare
from chrono_beat_django import wiring
from tests.django.fakes import RecordingQueue

NOON = datetime(2026, 1, 7, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def shadow(entries, *line, timezone="UTC"):
    app = Celery("shadow", set_as_current=False)
    ChronoBeat(app)
    app.conf.update(timezone=timezone, beat_schedule={
        name: {"task": "t", "schedule": when} for name, when in entries.items()})
    with wiring.override(queue=RecordingQueue(), now_us=lambda: ids.to_us(NOON), config=Config(partitions=8)):
        return CliRunner().invoke(chrono, ["shadow", *line], obj=SimpleNamespace(app=app))


def test_fires_are_paired_and_the_rest_is_missing_or_extra():
    theirs = [NOON, NOON + 60 * SECOND, NOON + 120 * SECOND]
    ours = [NOON + SECOND / 2, NOON + 30 * SECOND, NOON + 120 * SECOND, NOON + 180 * SECOND]

    found = compare(ours, theirs, SECOND)

    assert found == (2, (theirs[1],), (ours[1], ours[3]), 0.5)
    assert compare([], [], SECOND) == (0, (), (), 0.0)


@pytest.mark.parametrize("timezone", ["UTC", "Europe/London", "Asia/Kathmandu"])
def test_entries_fire_as_celerys_own_classes_do(timezone):
    done = shadow({
        "minutes": crontab(minute="*/7"), "night": crontab(minute="30", hour="1"), "days": crontab("0", "9", "mon", "1-7"),
        "seconds": 90, "daily": schedule(timedelta(hours=5)),
    }, "--for", "72", "--json", timezone=timezone)

    assert done.exit_code == 0, done.output
    agreed = {line["name"]: line["agreed"] for line in json.loads(done.output)}
    assert min(agreed["minutes"], agreed["seconds"]) > 640 and agreed["night"] == 3


def test_a_difference_is_reported_and_is_the_exit_status():
    done = shadow({"odd": crontab(minute="0", hour="9")}, "--timezone", "Asia/Tokyo")

    assert done.exit_code == 1
    assert "1 missing: 2026-01-08 09:00:00Z" in done.output and "1 extra: 2026-01-08 00:00:00Z" in done.output
