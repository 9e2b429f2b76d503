"""Alerts: what services notice, written down once and told.

Findings of this process wait in memory, merged, until the next step writes them down. Every process of ``chrono run``
should have this role: what another process notices is heard there alone. Who tells an alert is settled in the database,
so however many processes run, each message goes out once, but for a crash: **at least once**, since one that dies after
sending and before noting it is followed by another that sends it again.

Each receiver has a line and a receipt of its own: one that does not answer, or fails, delays no message and no reminder to
another.

Known weakness: findings of the last second die with the process.
"""
from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from chrono_beat import telemetry
from chrono_beat.core import alerts
from chrono_beat.core.alerts import Finding, OpenAlert, Over, Receipt
from chrono_beat.core.clock import Clock
from chrono_beat.core.config import Config
from chrono_beat.core.errors import ChronoError, StoreUnavailable
from chrono_beat.ports import AlertSender, AlertStore, AlertWays, JobStore
from chrono_beat.services.lines import Lines
from chrono_beat.services.service import Service

logger = logging.getLogger(__name__)

LOOK_EVERY_US = 10_000_000
UNOWNED_AFTER_US = 30_000_000
"""Partitions change hands within seconds; without an owner for so long they are an alert."""

WAIT_SECONDS = 1.0
"""Receivers that take longer are told while the next alerts are looked for."""

MAX_TELLINGS = 1_000
"""Alerts that are on their way at the same time."""

DRAIN_WAIT_US = 100_000
STEP_US = 5_000_000
"""After so long a step lets the rest wait for the next one."""


class Inbox:
    """What was noticed and is not written down yet; its `observe` is an observer of events.

    Args:
        skew_margin_us: by how much clocks may differ.
        host: name of this host.
    """

    def __init__(self, skew_margin_us: int, host: str = "") -> None:
        self._margin_us = skew_margin_us
        self._host = host
        self._lock = threading.Lock()
        self._waiting: dict[Over, Finding | Over] = {}

    def observe(self, event: str, fields: Mapping[str, Any]) -> None:
        """Keep what an event means; most cost one look into a dict."""
        for found in alerts.noticed(event, fields, self._margin_us, self._host):
            self.add(found)

    def add(self, found: Finding | Over) -> None:
        """Keep a finding."""
        with self._lock:
            key = Over(found.kind, found.tenant, found.subject)
            if key not in self._waiting and len(self._waiting) >= alerts.MAX_WAITING:
                key, found = Over("overflow", "", ""), Finding("overflow", "", "", 1, {})
            self._waiting[key] = alerts.merged(self._waiting.get(key), found)

    def take(self) -> list[Finding | Over]:
        """Return what waits, and forget it."""
        with self._lock:
            taken, self._waiting = self._waiting, {}
        return list(taken.values())

    def put_back(self, taken: Sequence[Finding | Over]) -> None:
        """Keep what could not be written down, before what came since."""
        since = self.take()
        for found in (*taken, *since):
            self.add(found)


@dataclass
class Telling:
    """A claimed alert on its way.

    Args:
        alert: what.
        until_us: when those that have not answered count as failed, on the monotonic clock.
        receipts: how far each of its receivers is.
        due: those that are told now.
        sent: of these, by name: whether that went well; no entry before.
    """

    alert: OpenAlert
    until_us: int
    receipts: dict[str, Receipt] = field(default_factory=dict)
    due: list[AlertSender] = field(default_factory=list)
    sent: dict[str, bool] = field(default_factory=dict)


