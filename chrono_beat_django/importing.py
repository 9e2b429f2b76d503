"""Take over what another scheduler has, as often as one likes: nothing twice, changes brought along.

A job is found again by its tenant and origin. Whether it is paused is the operator's from the first import on: the old
scheduler's entries are disabled when one moves, and a repeated import must not pause what has taken their place.
"""
from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from chrono_beat.core import definition as definitions
from chrono_beat.core import imports
from chrono_beat.core.definition import JobDefinition
from chrono_beat.core.errors import ChronoError, InvalidInput, Problem
from chrono_beat.core.imports import Entry
from chrono_beat_django import batches, import_tables, wiring
from chrono_beat_django.models import Job, Tenant
from chrono_beat_django.store import definitions as store
from chrono_beat_django.store import quotas

__all__ = ["PRUNES", "TAKEN", "Line", "bring_in", "import_tables", "imports"]

PRUNES = ("pause", "delete")
_SCHEDULE = ("schedule_kind", "expression", "timezone", "start", "end")
TAKEN = (*_SCHEDULE, "name", "task", "anchor", "args", "kwargs", "headers", "pool", "priority", "soft_limit",
          "max_duration", "expires_after", "note")
"""What a repeated import brings along; all else is the operator's."""

Item = TypeVar("Item")


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
    jobs = _Jobs(prefix, chosen)
    before = [job for job in jobs.newest.values() if job.finished_at is None]
    gone = [job for job in before if owners.get(job.origin, "") not in (None, job.tenant)]
    if prune is not None and not prune_all:
        _check_prune(gone, before, len(owners))
    lines = []
    for batch in _batches(given):
        where = [owner or tenant for _, owner in batch]
        wanted = [imports.for_tenant(found, slug, pools or {}, paused, concurrency, shadow)
                  for (found, _), slug in zip(batch, where, strict=True)]
        steps = [_step(found, slug, jobs) for found, slug in zip(wanted, where, strict=True)]
        lines += _told([step.line for step in (steps if dry_run else _carried_out(steps, actor))], progress)
    for pruned in _batches(sorted(gone, key=lambda job: (job.tenant, job.name))):
        refused = {} if dry_run else _prune(pruned, prune, actor)
        lines += _told([_removed(job, owners.get(job.origin), prune, refused.get(job)) for job in pruned], progress)
    # Tenants that this import does not name may be another project's: what is there is told, and left alone.
    others = Job.objects.using(store.alias()).unfinished().filter(
        source="import", origin__startswith=prefix, origin__in=owners, paused=False).exclude(tenant__in=chosen)
    return lines + [_removed(job, owners[job.origin], None) for job in others if owners[job.origin]]


def _batches(found: Sequence[Item]) -> Iterator[Sequence[Item]]:
    for start in range(0, len(found), batches.BATCH):
        yield found[start:start + batches.BATCH]


def _told(lines: list[Line], progress: Callable[[Line], None]) -> list[Line]:
    for line in lines:
        progress(line)
    return lines


def _check_prune(gone: list[Job], before: list[Job], entries: int) -> None:
    """Refuse to prune most of what there is: the wrong source or database looks like that, and an outage.

    Raises:
        InvalidInput: the source is empty, or more than half would go.
    """
    if gone and (not entries or 2 * len(gone) > len(before)):
        raise InvalidInput(Problem(
            "prune", f"{len(gone)} of {len(before)} imported jobs would go, for the source has {entries} entries; "
            "if that is right, add --prune-all"))


class _Jobs:
    """What there is when an import begins, kept in step with what it decides: so a dry run says what applying it will do.

    Args:
        prefix: how the origins begin.
        tenants: slugs of the tenants that get jobs.

    Attributes:
        newest: the last job of each (tenant, origin), also if it is over.
        now_us: when it began.
    """

    def __init__(self, prefix: str, tenants: Collection[str]) -> None:
        rows = Job.objects.using(store.alias()).filter(tenant__in=tenants, source="import", origin__startswith=prefix)
        self.newest = {(job.tenant, job.origin): job for job in rows.order_by("id")}
        self.now_us = wiring.now_us()
        self._tenants = Tenant.objects.using(store.alias()).in_bulk(tenants)
        self._room = {slug: tenant.max_jobs - quotas.unfinished(slug) for slug, tenant in self._tenants.items()}
        self._names: dict[str, set[str]] = {}

    def name(self, tenant: str, name: str, before: str | None = None) -> bool:
        """Give a name of a tenant away, in place of the one that a job had before; False where another job has it."""
        if tenant not in self._names:
            rows = Job.objects.using(store.alias()).unfinished().of(tenant)
            self._names[tenant] = set(rows.values_list("name", flat=True))
        taken = self._names[tenant]
        if name != before and name in taken:
            return False
        taken.discard(before or "")
        taken.add(name)
        return True

    def add(self, tenant: str) -> None:
        """Count one more job of a tenant.

        Raises:
            QuotaExceeded: it has as many as it may have.
        """
        if self._room[tenant] <= 0:
            raise quotas.full(self._tenants[tenant])
        self._room[tenant] -= 1


