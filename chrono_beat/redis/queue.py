"""QueueStore on Redis: each method that names a lane is one script call, and arrays become records here.

Which key is what is in ``keys.py``, what a script does at its head in ``lua/``. Nothing is executed twice by this
module: where a connection breaks, the caller gets QueueUnavailable and decides. Publish, settle and acknowledge may be
repeated as they are; after a draw whose reply was lost the worker calls ``recover``.
"""
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from redis.exceptions import NoScriptError, RedisError

from chrono_beat.core.config import Config
from chrono_beat.core.deliveries import UNREADABLE, Delivery, Hold, Outcome, Reaped, Settlement
from chrono_beat.core.errors import QueueUnavailable
from chrono_beat.core.overlap import way_of
from chrono_beat.core.records import (
    ALREADY,
    EARLY,
    MISSED,
    PUBLISHED,
    SKIPPED,
    VOIDED,
    WAITING,
    LaneState,
    PublishItem,
    PublishResult,
    Stop,
    TenantLimits,
    WorkerReport,
)
from chrono_beat.redis.connection import BLOCK_SECONDS, Connection
from chrono_beat.redis.control import RedisControl
from chrono_beat.redis.keys import (
    CONTROL_TTL_MS,
    DEFAULT_LIMITS_TTL_MS,
    DISPATCH_TTL_MS,
    LIMITS_TTL_MS,
    TOMBSTONE_TTL_MS,
    VOID_TTL_MS,
    Keys,
)
from chrono_beat.redis.parked import ParkedOnRedis
from chrono_beat.redis.plain import PlainOnRedis
from chrono_beat.redis.recovery import Recovery
from chrono_beat.redis.scripts import script
from chrono_beat.redis.silence import Silence

MAX_WEIGHED = 100                # tenants whose weights are looked up at once; the others count as their average
MAX_CREDIT = 1000                # executions of one draw; bounds the arguments of one command inside the script
CHUNK = 500                      # keys, tenants or outcomes passed to one script call
MAX_CONTROL_MESSAGES = 100       # taken at once
OPEN_ATTEMPTS = 3                # times that open_lane starts over where another process opens the same lane

_REPLIES = {"p": PUBLISHED, "a": ALREADY, "s": SKIPPED, "w": WAITING, "v": VOIDED, "e": EARLY, "m": MISSED}


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _holds(holds: Sequence[Hold]) -> list[str]:
    return [part for hold in holds for part in hold]


def _settlements(settlements: Sequence[Settlement]) -> list[str]:
    flat: list[str] = []
    for hold, result, detail in settlements:
        flat += (hold.execution_id, hold.token, result, _json(detail))
    return flat


def _deliveries(pool: str, reply: list[Any]) -> list[Delivery]:
    now_us, expires_us = reply[0], reply[1] if len(reply) > 1 else 0
    return [
        Delivery(reply[i].decode(), reply[i + 1].decode(), reply[i + 2].decode(), pool, reply[i + 3].decode(),
                 int(reply[i + 4]), now_us, expires_us, reply[i + 5], reply[i + 6])
        for i in range(2, len(reply), 7)
    ]


def _outcome(lane: int, entry_id: bytes, flat: list[bytes]) -> Outcome:
    try:
        return _read_outcome(lane, entry_id, flat)
    except (ValueError, KeyError, IndexError, RecursionError) as error:
        # Not written by a script of ours. The recorder counts it and lets it go; it must not stand in the way for ever.
        why = {"why": f"entry {entry_id.decode()} of the outcomes: {type(error).__name__}"}
        return Outcome(entry_id.decode(), lane, 0, UNREADABLE, "", "", "", 0, "", "", 0, 0, why)


def _read_outcome(lane: int, entry_id: bytes, flat: list[bytes]) -> Outcome:
    row = {flat[i]: flat[i + 1].decode() for i in range(0, len(flat), 2)}
    detail = json.loads(row[b"detail"]) if row[b"detail"] else {}
    if not isinstance(detail, dict):
        raise ValueError("detail is no object")
    if row[b"retry"]:
        detail["retry"] = json.loads(row[b"retry"])
    if row[b"by"]:
        detail["blocked_by"] = row[b"by"]
    return Outcome(
        entry_id.decode(), lane, int(row[b"gen"]), row[b"event"], row[b"id"], row[b"job"], row[b"tenant"],
        int(row[b"ver"]), row[b"token"], row[b"worker"], int(row[b"at"]), int(row[b"given"]), detail,
    )


def _report(text: bytes) -> WorkerReport | None:
    """Read a heartbeat; a newer release may write more into it than this one knows."""
    try:
        row = json.loads(text)
        return WorkerReport(**{name: row[name] for name in WorkerReport._fields})
    except (ValueError, TypeError, KeyError):
        return None


