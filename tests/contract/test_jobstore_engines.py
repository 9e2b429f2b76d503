"""What only a real engine can get wrong: broken connections, plans of queries, days' tables, unreadable rows."""
from __future__ import annotations

import threading
from contextlib import suppress
from datetime import timedelta

import pytest
from django.db import connections, transaction

from chrono_beat.core.errors import StoreUnavailable
from chrono_beat.core.ids import execution_id, from_us, partition_of
from chrono_beat.core.lifecycle import TERMINAL
from chrono_beat.core.records import Claim, Ending, Occurrence
from chrono_beat.testing.patience import eventually
from chrono_beat_django import executions
from chrono_beat_django.models import Job
from chrono_beat_django.store import (
    postgres_audit,
    postgres_claim,
    postgres_claims,
    postgres_days,
    postgres_edits,
    postgres_holds,
    postgres_records,
    sqlite_audit,
    sqlite_claims,
)
from chrono_beat_django.store.postgres_sql import array, bounds, held_parameters, key_parameters
from chrono_beat_django.store.sqlite_sql import text

SECOND = 1_000_000
MINUTE = 60 * SECOND
DAY = 86_400 * SECOND
ALL = list(range(8))
MANY = 1_000_000


# -- broken connections -----------------------------------------------------------------------------------------------


@pytest.mark.postgres
def test_r115_a_connection_that_the_server_ended_costs_one_call(postgres_bench):
    """The server ends idle connections, as a proxy or a restart does."""
    store = postgres_bench.store
    with connections[postgres_bench.alias].cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        pid = cursor.fetchone()[0]
    _end_backend(postgres_bench, pid)

    with pytest.raises(StoreUnavailable):
        store.take_partitions("a", ALL, MINUTE)

    assert len(store.take_partitions("a", ALL, MINUTE)) == 8


@pytest.mark.postgres
def test_r115_a_connection_that_breaks_in_a_transaction_leaves_nothing(postgres_bench):
    store, past = postgres_bench.store, postgres_bench.store.now_us() // SECOND * SECOND
    job_id = postgres_bench.add_job("j", next_run_us=past)
    epochs = store.take_partitions("a", ALL, MINUTE)
    job, = store.due_jobs(ALL, past, 10)
    key = store.claim("a", [_claim(job, epochs, None)])[0].execution_id

    def end_it(execute, sql, params, many, context):
        answer = execute(sql, params, many, context)
        if sql == postgres_records.END:
            _end_backend(postgres_bench, connections[postgres_bench.alias].connection.info.backend_pid)
        return answer

    ending = Ending(key, "succeeded", "", past, "w", 1, "")
    with connections[postgres_bench.alias].execute_wrapper(end_it), pytest.raises(StoreUnavailable):
        store.record([], [ending], [])

    assert [row.state for row in postgres_bench.rows()] == ["scheduled"]
    assert store.record([], [ending], []).ended == [key]
    assert postgres_bench.job(job_id).finished_us is not None


def test_a_store_used_inside_a_transaction_is_undone_with_it(sqlite_bench):
    _used_inside_a_transaction(sqlite_bench)


@pytest.mark.postgres
def test_a_store_used_inside_a_transaction_is_undone_with_it_on_postgres(postgres_bench):
    _used_inside_a_transaction(postgres_bench)


def _used_inside_a_transaction(bench):
    store, past = bench.store, bench.store.now_us() // SECOND * SECOND
    bench.add_job("j", next_run_us=past)
    epochs = store.take_partitions("a", ALL, MINUTE)
    job, = store.due_jobs(ALL, past, 10)

    with transaction.atomic(using=bench.alias):
        assert len(store.claim("a", [_claim(job, epochs, past + MINUTE)])) == 1
        transaction.set_rollback(True, using=bench.alias)

    assert (bench.rows(), bench.job(job.job_id).next_run_us) == ([], past)


def _end_backend(bench, pid):
    settings = connections[bench.alias].settings_dict
    connections.databases["contract_killer"] = settings
    with connections["contract_killer"].cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    connections["contract_killer"].close()
    del connections.databases["contract_killer"]


def _claim(job, epochs, next_us):
    return Claim(job.job_id, job.partition, job.version, job.next_run_us, epochs[job.partition], next_us,
                 [Occurrence(job.next_run_us, job.next_run_us)], job.content)


