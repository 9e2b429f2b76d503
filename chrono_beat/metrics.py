"""Metrics for Prometheus: an observer of the events of one process, and the port at which they are asked for.

What is counted is what *this process* did; the sum over all processes of ``chrono run`` is the deployment's. Events are
told by batch, so a counter moves once for each batch and label, however many executions the batch had. Nothing is told
by tenant here: a label with as many values as there are tenants would outgrow every Prometheus.

**Weakness.** A recorder that dies between its commit and its acknowledgement is followed by one that reads the same
outcomes again. Ends are counted only where they ended a row, but that batch's starts are counted twice.
"""
from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

LATENESS_BUCKETS_SECONDS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)


class Lateness(Collector):
    """The histogram of lateness, filled by the batch.

    The library's own takes one value at a time, with a lock for each; that is several times the cost, in the thread
    that fires.
    """

    _BOUNDS_US = [round(bound * 1_000_000) for bound in LATENESS_BUCKETS_SECONDS]

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, list[int]] = {}
        self._sums_us: Tally[str] = Tally()

    def add(self, stage: str, lateness_us: Sequence[int]) -> None:
        """Count a batch of executions that reached the stage so late, in microseconds."""
        bounds = self._BOUNDS_US
        found = Tally([bisect_left(bounds, late_us) for late_us in lateness_us])
        with self._lock:
            counts = self._counts.setdefault(stage, [0] * (len(bounds) + 1))
            for place, count in found.items():
                counts[place] += count
            self._sums_us[stage] += sum(lateness_us)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield the histogram as Prometheus wants it: each bucket counts all that is not above its bound."""
        family = HistogramMetricFamily(
            "chrono_lateness_seconds", "How late executions were, by the stage that they had reached.", labels=["stage"])
        bounds = [*map(floatToGoString, LATENESS_BUCKETS_SECONDS), "+Inf"]
        with self._lock:
            for stage, counts in self._counts.items():
                buckets = list(zip(bounds, accumulate(counts), strict=True))
                family.add_metric([stage], buckets, self._sums_us[stage] / 1e6)
        yield family


class Metrics:
    """The metrics of this process; its `observe` is an observer for :func:`chrono_beat.telemetry.subscribe`.

    Args:
        registry: what they are registered in; by default one of their own.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        self._lateness = Lateness()
        self.registry.register(self._lateness)
        self._executions = Counter(
            "chrono_executions_total", "Executions that ended.", ["state", "reason"], registry=self.registry)
        self._deliveries = self._counter("chrono_deliveries_total", "Deliveries that a worker's pool began.")
        self._duplicates = self._counter(
            "chrono_duplicate_deliveries_total", "Those of them that were not the first of their execution.")
        self._reaps = self._counter("chrono_reaps_total", "Leases that had run out.")
        self._missed = self._counter("chrono_missed_total", "Occurrences that nobody fired in time.")
        self._repairs = self._counter("chrono_audit_repairs_total", "Executions that Redis had lost, published again.")
        self._capped = self._counter(
            "chrono_capped_seconds_total", "Time for which nothing but a tenant's cap held back its work, of all tenants.")
        self._owned = Gauge(
            "chrono_partitions_owned", "Partitions that this process fires.", registry=self.registry)
        self._skew = Gauge(
            "chrono_clock_skew_seconds", "By how much this host's clock is ahead of a server's.", ["of"],
            registry=self.registry)
        self._by_event: dict[str, Callable[[Mapping[str, Any]], None]] = {
            "published": self._published,
            "recorded": self._recorded,
            "reaped": lambda fields: self._reaps.inc(len(fields["reaped"])),
            "missed": lambda fields: self._missed.inc(fields["count"]),
            "publish_missed": lambda fields: self._missed.inc(len(fields["execution_ids"])),
            "republished": lambda fields: self._repairs.inc(len(fields["execution_ids"])),
            "capped": lambda fields: self._capped.inc(sum(fields["spent_us"]) / 1e6),
            "partitions_owned": lambda fields: self._owned.set(fields["count"]),
            "clock_skew": lambda fields: self._skew.labels(fields["of"]).set(fields["skew_us"] / 1e6),
        }

    def _counter(self, name: str, meaning: str) -> Counter:
        return Counter(name, meaning, registry=self.registry)

    def observe(self, event: str, fields: Mapping[str, Any]) -> None:
        """Count an event; those that no metric is made of cost one look into a dict."""
        count = self._by_event.get(event)
        if count is not None:
            count(fields)

    def _published(self, fields: Mapping[str, Any]) -> None:
        self._lateness.add("published", fields["lateness_us"])

    def _recorded(self, fields: Mapping[str, Any]) -> None:
        starts = fields["starts"]
        self._deliveries.inc(len(starts))
        self._duplicates.inc(sum(start.deliveries > 1 for start in starts))
        ended = set(fields["ended"])
        ends = Tally((end.state, end.reason) for end in fields["endings"] if end.execution_id in ended)
        for (state, reason), count in ends.items():
            self._executions.labels(state, reason).inc(count)


def serve(metrics: Metrics, port: int, address: str) -> Callable[[], None]:
    """Answer Prometheus at ``http://address:port/metrics``, in a thread of its own.

    Returns:
        A function that ends it.

    Raises:
        OSError: the port is taken, or the address is not this host's.
    """
    server, thread = start_http_server(port, address, registry=metrics.registry)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
