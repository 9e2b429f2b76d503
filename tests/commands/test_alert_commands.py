"""``chrono alerts``: what an operator types when a message has come."""
from types import SimpleNamespace

import pytest
from celery import Celery
from click.testing import CliRunner

from chrono_beat.celery.app import ChronoBeat
from chrono_beat.celery.commands import chrono
from chrono_beat_django import alerts
from chrono_beat_django.models import Alert

app = Celery("alerted", set_as_current=False)
ChronoBeat(app)

pytestmark = pytest.mark.django_db(transaction=True)


def alerts_command(*line, status=0):
    done = CliRunner().invoke(chrono, ("alerts", *line), obj=SimpleNamespace(app=app))
    assert done.exit_code == status, (done.output, done.exception)
    return done.output


def test_alerts_are_listed_muted_unmuted_and_closed():
    alert = Alert.objects.create(kind="missed", tenant="acme", subject="job", text="one\ntwo")
    assert "one; two" in alerts_command("list", "--tenant", "acme")

    assert "mute" in alerts_command("mute", "--kind", "missed", "--for", "2h")
    [mute] = alerts.mutes()
    assert "missed" in alerts_command("list", "--mutes")
    alerts_command("unmute", str(mute.id))
    alerts_command("close", str(alert.id))

    assert "acme" not in alerts_command("list")
    assert "acme" in alerts_command("list", "--all", "--json")


def test_a_kind_that_is_none_is_refused_with_its_field():
    assert "kind" in alerts_command("mute", "--kind", "mised", status=2)
