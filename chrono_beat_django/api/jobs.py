"""Jobs: create, look at, change, delete and run them."""
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Q
from django.http import HttpResponse
from ninja import Body, Query, Router, Schema

from chrono_beat.core import definition as definitions
from chrono_beat.core import field_checks, targets
from chrono_beat.core.definition import JobDefinition
from chrono_beat.core.errors import NotFound, StaleVersion
from chrono_beat_django import jobs
from chrono_beat_django.api.answers import Answer, once, respond
from chrono_beat_django.api.auth import OPERATE, READ, WRITE, actor_of, tenant_of
from chrono_beat_django.api.outputs import BackfillOut, JobDeleted, JobOut, JobPage, PreviewOut, Triggered
from chrono_beat_django.api.paging import MAX_PAGE, page, refuse_unknown
from chrono_beat_django.api.problems import Refused
from chrono_beat_django.api.schemas import (
    BackfillIn,
    Instant,
    JobChanges,
    JobIn,
    NoteIn,
    ResumeIn,
    Text,
    TriggerIn,
    execution_facts,
    job_facts,
)
from chrono_beat_django.models import Job, PendingVoid
from chrono_beat_django.store import definitions as store

router = Router(tags=["jobs"])

# What a body says that is not there.
_NO_NOTE: Any = Body(NoteIn())
_NOTHING_MISSED: Any = Body(ResumeIn())
_NO_TOKEN: Any = Body(TriggerIn())


class JobFilter(Schema):
    """Which jobs."""

    name_prefix: Text | None = None
    task: Text | None = None
    paused: bool | None = None
    flagged: bool | None = None
    finished: bool | None = False
    due_after: Instant | None = None
    due_before: Instant | None = None
    cursor: str | None = None
    limit: int = Query(50, ge=1, le=MAX_PAGE)


def found_job(request: Any, job_id: UUID) -> Job:
    """Return a job of the caller's tenant; another tenant's is as good as none.

    Raises:
        NotFound: there is none.
    """
    job = Job.objects.using(store.alias()).of(tenant_of(request)).filter(id=job_id).first()
    if job is None:
        raise NotFound(f"there is no job {job_id}")
    return job


def aware(name: str, value: datetime | None) -> datetime | None:
    """Return an instant of a filter.

    Raises:
        Refused: it has no offset, or no database reaches so far.
    """
    if value is not None and value.tzinfo is None:
        raise Refused(422, "give an offset, such as Z", name)
    found, wrong = field_checks.instant(value)
    if wrong:
        raise Refused(422, wrong, name)
    return found


def _answer(job: Job, running: Any = (), status: int = 200, *, planned: bool = False, **more: Any) -> Answer:
    """Return what a job's answer is built of; *planned*: its schedule may be new, so a crowded minute is told of, too."""
    def build() -> tuple[int, dict[str, Any]]:
        # Told to Redis or not: the row says it, whichever thread was warned.
        pending = PendingVoid.objects.using(store.alias()).filter(job_id=job.id, told=False).exists()
        warnings = [*jobs.warnings_for(job), *(jobs.crowding_for(job) if planned else ())]
        body = {**job_facts(job), "still_running": [run._asdict() for run in running], "not_yet_voided": pending,
                "warnings": [{"field": p.field, "mend": p.message, "code": p.code} for p in warnings], **more}
        return (202 if pending and status == 200 else status), body

    return Answer(build)


@router.get("", auth=READ, response=JobPage, operation_id="list_jobs")
def list_jobs(request, query: Query[JobFilter]):  # type: ignore[no-untyped-def]
    """List jobs by name."""
    refuse_unknown(request, query)
    rows = jobs.list(tenant_of(request), paused=query.paused, task=query.task, finished=query.finished,
                     prefix=query.name_prefix or "")
    if query.flagged is not None:
        rows = rows.filter(~Q(flagged_reason="") if query.flagged else Q(flagged_reason=""))
    if (after := aware("due_after", query.due_after)) is not None:
        rows = rows.filter(next_run_at__gte=after)
    if (before := aware("due_before", query.due_before)) is not None:
        rows = rows.filter(next_run_at__lt=before)
    return page(rows, query.cursor, query.limit, ("name", "id"), job_facts)


@router.post("", auth=WRITE, response={201: JobOut}, operation_id="create_job")
@once
def create_job(request: Any, given: JobIn) -> Answer:
    """Create a job; ``warnings`` says what is allowed but likely to hurt."""
    job = jobs.create(tenant=tenant_of(request), actor=actor_of(request), **given.given())
    return _answer(job, status=201, planned=True)


@router.post("/preview", auth=READ, response=PreviewOut, operation_id="preview_definition")
def preview_definition(request, given: JobIn, count: int = Query(10, ge=1, le=1000)):  # type: ignore[no-untyped-def]
    """Show the next runs of a job that is not stored."""
    values = given.given()
    ways = {way: values.pop(way, None) for way in ("cron", "every", "at")}
    when = definitions.schedule_fields(**ways, timezone=values.pop("timezone", None))
    kind = targets.kind_of_target(url=values.get("url") or "", queue=values.get("queue") or "")
    definition = JobDefinition(**{**values, **when, "tenant": tenant_of(request), "target_kind": kind})
    return _preview(definition, count)


