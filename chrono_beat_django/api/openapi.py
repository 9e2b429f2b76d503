"""The schema: beside what each route answers when all is well, what it refuses, with an example of each refusal."""
from __future__ import annotations

from http import HTTPStatus
from typing import Any

from ninja import NinjaAPI, Schema
from pydantic import Field

from chrono_beat_django.api.outputs import JOB_ID, example

PROBLEM_JSON = "application/problem+json"
MAX_KEY_CHARACTERS = 255
_REF = "#/components/schemas/{model}"

ALWAYS = (401, 403, 422, 503)
WITH_A_BODY = (400, 411, 413)
CARRIED_OUT_ONCE = (409,)
OF_ONE_ROW = (404,)
MORE = {"create_job": (429,), "update_job": (412, 428, 429), "delete_job": (412,), "resume_job": (429,)}
"""What single operations refuse besides."""

PREVIEW = "preview_definition"
"""The POST that changes nothing, so it takes no Idempotency-Key."""


class Wrong(Schema):
    """One thing that is wrong, and its mend."""

    model_config = example(field="cron", mend="has 4 fields, a cron text has 5", code="invalid")
    field: str
    mend: str
    code: str


class ProblemOut(Schema):
    """A refusal after RFC 9457; ``field``, ``mend`` and ``code`` are those of the first of ``errors``."""

    type: str
    title: str
    status: int
    detail: str = Field(description="All errors in one sentence each.")
    field: str = Field(description='The parameter, header or member of the body that is wrong; "" where it is none of these.')
    mend: str = Field(description="What to do about it.")
    code: str = Field(description="For programs: one word that stays.")
    errors: list[Wrong]
    limit: float | None = Field(None, description="Of a quota: how many there may be.")
    usage: float | None = Field(None, description="Of a quota: how many there are.")
    retry_after_seconds: float | None = Field(None, description="Of a quota: when it has room again; null where waiting "
                                                                "does not help.")


def _problem(status: int, title: str, field: str, mend: str, code: str, **more: Any) -> dict[str, Any]:
    return {"type": "about:blank", "title": title, "status": status, "detail": f"{field}: {mend}" if field else mend,
            "field": field, "mend": mend, "code": code, "errors": [{"field": field, "mend": mend, "code": code}], **more}


PROBLEMS = {problem["status"]: problem for problem in (
    _problem(400, "Bad request", "body", 'has the key "cron" twice', "json"),
    _problem(401, "No key", "Authorization", "send a valid key: Authorization: Bearer chrono_…", "key"),
    _problem(403, "Refused", "Authorization", "this key has not the scope write; use one that has", "scope"),
    _problem(404, "Not found", "", f"there is no job {JOB_ID}", "not_found"),
    _problem(409, "Conflict", "", 'tenant acme has a job named "report" already; choose another name', "conflict"),
    _problem(411, "Length required", "Content-Length", "send the body in one piece, with its length", "invalid"),
    _problem(412, "Changed meanwhile", "If-Match", "the job is at version 4, not 3: it was changed meanwhile", "stale"),
    _problem(413, "Too large", "body", "may have 327,680 bytes", "too_large"),
    _problem(422, "Invalid", "cron", 'field 2 of the cron text, "25": hours go from 0 to 23', "invalid"),
    _problem(428, "Refused", "If-Match", 'send the version that you saw, If-Match: "3"; the answer to GET has it as ETag',
             "invalid"),
    _problem(429, "Quota exceeded", "tenant", "acme may create 100 jobs a second and 1,000 at once; try again in 0.010 "
             "seconds, or raise create_rate", "rate", limit=1_000, usage=1_000, retry_after_seconds=0.01),
    _problem(503, "Unavailable", "", "a server behind this one does not answer; try again", "unavailable"),
)}

_TEXT = {"schema": {"type": "string"}}
_REFUSAL_HEADERS = {
    401: {"WWW-Authenticate": {"description": "Bearer", **_TEXT}},
    429: {"Retry-After": {"description": "Seconds; where waiting helps.", **_TEXT}},
    503: {"Retry-After": {"description": "Seconds.", **_TEXT}},
}
_ETAG = {"ETag": {"description": "The job's version, in quotes.", **_TEXT}}
_REPLAYED = {"Idempotent-Replayed": {"description": "true: this is the answer to an earlier request with that key.", **_TEXT}}
IDEMPOTENCY_KEY = {
    "in": "header", "name": "Idempotency-Key", "required": False, "example": "7f3a", "description": "A name of the caller's "
    "for this request: it is carried out once, and its repetition gets the same answer.",
    "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY_CHARACTERS, "pattern": "^[!-~]+$"},
}
IF_MATCH = {
    "in": "header", "name": "If-Match", "required": True, "example": '"3"',
    "description": "The version that was seen, as the ETag of GET has it; * for whatever is there.",
    "schema": {"type": "string", "pattern": r'^(\*|"[0-9]{1,9}")$'},
}


class Api(NinjaAPI):
    """An API whose schema tells its refusals too."""

    def get_openapi_schema(self, **options: Any) -> Any:
        """Return the schema."""
        schema = super().get_openapi_schema(**options)
        for path, operations in schema["paths"].items():
            for method, operation in operations.items():
                _complete(path, method, operation)
        found = ProblemOut.model_json_schema(ref_template=_REF)
        schema["components"]["schemas"].update(found.pop("$defs"), ProblemOut=found)
        return schema


def refusals(path: str, method: str, operation: str) -> tuple[int, ...]:
    """Return the statuses with which a route may refuse."""
    changes = method != "get" and operation != PREVIEW
    return tuple(sorted({
        *ALWAYS, *(OF_ONE_ROW if "{" in path else ()), *(WITH_A_BODY if method != "get" else ()),
        *(CARRIED_OUT_ONCE if changes else ()), *MORE.get(operation, ()),
    }))


def _complete(path: str, method: str, operation: dict[str, Any]) -> None:
    name = operation["operationId"]
    changes = method != "get" and name != PREVIEW
    parameters = operation.setdefault("parameters", [])
    if changes:
        parameters.append(IDEMPOTENCY_KEY)
    if name in ("update_job", "delete_job"):
        parameters.append({**IF_MATCH, "required": name == "update_job"})
    for answer in operation["responses"].values():
        shown = answer["content"]["application/json"]["schema"].get("$ref", "").rpartition("/")[2]
        headers = {**(_ETAG if shown in ("JobOut", "JobDeleted") else {}), **(_REPLAYED if changes else {})}
        if headers:
            answer["headers"] = headers
    for status in refusals(path, method, name):
        refusal = {
            "description": HTTPStatus(status).phrase,
            "content": {PROBLEM_JSON: {"schema": {"$ref": _REF.format(model="ProblemOut")}, "example": PROBLEMS[status]}},
        }
        if status in _REFUSAL_HEADERS:
            refusal["headers"] = _REFUSAL_HEADERS[status]
        operation["responses"][status] = refusal
