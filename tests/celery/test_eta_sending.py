"""Which messages for later wait in the database, and what of them is kept."""
import json
import logging
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from celery import Celery, chain, chord, group, signals
from celery.exceptions import Retry
from celery.result import AsyncResult

from chrono_beat.celery import ChronoBeat, eta, never_began
from chrono_beat.core.config import Config, find_problems
from chrono_beat.core.envelope import HEADER
from chrono_beat.core.errors import InvalidInput, MisconfiguredError, StoreUnavailable
from chrono_beat.core.eta import publish_item, queue_of
from chrono_beat.testing.clock import ManualClock
from chrono_beat.testing.memory_queue import MemoryQueueStore
from chrono_beat.testing.patience import eventually
from tests.celery.etakit import HOUR, Due, give_root
from tests.celery.workerkit import message as job_message

KEY = "job-a:20260102T090000Z:1"
QUEUES = ("celery", "chrono", "mail")


def nothing(*args, **kwargs):
    """Body of the tasks."""


class Site:
    """An app with a broker, a Redis of chrono_beat's and a database in memory; ETAs from an hour on wait in the last."""

    def __init__(self, **settings):
        self.config = Config(**{"eta_threshold": float(HOUR), **settings})
        # The host's clock, since Celery works out etas by it.
        self.clock = ManualClock(wall_us=round(datetime.now(UTC).timestamp() * 1e6))
        self.queue, self.due = MemoryQueueStore(self.clock, self.config), Due(self.clock)
        self.queue.open_lane(0, 1, "memory-1", 0)
        self.app = Celery("later", broker="memory://", backend="cache+memory://", set_as_current=False)
        self.beat = ChronoBeat(self.app)
        give_root(self.beat, lambda: self.config, lambda: self.queue, self.due)
        self.task = self.define("t.task")

    def define(self, name, **options):
        return self.app.task(name=name, **options)(nothing)

    def in_broker(self, queue="celery"):
        with self.app.connection_for_write() as connection:
            return connection.default_channel.basic_get(queue, no_ack=True)

    def message(self, later=HOUR):
        """Return the one message that is published later on."""
        [row] = self.due.load(later)
        item = publish_item(row, self.config)
        return item, json.loads(item.payload)


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setattr(eta, "_warned", set())
    monkeypatch.setattr("chrono_beat.celery.patience.STORE_PAUSES_SECONDS", (0, 0))
    site = Site()
    empty(site.app)              # the broker in memory is that of every app in this process
    yield site
    empty(site.app)


def empty(app):
    with app.connection_for_write() as connection:
        for queue in QUEUES:
            connection.default_channel.queue_declare(queue)
            connection.default_channel.queue_purge(queue)


# -- which ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queue", QUEUES)
def test_r119_what_lies_far_ahead_is_nowhere_but_in_the_database(site, queue):
    result = site.task.apply_async((1,), countdown=6 * HOUR, queue=queue)

    row = site.due.one()
    assert (row.celery_id, row.job_id, row.kind, row.state) == (result.id, result.id, "eta", "scheduled")
    assert row.due_us == site.due.store.now_us() + 6 * HOUR * 1_000_000
    assert site.in_broker(queue) is None
    assert site.queue.draw(0, "chrono", 1, "w", 1) == [] and not site.queue.lanes[0].copies
    assert result.status == "PENDING"


@pytest.mark.parametrize("ahead", [0, 59, HOUR - 1])
def test_what_is_sooner_goes_as_ever(site, ahead):
    site.task.apply_async((1,), countdown=ahead, queue="celery")
    site.task.apply_async((1,), countdown=ahead, queue="chrono")

    message = site.in_broker()
    assert site.due.rows() == [] and message is not None and "chrono_countdown" not in message.headers
    assert len(site.queue.lanes[0].copies) == 1


def test_an_instant_is_kept_exactly_in_any_zone(site):
    at = datetime.now(UTC).replace(microsecond=123_456) + timedelta(hours=3)
    site.task.apply_async(eta=at.astimezone().isoformat())
    site.app.conf.timezone = "Asia/Tokyo"
    site.task.apply_async(eta=at.astimezone(site.app.timezone).replace(tzinfo=None))

    assert [row.due_us for row in site.due.rows()] == [round(at.timestamp() * 1e6)] * 2


