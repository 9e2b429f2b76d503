"""What signs alerts and lets them in stays with those who set it: no page, answer, command, log or history shows it."""
import smtplib
import ssl
from types import SimpleNamespace

import httpcore
import pytest
from celery import Celery
from click.testing import CliRunner
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core import mail

from chrono_beat.celery.app import ChronoBeat
from chrono_beat.celery.commands import chrono
from chrono_beat.core.alerts import Finding
from chrono_beat.core.callback import encode_secret
from chrono_beat.core.config import Config, find_problems
from chrono_beat.services.alerts import Alerts
from chrono_beat.targets import http
from chrono_beat.testing.clock import ManualClock
from chrono_beat_django import alert_senders, doctor, keys, wiring
from chrono_beat_django.models import Alert, Tenant
from chrono_beat_django.store import definitions
from chrono_beat_django.store.alerts import DjangoAlertStore
from tests.django import adminkit
from tests.django.fakes import RecordingQueue

NOW, BEFORE, OPERATORS = (encode_secret(letter * 32) for letter in (b"n", b"b", b"o"))
TOKEN, PASSWORD = "t0ken-of-the-hook", "hunter2"
SECRETS = (NOW, BEFORE, OPERATORS, TOKEN, PASSWORD)
TENANT_URL, OPERATOR_URL = f"https://acme.example/hook?key={TOKEN}", f"https://operator.example/{TOKEN}"
CONFIG = Config(partitions=8, alert_url=OPERATOR_URL, alert_secrets=(OPERATORS,), alert_emails=("ops@example.org",))
TENANTS = "/admin/chrono_beat/tenant/"

app = Celery("secretive", set_as_current=False)
ChronoBeat(app)

pytestmark = pytest.mark.django_db(transaction=True)
ada = pytest.fixture(adminkit.superuser)


@pytest.fixture(autouse=True)
def acme(settings):
    settings.EMAIL_HOST_PASSWORD = PASSWORD
    with wiring.override(queue=RecordingQueue(), config=CONFIG):
        yield Tenant.objects.create(
            slug="acme", alert_email="ops@acme.example", alert_url=TENANT_URL, webhook_secret=NOW, webhook_secret_before=BEFORE)


def assert_shows_none(*texts, but=()):
    for text in texts:
        assert text and not [secret for secret in SECRETS if secret in text and secret not in but]


def tell():
    """Let a dead letter of the tenant be told."""
    now_us = 1_800_000_000_000_000
    jobs = SimpleNamespace(now_us=lambda: now_us, partitions=list)
    store, clock = DjangoAlertStore(definitions.alias()), ManualClock()
    service = Alerts(jobs, store, alert_senders.ways(CONFIG), clock, CONFIG)
    service.inbox.add(Finding("dead_letter", "acme", "error", 1, {"reason": "error"}))
    service.step(clock.monotonic_us())
    return Alert.objects.get()


@pytest.mark.parametrize("error", [
    OSError(f"cannot reach {TENANT_URL}"), httpcore.ConnectError(f"{OPERATOR_URL}: refused"),
    ssl.SSLError(1, f"{TENANT_URL} has no certificate"), ValueError(f"signed with {NOW} and {OPERATORS}"),
])
def test_the_log_of_a_request_that_fails(caplog, monkeypatch, error):
    def broken(*_, **__):
        raise error

    monkeypatch.setattr(http.httpcore.ConnectionPool, "stream", broken)
    caplog.set_level("DEBUG")

    row = tell()

    assert caplog.text.count("could not be sent by") == 2 and row.attempts == 1
    assert_shows_none(caplog.text, row.text, row.detail, row.told_to)


def test_the_log_of_an_answer_that_repeats_the_request(caplog, monkeypatch):
    monkeypatch.setattr(http, "_exchange", lambda target, *_: (400, None, f"no {target.url} with {target.secrets}"))

    tell()

    assert "400" in caplog.text
    assert_shows_none(caplog.text)


