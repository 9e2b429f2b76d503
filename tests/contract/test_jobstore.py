"""What every JobStore promises about claims, holds and outcomes: on memory, SQLite and PostgreSQL alike."""
from __future__ import annotations

import pytest

from chrono_beat.core.ids import execution_id
from chrono_beat.core.records import GONE_VERSION, Claim, DueJob, Ending, NewAttempt, Occurrence, RetryPolicy, Start

SECOND = 1_000_000
MINUTE = 60 * SECOND
LEASE = 5 * SECOND
ALL = list(range(8))


@pytest.fixture
def past(store) -> int:
    """A whole second, one minute ago."""
    return store.now_us() // SECOND * SECOND - MINUTE


@pytest.fixture
def epochs(store) -> dict[int, int]:
    """All partitions, taken by the member "a"."""
    return store.take_partitions("a", ALL, 600 * SECOND)


def due(store, limit=100) -> list[DueJob]:
    return store.due_jobs(ALL, store.now_us() + MINUTE, limit)


def claim_of(job: DueJob, epochs, *, next_us=..., occurrences=None) -> Claim:
    """Claim a job for the instant it is due, and the next one a minute later."""
    return Claim(
        job.job_id, job.partition, job.version, job.next_run_us, epochs[job.partition],
        job.next_run_us + MINUTE if next_us is ... else next_us,
        [Occurrence(job.next_run_us, job.next_run_us)] if occurrences is None else occurrences, job.content,
    )


def claimed(store, epochs, **options):
    """Claim all that is due."""
    return store.claim("a", [claim_of(job, epochs, **options) for job in due(store)])


def ending(key: str, state: str = "succeeded", **values) -> Ending:
    facts = {"reason": "", "finished_us": 1_767_344_460_000_000, "worker": "w1", "deliveries": 1, "error": ""}
    return Ending(key, state, **facts | values)


# -- the due index
# ------------------------------------------------------------------------------------------------------


def test_due_jobs_come_oldest_first_within_a_partition_and_no_more_than_asked(bench, store, past):
    for minutes in (3, 1, 2):
        bench.add_job(f"job {minutes}", next_run_us=past - minutes * MINUTE, partition=1)
    bench.add_job("elsewhere", next_run_us=past, partition=2)
    bench.add_job("not yet", next_run_us=past + 3600 * SECOND, partition=1)

    assert [job.content.name for job in store.due_jobs([1], past, 100)] == ["job 3", "job 2", "job 1"]
    assert [job.content.name for job in store.due_jobs([1], past, 2)] == ["job 3", "job 2"]
    assert [job.content.name for job in store.due_jobs([1, 2], past, 100)] == ["job 3", "job 2", "job 1", "elsewhere"]
    assert store.due_jobs([], past, 100) == []


def test_due_jobs_leaves_out_whom_it_is_told_to(bench, store, past):
    for number, tenant in enumerate(("a", "b", "null", "a", "c")):
        bench.add_job(f"job {number}", tenant=tenant, next_run_us=past - MINUTE + number, partition=1)

    assert [job.content.tenant for job in store.due_jobs([1], past, 2, ["a", "null"])] == ["b", "c"]
    assert [job.content.tenant for job in store.due_jobs([1], past, 2)] == ["a", "b"]


def test_a_due_job_carries_its_columns_byte_for_byte(bench, store, past):
    bench.add_tenant("acme", pool="gold", spread_seconds=30)
    args, kwargs = '[1,  2.50, "ü\\u0000\\"{}"]', '{"b": 1, "a": "C:\\\\x"}'
    job_id = bench.add_job(
        "n, \"q\"", tenant="acme", next_run_us=past + 1, schedule_kind="cron", expression="0 9 * * *",
        timezone="Europe/London", start_us=past - 7, end_us=past + MINUTE, anchor_us=past, misfire="all", misfire_cap=7,
        grace_seconds=1.5, args=args, kwargs=kwargs, headers='{"h": 1}', priority=2, soft_limit_seconds=2.5,
        max_duration_seconds=None, expires_after_seconds=90, concurrency="allow", key_scope="attempt", version=4,
        exclusion_group="é g")

    job, = due(store)

    assert job == DueJob(
        job_id, job.partition, past + 1, 4, "cron", "0 9 * * *", "Europe/London", past - 7, past + MINUTE, past, 30,
        "all", 7, 1.5, job.content, False)
    assert tuple(job.content) == (
        "acme", 'n, "q"', "tests.noop", args, kwargs, '{"h": 1}', "gold", 2, 2.5, None, 90, "allow", "attempt", "é g")


