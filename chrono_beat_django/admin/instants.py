"""Instants as people read and write them, always with the zone beside.

Lists show UTC, or a job's runs in the job's zone. Forms show and read the *form's zone*, Django's current one
(``TIME_ZONE`` unless a middleware activates another), each with its offset from UTC, so that what is shown means one
instant also in a repeated hour, and an unchanged form gives back the very microsecond.
"""
from __future__ import annotations

from datetime import UTC, datetime, tzinfo

from django.utils.timezone import get_current_timezone, get_current_timezone_name

from chrono_beat.core.schedule import ScheduleError
from chrono_beat.core.zones import timeline

EMPTY = "-"


def in_utc(at: datetime | None) -> str:
    """Return ``2026-01-02 09:00:00 UTC``, with milliseconds where there are any."""
    if at is None:
        return EMPTY
    utc = at.astimezone(UTC).replace(tzinfo=None)
    return f"{utc.isoformat(' ', 'milliseconds' if utc.microsecond else 'seconds')} UTC"


def in_zone(at: datetime | None, key: str) -> str:
    """Return ``Thu 2026-01-08 03:00:00+00:00 Europe/London``; UTC, saying why, where the zone is none."""
    if at is None:
        return EMPTY
    try:
        zone: tzinfo = timeline(key).zone
    except ScheduleError:
        return f'{in_utc(at)} ("{key}" is no zone)'
    local = at.astimezone(zone)
    if key == "UTC":
        return f"{local:%a} {local.replace(tzinfo=None).isoformat(' ')} UTC"
    return f"{local:%a} {local.isoformat(' ')} {key}"


def form_zone() -> str:
    """Return the name of the zone that forms show and read instants in."""
    return get_current_timezone_name()


def for_form(at: datetime) -> str:
    """Return an instant as a form has it: ``2026-01-02 09:00:00+00:00``, to the microsecond."""
    return at.astimezone(get_current_timezone()).isoformat(" ")


def from_form(text: str) -> datetime:
    """Read an instant; one without an offset is on the wall clock of the form's zone.

    Raises:
        ValueError: the text is no instant.
        LookupError: that wall clock shows it never, or twice; the message says so.
    """
    at = datetime.fromisoformat(text)
    return _placed(at) if at.tzinfo is None else at


def _placed(wall: datetime) -> datetime:
    zone, name = get_current_timezone(), form_zone()
    passes = [wall.replace(tzinfo=zone, fold=fold) for fold in (0, 1)]
    found = sorted({at.astimezone(UTC) for at in passes
                    if at.astimezone(UTC).astimezone(zone).replace(tzinfo=None, fold=0) == wall})
    if not found:
        raise LookupError(f"{wall.isoformat(' ')} does not exist in {name}: the clock is put forward over it")
    if len(found) > 1:
        raise LookupError(f"{wall.isoformat(' ')} comes twice in {name}, where the clock is put back; give it with its "
                          f"offset, {' or '.join(for_form(at) for at in found)}")
    return found[0]
