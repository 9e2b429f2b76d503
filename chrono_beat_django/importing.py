"""Take over what another scheduler has, as often as one likes: nothing twice, changes brought along.

A job is found again by its tenant and origin. Whether it is paused is the operator's from the first import on: the old
scheduler's entries are disabled when one moves, and a repeated import must not pause what has taken their place.
"""
from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from django.db import transaction

from chrono_beat.core import definition as definitions
from chrono_beat.core import imports
from chrono_beat.core.definition import JobDefinition
from chrono_beat.core.errors import ChronoError, InvalidInput, Problem
from chrono_beat.core.imports import Entry
from chrono_beat_django import import_tables, jobs, wiring
from chrono_beat_django.models import Job, Tenant
from chrono_beat_django.store import definitions as store

__all__ = ["PRUNES", "TAKEN", "Line", "bring_in", "import_tables", "imports"]

PRUNES = ("pause", "delete")
_SCHEDULE = ("schedule_kind", "expression", "timezone", "start", "end")
TAKEN = (*_SCHEDULE, "name", "task", "anchor", "args", "kwargs", "headers", "pool", "priority", "soft_limit",
          "max_duration", "expires_after", "note")
"""What a repeated import brings along; all else is the operator's."""


class Line(NamedTuple):
    """What becomes of one entry.

    Args:
        action: "create", "update", "unchanged", "refused", "over" (it will never run there again, and has no job here),
            "removed" (gone there, kept here), "elsewhere" (another tenant has it since), "pause" or "delete".
        job: ``tenant/name``.
        origin: what it was imported from.
        schedule: its kind, expression and zone.
        messages: warnings, or the reason of a refusal with its mend.
    """

    action: str
    job: str
    origin: str
    schedule: str = ""
    messages: tuple[str, ...] = ()


def bring_in(
    entries: Iterable[Entry], *, prefix: str, tenant: str, tenants: Mapping[str, str] | None = None,
    pools: Mapping[str, str] | None = None, paused: bool = False, concurrency: str = "forbid",
    shadow: bool = False,
    prune: str | None = None, prune_all: bool = False, dry_run: bool = True, actor: str | None = None,
    progress: Callable[[Line], None] = lambda line: None,
) -> list[Line]:
    """Create and update jobs so that they are what the entries say.

    Args:
        prefix: how every origin of this source begins: what of it is missing among the entries was removed there.
        tenant: slug of the tenant of the jobs.
        tenants: another tenant for some tasks, by the task's name.
        pools: the pool that takes the place of each Celery queue.
        paused: create jobs paused.
        shadow: create jobs that fire without sending anything, see :mod:`chrono_beat_django.shadowing`.
        concurrency: of jobs that are created: "forbid" skips a run whose predecessor still runs, where Celery starts it.
        prune: "pause" or "delete" what was removed there, or is another tenant's of these by now; None to report it.
        prune_all: also where the source is empty or more than half would go.
        dry_run: say what would happen and write nothing.
        progress: told each line as it is done.

    Raises:
        InvalidInput: a tenant does not exist, or too much would be pruned; nothing was written.
    """
    by_task = dict(tenants or {})
    chosen = {tenant, *by_task.values()}
    missing = chosen - set(Tenant.objects.using(store.alias()).filter(slug__in=chosen).values_list("slug", flat=True))
    if missing:
        raise store.UnknownTenant(min(missing))
    given = [(found, by_task.get(found.definition.task, tenant) if found.definition else None) for found in entries]
    owners = {found.origin: owner for found, owner in given}
    stored = Job.objects.using(store.alias()).unfinished().filter(source="import", origin__startswith=prefix)
    before = list(stored.filter(tenant__in=chosen).order_by("tenant", "name"))
    gone = [job for job in before if owners.get(job.origin, "") not in (None, job.tenant)]
    if prune is not None and not prune_all:
        _check_prune(gone, before, len(owners))
    lines = []
    for found, owner in given:
        where = owner or tenant
        lines.append(_one(imports.for_tenant(found, where, pools or {}, paused, concurrency, shadow), where, dry_run, actor))
        progress(lines[-1])
    for job in gone:
        lines.append(_removed(job, owners.get(job.origin), prune, dry_run, actor))
        progress(lines[-1])
    # Tenants that this import does not name may be another project's: what is there is told, and left alone.
    others = stored.filter(origin__in=owners, paused=False).exclude(tenant__in=chosen)
    return lines + [_removed(job, owners[job.origin], None, True, actor) for job in others if owners[job.origin]]