def test_a_jobs_own_pool_and_spread_go_before_its_tenants(bench, store, past):
    bench.add_tenant("acme", pool="gold", spread_seconds=30)
    bench.add_job("own", tenant="acme", next_run_us=past, pool="silver", spread_seconds=0, partition=0)
    bench.add_job("nobody's", tenant="no such tenant", next_run_us=past, partition=1)

    own, nobodys = due(store)

    assert (own.content.pool, own.spread_seconds) == ("silver", 0)
    assert (nobodys.content.pool, nobodys.spread_seconds) == ("", 0)


def test_a_poisoned_job_is_quarantined_with_a_reason_and_its_neighbours_stay(bench, store, past):
    bad = bench.add_job("bad", next_run_us=past, expression="61 * * * *", schedule_kind="cron")
    bench.add_job("good", next_run_us=past)

    assert not store.quarantine(bad, 2, "another version")
    assert store.quarantine(bad, 1, "minute 61 does not exist")

    assert [job.content.name for job in due(store)] == ["good"]
    assert (bench.job(bad).next_run_us, bench.job(bad).quarantined_reason) == (None, "minute 61 does not exist")


# -- claim
# --------------------------------------------------------------------------------------------------------------


def test_a_claim_advances_the_job_and_writes_its_row(bench, store, epochs, past):
    job_id = bench.add_job("j", next_run_us=past)
    job, = due(store)

    got, = store.claim("a", [claim_of(job, epochs, occurrences=[Occurrence(past, past + 7 * SECOND)])])

    assert got.execution_id == execution_id(job_id, past, 1)
    assert (got.scheduled_us, got.due_us, got.first_due_us) == (past, past + 7 * SECOND, past + 7 * SECOND)
    assert (got.job_id, got.partition, got.attempt, got.retries, got.kind, got.version, got.content) == (
        job_id, job.partition, 1, 0, "schedule", 1, job.content)
    row, = bench.rows()
    assert (row.state, row.holder_epoch, row.job_version, row.tenant, row.job_name) == (
        "scheduled", epochs[job.partition], 1, "default", "j")
    assert bench.job(job_id).next_run_us == past + MINUTE
    assert due(store)[0].next_run_us == past + MINUTE


def test_inv02_a_claim_repeated_writes_nothing_twice(bench, store, epochs, past):
    bench.add_job("j", next_run_us=past)
    claim = claim_of(due(store)[0], epochs)

    first, second = store.claim("a", [claim]), store.claim("a", [claim])

    assert (len(first), second, len(bench.rows())) == (1, [], 1)


@pytest.mark.parametrize("change", [{"epoch": 99}, {"next_run_us": 5}, {"version": 2}, {"partition": 99}])
def test_inv02_a_claim_of_what_is_no_longer_so_changes_nothing_and_the_others_go_on(bench, store, epochs, past, change):
    stale = bench.add_job("stale", next_run_us=past, partition=3)
    fresh = bench.add_job("fresh", next_run_us=past, partition=3)
    claims = [claim_of(job, epochs) for job in due(store)]

    got = store.claim("a", [c._replace(**change) if c.job_id == stale else c for c in claims])

    assert [row.job_id for row in got] == [fresh] == [row.job_id for row in bench.rows()]
    assert bench.job(stale).next_run_us == past