@pytest.mark.parametrize(("setting", "own", "ahead", "kept"), [
    (None, None, 40 * 24 * HOUR, False),
    (None, True, 60, True),
    (None, True, 59, False),
    (None, 7200, 7199, False),
    (None, 7200, 7200, True),
    (100, True, 100, True),
    (100, True, 99, False),
    (100, 7200, 100, False),
    (100, None, 100, True),
    (100, False, 40 * 24 * HOUR, False),
])
def test_the_setting_and_the_task_say_from_when_on(site, setting, own, ahead, kept):
    site.config = Config(eta_threshold=setting)
    site.define("t.own", **({} if own is None else {"chrono_eta": own})).apply_async(countdown=ahead)

    assert len(site.due.rows()) == kept
    assert (site.in_broker() is None) == kept


@pytest.mark.parametrize("own", [9.9, "an hour", float("nan"), 0])
def test_a_task_that_says_nonsense_is_refused_with_the_mend(site, own):
    with pytest.raises(InvalidInput, match="chrono_eta: must be True, False or at least 10 seconds"):
        site.define("t.own", chrono_eta=own).apply_async(countdown=HOUR)


@pytest.mark.parametrize(("value", "wrong"), [(None, 0), (10, 0), (9, 1), ("1h", 1), (True, 1)])
def test_the_setting_is_seconds_or_none(value, wrong):
    assert len(find_problems({"ETA_THRESHOLD": value})) == wrong


# -- every way to send ------------------------------------------------------------------------------------------------


def test_every_way_to_send_for_later_ends_up_there(site):
    later = site.task.s().set(countdown=HOUR)
    site.app.send_task("t.elsewhere", countdown=HOUR)
    later.delay()
    chain(later, site.task.s()).apply_async()
    group(later, later).apply_async()
    chord([later, later])(site.task.s())

    assert len(site.due.rows()) == 1 + 1 + 1 + 2 + 2
    assert site.in_broker() is None


def test_callbacks_errbacks_chain_chord_and_group_are_kept(site):
    body, callback, errback = (site.task.s(name) for name in ("body", "callback", "errback"))
    later = site.task.s("ü", k=None).set(countdown=HOUR, link=callback, link_error=errback)
    chord(group(later), body).apply_async()
    item, message = site.message()
    args, kwargs, embed = json.loads(message["body"])

    assert (args, kwargs) == (["ü"], {"k": None})
    assert [c["args"] for c in embed["callbacks"]] == [["callback"]]
    assert ["errback"] in [c["args"] for c in embed["errbacks"]]
    headers = message["headers"]
    # A chord of one is a chain (Celery's own shortcut); its body comes next.
    assert embed["chain"] or embed["chord"]
    assert headers["id"] == message["properties"]["correlation_id"] == item.execution_id.partition(":")[0]


def test_the_message_is_what_it_would_have_been(site):
    """Field by field against the one that goes to the broker at once."""
    seen = {}

    @signals.before_task_publish.connect
    def note(headers, body, properties, **facts):
        seen[headers["id"]] = headers, body, properties

    options = {"headers": {"own": 1}, "shadow": "x", "expires": 2 * HOUR, "time_limit": 60, "root_id": "r", "parent_id": "p",
               "group_id": "g", "group_index": 4, "ignore_result": True, "argsrepr": "(hidden)", "queue": "chrono",
               "reply_to": "here", "priority": 3}
    site.task.apply_async((datetime(2026, 1, 2, tzinfo=UTC),), {"k": 1}, countdown=HOUR, task_id="it", **options)
    item, message = site.message()

    was, body, _ = seen["it"]
    kept = {key: value for key, value in message["headers"].items() if key not in (HEADER, "chrono_tenant")}
    assert kept == {key: list(value) if isinstance(value, tuple) else value for key, value in was.items()}
    assert site.app.backend.decode(message["body"])[0][0] == body[0][0]
    assert (message["properties"]["reply_to"], item.priority, item.pool, item.concurrency) == ("here", 3, "chrono", "allow")
    chrono = message["headers"][HEADER]
    assert (chrono["key"], chrono["eid"], chrono["kind"], chrono["attempt"]) == ("it", item.execution_id, "eta", 1)


