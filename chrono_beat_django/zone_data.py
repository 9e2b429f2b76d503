"""Plans by the zone data in use: which jobs an update of these moves, and moving them (R060).

What is only planned is moved by setting the next run. Where an occurrence is claimed already and moves, the job is
edited: its version and plan rise, the copy claimed ahead is void, and the claim goes on from the oldest that is left.
"""
from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import transaction

from chrono_beat.core import ids, lifecycle
from chrono_beat.core.records import Void
from chrono_beat.core.schedule import Schedule, ScheduleError, forget_shared, schedule_from_parts
from chrono_beat.core.zone_moves import WALL_KINDS, is_older, moved
from chrono_beat.telemetry import emit
from chrono_beat.zone_release import zone_release
from chrono_beat_django import control, wiring
from chrono_beat_django.models import Deployment, Execution, Job, JobQuerySet
from chrono_beat_django.store import definitions as store

BATCH = 500
"""Jobs that one step looks at."""

TOO_LATE = timedelta(seconds=5)
"""What is claimed and due so soon fires as it was planned: it might start before Redis has heard that it is void, and
once more where it was moved to."""

FIRST_ID = uuid.UUID(int=0)


class Move(NamedTuple):
    """A job whose next run is another one by the zone data in use.

    Args:
        before, after: its next run, UTC.
        claimed: an occurrence that is claimed already moves; its copy becomes void.
    """

    tenant: str
    job: str
    timezone: str
    before: datetime
    after: datetime
    claimed: bool


class Report(NamedTuple):
    """What an update of the zone data does: releases planned with and in use, and the jobs that it moves."""

    planned_with: str
    in_use: str
    moves: Sequence[Move]


def planned_with() -> str:
    """Return the release that the next runs were computed with; "" where nobody has looked yet."""
    found = Deployment.objects.using(store.alias()).filter(id=1).values_list("zone_data", flat=True).first()
    return found or ""


def report(*, apply: bool = False, progress: Callable[..., None] = lambda done, total: None) -> Report:
    """Look through all jobs for plans that the zone data in use move.

    Args:
        apply: move them too, also where this release is not newer than the one that was planned with.
        progress: told after each batch how many jobs were looked at in it, and by ``total`` how many there are in all.
    """
    before, release = planned_with(), zone_release()
    forget_shared()
    total, moves = _planned().count(), []
    progress(0, total=total)
    for batch in _batches():
        moves += _look(batch, apply)
        progress(len(batch), total=total)
    if apply:
        _finish(before, release, len(moves))
    return Report(before, release, moves)


class Work:
    """The batches of one process, one after another; call it until it says that nothing is left."""

    def __init__(self) -> None:
        self._release = ""
        self._batches: Iterator[list[Job]] | None = None
        self._moved = 0
        self._loaded = ""

    def __call__(self) -> bool:
        """Take one batch; returns whether more is to be done."""
        if self._batches is None and not self._begin():
            return False
        assert self._batches is not None
        try:
            batch = next(self._batches, None)
            if batch is not None:
                self._moved += len(_look(batch, apply=True))
                return True
            _finish(planned_with(), self._release, self._moved)
        except BaseException:
            self._batches = None                            # the whole pass anew: a move that is done moves nothing
            raise
        self._batches = None
        return False

    def _begin(self) -> bool:
        before, release = planned_with(), zone_release()
        if release != self._loaded:
            forget_shared()                                 # this process may have loaded zones before the update
            self._loaded = release
        if not release or release == before:
            return False
        if is_older(release, before):
            emit("zone_data_older", planned_with=before, in_use=release)
            return False
        self._release, self._moved, self._batches = release, 0, _batches()
        return True


def _finish(before: str, release: str, moves: int) -> None:
    Deployment.objects.using(store.alias()).filter(id=1).update(zone_data=release)
    if release != before or moves:
        emit("zone_data_changed", planned_with=before, in_use=release, moved=moves)
        wiring.wake_dispatchers()


