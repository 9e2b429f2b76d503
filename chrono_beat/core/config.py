"""All settings, their defaults, and what can be wrong with them. Defaults live here and nowhere else."""
from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import urlsplit

from chrono_beat.core.addresses import wrong_network
from chrono_beat.core.callback import wrong_secret, wrong_url
from chrono_beat.core.errors import MisconfiguredError, Problem

MAX_PARTITIONS = 4096
MAX_LANES = 256
SHORTEST_TOKEN = 16
REDIS_SCHEMES = ("redis", "rediss", "unix")
LEAST_ETA_SECONDS = 10.0
"""Seconds ahead below which no ETA goes through the database: it would cost more than it spares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The settings of one deployment (Django's ``CHRONO_BEAT`` in lower case).

    Args:
        redis_url: where the streams live; ``redis://``, ``rediss://`` or ``unix://``.
        key_prefix: first part of every Redis key.
        partitions: slices of the due index; fixed at the first migrate.
        lanes: slices of the Redis key space; fixed at the first migrate.
        horizon: seconds that are claimed ahead and held in the wheel.
        look_ahead_every: seconds between two scans of the due index.
        claim_batch: jobs claimed in one transaction.
        publish_batch: executions published in one script call.
        lease_ttl: seconds a delivery's lease lasts without renewal.
        renew_every: seconds between two renewals.
        partition_lease_ttl: seconds a partition's lease lasts without renewal.
        partition_renew_every: seconds between two renewals of partitions.
        skew_margin: seconds taken off every deadline that is worked out from another server's clock.
        start_window: seconds from its draw within which a delivery begins; a later one is given back or drawn anew, and
            pause, update, cancel and delete wait so long for what was drawn before them.
        stop_grace: seconds that a body in threads, greenlets or solo has to return by itself after it was cancelled or
            replaced; then its delivery is settled without it.
        reap_cap: reaps of one execution before it is dead-lettered.
        no_worker_after: seconds that an execution is kept whose task no worker knows.
        reap_every: seconds between two looks for expired leases.
        replace_grace: seconds that a run may still take when another one is to take its place (policy replace).
        audit_rate: open rows a second of which the audit asks whether Redis still has them; after a lost memory it
            asks as fast as it can.
        record_batch: outcomes recorded in one transaction.
        failure_window: seconds over which a tenant's share of failed runs is taken.
        failure_minimum: runs that must have ended within it to hold the tenant's retries back.
        retry_hold: seconds for which they are held.
        default_pool: name of the Celery queue that is drawn for jobs without a pool of their own.
        max_payload: bytes of args and kwargs together.
        allowed_tasks: shell-style patterns of task names that jobs may run.
        http_allowed_schemes: of the URLs that jobs may call; "https" and "http".
        http_allowed_hosts: shell-style patterns of the hosts that jobs may call.
        http_allowed_addresses: networks that may be called although they are not public, such as "10.1.0.0/16".
        default_tenant: tenant of jobs that name none.
        eta_threshold: seconds ahead from which on ``eta`` and ``countdown`` of any task wait in the database; None for
            those of tasks only that ask for it (``chrono_eta``).
        observe_beat: note what a `celery beat` with another scheduler sends, to compare it with shadows.
        retention_days: days for which finished executions are kept.
        alert_every: seconds between two messages of the same alert.
        alert_emails: addresses of operators; they are told of every alert.
        alert_url: URL that is told of every alert, too; None for none.
        alert_secrets: secrets with which these requests are signed, ``whsec_…``: one, and another while it is replaced.
        metrics_tokens: bearer tokens, any of which opens the page ``metrics``; without one there is no such page.
        metrics_tenants: tenants that metrics name; all others are one, "other".
        wiring: dotted name of the composition root.
    """

    redis_url: str = field(default="redis://127.0.0.1:6379/0", repr=False)       # may hold a password
    key_prefix: str = "chrono"
    partitions: int = 64
    lanes: int = 1
    horizon: float = 60.0
    look_ahead_every: float = 1.0
    claim_batch: int = 1000
    publish_batch: int = 100
    lease_ttl: float = 60.0
    renew_every: float = 20.0
    partition_lease_ttl: float = 5.0
    partition_renew_every: float = 1.0
    skew_margin: float = 0.5
    start_window: float = 2.0
    stop_grace: float = 30.0
    reap_cap: int = 5
    no_worker_after: float = 600.0
    reap_every: float = 1.0
    replace_grace: float = 30.0
    audit_rate: int = 1000
    record_batch: int = 1000
    failure_window: float = 300.0
    failure_minimum: int = 20
    retry_hold: float = 300.0
    default_pool: str = "chrono"
    max_payload: int = 262_144
    allowed_tasks: tuple[str, ...] = ("*",)
    http_allowed_schemes: tuple[str, ...] = ("https", "http")
    http_allowed_hosts: tuple[str, ...] = ("*",)
    http_allowed_addresses: tuple[str, ...] = ()
    default_tenant: str = "default"
    eta_threshold: float | None = None
    observe_beat: bool = False
    retention_days: int = 30
    alert_every: float = 900.0
    alert_emails: tuple[str, ...] = ()
    alert_url: str | None = field(default=None, repr=False)
    alert_secrets: tuple[str, ...] = field(default=(), repr=False)
    metrics_tokens: tuple[str, ...] = field(default=(), repr=False)
    metrics_tenants: int = 20
    wiring: str = "chrono_beat_django.wiring"


