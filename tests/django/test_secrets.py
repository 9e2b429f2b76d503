"""Secrets are planted wherever a deployment has one, and each way out is searched for them."""
import base64
import logging
import traceback
from types import SimpleNamespace

import pytest
from celery import Celery
from click.testing import CliRunner
from django.contrib.auth.models import Permission, User

from chrono_beat.celery import ChronoBeat
from chrono_beat.celery.commands import chrono
from chrono_beat.core.callback import HttpTargetError, encode_secret
from chrono_beat.core.config import Config
from chrono_beat.core.errors import QueueUnavailable
from chrono_beat.redis.queue import RedisQueueStore
from chrono_beat_django import alert_senders, jobs, keys, tenant_secrets, wiring
from chrono_beat_django.models import Alert, ApiKey, Execution, Job, Tenant
from chrono_beat_django.store import http_targets
from tests.django.adminkit import NOON
from tests.django.fakes import RecordingQueue
from tests.django.test_admin_pages import executed

pytestmark = pytest.mark.django_db

WORD = "hunter2"
SIGNING = encode_secret(b"hunter2-" * 4)
TOKEN = f"{WORD}-metrics-token"
CONFIG = Config(
    partitions=8, redis_url=f"redis://:{WORD}-redis@127.0.0.1:1/0", metrics_tokens=(TOKEN,),
    alert_url=f"https://127.0.0.2/{WORD}-operators", alert_secrets=(SIGNING,))
"""Nothing may be called at these addresses, so every way of saying so is taken as well."""

TENANT_PAGE = "/admin/chrono_beat/tenant/acme/change/"


class Planted:
    """A tenant with a job, a key, an open alert and a failed execution."""

    def __init__(self):
        Tenant.objects.get_or_create(slug="default")
        self.tenant = Tenant.objects.create(slug="acme", alert_url=f"https://127.0.0.3/?token={WORD}-tenant")
        signing = [tenant_secrets.rotate_webhook_secret("acme") for _ in range(2)]
        self.job = jobs.create(
            tenant="acme", name="hook", url="https://shop.example/hook", cron="0 3 * * *",
            headers={"Authorization": f"Bearer {WORD}-header", "X-Shop": "berlin"})
        jobs.update(self.job, headers={"Authorization": f"Bearer {WORD}-other", "X-Shop": "rome"})
        self.key = keys.create("acme", keys.SCOPES)
        self.execution = executed(self.job, NOON, state="dead", reason="error", finished_at=NOON, error="HttpTargetError: 500")
        self.alert = Alert.objects.create(kind="dead_letter", tenant="acme", subject="error")
        self.secrets = [WORD, base64.b64encode(b"hunter2-").decode()[:8], self.key.secret.split("_", 2)[2],
                        *(text.removeprefix("whsec_") for text in (SIGNING, *signing))]

    def found_in(self, text):
        return [secret for secret in self.secrets if secret in text]


@pytest.fixture
def planted():
    with wiring.override(config=CONFIG, queue=RecordingQueue()):
        yield Planted()


@pytest.fixture
def away(planted):
    """The same with the Redis that the settings name, which cannot be reached."""
    with wiring.override(queue=RedisQueueStore(CONFIG.redis_url, CONFIG)):
        yield planted


def test_a_way_out_with_a_secret_would_be_seen(planted):
    assert planted.found_in(planted.key.secret) and planted.found_in(planted.tenant.alert_url)
    assert planted.found_in(SIGNING) and planted.found_in(Tenant.objects.get(slug="acme").webhook_secret)


def test_no_repr_has_one(planted):
    target = http_targets.read(str(planted.job.id), planted.execution.id)
    definition = jobs.definition_of(planted.job)
    assert target.secrets and WORD in target.headers

    shown = repr([CONFIG, planted.key, target, definition, planted.job, planted.tenant, planted.key.row, *ApiKey.objects.all(),
                  *alert_senders.ways(CONFIG)(SimpleNamespace(kind="missed", tenant="acme"))])

    assert "acme" in shown and planted.found_in(shown) == []