def _planned() -> JobQuerySet:
    return Job.objects.using(store.alias()).unfinished().filter(
        schedule_kind__in=WALL_KINDS, next_run_at__isnull=False, replan=False)


def _batches() -> Iterator[list[Job]]:
    last = FIRST_ID
    while True:
        batch = list(_planned().filter(id__gt=last).order_by("id")[:BATCH])
        if not batch:
            return
        yield batch
        last = batch[-1].id


def _look(batch: Sequence[Job], apply: bool) -> list[Move]:
    now = ids.from_us(wiring.now_us())
    ahead: dict[uuid.UUID, list[datetime]] = {}
    plans = {job.id: job.plan_version for job in batch}
    rows = _claimed(batch).filter(due_at__gt=now + TOO_LATE).values_list("job_id", "scheduled_at", "job_version")
    for job_id, at, version in rows:
        if version >= plans[job_id]:                        # else it is void already, and waits for the sweep
            ahead.setdefault(job_id, []).append(at)
    found = []
    for job in batch:
        move = _move(job, ahead.get(job.id, ()), now)
        if move is not None and apply:
            move = _apply(job)
        if move is not None:
            found.append(move)
    return found


def _claimed(jobs: Sequence[Job]):
    return Execution.objects.using(store.alias()).filter(
        partition__in={job.partition for job in jobs}, job_id__in=[job.id for job in jobs], kind="schedule",
        state__in=(lifecycle.SCHEDULED, lifecycle.QUEUED))


def _move(job: Job, ahead: Sequence[datetime], now: datetime) -> Move | None:
    """Return where a job's next run goes; None where it stays. What is due by now fires as it was planned."""
    if job.next_run_at is None:
        return None
    schedule = _schedule(job)
    if schedule is None:
        return None
    claimed = any(moved(schedule, at) != at for at in ahead)
    if not claimed and (job.next_run_at <= now or schedule.matches(job.next_run_at)):
        return None
    after = min(moved(schedule, at) for at in ahead) if claimed else moved(schedule, job.next_run_at)
    if after == job.next_run_at:
        return None                                         # no instant is left: the claim sees to it
    return Move(job.tenant, job.name, job.timezone, job.next_run_at, after, claimed)


def _apply(job: Job) -> Move | None:
    """Move one job, as it is by now, in a transaction of its own.

    Invariant 2: the row is locked, so a claim has either been made, and its rows are seen here, or is made with the next
    run and the version that it read before, and changes nothing.
    """
    void: list[Void] = []
    with transaction.atomic(using=store.alias()):
        found = Job.objects.using(store.alias()).select_for_update().filter(id=job.id, replan=False).first()
        if found is None or found.paused or found.finished_at is not None:
            return None
        now_us = wiring.now_us()
        now = ids.from_us(now_us)
        open_rows = list(_claimed([found]).filter(job_version__gte=found.plan_version).values_list(
            "scheduled_at", "due_at"))
        move = _move(found, [at for at, due_at in open_rows if due_at > now + TOO_LATE], now)
        if move is None:
            return None
        # Invariant 8: what is open and stays is met again by the claim, which goes on from the oldest.
        stay = [at for at, due_at in open_rows if due_at <= now + TOO_LATE]
        oldest = min([move.after, *stay]) if move.claimed else move.after
        move = move._replace(after=oldest)
        found.next_run_at = oldest
        if move.claimed:
            found.plan_version = found.version + 1
            store.save(found)
            void.append(Void(str(found.id), found.tenant, found.version))
        else:
            Job.objects.using(store.alias()).filter(id=found.id).update(next_run_at=oldest)
        store.write_event(found, "zone data", "", now_us, {"before": move.before, "after": move.after})
    if void:
        control.say(void)                                   # at once, and not after the batch: the copy may be due by then
    return move


def _schedule(job: Job) -> Schedule | None:
    try:
        return schedule_from_parts(
            job.schedule_kind, job.expression, job.timezone, start=job.start_at, end=job.end_at, anchor=job.anchor_at)
    except ScheduleError:
        return None                                         # quarantined at its claim
