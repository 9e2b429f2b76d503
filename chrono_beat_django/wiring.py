"""The composition root: which store, which queue and which services this process uses.

Everything is built at first use, from the settings, and kept for the process; a child that was forked builds its own,
since sockets must not be shared. Commands, the beat scheduler and the worker's bootstep load this module by its dotted
name (setting ``WIRING``); a project that wants other parts writes a module with the same functions.
"""
from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import django.db
from django.apps import apps
from django.db import connections, router

from chrono_beat import tracing
from chrono_beat.core.callback import HttpTarget
from chrono_beat.core.config import Config
from chrono_beat.core.errors import MisconfiguredError, QueueUnavailable, StoreUnavailable
from chrono_beat.host_clock import SystemClock
from chrono_beat.ports import AlertStore, JobStore, MessageSender, QueueStore
from chrono_beat_django import conf

if TYPE_CHECKING:
    from chrono_beat.services.service import Runner, Service

_parts: dict[str, Any] = {}
_overridden: dict[str, Any] = {}
_lock = threading.RLock()


def _start_anew_in_child() -> None:
    global _lock
    _lock = threading.RLock()                   # another thread of the parent may have held it
    _parts.clear()


os.register_at_fork(after_in_child=_start_anew_in_child)


def config() -> Config:
    """Return this deployment's settings.

    Raises:
        MisconfiguredError: they can't work, or the Django application is not installed.
    """
    if apps.ready and not apps.is_installed("chrono_beat_django"):
        raise MisconfiguredError('INSTALLED_APPS: add "chrono_beat_django"; without it there are no tables to read')
    found: Config = _overridden.get("config") or conf.config()
    return found


def queue() -> QueueStore:
    """Return this process' Redis side for calls that somebody waits for; they fail soon where Redis does not answer."""
    def build() -> QueueStore:
        from chrono_beat.redis.queue import RedisQueueStore
        from chrono_beat.redis.silence import Silence

        return RedisQueueStore(config().redis_url, config(), Silence())

    return _part("queue", build)


def new_queue() -> QueueStore:
    """Return a Redis side with connections of its own, for dispatchers and workers: it waits longer for an answer."""
    from chrono_beat.redis.queue import RedisQueueStore

    if "queue" in _overridden:
        return _overridden["queue"]
    return RedisQueueStore(config().redis_url, config())


def store() -> JobStore:
    """Return the database side."""
    def build() -> JobStore:
        from chrono_beat_django.models import Job
        from chrono_beat_django.store import DjangoJobStore

        return DjangoJobStore(router.db_for_write(Job))

    return _part("store", build)


def alert_store() -> AlertStore:
    """Return where alerts are kept."""
    from chrono_beat_django.models import Alert
    from chrono_beat_django.store.alerts import DjangoAlertStore

    return DjangoAlertStore(router.db_for_write(Alert), _above("alert_senders").closed)


def http_target(job_id: str, execution_id: str) -> HttpTarget | None:
    """Return what a worker needs to call the HTTP target of a job; None where the job has none.

    Raises:
        StoreUnavailable: the database could not be asked.
    """
    from chrono_beat_django.store import http_targets

    return http_targets.read(job_id, execution_id)


ROLES = ("dispatch", "record", "reap", "audit", "keep", "relay", "alert")


