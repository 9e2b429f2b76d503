"""The one refusal of everything that describes a schedule."""
from __future__ import annotations

from chrono_beat.core.errors import InvalidInput, Problem

SHOWN_CHARACTERS = 40
"""Longest piece of refused input that a message repeats."""


class ScheduleError(InvalidInput):
    """What describes a schedule, or an instant asked about, was refused; it is a :class:`ValueError`.

    Args:
        field: which part is wrong: ``"expression"``, ``"minute"``, ``"hour"``, ``"day-of-month"``, ``"month"``,
            ``"day-of-week"``, ``"timezone"``, ``"period"``, ``"anchor"``, ``"at"``, ``"start"``, ``"end"``,
            ``"kind"``, ``"instant"``, ``"limit"`` or ``"count"``.
        reason: what is wrong with it and how to mend it.
        code: stable machine word for the kind of refusal, e.g. ``"invalid"``, ``"never"``, ``"unknown"``.
    """

    def __init__(self, field: str, reason: str, *, code: str = "invalid") -> None:
        self.reason = reason
        self.code = code
        super().__init__(Problem(field, reason, code))

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.field, self.reason, self.code)


def shown(value: object) -> str:
    """Return *value* as a message may repeat it: escaped, and cut to :data:`SHOWN_CHARACTERS`."""
    if not isinstance(value, str):
        return type(value).__name__
    return ascii(value if len(value) <= SHOWN_CHARACTERS else value[:SHOWN_CHARACTERS] + "...")


def _rebuild(field: str, reason: str, code: str) -> ScheduleError:
    return ScheduleError(field, reason, code=code)
