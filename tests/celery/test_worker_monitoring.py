"""What can be seen of a worker from outside: its port for Prometheus. (For Flower see tests/system/test_flower.py.)"""
import socket
import urllib.request
from types import SimpleNamespace

import pytest
from celery.exceptions import ImproperlyConfigured
from prometheus_client.parser import text_string_to_metric_families

from chrono_beat.celery.worker.metrics_step import MetricsStep
from chrono_beat.core.config import Config
from chrono_beat.testing.patience import eventually
from chrono_beat.testing.servers import free_port

pytestmark = pytest.mark.celery


def counters(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}


def test_inv10_a_workers_port_counts_an_outcome_that_was_refused(site):
    port = free_port()
    site.worker("prefork", 2, "--metrics-port", str(port))
    assert counters(port)["chrono_refused_outcomes_total"] == 0

    eid = site.publish("slow", "long", 2)
    site.begun("long")
    site.redis.zadd(f"{site.prefix}:{{0}}:lease", {eid: 0})
    assert [reaped.execution_id for reaped in site.queue.reap(0, 5, 10)] == [eid]

    assert site.ending(eid).event == "succeeded"
    eventually(lambda: counters(port)["chrono_refused_outcomes_total"] == 1, 10, what="a refused outcome in the metrics")


def test_a_port_that_is_taken_is_named_in_the_error():
    worker = SimpleNamespace(app=SimpleNamespace(chrono_beat=SimpleNamespace(config=Config())))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        step = MetricsStep(worker, metrics_port=taken.getsockname()[1])

        with pytest.raises(ImproperlyConfigured, match="^--metrics-port: 127.0.0.1:"):
            step.start(worker)
    step.stop(worker)


def test_without_the_option_a_worker_has_no_port():
    assert not MetricsStep(None).enabled