def test_inv02_a_deposed_dispatchers_claim_and_hold_change_nothing(bench, store, epochs, past):
    job_id = bench.add_job("j", next_run_us=past)
    free = bench.add_execution(job_id, past - MINUTE)
    job, = due(store)
    bench.pass_time(601 * SECOND)
    store.take_partitions("b", ALL, LEASE)

    assert store.claim("a", [claim_of(job, epochs)]) == []
    assert store.claim("b", [claim_of(job, epochs)]) == []
    assert store.load_scheduled(epochs, store.now_us(), 10) == []
    assert bench.job(job_id).next_run_us == past
    assert [(row.execution_id, row.holder_epoch) for row in bench.rows()] == [(free, 0)]


def test_who_released_a_partition_claims_nothing_more(bench, store, epochs, past):
    bench.add_job("j", next_run_us=past)
    job, = due(store)

    store.release_partitions("a", epochs)

    assert store.claim("a", [claim_of(job, epochs)]) == []


def test_a_claim_writes_several_occurrences_and_the_missed_ones_as_one(bench, store, epochs, past):
    job_id = bench.add_job("j", next_run_us=past - 5 * MINUTE)
    occurrences = [Occurrence(past - 2 * MINUTE, past - 2 * MINUTE, "missed", 4, past - 5 * MINUTE),
                   Occurrence(past - MINUTE, past - MINUTE), Occurrence(past, past)]

    got = claimed(store, epochs, next_us=past + MINUTE, occurrences=occurrences)

    assert [row.scheduled_us for row in got] == [past - MINUTE, past]
    missed, *rest = bench.rows(job_id)
    assert (missed.state, missed.reason, missed.missed_count, missed.first_missed_us) == (
        "missed", "misfire", 4, past - 5 * MINUTE)
    assert missed.finished_us is not None
    assert [row.state for row in rest] == ["scheduled", "scheduled"]
    assert [(tenant, minute["missed"]) for (tenant, _), minute in bench.rollups().items()] == [("default", 4)]


def test_a_claim_without_occurrences_only_plans_anew(bench, store, epochs, past):
    job_id = bench.add_job("j", next_run_us=past, replan=True)
    job, = due(store)
    assert job.replan

    assert store.claim("a", [claim_of(job, epochs, next_us=past + 3600 * SECOND, occurrences=[])]) == []

    assert (bench.job(job_id).next_run_us, bench.job(job_id).replan, bench.rows()) == (past + 3600 * SECOND, False, [])


def test_claims_keep_their_order_and_a_job_counts_once_in_a_batch(bench, store, epochs, past):
    for number in range(5):
        bench.add_job(f"job {number}", next_run_us=past, partition=3)
    claims = [claim_of(job, epochs) for job in due(store)][::-1]

    got = store.claim("a", [*claims, claims[0]._replace(new_next_run_us=past + 2 * MINUTE)])

    assert [row.job_id for row in got] == [claim.job_id for claim in claims]
    assert bench.job(claims[0].job_id).next_run_us == past + MINUTE
    assert store.claim("a", []) == []


def test_a_claim_may_reach_beyond_the_days_that_are_prepared(bench, store, epochs, past):
    job_id = bench.add_job("j", next_run_us=past)
    far = past + 400 * 86_400 * SECOND

    got = claimed(store, epochs, occurrences=[Occurrence(0, 0), Occurrence(far, far)])

    assert [row.scheduled_us for row in got] == [0, far]
    assert store.mark_queued([(row.execution_id, past) for row in got]) == 2
    assert {row.state for row in bench.rows(job_id)} == {"queued"}


# -- taking over in place (protocol rule 7)
# -----------------------------------------------------------------------------


