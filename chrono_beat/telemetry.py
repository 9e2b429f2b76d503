"""Everything that chrono_beat tells about its own work: one table of events, and whoever wants to hear of them.

Services call `emit`; logs, metrics and alerts `subscribe`. Events are told by batch, not by execution, so that a burst
costs the same with and without listeners; those that carry many records carry them as a sequence. An emit whose fields
are not those of the table raises, so the table is the documentation.
"""
from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

logger = logging.getLogger("chrono_beat")

Observer = Callable[[str, Mapping[str, Any]], None]
"""Gets an event's name and its fields. It is called in the service's own thread, so it must be quick and not block."""


class Event(NamedTuple):
    """A line of the table: the level at which a log shows it, its fields, and what it means."""

    level: int
    fields: frozenset[str]
    meaning: str


def _event(level: int, fields: str, meaning: str) -> Event:
    return Event(level, frozenset(fields.split()), meaning)


_DEBUG, _INFO, _WARNING, _ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR

EVENTS: dict[str, Event] = {
    # services
    "service_started": _event(_INFO, "service", "its thread runs"),
    "service_stopped": _event(_INFO, "service", "its thread has ended as it was asked to"),
    "service_unavailable": _event(_DEBUG, "service error failures", "database or Redis not reached; tried again"),
    "service_failed": _event(_DEBUG, "service error failures", "an error nobody expected; logged, and tried again"),
    "service_recovered": _event(_INFO, "service failures", "a step went well after so many failures"),
    # dispatcher: partitions
    "partitions_taken": _event(_INFO, "member partitions", "numbers of partitions that are the member's now"),
    "partitions_offered": _event(_INFO, "member partitions", "others are asked to take these; fired until they do"),
    "partitions_lost": _event(_INFO, "member partitions", "not confirmed any more; what waited of them is dropped"),
    "partitions_owned": _event(_DEBUG, "member count", "how many the member holds, each renewal"),
    # dispatcher: look-ahead
    "claimed": _event(_DEBUG, "member jobs executions missed", "claims of one transaction; missed: claims' rows"),
    "missed": _event(_WARNING, "job_id tenant name count first_us last_us", "occurrences nobody fired, in one row"),
    "loaded": _event(_DEBUG, "member executions", "rows in state scheduled that came into the wheel"),
    "reloaded": _event(_INFO, "member why", "the wheel was emptied, to be loaded anew"),
    "quarantined": _event(_WARNING, "job_id tenant name reason", "a job that cannot be planned left the due index"),
    # dispatcher: firing; lateness_us: a number for each execution that became readable
    "published": _event(_DEBUG, "lane tenants lateness_us", "executions that became readable; both are sequences"),
    "publish_skipped": _event(_DEBUG, "lane execution_ids", "not published, since a predecessor is active"),
    "publish_missed": _event(_WARNING, "lane execution_ids tenants", "claimed in time, and by now too late for a misfire policy"),
    "publish_voided": _event(_DEBUG, "lane execution_ids", "older than their job's void; their rows are swept"),
    "publish_refused": _event(_WARNING, "lane why count", "the lane refused a batch: deadline, generation, quarantine"),
    "publish_early": _event(_WARNING, "lane count", "Redis' clock had not reached the due time; tried again"),
    "dropped": _event(_INFO, "lane why count", "executions that left memory unpublished; their rows stay"),
    "marks_dropped": _event(_WARNING, "count", "rows that stay in state scheduled though they are published"),
    "stop_told": _event(_DEBUG, "lane stops", "running executions whose workers were told to make room (replace)"),
    # dispatcher: clocks and lanes
    "clock_skew": _event(_DEBUG, "of skew_us", "by how much the host's wall clock is ahead of a server's"),
    "clock_stepped": _event(_WARNING, "of", "a server's clock was set, or the host stood still"),
    "lane_opened": _event(_WARNING, "lane generation quarantine_us", "its memory was lost or it is new"),
    "lane_unreachable": _event(_WARNING, "lane error", "Redis does not answer for this lane"),
    "lane_reachable": _event(_INFO, "lane generation", "it answers (again), and may be published to"),
    # recorder, reaper, audit, keeper; starts, endings, attempts and reaped are sequences of records
    # tenants: of the endings, "" where nobody knows it; started: tenant and lateness in µs of each first start
    "recorded": _event(_DEBUG, "lane starts endings attempts ended ignored tenants started", "outcomes of one transaction"),
    "outcome_refused": _event(_WARNING, "lane execution_id result", "a worker's: its lease was over, or it was settled before"),
    "outcome_unknown": _event(_ERROR, "lane outcome", "one that cannot be recorded; it is logged and let go"),
    "set_aside": _event(_WARNING, "lane what why", "something in Redis that is not ours or cannot be read was let go"),
    "dead_lettered": _event(_WARNING, "tenant reason count", "executions that failed for good, until somebody handles them"),
    "expired": _event(_WARNING, "tenant job_id count", "executions that no worker began in their time; one of their jobs"),
    "retries_held": _event(_WARNING, "tenant failed ended until_us", "so many runs failed that retries wait until then"),
    "retries_released": _event(_INFO, "tenant", "the hold is over"),
    "reaped": _event(_WARNING, "lane reaped", "leases that had run out: handed out again, or dead-lettered"),
    "withdrawn": _event(_WARNING, "lane stops", "told to make room and still running after the grace: lease taken away"),
    "skipped_in_a_row": _event(_WARNING, "lane job_id tenant count blocked_by", "so many occurrences found one active"),
    "reap_capped": _event(_ERROR, "lane reaped", "those of them that were reaped too often and are dead letters now"),
    "stranded": _event(_ERROR, "lane executions", "kept for long enough: no worker came that knows their task"),
    "no_worker": _event(_WARNING, "pool task jobs", "jobs (id, tenant, name) soon due whose task no live worker knows"),
    "worker_found": _event(_INFO, "pool task jobs", "jobs whose flag was taken away: a live worker knows their task"),
    "relayed": _event(_DEBUG, "lane count", "executions of message targets that the broker has"),
    "relay_uncertain": _event(_WARNING, "lane execution_id", "nobody knows whether the broker has it: sent again, same id"),
    "audited": _event(_DEBUG, "lane looked_at lacking published let_go", "open rows that Redis was asked about"),
    "republished": _event(_WARNING, "lane execution_ids", "Redis had nothing of them any more; published anew"),
    "voids_replayed": _event(_INFO, "voids", "edits that Redis was told instead of by their callers"),
    "cancelled": _event(_INFO, "lane execution_id answer", "an execution that is to be cancelled: ended, held or done"),
    "voided": _event(_INFO, "lane execution_id answer", "a row of an old plan was brought to its end"),
    "capped": _event(_DEBUG, "tenants spent_us", "time for which nothing but its cap held back work of each of these"),
    # what the keeper sees in the rollups of tenants; the second of each pair says that the first is over
    "crowded": _event(_WARNING, "tenant by p99_us usual_us", "starts later than usual while the load of another one rose"),
    "uncrowded": _event(_INFO, "tenant", "that is over"),
    "lateness_objective_broken": _event(_WARNING, "tenant p99_us objective_us", "of its last minutes' starts"),
    "lateness_objective_met": _event(_INFO, "tenant", "it is kept again"),
    "duplicates_high": _event(_WARNING, "tenant duplicates deliveries usual", "more than usual; usual: share of its last day"),
    "duplicates_usual": _event(_INFO, "tenant", "no more than usual"),
    "reaps_high": _event(_WARNING, "tenant reaps usual", "leases ran out in five minutes, more than usual; tenant \"\": of all"),
    "reaps_usual": _event(_INFO, "tenant", "no more than usual"),
    "zone_data_changed": _event(_WARNING, "planned_with in_use moved", "plans were moved to another release of the zone data"),
    "zone_data_older": _event(_WARNING, "planned_with in_use", "this host's zone data are older than those planned with"),
    "kept": _event(_INFO, "removed", "finished executions past retention that were removed"),
}

