"""Plain tasks that are not due yet, and how one ends; ``redis/lua/delays.lua`` has the same in Redis."""
from __future__ import annotations

from typing import Any

from chrono_beat.core.deliveries import RAN_RETRY
from chrono_beat.testing.memory_copies import DELAYED, QUEUED, SETTLED, Copy

PLAIN_TOMBSTONE_US = 60_000_000


class Delays:
    """Mixin of Lane, which has the copies and streams."""

    now: int
    copies: dict[str, Copy]
    add_entry: Any
    remove_entry: Any

    def await_due(self, copy: Copy, due_us: int) -> None:
        """Let a plain task wait for its time, or come last in its stream where that has come."""
        if due_us > self.now:
            copy.state, copy.due_us = DELAYED, due_us
        else:
            self.add_entry(copy)

    def promote_due(self) -> None:
        """Let into their streams what is due by now."""
        due = [copy for copy in self.copies.values() if copy.state == DELAYED and copy.due_us <= self.now]
        for copy in sorted(due, key=lambda copy: (copy.due_us, copy.id)):
            self.add_entry(copy)

    def finish_plain(self, copy: Copy, result: str) -> None:
        """End a plain task without an outcome, or put the retry it asked for in its place."""
        self.remove_entry(copy)
        if result == RAN_RETRY and copy.retry is not None:
            asked = copy.retry
            again = Copy(copy.id, QUEUED, 0, "", copy.tenant, asked["pool"], asked["priority"], plain=True,
                         payload=asked["payload"].encode(), resent=copy.token)
            self.copies[copy.id] = again
            self.await_due(again, max(asked.get("eta_us", 0), self.now + asked.get("countdown_us", 0)))
            return
        self.copies[copy.id] = Copy(copy.id, SETTLED, 0, "", copy.tenant, token=copy.token, plain=True,
                                    goes_us=self.now + PLAIN_TOMBSTONE_US)
