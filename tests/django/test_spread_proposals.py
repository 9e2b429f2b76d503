"""Where a job's next run falls into a crowded minute a spread is proposed, and no tenant learns of another by it."""
import json

import pytest

from chrono_beat_django import edits, jobs
from chrono_beat_django.models import Job, Tenant
from chrono_beat_django.preview import spread_proposal
from tests.django.adminkit import NOON, at_noon, create, crowd, superuser
from tests.django.test_admin_jobs import as_loaded
from tests.django.test_admin_previews import ADD, TYPED, page_of, text_of
from tests.django.test_api import acme, globex  # noqa: F401

pytestmark = pytest.mark.django_db

composition = pytest.fixture(autouse=True)(at_noon)
ada = pytest.fixture(superuser)

REPORT = {"name": "report", "task": "shop.report", "cron": "3 3 * * *", "idempotent": "yes"}
OF_THE_TENANT = "03:03Z is crowded: at least {} other jobs of this tenant are due in that minute, none of them spread. With"
OF_ALL = "03:03Z is crowded: at least {} other jobs of the whole deployment are due in that minute, none of them spread. With"


def everything(caller):
    """Return all answers of the API that a spread may be proposed in, as one text; the job is deleted at the end."""
    made = caller("POST", "/jobs", REPORT)
    path = f"/jobs/{made.json()['id']}"
    answers = [made, caller("POST", "/jobs/preview", REPORT | {"name": "another"}), caller("GET", path + "/preview"),
               caller("PATCH", path, {"note": "x"}, If_Match='"1"'), caller("GET", path), caller("DELETE", path)]
    assert all(answer.status_code in (200, 201, 202) for answer in answers)
    return json.dumps([answer.json() for answer in answers])


def test_a_key_sees_figures_of_its_own_tenant_and_never_of_another(acme, globex):  # noqa: F811
    crowd(777, "globex")

    assert "crowded" not in everything(acme)
    assert OF_THE_TENANT.format(777) in everything(globex)
    crowd(505, "acme")
    assert OF_THE_TENANT.format(505) in (seen := everything(acme))
    assert "777 " not in seen and "1,28" not in seen and "deployment" not in seen


def test_the_answer_to_create_and_update_warns_as_the_preview_does(acme):  # noqa: F811
    crowd(505, "acme")
    made = acme("POST", "/jobs", REPORT).json()
    path = f"/jobs/{made['id']}"
    [warning] = made["warnings"]
    [note] = acme("GET", path + "/preview").json()["notes"]

    assert (warning["field"], warning["code"], warning["mend"]) == ("spread", "crowded", note)
    moved = acme("PATCH", path, {"cron": "4 3 * * *"}, If_Match='"1"').json()
    assert moved["warnings"] == []
    assert acme("PATCH", path, {"cron": "3 3 * * *"}, If_Match='"2"').json()["warnings"] == [warning]
    assert acme("PATCH", path, {"spread": 300}, If_Match='"3"').json()["warnings"] == []


def test_a_job_that_its_tenant_spreads_gets_no_proposal_and_counts_for_none():
    Tenant.objects.create(slug="calm", spread_seconds=600)
    crowd(600, "calm")
    crowd(600, spread_seconds=60)

    assert spread_proposal(create(tenant="calm", cron="3 3 * * *"), NOON) is None
    assert spread_proposal(create(tenant="calm", cron="3 3 * * *", name="none", spread=0), NOON) is None, "asked for"
    assert spread_proposal(job := create(cron="3 3 * * *"), NOON, operator=True) is None
    Tenant.objects.filter(slug="calm").update(spread_seconds=0)
    assert OF_ALL.format(602) in spread_proposal(job, NOON, operator=True)
    assert spread_proposal(job, NOON) is None


def test_what_does_not_fire_is_not_counted():
    Tenant.objects.create(slug="halted", paused=True)
    crowd(600, "halted")
    crowd(600, paused=True, next_run_at=None)

    assert spread_proposal(create(cron="3 3 * * *"), NOON, operator=True) is None


def test_an_operator_sees_a_figure_of_the_whole_deployment_that_says_so(ada):
    Tenant.objects.create(slug="acme")
    crowd(400, "acme")
    crowd(300)
    typed = {"schedule_kind": "cron", "expression": "3 3 * * *", "timezone": "UTC"}

    assert OF_ALL.format(700) in text_of(ada.post(TYPED, typed))
    assert "is crowded" not in text_of(ada.post(TYPED, typed | {"expression": "4 3 * * *"}))
    assert "is crowded" not in text_of(ada.post(TYPED, typed | {"spread_seconds": "600"}))
    whole = as_loaded(ada, ADD) | {"name": "n", "task": "shop.report", "expression": "3 3 * * *", "_preview": "Preview"}
    assert OF_ALL.format(700) in text_of(ada.post(ADD, whole))
    job = create(cron="3 3 * * *")
    assert OF_ALL.format(700) in text_of(ada.get(page_of(job))), "a job is none of its others"
    assert not any("is crowded" in note for note in jobs.preview(job).notes), "code that does not say so sees the tenant's"


def test_an_edit_asks_for_the_crowd_once_and_not_for_what_the_job_is_before_it(monkeypatch):
    crowd(600)
    job = create(cron="3 3 * * *")
    asked = []
    monkeypatch.setattr("chrono_beat_django.preview._due_unspread", lambda *of: asked.append(of) or 600)

    edit = edits.preview_edit(job, {"note": "x"})

    assert [of[2] for of in asked] == [job.id]
    assert OF_THE_TENANT.format(600) in edit.after.notes[0] and edit.before.notes == ()
    assert edits.preview_edit(job, {"spread": 60}).after.notes == () and len(asked) == 1
    assert Job.objects.count() == 601
