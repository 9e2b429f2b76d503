"""All that a user may say of a job, with its defaults, and the one validator behind every way of saying it.

API functions, forms, commands and decorators build a :class:`JobDefinition` and call :func:`validate`, so the same
mistake gets the same sentence everywhere. It reports all that is wrong at once; nothing is written until it is silent.
"""
from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any

from chrono_beat.core import callback, ids, payload, targets
from chrono_beat.core import field_checks as checks
from chrono_beat.core.config import Config
from chrono_beat.core.errors import InvalidInput, Problem
from chrono_beat.core.field_checks import Number
from chrono_beat.core.records import IDEMPOTENT, KEY_SCOPES, MISFIRE_POLICIES
from chrono_beat.core.retry import Retry
from chrono_beat.core.schedule import Interval, Once, Schedule, ScheduleError, schedule_from_parts
from chrono_beat.core.schedule_kinds import ONCE_GRACE

MAX_ATTEMPTS = 100
RETRYING_ATTEMPTS = 3
GAPS_COMPARED = 32
"""Runs that are looked at to find how far apart a schedule's runs are."""

DAY = 86_400.0
YEAR = 366 * DAY

_STRIPPED = ("name", "tenant", "pool", "exclusion_group")
_EXPRESSION_PARTS = frozenset({
    "expression", "minute", "hour", "day-of-month", "month", "day-of-week", "period", "at", "kind",
})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDefinition:
    """What a user says of a job. Lengths of time may be given as timedelta; validated, they are seconds.

    Args:
        name: 1 to 200 printable characters, unique among the tenant's unfinished jobs.
        task: name of the Celery task; "" for an HTTP target.
        target_kind: one of targets.TARGET_KINDS: "task", "http", "message" or "shadow".
        url: where an HTTP target is called.
        timeout: seconds that one call of it takes at most; None for 30.
        queue: Celery queue that a message target is sent to, for workers that know nothing of chrono_beat.
        schedule_kind: one of records.SCHEDULE_KINDS.
        expression: what the kind understands: a cron text, seconds, an instant, Celery's fields.
        timezone: IANA name of the zone that the expression is read in.
        written_as: the field in which the caller has the expression, for messages: "cron", "every", "at", "expression".
        start: no run before this instant; an interval's first run.
        end: no run at or after this instant.
        anchor: an instant that an interval runs at; None for its start, else the moment it is planned.
        tenant: slug of the tenant; None for the default one.
        args: list or tuple of JSON values, or a JSON array as text; validated, the text.
        kwargs: dict of JSON values, None, or a JSON object as text; validated, the text.
        headers: further message headers, a dict of JSON scalars or its text; validated, the text, "" for none. Of an HTTP
            target: headers of its request, a dict of texts.
        pool: name of the job's pool; "" for its tenant's.
        priority: 0 (first) to 9.
        soft_limit: seconds until the task is told to stop; None for never.
        max_duration: seconds until a run is ended; None for never.
        expires_after: seconds after its first due time within which an occurrence may start; None for ever.
        concurrency: "forbid", "allow" or "replace": what happens to an occurrence whose predecessor is still active: it is
            skipped, runs beside it, or takes its place.
        exclusion_group: a name; executions of a tenant's jobs with the same one never run at the same time, they wait for
            each other in order. "" for none.
        misfire: "skip", "latest" or "all": what happens to occurrences that nobody was there to fire.
        misfire_cap: how many missed occurrences "all" runs at most; None for the default.
        grace: seconds by which an occurrence may be late before the misfire policy judges it; None for the default.
        spread: seconds over which jobs of the same instant are spread, each by an offset of its own; None for the
            tenant's, 0 for none.
        max_occurrences: scheduled occurrences in all; not available yet, since no claim counts them.
        retry: attempts after a plain failure.
        idempotent: "unknown", "yes" or "no" (or None, True, False): whether running twice does no harm.
        key_scope: "occurrence" or "attempt": which id the target gets as its idempotency key.
        paused: whether the job is kept without being fired.
        note: free text for people.
    """

    name: str
    schedule_kind: str
    expression: str
    task: str = ""
    target_kind: str = "task"
    url: str = ""
    timeout: Any = None
    queue: str = ""
    timezone: str = "UTC"
    written_as: str = field(default="expression", compare=False)
    start: datetime | None = None
    end: datetime | None = None
    anchor: datetime | None = None
    tenant: str | None = None
    args: Any = ()
    kwargs: Any = None
    headers: Any = field(default=None, repr=False)             # the values of some are secret
    pool: str = ""
    priority: int = 5
    soft_limit: Any = None
    max_duration: Any = 6 * 3600.0
    expires_after: Any = None
    concurrency: str = "forbid"
    exclusion_group: str = ""
    misfire: str = "latest"
    misfire_cap: int | None = None
    grace: Any = None
    spread: Any = None
    max_occurrences: int | None = None
    retry: Retry = Retry()
    idempotent: Any = "unknown"
    key_scope: str = "occurrence"
    paused: bool = False
    note: str = ""

    def schedule(self, planned_at: datetime | None = None) -> Schedule:
        """Return the schedule's value.

        Args:
            planned_at: where an interval with neither anchor nor start counts from.

        Raises:
            ScheduleError: the parts make no schedule.
        """
        return schedule_from_parts(
            self.schedule_kind, self.expression, self.timezone, start=self.start, end=self.end,
            anchor=self.anchor or self.start or planned_at,
        )

    def max_attempts(self) -> int:
        """Return how many attempts an occurrence has: a plain task is not run again unasked."""
        if self.retry.max_attempts is not None:
            return self.retry.max_attempts
        return RETRYING_ATTEMPTS if self.idempotent == "yes" or self.target_kind == "http" else 1