@pytest.mark.parametrize("neighbours", [0, 3])
def test_an_edits_claim_takes_over_the_open_row_in_place(bench, store, epochs, past, neighbours):
    job_id = bench.add_job("j", next_run_us=past)
    claimed(store, epochs)
    bench.edit(job_id, next_run_us=past, task="tests.other")
    for number in range(neighbours):
        bench.add_job(f"neighbour {number}", next_run_us=past)

    got = {row.job_id: row for row in store.claim("a", [claim_of(job, epochs) for job in due(store)])}

    assert len(got) == 1 + neighbours
    assert (got[job_id].version, got[job_id].content.task) == (2, "tests.other")
    row, = bench.rows(job_id)
    assert (row.state, row.job_version, row.holder_epoch) == ("scheduled", 2, epochs[row.partition])


def test_inv02_a_claim_leaves_an_occurrence_that_has_ended_alone(bench, store, epochs, past):
    job_id = bench.add_job("j", next_run_us=past)
    key = claimed(store, epochs)[0].execution_id
    store.record([], [ending(key)], [])
    bench.edit(job_id, next_run_us=past)

    assert claimed(store, epochs) == []

    row, = bench.rows(job_id)
    assert (row.state, row.job_version) == ("succeeded", 1)
    assert bench.job(job_id).next_run_us == past + MINUTE


def test_a_waiting_row_that_is_missed_by_now_becomes_the_missed_row(bench, store, epochs, past):
    job_id = bench.add_job("j", next_run_us=past)
    claimed(store, epochs)
    bench.edit(job_id, next_run_us=past)

    assert claimed(store, epochs, occurrences=[Occurrence(past, past, "missed", 1, past)]) == []

    assert [(row.state, row.missed_count) for row in bench.rows(job_id)] == [("missed", 1)]
    assert [minute["missed"] for minute in bench.rollups().values()] == [1]


# -- what a wheel holds
# -------------------------------------------------------------------------------------------------


def test_load_scheduled_takes_what_no_wheel_holds_oldest_first_and_once(bench, store, epochs, past):
    job_id = bench.add_job("j", next_run_us=None, paused=True)
    keys = [bench.add_execution(job_id, past - minutes * MINUTE) for minutes in (3, 2, 1)]
    bench.add_execution(job_id, past + 3600 * SECOND)

    first = store.load_scheduled(epochs, past, 2)

    assert [row.execution_id for row in first] == keys[:2]
    assert (first[0].kind, first[0].version, first[0].content.task) == ("manual", 1, "tests.noop")
    assert [row.execution_id for row in store.load_scheduled(epochs, past, 2)] == keys[2:]
    assert store.load_scheduled(epochs, past, 2) == []
    partition = bench.job(job_id).partition
    assert [row.holder_epoch for row in bench.rows()] == [epochs[partition]] * 3 + [0]


def test_load_scheduled_leaves_out_whom_it_is_told_to_and_finds_them_later(bench, store, epochs, past):
    keys = [bench.add_execution(bench.add_job("j", tenant=tenant, next_run_us=None, paused=True), past - MINUTE + number)
            for number, tenant in enumerate(("a", "null", "b"))]

    assert [row.execution_id for row in store.load_scheduled(epochs, past, 10, ["a", "null"])] == keys[2:]
    assert [row.execution_id for row in store.load_scheduled(epochs, past, 10)] == keys[:2]


def test_of_a_dead_dispatchers_rows_those_left_out_are_found_later(bench, store, epochs, past):
    for number, tenant in enumerate(("a", "a", "b")):
        bench.add_job(f"j{number}", tenant=tenant, next_run_us=past, partition=3)
    assert len(claimed(store, epochs)) == 3
    bench.pass_time(601 * SECOND)
    mine = store.take_partitions("b", ALL, LEASE)

    loads = [store.load_scheduled(mine, past, 10, without) for without in (["a"], [], [])]

    assert [[row.content.tenant for row in load] for load in loads] == [["b"], ["a", "a"], []]


def test_load_scheduled_uses_a_rows_own_arguments(bench, store, epochs, past):
    job_id = bench.add_job("j", next_run_us=None, paused=True, args="[1]")
    key = bench.add_execution(job_id, past)
    bench.set_row(key, kwargs='{"own": true}')

    row, = store.load_scheduled(epochs, past, 10)

    assert (row.content.args, row.content.kwargs) == ("[1]", '{"own": true}')