# -- rows that can't be read ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spoil", [
    "start_at = '2026-13-45 00:00:00'", "version = 'x'", "priority = 'high'", "args = x'ff'", "grace_seconds = 'long'",
    "anchor_at = '2026-01-01 09:00:00+02:00 or so'", "id = 'zz'",
])
def test_a_row_that_sqlite_let_pass_is_quarantined_and_999_neighbours_are_due(sqlite_bench, spoil):
    """SQLite takes any value in any column."""
    past = sqlite_bench.store.now_us() // SECOND * SECOND
    bad = sqlite_bench.add_job("bad", next_run_us=past, partition=0)
    Job.objects.using(sqlite_bench.alias).bulk_create(
        Job(name=f"good {number}", next_run_at=from_us(past), expression="* * * * *") for number in range(999))
    sqlite_bench.execute("PRAGMA ignore_check_constraints = ON")
    sqlite_bench.execute(f"UPDATE chrono_job SET {spoil} WHERE name = 'bad'")
    sqlite_bench.execute("UPDATE chrono_job SET next_run_at = %s WHERE name = 'bad'", text(past))
    sqlite_bench.execute("PRAGMA ignore_check_constraints = OFF")

    due = sqlite_bench.store.due_jobs(ALL, past, 2000)

    assert len(due) == 999
    assert bad not in {job.job_id for job in due}
    rows = sqlite_bench.store.rows("SELECT next_run_at IS NULL, quarantined_reason FROM chrono_job WHERE name = 'bad'")
    assert rows[0][0] == 1
    assert "can't be read" in rows[0][1]


# -- plans ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def million(postgres_bench):
    """A million jobs, eight of them due in each second, and a million executions of a day, most of which have ended."""
    bench = postgres_bench
    past = bench.store.now_us() // DAY * DAY
    day = f"chrono_execution_{from_us(past):%Y%m%d}"
    job_id = "('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid"
    bench.execute("ALTER TABLE chrono_job DISABLE TRIGGER USER")
    # Indexes that are made when the table is full are sorted and written in one go.
    indexes = bench.store._rows("SELECT indexname, indexdef FROM pg_indexes WHERE indexname = ANY (%s)",
                                ["chrono_job_due", "chrono_job_name", "chrono_job_finished"])
    for name, _ in indexes:
        bench.execute(f"DROP INDEX {name}")
    bench.execute("ALTER TABLE chrono_job SET UNLOGGED")
    bench.execute(f"""INSERT INTO chrono_job (id, name, partition, next_run_at)
        SELECT {job_id}, 'job ' || n, n %% 8, %s::timestamptz + (n / 8 - 125) * interval '1 second'
        FROM generate_series(1, {MANY}) n""",
                  from_us(past))
    for _, definition in indexes:
        bench.execute(definition)
    bench.execute(f"ALTER TABLE chrono_execution DETACH PARTITION {day}")
    bench.execute(f"DROP TABLE {day}")
    bench.execute(f"CREATE UNLOGGED TABLE {day} (LIKE chrono_execution INCLUDING DEFAULTS INCLUDING CONSTRAINTS)")
    bench.execute(f"""INSERT INTO {day} (id, job_id, tenant, partition, scheduled_at, due_at, first_due_at, state,
            holder_epoch, finished_at)
        SELECT 'e' || n, {job_id}, 'default', n %% 8, at, at, at,
            CASE WHEN n < 2000 THEN 'scheduled' ELSE 'succeeded' END, n %% 2, CASE WHEN n < 2000 THEN NULL ELSE at END
        FROM (SELECT n, %s::timestamptz + n * interval '80 ms' AS at FROM generate_series(1, {MANY}) n) x""",
                  from_us(past))
    bench.execute(f"""ALTER TABLE chrono_execution ATTACH PARTITION {day}
        FOR VALUES FROM ('{from_us(past)}') TO ('{from_us(past + DAY)}')""")
    bench.execute("ANALYZE chrono_job, chrono_execution")
    yield bench, past
    bench.execute("ALTER TABLE chrono_job ENABLE TRIGGER USER")
    bench.execute("TRUNCATE chrono_job, chrono_execution")
    bench.execute("ALTER TABLE chrono_job SET LOGGED")
    bench.execute(f"DROP TABLE {day}")
    bench.store.prepare_days()
    bench.execute("SET plan_cache_mode = auto")


