"""Alerts: noted once, told once, to whom they concern, whatever fails meanwhile."""
import json
import threading
from collections import Counter
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.core import mail
from django.utils.timezone import now

from chrono_beat.core import alerts as rules
from chrono_beat.core.alerts import Finding, Over
from chrono_beat.core.callback import encode_secret
from chrono_beat.core.config import Config
from chrono_beat.core.errors import InvalidInput, NotFound, StoreUnavailable
from chrono_beat.services import alerts as alert_service
from chrono_beat.services.alerts import Alerts, Inbox
from chrono_beat.targets import http
from chrono_beat.testing.clock import ManualClock
from chrono_beat.testing.patience import eventually
from chrono_beat_django import alert_senders, alerts, doctor, wiring
from chrono_beat_django.models import Alert, AlertMute, Tenant
from chrono_beat_django.signals import alert_closed, alert_raised
from chrono_beat_django.store import definitions
from chrono_beat_django.store.alerts import DjangoAlertStore
from tests.targets.receiver import documented

SECOND = 1_000_000
MINUTE = 60 * SECOND
START = 1_800_000_000 * SECOND
URL, SECRET = "https://alerts.example.org/hook", encode_secret(b"o" * 32)

pytestmark = pytest.mark.django_db(transaction=True)


class Way:
    """Remembers what it was given; fails while it is told to."""

    def __init__(self, name="way"):
        self.name, self.told, self.broken = name, [], False

    def send(self, alert):
        if self.broken:
            raise OSError("password=hunter2")
        self.told.append(alert)


class Deployment:
    """Processes with the role alert on one database, whose clock goes by hand."""

    def __init__(self, *ways, processes=1, of=None):
        self.now_us, self.leases, self.clock = START, [], ManualClock()
        jobs = SimpleNamespace(now_us=lambda: self.now_us, partitions=lambda: self.leases)
        self.store = DjangoAlertStore(definitions.alias(), alert_senders.closed)
        self.services = [
            Alerts(jobs, self.store, of or (lambda alert: ways), self.clock, Config(alert_every=900)) for _ in range(processes)]

    def notice(self, *found):
        for each in found:
            self.services[0].inbox.add(each)

    def step(self, later_us=0):
        self.now_us += later_us
        self.clock.advance(us=later_us)
        for service in self.services:
            service.step(self.clock.monotonic_us())


def dead(count=1, tenant="acme", reason="error"):
    return Finding("dead_letter", tenant, reason, count, {"reason": reason})


@pytest.fixture
def way():
    return Way()


def test_ten_thousand_dead_letters_are_one_row_for_each_reason_and_few_messages(way):
    deployment = Deployment(way)

    for _ in range(10):
        for _ in range(500):
            deployment.notice(dead(), dead(reason="timeout"))
        deployment.step(SECOND)

    assert sorted(Alert.objects.values_list("subject", "count")) == [("error", 5_000), ("timeout", 5_000)]
    assert len(way.told) == 2


def test_an_alert_is_told_again_after_the_quiet_time_only_if_it_was_noticed_again(way):
    deployment = Deployment(way)
    deployment.notice(dead())
    deployment.step()
    deployment.step(16 * MINUTE)
    assert len(way.told) == 1

    deployment.notice(dead())
    deployment.step()

    assert [alert.count for alert in way.told] == [1, 2]


def test_of_several_processes_one_tells(way):
    deployment = Deployment(way, processes=3)
    deployment.notice(dead())

    deployment.step()
    deployment.step(MINUTE)

    assert len(way.told) == 1


def test_whoever_dies_between_claim_and_sending_is_followed_by_another(way):
    deployment = Deployment(way)
    deployment.store.note_alerts([dead()], START)
    assert deployment.store.claim_alert(START, rules.CLAIM_US)
    deployment.step(MINUTE)
    assert not way.told

    deployment.step(2 * MINUTE)

    assert len(way.told) == 1