FIELDS = tuple(f.name for f in fields(JobDefinition))


_NUMBERS: dict[str, Number] = {
    "priority": Number(0, 9, "", whole=True, optional=False),
    "timeout": Number(0.1, 3600, "seconds"),
    "soft_limit": Number(0.001, 30 * DAY, "seconds"),
    "max_duration": Number(0.001, 30 * DAY, "seconds"),
    "expires_after": Number(0.001, YEAR, "seconds"),
    "grace": Number(0, YEAR, "seconds"),
    "spread": Number(0, DAY, "seconds", whole=True),
    "misfire_cap": Number(1, 10_000, "", whole=True),
    "max_occurrences": Number(1, 1_000_000_000, "", whole=True),
}
_RETRY_NUMBERS: dict[str, Number] = {
    "max_attempts": Number(1, MAX_ATTEMPTS, "", whole=True),
    "base": Number(0, 30 * DAY, "seconds", optional=False),
    "factor": Number(1, 1_000, "", optional=False),
    "maximum": Number(0, 30 * DAY, "seconds", optional=False),
    "jitter": Number(0, 1, "", optional=False),
}


def validate(
    definition: JobDefinition,
    *,
    now_us: int,
    config: Config,
    known_tasks: Collection[str] | None = None,
    planned: bool = False,
) -> JobDefinition:
    """Return the definition with every value in its stored form.

    Args:
        definition: as the user gave it.
        now_us: microseconds since the epoch.
        config: for the limits that a deployment sets.
        known_tasks: names of tasks where the caller knows them; others are then refused. None where it cannot know.
        planned: the schedule was accepted earlier and stays as it is, so it may be over by now.

    Raises:
        InvalidInput: with everything that is wrong.
    """
    problems: list[Problem] = []
    values: dict[str, Any] = {f: getattr(definition, f) for f in FIELDS}
    _check_words(values, problems, config)
    _check_numbers(values, problems)
    problems += targets.find_problems(values, config, known_tasks)
    _check_retry(values, problems)
    args, kwargs, found = payload.arguments(values["args"], values["kwargs"], config.max_payload)
    read_headers = callback.headers_text if values["target_kind"] == "http" else payload.headers
    headers, found_too = read_headers(values["headers"])
    problems += found + found_too
    values |= {"args": args, "kwargs": kwargs, "headers": headers}
    _check_schedule(values, problems, ids.from_us(now_us), planned)
    if problems:
        raise InvalidInput(*problems)
    return replace(definition, **values)