def test_load_scheduled_finds_what_a_dead_dispatcher_held(bench, store, epochs, past):
    """Also what comes due only later: the look for left-behind rows goes on until there is none."""
    for minutes in (2, 1, 0):
        bench.add_job(f"j{minutes}", next_run_us=past - minutes * MINUTE, partition=3)
    keys = [row.execution_id for row in claimed(store, epochs)]
    assert store.load_scheduled(epochs, past, 10) == []
    bench.pass_time(601 * SECOND)
    mine = store.take_partitions("b", ALL, LEASE)

    loads = [store.load_scheduled(mine, until, 10) for until in (past - 2 * MINUTE, past - MINUTE, past, past)]

    assert [[row.execution_id for row in load] for load in loads] == [keys[:1], keys[1:2], keys[2:], []]


def test_load_scheduled_bounds_what_it_takes_of_a_dead_dispatcher(bench, store, epochs, past):
    for number in range(5):
        bench.add_job(f"job {number}", next_run_us=past, partition=number)
    assert len(claimed(store, epochs)) == 5
    bench.add_execution(bench.add_job("free", next_run_us=None, paused=True), past)
    bench.pass_time(601 * SECOND)
    mine = store.take_partitions("b", ALL, LEASE)

    assert [len(store.load_scheduled(mine, past, 4)) for _ in range(3)] == [4, 2, 0]


def test_load_scheduled_leaves_old_versions_and_cancelled_rows_alone(bench, store, epochs, past):
    job_id = bench.add_job("j", next_run_us=None, paused=True)
    bench.add_execution(job_id, past - MINUTE)
    bench.edit(job_id, expression="90")
    cancelled = bench.add_execution(job_id, past)
    bench.set_row(cancelled, cancel_requested_us=past)
    gone = bench.add_job("gone", next_run_us=None, paused=True)
    bench.add_execution(gone, past)
    bench.delete(gone)

    assert store.load_scheduled(epochs, past, 10) == []
    assert {row.holder_epoch for row in bench.rows()} == {0}


def test_forgotten_holds_are_found_again(bench, store, epochs, past):
    bench.add_job("j", next_run_us=past)
    key = claimed(store, epochs)[0].execution_id

    store.forget_holds({number: epoch + 1 for number, epoch in epochs.items()})
    assert store.load_scheduled(epochs, past, 10) == []
    store.forget_holds(epochs)

    assert [row.execution_id for row in store.load_scheduled(epochs, past, 10)] == [key]


def test_only_scheduled_rows_become_queued(bench, store, epochs, past):
    keys = []
    for number in range(3):
        bench.add_job(f"job {number}", next_run_us=past - number * MINUTE, partition=0)
    keys = [row.execution_id for row in claimed(store, epochs)]
    store.record([Start(keys[0], past, "w", 1)], [ending(keys[1])], [])

    moved = store.mark_queued([(key, past + 5) for key in keys] + [("no such id", 1), (keys[0] + "7", 1)])

    assert moved == 1
    rows = {row.execution_id: (row.state, row.published_us) for row in bench.rows()}
    assert rows == {keys[0]: ("running", past + 5), keys[1]: ("succeeded", past + 5), keys[2]: ("queued", past + 5)}


# -- record
# -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def key(bench, store, epochs, past) -> str:
    """A claimed execution of a job that goes on."""
    bench.add_job("j", next_run_us=past)
    return claimed(store, epochs)[0].execution_id


