"""Flags: what is likely to go wrong at a job's next run."""
from __future__ import annotations

SECOND = 1_000_000
FAR_US = 3_600 * SECOND
REASON = "no live worker knows the task"


def add(bench, name, in_seconds=60, **values):
    return bench.add_job(name, next_run_us=bench.store.now_us() + in_seconds * SECOND, **values)


def everywhere(bench):
    return [lease.partition for lease in bench.store.partitions()]


def until(bench, seconds=600):
    return bench.store.now_us() + seconds * SECOND


def flags(bench, *job_ids):
    return [bench.job(job_id).flagged_reason for job_id in job_ids]


def test_the_upcoming_tasks_are_told_with_their_pools_each_once(bench):
    bench.add_tenant("gold", pool="chrono.gold")
    add(bench, "a", task="t.a")
    add(bench, "b", task="t.a")
    add(bench, "c", task="t.a", pool="chrono.slow")
    add(bench, "d", task="t.a", tenant="gold")
    add(bench, "e", task="t.a", tenant="gold", pool="chrono.own")
    add(bench, "later", task="t.later", in_seconds=3_600)
    bench.add_job("never", task="t.never", next_run_us=None, paused=True)

    found = bench.store.upcoming_tasks(everywhere(bench), until(bench))

    assert sorted(found) == [("", "t.a"), ("chrono.gold", "t.a"), ("chrono.own", "t.a"), ("chrono.slow", "t.a")]
    assert bench.store.upcoming_tasks([], until(bench)) == []


def test_r144_jobs_of_a_task_are_flagged_before_they_are_due_and_keep_their_plan(bench):
    first, second = add(bench, "a", task="t.a"), add(bench, "b", task="t.a")
    other, later = add(bench, "c", task="t.b"), add(bench, "d", task="t.a", in_seconds=3_600)
    before = bench.job(first)

    flagged = bench.store.flag_jobs("", "t.a", REASON, until(bench), 10)

    assert sorted(flagged) == sorted([(first, "default", "a"), (second, "default", "b")])
    assert flags(bench, first, second, other, later) == [REASON, REASON, "", ""]
    after = bench.job(first)
    assert (after.version, after.next_run_us, after.replan) == (before.version, before.next_run_us, before.replan)
    assert bench.store.upcoming_tasks(everywhere(bench), until(bench)) == [("", "t.b")]
    assert bench.store.flagged_tasks() == [("", "t.a")]


def test_flagging_again_changes_nothing(bench):
    add(bench, "a", task="t.a")

    assert len(bench.store.flag_jobs("", "t.a", REASON, until(bench), 10)) == 1
    assert bench.store.flag_jobs("", "t.a", REASON, until(bench), 10) == []


def test_a_pool_is_flagged_by_itself(bench):
    bench.add_tenant("gold", pool="chrono.gold")
    default, gold = add(bench, "a", task="t.a"), add(bench, "b", task="t.a", tenant="gold")

    bench.store.flag_jobs("chrono.gold", "t.a", REASON, until(bench), 10)

    assert flags(bench, default, gold) == ["", REASON]


def test_a_flag_is_taken_away_also_where_the_next_run_is_far_off(bench):
    job = add(bench, "a", task="t.a")
    bench.store.flag_jobs("", "t.a", REASON, until(bench), 10)
    bench.edit(job, next_run_us=bench.store.now_us() + FAR_US)

    assert bench.store.flag_jobs("", "t.a", "", until(bench), 10) == [(job, "default", "a")]
    assert flags(bench, job) == [""] and bench.store.flagged_tasks() == []
    assert bench.store.flag_jobs("", "t.a", "", until(bench), 10) == []


def test_no_more_jobs_than_the_limit_are_flagged_at_once(bench):
    for n in range(5):
        add(bench, f"j{n}", task="t.a")

    counts = [len(bench.store.flag_jobs("", "t.a", REASON, until(bench), 2)) for _ in range(4)]

    assert counts == [2, 2, 1, 0]


def test_the_queues_of_message_targets_are_told_and_of_no_others(bench):
    mail = add(bench, "mail", task="t.mail", target_kind="message", queue="mail")
    other = add(bench, "other", task="t.other")
    empty = add(bench, "empty", task="t.mail", target_kind="message")
    gone = add(bench, "gone", task="t.mail", target_kind="message", queue="mail")
    shadow = add(bench, "shadow", task="t.mail", target_kind="shadow", queue="gold")
    bench.delete(gone)

    assert bench.store.message_queues([mail, other, empty, gone, shadow, "", "no id"]) == {mail: "mail", shadow: None}
    assert bench.store.message_queues([]) == {}


def test_skips_in_a_row_are_counted_back_to_the_last_that_started(bench):
    now = bench.store.now_us() // SECOND * SECOND
    skipped = {"state": "skipped", "reason": "overlap", "finished_us": now}

    def history(name, *rows):
        job = add(bench, name)
        for number, values in enumerate(rows):
            bench.set_row(bench.add_execution(job, now - (20 - number) * SECOND), **values)
        return job

    hung = history("hung", {"state": "running", "started_us": now}, *[skipped] * 7)
    ended = history("ended", *[skipped] * 3, {"state": "succeeded", "started_us": now, "finished_us": now}, skipped, skipped)
    idle = history("idle", skipped, {"state": "cancelled", "finished_us": now}, {"state": "skipped", "reason": "paused"}, {})

    new = add(bench, "new")

    assert bench.store.skips_in_a_row([hung, ended, idle, new], 5) == {hung: 5, ended: 2, idle: 1, new: 0}
