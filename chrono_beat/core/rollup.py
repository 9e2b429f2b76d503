"""What became of a tenant's executions within a minute, an hour or a day, in sums that can be added up.

**Histogram.** A duration of v µs is counted in the bucket ceil(log v / log 1.04), so the buckets grow by 4 %. A
percentile is read as the geometric middle of its bucket: at most 2 % off (`RELATIVE_ERROR`), whatever was merged before.
What is below a millisecond counts as one millisecond.

**Text.** ``"171:3 178:1"``: three in bucket 171, one in 178. A bucket may be named several times; its numbers add up.
So two texts are merged by writing one behind the other, which a database can do in an upsert that reads nothing first;
`compact` shortens a text that has grown.

**Weakness.** What an execution adds to publish lateness is known at its end only, and left out where its row had not
learned by then when it was published.
"""
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from chrono_beat.core.lifecycle import MISSED

RELATIVE_ERROR = 0.02
"""How far a percentile may be off, as a share of it."""

SHORTEST_US = 1_000
LONGEST_US = 3_155_760_000_000_000
"""Durations are cut to this range, a millisecond to a hundred years; so there are at most 742 buckets."""

MINUTE_US = 60_000_000
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US
SPAN_US = {"minute": MINUTE_US, "hour": HOUR_US, "day": DAY_US}

MINUTES_KEPT_US = 2 * DAY_US
"""Age from which on minutes are merged into hours."""

_GROWTH = 1.04
_LOG = math.log(_GROWTH)


def bucket_of(value_us: int) -> int:
    """Return the bucket of a duration in µs."""
    return math.ceil(math.log(min(max(value_us, SHORTEST_US), LONGEST_US)) / _LOG)


def middle_of(bucket: int) -> float:
    """Return the µs that stand for a bucket."""
    return float(_GROWTH ** (bucket - 0.5))


def parse(text: str) -> Counter[int]:
    """Read a histogram: bucket -> how many. What is none is left out, so that one bad row hides no other."""
    counts: Counter[int] = Counter()
    for term in text.split():
        bucket, _, count = term.partition(":")
        if bucket.isascii() and bucket.isdigit() and count.isascii() and count.isdigit():
            counts[int(bucket)] += int(count)
    return counts


def write(counts: Counter[int]) -> str:
    """Write a histogram, each bucket once, in order."""
    return " ".join(f"{bucket}:{count}" for bucket, count in sorted(counts.items()) if count)


def histogram(values_us: Sequence[int]) -> str:
    """Write the histogram of durations in µs."""
    if len(values_us) < 2:                       # most of many tenants' minutes; a Counter costs ten times as much
        return f"{bucket_of(values_us[0])}:1" if values_us else ""
    return write(Counter(bucket_of(value) for value in values_us))


def merge(texts: Iterable[str]) -> str:
    """Add histograms up."""
    return write(parse(" ".join(texts)))


def compact(text: str) -> str:
    """Write a histogram anew, each bucket once; its meaning stays."""
    return merge([text])


def count(text: str) -> int:
    """Return how many durations a histogram holds."""
    return sum(parse(text).values())


def percentile(text: str, share: float) -> float | None:
    """Return the duration that *share* of all do not exceed.

    Args:
        text: a histogram.
        share: more than 0, at most 1; 0.99 is the 99th percentile.

    Returns:
        µs, at most `RELATIVE_ERROR` off; None where the histogram is empty.

    Raises:
        ValueError: the share is out of range.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share: {share} is not between 0 and 1")
    counts = parse(text)
    rank = math.ceil(share * sum(counts.values()))
    for bucket, number in sorted(counts.items()):
        rank -= number
        if rank <= 0 < number:
            return middle_of(bucket)
    return None


def merges(now_us: int, retention_us: int) -> list[tuple[str, str, int]]:
    """Return what is to be merged: (span, the wider one, before which start in µs); always whole hours and whole days."""
    return [(span, wider, (now_us - age_us) // SPAN_US[wider] * SPAN_US[wider]) for span, wider, age_us in (
        ("minute", "hour", MINUTES_KEPT_US), ("hour", "day", max(retention_us, MINUTES_KEPT_US + DAY_US)))]


# -- what a transaction adds ------------------------------------------------------------------------------------------

@dataclass(slots=True)
class Tally:
    """What is added to a tenant's minute."""

    started: int = 0
    states: Counter[str] = field(default_factory=Counter)
    deliveries: int = 0
    duplicates: int = 0
    lateness_us: list[int] = field(default_factory=list)
    publish_lateness_us: list[int] = field(default_factory=list)
    duration_us: list[int] = field(default_factory=list)


class Tallies:
    """What one transaction adds to the minutes of all tenants it touched.

    An execution counts in the minute in which it started, and, with its end, in the minute in which it ended.
    """

    def __init__(self) -> None:
        self._minutes: dict[tuple[str, int], Tally] = {}

    def _of(self, tenant: str, at_us: int) -> Tally:
        key = (tenant, at_us - at_us % MINUTE_US)
        tally = self._minutes.get(key)
        if tally is None:
            tally = self._minutes[key] = Tally()
        return tally

    def start(self, tenant: str, due_us: int, started_us: int) -> None:
        """Count the first start of an execution."""
        tally = self._of(tenant, started_us)
        tally.started += 1
        tally.lateness_us.append(max(0, started_us - due_us))

    def end(
        self, tenant: str, state: str, finished_us: int, *, due_us: int, published_us: int | None,
        started_us: int | None, deliveries: int,
    ) -> None:
        """Count the end of an execution; all that is asked for is as its row has it."""
        tally = self._of(tenant, finished_us)
        tally.states[state] += 1
        tally.deliveries += deliveries
        tally.duplicates += max(0, deliveries - 1)
        if published_us is not None:
            tally.publish_lateness_us.append(max(0, published_us - due_us))
        if started_us is not None:
            tally.duration_us.append(max(0, finished_us - started_us))

    def miss(self, tenant: str, at_us: int, occurrences: int) -> None:
        """Count occurrences that a claim wrote as missed at once, in the minute of the claim."""
        self._of(tenant, at_us).states[MISSED] += occurrences

    def started(self) -> list[tuple[str, int]]:
        """Return tenant and lateness (µs) of each execution that started."""
        return [(tenant, late_us) for (tenant, _), tally in self._minutes.items() for late_us in tally.lateness_us]

    def rows(self) -> list[tuple[str, int, Tally]]:
        """Return (tenant, start of the minute in µs, what is added), in the order in which all writers lock them."""
        return [(*key, tally) for key, tally in sorted(self._minutes.items(), key=lambda item: item[0])]