def test_signals_and_the_sent_event_are_those_of_any_message(site):
    told = []
    before = signals.before_task_publish.connect(lambda headers, **facts: headers.update(stamped="by hand"), weak=False)
    after = signals.after_task_publish.connect(lambda routing_key, **facts: told.append(routing_key), weak=False)
    try:
        site.task.apply_async(countdown=HOUR, queue="mail")
    finally:
        signals.before_task_publish.disconnect(before)
        signals.after_task_publish.disconnect(after)

    assert told == ["mail"] and site.message()[1]["headers"]["stamped"] == "by hand"


@pytest.mark.parametrize(("options", "send", "shown"), [
    ({}, {"queue": "celery"}, "celery"),
    ({"queue": "mail", "priority": 200}, {"queue": "mail", "priority": 200}, "mail"),
    ({"exchange": "topics", "routing_key": "a.b"}, {"exchange": "topics", "routing_key": "a.b", "queue": "celery"},
     "topics/a.b"),
])
def test_what_goes_to_a_stock_queue_waits_for_the_relay(site, options, send, shown):
    site.task.apply_async(countdown=HOUR, **options)
    item, message = site.message()

    assert item.pool == "chrono.relay" and message["headers"][HEADER]["send"] == send
    assert queue_of(item.payload) == shown
    assert message["headers"]["eta"] is None, "a stock worker's clock is not to hold it up once more"


def test_its_tenant_is_the_headers_or_the_default_one(site):
    site.task.apply_async(countdown=HOUR)
    site.task.apply_async(countdown=HOUR, headers={"chrono_tenant": "acme"})

    assert sorted(row.tenant for row in site.due.rows()) == ["acme", "default"]


# -- what cannot be kept ----------------------------------------------------------------------------------------------

