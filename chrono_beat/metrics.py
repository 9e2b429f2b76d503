"""Metrics for Prometheus: an observer of the events of one process, and the port at which they are asked for.

What is counted is what *this process* did; the sum over all processes is the deployment's. Events are told by batch, so a
counter moves once for each batch and label, however many executions the batch had; of those that have a tenant's label each
execution costs one look into a dict.

**Bound.** A label with as many values as there are tenants would outgrow every Prometheus: `TenantLabels` names the busiest,
and all others are "other". The series of a tenant that loses its name goes; what it had counted is not added to "other",
where it would look like a burst. So a rate is right, and a counter by itself says nothing.

**Weakness.** A recorder that dies between its commit and its acknowledgement is followed by one that reads the same
outcomes again. First starts and ends are counted only where they changed a row, but that batch's deliveries are counted
twice.
"""
from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from chrono_beat import telemetry
from chrono_beat.core.config import Config
from chrono_beat.core.tenant_labels import TenantLabels

LATENESS_BUCKETS_SECONDS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
PUBLISHED, STARTED = "published", "started"

_BOUNDS_US = [round(bound * 1_000_000) for bound in LATENESS_BUCKETS_SECONDS]


class ByTenant(Collector):
    """The metrics that have a tenant's label, filled by the batch.

    The library's own take one value at a time, with a lock for each; that is several times the cost, in the thread that
    fires.

    Args:
        limit: tenants that are named; all others are one.
    """

    def __init__(self, limit: int) -> None:
        self._lock = threading.Lock()
        self._labels = TenantLabels(limit)
        self._lateness: dict[tuple[str, str], list[int]] = {}    # (stage, label): a count for each bucket, then the sum in µs
        self._ends: Tally[tuple[str, str, str]] = Tally()        # (state, reason, label)
        self._capped_us: Tally[str] = Tally()

    def _note(self, executions: Mapping[str, int]) -> None:
        for tenant in self._labels.note(executions):
            self._capped_us.pop(tenant, None)
            for key in [key for key in self._lateness if key[1] == tenant]:
                del self._lateness[key]
            for end in [end for end in self._ends if end[2] == tenant]:
                del self._ends[end]

    def add_lateness(self, stage: str, tenants: Sequence[str], lateness_us: Iterable[int]) -> None:
        """Count a batch of executions that reached the stage so late, in microseconds."""
        with self._lock:
            self._note(Tally(tenants))
            rows: dict[str, list[int]] = {}
            for tenant, late_us in zip(tenants, lateness_us, strict=True):
                row = rows.get(tenant)
                if row is None:
                    key = (stage, self._labels.of(tenant))
                    row = rows[tenant] = self._lateness.setdefault(key, [0] * (len(_BOUNDS_US) + 2))
                row[bisect_left(_BOUNDS_US, late_us)] += 1
                row[-1] += late_us

    def add_ends(self, ends: Mapping[tuple[str, str, str], int]) -> None:
        """Count ends: (state, reason, tenant) to how many."""
        with self._lock:
            for (_, _, tenant), count in ends.items():
                self._note({tenant: count})
            for (state, reason, tenant), count in ends.items():
                self._ends[state, reason, self._labels.of(tenant)] += count

    def add_capped(self, tenants: Sequence[str], spent_us: Iterable[int]) -> None:
        """Count time in microseconds for which a cap held back a tenant's work."""
        with self._lock:
            self._note(dict.fromkeys(tenants, 0))
            for tenant, us in zip(tenants, spent_us, strict=True):
                self._capped_us[self._labels.of(tenant)] += us

    def collect(self) -> Iterator[HistogramMetricFamily | CounterMetricFamily]:
        """Yield the metrics as Prometheus wants them: each bucket counts all that is not above its bound."""
        with self._lock:
            lateness = {key: list(row) for key, row in self._lateness.items()}
            ends, capped_us = dict(self._ends), dict(self._capped_us)
        bounds = [*map(floatToGoString, LATENESS_BUCKETS_SECONDS), "+Inf"]
        late = HistogramMetricFamily(
            "chrono_lateness_seconds", "How late executions were, by the stage that they had reached.",
            labels=["stage", "tenant"])
        for key, (*counts, sum_us) in lateness.items():
            late.add_metric(key, list(zip(bounds, accumulate(counts), strict=True)), sum_us / 1e6)
        yield late
        ended = CounterMetricFamily("chrono_executions", "Executions that ended.", labels=["state", "reason", "tenant"])
        for labels, count in ends.items():
            ended.add_metric(labels, count)
        yield ended
        capped = CounterMetricFamily(
            "chrono_capped_seconds", "Time for which nothing but a tenant's cap held back its work.", labels=["tenant"])
        for tenant, us in capped_us.items():
            capped.add_metric([tenant], us / 1e6)
        yield capped