def services(
    roles: Sequence[str] = ROLES, *, name: str | None = None, sender: MessageSender | None = None,
) -> Runner:
    """Return the services of these roles, not started yet.

    Args:
        roles: some of ROLES.
        name: a name that no other process has, also none that died lately; by default host, process id and a
            random part.
        sender: the way to the user's broker; without one there is no relay.

    Raises:
        MisconfiguredError: the database is not migrated, or was migrated with other numbers of partitions or lanes.
        ValueError: a role is unknown.
    """
    # Here and not above, since workers load this module, too, and run none of these.
    from chrono_beat.services.alerts import Alerts
    from chrono_beat.services.audit import Audit
    from chrono_beat.services.dispatcher import Dispatcher
    from chrono_beat.services.failures import FailureWatch
    from chrono_beat.services.keeper import Keeper
    from chrono_beat.services.norms import Norms
    from chrono_beat.services.reaper import Reaper
    from chrono_beat.services.recorder import Recorder
    from chrono_beat.services.relay import Relay
    from chrono_beat.services.repairs import Repairs
    from chrono_beat.services.service import Runner
    from chrono_beat.services.watch import Watch
    from chrono_beat.services.zones import ZoneWatch

    unknown = [role for role in roles if role not in ROLES]
    if unknown or not roles:
        raise ValueError(f"roles: {', '.join(unknown) or 'none'} given; known are {', '.join(ROLES)}")
    _check_layout()
    member = name or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
    clock, jobs_side, redis_side, settings = SystemClock(), store(), new_queue(), config()
    if tracing.installed():
        redis_side = tracing.TracedQueue(redis_side)
    made: dict[str, Sequence[Service]] = {}
    owned: Callable[[], Sequence[int]] | None = None
    if "dispatch" in roles:
        dispatcher = Dispatcher(jobs_side, redis_side, clock, settings, member=member)
        made["dispatch"], owned = dispatcher.services, dispatcher.owned
    if "audit" in roles:
        # Beside a dispatcher it looks after that one's partitions, so that not every member looks at all of them.
        made["audit"] = [
            Audit(jobs_side, redis_side, clock, settings, partitions=owned,
                  never_began=lambda execution_id: eta().ended_by_audit(execution_id)),
            *(part(jobs_side, redis_side, clock, settings, partitions=owned) for part in (Repairs, Watch))]
    if "keep" in roles:
        made["keep"] = [Keeper(jobs_side, clock, settings), FailureWatch(jobs_side, clock, settings),
                        Norms(jobs_side, clock), ZoneWatch(zone_data().Work(), clock)]
    if "reap" in roles:
        made["reap"] = [Reaper(redis_side, clock, settings, jobs_side)]
    if "relay" in roles and sender is not None:
        made["relay"] = [Relay(jobs_side, redis_side, sender, clock, settings, member=member)]
    if "record" in roles:
        made["record"] = [Recorder(jobs_side, redis_side, clock, settings, reader=member)]
    if "alert" in roles:
        senders = _above("alert_senders")
        made["alert"] = [Alerts(jobs_side, alert_store(), senders.ways(settings), clock, settings)]
    # The order in which they stop: who fires first, who writes down what became of it, and what of it is an alert, last.
    return Runner([service for part in made.values() for service in part], clock, at_thread_end=connections.close_all)


def _check_layout() -> None:
    from chrono_beat_django.models import Job
    from chrono_beat_django.store import layout

    stored = layout.read(router.db_for_write(Job))
    if stored == (0, 0):
        raise MisconfiguredError("the database has no tables of chrono_beat yet: run manage.py migrate")
    if stored != (config().partitions, config().lanes):
        raise MisconfiguredError(
            f"CHRONO_BEAT: the database was migrated with PARTITIONS {stored[0]} and LANES {stored[1]}, "
            f"the settings say {config().partitions} and {config().lanes}: set them as they were"
        )


def now_us() -> int:
    """Return the instant that plans are made from: the database's clock, in microseconds since the epoch."""
    clock: Callable[[], int] = _overridden.get("now_us") or store().now_us
    return clock()


def wake_dispatchers() -> None:
    """Make the dispatchers look at the due index at once; where Redis is away they look for themselves each second."""
    try:
        queue().wake_dispatchers()
    except QueueUnavailable:
        pass


def wait(seconds: float) -> None:
    """Let a control call wait."""
    (_overridden.get("wait") or time.sleep)(seconds)


def jobs() -> Any:
    """Return the functions on jobs, :mod:`chrono_beat_django.jobs`."""
    return _above("jobs")


def eta() -> Any:
    """Return what lets Celery messages wait in the database, :mod:`chrono_beat_django.eta`."""
    return _above("eta")


def executions() -> Any:
    """Return the functions that find executions, :mod:`chrono_beat_django.executions`."""
    return _above("executions")