REFUSED = {
    "serializer": ({}, {"serializer": "pickle"}, "serializer"),
    "compression": ({}, {"compression": "gzip"}, "compression"),
    "size": ({"max_payload": 100}, {"args": ["x" * 100]}, "may take 100 bytes"),
    "task": ({"allowed_tasks": ("shop.*",)}, {}, "ALLOWED_TASKS"),
    "far": ({}, {"countdown": 11 * 366 * 24 * HOUR}, "ten years"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_kept_is_refused_where_the_task_asks_for_it(case):
    settings, options, why = REFUSED[case]
    site = Site(**settings)

    with pytest.raises(InvalidInput, match=why):
        site.define("t.own", chrono_eta=True).apply_async(**{"countdown": 2 * HOUR, **options})
    assert site.due.rows() == [] and site.in_broker() is None


@pytest.mark.parametrize("case", REFUSED)
def test_and_goes_to_the_broker_with_a_warning_where_the_setting_does(monkeypatch, caplog, case):
    monkeypatch.setattr(eta, "_warned", set())
    settings, options, why = REFUSED[case]
    site = Site(**settings)

    for _ in range(2):
        site.task.apply_async(**{"countdown": 2 * HOUR, **options})

    assert site.due.rows() == [] and [site.in_broker().headers["eta"] is None for _ in range(2)] == [False, False]
    assert len([r for r in caplog.records if why in r.getMessage() and r.levelno == logging.WARNING]) == 1


def test_a_database_that_is_away_is_told_to_the_caller(site):
    site.due.failing = StoreUnavailable("away")

    with pytest.raises(StoreUnavailable):
        site.task.apply_async(countdown=HOUR)
    assert site.in_broker() is None and site.due.tries == 1


def unreadable():
    raise ImportError("no settings")


def test_without_settings_the_stock_way_is_taken_with_a_warning_unless_the_task_asks(site, caplog):
    site.beat._root = SimpleNamespace(config=unreadable)
    site.task.apply_async(countdown=HOUR, queue="celery")
    own = site.define("t.own", chrono_eta=True)
    own.apply_async(countdown=1, queue="celery")

    assert [site.in_broker() is None for _ in range(2)] == [False, False]
    assert "ETA_THRESHOLD cannot be read here" in caplog.text
    with pytest.raises(MisconfiguredError, match="DJANGO_SETTINGS_MODULE"):
        own.apply_async(countdown=HOUR, queue="celery")


def test_a_composition_root_without_a_database_is_named(site):
    del site.beat._root.eta
    with pytest.raises(MisconfiguredError, match=r"WIRING.*no eta\(\)"):
        site.task.apply_async(countdown=HOUR)


# -- retries ----------------------------------------------------------------------------------------------------------


def retry(site, task, **options):
    """Let a task that a stock worker runs ask for its retry."""
    task.push_request(id="stock", retries=1, args=[1], kwargs={}, called_directly=False,
                      delivery_info={"routing_key": "celery", "exchange": ""})
    try:
        with pytest.raises(Retry):
            task.retry(throw=True, **options)
    finally:
        task.pop_request()


def test_r120_a_long_countdown_of_a_stock_workers_retry_waits_there_too(site):
    retry(site, site.task, countdown=2 * HOUR)

    row = site.due.one()
    assert (row.celery_id, row.retries, row.kind) == ("stock", 2, "eta")
    assert site.message(2 * HOUR)[1]["headers"]["retries"] == 2


@pytest.mark.parametrize("failing", [StoreUnavailable("away"), MisconfiguredError("no")])
def test_a_retry_that_cannot_be_kept_goes_to_the_broker_rather_than_nowhere(site, caplog, failing):
    site.due.failing = failing

    retry(site, site.task, countdown=2 * HOUR)

    message = site.in_broker()
    assert (message.headers["id"], message.headers["retries"]) == ("stock", 2) and message.headers["eta"]
    assert "is sent at once" in caplog.text
    assert site.due.tries == (3 if isinstance(failing, StoreUnavailable) else 1)


# -- revoke -----------------------------------------------------------------------------------------------------------


def test_a_revoke_ends_what_waits_and_says_so_to_the_result(site):
    result = site.task.apply_async(countdown=HOUR)

    result.revoke()

    assert site.due.one().state == "cancelled"
    assert AsyncResult(result.id, app=site.app).status == "REVOKED"
    assert site.due.load(HOUR) == []


def test_so_does_the_command_line_which_broadcasts_by_itself(site):
    results = [site.task.apply_async(countdown=HOUR) for _ in range(2)]

    site.app.control.broadcast("revoke", arguments={"task_id": [result.id for result in results], "terminate": False})

    assert [row.state for row in site.due.rows()] == ["cancelled"] * 2


def test_a_worker_that_lets_go_of_one_says_so_to_the_result_and_of_no_other_execution(site, monkeypatch):
    result = site.task.apply_async(countdown=HOUR, queue="chrono")
    item, message = site.message()
    replay = {**message, "headers": {**message["headers"], "id": item.execution_id,
                                     HEADER: {**message["headers"][HEADER], "kind": "replay"}}}

    marked = []
    with monkeypatch.context() as patch:
        patch.setattr(never_began, "_mark", lambda *of: marked.append(of))
        for payload in (json.dumps(replay).encode(), job_message(KEY, "t.task", [], {}, tenant="acme"), b"{}", b"no JSON"):
            never_began.tell_from_worker(site.app, payload)
    never_began.tell_from_worker(site.app, item.payload)

    eventually(lambda: AsyncResult(result.id, app=site.app).status == "REVOKED", 5)
    assert marked == []


def test_other_commands_and_other_ids_touch_nothing(site):
    site.task.apply_async(countdown=HOUR)

    site.app.control.broadcast("rate_limit", arguments={"task_name": "t.task", "rate_limit": "1/s"})
    site.app.control.revoke("another")

    assert site.due.revoked == ["another"] and site.due.one().state == "scheduled"


def test_workers_hear_of_a_revoke_also_where_the_database_is_away(site, monkeypatch):
    heard = []
    monkeypatch.setattr("celery.app.control.Control.broadcast", lambda self, command, *args, **options: heard.append(command))
    site.due.failing = StoreUnavailable("away")

    with pytest.raises(StoreUnavailable):
        site.app.control.revoke("it")
    assert heard == ["revoke"]


def test_without_settings_a_revoke_is_the_stock_one(site, monkeypatch):
    heard = []
    monkeypatch.setattr("celery.app.control.Control.broadcast", lambda self, command, *args, **options: heard.append(command))
    site.beat._root = None
    site.beat.wiring = "no.such.module"

    site.app.control.revoke("it")

    assert heard == ["revoke"]
