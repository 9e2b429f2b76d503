"""What people ask for beside the schedule, with real processes: a backfill beside live runs, and a replay."""
from datetime import UTC, datetime, timedelta

import pytest

from chrono_beat.testing.patience import eventually

pytestmark = [pytest.mark.system, pytest.mark.redis, pytest.mark.postgres, pytest.mark.celery, pytest.mark.timeout(180)]

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
YEARLY = "0 0 1 1 *"


def create(site, **given):
    return site.ask("create", definitions=[{"task": "shop.report", **given}])[0]["id"]


def rows_of(site, job_id):
    return site.sql("SELECT * FROM chrono_execution WHERE job_id = %s ORDER BY scheduled_at, attempt", job_id)


def test_r156_a_day_is_filled_in_in_order_while_live_runs_go_on(site):
    site.dispatchers(2)
    hourly = create(site, name="filled in", cron="0 * * * *")
    day = {"start": NEW_YEAR.isoformat(), "end": (NEW_YEAR + timedelta(days=1)).isoformat()}
    live = site.intervals(1)

    assert site.ask("backfill", job=hourly, **day) == 24
    assert site.ask("backfill", job=hourly, **day) == 0

    eventually(lambda: [row["state"] for row in rows_of(site, hourly) if row["kind"] == "backfill"] == ["succeeded"] * 24, 60)
    rows = [row for row in rows_of(site, hourly) if row["kind"] == "backfill"]
    assert [row["scheduled_at"] for row in rows] == [NEW_YEAR + timedelta(hours=n) for n in range(24)]
    for earlier, later in zip(rows, rows[1:], strict=False):
        assert earlier["finished_at"] <= later["started_at"], "one after another"
    started = [line["execution_id"] for line in site.starts() if line["job_id"] == hourly]
    assert [key for key in started if ":20260101T" in key] == [row["id"] for row in rows]
    site.finish(live)
    site.ask("delete", ids=[hourly])


def test_r151_a_dead_letter_that_was_mended_is_replayed_under_the_same_key(site):
    site.dispatchers(1)
    job = create(site, name="mended", cron=YEARLY, task="shop.slow", kwargs={"seconds": "long"})
    letter = site.ask("trigger", job=job)
    eventually(lambda: [row["state"] for row in rows_of(site, job)] == ["dead"], 30)

    site.ask("update", job=job, kwargs={"seconds": 0.01})
    replay = site.ask("replay", letter=letter)

    eventually(lambda: [row["state"] for row in rows_of(site, job)] == ["dead", "succeeded"], 30)
    first, second = rows_of(site, job)
    assert (second["id"], second["kind"], second["attempt"], second["retries"]) == (replay, "replay", 2, 0)
    assert "TypeError" in first["error"] and first["handled_as"] == "replayed"
    keys = {line["execution_id"]: line["key"] for line in site.starts() if line["job_id"] == job}
    assert keys == dict.fromkeys((letter, replay), letter.rpartition(":")[0])
    site.ask("delete", ids=[job])
