"""One occurrence, from its definition to its recorded end, through every process that has a hand in it."""
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chrono_beat.testing.servers import RedisServer

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "example_project"

pytestmark = [pytest.mark.system, pytest.mark.redis, pytest.mark.celery]


@pytest.fixture
def example(redis_server, tmp_path):  # redis_server: skips or fails where there is no Redis
    """The environment of the example project on a Redis and an SQLite of its own, migrated, with a worker."""
    with RedisServer() as redis:
        yield from started_example(redis, tmp_path)


def started_example(redis, tmp_path):
    environment = {
        **os.environ, "DJANGO_SETTINGS_MODULE": "example.settings", "EXAMPLE_STATE_DIR": str(tmp_path),
        "EXAMPLE_REDIS_URL": redis.url.rsplit("/", 1)[0], "EXAMPLE_WORKER_LOG": str(tmp_path / "started.jsonl"),
        "PYTHONPATH": os.pathsep.join([str(EXAMPLE), str(ROOT)]),
    }
    subprocess.run([sys.executable, "manage.py", "migrate", "-v", "0"], cwd=EXAMPLE, env=environment, check=True)
    with (tmp_path / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "example", "worker", "-P", "prefork", "-c", "2", "-l", "INFO",
             "-n", "follow@%h", "--without-gossip", "--without-mingle", "--without-heartbeat"],
            cwd=EXAMPLE, env=environment, stdout=log, stderr=subprocess.STDOUT,
        )
    try:
        wait_until_ready(tmp_path / "worker.log", worker)
        yield environment
    finally:
        worker.terminate()
        worker.wait(30)


def wait_until_ready(log, worker, seconds=40):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert worker.poll() is None, log.read_text()
        if " ready." in log.read_text():
            return
        time.sleep(0.1)
    raise AssertionError(f"the worker did not become ready:\n{log.read_text()}")


def test_one_occurrence_passes_every_stage_in_order(example):
    """Define, claim ahead, wheel, publish, draw, run, settle, record: each once, in this order, never early."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.system.follow"], cwd=ROOT, env=example, capture_output=True, text=True,
        check=False, timeout=100,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    row, stages, events = told["row"], told["stages"], told["events"]

    order = ["defined", "claimed", "readable", "running", "ended"]
    assert [stage for stage, _ in sorted(stages.items(), key=lambda item: item[1])] == order
    assert events.index("claimed") < events.index("published") < events.index("recorded")

    assert (row["state"], row["attempt"], row["deliveries"]) == ("succeeded", 1, 1)
    assert row["worker"].startswith("follow@")
    assert row["due_at"] == told["due"] == row["scheduled_at"]
    assert row["due_at"] <= row["published_at"] <= row["started_at"] <= row["finished_at"]
    lines = [json.loads(line) for line in Path(example["EXAMPLE_WORKER_LOG"]).read_text().splitlines()]
    starts = [line for line in lines if line["execution_id"] == row["id"]]
    assert len(starts) == 1
    assert starts[0]["at"] >= row["due_at"]

    # One result for an occurrence, under its key, through a retry too.
    assert told["attempts"] == [[1, "failed", "error", 0], [2, "succeeded", "", 1]]
    results = {task_id: status for task_id, status, _ in told["results"]}
    assert len(told["results"]) == 2
    assert set(results.values()) == {"SUCCESS"}
    assert row["id"].rsplit(":", 1)[0] in results

    assert told["jobs_finished"] == 2
    assert told["keys_left"] == []