def test_no_page_of_the_admin_or_the_dashboard_has_one(away, client):
    """A receiver's URL stands in the form of those who may change it, and nowhere else."""
    looks = User.objects.create_user("eve", is_staff=True)
    looks.user_permissions.set(Permission.objects.filter(codename__startswith="view_"))
    urls = [f"/chrono/{name}" for name in ("", "tenants/", "tenants/acme/", "partitions/", "forecast/")]
    for model, row in ((Job, away.job), (Tenant, away.tenant), (Execution, away.execution), (ApiKey, away.key.row),
                       (Alert, away.alert)):
        base, key = f"/admin/chrono_beat/{model._meta.model_name}/", str(row.pk).replace(":", "_3A")
        urls += [base, f"{base}{key}/change/", f"{base}{key}/history/"]
    urls += [f"/admin/chrono_beat/{name}/" for name in ("jobevent", "partition", "lane", "dispatcher", "alertmute")]

    for user in (looks, User.objects.create_superuser("ada")):
        client.force_login(user)
        for url in urls:
            answer = client.get(url)
            text = answer.content.decode()
            assert answer.status_code == 200, (user, url)
            if url == TENANT_PAGE:
                assert "127.0.0.3" in text
                text = text.replace(away.tenant.alert_url, "" if user is not looks else away.tenant.alert_url)
            assert away.found_in(text) == [], (user, url)


@pytest.mark.parametrize("line", [
    "doctor", "tenants list", "tenants show acme", "tenants update acme --weight 2", "keys list", "jobs list -t acme",
    "jobs show hook -t acme", "jobs history hook -t acme", "executions list -t acme --from 2026-01-01T00:00Z", "dead list",
    "alerts list --all", "top --once", "forecast", "jobs trigger hook -t acme", "jobs pause hook -t acme",
])
@pytest.mark.parametrize("how", [(), ("--json",)], ids=["words", "json"])
def test_no_command_has_one_with_redis_away(away, line, how, recwarn):
    app = Celery("secrets", set_as_current=False)
    ChronoBeat(app)

    done = CliRunner().invoke(chrono, [*line.split(), *how], obj=SimpleNamespace(app=app))

    assert done.output and (done.exception is None or isinstance(done.exception, SystemExit)), done.exception
    assert away.found_in(done.output) == []


def test_no_figure_or_probe_has_one(away, client):
    pytest.importorskip("prometheus_client")
    shown = [client.get("/chrono/metrics", headers={"Authorization": f"Bearer {token}"}).content.decode()
             for token in (TOKEN, f"{WORD}-guess")]

    assert "chrono_" in shown[0]
    assert away.found_in("".join(shown) + client.get("/chrono/healthz").content.decode()) == []


def test_no_log_at_level_debug_and_no_traceback_has_one(away, caplog):
    caplog.set_level(logging.DEBUG)
    alert = SimpleNamespace(id=1, kind="missed", tenant="acme", subject="", count=1, detail={}, text="", attempts=0, told=0,
                            first_at=NOON, last_at=NOON, told_at=None, telling=1)
    raised = []
    for sender in alert_senders.ways(CONFIG)(alert):
        if isinstance(sender, alert_senders.Webhook):
            with pytest.raises(HttpTargetError) as refused:
                alert_senders.http.call(
                    alert_senders.HttpTarget(url=sender._url, body="{}", secrets=sender._secrets),
                    alert_senders.http.Call("a", "b", 1, "c"), CONFIG)
            raised.append(refused.value)
    with pytest.raises(QueueUnavailable) as unreachable:
        wiring.queue().now_us()
    for error in (*raised, unreachable.value):
        logging.getLogger("test").error("failed", exc_info=error)

    assert len(raised) == 2 and "127.0.0.3" in caplog.text
    told = "".join("".join(traceback.format_exception(error)) for error in (*raised, unreachable.value))
    assert away.found_in(caplog.text + told) == []
