"""The examples of docs/api.rst, line by line as they stand there: curl against a server that listens."""
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from chrono_beat_django import jobs, keys
from chrono_beat_django.models import Tenant
from tests.django.test_api import REPORT, dead_letter
from tests.django.test_jobs import clock, composition, queue  # noqa: F401

CURL = shutil.which("curl")
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.skipif(CURL is None, reason="no curl on PATH")]
PAGE = Path(__file__).parents[2] / "docs" / "api.rst"
SCRIPT = """set -eu
{definitions}
API={api}
call {arguments} --write-out '\\n%{{http_code}}'
"""


def examples():
    """Return (what defines ``API`` and ``call``, the arguments of each call) of the page."""
    blocks = re.findall(r"::\n\n((?:    .*\n|\n)+)", PAGE.read_text().partition("Use\n---\n")[2])
    lines = [line[4:] for block in blocks for line in block.replace("\\\n", "").splitlines() if line.strip()]
    calls = [line.removeprefix("call ") for line in lines if line.startswith("call ")]
    return "\n".join(line for line in lines if not line.startswith("call ")), calls


def test_every_example_of_the_page_is_carried_out(live_server):
    Tenant.objects.create(slug="acme")
    other = jobs.create(tenant="acme", **{**REPORT, "name": "other"})
    known = {"KEY": keys.create("acme", keys.SCOPES).secret, "LETTER": dead_letter(other).id,
             "OTHER": dead_letter(jobs.create(tenant="acme", **{**REPORT, "name": "another"})).id}
    definitions, calls = examples()

    def run(arguments):
        script = SCRIPT.format(definitions=definitions, arguments=arguments, api=f"{live_server.url}/chrono/api/v1")
        done = subprocess.run(["sh", "-c", script], env=known, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (arguments, done.stderr)
        return done.stdout.rpartition("\n")

    for arguments in calls:
        answer, _, status = run(arguments)
        assert status in ("200", "201"), (arguments, status, answer)
        if arguments.endswith('/trigger"'):
            known["RUN"] = json.loads(answer)["id"]
        known.setdefault("JOB", json.loads(answer).get("id", ""))

    assert len(calls) >= 15
    assert not jobs.list("acme").filter(name="report").exists()         # the last one has deleted it