class Figures(Collector):
    """Gauges that are read when they are asked for.

    Args:
        read: returns name, meaning, name of the label ("" for none), and values by the label's value.
    """

    def __init__(self, read: Callable[[], Iterable[tuple[str, str, str, Mapping[str, float]]]]) -> None:
        self._read = read

    def describe(self) -> list[Metric]:
        """Return nothing, so that registering reads nothing."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Read, and yield the gauges."""
        for name, meaning, label, values in self._read():
            family = GaugeMetricFamily(name, meaning, labels=[label] if label else [])
            for value, number in values.items():
                family.add_metric([value] if label else [], number)
            yield family


class Metrics:
    """The metrics of this process; its `observe` is an observer for :func:`chrono_beat.telemetry.subscribe`.

    Args:
        registry: what they are registered in; by default one of their own.
        tenants: how many tenants are named; all others are one.
    """

    def __init__(
        self, registry: CollectorRegistry | None = None, *, tenants: int = Config().metrics_tenants,
    ) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        self._by_tenant = ByTenant(tenants)
        self.registry.register(self._by_tenant)
        self._deliveries = self._counter("chrono_deliveries_total", "Deliveries that a worker's pool began.")
        self._duplicates = self._counter(
            "chrono_duplicate_deliveries_total", "Those of them that were not the first of their execution.")
        self._reaps = self._counter("chrono_reaps_total", "Leases that had run out.")
        self._refused = self._counter(
            "chrono_refused_outcomes_total", "Outcomes of this worker that came when its lease was somebody else's.")
        self._missed = self._counter("chrono_missed_total", "Occurrences that nobody fired in time.")
        self._repairs = self._counter("chrono_audit_repairs_total", "Executions that Redis had lost, published again.")
        self._owned = Gauge(
            "chrono_partitions_owned", "Partitions that this process fires.", registry=self.registry)
        self._skew = Gauge(
            "chrono_clock_skew_seconds", "By how much this host's clock is ahead of a server's.", ["of"],
            registry=self.registry)
        self._by_event: dict[str, Callable[[Mapping[str, Any]], None]] = {
            "published": lambda fields: self._by_tenant.add_lateness(PUBLISHED, fields["tenants"], fields["lateness_us"]),
            "recorded": self._recorded,
            "reaped": lambda fields: self._reaps.inc(len(fields["reaped"])),
            "outcome_refused": lambda fields: self._refused.inc(),
            "missed": lambda fields: self._missed.inc(fields["count"]),
            "publish_missed": lambda fields: self._missed.inc(len(fields["execution_ids"])),
            "republished": lambda fields: self._repairs.inc(len(fields["execution_ids"])),
            "capped": lambda fields: self._by_tenant.add_capped(fields["tenants"], fields["spent_us"]),
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

    def _recorded(self, fields: Mapping[str, Any]) -> None:
        starts, started = fields["starts"], fields["started"]
        self._deliveries.inc(len(starts))
        self._duplicates.inc(sum(start.deliveries > 1 for start in starts))
        self._by_tenant.add_lateness(STARTED, [tenant for tenant, _ in started], [late_us for _, late_us in started])
        ended = set(fields["ended"])
        self._by_tenant.add_ends(Tally(
            (end.state, end.reason, tenant) for end, tenant in zip(fields["endings"], fields["tenants"], strict=True)
            if end.execution_id in ended))


@contextmanager
def exposed(metrics: Metrics, port: int, address: str) -> Iterator[None]:
    """Count what is told within the block, and answer Prometheus at ``http://address:port/metrics``, in a thread.

    Raises:
        OSError: the port is taken, or the address is not this host's.
    """
    server, thread = start_http_server(port, address, registry=metrics.registry)
    # A child of a worker's pool must not keep the port of a parent that is gone.
    os.register_at_fork(after_in_child=server.socket.close)
    unsubscribe = telemetry.subscribe(metrics.observe)
    try:
        yield
    finally:
        unsubscribe()
        server.shutdown()
        server.server_close()
        thread.join()
