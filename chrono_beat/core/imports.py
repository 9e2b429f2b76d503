"""What another scheduler has, read into job definitions: Celery's ``beat_schedule`` and its options, a crontab file.

Nothing here is written anywhere. A reader yields one :class:`Entry` for each thing it found; what cannot be taken over
carries its reason and the mend, and the others go on.
"""
from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from chrono_beat.core.definition import JobDefinition
from chrono_beat.core.retry import Retry
from chrono_beat.core.schedule import CeleryCrontab, Cron, Interval, Schedule, ScheduleError, zone_keys

ATTEMPTS = Retry(max_attempts=1)
"""An imported task that failed is not run again unasked; its own ``retry`` and ``autoretry_for`` still count."""

BOTH_DAYS = "both day fields must hold, as in Celery; cron text would take either"
EITHER_DAY = "either day field is enough here; cron wants both where one begins with a star, as */2 does"
NO_SOLAR = "solar schedules are unsupported; replace it by a crontab near that time, or trigger the job from code"
NO_RELATIVE = "relative is dropped: runs are not rounded to whole periods"
DISABLED = "is disabled there, so it is paused here"
IS_OVER = "is over there; nothing is left to take over"
NEW_EXPIRY = "expiry counts from the due time, where Celery counts from the sending"

CELERYS_OWN = "celery.backend_cleanup"
"""An entry that Celery's beat adds by itself, where its result backend does not let results expire."""

_ENVIRONMENT = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(.*?)\s*$")
_PERCENT = re.compile(r"(?<!\\)%")
_SCHEDULES_OF = ("celery", "django_celery_beat")
_MEANING = ("is_due", "remaining_estimate")
_CELERY_FIELDS = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing that another scheduler has.

    Args:
        origin: where it was found, the same at every import: it tells an entry that was changed from a new one.
        name: its name there, and of the job.
        definition: what it becomes, without a tenant; None where it cannot be taken over.
        warnings: where its meaning differs, a sentence each.
        problem: why it cannot be taken over, with the mend; "" otherwise.
        once: it is to run only once: an import that is repeated does not plan it again.
        chosen: its instant is of this import's choice, not named there: an import that is repeated keeps the first one.
        over: it will never run there again.
    """

    origin: str
    name: str
    definition: JobDefinition | None = None
    warnings: tuple[str, ...] = ()
    problem: str = ""
    once: bool = False
    chosen: bool = False
    over: bool = False


def entry(
    origin: str, name: str, task: str, schedule: Schedule, *, options: Mapping[str, Any] | None = None,
    warnings: Iterable[str] = (), once: bool = False, chosen: bool = False, over: bool = False, **fields: Any,
) -> Entry:
    """Return an entry whose definition keeps the meaning that Celery gives it.

    Args:
        schedule: when it fires.
        options: those of ``apply_async``; what has no place in a job becomes a warning.
        once: as of :class:`Entry`; likewise *chosen* and *over*.
        fields: further ones of the definition.

    Raises:
        ScheduleError: the task is no text.
    """
    if not isinstance(task, str):
        raise ScheduleError("task", f"its task is a {type(task).__name__}; give the name of the task, a text")
    parts = schedule.parts()
    found, told = _from_options(dict(options or {}), parts.timezone)
    if isinstance(schedule, CeleryCrontab) and schedule.day_of_week != "*" and schedule.day_of_month != "*":
        told.append(BOTH_DAYS)
    if fields.get("paused"):
        told.append(DISABLED)
    given: dict[str, Any] = {
        "start": parts.start, "end": parts.end, "anchor": parts.anchor, "retry": ATTEMPTS,
    }
    definition = JobDefinition(
        name=name, task=task, schedule_kind=parts.kind, expression=parts.expression, timezone=parts.timezone,
        **(given | found | fields))
    return Entry(origin=origin, name=name, definition=definition, warnings=(*warnings, *told), once=once, chosen=chosen,
                 over=over)


def refused(origin: str, name: str, why: object) -> Entry:
    """Return an entry that cannot be taken over."""
    return Entry(origin=origin, name=name, problem=str(why))


def celery_schedule(value: Any, timezone: str) -> Schedule:
    """Return the schedule that a value in Celery's ``beat_schedule`` means.

    Args:
        value: seconds, a timedelta, or an object of ``celery.schedules``, told apart by its attributes.
        timezone: IANA key of the zone that a crontab is read in.

    Raises:
        ScheduleError: it cannot be taken over.
    """
    if isinstance(value, (int, float, timedelta)):
        return Interval(value, timezone=timezone)
    if _has_own_meaning(type(value)):
        raise ScheduleError("schedule", _unsupported(value), code="unsupported")
    if hasattr(value, "_orig_minute"):
        minute, hour, weekday, date, month = (getattr(value, f"_orig_{field}") for field in _CELERY_FIELDS)
        return CeleryCrontab(minute, hour, weekday, date, month, str(value.tz) if _has_own_zone(value) else timezone)
    if hasattr(value, "event") and hasattr(value, "lat"):
        raise ScheduleError("schedule", NO_SOLAR, code="unsupported")
    if hasattr(value, "run_every"):
        return Interval(value.run_every, timezone=timezone)
    raise ScheduleError("schedule", _unsupported(value), code="unsupported")


def _unsupported(value: object) -> str:
    return f"a {type(value).__name__} is unsupported; write it as a crontab or an interval"


def _has_own_meaning(kind: type) -> bool:
    """Say whether a class derived from one of Celery's decides by itself when it is due."""
    methods = [getattr(kind, name) for name in _MEANING if hasattr(kind, name)]
    return any(method.__module__.partition(".")[0] not in _SCHEDULES_OF for method in methods)


