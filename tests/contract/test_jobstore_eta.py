"""What every JobStore promises about executions without a job: Celery messages that wait for their time."""
from __future__ import annotations

import json
from uuid import UUID, uuid4

import pytest

from chrono_beat.core.eta import EtaTask, job_id_of
from chrono_beat.core.records import Ending, NewAttempt, Start
from tests.contract.test_jobstore import ALL, MINUTE, epochs, past  # noqa: F401

TASK_ID = "6a0f2b0e-7d0a-4f3c-9a64-0b1e5d2c8f11"
OPTIONS = json.dumps({"pool": "chrono", "priority": 5, "headers": {"lang": "py"}, "embed": {}, "properties": {}})


def task(**values):
    fields = {"task_id": TASK_ID, "tenant": "acme", "partition": 3, "task": "shop.expire", "args": '["ü"]',
              "kwargs": '{"hold": 42}', "options": OPTIONS, "retries": 0}
    return EtaTask(**fields | values)


def load(store, epochs, ahead_us=0):  # noqa: F811
    return store.load_scheduled(epochs, store.now_us() + ahead_us, 100)


def test_r119_the_row_waits_in_the_due_index_and_is_loaded_once_with_all_of_its_message(bench, store, epochs, past):  # noqa: F811
    key = store.add_eta_task(task(due_us=past))

    [row] = load(store, epochs)

    assert key == row.execution_id and row.job_id == TASK_ID and (row.partition, row.kind, row.attempt) == (3, "eta", 1)
    assert (row.scheduled_us, row.due_us, row.first_due_us) == (past, past, past)
    assert row.content[:5] == ("acme", "shop.expire", "shop.expire", '["ü"]', '{"hold": 42}')
    assert (row.options, row.celery_id, row.queued) == (OPTIONS, TASK_ID, False)
    assert load(store, epochs) == []
    [shown] = bench.rows()
    assert (shown.job_name, shown.tenant, shown.state, shown.task) == ("shop.expire", "acme", "scheduled", "shop.expire")


def test_what_is_far_ahead_is_not_loaded(store, epochs):  # noqa: F811
    store.add_eta_task(task(countdown_us=360 * MINUTE))

    assert load(store, epochs, 359 * MINUTE) == []
    assert len(load(store, epochs, 361 * MINUTE)) == 1


def test_a_countdown_is_counted_from_the_stores_own_clock(bench, store):
    before = store.now_us()
    store.add_eta_task(task(countdown_us=MINUTE))

    assert before + MINUTE <= bench.rows()[0].due_us <= store.now_us() + MINUTE


def test_the_same_id_for_the_same_instant_is_another_row(bench, store, past):  # noqa: F811
    """Two sends are two messages, as on a broker; neither gets lost."""
    keys = [store.add_eta_task(task(due_us=past, tenant=tenant)) for tenant in ("acme", "other", "acme")]

    assert len(set(keys)) == 3
    assert [(row.due_us, row.scheduled_us - past) for row in bench.rows()] == [(past, 0), (past, 1), (past, 2)]


def test_a_retry_that_is_there_already_is_not_written_again(bench, store, past):  # noqa: F811
    first = store.add_eta_task(task(retries=2, due_us=past))

    assert store.add_eta_task(task(retries=2, due_us=past + MINUTE)) == first
    assert store.add_eta_task(task(retries=3, due_us=past + MINUTE)) != first
    assert store.add_eta_task(task(retries=2, due_us=past + MINUTE, tenant="other")) != first
    store.record([], [Ending(first, "cancelled", "", past, "", 0, "")], [])
    assert store.add_eta_task(task(retries=2, due_us=past + MINUTE)) != first


@pytest.mark.parametrize("task_id", ["by hand", "", "6A0F2B0E-7D0A-4F3C-9A64-0B1E5D2C8F11",
                                     "019423f7-7d0a-7f3c-9a64-0b1e5d2c8f11"])
def test_only_a_random_uuid_is_a_job_id_as_it_is(store, epochs, past, task_id):  # noqa: F811
    """Whoever chooses a task id chooses no job's: theirs are of version 7."""
    store.add_eta_task(task(task_id=task_id, due_us=past))

    [row] = load(store, epochs)

    assert row.job_id == job_id_of(task_id) != task_id and UUID(row.job_id).version == 5
    assert row.celery_id == task_id


def test_rows_with_and_without_jobs_are_loaded_together_the_oldest_first(bench, store, epochs, past):  # noqa: F811
    job_id = bench.add_job("j", next_run_us=past + 60 * MINUTE)
    later = bench.add_execution(job_id, past + 2)
    first, last = store.add_eta_task(task(due_us=past)), store.add_eta_task(task(task_id=str(uuid4()), due_us=past + 3))

    found = load(store, epochs)

    assert [row.execution_id for row in found] == [first, later, last]
    assert [row.options is None for row in found] == [False, True, False]


def test_inv04_the_audit_finds_an_open_row_and_may_publish_it_again(store, epochs, past):  # noqa: F811
    key = store.add_eta_task(task(due_us=past))
    load(store, epochs)
    store.mark_queued([(key, past)])

    assert [row.execution_id for row in store.open_page(ALL, None, 0, 10)] == [key]
    assert [(row.execution_id, row.options) for row in store.load_open([key])] == [(key, OPTIONS)]
    assert store.superseded(ALL, 10) == []


def test_an_emptied_wheel_finds_it_again(store, epochs, past):  # noqa: F811
    store.add_eta_task(task(due_us=past))
    assert len(load(store, epochs)) == 1
    store.forget_holds(epochs)

    assert len(load(store, epochs)) == 1


def test_a_cancelled_one_is_not_loaded(bench, store, epochs, past):  # noqa: F811
    key = store.add_eta_task(task(due_us=past))
    bench.set_row(key, cancel_requested_us=past)

    assert load(store, epochs) == []
    assert [(row.execution_id, row.tenant) for row in store.cancel_requests(ALL, 10)] == [(key, "acme")]


def test_its_own_retry_counts_and_carries_the_message_on(bench, store, epochs, past):  # noqa: F811
    key = store.add_eta_task(task(due_us=past))
    store.record([Start(key, past, "w", 1)], [], [])
    assert store.open_executions([key])[key].retry[:2] == (1, False)

    again = NewAttempt(key, 2, 1, past + MINUTE, '["again"]', None)
    store.record([], [Ending(key, "failed", "error", past, "w", 1, "")], [again])
    [row] = load(store, epochs)

    assert (row.execution_id, row.kind, row.retries) == (key[:-1] + "2", "retry", 1)
    assert (row.content.args, row.content.kwargs) == ('["again"]', '{"hold": 42}')
    assert (row.options, row.celery_id, row.content.task) == (OPTIONS, TASK_ID, "shop.expire")


def test_its_end_is_history_until_retention(bench, store, past):  # noqa: F811
    key = store.add_eta_task(task(due_us=past))
    store.record([Start(key, past, "w", 1)], [Ending(key, "succeeded", "", past, "w", 1, "")], [])
    assert bench.rows()[0].state == "succeeded"

    day_us = 24 * 60 * MINUTE
    assert store.keep(store.now_us() + 40 * day_us, 30 * day_us, 100) == 1
    assert bench.rows() == []