_observers: tuple[Observer, ...] = ()
_lock = threading.Lock()


def emit(event: str, **fields: Any) -> None:
    """Tell the observers of an event.

    Args:
        event: one of `EVENTS`.
        fields: exactly those of the table.

    Raises:
        ValueError: there is no such event, or its fields are others.
    """
    known = EVENTS.get(event)
    if known is None or known.fields != fields.keys():
        raise ValueError(f"{event!r} with the fields {', '.join(sorted(fields))} is not in the table of events")
    for observer in _observers:
        try:
            observer(event, fields)
        except Exception:
            logger.exception("an observer failed at the event %s", event)


def listening() -> bool:
    """Say whether anybody listens; ask before gathering fields that cost something."""
    return bool(_observers)


def subscribe(observer: Observer) -> Callable[[], None]:
    """Let an observer hear of all events from now on.

    Returns:
        A function that ends the subscription.
    """
    global _observers
    with _lock:
        _observers = (*_observers, observer)
    return lambda: _unsubscribe(observer)


def _unsubscribe(observer: Observer) -> None:
    global _observers
    with _lock:
        _observers = tuple(other for other in _observers if other is not observer)


MAX_LOGGED = 10
"""Records of a sequence that a log line shows."""


def log(event: str, fields: Mapping[str, Any]) -> None:
    """Write events to the log ``chrono_beat``; an observer for `subscribe`."""
    level = EVENTS[event].level
    if logger.isEnabledFor(level):
        logger.log(level, "%s %s", event, " ".join(f"{name}={_shown(value)}" for name, value in fields.items()))


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)) and len(value) > MAX_LOGGED:
        return f"{value[:MAX_LOGGED]!r} and {len(value) - MAX_LOGGED} more"
    return repr(value)