def _has_own_zone(value: Any) -> bool:
    """Say whether it is the crontab of django-celery-beat, which is read in a zone of its own."""
    return type(value).__module__.partition(".")[0] == "django_celery_beat"


def from_beat_schedule(schedule: Mapping[str, Any], timezone: str) -> Iterator[Entry]:
    """Read ``app.conf.beat_schedule``.

    Args:
        schedule: its entries by name.
        timezone: IANA key of the zone of the app.
    """
    for name, item in schedule.items():
        origin = f"beat_schedule:{name}"
        try:
            when = celery_schedule(item["schedule"], timezone)
            yield entry(origin, str(name), item["task"], when, options=item.get("options"), warnings=_told_of(name, item, when),
                        args=item.get("args") or (), kwargs=item.get("kwargs") or {})
        except ScheduleError as error:
            yield refused(origin, str(name), error.reason)
        except (KeyError, TypeError, AttributeError) as error:
            yield refused(origin, str(name), f"the entry needs a task and a schedule ({type(error).__name__}: {error})")


def _told_of(name: str, item: Mapping[str, Any], when: Schedule) -> Iterator[str]:
    """Yield where the meaning of an entry of ``beat_schedule`` differs, as far as its schedule goes."""
    given = item["schedule"]
    if isinstance(when, Interval):
        yield "counts from the import; Celery counts from the last run"
        # Celery heeds the entry's own word only where it makes the schedule itself.
        if item.get("relative") if isinstance(given, (int, float, timedelta)) else given.relative:
            yield NO_RELATIVE
    if getattr(given, "nowfun", None) is not None and not _has_own_zone(given):
        yield f"nowfun is dropped: it is read in {when.timezone}"
    if name == CELERYS_OWN:
        yield "Celery's beat adds this entry by itself; without it, results that have expired stay"