def plan_of(bench, sql, parameters, mode):
    """Return the plan of a query as a prepared statement has it, with or without the parameters known."""
    bench.execute(f"SET plan_cache_mode = force_{mode}_plan")
    numbered, number = sql, 0
    while "%s" in numbered:
        number += 1
        numbered = numbered.replace("%s", f"${number}", 1)
    with connections[bench.alias].cursor() as cursor:
        cursor.execute(f"PREPARE planned AS {numbered}")
        given = f"({', '.join(['%s'] * len(parameters))})" if parameters else ""
        cursor.execute(f"EXPLAIN EXECUTE planned {given}", parameters)
        plan = "\n".join(row[0] for row in cursor.fetchall())
        cursor.execute("DEALLOCATE planned")
    return plan


@pytest.mark.postgres
def test_at_a_million_rows_every_look_is_a_range_scan_and_never_reads_a_table(million):
    """Also under a generic plan, where the planner knows no parameter: there the usual form reads the whole table."""
    bench, past = million
    store = bench.store
    epochs = dict.fromkeys(ALL, 1)
    store.take_partitions("a", ALL, MINUTE)
    job, = store.due_jobs([3], past, 1)
    batch = postgres_claim.Batch("a", [_claim(job, epochs, past + MINUTE)])
    ids = {execution_id(job.job_id, past - n * MINUTE, 1): (job.job_id, past - n * MINUTE, 1) for n in range(3)}
    keys = postgres_claims.split(ids)
    by_key = [*key_parameters(keys.values()), array([past] * len(keys)), *bounds(keys.values())]
    looks = {
        "DUE": (postgres_claims.DUE, [array(ALL), past, [], 1000, 1000], "chrono_job_due"),
        "PLAIN": (postgres_claim.PLAIN, batch.plain_parameters(), "chrono_job_pkey"),
        "GENERAL": (postgres_claim.GENERAL, batch.general_parameters(), "chrono_job_pkey"),
        "LOAD_FREE": (postgres_claims.LOAD_FREE, postgres_claims.load_parameters(epochs, past, [], 100), "due_at_idx"),
        "LOAD_LEFT_BEHIND": (
            postgres_claims.LOAD_LEFT_BEHIND, postgres_claims.load_parameters(epochs, past, [], 100), "partition_due_at_idx"),
        "SOMETHING_FREE": (postgres_claims.SOMETHING_FREE, [past, past], "due_at_idx"),
        "MARK_QUEUED": (postgres_claims.MARK_QUEUED, by_key, "job_id_scheduled_at_attempt"),
        "OPEN": (postgres_records.OPEN, [*by_key[:3], *by_key[4:]], "job_id_scheduled_at_attempt"),
        "LOAD_EDITED": (postgres_claims.LOAD_EDITED, [*held_parameters(epochs), past, past, 100],
                        "job_id_scheduled_at_attempt"),
        "SUPERSEDED": (postgres_edits.SUPERSEDED, ["f", 100, array(ALL), 100], "job_id_scheduled_at_attempt"),
        "PAGE": (postgres_audit.PAGE, [array(ALL), array([past] * 8), array(["e"] * 8), 5_000_000, 100, 100],
                 "partition_due_at_idx"),
        "LOAD_OPEN": (postgres_audit.LOAD_OPEN, [*by_key[:3], *by_key[4:]], "job_id_scheduled_at_attempt"),
        "TAKE_OVER": (postgres_audit.TAKE_OVER, [*by_key[:3], *by_key[4:]], "job_id_scheduled_at_attempt"),
        "LET_GO": (postgres_audit.LET_GO, [*by_key[:3], *by_key[4:]], "job_id_scheduled_at_attempt"),
        "PLANS": (postgres_audit.PLANS, [array([job.job_id])], "chrono_job_pkey"),
        "DONE_WITH": (postgres_edits.DONE_WITH, [], "job_id_scheduled_at_attempt"),
        "HOLD": (postgres_holds.HOLD, [300.0, 300.0, 20], "tenant_state_finished_at"),
    }

    for name, (sql, parameters, index) in looks.items():
        for mode in ("generic", "custom"):
            plan = plan_of(bench, sql, parameters, mode)
            big = [line for line in plan.splitlines() if "Seq Scan" in line
                   and ("chrono_job" in line or "chrono_execution" in line) and _rows(line) > 100]
            assert not big, f"{name}, {mode}:\n{plan}"
            assert index in plan, f"{name}, {mode}:\n{plan}"
            # A batch is read in the order of the days' indexes; sorting all that is due, for each batch, would be quadratic.
            assert name != "LOAD_FREE" or "Merge Append" in plan, f"{name}, {mode}:\n{plan}"

    assert len(store.due_jobs(ALL, past, 100)) == 100

    # How late they were has no index: the HTTP API has it looked for in one day, whose table is read in the list's order.
    late = executions.list("default", start=from_us(past), end=from_us(past + DAY), late=60).using(bench.alias)
    plan = late.filter(state__in=TERMINAL)[:51].explain()
    assert plan.count("Scan") == 1 and "Index Scan Backward" in plan and "scheduled_at_idx" in plan, plan