def _settled(words: list[bytes] | None) -> list[str]:
    if words is None:
        raise QueueUnavailable("the lane has no generation (its memory was lost); settle again when it has been opened")
    return [word.decode() for word in words]


class RedisQueueStore(ParkedOnRedis, PlainOnRedis, Recovery, RedisControl):
    """Streams, leases, locks and outcomes in Redis.

    Args:
        url_or_client: ``redis://…`` or a ``redis.Redis``; a client serves for its connection settings.
        config: settings of the deployment; key prefix, reap cap, length of leases and grace are used here.
        silence: for calls that somebody waits for: they fail within a few seconds, and together, where Redis does not
            answer. None for dispatchers and workers, which wait longer.
    """

    def __init__(self, url_or_client: Any, config: Config | None = None, silence: Silence | None = None) -> None:
        self.config = config or Config()
        self.keys = Keys(self.config.key_prefix)
        self._grace_us = round(self.config.replace_grace * 1_000_000)
        self._connection = Connection(url_or_client, silence)
        self._seen_dispatch = b"0"
        self._tidied: dict[tuple[int, str], int] = {}

    def close(self) -> None:
        """Close all connections."""
        self._connection.close()

    def reset_after_fork(self) -> None:
        """Forget the connections of the parent process; call this in a forked child before anything else."""
        self._connection.open()

    def _run(self, name: str, lane: int, *args: Any) -> Any:
        with self._connection.reaching():
            return script(name).call(self._connection.client, self.keys.meta(lane), *args)

    def now_us(self) -> int:
        with self._connection.reaching():
            seconds, micro = self._connection.client.execute_command("TIME")
        return int(seconds) * 1_000_000 + int(micro)

    # -- lanes ------------------------------------------------------------------------------------------------------

    def lane_state(self, lane: int) -> LaneState:
        with self._connection.reaching():
            pipeline = self._connection.client.pipeline(transaction=False)
            pipeline.time()
            pipeline.info("replication")
            pipeline.hmget(self.keys.meta(lane), "generation", "replication_id", "quarantine_until", "clock_offset_us",
                           "unknown_before", "has_plain_tasks")
            (seconds, micro), info, (generation, opened, until, offset, unknown, plain) = pipeline.execute()
        return LaneState(
            None if generation is None else int(generation), str(info.get("master_replid", "")),
            (opened or b"").decode(), int(float(until or 0)), int(seconds) * 1_000_000 + int(micro) + int(offset or 0),
            int(float(unknown or 0)), plain is not None,
        )

    def open_lane(self, lane: int, generation: int, replication_id: str, quarantine_us: int) -> bool:
        for _ in range(OPEN_ATTEMPTS):
            if not self._run("close_lane", lane, generation):
                return False
            if self._sweep(lane) and self._run("open_lane", lane, generation, replication_id, quarantine_us):
                return True
        return False

    def _sweep(self, lane: int) -> bool:
        """Remove the lane's copies, markers, leases and locks, in bounded steps; False where it was opened meanwhile."""
        cursor = 0
        while True:
            with self._connection.reaching():
                cursor, names = self._connection.client.scan(cursor, match=self.keys.base(lane) + "*", count=CHUNK)
            swept = [name for name in names if self.keys.is_swept(lane, name.decode("utf-8", "replace"))]
            if not self._run("sweep_lane", lane, round(self.config.lease_ttl * 1_000_000), *swept):
                return False
            if cursor == 0:
                return True

    # -- dispatcher's side ------------------------------------------------------------------------------------------

    def publish(
        self, lane: int, generation: int, valid_until_us: int, items: Sequence[PublishItem],
    ) -> PublishResult:
        flat: list[Any] = []
        for id_, job, tenant, version, attempt, kind, pool, priority, due, expires, concurrency, payload, group in items:
            flat += (id_, job, tenant, version, group, pool, priority, due, "" if expires is None else expires,
                     way_of(concurrency, kind, attempt), payload)
        reply = self._run("publish", lane, generation, valid_until_us, self._grace_us, *flat)
        if len(reply) < 3:
            return PublishResult(reply[0].decode(), [], reply[1])
        stops = [Stop(*(part.decode() for part in reply[i:i + 3])) for i in range(3, len(reply), 3)]
        return PublishResult("", [_REPLIES[letter] for letter in reply[2].decode()], reply[1], stops)

    def void(self, lane: int, job_id: str, version: int) -> None:
        self._run("void", lane, job_id, version, VOID_TTL_MS)

    def end_voided(self, lane: int, execution_id: str, job_id: str, version: int, tenant: str = "") -> str:
        return self._run("end_voided", lane, execution_id, job_id, version, tenant, VOID_TTL_MS).decode()

    def set_tenants(self, lane: int, limits: Sequence[TenantLimits]) -> None:
        for start in range(0, len(limits), CHUNK):
            flat: list[Any] = [LIMITS_TTL_MS, DEFAULT_LIMITS_TTL_MS]
            for tenant, weight, max_running, paused, changed_us in limits[start:start + CHUNK]:
                flat += (tenant, max(1, weight), max_running, int(paused), changed_us)
            self._run("set_tenants", lane, *flat)

    def reap(self, lane: int, cap: int, limit: int) -> list[Reaped]:
        flat = self._run("reap", lane, cap, limit)
        return [
            Reaped(*(flat[i + k].decode() for k in range(4)), reaps=int(flat[i + 4]), capped=flat[i + 5] == 1)
            for i in range(0, len(flat), 6)
        ]

    def tend_locks(self, lane: int, limit: int) -> list[Stop]:
        flat = self._run("tend_locks", lane, limit)
        return [
            Stop(*(flat[i + k].decode() for k in range(3)), withdrawn=flat[i + 3] == 1) for i in range(0, len(flat), 4)
        ]

    def read_outcomes(self, lane: int, reader: str, reader_lease_us: int, limit: int) -> list[Outcome] | None:
        entries = self._run("read_outcomes", lane, reader, reader_lease_us, limit)
        return None if entries is None else [_outcome(lane, entry_id, flat) for entry_id, flat in entries]

    def acknowledge(self, lane: int, outcomes: Sequence[Outcome]) -> None:
        for start in range(0, len(outcomes), CHUNK):
            flat = [part for o in outcomes[start:start + CHUNK] for part in (o.entry_id, o.execution_id)]
            self._run("acknowledge", lane, TOMBSTONE_TTL_MS, *flat)

    # -- worker's side ----------------------------------------------------------------------------------------------

    def draw(self, lane: int, pool: str, credit: int, worker: str, lease_us: int) -> list[Delivery]:
        return _deliveries(pool, self._run("draw", lane, pool, min(credit, MAX_CREDIT), worker, lease_us))

    def ready_weights(self, lane: int, pools: Sequence[str]) -> list[int]:
        return [int(weight) for weight in self._run("weights", lane, MAX_WEIGHED, *pools)]

    def accept(self, lane: int, worker: str, holds: Sequence[Hold]) -> None:
        self._run("accept", lane, *_holds(holds))

    def settle(self, lane: int, worker: str, settlements: Sequence[Settlement]) -> list[str]:
        return _settled(self._run("settle", lane, self.config.reap_cap, *_settlements(settlements)))

    def settle_and_draw(
        self, lane: int, worker: str, settlements: Sequence[Settlement], pool: str, credit: int, lease_us: int,
        accepted: Sequence[Hold] = (),
    ) -> tuple[list[str], list[Delivery]]:
        """Accept, settle and draw in one round trip, in this order; what is empty is left out.

        Not a transaction: where the connection breaks, any of the three may have happened. Settle and accept may be
        repeated; for the draw there is ``recover``.
        """
        calls: list[tuple[str, list[Any]]] = []
        if accepted:
            calls.append(("accept", _holds(accepted)))
        if settlements:
            calls.append(("settle", [self.config.reap_cap, *_settlements(settlements)]))
        if credit > 0:
            calls.append(("draw", [pool, min(credit, MAX_CREDIT), worker, lease_us]))
        replies = self._run_together(lane, calls)
        words = _settled(replies["settle"]) if settlements else []
        return words, _deliveries(pool, replies["draw"]) if credit > 0 else []

    def _run_together(self, lane: int, calls: Sequence[tuple[str, list[Any]]]) -> dict[str, Any]:
        key, replies = self.keys.meta(lane), {}
        with self._connection.reaching():
            pipeline = self._connection.client.pipeline(transaction=False)
            for name, args in calls:
                pipeline.execute_command("EVALSHA", script(name).digest, 1, key, *args)
            for (name, args), reply in zip(calls, pipeline.execute(raise_on_error=False) if calls else [], strict=True):
                if isinstance(reply, NoScriptError):     # this one did not run, whatever the others did
                    reply = script(name).call(self._connection.client, key, *args)
                elif isinstance(reply, RedisError):
                    raise reply
                replies[name] = reply
        return replies

    def give_back(self, lane: int, worker: str, holds: Sequence[Hold]) -> int:
        return int(self._run("give_back", lane, *_holds(holds)))

    def store_retry(self, lane: int, hold: Hold, retry: Mapping[str, object]) -> bool:
        return bool(self._run("store_retry", lane, *hold, _json(retry)))

    def recover(self, lane: int, worker: str, held: Sequence[str]) -> int:
        return int(self._run("recover", lane, worker, *held))

    def still_held(self, lane: int, hold: Hold) -> bool:
        return bool(self._run("still_held", lane, *hold))

    # -- waking -----------------------------------------------------------------------------------------------------

    def wait_for_work(
        self, lanes: Sequence[int], pools: Sequence[str], worker: str, timeout_seconds: float,
    ) -> list[str]:
        control = [self.keys.of(lane, "ctl", worker) for lane in lanes]
        names = control + [self.keys.of(lane, "wake", pool) for lane in lanes for pool in pools]
        with self._connection.reaching():
            found = self._connection.blocking.blpop(names, timeout=min(max(timeout_seconds, 0.01), BLOCK_SECONDS))
            if found is None or found[0].decode() not in control:
                return []
            more = self._connection.client.lpop(found[0], MAX_CONTROL_MESSAGES) or []
        return [message.decode() for message in (found[1], *more) if message]

    def wake_worker(self, worker: str, lanes: Sequence[int], message: str = "") -> None:
        if not lanes:
            return
        key = self.keys.of(lanes[0], "ctl", worker)      # it waits on all its lanes at once
        with self._connection.reaching():
            pipeline = self._connection.client.pipeline(transaction=False)
            pipeline.rpush(key, message)
            pipeline.pexpire(key, CONTROL_TTL_MS)
            pipeline.execute()

    def wait_for_dispatch(self, timeout_seconds: float) -> bool:
        # A stream, not a list: every dispatcher hears of it, and none misses what came between two waits.
        block_ms = int(min(max(timeout_seconds, 0.01), BLOCK_SECONDS) * 1000)
        with self._connection.reaching():
            found = self._connection.blocking.execute_command(
                "XREAD", "BLOCK", block_ms, "STREAMS", self.keys.anywhere("dispatch"), self._seen_dispatch)
        if not found:
            return False
        streams = found.values() if isinstance(found, dict) else [entries for _, entries in found]
        self._seen_dispatch = next(iter(streams))[-1][0]
        return True

    def wake_dispatchers(self) -> None:
        key = self.keys.anywhere("dispatch")
        with self._connection.reaching():
            pipeline = self._connection.client.pipeline(transaction=False)
            pipeline.xadd(key, {b"w": b"1"}, maxlen=1, approximate=False)
            pipeline.pexpire(key, DISPATCH_TTL_MS)
            pipeline.execute()

    # -- knowing ----------------------------------------------------------------------------------------------------

    def report_worker(self, report: WorkerReport, ttl_us: int) -> None:
        now_us, index = self.now_us(), self.keys.anywhere("workers")
        key = self.keys.anywhere("worker", report.worker)
        with self._connection.reaching():
            pipeline = self._connection.client.pipeline(transaction=False)
            pipeline.set(key, _json(report._asdict()), px=max(1, ttl_us // 1000))
            pipeline.zadd(index, {report.worker: now_us + ttl_us})
            pipeline.zremrangebyscore(index, "-inf", now_us)
            pipeline.pexpire(index, DISPATCH_TTL_MS)
            pipeline.execute()

    def workers(self) -> list[WorkerReport]:
        with self._connection.reaching():
            names = self._connection.client.zrange(self.keys.anywhere("workers"), 0, -1)
            keys = [self.keys.anywhere("worker", name.decode()) for name in names]
            texts = self._connection.client.mget(keys) if keys else []
        reports = [report for text in texts if text and (report := _report(text))]
        return sorted(reports, key=lambda report: report.worker)

    def backlog(self, lane: int, pool: str, tenant: str | None = None) -> dict[str, int]:
        names = [] if tenant is None else [tenant.encode()]
        if tenant is None:
            with self._connection.reaching():
                places = self._connection.client.hscan_iter(self.keys.of(lane, "places", pool), count=CHUNK)
                names = [name for name, _ in places]
        counts: dict[str, int] = {}
        for start in range(0, len(names), CHUNK):
            part = names[start:start + CHUNK]
            found = self._run("backlog", lane, pool, *part)
            counts |= {name.decode(): count for name, count in zip(part, found, strict=True) if count > 0}
        return counts

    def running(self, lane: int, tenant: str) -> int:
        with self._connection.reaching():
            return int(self._connection.client.scard(self.keys.of(lane, "run", tenant)))

    def server_facts(self) -> dict[str, str]:
        with self._connection.reaching():
            client = self._connection.client
            info = client.info()
            try:
                policy = client.config_get("maxmemory-policy").get("maxmemory-policy", "unknown")
            except RedisError:                           # hosted servers often forbid CONFIG
                policy = info.get("maxmemory_policy", "unknown")
        return {
            "version": str(info.get("valkey_version") or info.get("redis_version", "")),
            "maxmemory_policy": policy.decode() if isinstance(policy, bytes) else str(policy),
            "replication_id": str(info.get("master_replid", "")), "mode": str(info.get("redis_mode", "")),
        }