def test_a_way_that_fails_is_tried_again_and_keeps_no_other_from_it(way, caplog):
    broken = Way("broken")
    broken.broken = True
    deployment = Deployment(broken, way)
    deployment.notice(dead())

    deployment.step()
    deployment.step(SECOND)
    assert len(way.told) == 1
    broken.broken = False
    deployment.step(MINUTE)

    assert (len(broken.told), len(way.told)) == (1, 1)
    assert "hunter2" not in caplog.text
    assert Alert.objects.get().told_count == 1


def test_a_way_that_never_works_is_given_up_for_that_message():
    broken = Way()
    broken.broken = True
    deployment = Deployment(broken)
    deployment.notice(dead())

    for _ in range(rules.MAX_ATTEMPTS):
        deployment.step(rules.LONGEST_BACKOFF_US)

    assert Alert.objects.get().told_at is not None


def test_findings_are_kept_while_the_database_is_away(way, monkeypatch):
    deployment = Deployment(way)
    deployment.notice(dead(2))

    def away(*_):
        raise StoreUnavailable("gone")

    with monkeypatch.context() as patch:
        patch.setattr(deployment.store, "note_alerts", away)
        with pytest.raises(StoreUnavailable):
            deployment.step()
    deployment.notice(dead(3))
    deployment.step()

    assert Alert.objects.get().count == 5


def test_what_is_over_is_closed_and_comes_again_as_a_new_alert(way):
    heard = []
    deployment = Deployment(way)
    held = Finding("retries_held", "acme", "", 1, {"failed": 9, "ended": 10})

    def closed(alert, **_):
        heard.append(alert.kind)

    alert_closed.connect(closed)
    try:
        for found in (held, Over("retries_held", "acme", ""), held):
            deployment.notice(found)
            deployment.step(SECOND)
    finally:
        alert_closed.disconnect(closed)

    assert heard == ["retries_held"]
    assert Alert.objects.count() == len(way.told) == 2


def test_what_nothing_ends_is_over_when_it_was_quiet_for_a_day(way):
    deployment = Deployment(way)
    deployment.notice(dead())
    deployment.step()

    deployment.step(rules.QUIET_CLOSES_US + MINUTE)

    assert not alerts.list("acme")


def test_partitions_without_owner_for_long_are_an_alert_until_they_have_one(way):
    deployment = Deployment(way)
    deployment.leases = [SimpleNamespace(owner="", expires_us=0), SimpleNamespace(owner="a", expires_us=START + 10**12)]
    deployment.step()
    assert not Alert.objects.exists()
    deployment.step(40 * SECOND)
    assert way.told[0].detail == {"partitions": 1}

    deployment.leases = deployment.leases[1:]
    deployment.step(MINUTE)

    assert Alert.objects.get().closed_at


def test_muted_alerts_are_noted_and_sent_after_the_mute(way):
    mute = alerts.mute("dead_letter", "acme", lasting=timedelta(days=36_500), note="known", actor="ann")
    deployment = Deployment(way)
    deployment.notice(dead(), dead(tenant="other"))
    deployment.step()
    assert [alert.tenant for alert in way.told] == ["other"]
    assert [found.id for found in alerts.mutes()] == [mute.id]

    alerts.unmute(mute.id)
    deployment.step(SECOND)

    assert [alert.tenant for alert in way.told] == ["other", "acme"]
    assert not AlertMute.objects.exists()


def test_wrong_input_is_refused_by_name():
    with pytest.raises(InvalidInput, match="dead_letter"):
        alerts.mute("deadletter")
    with pytest.raises(InvalidInput):
        alerts.list(kind="x")
    for call in (alerts.unmute, alerts.close):
        with pytest.raises(NotFound):
            call(7)


