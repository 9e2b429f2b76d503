"""The typed errors of chrono_beat: each names what is wrong, where, and the mend."""
from __future__ import annotations

from dataclasses import dataclass


class ChronoError(Exception):
    """The root of all errors that chrono_beat raises on purpose."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with one input field.

    Args:
        field: name of the field as the caller wrote it, e.g. ``"expression"`` or ``"kwargs"``.
        message: what is wrong and how to mend it, one sentence or two.
        code: stable machine word for the kind of problem, e.g. ``"invalid"``, ``"unknown"``, ``"too_large"``.
    """

    field: str
    message: str
    code: str = "invalid"


class InvalidInput(ChronoError, ValueError):
    """Input was refused; nothing was written.

    Args:
        problems: everything that was found wrong, at least one entry.
    """

    def __init__(self, *problems: Problem) -> None:
        if not problems:
            raise ValueError("InvalidInput needs at least one problem")
        self.problems: tuple[Problem, ...] = problems
        super().__init__("; ".join(f"{p.field}: {p.message}" for p in problems))

    @property
    def field(self) -> str:
        """The field of the first problem."""
        return self.problems[0].field


class QuotaExceeded(InvalidInput):
    """A tenant has what it may have, or asked too fast; nothing was written. HTTP's 429.

    Args:
        problem: what is used up, and what to do.
        limit: how many it may have.
        usage: how many it has.
        retry_after_seconds: when to try again; None where waiting does not help.
    """

    def __init__(
        self, problem: Problem, *, limit: float, usage: float, retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(problem)
        self.limit, self.usage, self.retry_after_seconds = limit, usage, retry_after_seconds


class NotFound(ChronoError, LookupError):
    """What was named does not exist (or belongs to another tenant, which must look the same)."""


class Conflict(ChronoError):
    """The row changed since it was read, or a name is taken.

    Args:
        text: what is in the way, and the mend.
        field: the field that is taken; "" where it is none.
    """

    def __init__(self, text: str, field: str = "") -> None:
        super().__init__(text)
        self.field = field


class StaleVersion(Conflict):
    """The row is no longer at the version that the caller has seen."""


class StoreUnavailable(ChronoError):
    """The database could not be reached or broke off; the transaction left nothing behind."""


class QueueUnavailable(ChronoError):
    """Redis could not be reached; what was asked may or may not have happened there."""


class BrokerUnavailable(ChronoError):
    """The user's broker did not take a message.

    Args:
        text: what happened.
        perhaps_sent: nobody knows whether it has it.
    """

    def __init__(self, text: str, *, perhaps_sent: bool) -> None:
        super().__init__(text)
        self.perhaps_sent = perhaps_sent


class TaskRefused(ChronoError):
    """A worker does not run a task that was sent to it: ALLOWED_TASKS has it not, or its message cannot be read."""


class IllegalTransition(ChronoError):
    """A row was to be moved in a way that the table of transitions does not have."""


class MisconfiguredError(ChronoError, ValueError):
    """The settings can't work; the message lists every problem."""


class NotYetVoidedWarning(UserWarning):
    """The edit is committed, but Redis could not be told yet: the promise of prompt control starts when it is."""
