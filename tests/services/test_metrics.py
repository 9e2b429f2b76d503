"""What Prometheus is told of a process, by the events of its services."""
import re
import socket
import urllib.request
from pathlib import Path

import pytest
from click.exceptions import Exit
from prometheus_client.parser import text_string_to_metric_families

from chrono_beat import telemetry
from chrono_beat.celery.commands.output import WRONG_INPUT
from chrono_beat.celery.commands.run import measured
from chrono_beat.core.deliveries import Reaped
from chrono_beat.core.records import Ending, Start
from chrono_beat.metrics import Metrics

PAGE = Path(__file__).parents[2] / "docs" / "metrics.rst"


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


def recorded(starts=(), endings=(), ended=()):
    telemetry.emit("recorded", lane=0, starts=starts, endings=endings, attempts=[], ended=ended, ignored=[])


def test_an_end_counts_only_where_it_ended_a_row(metrics):
    recorded(endings=[end("a", "succeeded"), end("b", "dead", "error"), end("c", "dead", "error")], ended=["a", "b"])

    value = metrics.registry.get_sample_value
    assert value("chrono_executions_total", {"state": "succeeded", "reason": ""}) == 1
    assert value("chrono_executions_total", {"state": "dead", "reason": "error"}) == 1


def test_inv10_repeats_reaps_missed_and_repairs_are_numbers(metrics):
    recorded(starts=[start("a", 1), start("b", 2), start("c", 3)])
    telemetry.emit("reaped", lane=0, reaped=[Reaped("a", "j", "acme", "w", 1, False)])
    telemetry.emit("missed", job_id="j", tenant="acme", name="n", count=7, first_us=1, last_us=2)
    telemetry.emit("publish_missed", lane=0, execution_ids=["d", "e"])
    telemetry.emit("republished", lane=0, execution_ids=["f"])

    names = ("deliveries", "duplicate_deliveries", "reaps", "missed", "audit_repairs")
    assert [metrics.registry.get_sample_value(f"chrono_{name}_total") for name in names] == [3, 2, 1, 9, 1]


def test_inv10_lateness_of_a_batch_is_a_number_for_each_execution(metrics):
    telemetry.emit("published", lane=0, tenants=["a", "b", "c"], lateness_us=[5_000, 20_000, 2_000_000])
    telemetry.emit("published", lane=0, tenants=["a"], lateness_us=[7_200_000_000])

    def up_to(bound):
        return metrics.registry.get_sample_value("chrono_lateness_seconds_bucket", {"stage": "published", "le": bound})

    assert [up_to("0.005"), up_to("0.025"), up_to("1.0"), up_to("2.5"), up_to("+Inf")] == [1, 2, 2, 3, 4]
    assert metrics.registry.get_sample_value("chrono_lateness_seconds_sum", {"stage": "published"}) == 7_202.025


def test_partitions_and_skew_are_those_of_the_last_look(metrics):
    for count, skew_us in ((8, 1_500_000), (4, -250_000)):
        telemetry.emit("partitions_owned", member="m", count=count)
        telemetry.emit("clock_skew", of="redis", skew_us=skew_us)

    assert metrics.registry.get_sample_value("chrono_partitions_owned") == 4
    assert metrics.registry.get_sample_value("chrono_clock_skew_seconds", {"of": "redis"}) == -0.25


def test_the_page_names_exactly_the_metrics_that_there_are():
    there = {
        family.name + ("_total" if family.type == "counter" else "") for family in Metrics().registry.collect()}

    assert set(re.findall(r"^``(chrono_\w+)``", PAGE.read_text(), re.MULTILINE)) == there


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_scrape_of_the_port_shows_what_was_told_while_it_was_open():
    port = free_port()
    with measured(port, "127.0.0.1"):
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
        with pytest.raises(Exit) as left, measured(taken.getsockname()[1], "127.0.0.1"):
            pass

    assert left.value.exit_code == WRONG_INPUT
    assert "--metrics-port" in capsys.readouterr().err


def test_without_a_port_nobody_listens():
    with measured(None, "127.0.0.1"):
        assert not telemetry.listening()
