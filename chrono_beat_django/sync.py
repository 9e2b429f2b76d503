"""Bring the jobs that the code declares with ``@scheduled`` into the database.

Every web process and worker of a deploy may do so at the same time. Each job is created under the lock of its tenant
and under the unique name; each change is made under the lock of the job and changes nothing where another process made
it already. Code decides about everything but the pause: that is the operator's.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from chrono_beat.celery.decorators import declared_for
from chrono_beat.core import definition as definitions
from chrono_beat.core import ids
from chrono_beat.core.definition import JobDefinition
from chrono_beat.core.errors import Conflict, InvalidInput, NotFound, Problem
from chrono_beat.core.field_checks import MAX_NOTE_CHARACTERS
from chrono_beat_django import jobs, wiring
from chrono_beat_django.models import Job, JobEvent, Tenant
from chrono_beat_django.store import definitions as store

SOURCE = "decorator"
ATTEMPTS = 5
REMOVED_NOTE = "Paused by sync: no longer in the code."
PRUNE, RESTORE = "prune", "restore"
"""What the audit calls a pause and a resume by sync, to tell them from an operator's."""


class SyncReport(NamedTuple):
    """What a sync did: jobs as ``tenant/name``.

    Args:
        created, updated, unchanged: those that the code has.
        paused: those that it no longer has, paused by this call.
        warnings: what is allowed but likely to hurt, a sentence each.
    """

    created: Sequence[str]
    updated: Sequence[str]
    unchanged: Sequence[str]
    paused: Sequence[str]
    warnings: Sequence[str] = ()


def sync(app: Any, *, actor: str = "sync", prune: bool = True) -> SyncReport:
    """Create, update, pause and resume jobs so that they are what the code says.

    Args:
        app: the Celery app whose tasks are looked at; its task modules are imported first.
        actor: who does it, for the audit.
        prune: pause jobs that the code no longer declares. Projects that share a database have to say False.

    Raises:
        InvalidInput: a declaration is wrong; nothing was written.
    """
    app.loader.import_default_modules()
    app.finalize()
    wanted = _checked(list(declared_for(app)), app.tasks)
    done: dict[str, list[str]] = {"created": [], "updated": [], "unchanged": [], "paused": []}
    for definition in wanted:
        done[_bring_in(definition, actor)].append(f"{definition.tenant}/{definition.name}")
    if prune:
        done["paused"] += _prune({(str(d.tenant), d.name) for d in wanted}, actor)
    warnings = [f"{d.tenant}/{d.name}: {p.field}: {p.message}" for d in wanted for p in definitions.warnings_for(d)]
    return SyncReport(*(tuple(names) for names in done.values()), tuple(warnings))


def _checked(declared: Iterable[JobDefinition], known_tasks: Iterable[str]) -> list[JobDefinition]:
    """Return valid definitions by tenant and name; raise with everything that is wrong, before anything is written."""
    problems: list[Problem] = []
    valid: dict[tuple[str, str], JobDefinition] = {}
    known, now_us, config = set(known_tasks), wiring.now_us(), wiring.config()
    tenants = set(Tenant.objects.using(store.alias()).values_list("slug", flat=True))
    for definition in declared:
        where = f"{definition.task}: "
        try:
            # A one-off that was declared and has run stays in the code for a while: that it is over is no mistake.
            found = definitions.validate(definition, now_us=now_us, config=config, known_tasks=known, planned=True)
        except InvalidInput as refused:
            problems += (Problem(where + p.field, p.message, p.code) for p in refused.problems)
            continue
        key = (str(found.tenant), found.name)
        if found.tenant not in tenants:
            [unknown] = store.UnknownTenant(key[0]).problems
            problems.append(Problem(where + unknown.field, unknown.message, unknown.code))
        elif key in valid:
            message = f'"{found.name}" is declared twice for {found.tenant}; give each a name of its own'
            problems.append(Problem(where + "name", message))
        else:
            valid[key] = found
    taken = Job.objects.using(store.alias()).unfinished().exclude(source=SOURCE).filter(name__in=[n for _, n in valid])
    for tenant, name in taken.values_list("tenant", "name"):
        if (tenant, name) in valid:
            message = f'{tenant} has a job "{name}" that does not come from code; give this one another name'
            problems.append(Problem(f"{valid[tenant, name].task}: name", message, "conflict"))
    if problems:
        raise InvalidInput(*problems)
    return [valid[key] for key in sorted(valid)]


def _bring_in(definition: JobDefinition, actor: str) -> str:
    """Create or update one job; returns which list of the report it belongs to."""
    for _ in range(ATTEMPTS):
        try:
            job = jobs.get(str(definition.tenant), definition.name)
        except NotFound:
            if _is_over(definition):
                return "unchanged"
            try:
                jobs.create_from(definition, source=SOURCE, actor=actor)
            except Conflict:                                # another process was faster
                continue
            return "created"
        try:
            return "updated" if _update(job, definition, actor) else "unchanged"
        except (Conflict, NotFound):                        # changed or gone since it was read
            continue
    raise Conflict(f"{definition.tenant}/{definition.name} was changed again and again meanwhile; repeat the sync")


def _update(job: Job, definition: JobDefinition, actor: str) -> bool:
    """Make a job what the code says; returns whether that changed it."""
    restored = job.paused and _paused_by_sync(job)
    note = _without_removed(job.note) if restored else job.note
    wanted = replace(definition, paused=job.paused and not restored, note=note)
    if _same(store.definition_of(job), wanted):
        return False
    fields = {name: getattr(wanted, name) for name in definitions.FIELDS if name not in ("tenant", "written_as")}
    if wanted.anchor is None:
        del fields["anchor"]                                # the stored one was made up when the interval was planned
    if restored:
        return bool(jobs.change(job, RESTORE, actor, fields, expected_version=job.version).columns)
    # A pause or a note that comes in meanwhile is the operator's and stays.
    del fields["paused"], fields["note"]
    return bool(jobs.change(job, "sync", actor, fields).columns)


def _same(stored: JobDefinition, wanted: JobDefinition) -> bool:
    return replace(stored, anchor=stored.anchor if wanted.anchor else None) == wanted


def _is_over(definition: JobDefinition) -> bool:
    now = ids.from_us(wiring.now_us())
    return definitions.first_run(definition.schedule(now), definition.schedule_kind, now) is None


def _prune(declared: set[tuple[str, str]], actor: str) -> list[str]:
    paused = []
    for job in Job.objects.using(store.alias()).unfinished().filter(source=SOURCE, paused=False):
        if (job.tenant, job.name) not in declared:
            note = f"{job.note}\n{REMOVED_NOTE}".strip()[:MAX_NOTE_CHARACTERS]
            try:
                changed = jobs.change(job, PRUNE, actor, {"paused": True, "note": note}, expected_version=job.version)
            except (Conflict, NotFound):                    # another process was faster; if not, the next sync sees it
                continue
            if changed.columns:
                paused.append(str(job))
    return paused


def _paused_by_sync(job: Job) -> bool:
    """Say whether it was sync that paused the job, by the last word of the audit about its pause."""
    last = (
        JobEvent.objects.using(store.alias())
        .filter(job_id=job.id, action__in=("pause", "resume", PRUNE, RESTORE))
        .order_by("-at", "-id")
        .first()
    )
    return last is not None and last.action == PRUNE


def _without_removed(note: str) -> str:
    return "\n".join(line for line in note.splitlines() if line != REMOVED_NOTE)
