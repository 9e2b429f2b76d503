"""The receiver of the documentation, run as it stands there: it lets in what is signed, and works once for a key."""
import json
import sqlite3

import pytest

from chrono_beat.core import callback
from chrono_beat.core.callback import HttpTarget
from chrono_beat.targets.http import Call, request_headers
from tests.targets.receiver import documented

OLD, NEW = callback.encode_secret(b"old"), callback.encode_secret(b"new")
BODY = '{"subject": "sales"}'


@pytest.fixture(scope="module")
def page():
    return documented("targets", "alerts")


@pytest.fixture
def connection():
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE done (key TEXT PRIMARY KEY)")
    connection.execute("CREATE TABLE told (id TEXT PRIMARY KEY)")
    connection.execute("CREATE TABLE reports (subject TEXT)")
    yield connection
    connection.close()


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