def test_the_receivers_of_signals_that_are_documented_page_once_and_resolve():
    paged, resolved = [], []
    documented("alerts", part="signals")["page_somebody"](lambda *given: paged.append(given), resolved.append)
    deployment = Deployment(of=alert_senders.ways(Config()))
    deployment.step()                                        # looks at the partitions, which all have an owner
    try:
        deployment.notice(dead(), Finding("no_owner", "", "", 1, {"partitions": 2}),
                          *rules.noticed("publish_missed", {"tenants": ["acme", "other"]}))
        deployment.step()
        deployment.notice(Over("no_owner", "", ""))
        deployment.step(SECOND)
    finally:
        for signal in (alert_raised, alert_closed):
            assert signal.disconnect(dispatch_uid="pager")

    keys = {alert.kind: f"chrono-{alert.id}" for alert in Alert.objects.filter(tenant="")}
    assert sorted((key, line) for key, line, _ in paged) == sorted(
        [(keys["no_owner"], "partitions without owner"), (keys["publish_missed"], "missed window")])
    assert "2 executions were claimed" in {key: text for key, _, text in paged}[keys["publish_missed"]]
    assert resolved == [keys["no_owner"]]


def test_an_alert_can_be_closed_by_hand():
    alert = Alert.objects.create(kind="missed", tenant="acme", subject="job")

    assert alerts.close(alert.id).closed_at <= now()
    assert list(alerts.list("acme", open_only=False)) == [alert]


def test_a_tenant_is_told_that_it_is_crowded_and_not_by_whom(monkeypatch):
    Tenant.objects.create(slug="acme", alert_email="ops@acme.example", alert_url="https://acme.example/hook",
                          webhook_secret="whsec_c2VjcmV0")
    posted, heard = [], []
    monkeypatch.setattr(http, "call", lambda target, of, config: posted.append((target, of)))
    config = Config(alert_emails=("operator@example.org",))
    deployment = Deployment(of=alert_senders.ways(config))

    def raised(alert, **_):
        heard.append(alert.kind)

    alert_raised.connect(raised)
    try:
        deployment.notice(*rules.noticed(
            "crowded", {"tenant": "acme", "by": "loudneighbour", "p99_us": 5 * SECOND, "usual_us": SECOND}))
        deployment.step()
    finally:
        alert_raised.disconnect(raised)

    said = {message.to[0]: message.subject + message.body for message in mail.outbox}
    [(target, of)] = posted
    assert "loudneighbour" in said["operator@example.org"]
    assert "loudneighbour" not in said["ops@acme.example"] + target.body
    assert "99th" in said["ops@acme.example"]
    assert target.secrets == ("whsec_c2VjcmV0",)
    assert of.idempotency_key == f"alert-{Alert.objects.get().id}-{START}-0"
    assert heard == ["crowded"]


def test_an_address_that_is_refused_brings_the_others_no_repeats(monkeypatch):
    Tenant.objects.create(slug="acme", alert_email="good@acme.example, bad@acme.example")
    deployment = Deployment(of=alert_senders.ways(Config(alert_emails=("bad@example.org", "good@example.org"))))
    stock, refuses = alert_senders.EmailMessage.send, True

    def send(message):
        if refuses and "bad@" in message.to[0]:
            raise OSError("550")
        return stock(message)

    monkeypatch.setattr(alert_senders.EmailMessage, "send", send)
    deployment.notice(dead())
    for _ in range(3):
        deployment.step(MINUTE)
    assert sorted(message.to[0] for message in mail.outbox) == ["good@acme.example", "good@example.org"]
    refuses = False
    deployment.step(MINUTE)

    assert Counter(message.to[0] for message in mail.outbox) == dict.fromkeys(
        ["good@acme.example", "good@example.org", "bad@acme.example", "bad@example.org"], 1)


