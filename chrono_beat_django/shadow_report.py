"""What a beat of another scheduler really sent, held against the shadows of its entries; see core/comparison.py."""
from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import Q

from chrono_beat.core import comparison, ids, imports, lifecycle
from chrono_beat.core.comparison import Judged, Span
from chrono_beat_django import edits, wiring
from chrono_beat_django.models import BeatFire, BeatWatch, Execution, Job, JobEvent, Tenant
from chrono_beat_django.store import definitions as store

JOBS_AT_ONCE = 500
RESTARTS = edits.PLANNED_BY | {"target_kind"}
"""Columns whose change begins the trial of a job anew."""

UNSETTLED = timedelta(minutes=1)
"""What was due less than this ago and has not ended is not judged yet."""


NOBODY = "nobody sent it between the end of the old beat and going live: chrono jobs backfill makes up for it"
UNSURE = "the old beat was killed, not stopped: before you make up for it, look whether that sent it after"


class Line(NamedTuple):
    """What is to be said of one entry.

    Args:
        job: ``tenant/name``; "" where no job comes from the entry.
        entry: its name in the other scheduler.
        state: "shadow", "live" (it was a shadow before), "paused", "both" (live, and sent there all the same), "none" (no
            job), or "unwatched" (cron).
        seen: the comparison.
        tolerance_seconds: how far a pair may be apart.
        sent_twice: when the other scheduler sent it although it was live here.
        sent_by_nobody: what shadows fired after the other one's last note, before they were live; where that was killed, it may
            have sent it.
        why: what is known to differ, or to be in the way, a sentence each.
    """

    job: str
    entry: str
    state: str
    seen: Judged = Judged()
    tolerance_seconds: float = 0.0
    sent_twice: tuple[datetime, ...] = ()
    sent_by_nobody: tuple[datetime, ...] = ()
    why: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        """Say whether somebody has to look at it."""
        return self.seen.differs or self.state in ("both", "none") or bool(self.sent_twice or self.sent_by_nobody)


class Report(NamedTuple):
    """All entries, and what was watched.

    Args:
        watches: spans in which what the other scheduler sent is known.
        schedulers: their classes.
        lines: entries in the order of their jobs, those without a job last.
    """

    watches: Sequence[Span]
    schedulers: tuple[str, ...]
    lines: Sequence[Line]


class _Watched(NamedTuple):
    """The spans in which what the other scheduler sent is known, and those of their ends at which its beat was stopped."""

    spans: Sequence[Span]
    stops: Collection[datetime]


class _Rows(NamedTuple):
    """Executions of one job: when its shadows fired and for which instants, what did not fire, what is open."""

    fired: list[datetime]
    planned: list[datetime]
    others: Counter[tuple[str, str]]
    open: list[datetime]


class _Life(NamedTuple):
    """From when on a job has its present plan, and since when it is live after that."""

    began: datetime
    live: datetime | None


def report(
    *, since: datetime, tenant: str | None = None, tolerance: timedelta | None = None,
    known: Callable[[str], Mapping[str, Sequence[str]]] = lambda source: {},
) -> Report:
    """Hold what the other scheduler sent against the shadows.

    Args:
        since: from when on.
        tenant: only jobs of this one, and no entries without a job; None for all.
        tolerance: how far two fires of one occurrence may be apart; None: see :func:`comparison.tolerance_of`.
        known: asked for each source of the jobs, as their origins begin: where the meaning of an entry differs, by origin.
    """
    now = ids.from_us(wiring.now_us())
    seen = list(BeatWatch.objects.using(store.alias()).filter(seen_until__gt=since).order_by("id"))
    watches = _Watched(comparison.united(Span(max(watch.began_at, since), watch.seen_until) for watch in seen),
                       {watch.seen_until for watch in seen if watch.ended})
    fires = defaultdict(list)
    rows = BeatFire.objects.using(store.alias()).filter(sent_at__gte=since).order_by("sent_at", "id")
    for origin, name, at in rows.values_list("origin", "name", "sent_at").iterator():
        fires[origin, name].append(at)
    jobs = Job.objects.using(store.alias()).filter(source="import").filter(
        Q(finished_at__isnull=True) | Q(finished_at__gt=since)).order_by("tenant", "name")
    entry_of = _entries(fires, {job.origin for job in jobs}, {job.name for job in jobs})
    lines = []
    chosen = [job for job in jobs if tenant in (None, job.tenant)]
    differences: dict[str, Sequence[str]] = {}
    for source in sorted({job.origin.partition(":")[0] for job in chosen}):
        differences |= known(source)
    kept = {row.slug: row.retention_days for row in Tenant.objects.using(store.alias()).exclude(retention_days=None)}
    for first in range(0, len(chosen), JOBS_AT_ONCE):
        some = chosen[first:first + JOBS_AT_ONCE]
        executions, lives = _executions(some, since, now), _lives(some)
        for job in some:
            oldest = max(since, now - timedelta(days=kept.get(job.tenant, wiring.config().retention_days)))
            sent = fires.get(entry_of.get(job.origin) or entry_of.get(job.name) or ("", ""), [])
            line = _line(job, sent, watches, executions[job.id], lives[job.id], oldest, now, tolerance, differences)
            lines += [] if line is None else [line]
    taken = {entry_of[key] for job in jobs for key in (job.origin, job.name) if key in entry_of}
    if tenant is None:
        lines += [_without_job(name, sent) for (origin, name), sent in sorted(fires.items()) if (origin, name) not in taken]
    return Report(watches.spans, tuple(dict.fromkeys(watch.scheduler for watch in seen)), lines)