def _rows(line: str) -> int:
    return int(line.split("rows=")[1].split()[0])


def test_on_sqlite_the_look_ahead_is_a_range_scan(sqlite_bench):
    for sql, parameters, index in (
        (sqlite_claims.DUE, [0, "2026", "[]", 10], "chrono_job_due"),
        (sqlite_claims.FREE, ["[1]", "[]", "2026", 10], "chrono_execution_free"),
        (sqlite_claims.LEFT_BEHIND, [1, 1, "[]", "2026", 10], "chrono_execution_open"),
        (sqlite_audit.PAGE, [1, "2025", "2026", "2025", "", 10], "chrono_execution_open"),
        (sqlite_audit.PLANS, ["[1]"], "sqlite_autoindex_chrono_job_1"),
    ):
        plan = " / ".join(row[3] for row in sqlite_bench.store.rows(f"EXPLAIN QUERY PLAN {sql}", *parameters))
        assert index in plan, plan
        assert "SCAN j " not in plan and "SCAN e " not in plan, plan


# -- the days' tables of PostgreSQL -----------------------------------------------------------------------------------


@pytest.fixture
def days(postgres_bench):
    """The store, whose days' tables are put back afterwards."""
    yield postgres_bench
    for table in postgres_bench.store.days():
        postgres_bench.execute(f"DROP TABLE {table}")
    postgres_bench.store.prepare_days()


@pytest.mark.postgres
def test_migrate_and_keep_prepare_the_coming_days(days):
    store, today = days.store, from_us(days.store.now_us()).date()
    assert set(store.days().values()) >= {today + timedelta(days=n) for n in range(8)}

    store.keep(store.now_us() + 3 * DAY, 30 * DAY, 1000)

    assert max(store.days().values()) == today + timedelta(days=10)


@pytest.mark.postgres
def test_preparing_a_day_moves_its_rows_out_of_the_default_table(days):
    store, past = days.store, days.store.now_us() // SECOND * SECOND
    epochs = store.take_partitions("a", ALL, MINUTE)
    days.add_job("j", next_run_us=past)
    job, = store.due_jobs(ALL, past, 1)
    far = past + 9 * DAY
    key = store.claim("a", [_claim(job, epochs, None)._replace(occurrences=[Occurrence(far, far)])])[0].execution_id
    assert [row[0] for row in store._rows("SELECT id FROM chrono_execution_default")] == [key]

    store.keep(past + 4 * DAY, 30 * DAY, 1000)

    assert store._rows("SELECT id FROM chrono_execution_default") == []
    assert [row.execution_id for row in days.rows()] == [key]
    assert store.mark_queued([(key, far)]) == 1


@pytest.mark.postgres
def test_keep_drops_a_day_as_a_whole_and_none_with_an_open_or_young_row(days):
    store, now = days.store, days.store.now_us() // SECOND * SECOND
    old = [now - n * DAY for n in (40, 41, 42)]
    for at in old:
        store.prepare_days(at)
    job_id = days.add_job("j", next_run_us=None, paused=True)
    ended, opened, young = (days.add_execution(job_id, at) for at in old)
    days.set_row(ended, state="succeeded", finished_us=old[0])
    days.set_row(young, state="succeeded", finished_us=now - DAY)
    tables = {days.store.days()[t]: t for t in days.store.days()}

    assert store.keep(now, 30 * DAY, 1000) == 1

    left = {from_us(at).date() for at in old} & set(store.days().values())
    assert left == {from_us(at).date() for at in old[1:]}
    assert tables.keys() > left
    assert {row.execution_id for row in days.rows()} == {opened, young}


