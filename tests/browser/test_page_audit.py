"""Every page in a real Chromium: on a phone and on a desk, light and dark, with long names in it.

``audit.js`` looks for what sideways scrolling, missing names, headings out of order and faint letters are to people.
"""
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.admin.utils import quote
from django.urls import reverse
from django.utils.timezone import now

from chrono_beat.core import ids
from chrono_beat_django import alerts, jobs, keys
from chrono_beat_django.models import Alert, Dispatcher, Execution, Job, Partition, Tenant

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
AUDIT = (Path(__file__).parent / "audit.js").read_text()
SLUG, NAME, WORD = "t" * 63, "n" * 150, "x" * 100
MEMBER = "dispatcher-one.internal.example.org:12345"


@pytest.fixture
def shown(site):
    """Rows of each kind with the longest texts: what a page is about, by the name of its model."""
    Tenant.objects.create(slug=SLUG, name=NAME, alert_url=f"https://example.org/{WORD}")
    job = jobs.create(tenant=SLUG, name=NAME, url=f"https://example.org/{WORD}", cron="*/5 * * * *", kwargs={"long": WORD})
    nightly = jobs.create(tenant="acme", name="nightly", task="shop.report", cron="30 1 * * *", timezone="Europe/London",
                          note=WORD)
    Job.objects.filter(id=nightly.id).update(quarantined_reason=WORD)
    at = now().replace(microsecond=0) - timedelta(minutes=5)
    execution = Execution.objects.create(
        id=ids.execution_id(str(job.id), ids.to_us(at), 1), job_id=job.id, tenant=SLUG, job_name=NAME, scheduled_at=at, due_at=at,
        first_due_at=at, started_at=at, finished_at=at, state="dead", reason="error", error=WORD * 5, worker=f"celery@{WORD}")
    alert = Alert.objects.create(kind="failure_rate", tenant=SLUG, subject=WORD, text=f"{WORD}\nLook at it.", detail=f'"{WORD}"')
    mute = alerts.mute("lateness", SLUG, WORD, note=WORD)
    key = keys.create("acme", ["read"], name=NAME)
    Partition.objects.update_or_create(number=0, defaults={"owner": MEMBER, "expires_at": now()})
    Dispatcher.objects.create(member=MEMBER, expires_at=now() + timedelta(hours=1))
    return {"job": job.id, "quarantined": nightly.id, "execution": execution.id, "tenant": SLUG, "alert": alert.id,
            "alertmute": mute.id, "apikey": key.row.pk, "partition": 0, "dispatcher": MEMBER}


def of(model, page="change", row=None):
    return lambda shown: reverse(f"admin:chrono_beat_{model}_{page}", args=[quote(str(shown[row or model]))])


def lists(*models):
    return [f"/admin/chrono_beat/{model}/" for model in models]


PAGES = {
    "jobs": [*lists("job"), "/admin/chrono_beat/job/add/", of("job"), of("job", row="quarantined"), of("job", "history"),
             of("job", "delete")],
    "executions": [*lists("execution", "jobevent"), "/admin/chrono_beat/execution/?later=only", of("execution")],
    "alerts": [*lists("alert", "alertmute"), "/admin/chrono_beat/alertmute/add/", of("alert"), of("alertmute"),
               of("alertmute", "delete")],
    "tenants": [*lists("tenant", "apikey"), "/admin/chrono_beat/tenant/add/", "/admin/chrono_beat/apikey/add/", of("tenant"),
                of("apikey")],
    "services": ["/admin/", *lists("", "partition", "lane", "dispatcher"), of("partition"), of("dispatcher")],
    "dashboard": [f"/chrono/{page}" for page in ("", "tenants/", f"tenants/{SLUG}/", "forecast/", "partitions/")],
}


@pytest.mark.parametrize("part", PAGES)
def test_a_page_serves_everybody(site, tab, shown, part):
    found = []
    for page in PAGES[part]:
        path = page if isinstance(page, str) else page(shown)
        tab.open(site + path.replace("//", "/"), width=390)
        for width, scheme in ((390, "light"), (1280, "dark")):
            tab.see(width, scheme)
            found += [f"{path} in {width} px, {scheme}: {fault}" for fault in tab.run(AUDIT)]

    assert not found, "\n".join(found)


def test_the_page_that_asks_serves_everybody(site, tab, shown):
    tab.open(f"{site}/admin/chrono_beat/job/", width=390)
    tab.run("document.querySelectorAll('.action-select').forEach((each) => each.click())")
    for action in ("pause_jobs", "backfill_jobs"):
        tab.leave(f"""document.querySelector('[name=action]').value = '{action}';
            document.querySelector('#changelist-form').requestSubmit(document.querySelector('[name=index]'))""")
        assert tab.run("document.querySelectorAll('.submit-row').length") == 1 and not tab.run(AUDIT)
        tab.leave("history.back()")


def test_the_audit_finds_faults(site, tab):
    """Else a page without any would prove nothing."""
    tab.open(f"{site}/admin/chrono_beat/lane/")
    tab.run("""document.querySelector("#content").insertAdjacentHTML("beforeend", `
        <div style="width: 3000px">wide</div><input name="bare"><h4>deep</h4><img src="data:,"><p style="color: #999">faint</p>
        <div style="overflow: auto; width: 50px"><p style="width: 90px">far</p></div><table><thead><tr><th>A</thead></table>
        <button tabindex="3">first</button><a id="content" href="/">twice</a><svg><text>drawn</text></svg>
        <p role="status">${"much ".repeat(99)}</p>`)""")
    found = "\n".join(tab.run(AUDIT))

    for said in ("px wide in", "nothing names input", "level 4 follows", "no words for the picture", "no words for svg",
                 "contrast of “faint”", "cannot scroll div", "have no scope", "out of the order", "content is not alone",
                 "is read out whole"):
        assert said in found, found