def _entries(
    fires: Iterable[tuple[str, str]], origins: set[str], names: set[str],
) -> dict[str, tuple[str, str]]:
    """Return entries by origin, else by name: django-celery-beat and redbeat take in ``beat_schedule`` as rows of theirs."""
    return {origin if origin in origins else name: (origin, name) for origin, name in fires
            if origin in origins or name in names}


def _executions(jobs: Sequence[Job], since: datetime, now: datetime) -> dict[Any, _Rows]:
    found = defaultdict(lambda: _Rows([], [], Counter(), []))
    rows = Execution.objects.using(store.alias()).filter(
        job_id__in=[job.id for job in jobs], kind="schedule", scheduled_at__gte=since).order_by("scheduled_at")
    for job_id, scheduled, due, state, reason, started, finished, missed in rows.values_list(
            "job_id", "scheduled_at", "due_at", "state", "reason", "started_at", "finished_at", "missed_count").iterator():
        if state == lifecycle.SUCCEEDED and reason == "shadow":
            found[job_id].fired.append(started or finished)
            found[job_id].planned.append(scheduled)
        elif state not in lifecycle.OPEN:
            found[job_id].others[state, reason] += max(1, missed)           # a row may stand for many that were missed
        elif due <= now:
            found[job_id].open.append(due)
    return found


def _lives(jobs: Sequence[Job]) -> dict[Any, _Life]:
    found = {job.id: _Life(job.created_at, None) for job in jobs}
    events = JobEvent.objects.using(store.alias()).filter(job_id__in=found).order_by("id")
    for job_id, action, at, detail in events.values_list("job_id", "action", "at", "detail"):
        if action == "go_live":
            found[job_id] = found[job_id]._replace(live=at)
        elif RESTARTS & _after(detail).keys():
            found[job_id] = _Life(at, None)
    return found


def _after(detail: str) -> Mapping[str, Any]:
    found = json.loads(detail).get("after") if detail else None
    return found if isinstance(found, dict) else {}


def _line(
    job: Job, sent: list[datetime], watches: _Watched, rows: _Rows, life: _Life, oldest: datetime, now: datetime,
    given: timedelta | None, known: Mapping[str, Sequence[str]],
) -> Line | None:
    if job.origin.startswith("crontab:"):
        return Line(str(job), "", "unwatched", why=("what cron starts is not noted",))
    if job.target_kind != "shadow" and life.live is None:
        later = tuple(at for at in sent if at > life.began)
        return Line(str(job), job.name, "both", sent_twice=later, why=("is live here, too: both send it",)) if later else None
    period = timedelta(seconds=float(job.expression)) if job.schedule_kind == "interval" else None
    tolerance = given or comparison.tolerance_of(rows.planned, period)
    fired = sorted(rows.fired)
    recent = [due for due in rows.open if due > now - UNSETTLED]
    end = min([life.live or now, *recent])
    seen = comparison.judge(fired, Span(max(life.began, oldest), end), sent, watches.spans, tolerance=tolerance, period=period)
    twice, nobody, gap = _seam(fired, sent, watches, life.live, tolerance)
    state = "paused" if job.paused else "shadow" if life.live is None else "live"
    line = Line(str(job), job.name, state, seen, tolerance.total_seconds(), twice, nobody)
    return line._replace(why=tuple(_why(line, rows, len(rows.open) - len(recent), gap, known.get(job.origin, ()))))


def _seam(
    fired: Sequence[datetime], sent: Sequence[datetime], watches: _Watched, live: datetime | None, tolerance: timedelta,
) -> tuple[tuple[datetime, ...], tuple[datetime, ...], str]:
    """Return what was sent by both after a job went live, what by neither before that, and what to say of the latter.

    A fire there just after that instant may be the late one of the last shadow. A beat that is stopped notes its last fires;
    one that is killed does not, so what it sent after its last note is not known.
    """
    if live is None or not watches.spans:
        return (), (), ""
    last = max((at for at in fired if at <= live), default=None)
    twice = tuple(at for at in sent if at > live and (last is None or at - last > tolerance))
    stopped = max((span.end for span in watches.spans if span.start <= live), default=live)
    gap = NOBODY if stopped in watches.stops else f"{UNSURE} {stopped:%H:%M:%S}Z"
    return twice, tuple(at for at in fired if stopped < at <= live), gap


def _why(line: Line, rows: _Rows, stuck: int, gap: str, known: Sequence[str]) -> list[str]:
    found = []
    if abs(line.seen.phase_seconds) >= 1:
        found.append(f"counts from another instant: fires {line.seen.phase_seconds:+.0f} s there")
    if not line.differs:
        return found
    if line.sent_twice:
        found.append("is sent there as well since it is live here: end the entry there")
    if line.sent_by_nobody:
        found.append(gap)
    if line.state == "paused":
        found.append("is paused here")
    for (state, reason), count in rows.others.items():
        found.append(f"did not fire here: {count:,} {state}{reason and f' ({reason})'}")
    if stuck:
        found.append(f"{stuck:,} wait here: is the role relay running? chrono doctor")
    return [*found, *known]


def _without_job(name: str, sent: Sequence[datetime]) -> Line:
    why = "has no job here: import it"
    if name == imports.CELERYS_OWN:
        why = "Celery's own entry has no job here: import it, or results that have expired stay"
    return Line("", name, "none", Judged(old=len(sent), only_old=tuple(sent)), why=(why,))