@router.get("/{uuid:job_id}", auth=READ, response=JobOut, operation_id="read_job")
def read_job(request, job_id: UUID):  # type: ignore[no-untyped-def]
    """Show a job; its version is the ETag."""
    return _plain(_answer(found_job(request, job_id)), status=200)


@router.patch("/{uuid:job_id}", auth=WRITE, response={200: JobOut, 202: JobOut}, operation_id="update_job")
@once
def update_job(request: Any, job_id: UUID, given: JobChanges) -> Answer:
    """Change a job; ``If-Match`` has the version that was seen, as the ETag has it, or ``*`` for whatever is there."""
    job = found_job(request, job_id)
    if "If-Match" not in request.headers:
        raise Refused(428, 'send the version that you saw, If-Match: "3"; the answer to GET has it as ETag', "If-Match")
    changed = jobs.change(job, "update", actor_of(request), given.given(job), _seen(request, job))
    return _answer(changed.job, changed.running, planned=True)


@router.delete("/{uuid:job_id}", auth=WRITE, response={200: JobDeleted, 202: JobDeleted}, operation_id="delete_job")
@once
def delete_job(request: Any, job_id: UUID) -> Answer:
    """Delete a job; its history stays. ``If-Match``, where it is given, has the version that was seen."""
    job = store.lock_job(found_job(request, job_id).id)
    if _seen(request, job) not in (None, job.version):
        raise StaleVersion(f"the job is at version {job.version}: it was changed meanwhile")
    return _answer(job, jobs.delete(job, actor=actor_of(request)), deleted=True)


@router.post("/{uuid:job_id}/pause", auth=OPERATE, response={200: JobOut, 202: JobOut}, operation_id="pause_job")
@once
def pause_job(request: Any, job_id: UUID, given: NoteIn = _NO_NOTE) -> Answer:
    """Stop firing a job."""
    job = jobs.pause(found_job(request, job_id), note=given.note, actor=actor_of(request))
    return _answer(job, job.still_running)  # type: ignore[attr-defined]


@router.post("/{uuid:job_id}/resume", auth=OPERATE, response={200: JobOut, 202: JobOut}, operation_id="resume_job")
@once
def resume_job(request: Any, job_id: UUID, given: ResumeIn = _NOTHING_MISSED) -> Answer:
    """Fire a job again; ``missed`` says what becomes of what fell into the pause."""
    missed = None if given.missed == "nothing" else given.missed
    job = jobs.resume(found_job(request, job_id), missed=missed, limit=given.limit, note=given.note,
                      actor=actor_of(request))
    return _answer(job, job.still_running)  # type: ignore[attr-defined]


@router.post("/{uuid:job_id}/trigger", auth=OPERATE, response={201: Triggered}, operation_id="trigger_job")
@once
def trigger_job(request: Any, job_id: UUID, given: TriggerIn = _NO_TOKEN) -> Answer:
    """Run a job now."""
    made = jobs.trigger(found_job(request, job_id), token=given.token, actor=actor_of(request))
    in_the_way = None if made.in_the_way is None else made.in_the_way.id
    return Answer(lambda: (201, {**execution_facts(made), "in_the_way": in_the_way}))


@router.post("/{uuid:job_id}/backfill", auth=OPERATE, response=BackfillOut, operation_id="backfill_job")
@once
def backfill_job(request: Any, job_id: UUID, given: BackfillIn) -> Answer:
    """Run what the schedule named in the past."""
    done = jobs.backfill(found_job(request, job_id), given.start, given.end, limit=given.limit, pace=given.pace,
                         token=given.token, actor=actor_of(request))
    return Answer(lambda: (200, done._asdict()))


@router.get("/{uuid:job_id}/preview", auth=READ, response=PreviewOut, operation_id="preview_job")
def preview_job(request, job_id: UUID, count: int = Query(10, ge=1, le=1000)):  # type: ignore[no-untyped-def]
    """Show the next runs of a job."""
    return _preview(found_job(request, job_id), count)


def _preview(job: Job | JobDefinition, count: int) -> dict[str, Any]:
    found = jobs.preview(job, count)
    return {"words": found.words, "runs": found.runs, "timezone": found.timezone, "notes": found.notes}


def _plain(answer: Answer, status: int) -> HttpResponse:
    return respond(status, answer.build()[1])


def _seen(request: Any, job: Job) -> int | None:
    """Return the version that the caller has seen, of several that of the job; None for whatever is there.

    Raises:
        Refused: If-Match has something that is no version.
    """
    text = request.headers.get("If-Match", "*").strip()
    if text == "*":
        return None
    given = [one.strip().removeprefix("W/").strip('"') for one in text.split(",")]      # a proxy that packs writes W/
    if not all(number.isascii() and number.isdigit() and len(number) < 10 for number in given):
        raise Refused(412, "is no version of a job; the answer to GET has it as ETag", "If-Match")
    return job.version if str(job.version) in given else int(given[-1])