def test_open_executions_come_with_their_jobs_retry_policy(bench, store, epochs, past):
    policy = RetryPolicy(5, True, 1.5, 3.0, 60.0, 0.5)
    explicit = bench.add_job("explicit", next_run_us=past - MINUTE, retry=policy, partition=0)
    bench.add_job("default", next_run_us=past, partition=0)
    gone = bench.add_job("gone", next_run_us=past, partition=1)
    keys = [row.execution_id for row in claimed(store, epochs)]
    bench.delete(gone)

    found = store.open_executions([*keys, "no such id", execution_id(explicit, past + 1, 1)])

    first = found[keys[0]]
    assert set(found) == set(keys)
    assert first[:7] == (keys[0], explicit, "default", 0, past - MINUTE, past - MINUTE, 1)
    assert first[7:] == (0, "scheduled", 1, policy, past - MINUTE)
    assert found[keys[1]].retry == RetryPolicy(1, False, 30.0, 2.0, 3600.0, 0.2)
    assert found[keys[2]].retry[:2] == (1, True)
    store.record([], [ending(k) for k in keys], [])
    assert store.open_executions(keys) == {}


def test_a_start_and_an_end_are_recorded(bench, store, key, past):
    store.mark_queued([(key, past + 1)])
    assert store.record([Start(key, past + 2, "w1", 1)], [], []) == ([], [], [("default", 2)])
    running, = bench.rows()

    result = store.record([], [ending(key, "dead", reason="error", error='Boom: "\\{} ü\n', finished_us=past + 3)], [])

    assert (running.state, running.started_us, running.worker, running.deliveries) == ("running", past + 2, "w1", 1)
    assert (list(result.ended), list(result.ignored)) == ([key], [])
    row, = bench.rows()
    assert (row.state, row.reason, row.finished_us, row.error) == ("dead", "error", past + 3, 'Boom: "\\{} ü\n')


def test_what_a_success_brought_is_kept(bench, store, key):
    store.record([], [ending(key, result="204 in 'ü' 35 ms")], [])

    row, = bench.rows()
    assert (row.state, row.result) == ("succeeded", "204 in 'ü' 35 ms")


def test_rule01_the_first_end_counts_and_the_later_ones_are_ignored(bench, store, key):
    assert store.record([], [ending(key), ending(key, "dead")], [])[:2] == ([key], [])
    result = store.record([], [ending(key, "dead"), ending("no such id"), ending(key[:-1] + "9")], [])

    assert (result.ended, result.ignored) == ([], [key, "no such id", key[:-1] + "9"])
    assert [row.state for row in bench.rows()] == ["succeeded"]


@pytest.mark.parametrize(("before", "end"), [("running", "skipped"), ("running", "expired"), ("queued", "missed")])
def test_rule01_an_end_leaves_only_the_states_that_the_table_names(bench, store, key, before, end):
    bench.set_row(key, state=before)

    assert store.record([], [ending(key, end)], []).ignored == [key]
    assert [row.state for row in bench.rows()] == [before]


def test_a_start_that_comes_after_the_end_only_fills_in_the_start(bench, store, key, past):
    store.record([], [ending(key, worker="w1", deliveries=2)], [])

    store.record([Start(key, past + 2, "other", 1)], [], [])
    store.record([Start(key, past + 9, "third", 3)], [], [])

    row, = bench.rows()
    assert (row.state, row.started_us, row.worker, row.deliveries) == ("succeeded", past + 2, "w1", 2)


def test_a_row_shows_its_latest_delivery_whatever_the_order_of_the_starts(bench, store, key, past):
    store.record([Start(key, past + 2, "w2", 2), Start(key, past + 1, "w1", 1)], [], [])
    store.record([Start(key, past + 1, "w1", 1)], [], [])

    row, = bench.rows()
    assert (row.started_us, row.worker, row.deliveries) == (past + 2, "w2", 2)


def test_an_end_keeps_the_worker_and_the_higher_count_of_deliveries(bench, store, key, past):
    store.record([Start(key, past, "w1", 3)], [ending(key, worker="", deliveries=2)], [])

    row, = bench.rows()
    assert (row.state, row.worker, row.deliveries) == ("succeeded", "w1", 3)


