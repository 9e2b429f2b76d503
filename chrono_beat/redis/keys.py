"""Every Redis key: pattern, type, meaning, expiry.

All keys of a lane carry its number as their hash tag, ``<prefix>:{<lane>}:…``, so a script finds everything it touches
in one slot of a cluster. Scripts get the name of the lane's meta hash alone and build the other names from it, as
listed here. A tenant's name contains no colon, so the names can't be mistaken for each other. What belongs to no lane
has the tag ``{all}``.
"""
from __future__ import annotations

from typing import NamedTuple

DAY_MS = 86_400_000
TOMBSTONE_TTL_MS = 60_000
# A copy is trusted for seven days (MAX_COPY_AGE_US in copies.lua): an older one is dropped as if it were voided, and the
# audit publishes what is still open. So a void that is remembered for eight days outlives every copy it could concern,
# and a lane does not have to count the entries of each job.
VOID_TTL_MS = 8 * DAY_MS
# Dispatchers tell limits again in rounds (services/lanes.py), so those of a tenant that is gone go by themselves.
LIMITS_TTL_MS = 8 * DAY_MS
DEFAULT_LIMITS_TTL_MS = 3_600_000
CONTROL_TTL_MS = 3_600_000
DISPATCH_TTL_MS = DAY_MS


class KeyPattern(NamedTuple):
    """One kind of key."""

    pattern: str
    type: str
    meaning: str
    expiry: str
    swept: bool          # removed when the lane gets a new generation


WITH_LAST = "with its last member"

LANE_KEYS = (
    KeyPattern("meta", "hash",
               "generation, token counter, replication_id, opened, quarantine_until, unknown_before, delayed, "
               "has_plain_tasks",
               "never; one a lane", False),
    KeyPattern("out", "stream", "outcomes in the order they happened, until recorded",
               "never, also when empty (it remembers its last id); one a lane", False),
    KeyPattern("reader", "hash", "who records the lane, and until when", "with the reader's lease", False),
    KeyPattern("lease", "zset", "execution id -> end of its lease (µs)", WITH_LAST, True),
    KeyPattern("x:<execution id>", "string",
               "marker, running record or tombstone of an execution, a MessagePack map: state, ver, job, tenant, pool, "
               "prio, exp, entry, since, token, given (deliveries), reaps, worker, front, begun, lost, retry, cancelled, "
               "payload, parked, parked_at, out; plain, resent (plain tasks); "
               "lock and group (what it needs), at (where it waits), ends (it is in ends), stop (when its "
               "grant is withdrawn), by (for whom), unk (it may have run in a lost generation)",
               "a tombstone 60 s after its outcome was acknowledged; a dropped marker after 8 days", True),
    KeyPattern("s:<pool>:<tenant>:<prio>", "stream",
               "entries (e execution id, p payload) until settled; no consumer group", "deleted with its last entry", True),
    KeyPattern("front:<pool>:<tenant>", "list", "execution ids given back or reaped; drawn before the streams", WITH_LAST,
               True),
    KeyPattern("ready:<pool>", "zset", "tenant with entries to draw -> its virtual time",
               "with its last member; a tenant leaves where a draw, or the reaper, finds it first and empty", True),
    KeyPattern("capped:<pool>", "zset", "tenant with entries, but paused or running all it may -> its virtual time",
               WITH_LAST, True),
    KeyPattern("held:<tenant>", "set", "pools in which the tenant is capped", WITH_LAST, True),
    KeyPattern("places:<pool>", "hash",
               "ready or capped tenant -> its grants since it entered, without the hundreds, and where its undrawn entries "
               "are: f for the front list, 5=<id> for the stream of priority 5 from that id on",
               "with its last field", True),
    KeyPattern("floor:<pool>", "string", "virtual time below which no tenant enters", "deleted when no tenant waits",
               True),
    KeyPattern("delayed", "zset", "plain task that is not due yet -> when it may be read (µs)", WITH_LAST, False),
    KeyPattern("parked", "zset", "execution id whose task no worker knew that drew it -> since when (µs)", WITH_LAST, True),
    KeyPattern("run:<tenant>", "set", "execution ids that hold a slot", WITH_LAST, True),
    KeyPattern("own:<worker>", "set", "execution ids that the worker holds", WITH_LAST, True),
    KeyPattern("lock:<name>", "string",
               "execution id that is active: of a job (<job>, under forbid and replace), of its backfills (<job>:b), of an "
               "exclusion group (@<tenant>:<group>)", "deleted when freed", True),
    KeyPattern("lockwait:<name>", "list", "execution ids that wait for the lock, oldest first", WITH_LAST, True),
    KeyPattern("stop", "zset", "running execution that was told to make room -> when its grant is withdrawn (µs)",
               WITH_LAST, True),
    KeyPattern("ends", "zset", "execution that waits for a lock, or is in the way of one -> its expiry (µs)",
               WITH_LAST, True),
    KeyPattern("void:<job>", "string", "least version of the job that may be published or drawn",
               "8 days after the last void, a day longer than any copy is trusted", False),
    KeyPattern("tenant:<tenant>", "hash", "weight, max_running, paused, changed (µs)",
               "8 days after they were last told; an hour where they are the defaults again", False),
    KeyPattern("wake:<pool>", "list", "at most one token: a pool may have work",
               "taken by a waiting worker; one a pool", False),
    KeyPattern("ctl:<worker>", "list", "messages to a worker", "an hour after the last message", False),
)
GLOBAL_KEYS = (
    KeyPattern("workers", "zset", "worker -> end of its heartbeat (µs)", "a day after the last report", False),
    KeyPattern("worker:<worker>", "string", "heartbeat of a worker: JSON", "the heartbeat's own", False),
    KeyPattern("dispatch", "stream", "its last entry is the last wake-up of the dispatchers", "a day after the last",
               False),
)
SWEPT = tuple(k.pattern.partition("<")[0] for k in LANE_KEYS if k.swept)


class Keys:
    """Names of keys of one deployment.

    Args:
        prefix: the setting KEY_PREFIX.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def base(self, lane: int) -> str:
        """Return what every key of a lane begins with."""
        return f"{self.prefix}:{{{lane}}}:"

    def meta(self, lane: int) -> str:
        """Return the key that scripts of a lane are given."""
        return f"{self.prefix}:{{{lane}}}:meta"

    def of(self, lane: int, *parts: str) -> str:
        """Return a key of a lane, e.g. ``of(0, "wake", "chrono")``."""
        return self.base(lane) + ":".join(parts)

    def anywhere(self, *parts: str) -> str:
        """Return a key that belongs to no lane."""
        return f"{self.prefix}:{{all}}:" + ":".join(parts)

    def is_swept(self, lane: int, key: str) -> bool:
        """Say whether a key of the lane goes when the lane gets a new generation."""
        name = key.removeprefix(self.base(lane))
        return any(name.startswith(start) if start.endswith(":") else name == start for start in SWEPT)
