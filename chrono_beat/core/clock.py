"""What can be known of another server's clock, and the instant by which the dispatcher fires.

**Rule.** Fire by what every clock has *certainly* reached; end a right by what a clock has certainly *not passed*, or
reckon it from what it had certainly reached. A host's wall clock is measured for the metrics and decides nothing.

**Theory.** Ask a server for its time, and note the host's monotonic clock before and after. The server looked at its
clock somewhere between the two, so one reading bounds it from both sides ever after:

- `at_least`: it looked, at the latest, when the answer was in; since then it has gone on by what the host has.
- `at_most`: it looked, at the earliest, when the question went out.

The gap between the two is the round trip. Both clocks tick a little wrongly, so each bound gives way by `DRIFT_PPM` of
the time since the reading, and by one microsecond, since all clocks here cut off fractions. Of several readings the
best bound holds, so one fast answer serves for the next seconds of slow ones.

**Worked example.** Asked at 100.000 s, answered at 100.030 s: "09:00:00.000". At 100.030 s the server's clock shows at
least 09:00:00.000 and at most about 09:00:00.030. At 101.030 s it shows at least 09:00:00.999498, half a millisecond
less than a second more. What is due at 09:00:01 waits that much longer, and can't be early.

**Bound.** At most `MAX_READINGS` readings are kept, the best of each `SPAN_US`, so a bound costs a dozen additions and
rests on nothing older than `MAX_READINGS` spans before the newest reading.

**Weakness.** A server's clock that is set back, or slewed faster than `DRIFT_PPM`, is noticed at the next reading that
contradicts the old ones; until then `at_least` may be ahead by the step. A difference smaller than a round trip can't
be seen until the old readings have left. Therefore the publish script looks at Redis' clock once more for itself.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

DRIFT_PPM = 500
"""Microseconds that two clocks may part in a second: what NTP may slew a clock by, many times a crystal's own error."""

ROUNDING_US = 1
"""Microseconds by which a difference of two clock readings, each cut off to a microsecond, may be wrong."""

SPAN_US = 1_000_000
"""Microseconds of the host's monotonic clock of which the best reading is kept."""

MAX_READINGS = 10
"""Readings that are kept, one a span; older ones have drifted too far to be of use beside a newer one."""


class Signal(Protocol):
    """What a sleeper can be woken by; a `threading.Event` is one."""

    def is_set(self) -> bool:
        """Say whether the signal was given."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the signal for at most so many seconds; return whether it was given."""


class Clock(Protocol):
    """The host's clocks and the only way to sleep: `SystemClock` in services, `ManualClock` in tests."""

    def wall_us(self) -> int:
        """Return the host's wall clock, in microseconds since 1970 UTC. It may be wrong and may step."""

    def monotonic_us(self) -> int:
        """Return the host's monotonic clock, in microseconds since an instant of its own. It never goes back."""

    def wait(self, event: Signal, timeout_us: int) -> bool:
        """Sleep until the event is set, at most so many microseconds; return whether it is set."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One answer of a server that was asked for its time.

    Args:
        asked_us: the host's monotonic clock just before the question, in microseconds.
        server_us: the server's clock, in microseconds since 1970 UTC.
        answered_us: the host's monotonic clock just after the answer, in microseconds.

    Raises:
        ValueError: it was answered before it was asked.
    """

    asked_us: int
    server_us: int
    answered_us: int

    def __post_init__(self) -> None:
        if self.answered_us < self.asked_us:
            raise ValueError(f"answered at {self.answered_us} µs, before it was asked at {self.asked_us} µs")


