"""Alerts of two dispatchers with one PostgreSQL, told over real SMTP and HTTP.

The causes are one-offs whose time had passed before anybody looked. What waits for its next attempt is made due by a
statement, so that no test waits for a back-off.
"""
import json
import signal
import sqlite3
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from chrono_beat.core import ids
from chrono_beat.core.callback import encode_secret
from chrono_beat.testing.patience import eventually
from tests.system.mailbox import Mailbox
from tests.system.systemkit import PARTITIONS, Site
from tests.targets.receiver import Receiver, documented, reply

pytestmark = [pytest.mark.system, pytest.mark.redis, pytest.mark.postgres, pytest.mark.celery, pytest.mark.timeout(120)]

OPERATOR, TENANT = "ops@example.org", "jobs@tenant.example"
SECRETS = {"operator": encode_secret(b"o" * 32), "tenant": encode_secret(b"t" * 32)}


class Hook:
    """A receiver of requests that does what the documentation says: signature, then once for each id.

    Args:
        whose: the name of its secret.
    """

    def __init__(self, whose):
        self.told, self.statuses, self.broken = [], [], False
        self._receive = documented("targets", "alerts")["receive_alert"]
        self._secrets = [SECRETS[whose]]
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        self._connection.execute("CREATE TABLE told (id TEXT PRIMARY KEY)")
        self._lock = threading.Lock()
        self.server = Receiver(self._answer)
        self.close, self.requests, self.held = self.server.close, self.server.requests, threading.Event()
        self.held.set()

    def _answer(self, handler):
        _, headers, body = self.requests[-1]
        if self.broken:
            return reply(handler, 500)
        with self._lock:
            status = self._receive(
                {name.lower(): value for name, value in headers.items()}, body, self._secrets, self._connection, self.told.append)
        self.statuses.append(status)
        self.held.wait(30)
        reply(handler, status)

    def ids(self):
        return [headers["webhook-id"] for _, headers, _ in self.requests]