def test_all_attempts_at_one_telling_have_one_message_id_and_no_other_telling_has_it(monkeypatch):
    """Whatever is noticed in between: a receiver whose answer was lost must know the repeat."""
    Tenant.objects.create(slug="acme", alert_email="ops@acme.example", alert_url="https://acme.example/hook")
    posted, answers = [], [OSError("lost"), OSError("lost"), None, None]

    def call(target, of, config):
        posted.append(of.idempotency_key)
        if error := answers.pop(0):
            raise error

    monkeypatch.setattr(http, "call", call)
    deployment = Deployment(of=alert_senders.ways(Config()))
    for _ in range(4):
        deployment.notice(dead())
        deployment.step(MINUTE)
    deployment.step(20 * MINUTE)

    assert posted[0] == posted[1] == posted[2] != posted[3]
    assert len({message.extra_headers["Message-ID"] for message in mail.outbox}) == len(mail.outbox) == 2


class Hanging(Way):
    """Answers when it is let go."""

    def __init__(self):
        super().__init__("hangs")
        self.let_go, self.asked = threading.Event(), 0

    def send(self, alert):
        self.asked += 1
        assert self.let_go.wait(30)
        super().send(alert)


@pytest.fixture
def hanging(monkeypatch):
    monkeypatch.setattr(alert_service, "WAIT_SECONDS", 0.01)
    receiver = Hanging()
    yield receiver
    receiver.let_go.set()


def all_told(deployment, way, count):
    """Step on the spot until a way has told so many."""
    eventually(lambda: deployment.step() or len(way.told) >= count, 10)
    assert len(way.told) == count


def test_a_receiver_that_hangs_delays_neither_this_nor_the_next_alert_of_another(hanging, way):
    deployment = Deployment(hanging, way)
    deployment.notice(dead(), dead(reason="timeout"))
    all_told(deployment, way, 2)
    deployment.notice(dead(reason="reap_cap"))
    all_told(deployment, way, 3)
    assert hanging.asked == 1 and not hanging.told           # one at a time

    hanging.let_go.set()
    all_told(deployment, hanging, 3)
    eventually(lambda: deployment.step() or Alert.objects.filter(told_count=1).count() == 3, 10)
    assert len(way.told) == 3


def test_who_has_not_answered_for_a_minute_has_failed_before_the_claim_runs_out(hanging, way):
    """So that nobody else sends the same; and others are reminded meanwhile."""
    deployment = Deployment(hanging, way)
    deployment.notice(dead())
    all_told(deployment, way, 1)

    deployment.step(rules.TELL_US)
    assert Alert.objects.get().attempts == 1
    deployment.notice(dead())
    deployment.step(15 * MINUTE)
    all_told(deployment, way, 2)

    assert rules.TELL_US < rules.CLAIM_US and hanging.asked == 1


def test_a_receiver_that_fails_delays_no_reminder_to_another_and_keeps_its_id(way):
    broken, ids = Way("broken"), []
    deployment = Deployment(broken, way)

    def send(alert):
        ids.append(rules.message_id(alert))
        raise OSError

    broken.send = send
    for _ in range(31):
        deployment.notice(dead())
        deployment.step(MINUTE)

    assert [alert.count for alert in way.told] == [1, 16, 31]
    assert 1 < len(ids) < rules.MAX_ATTEMPTS and len(set(ids)) == 1
    del broken.send
    for _ in range(60):
        deployment.step(MINUTE)

    assert [(alert.count, rules.message_id(alert)) for alert in broken.told] == [(31, ids[0])]
    assert len(way.told) == 3