class _Step(NamedTuple):
    """What is to become of an entry.

    Args:
        line: what is said of it.
        create: the definition of a new job.
        change: what changes in the job that there is.
    """

    line: Line
    create: JobDefinition | None = None
    change: batches.Wanted | None = None


def _step(found: Entry, tenant: str, jobs: _Jobs) -> _Step:
    where = f"{tenant}/{found.name}"
    if found.definition is None:
        return _Step(Line("refused", where, found.origin, messages=(found.problem,)))
    wanted = found.definition
    expression = " ".join(json.loads(wanted.expression)) if wanted.schedule_kind == "celery" else wanted.expression
    line = Line("unchanged", where, found.origin, f"{wanted.schedule_kind} {expression} {wanted.timezone}", found.warnings)
    try:
        return _decided(line, found, wanted, tenant, jobs)
    except ChronoError as error:
        return _Step(_refused(line, error))


def _refused(line: Line, error: ChronoError) -> Line:
    told = [f"{p.field}: {p.message}" for p in error.problems] if isinstance(error, InvalidInput) else [str(error)]
    return line._replace(action="refused", messages=tuple(told))


def _decided(line: Line, found: Entry, definition: JobDefinition, tenant: str, jobs: _Jobs) -> _Step:
    if len(found.origin) > Job._meta.get_field("origin").max_length:
        raise ChronoError("the name is too long to be found again: 200 characters at most; shorten it there")
    job = jobs.newest.get((tenant, found.origin))
    if job is not None and job.finished_at is not None and found.once:
        if found.chosen or job.expression == definition.expression:
            return _Step(line)                              # it has run: what runs once is not planned again
    if job is not None and job.finished_at is None:
        return _update(line, found, definition, job, jobs)
    if found.over:
        return _Step(line._replace(action="over", messages=(imports.IS_OVER,)))
    wanted = definitions.validate(definition, now_us=jobs.now_us, config=wiring.config())
    if not jobs.name(tenant, wanted.name):
        raise ChronoError(f'{tenant} has a job "{wanted.name}" that does not come from here; rename one of them')
    jobs.add(tenant)
    return _Step(line._replace(action="create"), create=wanted)


def _update(line: Line, found: Entry, definition: JobDefinition, job: Job, jobs: _Jobs) -> _Step:
    stored = store.definition_of(job)
    kept = {field: getattr(stored, field) for field in definitions.FIELDS if field not in TAKEN}
    kept |= {"note": definition.note or stored.note, "written_as": definition.written_as}
    if found.chosen:
        kept |= {field: getattr(stored, field) for field in _SCHEDULE}
    wanted = definitions.validate(replace(definition, **kept), now_us=jobs.now_us, config=wiring.config(), planned=True)
    if replace(wanted, anchor=stored.anchor) == stored:     # the last run there moves on while both are in use
        return _Step(line)
    if not jobs.name(job.tenant, wanted.name, before=job.name):
        raise store.name_is_taken(job.tenant, wanted.name)
    fields = {name: getattr(wanted, name) for name in TAKEN}
    if wanted.target_kind == "shadow":
        fields["queue"] = wanted.queue                      # the pool of its later life
    if all(getattr(wanted, field) == getattr(stored, field) for field in _SCHEDULE):
        del fields["anchor"]
    return _Step(line._replace(action="update"), change=batches.Wanted(job, fields))


def _carried_out(steps: Sequence[_Step], actor: str | None) -> Sequence[_Step]:
    """Write what is decided: changes first, since they may let go of names; returns the steps with what was refused."""
    changes = [(number, step.change) for number, step in enumerate(steps) if step.change is not None]
    creates = [(number, step.create) for number, step in enumerate(steps) if step.create is not None]
    outcomes: list[tuple[int, Any]] = []
    if changes:
        changed = batches.change_each([change for _, change in changes], "import", actor)
        outcomes += zip((number for number, _ in changes), changed, strict=True)
    if creates:
        made = batches.create_paced([wanted for _, wanted in creates], source="import", actor=actor,
                                    origins=[steps[number].line.origin for number, _ in creates])
        outcomes += zip((number for number, _ in creates), made, strict=True)
    done = list(steps)
    for number, outcome in outcomes:
        if isinstance(outcome, ChronoError):
            done[number] = _Step(_refused(steps[number].line, outcome))
    return done


def _prune(gone: Sequence[Job], prune: str | None, actor: str | None) -> dict[Job, ChronoError]:
    """Pause or delete jobs; returns why not, of those where that is refused."""
    if prune == "delete":
        batches.delete_each(gone, actor)
    if prune != "pause":
        return {}
    changed = batches.change_each([batches.Wanted(job, {"paused": True}) for job in gone], "pause", actor)
    return {job: outcome for job, outcome in zip(gone, changed, strict=True) if isinstance(outcome, ChronoError)}


def _removed(job: Job, owner: str | None, prune: str | None, refused: ChronoError | None = None) -> Line:
    message = f"is {owner}'s by now, and still {'paused' if job.paused else 'active'} here" if owner else "is gone there"
    if prune is None:
        message += "; --prune pause or --prune delete acts on it where this import names its tenant"
    line = Line(prune or ("elsewhere" if owner else "removed"), str(job), job.origin, messages=(message,))
    return line if refused is None else _refused(line, refused)
