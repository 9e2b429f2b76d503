"""What a user says of attempts after a plain failure."""
from __future__ import annotations

from dataclasses import dataclass

BASE_SECONDS = 30.0
FACTOR = 2.0
MAXIMUM_SECONDS = 3600.0
JITTER = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Say how often a failed occurrence is tried again, and after how long.

    The delay before attempt n + 1 is ``min(maximum, base × factor^(n − 1))``, then ± ``jitter`` of itself. Nothing is
    checked here: the job's validator names what is wrong together with everything else.

    Args:
        max_attempts: attempts in all, the first included; 1 is "no automatic retry". Set, it also ends what the task's
            own ``self.retry()`` asks for; None leaves the job's default and the task's ``max_retries`` alone.
        base: seconds before the second attempt.
        factor: by which each further delay grows.
        maximum: seconds that no delay exceeds.
        jitter: share of the delay that is drawn at random, 0 to 1.
    """

    max_attempts: int | None = None
    base: float = BASE_SECONDS
    factor: float = FACTOR
    maximum: float = MAXIMUM_SECONDS
    jitter: float = JITTER
