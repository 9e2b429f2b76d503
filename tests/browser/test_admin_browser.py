"""The admin's pages in a real Chromium: nothing is cut off, on a phone neither, and the keyboard's focus is never hidden."""
from datetime import timedelta

import pytest
from django.contrib.admin.utils import quote
from django.urls import reverse
from django.utils.timezone import now

from chrono_beat.core import ids
from chrono_beat_django import jobs, wiring
from chrono_beat_django.models import Execution, Job
from tests.django import adminkit

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
LONG = "x" * 700


@pytest.fixture
def job(site):
    return jobs.create(tenant="acme", name="n" * 150, task="shop.report", cron="0 3 * * *", kwargs={"long": LONG}, actor="ada")


@pytest.fixture
def execution(job):
    at = now().replace(microsecond=0) - timedelta(hours=2)
    return Execution.objects.create(
        id=ids.execution_id(str(job.id), ids.to_us(at), 1), job_id=job.id, tenant="acme", job_name=job.name, scheduled_at=at,
        due_at=at, first_due_at=at, started_at=at, finished_at=at, state="dead", reason="error",
        error=f"ValueError: {LONG}\n  deep")


def test_all_jobs_of_several_pages_are_paused_and_no_other(site, tab):
    wiring.queue().away = False
    adminkit.crowd(105, tenant="acme")
    kept = jobs.create(name="kept", task="shop.report", cron="0 3 * * *")
    tab.open(f"{site}/admin/chrono_beat/job/?tenant=acme")
    tab.run("document.querySelector('#action-toggle').click()")
    tab.run("document.querySelector('.actions .question a').click()")
    tab.run("document.querySelector('[name=action]').value = 'pause_jobs'")
    tab.follow("#changelist-form button[name=index]")

    assert "Pause 105 jobs?" in tab.run("document.querySelector('#content').innerText")
    assert not Job.objects.filter(paused=True).exists()
    tab.follow("[name=confirmed]")
    assert "The same for 85 more jobs." in tab.run("document.querySelector('.messagelist').innerText")
    assert list(Job.objects.filter(paused=False)) == [kept]


@pytest.mark.parametrize("width", [390, 1280])
def test_long_names_values_and_errors_widen_no_page(site, tab, job, execution, width):
    for name, key in (("job_history", job.pk), ("execution_change", execution.id)):
        tab.open(site + reverse(f"admin:chrono_beat_{name}", args=[quote(str(key))]), width=width)

        assert tab.run("document.documentElement.scrollWidth") <= width
        assert tab.run("[...document.querySelectorAll('pre')].every((each) => each.getBoundingClientRect().right <= innerWidth)")


def test_the_preview_hides_no_field_that_has_the_focus(site, tab, job):
    tab.open(site + reverse("admin:chrono_beat_job_change", args=[job.pk]))
    tab.run("document.querySelector('#id_name').focus()")
    for _ in range(25):
        tab.press("Tab")
        assert not tab.run("""(() => {
            const field = document.activeElement, panel = document.querySelector("#chrono-preview");
            const [one, other] = [field, panel].map((each) => each.getBoundingClientRect());
            return !panel.contains(field) && one.top < other.bottom && one.bottom > other.top && field.name;
        })()""")


def test_a_screen_reader_is_told_the_gist_of_the_preview_once(site, tab, job):
    tab.open(site + reverse("admin:chrono_beat_job_change", args=[job.pk]))
    tab.run("""
        window.told = [];
        new MutationObserver(() => told.push(document.querySelector("#chrono-said").textContent))
            .observe(document.querySelector("#chrono-said"), { childList: true });
        window.typed = (name, value) => new Promise((done) => {
            new MutationObserver(done).observe(document.querySelector("#chrono-preview"), { childList: true });
            document.querySelector(`[name=${name}]`).value = value;
            document.querySelector(`[name=${name}]`).dispatchEvent(new Event("input", { bubbles: true }));
        })""")
    for name, value in (("expression", "0 4 * * *"), ("note", "for people"), ("name", "nightly")):
        tab.run(f"typed('{name}', '{value}').then(() => 0)")

    assert tab.run("document.querySelector('#chrono-preview').innerText").count(" 04:00:00 UTC") >= 10
    assert tab.run("told") == ["At 04:00, on the clocks of UTC"]
    assert tab.run("document.querySelector('#chrono-preview').closest('[aria-live]')") is None


def test_a_new_job_is_not_found_fault_with_before_anything_is_typed(site, tab):
    def shown():
        return tab.run("new Promise((done) => setTimeout(() => done(document.querySelector('#chrono-preview').innerText), 1000))")

    tab.open(f"{site}/admin/chrono_beat/job/add/")

    assert "cannot be saved" not in shown()
    tab.run("""(() => {
        const field = document.querySelector("[name=expression]");
        field.value = "0 3 * * *";
        field.dispatchEvent(new Event("input", { bubbles: true }));
    })()""")
    while "At 03:00" not in shown():
        pass