def test_operators_have_a_url_of_their_own_which_is_told_all(monkeypatch):
    """The tenant's is signed with the tenant's secrets and has nothing of others."""
    Tenant.objects.create(slug="acme", alert_url="https://acme.example/hook", webhook_secret="whsec_c2VjcmV0")
    posted = {}
    monkeypatch.setattr(http, "call", lambda target, of, config: posted.setdefault(target.url, []).append(target))
    deployment = Deployment(of=alert_senders.ways(Config(alert_url=URL, alert_secrets=(SECRET,))))

    deployment.notice(Finding("crowded", "acme", "", 1, {"p99": 5, "usual": 1, "secret_by": "globex"}),
                      Finding("no_worker", "acme", "chrono t", 1, {"pool": "chrono", "task": "t", "jobs": 1, "name": "n"}))
    deployment.step()

    [to_operators], to_tenant = posted[URL], posted["https://acme.example/hook"]
    assert to_operators.secrets == (SECRET,) and {target.secrets for target in to_tenant} == {("whsec_c2VjcmV0",)}
    told = json.loads(to_operators.body)
    assert told["detail"] == {"p99": 5, "usual": 1, "by": "globex"} and "globex" in told["text"]
    assert len(to_tenant) == 2 and not any("globex" in target.body for target in to_tenant)


def test_no_alert_and_no_page_of_its_shows_a_secret_or_the_url_of_a_receiver(caplog):
    """The failed attempt names the host, since whoever reads the log is to mend it."""
    Tenant.objects.create(slug="acme", alert_url="https://10.0.0.1/?token=s3cret", webhook_secret=SECRET)
    deployment = Deployment(of=alert_senders.ways(Config()))
    deployment.notice(dead())

    deployment.step()

    row = Alert.objects.get()
    seen = caplog.text + row.text + row.detail + row.told_to
    assert "HTTP_ALLOWED_ADDRESSES" in caplog.text
    assert "s3cret" not in seen and SECRET not in seen


def test_the_doctor_says_whether_operators_are_told(monkeypatch):
    def told(**given):
        with wiring.override(config=Config(**given)):
            return [(finding.level, finding.message) for finding in doctor._alerts()]

    assert told()[0][0] == doctor.WARNING
    assert told(alert_emails=("a@example.org",)) == [(doctor.GOOD, "operators are told at 1 addresses")]
    [(level, message)] = told(alert_url="https://127.0.0.1/", alert_secrets=(SECRET,))
    assert level == doctor.BAD and "loopback" in message
    named = {"resolver": lambda host, port: ["10.0.0.1"]}
    assert "10.0.0.1" in http.wrong_place(URL, Config(), **named)
    assert http.wrong_place(URL, Config(http_allowed_addresses=("10.0.0.0/8",)), **named) is None

    Tenant.objects.create(slug="acme", alert_url="https://acme.example/")
    Alert.objects.create(kind="missed", attempts=1)
    levels = [level for level, _ in told(alert_emails=("a@example.org",))]
    assert levels == [doctor.GOOD, doctor.WARNING, doctor.WARNING]


def test_a_tenants_addresses_get_nothing_of_another_or_of_the_deployment():
    Tenant.objects.create(slug="acme", alert_email="ops@acme.example")
    deployment = Deployment(of=alert_senders.ways(Config()))
    deployment.notice(dead(tenant="other"), Finding("no_owner", "", "", 1, {"partitions": 2}))

    deployment.step()

    assert not mail.outbox


def test_a_message_is_made_of_what_another_release_noticed():
    for found in (Finding("of_tomorrow", "acme", "x", 1, {}), Finding("lateness", "acme", "", 1, {"p95": 3})):
        assert "acme" in rules.title(found) and rules.text(found, operator=True)


def test_clocks_may_differ_by_the_margin():
    inbox = Inbox(SECOND, "host7")
    inbox.observe("clock_skew", {"of": "redis", "skew_us": -SECOND})
    assert inbox.take() == []

    inbox.observe("clock_skew", {"of": "redis", "skew_us": -2 * SECOND})

    assert inbox.take()[0].detail == {"of": "redis", "host": "host7", "skew": -2.0}


def test_what_waits_in_memory_is_bounded():
    inbox = Inbox(0)
    for number in range(rules.MAX_WAITING + 5):
        inbox.add(dead(reason=str(number)))

    waiting = inbox.take()

    assert len(waiting) == rules.MAX_WAITING + 1
    assert waiting[-1].count == 5