def test_the_log_of_a_mail_that_fails(caplog, monkeypatch):
    def broken(message):
        raise smtplib.SMTPAuthenticationError(535, f"user ops, password {PASSWORD}".encode())

    monkeypatch.setattr(http, "call", lambda *_: None)
    monkeypatch.setattr(mail.EmailMessage, "send", broken)
    caplog.set_level("DEBUG")

    row = tell()

    assert caplog.text.count("SMTPAuthenticationError") == 2
    assert_shows_none(caplog.text, row.told_to)


def test_what_is_told(monkeypatch):
    posted = []
    monkeypatch.setattr(http, "call", lambda target, *_: posted.append(target.body))

    tell()

    assert len(posted) == len(mail.outbox) == 2
    assert_shows_none(*posted, *(str(message.message()) for message in mail.outbox))


def test_pages_and_histories_of_the_admin(ada, acme):
    """Who may edit a tenant's URL sees it whole, there and nowhere else."""
    row = Alert.objects.create(kind="dead_letter", tenant="acme", text="x", told_to='{"signal": {"attempts": 1}}')
    page = f"{TENANTS}{acme.pk}/change/"
    form = ada.get(page).context["adminform"].form
    given = {name: form.initial.get(name) for name in form.fields if form.initial.get(name) not in (None, False)}
    moved = ada.post(page, {**given, "alert_url": f"{TENANT_URL}&more"})
    assert moved.status_code == 302, moved.context["adminform"].form.errors

    seen = [ada.get(url).content.decode() for url in (
        TENANTS, f"{TENANTS}{acme.pk}/history/", "/admin/", "/admin/chrono_beat/alert/",
        f"/admin/chrono_beat/alert/{row.pk}/change/", f"/admin/chrono_beat/alert/{row.pk}/history/")]
    [entry] = LogEntry.objects.all()

    assert "Alert URL" in entry.get_change_message()
    assert_shows_none(*seen, entry.change_message, entry.object_repr, str(entry))
    assert_shows_none(ada.get(page).content.decode(), but=(TOKEN,))


def test_a_page_for_who_may_only_look_at_a_tenant(client, acme):
    user = User.objects.create_user("eve", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename="view_tenant"))
    client.force_login(user)

    shown = client.get(f"{TENANTS}{acme.pk}/change/").content.decode()

    assert "acme.example" in shown
    assert_shows_none(shown)


@pytest.mark.parametrize("line", [
    "tenants show acme", "tenants show acme --json", "tenants list", "tenants list --json", "alerts list", "alerts list --json",
    "alerts list --all --json", "alerts list --mutes --json", "tenants show nobody", "alerts mute --kind mised",
])
def test_commands(line):
    Alert.objects.create(kind="dead_letter", tenant="acme", text="x", attempts=1)

    assert_shows_none(CliRunner().invoke(chrono, line.split(), obj=SimpleNamespace(app=app)).output)


def test_the_doctor():
    Alert.objects.create(kind="dead_letter", attempts=1)

    said = [finding.message + finding.mend for finding in doctor._alerts()]

    assert len(said) == 2
    assert_shows_none(*said, repr(CONFIG))


def test_answers_of_the_http_api(client):
    key = keys.create("acme", scopes=("read", "write", "operate"))
    for path in ("tenant/usage", "openapi.json", "jobs", "nothing"):
        answer = client.get(f"/chrono/api/v1/{path}", headers={"Authorization": f"Bearer {key.secret}"})
        assert_shows_none(answer.content.decode())


@pytest.mark.parametrize("url", [f"https://ann:{PASSWORD}@hooks.example/", f"ftp://hooks.example/?key={TOKEN}",
                                 f"https://hooks.example:{PASSWORD}/", f"https://10.0.0.1/{TOKEN}"])
def test_a_url_that_is_refused(url):
    problems = list(find_problems({"REDIS_URL": "redis://localhost", "ALERT_URL": url, "ALERT_SECRETS": [OPERATORS]}))

    assert [problem.field for problem in problems] == ["ALERT_URL"]
    assert_shows_none(problems[0].message)
