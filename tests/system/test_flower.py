"""Flower, as people start it, beside a worker on the stock broker URL: what it shows of executions, and what it can stop."""
import json
import urllib.error
import urllib.request
from urllib.parse import quote

import pytest

from chrono_beat.testing.patience import eventually
from chrono_beat.testing.servers import free_port
from tests.system.systemkit import Site

pytest.importorskip("flower")
pytestmark = [pytest.mark.system, pytest.mark.redis, pytest.mark.postgres, pytest.mark.celery, pytest.mark.timeout(180)]

WORKER = "watched@shop"
YEARLY = "0 0 1 1 *"


class Watched(Site):
    """The example project with one worker of two slots, a dispatcher and a Flower."""

    def __init__(self):
        super().__init__()
        self.port = free_port()
        flower = self.celery("flower", "flower", "--address=127.0.0.1", f"--port={self.port}", FLOWER_UNAUTHENTICATED_API="1")
        worker = self.celery("watched", "worker", "-E", "-c", "2", "-l", "INFO", "-n", WORKER, "-Q", "celery,chrono",
                             "--without-gossip", "--without-mingle")
        self.start_dispatcher()
        worker.says(" ready.")
        flower.says("Connected to redis")
        eventually(lambda: self.flower("api/workers?refresh=1").get(WORKER), 30, what="the worker in Flower")

    def flower(self, path, method="GET"):
        """Return what Flower answers: JSON read, pages as text, and {} for what it does not know."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                text = answer.read().decode()
                return json.loads(text) if "json" in answer.headers["Content-Type"] else text
        except urllib.error.HTTPError as error:
            assert error.code == 404, error.read()
            return {}

    def revoke(self, task_id, terminate=False):
        return self.flower(f"api/task/revoke/{quote(task_id)}?terminate={str(terminate).lower()}", "POST")

    def trigger(self, task, **given):
        """Let a new job's task run once; returns the execution's id and its task id."""
        job = self.ask("create", definitions=[{"name": f"job {next(self._numbers)}", "cron": YEARLY, "task": task, **given}])
        execution = self.ask("trigger", job=job[0]["id"])
        return execution, execution.rpartition(":")[0]

    def task(self, task_id, state):
        """Wait until Flower shows a task in a state; returns what it tells of it."""
        eventually(lambda: self.flower(f"api/task/info/{task_id}").get("state") == state, 30,
                   what=f"{task_id} is {state} in Flower")
        return self.flower(f"api/task/info/{task_id}")

    def states(self, execution, *states):
        """Wait until the attempts of an execution's occurrence are in these states."""
        def theirs():
            found = self.sql("SELECT state FROM chrono_execution WHERE id LIKE %s ORDER BY attempt",
                             execution.rpartition(":")[0] + ":%")
            return [row["state"] for row in found]

        eventually(lambda: theirs() == list(states), 30, what=f"{execution} is {states}")


@pytest.fixture(scope="module")
def shop(redis_server, postgres_server):           # these two: they skip, or fail, where there is no server to be had
    site = Watched()
    try:
        yield site
        print(site.tails())
    finally:
        site.close()


def test_flower_shows_the_worker_its_pool_and_how_every_task_ended(shop):
    good, good_id = shop.trigger("shop.report", args=["sales"])
    bad, bad_id = shop.trigger("shop.slow", kwargs={"seconds": "long"})
    flaky, flaky_id = shop.trigger("shop.flaky")

    task = shop.task(good_id, "SUCCESS")
    assert (task["uuid"], task["name"], task["worker"]) == (good_id, "shop.report", WORKER)
    assert (task["args"], task["result"], task["exception"]) == ('["sales"]', "'report on sales written'", None)
    assert task["received"] <= task["started"] <= task["succeeded"] and task["runtime"] > 0
    task = shop.task(bad_id, "FAILURE")
    assert task["exception"].startswith("TypeError(") and "time.sleep(seconds)" in task["traceback"]
    task = shop.task(flaky_id, "SUCCESS")
    assert (task["retries"], task["exception"]) == (1, "ConnectionError('the supplier hung up')")
    for execution, states in ((good, ["succeeded"]), (bad, ["dead"]), (flaky, ["failed", "succeeded"])):
        shop.states(execution, *states)

    assert {good_id, bad_id, flaky_id} <= shop.flower("api/tasks").keys()
    assert list(shop.flower("api/tasks?taskname=shop.report&state=SUCCESS")) == [good_id]
    assert good_id in shop.flower(f"task/{good_id}") and "report on sales written" in shop.flower(f"task/{good_id}")
    assert shop.flower(f"api/task/result/{quote(good_id)}") == {
        "task-id": good_id, "state": "SUCCESS", "result": "report on sales written"}
    assert shop.flower("api/workers?status=1") == {WORKER: True}
    worker = shop.flower("api/workers?refresh=1")[WORKER]
    assert [queue["name"] for queue in worker["active_queues"]] == ["celery", "chrono"]
    assert worker["stats"]["chrono_beat"]["pools"] == ["chrono"] and worker["stats"]["chrono_beat"]["settled"] >= 4
    assert WORKER in shop.flower("workers") and "chrono" in shop.flower(f"worker/{WORKER}")


def test_flower_stops_what_runs_and_what_waits_and_says_so(shop):
    """A waiting execution is unknown to it, and in no length of a queue, until a worker draws it."""
    ended, ended_id = shop.trigger("shop.slow", kwargs={"seconds": 90})
    cancelled, cancelled_id = shop.trigger("shop.slow", kwargs={"seconds": 90})
    shop.task(ended_id, "STARTED")
    shop.task(cancelled_id, "STARTED")
    waiting, waiting_id = shop.trigger("shop.report")
    shop.states(waiting, "queued")

    assert shop.flower(f"api/task/info/{waiting_id}") == {}
    assert {"name": "chrono", "messages": 0} in shop.flower("api/queues/length")["active_queues"]
    shop.revoke(waiting_id)
    shop.revoke(ended_id, terminate=True)

    shop.task(ended_id, "REVOKED")
    shop.task(waiting_id, "REVOKED")
    for execution in (ended, waiting):
        shop.states(execution, "cancelled")
    assert [line for line in shop.starts() if line["execution_id"] == waiting] == []

    shop.ask("cancel", execution=cancelled)
    shop.task(cancelled_id, "REVOKED")
    shop.states(cancelled, "cancelled")
