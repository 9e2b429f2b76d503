"""What Prometheus is told of a process, by the events of its services."""
import socket
import urllib.request
from functools import partial

import pytest
from click.exceptions import Exit
from prometheus_client.parser import text_string_to_metric_families

from chrono_beat import telemetry
from chrono_beat.celery.commands.output import WRONG_INPUT
from chrono_beat.celery.commands.run import measured
from chrono_beat.core import tenant_labels
from chrono_beat.core.deliveries import Reaped
from chrono_beat.core.records import Ending, Start
from chrono_beat.metrics import Metrics
from chrono_beat.testing.servers import free_port


@pytest.fixture
def metrics():
    counted = Metrics()
    unsubscribe = telemetry.subscribe(counted.observe)
    yield counted
    unsubscribe()


def start(name, deliveries):
    return Start(name, 1, "w", deliveries)


def end(name, state, reason=""):
    return Ending(name, state, reason, 1, "w", 1, "")


def recorded(starts=(), endings=(), ended=(), tenants=None, started=()):
    telemetry.emit("recorded", lane=0, starts=starts, endings=endings, attempts=[], ended=ended, ignored=[],
                   tenants=tenants or ["acme"] * len(endings), started=started)


def test_an_end_counts_only_where_it_ended_a_row(metrics):
    recorded(endings=[end("a", "succeeded"), end("b", "dead", "error"), end("c", "dead", "error")], ended=["a", "b"])

    value = metrics.registry.get_sample_value
    assert value("chrono_executions_total", {"state": "succeeded", "reason": "", "tenant": "acme"}) == 1
    assert value("chrono_executions_total", {"state": "dead", "reason": "error", "tenant": "acme"}) == 1


def test_inv10_repeats_reaps_missed_and_repairs_are_numbers(metrics):
    recorded(starts=[start("a", 1), start("b", 2), start("c", 3)])
    telemetry.emit("reaped", lane=0, reaped=[Reaped("a", "j", "acme", "w", 1, False)])
    telemetry.emit("missed", job_id="j", tenant="acme", name="n", count=7, first_us=1, last_us=2)
    telemetry.emit("publish_missed", lane=0, execution_ids=["d", "e"], tenants=["acme", "acme"])
    telemetry.emit("republished", lane=0, execution_ids=["f"])
    telemetry.emit("outcome_refused", lane=0, execution_id="g", result="succeeded")

    names = ("deliveries", "duplicate_deliveries", "reaps", "missed", "audit_repairs", "refused_outcomes")
    assert [metrics.registry.get_sample_value(f"chrono_{name}_total") for name in names] == [3, 2, 1, 9, 1, 1]


def test_inv10_lateness_of_a_batch_is_a_number_for_each_execution(metrics):
    telemetry.emit("published", lane=0, tenants=["a", "b", "c"], lateness_us=[5_000, 20_000, 2_000_000])
    telemetry.emit("published", lane=0, tenants=["a", "a"], lateness_us=[7_200_000_000, 2_000_000])
    recorded(started=[("a", 30_000)])

    def up_to(bound, stage, tenant):
        return metrics.registry.get_sample_value(
            "chrono_lateness_seconds_bucket", {"stage": stage, "tenant": tenant, "le": bound})

    assert [up_to(bound, "published", "a") for bound in ("0.005", "0.025", "1.0", "2.5", "+Inf")] == [1, 1, 1, 2, 3]
    assert [up_to(bound, "published", "c") for bound in ("1.0", "2.5")] == [0, 1]
    assert [up_to(bound, "started", "a") for bound in ("0.025", "0.05")] == [0, 1]
    assert metrics.registry.get_sample_value(
        "chrono_lateness_seconds_sum", {"stage": "published", "tenant": "a"}) == 7_202.005


def series_of(metrics, label, value):
    return {tuple(sample.labels.items()) for family in metrics.registry.collect() for sample in family.samples
            if sample.labels.get(label) == value}


def test_ten_thousand_tenants_make_no_more_series_than_are_named():
    metrics = Metrics(tenants=5)
    for number in range(10_000):
        name = f"t{number}"
        metrics.observe("published", {"tenants": [name], "lateness_us": [number]})
        metrics.observe("recorded", {
            "starts": [], "started": [(name, number)], "endings": [end(name, "succeeded")], "tenants": [name],
            "ended": [name]})
        metrics.observe("capped", {"tenants": [name], "spent_us": [1_000_000]})

    samples = [sample for family in metrics.registry.collect() for sample in family.samples if "tenant" in sample.labels]
    total = {name: sum(s.value for s in samples if s.name == name) for name in (
        "chrono_executions_total", "chrono_lateness_seconds_count", "chrono_capped_seconds_total")}
    assert {s.labels["tenant"] for s in samples} == {"other", "t0", "t1", "t2", "t3", "t4"}
    assert total == {"chrono_executions_total": 10_000, "chrono_lateness_seconds_count": 20_000,
                     "chrono_capped_seconds_total": 10_000}


def test_a_tenant_that_loses_its_name_leaves_no_series_and_no_burst_of_the_others(metrics):
    metrics = Metrics(tenants=1)
    metrics.observe("published", {"tenants": ["quiet"] * 10, "lateness_us": [1] * 10})
    before = series_of(metrics, "tenant", "quiet")

    metrics.observe("published", {"tenants": ["busy"] * tenant_labels.RANK_EVERY, "lateness_us": [1] * tenant_labels.RANK_EVERY})
    metrics.observe("published", {"tenants": ["busy", "quiet"], "lateness_us": [1, 1]})

    assert before
    assert not series_of(metrics, "tenant", "quiet")
    count = partial(metrics.registry.get_sample_value, "chrono_lateness_seconds_count")
    assert count({"stage": "published", "tenant": "busy"}) == tenant_labels.RANK_EVERY + 1
    assert count({"stage": "published", "tenant": "other"}) == 1


def test_partitions_and_skew_are_those_of_the_last_look(metrics):
    for count, skew_us in ((8, 1_500_000), (4, -250_000)):
        telemetry.emit("partitions_owned", member="m", count=count)
        telemetry.emit("clock_skew", of="redis", skew_us=skew_us)

    assert metrics.registry.get_sample_value("chrono_partitions_owned") == 4
    assert metrics.registry.get_sample_value("chrono_clock_skew_seconds", {"of": "redis"}) == -0.25


def test_a_scrape_of_the_port_shows_what_was_told_while_it_was_open():
    port = free_port()
    with measured(port, "127.0.0.1", 20):
        recorded(starts=[start("a", 1)])
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            families = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}
        assert [sample.value for sample in families["chrono_deliveries"].samples if sample.name.endswith("_total")] == [1]

    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5)


def test_a_port_that_is_taken_is_wrong_input_and_names_the_option(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(Exit) as left, measured(taken.getsockname()[1], "127.0.0.1", 20):
            pass

    assert left.value.exit_code == WRONG_INPUT
    assert "--metrics-port" in capsys.readouterr().err


def test_without_a_port_nobody_listens():
    with measured(None, "127.0.0.1", 20):
        assert not telemetry.listening()
