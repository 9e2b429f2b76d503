"""Alerts in a real Chromium, as an operator meets them: seen on the dashboard, muted and unmuted and closed in the admin."""
import pytest

from chrono_beat_django.models import Alert, AlertMute

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def alert(site):
    Alert.objects.create(kind="no_owner", text="Two partitions have no owner.")
    return Alert.objects.create(kind="dead_letter", tenant="acme", subject="error", text="Executions failed.\nLook at them.")


def seen(tab, selector):
    return tab.run(f"[...document.querySelectorAll({selector!r})].map((each) => each.innerText.trim())")


def test_an_alert_is_muted_from_the_list_and_unmuted_by_removing_the_mute(site, tab, alert):
    tab.open(f"{site}/chrono/")
    tab.follow("a[href*='/chrono_beat/alert/']")
    assert seen(tab, ".field-what") == ["dead_letter", "no_owner"] and seen(tab, "td.field-state") == ["open", "open"]

    tab.run(f"document.querySelector('[name=_selected_action][value=\"{alert.id}\"]').click()")
    tab.run("document.querySelector('[name=action]').value = 'mute_alerts'")
    tab.follow("#changelist-form button[name=index]")
    assert seen(tab, ".messagelist li") == ["1 muted until this time tomorrow."]
    assert seen(tab, "td.field-state") == ["open, muted", "open"]
    assert AlertMute.objects.get().created_by == "ada"

    tab.open(f"{site}/chrono/")
    assert ["; muted until" in text for text in seen(tab, ".alerts li")] == [True, False]

    tab.open(f"{site}/admin/chrono_beat/alert/{alert.id}/change/")
    tab.follow(".field-muted a")
    tab.follow("a.deletelink")
    tab.follow("input[type=submit]")
    assert not AlertMute.objects.exists()
    tab.open(f"{site}/chrono/")
    assert not any("muted" in text for text in seen(tab, ".alerts li"))


def test_an_alert_is_closed_on_its_page(site, tab, alert):
    tab.open(f"{site}/admin/chrono_beat/alert/{alert.id}/change/")
    tab.follow("button[value=close_alerts]")

    assert seen(tab, ".messagelist li") == ["1 closed."]
    tab.open(f"{site}/chrono/")
    assert [text.split()[0] for text in seen(tab, ".alerts li strong")] == ["no_owner"]


def test_a_mute_of_everything_for_ever_is_refused_in_words_and_one_of_a_kind_is_made(site, tab, alert):
    tab.open(f"{site}/admin/chrono_beat/alertmute/")
    tab.follow("a.addlink[href$='/alertmute/add/']")
    tab.follow("input[name=_save]")
    assert "This would mute all alerts for ever" in seen(tab, ".errorlist")[0]

    tab.run("document.querySelector('[name=kind]').value = 'dead_letter'")
    tab.follow("input[name=_save]")
    assert seen(tab, "th.field-what") == ["dead_letter"] and seen(tab, "td.field-ends") == ["-"]
