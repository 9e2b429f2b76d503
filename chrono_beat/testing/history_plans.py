"""Which instants a job's plans name, worked out apart from the scheduler: by counting, minute for minute."""
from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import NamedTuple

from chrono_beat.testing.history import Called, Committed, Defined, History, Plan, Returned

MINUTE_US = 60_000_000
MAX_MINUTES = 60 * 24 * 366
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class NotCountable(Exception):
    """The plan is of a kind that is not counted here."""


class Span(NamedTuple):
    """A plan, and from when to when it held; *version* at its beginning."""

    job_id: str
    plan: Plan
    from_us: int
    to_us: int | None
    version: int


class Change(NamedTuple):
    """A call with what is known of its commit."""

    action: str
    job_id: str
    execution_id: str
    called_us: int
    committed_us: int | None
    returned_us: int | None
    promised: bool
    version: int | None
    plan: Plan | None
    anew: bool
    made: str
    returned_at: int


def changes(history: History) -> list[Change]:
    """Return the control calls, in the order in which they began; *returned_at* is the return's place in the history."""
    commits = {event.call: event for event in history.of(Committed)}
    returns = {event.call: (at, event) for at, event in enumerate(history.events) if isinstance(event, Returned)}
    found = []
    for call in history.of(Called):
        commit = commits.get(call.call)
        at, back = returns.get(call.call, (-1, None))
        found.append(Change(
            call.action, call.job_id, call.execution_id, call.at_us, commit.at_us if commit else None,
            back.at_us if back else None, back is not None and back.promised, commit.version if commit else None,
            commit.plan if commit else None, commit is not None and commit.anew, back.execution_id if back else "", at,
        ))
    return found


def spans(history: History, calls: list[Change]) -> tuple[list[Span], list[str]]:
    """Return the spans of all jobs' plans, and what is not known of them."""
    found: list[Span] = []
    unknown: list[str] = []
    for job in history.of(Defined):
        current, since, version = job.plan, job.at_us, job.version
        over = False
        own = [c for c in calls if c.job_id == job.job_id and c.action not in ("trigger", "cancel")]
        for call in sorted(own, key=lambda c: c.called_us if c.committed_us is None else c.committed_us):
            if call.committed_us is None:
                if not history.commits_known and (call.promised or call.returned_us is None):
                    unknown.append(f"whether and when {call.action} of {job.job_id} committed")
                continue
            if call.anew:
                found.append(Span(job.job_id, current, since, call.committed_us, version))
                if call.plan is None:
                    over = True
                    break
                since, version = call.committed_us, call.version or version
            if call.plan is not None:
                current = call.plan
        if not over:
            found.append(Span(job.job_id, current, since, None, version))
    return found, unknown


def instants(plan: Plan, from_us: int, to_us: int) -> Iterator[int]:
    """Yield the instants of a plan with from < instant <= to, in order.

    Raises:
        NotCountable: a schedule of another kind or zone.
    """
    low, high = from_us, to_us
    if plan.start_us is not None:
        low = max(low, plan.start_us - 1)
    if plan.end_us is not None:
        high = min(high, plan.end_us - 1)
    if plan.paused or high <= low:
        return
    if plan.kind == "once":
        at = datetime.fromisoformat(plan.expression)
        at_us = (at - _EPOCH) // timedelta(microseconds=1)
        if low < at_us <= high:
            yield at_us
    elif plan.kind == "interval":
        yield from _every(plan, low, high)
    elif plan.kind == "cron" and plan.timezone == "UTC":
        yield from _cron(plan.expression, low, high)
    else:
        raise NotCountable(f"a {plan.kind} in {plan.timezone}")


def _every(plan: Plan, low: int, high: int) -> Iterator[int]:
    every = Fraction(plan.expression) * 1_000_000
    anchor = plan.anchor_us if plan.anchor_us is not None else plan.start_us
    if anchor is None:
        raise NotCountable("an interval without an anchor")
    number = max(0, int((low - anchor) // every))
    while (at := anchor + int(number * every)) <= high:
        if at > low:
            yield at
        number += 1


def _cron(expression: str, low: int, high: int) -> Iterator[int]:
    fields = expression.split()
    if len(fields) != 5:
        raise NotCountable(expression)
    minutes, hours, days, months, weekdays = (
        _values(text, first, last)
        for text, (first, last) in zip(fields, ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6)), strict=True))
    first = low // MINUTE_US + 1
    if high // MINUTE_US - first > MAX_MINUTES:
        raise NotCountable("more than a year of cron")
    for minute in range(first, high // MINUTE_US + 1):
        at = _EPOCH + timedelta(minutes=minute)
        day, weekday = at.day in days, (at.weekday() + 1) % 7 in weekdays
        fits = day and weekday if "*" in (fields[2], fields[4]) else day or weekday
        if at.minute in minutes and at.hour in hours and at.month in months and fits:
            yield minute * MINUTE_US


def _values(text: str, first: int, last: int) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        low, _, high = span.partition("-")
        try:
            begin, end = (first, last) if span == "*" else (int(low), int(high or (last if step else low)))
            found |= set(range(begin, end + 1, int(step or 1)))
        except ValueError:
            raise NotCountable(text) from None
    return found
