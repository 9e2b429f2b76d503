"""The dashboard in a real Chromium: its style and script load under its own policy, and it keeps itself up to date."""
import os
import shutil
import subprocess

import pytest
from django.db import OperationalError

from chrono_beat_django.dashboard import panels
from chrono_beat_django.models import Rollup, Tenant
from tests.browser import devtools, letin

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def chromium(tmp_path, *arguments):
    done = subprocess.run(
        [devtools.CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr",
         f"--user-data-dir={tmp_path / 'profile'}", "--hide-scrollbars", *arguments],
        capture_output=True, text=True, timeout=100, check=True)
    assert "Content Security Policy" not in done.stderr, done.stderr
    return done.stdout


def test_a_page_fetches_itself_anew_while_it_is_seen(site, tmp_path):
    text = chromium(tmp_path, "--virtual-time-budget=40000", "--dump-dom", f"{site}/chrono/")

    assert text.count("<svg") == 4 and "Redis does not answer" in text and text.count("<main") == 1
    assert letin.seen.count("/chrono/") >= 2


@pytest.mark.parametrize("page", ["tenants/acme/"])
def test_a_page_can_be_drawn_in_light_dark_and_on_a_phone(site, tmp_path, page):
    sizes = {}
    for name, arguments in (("light", ["--window-size=1200,1500"]),
                            ("dark", ["--window-size=1200,1500", "--blink-settings=preferredColorScheme=0"]),
                            ("phone", ["--window-size=500,1800"])):
        picture = tmp_path / f"{name}.png"
        chromium(tmp_path, *arguments, f"--screenshot={picture}", f"{site}/chrono/{page}")
        sizes[name] = picture.read_bytes()
        if "CHRONO_SCREENSHOTS" in os.environ:
            shutil.copy(picture, f"{os.environ['CHRONO_SCREENSHOTS']}/{page.replace('/', '-')}{name}.png")

    assert len(set(sizes.values())) == 3, "light and dark look the same"


# The page's own timer is caught, so that a test says when the page fetches itself anew.
CAUGHT = "const later = setTimeout; window.setTimeout = (deed, ms) => ms === 15000 && String(deed).includes('refresh') " \
    "? (window.again = deed, 0) : later(deed, ms);"


def test_what_was_opened_scrolled_and_focused_stays_so_when_the_page_is_fetched_anew(site, tab):
    tab.open(f"{site}/chrono/tenants/?hours=6", width=390, before=CAUGHT)
    tab.run("document.querySelector('tbody a').focus(); document.querySelector('.wide').scrollLeft = 60")
    tab.run("document.querySelector('tbody a').before('old')")

    tab.run("again()")

    assert tab.run("document.querySelector('tbody').textContent.includes('old')") is False
    assert tab.run("[document.querySelector('.wide').scrollLeft, document.activeElement.textContent]") == [60, "acme"]
    tab.run("document.querySelector('#q').focus(); document.querySelector('#q').value = 'ac'")
    tab.run("again()")
    assert tab.run("[document.activeElement.id, document.activeElement.value]") == ["q", "ac"]


def test_an_opened_table_and_a_place_on_the_page_stay(site, tab):
    tab.open(f"{site}/chrono/", before=CAUGHT)
    tab.run("document.querySelector('[data-key=load]').open = true; scrollTo(0, 500)")

    tab.run("again()")

    assert tab.run("[document.querySelectorAll('details[open]').length, scrollY]") == [1, 500]
    assert tab.run("document.querySelectorAll('main [role=status], main [aria-live]').length") == 0, "read out at each change"


def test_a_page_that_cannot_be_fetched_anew_says_so_until_it_can(site, tab, monkeypatch):
    def told():
        tab.run("again()")
        return tab.run("document.querySelector('#stale:not([hidden])')?.textContent")

    tab.open(f"{site}/chrono/", before=CAUGHT)
    monkeypatch.setattr(panels, "overdue", lambda at: (_ for _ in ()).throw(OperationalError("database is locked")))

    assert "error 503" in told()
    assert tab.run("document.querySelector('h1').textContent") == "Overview"
    monkeypatch.undo()
    assert told() is None


@pytest.mark.parametrize("path", ["", "tenants/", "tenants/acme/", "forecast/", "partitions/"])
def test_a_phone_scrolls_tables_and_not_the_page(site, tab, path):
    Tenant.objects.get_or_create(slug="a" * 63)
    Rollup.objects.update(tenant="a" * 63)

    tab.open(f"{site}/chrono/{path}", width=390)

    assert tab.run("document.documentElement.scrollWidth") == 390
    assert tab.run("[...document.querySelectorAll('tbody th')].every((each) => each.offsetWidth < 200)")


def test_what_has_the_focus_of_the_keyboard_is_framed(site, tab):
    tab.open(f"{site}/chrono/tenants/")
    seen = []
    for _ in range(12):
        tab.press("Tab")
        seen.append(tab.run("[document.activeElement.tagName, getComputedStyle(document.activeElement).outlineStyle]"))

    assert seen[0] == ["A", "solid"] or seen[0] == ["A", "auto"], "the link to skip to the content comes first"
    assert {style for tag, style in seen if tag != "BODY"} <= {"solid", "auto"}
    assert {"A", "INPUT", "BUTTON"} <= {tag for tag, _ in seen}