def warnings_for(definition: JobDefinition) -> list[Problem]:
    """Return what is allowed but likely to hurt, of a validated definition, each with a way out."""
    found = targets.warnings_for(definition.target_kind, definition.url, definition.concurrency)
    if definition.idempotent == "no":
        if definition.max_attempts() > 1:
            found.append(Problem(
                "retry",
                f"the job is marked as not idempotent, yet a failure is tried up to {definition.max_attempts()} times: "
                "a task that failed halfway does its first half again. Set max_attempts to 1 for no automatic retry",
                "not_idempotent",
            ))
        if definition.concurrency != "forbid":
            found.append(Problem(
                "concurrency",
                f'the job is marked as not idempotent, yet with "{definition.concurrency}" two runs may be active '
                'at once. Set concurrency to "forbid"',
                "not_idempotent",
            ))
    return found


def schedule_fields(
    *,
    cron: object = None,
    every: object = None,
    at: object = None,
    schedule: object = None,
    timezone: str | None = None,
) -> dict[str, Any]:
    """Return the schedule's fields of a JobDefinition for one of the four ways in which a caller may give it.

    Args:
        cron: a cron text.
        every: a timedelta, seconds, or an Interval.
        at: an aware datetime, or its ISO text.
        schedule: any schedule of ``chrono_beat.core.schedule``.
        timezone: the zone; None for that of *schedule*, else UTC.

    Raises:
        InvalidInput: none was given, or more than one, or of a kind that makes no schedule.
    """
    given = {key: value for key, value in (("cron", cron), ("every", every), ("at", at), ("schedule", schedule))
             if value is not None}
    if len(given) != 1:
        what = " and ".join(given) if given else "none of them"
        raise InvalidInput(Problem("schedule", f"give exactly one of cron, every, at and schedule; this has {what}"))
    [(written_as, value)] = given.items()
    zone = {} if timezone is None else {"timezone": timezone}
    if isinstance(value, Schedule):
        parts = value.parts()
        return {"schedule_kind": parts.kind, "expression": parts.expression, "timezone": parts.timezone,
                "start": parts.start, "end": parts.end, "anchor": parts.anchor, "written_as": written_as} | zone
    kind, expression, wrong = "cron", value, ""
    if written_as == "every":
        kind, (expression, wrong) = "interval", _period_text(value)
    elif written_as == "at":
        kind, (instant, wrong) = "once", checks.instant(value)
        expression = instant.isoformat() if instant else ""
    elif written_as == "schedule":
        wrong = f"must be a Cron, an Interval or a Once, not {checks.kind_of(value)}"
    if wrong:
        raise InvalidInput(Problem(written_as, wrong))
    return {"schedule_kind": kind, "expression": expression, "written_as": written_as} | zone


def _period_text(value: Any) -> tuple[str, str]:
    try:
        return Interval(value).parts().expression, ""
    except ScheduleError as error:
        return "", error.reason


def first_run(schedule: Schedule, kind: str, now: datetime) -> datetime | None:
    """Return when a schedule that is planned at *now* runs first; None for never.

    A one-off that is at most a minute late still runs: people say "now" and the clock moves on while they say it.
    """
    if kind == "once":
        return schedule.next_after(now - ONCE_GRACE - timedelta(microseconds=1))
    return schedule.next_after(now)


def _check_words(values: dict[str, Any], problems: list[Problem], config: Config) -> None:
    """Check and normalise what is text."""
    values["tenant"] = config.default_tenant if values["tenant"] is None else values["tenant"]
    if values["idempotent"] is None or isinstance(values["idempotent"], bool):
        values["idempotent"] = {None: "unknown", True: "yes", False: "no"}[values["idempotent"]]
    texts: dict[str, Callable[[str], str | None]] = {
        "name": checks.wrong_name,
        "tenant": checks.wrong_tenant,
        "pool": lambda pool: checks.wrong_pool(pool, config.default_pool),
        "concurrency": checks.wrong_concurrency,
        "exclusion_group": checks.wrong_group,
        "misfire": lambda word: checks.not_one_of(word, MISFIRE_POLICIES),
        "idempotent": lambda word: checks.not_one_of(word, IDEMPOTENT),
        "key_scope": lambda word: checks.not_one_of(word, KEY_SCOPES),
        "note": checks.wrong_note,
    }
    for name, check in texts.items():
        value = values[name]
        if not isinstance(value, str):
            problems.append(Problem(name, f"must be a text, not {checks.kind_of(value)}"))
            continue
        value = values[name] = value.strip() if name in _STRIPPED else value
        wrong = checks.unstorable(value) or check(value)
        if wrong:
            problems.append(Problem(name, wrong))
    if not isinstance(values["paused"], bool):
        problems.append(Problem("paused", f"must be true or false, not {checks.kind_of(values['paused'])}"))