class Scene(Site):
    """Two dispatchers, a mailbox and two hooks; the tenant is "default"."""

    def __init__(self):
        self.mailbox, self.operator, self.tenant = Mailbox(), Hook("operator"), Hook("tenant")
        super().__init__()
        self.sql("UPDATE chrono_tenant SET alert_email = %s, alert_url = %s, webhook_secret = %s WHERE slug = 'default'",
                 TENANT, self.tenant.server.url(), SECRETS["tenant"])

    def variables(self):
        given = {"smtp": self.mailbox.port, "emails": [OPERATOR], "url": self.operator.server.url(),
                 "secret": SECRETS["operator"]}
        return {**super().variables(), "DJANGO_SETTINGS_MODULE": "tests.system.alert_settings", "ALERTS_TEST": json.dumps(given)}

    def close(self):
        super().close()
        for each in (self.mailbox, self.operator, self.tenant):
            each.close()

    def miss(self, *names):
        """Add one-offs that were due an hour ago and may not run any more."""
        ago = datetime.now(UTC) - timedelta(hours=1)
        made = [ids.new_job_id(time.time_ns() // 1000, number) for number in range(len(names))]
        for job, name in zip(made, names, strict=True):
            self.sql(
                "INSERT INTO chrono_job (id, partition, name, task, schedule_kind, expression, misfire, next_run_at) "
                "VALUES (%s, %s, %s, 'shop.clean_up', 'once', %s, 'skip', %s)",
                job, ids.partition_of("default", job, PARTITIONS), name, ago.isoformat(), ago)
        return made

    def retry_now(self):
        self.sql("UPDATE chrono_alert SET claimed_until = NULL, retry_at = clock_timestamp(), "
                 "told_to = regexp_replace(told_to, '\"again_us\": \\d+', '\"again_us\": 0', 'g') WHERE closed_at IS NULL")

    def told(self):
        """Return how often each receiver was told of each job; of a hook, how often its program was."""
        mailed = [(recipient, message.get_content()) for recipient, message in self.mailbox.mails]
        hooked = [(name, told["text"]) for name in ("operator", "tenant") for told in getattr(self, name).told]
        return Counter((receiver, text.partition("Job ")[2].partition(":")[0]) for receiver, text in mailed + hooked)

    def all_told(self, *names):
        wanted = {(receiver, name) for receiver in (OPERATOR, TENANT, "operator", "tenant") for name in names}
        eventually(lambda: wanted <= set(self.told()), 30, what=f"{names} are told to everybody; {self.told()}")


@pytest.fixture(scope="module")
def running(redis_server, postgres_server):
    scene = Scene()
    try:
        scene.dispatchers(2)
        yield scene
    finally:
        scene.close()


@pytest.fixture
def scene(running):
    yield running
    print(running.tails())


def test_each_receiver_is_told_once_of_each_cause_though_two_processes_look(scene):
    names = [f"lot {number}" for number in range(6)]
    scene.miss(*names)
    scene.all_told(*names)
    scene.miss("later")                                   # by when it is told both have looked again
    scene.all_told("later")

    assert set(scene.told().values()) == {1}
    for hook in (scene.operator, scene.tenant):
        assert set(hook.statuses) == {204} and len(set(hook.ids())) == len(hook.ids()) == 7
    assert json.loads(scene.operator.requests[0][2])["kind"] == "missed"


def test_receivers_that_fail_are_tried_again_with_one_id_and_stop_nobody(scene):
    scene.tenant.broken, scene.mailbox.refused = True, {OPERATOR}
    before = len(scene.tenant.ids())
    scene.miss("hard")
    eventually(lambda: {(TENANT, "hard"), ("operator", "hard")} <= set(scene.told()), 30)
    eventually(lambda: scene.sql("SELECT id FROM chrono_alert WHERE attempts = 1 AND retry_at > clock_timestamp()"), 30)
    scene.tenant.broken, scene.mailbox.refused = False, set()
    scene.retry_now()

    scene.all_told("hard")
    assert set(scene.told().values()) == {1}
    assert len(scene.tenant.ids()) == before + 2 and len(set(scene.tenant.ids()[before:])) == 1


def test_what_is_muted_is_noted_and_told_after_the_mute_and_again_when_it_happens_anew(scene):
    scene.sql("INSERT INTO chrono_alert_mute (kind) VALUES ('missed')")
    [job] = scene.miss("quiet")
    eventually(lambda: scene.sql("SELECT id FROM chrono_alert WHERE subject = %s", job), 30)
    scene.sql("UPDATE chrono_alert_mute SET subject = %s", job)
    scene.miss("loud")
    scene.all_told("loud")
    assert not [name for _, name in scene.told() if name == "quiet"]

    scene.sql("DELETE FROM chrono_alert_mute")
    scene.all_told("quiet")
    assert set(scene.told().values()) == {1}
    scene.sql("UPDATE chrono_alert SET closed_at = clock_timestamp() WHERE subject = %s", job)
    scene.sql("UPDATE chrono_job SET finished_at = NULL, next_run_at = expression::timestamptz - interval '1 second' "
              "WHERE id = %s", job)

    eventually(lambda: all(count == 2 for (_, name), count in scene.told().items() if name == "quiet"), 30)
    assert len(set(scene.tenant.ids())) == len(scene.tenant.told)


def test_a_process_that_dies_before_it_notes_is_followed_and_receivers_know_the_repeat(scene):
    """At least once: mails come twice with one Message-ID, a hook's program is told once."""
    follower, sender = scene.named("dispatcher")
    follower.signal(signal.SIGSTOP)
    scene.tenant.held.clear()
    scene.sql("INSERT INTO chrono_alert (kind, tenant, subject, detail) VALUES ('missed', 'default', 'x', %s)",
              json.dumps({"name": "cut off"}))
    scene.all_told("cut off")
    sender.kill()
    scene.tenant.held.set()
    scene.retry_now()
    follower.signal(signal.SIGCONT)

    eventually(lambda: scene.told()[TENANT, "cut off"] == 2, 30)
    eventually(lambda: scene.sql("SELECT id FROM chrono_alert WHERE subject = 'x' AND told_count = 1"), 30)
    assert scene.told()["tenant", "cut off"] == scene.told()["operator", "cut off"] == 1
    for hook in (scene.tenant, scene.operator):
        assert hook.ids()[-1] == hook.ids()[-2] and hook.statuses[-1] == 204
    ids_mailed = Counter(message["Message-ID"] for _, message in scene.mailbox.mails)
    assert sorted(ids_mailed.values())[-3:] == [1, 2, 2]