class ServerClock:
    """Bounds on a server's clock, from its recent readings.

    One thread at a time may `observe`; any thread may ask for bounds meanwhile.

    Args:
        drift_ppm: microseconds a second by which the server's and the host's clock may part.
    """

    def __init__(self, *, drift_ppm: int = DRIFT_PPM) -> None:
        self._drift_ppm = drift_ppm
        # By span. Replaced as a whole, never changed, so that readers in other threads need no lock.
        self._readings: dict[int, Reading] = {}

    def observe(self, reading: Reading) -> bool:
        """Take a new reading into account.

        Args:
            reading: the server's answer.

        Returns:
            True if it contradicts the readings so far: the server's clock was set, or the host stood still (a virtual
            machine that was suspended). The old readings are then forgotten.
        """
        span = reading.answered_us // SPAN_US
        if not self._readings:
            self._begin_with(reading)
            return False
        newest = max(self._readings)
        if not self._agrees(reading):
            # An answer that was overtaken by newer ones tells of the clock before it was set.
            if span >= newest:
                self._begin_with(reading)
            return True
        best = {kept_span: kept for kept_span, kept in self._readings.items() if kept_span > span - MAX_READINGS}
        rival = best.get(span)
        if span > newest - MAX_READINGS and (rival is None or _lead_us(reading) > _lead_us(rival)):
            best[span] = reading
        self._readings = best
        return False

    def at_least(self, monotonic_us: int) -> int | None:
        """Return what the server's clock has certainly reached.

        Args:
            monotonic_us: the instant that is asked about, on the host's monotonic clock.

        Returns:
            Microseconds since 1970 UTC, or None before the first reading.
        """
        return max((self._at_least(reading, monotonic_us) for reading in self._readings.values()), default=None)

    def at_most(self, monotonic_us: int) -> int | None:
        """Return what the server's clock has certainly not passed.

        Args:
            monotonic_us: the instant that is asked about, on the host's monotonic clock.

        Returns:
            Microseconds since 1970 UTC, or None before the first reading.
        """
        return min((self._at_most(reading, monotonic_us) for reading in self._readings.values()), default=None)

    def known_at_least(self, monotonic_us: int) -> int | None:
        """Return what could be said, at that instant, of what the server's clock had certainly reached.

        Unlike `at_least` it uses no later reading. If the host stood still since, reckoning back from a later reading
        would put the instant too late; reckoning on from an earlier one can only put it too early.

        Args:
            monotonic_us: an instant on the host's monotonic clock, in general in the past.

        Returns:
            Microseconds since 1970 UTC, or None if no reading that is still kept was in by then.
        """
        earlier = (reading for reading in self._readings.values() if reading.answered_us <= monotonic_us)
        return max((self._at_least(reading, monotonic_us) for reading in earlier), default=None)

    def _begin_with(self, reading: Reading) -> None:
        # Filed one span early, so that a better reading soon after does not replace it: a renewal that was sent
        # between the two needs the earlier one (`known_at_least`).
        self._readings = {reading.answered_us // SPAN_US - 1: reading}

    def _agrees(self, reading: Reading) -> bool:
        reached = self.at_least(reading.asked_us)
        not_passed = self.at_most(reading.answered_us)
        assert reached is not None and not_passed is not None
        return reached <= reading.server_us <= not_passed

    def _at_least(self, reading: Reading, monotonic_us: int) -> int:
        passed_us = monotonic_us - reading.answered_us
        return reading.server_us + passed_us - self._give_us(passed_us)

    def _at_most(self, reading: Reading, monotonic_us: int) -> int:
        passed_us = monotonic_us - reading.asked_us
        return reading.server_us + passed_us + self._give_us(passed_us)

    def _give_us(self, passed_us: int) -> int:
        """Return by how much a bound gives way, so long after (or before) its reading; rounded up."""
        if passed_us == 0:
            return 0
        return ROUNDING_US - (-(abs(passed_us) + 1) * self._drift_ppm // 1_000_000)


def _lead_us(reading: Reading) -> int:
    """Rank readings of the same span: the greater, the later the instant that `at_least` gives."""
    return reading.server_us - reading.answered_us


class FiringClock:
    """The clock by which the dispatcher fires: the instant that all its servers' clocks have certainly reached.

    Args:
        servers: the clocks to satisfy, by a name for the metrics ("database", "redis"); at least one.

    Raises:
        ValueError: no server is given.
    """

    def __init__(self, servers: Mapping[str, ServerClock]) -> None:
        if not servers:
            raise ValueError("a FiringClock needs at least one server's clock")
        self.servers: dict[str, ServerClock] = dict(servers)

    def now_us(self, monotonic_us: int) -> int | None:
        """Return the instant up to which firing is early by nobody's clock.

        It may go back, if a server's clock was set back.

        Args:
            monotonic_us: the host's monotonic clock.

        Returns:
            Microseconds since 1970 UTC, or None as long as a server has not been read: nothing may fire.
        """
        earliest: int | None = None
        for server in self.servers.values():
            reached = server.at_least(monotonic_us)
            if reached is None:
                return None
            earliest = reached if earliest is None else min(earliest, reached)
        return earliest

    def skew_us(self, *, wall_us: int, monotonic_us: int) -> dict[str, int]:
        """Measure how far the host's wall clock is ahead of each server's, to half a round trip.

        Args:
            wall_us: the host's wall clock, in microseconds since 1970 UTC.
            monotonic_us: its monotonic clock at the same moment.

        Returns:
            Microseconds by server's name (negative: the host is behind), without the servers that were not read yet.
        """
        skews: dict[str, int] = {}
        for name, server in self.servers.items():
            reached, not_passed = server.at_least(monotonic_us), server.at_most(monotonic_us)
            if reached is not None and not_passed is not None:
                skews[name] = wall_us - (reached + not_passed) // 2
        return skews


def deadline_us(server_clock: ServerClock, *, renewal_started_us: int, lease_us: int, margin_us: int) -> int | None:
    """Say until when, by a server's clock, a right holds that was renewed somewhere else.

    A lease in the database began to run after its renewal was sent. So its holder may rely on it until the lease's
    length after the sending, and Redis can judge that if the sending is told in Redis' time, rather too early than too
    late. (Protocol rule 3: a dispatcher that was paused and deposed must not publish.)

    Args:
        server_clock: the clock of the server that will judge.
        renewal_started_us: the host's monotonic clock just before the renewal that was confirmed was sent.
        lease_us: how long the lease lasts, in microseconds.
        margin_us: what is taken off for all that was not thought of, in microseconds.

    Returns:
        Microseconds since 1970 UTC by that server's clock, or None if it was not read before that renewal: renew again.
    """
    started_us = server_clock.known_at_least(renewal_started_us)
    return None if started_us is None else started_us + lease_us - margin_us
