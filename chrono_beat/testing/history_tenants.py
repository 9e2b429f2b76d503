"""Judges of tenants: none runs more than its cap, and their plain tasks are neither lost nor doubled without a fault."""
from __future__ import annotations

from collections import defaultdict

from chrono_beat.core.deliveries import RAN_RETRY
from chrono_beat.testing.history import (
    Capacity,
    History,
    Limits,
    Notes,
    Row,
    Sampled,
    Sent,
    Settled,
)
from chrono_beat.testing.history_bodies import NEVER, Body, look


def judge_caps(history: History, limits: Limits, notes: Notes) -> None:
    """Invariant 8: a tenant never runs more than its cap, as its bodies tell it."""
    tenants = {event.execution_id: event.tenant for event in history.events if isinstance(event, Row | Sent)}
    seen = look(history, limits)
    caps: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for event in history.of(Capacity):
        caps[event.tenant].append((event.at_us, event.max_running))
    running: dict[str, list[Body]] = defaultdict(list)
    for body in seen.bodies:
        tenant = tenants.get(body.id, "")
        if tenant not in caps:
            continue
        running[tenant] = [other for other in running[tenant]
                           if min(other.ends, other.lease_ends, other.settles) >= body.begins]
        running[tenant].append(body)
        live = [other for other in running[tenant] if other is body or not seen.excuse(other, body.began.at_us)]
        since = min(other.began.at_us for other in live)
        before = [cap for at_us, cap in caps[tenant] if at_us <= since][-1:]
        allowed = max([*before, *(cap for at_us, cap in caps[tenant] if since < at_us <= body.began.at_us)], default=NEVER)
        if len(live) > allowed:
            notes.find(8, "over_cap", [other.id for other in live], [body.began.at_us],
                       f"{len(live)} of tenant {tenant} ran at once; its cap is {allowed}")


def judge_samples(history: History, limits: Limits, notes: Notes) -> None:
    """Invariant 8: whoever counts a tenant's live leases never finds more than its cap; no fault is an excuse.

    A cap that was lowered ends nothing that runs, so the highest so far is what counts.
    """
    caps: dict[str, int] = {}
    for event in history.events:
        if isinstance(event, Capacity):
            caps[event.tenant] = max(event.max_running, caps.get(event.tenant, 0))
        elif isinstance(event, Sampled) and event.running > caps.get(event.tenant, NEVER):
            notes.find(8, "over_cap", [event.tenant], [event.at_us],
                       f"{event.running} live leases of tenant {event.tenant}; its cap is {caps[event.tenant]}")


def judge_plain(history: History, limits: Limits, notes: Notes) -> None:
    """Plain tasks: each that was sent begins, and its end is accepted; it begins again only after a retry that it asked for,
    or after a fault that hit its worker. What a lost memory took with it, or repeats, is excused: there is no row behind it."""
    seen = look(history, limits)
    bodies: dict[str, list[Body]] = defaultdict(list)
    for body in seen.bodies:
        if body.id in seen.sent:
            bodies[body.id].append(body)
    retried = {(event.execution_id, event.token) for event in history.of(Settled)
               if event.accepted and event.result == RAN_RETRY}
    ended: dict[str, tuple[int, int]] = {}
    for place, event in enumerate(history.events):
        if isinstance(event, Settled) and event.accepted and event.result not in (RAN_RETRY, "lost"):
            ended.setdefault(event.execution_id, (place, event.at_us))
    for key, sent in seen.sent.items():
        if history.drained and key not in ended and sent.due_us <= history.until_us and not seen.forgot(
                sent.at_us, history.until_us):
            notes.find(3, "lost", [key], [sent.at_us], "a plain task that was sent has not ended, and no memory was lost")
        for earlier, later in zip(bodies[key], bodies[key][1:], strict=False):
            times = [earlier.began.at_us, later.began.at_us]
            if seen.forgot(earlier.began.at_us - limits.lease_us, later.began.at_us):
                notes.duplicates += 1
            elif earlier.began.token == later.began.token:
                notes.find(6, "repeated", [key], times, f"a plain task began twice under the token {later.began.token}")
            elif (key, earlier.began.token) in retried:
                continue
            elif not seen.excuse(earlier, later.began.at_us):
                notes.find(6, "repeated", [key], times, "a plain task began again, and no fault hit its worker")
            elif later.begins > ended.get(key, (NEVER, 0))[0] and not seen.forgot(ended[key][1], later.began.at_us):
                notes.find(6, "repeated", [key], times, "a plain task began after its outcome had been accepted")
            else:
                notes.duplicates += 1


JUDGES = (judge_caps, judge_samples, judge_plain)