def test_rule11_a_decision_of_another_version_or_generation_is_ignored_and_a_real_outcome_is_not(bench, store, key):
    raised = store.raise_generation(0, 0, "server")
    for wrong in ({"if_version": 2}, {"if_generation": 0}, {"if_generation": 1, "if_version": 2}):
        assert store.record([], [ending(key, "skipped", reason="overlap", **wrong)], []).ignored == [key]

    fitting = ending(key, "dead", if_generation=raised.generation, if_version=1)
    result = store.record([], [ending(key, "skipped", if_version=2), fitting], [])

    assert result.ended == [key]
    assert [row.state for row in bench.rows()] == ["dead"]


def test_a_next_attempt_is_written_only_with_the_end_of_the_one_before(bench, store, key, past):
    bench.set_row(key, args="[7]")
    attempt = NewAttempt(key, 2, 1, past + 30 * SECOND, kwargs='{"n": 1}')
    assert store.record([], [ending(key, "failed", if_version=2)], [attempt]).ignored == [key]
    assert len(bench.rows()) == 1

    store.record([], [ending(key, "failed", reason="error")], [attempt])
    store.record([], [ending(key, "failed", reason="error")], [attempt._replace(attempt=3)])

    first, second = bench.rows()
    assert (first.state, second.execution_id) == ("failed", key[:-1] + "2")
    assert (second.state, second.kind, second.attempt, second.retries, second.due_us, second.first_due_us) == (
        "scheduled", "retry", 2, 1, past + 30 * SECOND, first.first_due_us)
    assert (second.args, second.kwargs, second.job_version, second.holder_epoch) == ("[7]", '{"n": 1}', 1, 0)


def test_many_outcomes_are_recorded_at_once(bench, store, epochs, past):
    for number in range(60):
        bench.add_job(f"job {number}", next_run_us=past)
    keys = [row.execution_id for row in claimed(store, epochs)]

    result = store.record([Start(key, past, "w", 1) for key in keys], [ending(key) for key in keys[:50]], [])

    assert (set(result.ended), result.ignored) == (set(keys[:50]), [])
    assert sorted(row.state for row in bench.rows()) == ["running"] * 10 + ["succeeded"] * 50
    assert store.record([], [], [])[:2] == ([], [])


# -- the end of a schedule
# ----------------------------------------------------------------------------------------------


def test_a_one_off_lets_go_of_its_name_when_its_last_attempt_has_ended(bench, store, epochs, past):
    job_id = bench.add_job("once", next_run_us=past, schedule_kind="once")
    key = claimed(store, epochs, next_us=None)[0].execution_id
    assert bench.job(job_id).finished_us is None

    store.record([], [ending(key, "failed")], [NewAttempt(key, 2, 1, past)])
    assert bench.job(job_id).finished_us is None
    store.record([], [ending(key[:-1] + "2")], [])

    assert bench.job(job_id).finished_us is not None
    bench.add_job("once", next_run_us=past)


def test_a_one_off_that_was_missed_is_over_at_once(bench, store, epochs, past):
    job_id = bench.add_job("once", next_run_us=past, schedule_kind="once")

    claimed(store, epochs, next_us=None, occurrences=[Occurrence(past, past, "missed", 1, past)])

    assert bench.job(job_id).finished_us is not None


def test_a_schedule_that_ends_waits_for_its_open_executions(bench, store, epochs, past):
    job_id = bench.add_job("j", next_run_us=past)
    key = claimed(store, epochs)[0].execution_id

    claimed(store, epochs, next_us=None, occurrences=[])
    assert bench.job(job_id).finished_us is None
    store.record([], [ending(key)], [])

    assert bench.job(job_id).finished_us is not None


@pytest.mark.parametrize("values", [{"paused": True}, {"quarantined_reason": "bad"}])
def test_a_job_without_next_run_for_another_reason_is_not_over(bench, store, epochs, past, values):
    job_id = bench.add_job("j", next_run_us=past)
    key = claimed(store, epochs)[0].execution_id
    bench.edit(job_id, next_run_us=None, **values)

    store.record([], [ending(key)], [])

    assert bench.job(job_id).finished_us is None


