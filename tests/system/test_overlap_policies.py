"""Overlap as a user meets it: jobs of every policy beside each other, through real processes."""
import time
from datetime import UTC, datetime, timedelta

import pytest

from chrono_beat.testing.patience import eventually
from tests.system.systemkit import OPEN, Job

pytestmark = [pytest.mark.system, pytest.mark.redis, pytest.mark.postgres, pytest.mark.celery, pytest.mark.timeout(180)]


def rows_of(site, job):
    return site.rows([Job(job, 0.0, None)])


def apart(rows):
    """Say whether each of the rows that began did so when the ones before had ended."""
    begun = sorted((row for row in rows if row["started_at"]), key=lambda row: row["started_at"])
    return all(later["started_at"] >= earlier["finished_at"] for earlier, later in zip(begun, begun[1:], strict=False))


def test_inv09_each_policy_decides_what_becomes_of_an_occurrence_while_another_runs(site):
    site.dispatchers(1)
    at = (datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=5)).isoformat()
    slow = {"task": "shop.slow", "every": 1}               # a run takes two seconds
    grouped = [{"name": f"overlap group {n}", "task": "shop.slow", "at": at, "exclusion_group": "warehouse"}
               for n in range(3)]
    made = site.ask("create", definitions=[
        {"name": "overlap forbid", **slow}, {"name": "overlap replace", "concurrency": "replace", **slow}, *grouped])
    forbid, replace, *group = (job["id"] for job in made)

    time.sleep(9)
    site.ask("delete", ids=[forbid, replace])
    now = datetime.now(UTC)                # what was claimed ahead ends when it would have been due
    everything = [Job(job["id"], 0.0, None) for job in made]
    eventually(lambda: not [row["id"] for row in site.rows(everything) if row["state"] in OPEN and row["due_at"] < now], 30)

    ran = [row for row in rows_of(site, forbid) if row["state"] == "succeeded"]
    skipped = [row for row in rows_of(site, forbid) if row["state"] == "skipped"]
    assert len(ran) >= 2
    assert skipped
    assert apart(ran)
    assert {row["reason"] for row in skipped} == {"overlap"}
    assert {row["error"].removesuffix(" was active") for row in skipped} <= {row["id"] for row in ran}

    *replaced, last = [row for row in rows_of(site, replace) if row["started_at"]]
    assert len(replaced) >= 3
    assert {(row["state"], row["reason"]) for row in replaced} == {("cancelled", "superseded")}
    assert last["state"] in ("succeeded", "cancelled")                 # the latter where the deletion came first
    assert apart(replaced)

    of_group = [row for job in group for row in rows_of(site, job)]
    assert [row["state"] for row in of_group] == ["succeeded"] * 3
    assert apart(of_group)
    starts = [line["execution_id"] for line in site.starts()]
    assert len(set(starts)) == len(starts), "nothing ran twice"