class Alerts(Service):
    """Writes findings down, closes what is over, tells what is to be told.

    Args:
        jobs: for the database's clock and the partitions.
        store: where alerts are kept.
        ways: the receivers of an alert, and how each is told.
        clock: the host's clocks.
        config: quiet time, skew margin.
    """

    def __init__(
        self, jobs: JobStore, store: AlertStore, ways: AlertWays, clock: Clock, config: Config,
    ) -> None:
        super().__init__("alerts", clock)
        self.inbox = Inbox(round(config.skew_margin * 1_000_000), socket.gethostname())
        self._jobs = jobs
        self._store = store
        self._ways = ways
        self._every_us = round(config.alert_every * 1_000_000)
        self._next_look_us = 0
        self._unowned_since_us: int | None = None
        self._unsubscribe: Callable[[], None] | None = None
        self._tellings: list[Telling] = []
        self._lines = Lines(lambda: self._at_end and self._at_end())

    def start(self, at_end: Callable[[], object] | None = None) -> None:
        """Listen, and start the thread."""
        self._unsubscribe = telemetry.subscribe(self.inbox.observe)
        super().start(at_end)

    def step(self, now_us: int) -> int:
        """Write down what was noticed; tell for a few seconds at most."""
        wall_us = self._jobs.now_us()
        if now_us >= self._next_look_us:
            self._look_at_partitions(now_us, wall_us)
            self._store.close_quiet_alerts(wall_us - alerts.QUIET_CLOSES_US, wall_us)
            self._next_look_us = now_us + LOOK_EVERY_US
        self._write_down(wall_us)
        while self.clock.monotonic_us() - now_us < STEP_US and not self._stopping.is_set():
            begun = self._begin_some()
            self._lines.wait(WAIT_SECONDS)
            self._note()
            if not begun:
                break
        return 1_000_000

    def _begin_some(self) -> int:
        begun = 0
        while len(self._tellings) < MAX_TELLINGS:
            alert = self._store.claim_alert(self._jobs.now_us(), alerts.CLAIM_US)
            if alert is None:
                break
            self._begin(alert)
            begun += 1
        return begun

    def drain(self, now_us: int) -> int | None:
        """Write down the last findings, which others tell, and what becomes of those that are on their way."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        self._write_down(self._jobs.now_us())
        self._note()
        return DRAIN_WAIT_US if self._tellings else None

    def _write_down(self, wall_us: int) -> None:
        taken = self.inbox.take()
        if not taken:
            return
        try:
            self._store.note_alerts(taken, wall_us)
        except StoreUnavailable:
            self.inbox.put_back(taken)
            raise

    def _look_at_partitions(self, now_us: int, wall_us: int) -> None:
        unowned = sum(not lease.owner or lease.expires_us <= wall_us for lease in self._jobs.partitions())
        if not unowned:
            if self._unowned_since_us is not None or not self._next_look_us:
                self.inbox.add(Over("no_owner", "", ""))
            self._unowned_since_us = None
            return
        if self._unowned_since_us is None:
            self._unowned_since_us = now_us
        if now_us - self._unowned_since_us >= UNOWNED_AFTER_US:
            self.inbox.add(Finding("no_owner", "", "", 1, {"partitions": unowned}))

    def _begin(self, alert: OpenAlert) -> None:
        """Let the receivers that are to be told be told, side by side."""
        telling = Telling(alert, self.clock.monotonic_us() + alerts.TELL_US)
        now_us = self._jobs.now_us()
        for sender in self._ways(alert):
            telling.receipts[sender.name] = alert.receipt(sender.name)
            if telling.receipts[sender.name].is_due(alert.count, now_us):
                telling.due.append(sender)
        for sender in telling.due:
            self._lines.add(sender.name, partial(self._send, telling, sender))
        self._tellings.append(telling)

    def _send(self, telling: Telling, sender: AlertSender) -> None:
        if self.clock.monotonic_us() < telling.until_us:         # else it counts as failed already
            telling.sent[sender.name] = _sent(telling.alert.to(sender.name), sender)

    def _note(self) -> None:
        """Write down what became of those whose receivers have all answered, or whose time is over."""
        for telling in list(self._tellings):
            late = self.clock.monotonic_us() >= telling.until_us
            if not late and len(telling.sent) < len(telling.due):
                continue
            alert, now_us = telling.alert, self._jobs.now_us()
            for sender in telling.due:
                if sender.name not in telling.sent:
                    logger.warning("alert %s (%s): no answer of %s", alert.id, alert.kind, sender.name)
                telling.receipts[sender.name] = alert.receipt(sender.name).after(
                    alert.count, now_us, self._every_us, sent=telling.sent.get(sender.name, False))
            self._store.alert_told(alert, telling.receipts, now_us)
            self._tellings.remove(telling)


def _sent(alert: OpenAlert, sender: AlertSender) -> bool:
    try:
        sender.send(alert)
    except Exception as error:
        # A library's text may repeat an address or a URL with a secret; our own does not.
        why = error if isinstance(error, ChronoError) else type(error).__name__
        logger.warning("alert %s (%s) could not be sent by %s: %s; attempt %s of %s", alert.id, alert.kind,
                       sender.name, why, alert.attempts + 1, alerts.MAX_ATTEMPTS)
        return False
    return True