def dead_letters() -> Any:
    """Return the functions on dead letters, :mod:`chrono_beat_django.dead_letters`."""
    return _above("dead_letters")


def alerts() -> Any:
    """Return the functions on alerts, :mod:`chrono_beat_django.alerts`."""
    return _above("alerts")


def keys() -> Any:
    """Return the functions on API keys, :mod:`chrono_beat_django.keys`."""
    return _above("keys")


def tenants() -> Any:
    """Return the functions on tenants, :mod:`chrono_beat_django.tenants`."""
    return _above("tenants")


def sync(app: Any, *, actor: str = "sync", prune: bool = True) -> Any:
    """Bring the jobs that the code declares into the database; see :func:`chrono_beat_django.sync.sync`."""
    return _above("sync").sync(app, actor=actor, prune=prune)


def overview() -> Any:
    """Return what says how the deployment stands at this moment, :mod:`chrono_beat_django.overview`."""
    return _above("overview")


def forecasting() -> Any:
    """Return what counts executions to come, :mod:`chrono_beat_django.forecasting`."""
    return _above("forecasting")


def zone_data() -> Any:
    """Return what moves plans to the zone data in use, :mod:`chrono_beat_django.zone_data`."""
    return _above("zone_data")


def importing() -> Any:
    """Return what takes over other schedulers' entries, :mod:`chrono_beat_django.importing`."""
    return _above("importing")


def shadowing() -> Any:
    """Return what lets shadows go live, :mod:`chrono_beat_django.shadowing`."""
    return _above("shadowing")


def observing() -> Any:
    """Return where another beat notes what it sends, :mod:`chrono_beat_django.observing`."""
    return _above("observing")


def deployment_figures() -> Any:
    """Return figures of the whole deployment, for a thread that ends after it; see
    :func:`chrono_beat_django.dashboard.deployment.figures`."""
    try:
        return _above("dashboard.deployment").figures()
    finally:
        connections.close_all()


def examine() -> Any:
    """Return what is wrong with this deployment; see :func:`chrono_beat_django.doctor.examine`."""
    return _above("doctor").examine()


def database_trouble(error: BaseException) -> str | None:
    """Say what an error of the database means for somebody at a prompt; None where it is no trouble that is known."""
    if isinstance(error, StoreUnavailable):
        return (error.__cause__ and database_trouble(error.__cause__)) or f"the database does not answer: {error}"
    if not isinstance(error, django.db.DatabaseError | django.db.InterfaceError):
        return None
    text = " ".join(str(error).split())
    cause = getattr(error.__cause__, "sqlstate", None)
    if cause in ("42P01", "42703") or text.startswith(("no such table", "no such column")):
        return f"the database has not the tables of this release: run manage.py migrate ({text})"
    return f"the database does not answer: {text}" if isinstance(
        error, django.db.OperationalError | django.db.InterfaceError) else None


def _above(name: str) -> Any:
    """Import a module that stands above this one, at the call.

    The commands of ``chrono_beat`` know Django's side by the name of this module alone, so it has to hand on what they
    call, which itself is built on this.
    """
    return import_module(f"{__package__}.{name}")


def _part(name: str, build: Callable[[], Any]) -> Any:
    if name in _overridden:
        return _overridden[name]
    with _lock:
        if name not in _parts:
            _parts[name] = build()
        return _parts[name]


def forget() -> None:
    """Let go of what was built, so that the next use builds anew from the settings of then."""
    with _lock:
        _parts.clear()


@contextmanager
def override(**parts: Any) -> Iterator[None]:
    """Put other parts in place within the block, for tests.

    Args:
        parts: ``config``, ``queue``, ``store``, ``now_us`` (a function without arguments), ``wait`` (instead of sleeping).
    """
    unknown = parts.keys() - {"config", "queue", "store", "now_us", "wait"}
    if unknown:
        raise TypeError(f"no such part: {', '.join(sorted(unknown))}")
    before = dict(_overridden)
    _overridden.update(parts)
    try:
        yield
    finally:
        _overridden.clear()
        _overridden.update(before)