def from_crontab(text: str, *, source: str, task: str, timezone: str, system: bool = False) -> Iterator[Entry]:
    """Read a crontab file; each command becomes a run of *task* with ``command``, ``stdin``, ``user`` and ``env``.

    Args:
        source: name of the file, for the origin.
        task: the Celery task that runs a command.
        timezone: IANA key of the zone until a ``CRON_TZ`` line.
        system: a user stands before the command, as in ``/etc/crontab``.
    """
    environment: dict[str, str] = {}
    seen: dict[str, int] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if found := _ENVIRONMENT.fullmatch(line):
            name, value = found[1], _unquoted(found[2])
            if name == "CRON_TZ":
                timezone = value
            else:
                environment[name] = value
            continue
        words = line.split(None, (1 if line.startswith("@") else 5) + system)
        fields = words[:1 if line.startswith("@") else 5]
        where = f"{source} line {number}"
        if len(words) <= len(fields) + system:
            yield refused(f"crontab:{source}:line {number}", where, "the line has no command after its schedule")
            continue
        # A line has no name: its command is what stays when its time is changed; equal ones are numbered.
        command = words[-1]
        if command in zone_keys():
            yield refused(f"crontab:{source}:line {number}", where,
                          f"the line has a zone where its command should be; write CRON_TZ={command} before it")
            continue
        if not system and command.split()[0] == "root":
            yield refused(f"crontab:{source}:line {number}", where,
                          "the line has a user where its command should be; add --system")
            continue
        digest = hashlib.sha256(command.encode()).hexdigest()[:12]
        seen[digest] = seen.get(digest, 0) + 1
        mark = digest + (f"-{seen[digest]}" if seen[digest] > 1 else "")
        origin, name = f"crontab:{source}:{mark}", f"{_start_of(command)} {mark}"
        if fields[0] == "@reboot":
            yield refused(origin, name, f"{where}: @reboot is unsupported; run it from the service manager of the host")
            continue
        body, *lines = (part.replace("\\%", "%") for part in _PERCENT.split(command))
        kwargs: dict[str, Any] = {"command": body.strip()}
        # The last line has its end, as cron sends it: a shell's `read` would not see it otherwise.
        kwargs |= {"stdin": stdin.removesuffix("\n") + "\n"} if (stdin := "\n".join(lines)) else {}
        kwargs |= {"user": words[len(fields)]} if system else {}
        kwargs |= {"env": dict(environment)} if environment else {}
        warnings = [f"the environment is stored with the job: {', '.join(environment)}"] if environment else []
        warnings += [EITHER_DAY] if _wants_both_days(fields) else []
        try:
            yield entry(origin, name, task, Cron(" ".join(fields), timezone), kwargs=kwargs, warnings=warnings)
        except ScheduleError as error:
            yield refused(origin, name, f"{where}: {error.field}: {error.reason}")


def for_tenant(
    found: Entry, tenant: str, pools: Mapping[str, str], paused: bool, concurrency: str, shadow: bool = False,
) -> Entry:
    """Return an entry as a job of *tenant*.

    Args:
        concurrency: "forbid", "allow" or "replace".
        pools: the pool that takes the place of each Celery queue.
        paused: keep it without firing it, whatever it is there.
        shadow: fire it without sending anything.
    """
    if found.definition is None:
        return found
    definition, warnings = found.definition, found.warnings
    if definition.pool:
        pool = pools.get(definition.pool, "")
        if not pool:
            warnings += (f'queue "{definition.pool}" is dropped: the pool of the tenant runs it; '
                         f"--pool {definition.pool}=POOL gives it another",)
        definition = replace(definition, pool=pool)
    return replace(found, warnings=warnings, definition=replace(
        definition, tenant=tenant, paused=definition.paused or paused, concurrency=concurrency,
        target_kind="shadow" if shadow else definition.target_kind))


def _from_options(options: dict[str, Any], timezone: str) -> tuple[dict[str, Any], list[str]]:
    fields: dict[str, Any] = {}
    warnings: list[str] = []
    if (queue := options.pop("queue", None)) is not None:
        fields["pool"] = str(getattr(queue, "name", queue))
    if (priority := options.pop("priority", None)) is not None:
        if type(priority) is int and 0 <= priority <= 9:
            fields["priority"] = priority
            warnings.append("priority 0 is the first here, as with Redis; RabbitMQ takes the highest first")
        else:
            warnings.append(f"priority {priority!r} is dropped: it must be 0 (first) to 9")
    if (expires := options.pop("expires", None)) is not None:
        if isinstance(expires, datetime):
            # Celery reads one without a zone in that of the app.
            fields["end"] = (expires if expires.tzinfo else expires.replace(tzinfo=ZoneInfo(timezone))).astimezone(UTC)
        else:
            fields["expires_after"] = expires
            warnings.append(NEW_EXPIRY)
    for theirs, ours in (("soft_time_limit", "soft_limit"), ("time_limit", "max_duration"), ("headers", "headers")):
        if options.get(theirs):
            fields[ours] = options[theirs]
        options.pop(theirs, None)
    warnings += [f"option {name} is dropped" for name in sorted(options) if options[name] is not None]
    return fields, warnings


def _wants_both_days(fields: list[str]) -> bool:
    """Say whether cron ANDs the day fields of a line where cron text ORs them; an alias has none."""
    days = fields[2::2]
    return len(days) == 2 and any(day.startswith("*") for day in days) and not any(day in ("*", "*/1") for day in days)


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _start_of(command: str) -> str:
    return "".join(character for character in command[:60] if character.isprintable()).strip()
