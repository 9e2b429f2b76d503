"""The admin's pages of alerts and mutes."""
import json
from dataclasses import asdict

import pytest
from django.contrib.auth.models import Permission, User

from chrono_beat.core.alerts import Receipt
from chrono_beat.core.config import Config
from chrono_beat_django import alerts, wiring
from chrono_beat_django.models import Alert, AlertMute, Tenant
from tests.django import adminkit
from tests.django.fakes import RecordingQueue

pytestmark = pytest.mark.django_db
ALERTS, MUTES = "/admin/chrono_beat/alert/", "/admin/chrono_beat/alertmute/"
ada = pytest.fixture(adminkit.superuser)


@pytest.fixture(autouse=True)
def composition():
    Tenant.objects.get_or_create(slug="acme")
    with wiring.override(queue=RecordingQueue(), config=Config(partitions=8)):
        yield


def alert(**fields):
    given = {"kind": "dead_letter", "tenant": "acme", "subject": "error", "text": "Executions failed"}
    return Alert.objects.create(**given | fields)


def act(client, name, *rows):
    return client.post(ALERTS, {"action": name, "_selected_action": [row.id for row in rows]}, follow=True)


def test_open_ones_are_listed_and_all_where_asked(ada):
    alert()
    alert(kind="no_owner", tenant="", subject="", text="2 partitions", closed_at="2026-01-01T00:00Z")

    shown = ada.get(ALERTS).content.decode()
    assert "Executions failed" in shown and "2 partitions" not in shown
    assert "2 partitions" in ada.get(f"{ALERTS}?state=all").content.decode()
    assert ada.get(f"{ALERTS}{Alert.objects.first().id}/change/").status_code == 200


def test_a_list_of_many_costs_as_many_statements_as_a_list_of_few(ada, django_assert_max_num_queries):
    for number in range(50):
        alert(subject=f"job {number}", text=f"Number {number} failed")

    with django_assert_max_num_queries(20):
        assert "Number 49 failed" in ada.get(ALERTS).content.decode()


def test_a_page_says_how_far_each_receiver_is(ada):
    receipts = {"signal": Receipt(3, 0, 1), "tenant_mail:0a1b": Receipt(1, 2, 1_800_000_000_000_000), "new": Receipt()}
    row = alert(told_to=json.dumps({name: asdict(receipt) for name, receipt in receipts.items()}))

    shown = ada.get(f"{ALERTS}{row.id}/change/").content.decode()

    assert "signal: told with the count 3<br>" in shown
    assert "tenant_mail:0a1b: 2 attempts failed, tried again at 2027-01-15 08:00:00 UTC<br>new: not told yet" in shown
    assert "not told yet" in ada.get(f"{ALERTS}{alert(subject='other').id}/change/").content.decode()


def test_they_are_closed_and_muted_by_whom(ada):
    first, other = alert(), alert(subject="timeout")

    assert "1 closed." in act(ada, "close_alerts", first).content.decode()
    act(ada, "mute_alerts", other)

    assert list(alerts.list()) == [other]
    mute = AlertMute.objects.get()
    assert (mute.kind, mute.tenant, mute.subject, mute.created_by) == ("dead_letter", "acme", "timeout", "ada")
    assert mute.until > mute.created_at


def test_an_alert_says_what_mutes_it_and_offers_what_can_be_done(ada):
    row, other, over = alert(), alert(tenant="globex"), alert(kind="no_owner", closed_at="2026-01-01T00:00Z")
    page = f"{ALERTS}{row.id}/change/"
    assert [deed for deed, _ in ada.get(page).context["deeds"]] == ["close_alerts", "mute_alerts"]
    assert ada.get(f"{ALERTS}{over.id}/change/").context["deeds"] == []

    ada.post(ada.get(page).context["deeds_url"], {"action": "mute_alerts", "_selected_action": [row.id]})
    forever = alerts.mute(kind="dead_letter", tenant="acme")
    alerts.mute(kind="lateness")

    assert f'until it is removed by <a href="{MUTES}{forever.id}/change/">the mute of dead_letter acme</a>' in (
        ada.get(page).content.decode())
    assert "open, muted" not in ada.get(f"{ALERTS}{other.id}/change/").content.decode()
    listed = ada.get(f"{ALERTS}?state=all").context["cl"].result_list
    assert {each.id: bool(each.muted_by) for each in listed} == {row.id: True, other.id: False, over.id: False}


@pytest.mark.parametrize(("model", "action"), [
    ("alert", "close_alerts"), ("alert", "mute_alerts"), ("tenant", "pause_tenants"), ("tenant", "resume_tenants")])
def test_an_action_on_all_of_a_list_takes_a_bounded_number(ada, monkeypatch, model, action):
    monkeypatch.setattr("chrono_beat_django.admin.pages.MOST_ACTED_ON", 2)
    Tenant.objects.bulk_create(Tenant(slug=f"t{number}", paused=number == 0) for number in range(3))
    row = [alert(subject=str(number)) for number in range(3)][0]
    chosen = {"action": action, "_selected_action": [row.id if model == "alert" else "t0"], "select_across": "1", "index": "0"}

    said = [str(each) for each in ada.post(f"/admin/chrono_beat/{model}/", chosen, follow=True).context["messages"]]

    assert said == [f"Nothing was done: an action takes 2 {model}s at most. Narrow the list, or use the command "
                    f"“chrono {model}s”."]
    assert not AlertMute.objects.exists() and alerts.list().count() == 3
    assert list(Tenant.objects.filter(paused=True).values_list("slug", flat=True)) == ["t0"]


def test_an_alert_is_found_by_its_number(ada):
    rows = [alert(subject=subject) for subject in ("7 jobs", "other")]

    def found(text):
        return [each.id for each in ada.get(ALERTS, {"q": text}).context["cl"].result_list]

    assert found(rows[1].id) == [rows[1].id] and rows[0].id in found("7") and found("9" * 30) == []


def test_who_may_only_look_finds_no_action(client):
    user = User.objects.create_user("eve", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=("view_alert", "view_alertmute")))
    client.force_login(user)
    row = alert()

    assert "close_alerts" not in client.get(ALERTS).content.decode()
    act(client, "close_alerts", row)
    assert not Alert.objects.get().closed_at
    assert client.get(f"{MUTES}add/").status_code == 403


def test_a_mute_is_made_with_its_maker_and_removed_again(ada):
    made = ada.post(f"{MUTES}add/", {"kind": "lateness", "tenant": "acme", "subject": "", "hours": "2", "note": "known"})
    assert made.status_code == 302, made.context["adminform"].form.errors

    mute = AlertMute.objects.get()
    assert (mute.kind, mute.tenant, mute.note, mute.created_by) == ("lateness", "acme", "known", "ada")
    assert mute.until is not None
    assert "lateness acme" in ada.get(MUTES).content.decode()
    assert ada.get(f"{MUTES}{mute.id}/change/").status_code == 200
    ada.post(f"{MUTES}{mute.id}/delete/", {"post": "yes"})
    assert not AlertMute.objects.exists()


@pytest.mark.parametrize("typed", [{}, {"kind": "none of these", "hours": "1"}, {"kind": "lateness", "hours": "0"}])
def test_a_mute_of_everything_for_ever_or_of_nonsense_is_refused(ada, typed):
    refused = ada.post(f"{MUTES}add/", {"kind": "", "tenant": "", "subject": "", "hours": "", "note": ""} | typed)

    assert refused.status_code == 200 and refused.context["adminform"].form.errors
    assert not AlertMute.objects.exists()
