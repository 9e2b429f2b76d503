"""Alerts: what services notice, written down once and told.

Findings of this process wait in memory, merged, until the next step writes them down. Every process of ``chrono run``
should have this role: what another process notices is heard there alone. Who tells an alert is settled in the database,
so however many processes run, each message goes out once, but for a crash: **at least once**, since one that dies after
sending and before noting it is followed by another that sends it again.

Known weakness: findings of the last second die with the process. A sender that does not answer holds up the messages
behind it for a few seconds; no other service waits for this one.
"""
from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chrono_beat import telemetry
from chrono_beat.core import alerts
from chrono_beat.core.alerts import Finding, OpenAlert, Over
from chrono_beat.core.clock import Clock
from chrono_beat.core.config import Config
from chrono_beat.core.errors import ChronoError, StoreUnavailable
from chrono_beat.ports import AlertSender, AlertStore, AlertWays, JobStore
from chrono_beat.services.service import Service

logger = logging.getLogger(__name__)

LOOK_EVERY_US = 10_000_000
UNOWNED_AFTER_US = 30_000_000
"""Partitions change hands within seconds; without an owner for so long they are an alert."""

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
            alert = self._store.claim_alert(self._jobs.now_us(), self._every_us, alerts.CLAIM_US)
            if alert is None:
                break
            self._tell(alert)
        return 1_000_000

    def drain(self, now_us: int) -> int | None:
        """Write down the last findings; others tell them."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        self._write_down(self._jobs.now_us())
        return None

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

    def _tell(self, alert: OpenAlert) -> None:
        """Tell every receiver that has not had it yet; one that fails keeps none of the others from it."""
        told_to, failed = set(alert.told_to), False
        until_us = self.clock.monotonic_us() + alerts.TELL_US
        for sender in self._ways(alert):
            if sender.name in told_to:
                continue
            if self.clock.monotonic_us() < until_us and self._sent(alert, sender):
                told_to.add(sender.name)
            else:
                failed = True
        now_us = self._jobs.now_us()
        if failed and alert.attempts + 1 < alerts.MAX_ATTEMPTS:
            self._store.alert_failed(alert, told_to, now_us + alerts.backoff_us(alert.attempts + 1))
        else:
            self._store.alert_told(alert, now_us)

    def _sent(self, alert: OpenAlert, sender: AlertSender) -> bool:
        try:
            sender.send(alert)
        except Exception as error:
            # A library's text may repeat an address or a URL with a secret; our own does not.
            why = error if isinstance(error, ChronoError) else type(error).__name__
            logger.warning("alert %s (%s) could not be sent by %s: %s; attempt %s of %s", alert.id, alert.kind,
                           sender.name, why, alert.attempts + 1, alerts.MAX_ATTEMPTS)
            return False
        return True