NAMES = tuple(f.name.upper() for f in fields(Config))
_AT_LEAST = {
    "partitions": 1, "lanes": 1, "horizon": 1, "look_ahead_every": 0.05, "claim_batch": 1, "publish_batch": 1, "lease_ttl": 1,
    "renew_every": 0.1, "partition_lease_ttl": 1, "partition_renew_every": 0.1, "skew_margin": 0, "start_window": 0.5,
    "stop_grace": 0.1, "reap_cap": 1, "reap_every": 0.05, "no_worker_after": 1, "replace_grace": 0, "record_batch": 1,
    "audit_rate": 1, "max_payload": 1,
    "failure_window": 1, "failure_minimum": 1, "retry_hold": 1, "retention_days": 1,
    "alert_every": 1, "metrics_tenants": 0, "eta_threshold": LEAST_ETA_SECONDS,
}
_AT_MOST = {"partitions": MAX_PARTITIONS, "lanes": MAX_LANES, "horizon": 600, "publish_batch": 1000, "claim_batch": 10_000,
            "metrics_tenants": 1_000}
_RELATIONS = (
    ("renew_every", "lease_ttl", 0.5, "a lease must outlive at least one failed renewal"),
    ("partition_renew_every", "partition_lease_ttl", 0.5, "a partition's lease must outlive at least one failed renewal"),
    ("skew_margin", "partition_lease_ttl", 0.5, "the margin must leave most of the partition's lease for publishing"),
    ("look_ahead_every", "horizon", 0.5, "the look-ahead must come round well before the horizon runs out"),
)


def _type_problem(name: str, value: object, default: object) -> str | None:
    if isinstance(default, tuple):
        if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) and v for v in value) or default and not value:
            return f"must be a list of {'one or more ' if default else ''}texts"
        if name == "http_allowed_schemes":
            return None if set(value) <= set(default) else f"may have {' and '.join(default)}"
        if name == "metrics_tokens" and any(len(token) < SHORTEST_TOKEN for token in value):
            return f"must be texts of {SHORTEST_TOKEN} characters or more that nobody can guess"
        if name == "alert_secrets":
            return next(filter(None, map(wrong_secret, value)), None)
        if name == "http_allowed_addresses":
            return next(filter(None, map(wrong_network, value)), None)
        return None
    if default is None and value is None:
        return None
    if isinstance(default, str) or name == "alert_url":
        if not isinstance(value, str) or not value:
            return "must be a text that is not empty"
        return _redis_problem(value) if name == "redis_url" else None
    if isinstance(default, bool):
        return None if isinstance(value, bool) else "must be True or False"
    wanted: tuple[type, ...] = (int,) if isinstance(default, int) else (int, float)
    if not isinstance(value, wanted) or isinstance(value, bool):
        return "must be a whole number" if wanted == (int,) else "must be a number of seconds"
    return None


def _redis_problem(url: str) -> str | None:
    """Say why no client can be made of a URL, None where one can. It is not repeated: it may hold a password."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "is no URL: a password in it must be percent-encoded, and the port a number"
    return None if parts.scheme in REDIS_SCHEMES else f"must begin with {', '.join(f'{one}://' for one in REDIS_SCHEMES)}"


def find_problems(settings: Mapping[str, Any]) -> list[Problem]:
    """Return everything that is wrong with a ``CHRONO_BEAT`` mapping; an empty list where it can work.

    Args:
        settings: upper-case names to values; what is absent has its default.
    """
    if not isinstance(settings, Mapping):
        return [Problem("CHRONO_BEAT", "must be a dict of settings")]
    problems: list[Problem] = []
    values: dict[str, Any] = {f.name: f.default for f in fields(Config)}
    for key, value in settings.items():
        name = str(key).lower()
        if str(key) not in NAMES:
            near = difflib.get_close_matches(str(key).upper(), NAMES, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(NAMES)}"
            problems.append(Problem(str(key), f"unknown setting{hint}", "unknown"))
            continue
        wrong = _type_problem(name, value, values[name])
        if wrong:
            problems.append(Problem(str(key), wrong))
            continue
        values[name] = value
        low, high = _AT_LEAST.get(name), _AT_MOST.get(name)
        if low is not None and value is not None and not value >= low:
            problems.append(Problem(str(key), f"must be at least {low}"))
        if high is not None and value > high:
            problems.append(Problem(str(key), f"must be at most {high}"))
    if not problems:
        for small, large, share, why in _RELATIONS:
            if values[small] > values[large] * share:
                limit = values[large] * share
                problems.append(Problem(small.upper(), f"must be at most {limit:g} ({share:g} of {large.upper()}): {why}"))
        if values["alert_url"] is not None:
            problems.extend(_alert_problems(values))
    return problems


def _alert_problems(values: Mapping[str, Any]) -> Iterator[Problem]:
    wrong = wrong_url(values["alert_url"], values["http_allowed_schemes"], values["http_allowed_hosts"],
                      values["http_allowed_addresses"])
    if wrong:
        yield Problem("ALERT_URL", wrong)
    if not values["alert_secrets"]:
        yield Problem("ALERT_SECRETS", "must hold a secret, since what goes to ALERT_URL is signed: whsec_ and 32 random "
                                       "bytes in base64")


def load(settings: Mapping[str, Any]) -> Config:
    """Build the Config of a ``CHRONO_BEAT`` mapping.

    Raises:
        MisconfiguredError: something in it can't work; the message lists every problem.
    """
    problems = find_problems(settings)
    if problems:
        raise MisconfiguredError("CHRONO_BEAT: " + "; ".join(f"{p.field}: {p.message}" for p in problems))
    values: dict[str, Any] = {key.lower(): tuple(v) if isinstance(v, list) else v for key, v in settings.items()}
    return Config(**values)
