"""The receiver of the documentation, run as it stands there: it lets in what is signed, and works once for a key."""
import json
import signal
import sqlite3
import subprocess
import sys

import pytest

from chrono_beat.core import callback
from chrono_beat.core.callback import HttpTarget
from chrono_beat.targets.http import Call, request_headers
from tests.targets.receiver import DOCS, documented

OLD, NEW = callback.encode_secret(b"old"), callback.encode_secret(b"new")
BODY = '{"subject": "sales"}'


@pytest.fixture(scope="module")
def page():
    return documented("targets", "alerts")


@pytest.fixture
def connection():
    connection = tables(sqlite3.connect(":memory:"))
    yield connection
    connection.close()


def tables(connection):
    connection.execute("CREATE TABLE done (key TEXT PRIMARY KEY)")
    connection.execute("CREATE TABLE told (id TEXT PRIMARY KEY)")
    connection.execute("CREATE TABLE reports (subject TEXT)")
    return connection


def sent(secrets, attempt=1, now=None):
    target = HttpTarget(url="https://shop.example/", body=BODY, secrets=secrets)
    of = Call("job:20260102T090000.5Z", f"job:20260102T090000.5Z:{attempt}", attempt, "2026-01-02T09:00:00.5+00:00")
    return {name.decode().lower(): value.decode() for name, value in request_headers(target, of, now)}


def report(body, connection):
    connection.execute("INSERT INTO reports VALUES (?)", [body["subject"]])


def reports(connection):
    return connection.execute("SELECT count(*) FROM reports").fetchone()[0]


def test_a_repeat_is_recognised_and_done_once(page, connection):
    for attempt in (1, 2):
        assert page["receive"](sent([NEW], attempt), BODY.encode(), [NEW], connection, report) == 204

    assert reports(connection) == 1


def test_work_that_failed_halfway_is_done_on_the_next_attempt(page, connection):
    def fails(body, connection):
        report(body, connection)
        raise RuntimeError("halfway")

    with pytest.raises(RuntimeError):
        page["receive"](sent([NEW]), BODY.encode(), [NEW], connection, fails)
    assert reports(connection) == 0
    assert page["receive"](sent([NEW], 2), BODY.encode(), [NEW], connection, report) == 204
    assert reports(connection) == 1


DIES = """
import os, signal, sqlite3, sys
from tests.targets.receiver import documented
from tests.targets.test_receiver_page import BODY, NEW, report, sent

def work(body, connection):
    report(body, connection)
    os.kill(os.getpid(), signal.SIGKILL)

documented("targets")["receive"](sent([NEW]), BODY.encode(), [NEW], sqlite3.connect(sys.argv[1]), work)
"""


def test_work_whose_process_was_killed_halfway_is_done_on_the_next_attempt(page, tmp_path):
    connection = tables(sqlite3.connect(tmp_path / "shop.sqlite3"))
    done = subprocess.run([sys.executable, "-c", DIES, tmp_path / "shop.sqlite3"], cwd=DOCS.parent, timeout=60)

    assert (done.returncode, reports(connection)) == (-signal.SIGKILL, 0)
    for _ in range(2):
        assert page["receive"](sent([NEW], 2), BODY.encode(), [NEW], connection, report) == 204
    assert reports(connection) == 1
    connection.close()


def test_a_request_that_was_overheard_is_recognised_whatever_is_changed_of_it(page, connection):
    """Only what is signed says which request it is."""
    for key in ("the key", "another key"):
        page["receive"]({**sent([NEW]), "idempotency-key": key}, BODY.encode(), [NEW], connection, report)

    assert reports(connection) == 1


@pytest.mark.parametrize("wrong", [
    {"webhook-signature": "v1,\xff"}, {"webhook-id": None}, {"webhook-timestamp": "9" * 5_000}, {"webhook-signature": None}])
def test_headers_that_anybody_may_make_up_are_refused_and_no_error(page, connection, wrong):
    headers = {name: value for name, value in {**sent([NEW]), **wrong}.items() if value is not None}

    assert page["receive"](headers, BODY.encode(), [NEW], connection, report) == 401


@pytest.mark.parametrize(("secrets", "knows"), [([NEW, OLD], [OLD]), ([NEW, OLD], [NEW]), ([OLD], [NEW, OLD])])
def test_either_secret_is_enough_while_one_replaces_the_other(page, connection, secrets, knows):
    assert page["receive"](sent(secrets), BODY.encode(), knows, connection, report) == 204


def test_what_is_not_signed_too_old_or_changed_is_not_let_in(page, connection):
    receive = page["receive"]

    assert receive(sent([]), BODY.encode(), [NEW], connection, report) == 401
    assert receive(sent([OLD]), BODY.encode(), [NEW], connection, report) == 401
    assert receive(sent([NEW], now=1_600_000_000), BODY.encode(), [NEW], connection, report) == 401
    assert receive(sent([NEW]), b'{"subject": "other"}', [NEW], connection, report) == 401
    assert reports(connection) == 0


def test_a_repeat_of_an_alert_is_told_once_and_one_that_is_not_signed_never(page, connection):
    told = []

    def receive(headers):
        return page["receive_alert"](headers, BODY.encode(), [NEW], connection, told.append)

    assert [receive(sent([NEW], attempt)) for attempt in (1, 2)] == [204, 204]
    assert receive(sent([OLD])) == 401
    assert told == [json.loads(BODY)]