def _check_prune(gone: list[Job], before: list[Job], entries: int) -> None:
    """Refuse to prune most of what there is: the wrong source or database looks like that, and an outage.

    Raises:
        InvalidInput: the source is empty, or more than half would go.
    """
    if gone and (not entries or 2 * len(gone) > len(before)):
        raise InvalidInput(Problem(
            "prune", f"{len(gone)} of {len(before)} imported jobs would go, for the source has {entries} entries; "
            "if that is right, add --prune-all"))


def _one(found: Entry, tenant: str, dry_run: bool, actor: str | None) -> Line:
    where = f"{tenant}/{found.name}"
    if found.definition is None:
        return Line("refused", where, found.origin, messages=(found.problem,))
    wanted = found.definition
    expression = " ".join(json.loads(wanted.expression)) if wanted.schedule_kind == "celery" else wanted.expression
    schedule = f"{wanted.schedule_kind} {expression} {wanted.timezone}"
    try:
        action = _bring(found, wanted, tenant, dry_run, actor)
    except InvalidInput as error:
        return Line("refused", where, found.origin, schedule, tuple(f"{p.field}: {p.message}" for p in error.problems))
    except ChronoError as error:
        return Line("refused", where, found.origin, schedule, (str(error),))
    return Line(action, where, found.origin, schedule, (imports.IS_OVER,) if action == "over" else found.warnings)


def _bring(found: Entry, definition: JobDefinition, tenant: str, dry_run: bool, actor: str | None) -> str:
    if len(found.origin) > Job._meta.get_field("origin").max_length:
        raise ChronoError("the name is too long to be found again: 200 characters at most; shorten it there")
    before = Job.objects.using(store.alias()).filter(tenant=tenant, source="import", origin=found.origin)
    job = before.order_by("-id").first()
    if job is not None and job.finished_at is not None and found.once:
        if found.chosen or job.expression == definition.expression:
            return "unchanged"                              # it has run: what runs once is not planned again
    if job is None or job.finished_at is not None:
        if found.over:
            return "over"
        wanted = definitions.validate(definition, now_us=wiring.now_us(), config=wiring.config())
        if Job.objects.using(store.alias()).unfinished().of(tenant).filter(name=wanted.name).exists():
            raise ChronoError(f'{tenant} has a job "{wanted.name}" that does not come from here; rename one of them')
        if not dry_run:
            with transaction.atomic(using=store.alias()):
                made = jobs.create_from(wanted, source="import", actor=actor)
                Job.objects.using(store.alias()).filter(id=made.id).update(origin=found.origin)
        return "create"
    stored = store.definition_of(job)
    kept = {field: getattr(stored, field) for field in definitions.FIELDS if field not in TAKEN}
    kept |= {"note": definition.note or stored.note, "written_as": definition.written_as}
    if found.chosen:
        kept |= {field: getattr(stored, field) for field in _SCHEDULE}
    wanted = definitions.validate(
        replace(definition, **kept), now_us=wiring.now_us(), config=wiring.config(), planned=True)
    if replace(wanted, anchor=stored.anchor) == stored:     # the last run there moves on while both are in use
        return "unchanged"
    fields = {name: getattr(wanted, name) for name in TAKEN}
    if wanted.target_kind == "shadow":
        fields["queue"] = wanted.queue                      # the pool of its later life
    if all(getattr(wanted, field) == getattr(stored, field) for field in _SCHEDULE):
        del fields["anchor"]
    if not dry_run:
        jobs.change(job, "import", actor, fields)
    return "update"


def _removed(job: Job, owner: str | None, prune: str | None, dry_run: bool, actor: str | None) -> Line:
    message = f"is {owner}'s by now, and still {'paused' if job.paused else 'active'} here" if owner else "is gone there"
    if prune is None:
        message += "; --prune pause or --prune delete acts on it where this import names its tenant"
    if not dry_run and prune == "pause":
        jobs.pause(job, actor=actor)
    elif not dry_run and prune == "delete":
        jobs.delete(job, actor=actor)
    return Line(prune or ("elsewhere" if owner else "removed"), str(job), job.origin, messages=(message,))