@pytest.fixture
def past_day(days):
    """The store, now, and a row of a day that is past retention: (bench, now in µs, its id, its instant)."""
    now = days.store.now_us() // SECOND * SECOND
    at = now - 40 * DAY
    days.store.prepare_days(at)
    job_id = days.add_job("j", next_run_us=None, paused=True)
    ended = days.add_execution(job_id, at)
    days.set_row(ended, state="succeeded", finished_us=at)
    return days, now, job_id, at


@pytest.mark.postgres
def test_r167_dropping_a_day_makes_nobody_wait_crosswise(past_day, monkeypatch):
    """A reader has the whole table and wants the day next; the keeper wants both. It waits for the whole first."""
    bench, now, _, at = past_day
    monkeypatch.setattr(postgres_days, "LOCK_TIMEOUT_MS", 20_000)
    went = []

    def keep():
        went.append(bench.store.keep(now, 30 * DAY, 1000))
        connections[bench.alias].close()

    thread = threading.Thread(target=keep)
    with transaction.atomic(using=bench.alias):
        bench.execute("SELECT 1 FROM chrono_execution WHERE scheduled_at = %s", from_us(now))
        thread.start()
        eventually(lambda: bench.store._value("SELECT count(*) FROM pg_locks WHERE NOT granted"), 20, what="the keeper waits")
        bench.execute("SET LOCAL lock_timeout = '500ms'")
        assert bench.store._value("SELECT count(*) FROM chrono_execution") == 1
    thread.join(20)

    assert went == [1] and not bench.rows()


@pytest.mark.postgres
@pytest.mark.parametrize("changed", [
    {"state": "scheduled"}, {"state": "succeeded", "finished_us": True}], ids=["open", "ended just now"])
def test_r167_inv03_what_comes_into_a_day_after_the_look_stays(past_day, monkeypatch, changed):
    """A replay or a backfill of so old an instant, just when its day is to go."""
    bench, now, job_id, at = past_day
    added, take_out = [], postgres_days._take_out

    def late(cursor, table):
        if table.endswith(f"{from_us(at):%Y%m%d}"):
            added.append(bench.add_execution(job_id, at, attempt=2))
            bench.set_row(added[0], **changed | ({"finished_us": now} if "finished_us" in changed else {}))
        return take_out(cursor, table)

    monkeypatch.setattr(postgres_days, "_take_out", late)
    went = bench.store.keep(now, 30 * DAY, 1000)

    left = {row.execution_id for row in bench.rows()}
    assert added[0] in left and (went, len(left)) == ((0, 2) if changed["state"] == "scheduled" else (1, 1))


@pytest.mark.postgres
@pytest.mark.parametrize("when", ["before", "after"])
def test_r167_a_day_that_was_being_dropped_when_the_keeper_broke_off_goes_with_the_next_call(past_day, when):
    bench, now, _, at = past_day
    broke = removed = number = 0
    while not removed:
        number += 1
        with bench.fault(number, when=when), suppress(StoreUnavailable):
            removed = bench.store.keep(now, 30 * DAY, 1000)
        broke += not removed
        if not bench.rows():
            break

    bench.store.keep(now, 30 * DAY, 1000)
    assert broke > 8 and not bench.rows()
    assert bench.store._rows(postgres_days.PAST_TABLES) == []
    assert from_us(at).date() not in bench.store.days().values()


# -- days of the migration --------------------------------------------------------------------------------------------


@pytest.mark.postgres
def test_inv02_the_database_itself_refuses_an_occurrence_twice(postgres_bench):
    from django.db import IntegrityError

    past = postgres_bench.store.now_us() // SECOND * SECOND
    job_id = postgres_bench.add_job("j", next_run_us=None, paused=True)
    postgres_bench.add_execution(job_id, past)
    with pytest.raises(IntegrityError):
        postgres_bench.add_execution(job_id, past)


def test_jobs_are_spread_over_the_partitions():
    assert {partition_of("t", str(n), 8) for n in range(100)} == set(ALL)
