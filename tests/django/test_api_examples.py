"""The examples of docs/api.rst, line by line as they stand there: curl against a server that listens; and those of the schema."""
import json
import re
import shutil
import subprocess
from pathlib import Path

import jsonschema_rs
import pytest

from chrono_beat_django import jobs, keys
from chrono_beat_django.api import api
from chrono_beat_django.models import Tenant
from tests.django.test_api import REPORT, acme, dead_letter  # noqa: F401
from tests.django.test_jobs import clock, composition, queue  # noqa: F401

CURL = shutil.which("curl")
pytestmark = pytest.mark.django_db(transaction=True)
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


@pytest.mark.skipif(CURL is None, reason="no curl on PATH")
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


def shown(node, where=""):
    """Yield (where, schema, example) of everything in the schema that has one."""
    if isinstance(node, dict):
        if "example" in node:
            yield where, node.get("schema", node), node["example"]
        for key, inside in node.items():
            if key != "example":
                yield from shown(inside, f"{where}/{key}")
    elif isinstance(node, list):
        for number, inside in enumerate(node):
            yield from shown(inside, f"{where}/{number}")


def test_every_example_of_the_schema_is_what_the_schema_says():
    described = json.loads(json.dumps(api.get_openapi_schema(), default=str))
    examples = list(shown(described))

    for where, schema, example in examples:
        whole = {**schema, "components": described["components"]}
        found = jsonschema_rs.Draft202012Validator(whole, validate_formats=True).iter_errors(example)
        assert not [error.message for error in found], where
    assert len(examples) > 100


def test_every_body_that_the_schema_shows_is_carried_out(acme):  # noqa: F811
    described = json.loads(json.dumps(api.get_openapi_schema(), default=str))
    bodies = {operation["operationId"]: (method.upper(), path.removeprefix("/chrono/api/v1"), operation["requestBody"])
              for path, operations in described["paths"].items() for method, operation in operations.items()
              if "requestBody" in operation}
    sent = []
    for name in ("create_job", *sorted(bodies.keys() - {"create_job"})):
        method, path, body = bodies[name]
        [model] = re.findall(r"schemas/(\w+)", json.dumps(body))
        answer = acme(method, path.replace("{job_id}", sent[0] if sent else ""),
                      described["components"]["schemas"][model]["example"], If_Match="*")
        assert answer.status_code < 300, (name, answer.content)
        sent.append(answer.json().get("id", ""))
    assert len(sent) == len(bodies) >= 9
