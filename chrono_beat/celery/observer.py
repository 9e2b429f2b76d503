"""What a ``celery beat`` with another scheduler sends, noted so that shadows can be held against it.

With ``CHRONO_BEAT["OBSERVE_BEAT"]`` the process of beat gets an observer when it starts. It stands around
``Scheduler.apply_async``, which Celery's own scheduler, django-celery-beat's and redbeat's all send through: the message
itself does not say which entry it comes from, and a failed attempt publishes none. Beat is not held up: what was sent
goes to a thread of its own, which writes it to the database every few seconds. Nothing here may end beat.

The observer says up to which instant it has noted everything. Outside such spans nothing is known, so a beat that was
killed, or a database that was away for long, leaves a gap and no false alarm. A message that is being sent ends the span
until it is known whether it was sent: a signal that ends beat can come in between.
"""
from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from celery import signals

from chrono_beat.core.shadow import Fire

logger = logging.getLogger(__name__)

NOTE_EVERY_SECONDS = 5.0
MAX_WAITING = 10_000
"""Fires held while the database is away; beyond it they are dropped, and the watch begins anew."""

CLOSE_SECONDS = 5.0
"""How long the end of beat waits for the last fires to be written."""


class Noted(NamedTuple):
    """What one note says.

    Args:
        watch: number of the watch that it goes on with; None to begin one.
        scheduler: class of the scheduler.
        began_us: since when everything was seen, in microseconds since the epoch by the database's clock.
        until_us: up to when.
        fires: what was sent, the oldest first.
        ended: beat was stopped then, so nothing is sent after it.
    """

    watch: int | None
    scheduler: str
    began_us: int
    until_us: int
    fires: tuple[Fire, ...]
    ended: bool = False


class Notebook(Protocol):
    """Where fires are written: :mod:`chrono_beat_django.observing`."""

    def now_us(self) -> int:
        """Return the database's clock, in microseconds since the epoch."""

    def note(self, noted: Noted) -> int:
        """Write in one transaction; returns the number of the watch."""


class Observer:
    """Keeps what was sent until it is written.

    Args:
        notebook: returns where to write; called in the thread that writes.
        scheduler: class of the scheduler, for people.
        monotonic: seconds of a clock that nobody sets.
    """

    def __init__(
        self, notebook: Callable[[], Notebook], scheduler: str, *, monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._notebook, self._scheduler, self._monotonic = notebook, scheduler, monotonic
        self._lock = threading.Lock()
        self._waiting: list[tuple[float, str, str, str]] = []
        self._began = monotonic()
        self._sending: float | None = None
        self._watch: int | None = None
        self._failing = False
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch, once."""
        if self._thread is None:
            self._began = self._monotonic()
            self._thread = threading.Thread(target=self._write_on, name="chrono-beat-observer", daemon=True)
            self._thread.start()

    def sending(self) -> None:
        """Be sure of nothing from now on, until `sent` or `not_sent`."""
        with self._lock:
            self._sending = self._monotonic()

    def not_sent(self) -> None:
        """Go on, since the message failed."""
        with self._lock:
            self._sending = None

    def sent(self, entry: Any) -> None:
        """Note that the message of an entry has been sent just now."""
        name, task = str(entry.name), str(entry.task)
        with self._lock:
            if len(self._waiting) >= MAX_WAITING:
                self._waiting.clear()
                self._watch, self._began = None, self._monotonic()
                logger.warning("what beat sent could not be written for too long: it is watched anew from now on")
            # Under the lock, so that a note that says "up to now" has all that came before.
            self._waiting.append((self._monotonic(), origin_of(entry), name, task))
            self._sending = None

    def write(self, *, ended: bool = False) -> bool:
        """Write what waits; returns whether that went well. Otherwise it is kept for the next time.

        Args:
            ended: beat has been stopped, so this is the last of it.
        """
        with self._lock:
            taken, watch, began = tuple(self._waiting), self._watch, self._began
            ended = ended and self._sending is None
            until = self._monotonic() if self._sending is None else max(self._sending, began)
        try:
            notebook = self._notebook()
            # Instants are the database's: this host's clock may be off by more than the schedulers differ.
            zero_us = notebook.now_us() - round(self._monotonic() * 1e6)
            number = notebook.note(Noted(
                watch, self._scheduler, zero_us + round(began * 1e6), zero_us + round(until * 1e6),
                tuple(Fire(zero_us + round(at * 1e6), *who) for at, *who in taken), ended))
        except Exception as error:
            if not self._failing:
                logger.warning("what beat sends cannot be written, and is kept until it can: %s", error)
            self._failing = True
            return False
        self._failing = False
        with self._lock:
            if self._began == began:
                self._watch = number
                del self._waiting[:len(taken)]
        return True

    def close(self) -> None:
        """Write the last of it, unless that takes too long."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _write_on(self) -> None:
        while not self._ending.wait(NOTE_EVERY_SECONDS):
            self.write()
        self.write(ended=True)


def origin_of(entry: Any) -> str:
    """Return an entry of a running beat as an import names it."""
    modules = {base.__module__.partition(".")[0] for base in type(entry).__mro__}
    if "django_celery_beat" in modules:
        return f"django_celery_beat:{entry.model.pk}"
    return f"{'redbeat' if 'redbeat' in modules else 'beat_schedule'}:{entry.name}"


def observe(scheduler: Any, observer: Observer) -> None:
    """Let an observer see what a scheduler sends, from its first tick on: a redbeat that stands by sends nothing."""
    send, tick, close = scheduler.apply_async, scheduler.tick, scheduler.close

    def apply_async(entry: Any, *args: Any, **kwargs: Any) -> Any:
        observer.sending()
        try:
            result = send(entry, *args, **kwargs)
        except Exception:
            observer.not_sent()
            raise
        try:
            observer.sent(entry)
        except Exception:
            logger.exception("an entry was sent and could not be noted")
        return result

    def first_tick(*args: Any, **kwargs: Any) -> Any:
        scheduler.tick = tick
        observer.start()
        return tick(*args, **kwargs)

    def closing() -> Any:
        try:
            return close()
        finally:
            observer.close()

    scheduler.apply_async, scheduler.tick, scheduler.close = apply_async, first_tick, closing


def watch() -> None:
    """Look at each beat that starts in this process: is it to be observed?"""
    signals.beat_init.connect(_begun, weak=False, dispatch_uid="chrono_beat.observer")


def _begun(sender: Any = None, **kwargs: Any) -> None:
    from chrono_beat.celery.beat import ChronoScheduler  # here, so that workers need not load Celery's beat

    extension = getattr(getattr(sender, "app", None), "chrono_beat", None)
    try:
        if extension is None or isinstance(sender.scheduler, ChronoScheduler) or not extension.config.observe_beat:
            return
        kind = type(sender.scheduler)
        observe(sender.scheduler, Observer(lambda: extension.root.observing(), f"{kind.__module__}.{kind.__qualname__}"))
    except Exception:
        logger.exception("what beat sends is not observed")
    else:
        logger.info("what beat sends is noted, to be compared by: chrono shadow report")
