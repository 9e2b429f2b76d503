"""What redbeat keeps in Redis, read into entries: a hash for each entry, with ``definition`` and ``meta`` as JSON.

redbeat writes what JSON has no form for as an object with ``__type__``: datetime, interval, crontab, rrule.
"""
from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

from chrono_beat.core import imports
from chrono_beat.core.imports import Entry
from chrono_beat.core.schedule import CeleryCrontab, Interval, Schedule, ScheduleError

ORIGIN = "redbeat:"

_TYPES = ("datetime", "interval", "crontab", "weekday", "rrule")


def from_redbeat(stored: Iterable[tuple[str, Mapping[str, str]]], zone: str) -> Iterator[Entry]:
    """Read the hashes of redbeat.

    Args:
        stored: the name of each key without its prefix, and the fields of its hash.
        zone: IANA key of the app's zone, which crontabs are read in.
    """
    for name, fields in stored:
        origin = f"{ORIGIN}{name}"
        try:
            item, meta = (json.loads(fields.get(part) or "{}") for part in ("definition", "meta"))
            last = meta.get("last_run_at")
            when, warnings = _schedule(item["schedule"], _instant(last) if last else None, zone)
            if found := _written_by_type([item.get("args"), item.get("kwargs")]):
                raise ScheduleError("args", f"its arguments hold a {found}, which JSON does not have; give a text there")
            options = dict(item.get("options") or {})
            if isinstance(options.get("expires"), dict):
                options["expires"] = _instant(options["expires"])
            yield imports.entry(
                origin, str(item.get("name") or name), item["task"], when, options=options, warnings=warnings,
                args=item.get("args") or (), kwargs=item.get("kwargs") or {}, paused=not item.get("enabled", True))
        except ScheduleError as error:
            yield imports.refused(origin, name, error.reason)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            yield imports.refused(
                origin, name, f"the hash cannot be read ({type(error).__name__}: {error}); save the entry anew there")


def _written_by_type(value: Any) -> str:
    """Return the type of the first value for which JSON has no form, anywhere within arguments; "" where there is none."""
    if isinstance(value, dict) and value.get("__type__") in _TYPES:
        return str(value["__type__"])
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next(filter(None, map(_written_by_type, parts)), "")


def _schedule(stored: dict[str, Any], last: datetime | None, zone: str) -> tuple[Schedule, list[str]]:
    kind = stored.get("__type__")
    if kind == "crontab":
        return CeleryCrontab(
            stored["minute"], stored["hour"], stored["day_of_week"], stored["day_of_month"], stored["month_of_year"],
            zone), []
    if kind == "interval":
        warnings = [f"counts from {'its last run there' if last else 'the import'}, and does not drift"]
        if stored.get("relative"):
            warnings.append(imports.NO_RELATIVE)
        return Interval(stored["every"], anchor=last, timezone=zone), warnings
    raise ScheduleError(
        "schedule", f"a {kind} is unsupported; write it as a crontab or an interval", code="unsupported")


def _instant(stored: dict[str, Any]) -> datetime:
    """Read a datetime; its zone is a name, or seconds east of UTC."""
    parts = {name: value for name, value in stored.items() if name not in ("__type__", "timezone")}
    zone = stored.get("timezone", "UTC")
    offset = ZoneInfo(zone) if isinstance(zone, str) else timezone(timedelta(seconds=zone))
    return datetime(**parts, tzinfo=offset).astimezone(UTC)
