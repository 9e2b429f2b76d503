"""``celery -A proj beat -S chrono``: the services inside Celery's own beat process, for those who start beat already.

Beat calls :meth:`ChronoScheduler.tick` in a loop and sleeps for what it returns. All the work is done by the services'
own threads, so a tick only looks whether they are well and asks to be called again in a second.
"""
from __future__ import annotations

import logging
from typing import Any

from celery.beat import Scheduler

from chrono_beat.celery.relay_sender import CelerySender

logger = logging.getLogger(__name__)

TICK_SECONDS = 1.0


class ChronoScheduler(Scheduler):
    """A drop-in scheduler: the stored jobs instead of ``beat_schedule``, shared with every other dispatcher.

    Entries of ``beat_schedule`` are not run; a warning names them.

    Raises:
        RuntimeError: the app has no chrono_beat, or the services cannot be kept running; beat then ends, so that
            whatever watches the process starts it anew.
    """

    def __init__(self, app: Any, schedule: Any = None, max_interval: float | None = None, Producer: Any = None,
                 lazy: bool = False, sync_every_tasks: int | None = None, **kwargs: Any) -> None:
        self._runner: Any = None
        super().__init__(app, {}, TICK_SECONDS, Producer, lazy, sync_every_tasks, **kwargs)

    def setup_schedule(self) -> None:
        """Start the services; Celery calls this only where the scheduler is really to run."""
        extension = getattr(self.app, "chrono_beat", None)
        if extension is None:
            raise RuntimeError("the Celery app has no chrono_beat: add ChronoBeat(app) where it is made")
        ignored = sorted(self.app.conf.beat_schedule or {})
        if ignored:
            logger.warning("beat_schedule is not run by chrono_beat; still in it: %s", ", ".join(ignored))
        self._runner = extension.root.services(sender=CelerySender(self.app))
        self._runner.start()

    def tick(self, *_: Any, **__: Any) -> float:
        """Say when to be called again.

        Returns:
            Seconds.
        """
        if self._runner is not None and self._runner.failed():
            raise RuntimeError("a service of chrono_beat could not be kept running; see the log")
        return TICK_SECONDS

    def close(self) -> None:
        """Stop the services in order; partitions are handed over before."""
        if self._runner is not None:
            self._runner.stop()
            self._runner = None

    def sync(self) -> None:
        """Do nothing: what is stored is stored already."""

    @property
    def info(self) -> str:
        """Return the line that beat prints at its start."""
        return "    . jobs -> the Django database, shared with every dispatcher"
