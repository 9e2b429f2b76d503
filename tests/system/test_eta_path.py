"""Celery messages for later on the whole path: from apply_async into the due index, to the worker, to the result backend."""
import pytest

from chrono_beat.testing.patience import eventually

pytestmark = [pytest.mark.system, pytest.mark.redis, pytest.mark.postgres, pytest.mark.celery, pytest.mark.timeout(180)]


def test_r119_messages_for_later_wait_in_the_database_and_run_once_from_a_pool_and_from_a_stock_queue(site):
    """Those to a pool are drawn by its workers; those to another queue are handed over by the relay when they are due."""
    site.dispatchers(1)
    site.worker()
    drawn, sent = (site.ask("send", task="shop.clean_up", subject=queue, queue=queue, seconds=12)
                   for queue in ("chrono", "celery"))
    rows = site.sql("SELECT * FROM chrono_execution WHERE kind = 'eta' ORDER BY celery_id")
    assert {row["state"] for row in rows} == {"scheduled"} and len(rows) == 2
    assert site.ask("told", task_id=drawn) == site.ask("told", task_id=sent) == ["PENDING", None]

    retried = [site.ask("send", task="tests.retrying", subject=queue, queue=queue, seconds=0) for queue in ("chrono", "celery")]

    def all_have_run():
        told = [site.ask("told", task_id=task_id) for task_id in (drawn, sent, *retried)]
        return told if all(state == "SUCCESS" for state, _ in told) else None

    assert eventually(all_have_run, 60, what="all have run") == [
        ["SUCCESS", f"{queue}: {told}"] for told in ("nothing left to clean", "retry 1") for queue in ("chrono", "celery")]

    def ended():
        found = site.sql("SELECT * FROM chrono_execution WHERE kind = 'eta' ORDER BY due_at")
        return found if all(row["finished_at"] for row in found) else None

    rows = eventually(ended, 20, what="all have ended")
    assert sorted((row["task"], row["state"], row["reason"], row["deliveries"]) for row in rows) == [
        (task, "succeeded", reason, 1) for task in ("shop.clean_up", "tests.retrying") for reason in ("", "handed_over")]
    assert all(row["started_at"] >= row["due_at"] for row in rows)
    assert {row["celery_id"] for row in rows if row["task"] == "tests.retrying"} == {*retried}, "a child of the pool kept it"