# -- audit and keeper
# ---------------------------------------------------------------------------------------------------


def test_rule08_superseded_rows_are_those_that_nobody_may_publish_any_more(bench, store, epochs, past):
    jobs = {}
    for name in ("passed", "met by a claim", "taken over by the scan", "paused", "gone", "running", "fresh", "early"):
        jobs[name] = bench.add_job(name, next_run_us=past, partition=2)
    keys = {row.content.name: row.execution_id for row in claimed(store, epochs)}
    store.mark_queued([(keys["paused"], past)])
    store.record([Start(keys["running"], past, "w", 1)], [], [])
    for name in ("passed", "running"):
        bench.edit(jobs[name], expression="90", next_run_us=past + MINUTE)
    bench.edit(jobs["met by a claim"], expression="90", next_run_us=past)
    bench.edit(jobs["taken over by the scan"], args="[2]")
    bench.edit(jobs["paused"], next_run_us=None, paused=True)
    bench.edit(jobs["early"], expression="90", next_run_us=None)
    bench.set_row(keys["early"], due_us=store.now_us() + 3600 * SECOND)
    bench.delete(jobs["gone"])

    found = store.superseded(ALL, 10)

    assert sorted(found) == sorted([
        (keys["passed"], jobs["passed"], "default", 2), (keys["paused"], jobs["paused"], "default", 2),
        (keys["gone"], jobs["gone"], "default", GONE_VERSION)])
    assert len(store.superseded(ALL, 2)) == 2
    assert store.superseded([0, 1], 10) == []
    assert (keys["running"], jobs["running"], "default", 2) in store.superseded(ALL, 10, running=True)


def test_tenant_limits_are_all_that_differ_or_what_changed(bench, store):
    bench.add_tenant("plain")
    before = store.now_us()
    bench.pass_time(10 * SECOND)
    bench.add_tenant("heavy", weight=3, max_running=7)
    bench.add_tenant("asleep", paused=True)

    assert [limit.tenant for limit in store.tenant_limits_after("", 1)] == ["asleep"]
    assert store.tenant_limits_after("asleep", 9) == [limit for limit in store.tenant_limits(0) if limit.tenant == "heavy"]

    limits = {limit.tenant: limit for limit in store.tenant_limits(0)}

    assert set(limits) == {"heavy", "asleep"}
    assert limits["heavy"][1:4] == (3, 7, False)
    assert limits["asleep"][1:4] == (1, 20, True)
    assert {limit.tenant for limit in store.tenant_limits(before)} >= {"heavy", "asleep"}
    assert store.tenant_limits(max(limit.changed_us for limit in limits.values()) + 6 * SECOND) == []


def test_keep_removes_what_ended_before_the_retention_and_nothing_that_is_open(bench, store, epochs, past):
    """The rows are of a day long ago: how soon rows of a recent day go is the engine's affair."""
    for number in range(4):
        bench.add_job(f"job {number}", next_run_us=past - 400 * 86_400 * SECOND - number * MINUTE, partition=0)
    keys = [row.execution_id for row in claimed(store, epochs, next_us=None)]
    store.record([], [ending(key, finished_us=past) for key in keys[:2]], [])
    store.record([], [ending(keys[2], finished_us=past + 50 * SECOND)], [])

    went = store.keep(past + 60 * SECOND, 30 * SECOND, 10)

    assert went == 2
    assert {row.execution_id for row in bench.rows()} == set(keys[2:])
    assert store.keep(past + 60 * SECOND, 30 * SECOND, 10) == 0


def test_keep_removes_no_more_than_asked(bench, store, epochs, past):
    for number in range(4):
        bench.add_job(f"job {number}", next_run_us=past - 400 * 86_400 * SECOND - number * MINUTE)
    keys = [row.execution_id for row in claimed(store, epochs)]
    store.record([], [ending(key, finished_us=past) for key in keys], [])

    assert [store.keep(past + MINUTE, 0, 3) for _ in range(3)] == [3, 1, 0]
