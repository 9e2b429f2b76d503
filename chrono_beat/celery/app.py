"""``ChronoBeat(app)``: what a Celery app gets, and where it finds its settings and its Redis.

Nothing is read when ``ChronoBeat(app)`` is written: the line stands in the project's ``celery.py``, where Django may
not be ready and ``config_from_object`` may come later. Touching ``app.conf`` or ``app.amqp`` there would freeze the
configuration before the project's settings are in it. So the class of ``app.amqp`` is replaced by name, a bootstep is
added, and the composition root (a module with ``config()``, ``queue()`` and ``services(roles)``) is imported at first
use.
"""
from __future__ import annotations

import os
import weakref
from importlib import import_module
from typing import TYPE_CHECKING, Any

from celery.utils.imports import symbol_by_name

from chrono_beat.celery import http_task, observer, traced_runs
from chrono_beat.celery.amqp import intercepting
from chrono_beat.celery.eta import revoking
from chrono_beat.celery.worker.metrics_step import OPTIONS, MetricsStep
from chrono_beat.celery.worker.step import ChronoStep
from chrono_beat.core.config import Config
from chrono_beat.core.errors import MisconfiguredError
from chrono_beat.ports import QueueStore

if TYPE_CHECKING:
    from celery import Celery

    from chrono_beat.celery.worker.io import WorkerIO

DEFAULT_WIRING = Config.__dataclass_fields__["wiring"].default


class ChronoBeat:
    """Let an app's workers draw chrono_beat's pools, and let its tasks retry through the due index.

    Args:
        app: the Celery app. The order relative to ``config_from_object`` and ``autodiscover_tasks`` does not matter.
        wiring: dotted name of the composition root; by default ``chrono_beat_django.wiring``, or the module that
            ``CHRONO_BEAT["WIRING"]`` names there.

    Raises:
        MisconfiguredError: something has used ``app.amqp`` already.
    """

    def __init__(self, app: Celery, *, wiring: str | None = None) -> None:
        if getattr(app, "chrono_beat", None) is None:
            _prepare(app)
        self.app = app
        self.wiring = wiring
        self.worker: WorkerIO | None = None
        self._root: Any = None
        self._config: Config | None = None
        self._queue: QueueStore | None = None
        self._queue_pid = 0
        app.chrono_beat = self
        _alive.add(self)

    @property
    def root(self) -> Any:
        """The composition root, imported at first use."""
        if self._root is None:
            root = _load(self.wiring or DEFAULT_WIRING)
            if self.wiring is None and root.config().wiring != DEFAULT_WIRING:
                root = _load(root.config().wiring)
            self._root = root
        return self._root

    @property
    def config(self) -> Config:
        """The settings, read at first use."""
        if self._config is None:
            self._config = self.root.config()
        return self._config

    @property
    def queue(self) -> QueueStore:
        """This process' queue for what a worker does. A forked child gets one of its own: the parent's sockets and locks are
        not touched there."""
        if self._queue is None:
            self._queue = self.new_queue() if self._queue_pid or self._has_two_queues else self.root.queue()
            self._queue_pid = os.getpid()
        return self._queue

    @property
    def sending_queue(self) -> QueueStore:
        """The queue that tasks are sent with: in a worker its own, elsewhere that for calls that somebody waits for."""
        in_worker = self.worker is not None or self.app.current_worker_task is not None
        queue: QueueStore = self.queue if in_worker or not self._has_two_queues else self.root.queue()
        return queue

    @property
    def _has_two_queues(self) -> bool:
        """Whether the composition root has one queue for calls that somebody waits for, and makes others for workers."""
        return hasattr(self.root, "new_queue")

    def new_queue(self) -> QueueStore:
        """Return a queue with connections of its own: for a worker, for a native thread beside gevent, whose sockets
        belong to one thread, and for a forked child. A composition root may offer ``new_queue()``; else one is built from
        the settings."""
        make = getattr(self.root, "new_queue", None)
        if make is not None:
            return make()
        from chrono_beat.redis.queue import RedisQueueStore

        return RedisQueueStore(self.config.redis_url, self.config)

    def _start_anew_in_child(self) -> None:
        # Whatever another thread of the parent held or was sending at the fork stays behind, unused.
        self.worker = None
        self._queue = None


_alive: weakref.WeakSet[ChronoBeat] = weakref.WeakSet()


def apps() -> list[Celery]:
    """Return the apps of this process that have ChronoBeat."""
    return [beat.app for beat in list(_alive)]


def _forget_the_parent() -> None:
    for beat in list(_alive):
        beat._start_anew_in_child()


os.register_at_fork(after_in_child=_forget_the_parent)


def _prepare(app: Celery) -> None:
    if "amqp" in app.__dict__:
        raise MisconfiguredError(
            "ChronoBeat(app) comes too late: app.amqp is in use already; write it directly below app = Celery(…)"
        )
    app.amqp_cls = intercepting(symbol_by_name(app.amqp_cls))
    app.control_cls = revoking(symbol_by_name(app.control_cls))
    app.__dict__.pop("control", None)                # made anew at its next use
    app.steps["consumer"].add(ChronoStep)
    app.steps["worker"].add(MetricsStep)
    app.user_options["worker"].update(OPTIONS)
    http_task.register(app)
    traced_runs.watch()
    observer.watch()


def _load(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise
        raise MisconfiguredError(
            f'WIRING: there is no module "{name}" (the composition root, with config() and queue())'
        ) from error