def _check_numbers(values: dict[str, Any], problems: list[Problem]) -> None:
    """Check and normalise what is a number or a length of time."""
    refused: set[str] = set()
    for name, allowed in _NUMBERS.items():
        values[name], wrong = checks.number(values[name], allowed)
        if wrong:
            refused.add(name)
            problems.append(Problem(name, wrong))
    if values["max_occurrences"] is not None and "max_occurrences" not in refused:
        problems.append(Problem("max_occurrences", "is not available yet; give an end instead", "unavailable"))
    soft, hard = values["soft_limit"], values["max_duration"]
    if not refused & {"soft_limit", "max_duration"} and soft is not None and hard is not None and soft >= hard:
        problems.append(Problem("soft_limit", f"must be less than max_duration, which is {hard:g} seconds"))


def _check_retry(values: dict[str, Any], problems: list[Problem]) -> None:
    retry = values["retry"]
    if not isinstance(retry, Retry):
        problems.append(Problem("retry", f"must be a Retry, not {checks.kind_of(retry)}"))
        return
    numbers: dict[str, Any] = {}
    found = []
    for name, allowed in _RETRY_NUMBERS.items():
        numbers[name], wrong = checks.number(getattr(retry, name), allowed)
        if wrong:
            found.append(Problem("retry", f"{name} {wrong}"))
    if not found and numbers["maximum"] < numbers["base"]:
        found.append(Problem("retry", f"maximum must be at least base, which is {numbers['base']:g} seconds"))
    problems += found
    if not found:
        values["retry"] = Retry(**numbers)


def _check_schedule(
    values: dict[str, Any], problems: list[Problem], now: datetime, planned: bool,
) -> None:
    """Check the schedule as a whole; normalise its instants."""
    written_as = values["written_as"]
    found: list[Problem] = []
    for name in ("start", "end", "anchor"):
        values[name], message = checks.instant(values[name])
        if message:
            found.append(Problem(name, message))
    problems += found
    if found:
        return
    start, end = values["start"], values["end"]
    try:
        schedule = schedule_from_parts(
            values["schedule_kind"], values["expression"], values["timezone"],
            start=start, end=end, anchor=values["anchor"] or start or now,
        )
        if isinstance(schedule, Once) and not planned:
            schedule.refuse_past(now)
        parts = schedule.parts()
        first = first_run(schedule, parts.kind, now)
    except ScheduleError as error:
        problems.append(_as_written(error, written_as))
        return
    values |= {"schedule_kind": parts.kind, "expression": parts.expression, "timezone": parts.timezone,
               "anchor": values["anchor"] if parts.kind == "interval" else None}
    if first is None and not planned:
        problems.append(_over(values, start, end, now))
    elif first is not None and type(values["spread"]) is int and 0 < values["spread"] <= DAY:
        gap = _shortest_gap(schedule, first)
        if gap is not None and values["spread"] >= gap:
            problems.append(Problem("spread", f"must be less than the time between two runs, which is {gap:g} seconds"))


def _as_written(error: ScheduleError, written_as: str) -> Problem:
    """Name the field as the caller knows it; which part of an expression is wrong goes into the sentence."""
    if error.field not in _EXPRESSION_PARTS:
        return Problem(error.field, error.reason, error.code)
    part = "" if error.field in (written_as, "expression", "period", "at") else f"{error.field}: "
    return Problem(written_as, part + error.reason, error.code)


def _over(values: dict[str, Any], start: datetime | None, end: datetime | None, now: datetime) -> Problem:
    if end is not None and end <= now:
        return Problem("end", "is over already, so the job would never run", "past")
    if end is not None:
        return Problem("end", "comes before the first run, so the job would never run", "never")
    return Problem(values["written_as"], "has no run left before the year 9999", "never")


def _shortest_gap(schedule: Schedule, first: datetime) -> float | None:
    """Return the shortest time between two of the next runs, in seconds; None where there is but one."""
    runs = [first]
    while len(runs) < GAPS_COMPARED and (following := schedule.next_after(runs[-1])) is not None:
        runs.append(following)
    return min(((b - a).total_seconds() for a, b in itertools.pairwise(runs)), default=None)


