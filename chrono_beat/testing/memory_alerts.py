"""The AlertStore in memory; keeps the same contract as the one in a database."""
from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from chrono_beat.core import alerts
from chrono_beat.core.alerts import Finding, OpenAlert, Outlook, Over, Receipt
from chrono_beat.core.ids import from_us


@dataclass
class MemoryAlert:
    """A row; what its fields mean stands at the model ``Alert``."""

    id: int
    found: Finding
    first_us: int
    last_us: int
    count: int
    receipts: Mapping[str, Receipt] = field(default_factory=dict)
    outlook: Outlook = Outlook(0, 0, None, 0)
    claimed_until_us: int = 0
    closed_us: int | None = None

    @property
    def key(self) -> Over:
        """What agrees in it is one alert."""
        return Over(self.found.kind, self.found.tenant, self.found.subject)

    def is_due(self, now_us: int) -> bool:
        """Say whether somebody is to be told."""
        ahead = self.outlook
        new = self.count > ahead.told_count and ahead.again_us <= now_us
        return new or (ahead.retry_us is not None and ahead.retry_us <= now_us)


@dataclass
class MemoryMute:
    """A mute; what is empty stands for all, None for until it is removed."""

    kind: str = ""
    tenant: str = ""
    subject: str = ""
    until_us: int | None = None

    def covers(self, key: Over, now_us: int) -> bool:
        """Say whether it keeps an alert from being told now."""
        agrees = all(not mine or mine == its for mine, its in zip((self.kind, self.tenant, self.subject), key, strict=True))
        return agrees and (self.until_us is None or self.until_us > now_us)


@dataclass
class MemoryAlertStore:
    """Keeps :class:`chrono_beat.ports.AlertStore`.

    Args:
        closed: called with each alert that an event or the quiet time closed.
    """

    closed: Callable[[MemoryAlert], object] = lambda alert: None
    rows: list[MemoryAlert] = field(default_factory=list)
    mutes: list[MemoryMute] = field(default_factory=list)
    _lock: Any = field(default_factory=threading.RLock)
    _ids: Any = field(default_factory=lambda: itertools.count(1))

    def note_alerts(self, noticed: Sequence[Finding | Over], now_us: int) -> None:
        """See AlertStore."""
        with self._lock:
            for found in noticed:
                row = self._open(Over(found.kind, found.tenant, found.subject))
                if isinstance(found, Over):
                    self._close([row] if row else [], now_us)
                elif row is not None:
                    self._add(row, found, now_us)
                else:
                    self._insert(found, now_us)

    def _open(self, key: Over) -> MemoryAlert | None:
        return next((row for row in self.rows if row.key == key and row.closed_us is None), None)

    def _add(self, row: MemoryAlert, found: Finding, now_us: int) -> None:
        row.found, row.last_us, row.count = found, now_us, row.count + found.count

    def _insert(self, found: Finding, now_us: int) -> None:
        like = [row for row in self.rows if row.key[:2] == (found.kind, found.tenant) and row.closed_us is None]
        if found.subject and len(like) >= alerts.MAX_SUBJECTS:
            found = replace(found, subject=alerts.MORE)
            if row := self._open(Over(found.kind, found.tenant, found.subject)):
                return self._add(row, found, now_us)
        self.rows.append(MemoryAlert(next(self._ids), found, now_us, now_us, found.count))

    def _close(self, rows: Iterable[MemoryAlert], now_us: int) -> None:
        for row in rows:
            row.closed_us = now_us
            self.closed(row)

    def close_quiet_alerts(self, before_us: int, now_us: int) -> None:
        """See AlertStore."""
        with self._lock:
            self._close([row for row in self.rows if row.closed_us is None and row.last_us < before_us], now_us)

    def claim_alert(self, now_us: int, claim_us: int) -> OpenAlert | None:
        """See AlertStore."""
        with self._lock:
            due = [
                row for row in self.rows
                if row.closed_us is None and row.claimed_until_us <= now_us and row.is_due(now_us)
                and not any(mute.covers(row.key, now_us) for mute in self.mutes)
            ]
            if not due:
                return None
            row = min(due, key=lambda each: (each.outlook.attempts, each.last_us, each.id))
            row.claimed_until_us = now_us + claim_us
            return OpenAlert(
                row.id, *row.key, row.count, row.found.detail, from_us(row.first_us), from_us(row.last_us),
                row.claimed_until_us, row.receipts)

    def alert_told(self, alert: OpenAlert, receipts: Mapping[str, Receipt], now_us: int) -> None:
        """See AlertStore."""
        if row := self._claimed(alert):
            row.receipts, row.outlook, row.claimed_until_us = receipts, alerts.outlook(receipts.values(), alert.count), 0

    def _claimed(self, alert: OpenAlert) -> MemoryAlert | None:
        """Return the row, if the claim is still the one that was made."""
        with self._lock:
            return next((row for row in self.rows if (row.id, row.claimed_until_us) == (alert.id, alert.claim)), None)
