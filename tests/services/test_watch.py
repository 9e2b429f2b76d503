"""The watch: jobs whose task no live worker knows are flagged in time."""
from datetime import timedelta

import pytest

from chrono_beat import telemetry
from chrono_beat.core.records import WorkerReport
from chrono_beat.services.watch import AHEAD_US, LOOK_EVERY_US, MISSING_US, Watch
from tests.services.world import NINE, SECOND, World, us

ONCE = {"schedule_kind": "once", "expression": NINE.isoformat()}


@pytest.fixture
def scenes():
    """Makes scenes, and ends their listening."""
    made = []

    def make(*args):
        made.append(Scene(*args))
        return made[-1]

    yield make
    for scene in made:
        scene.unsubscribe()


class Scene:
    """A world with a watch, workers that report, and an ear for events."""

    def __init__(self, start=NINE - timedelta(minutes=8)):
        self.world = World(start)
        self.watch = Watch(self.world.store, self.world.queue, self.world.flow, self.world.config)
        self.reports, self.heard = [], []
        self.unsubscribe = telemetry.subscribe(lambda event, fields: self.heard.append((event, fields)))

    def look(self, seconds=0):
        """Let time pass, with a look each time one is due."""
        for _ in range(max(1, seconds * SECOND // LOOK_EVERY_US)):
            for report in self.reports:
                self.world.queue.report_worker(report, 15 * SECOND)
            wait_us = self.watch.turn(self.world.flow.monotonic_us())
            assert wait_us == LOOK_EVERY_US
            if seconds:
                self.world.flow.advance(us=wait_us)

    def events(self, name):
        return [fields for event, fields in self.heard if event == name]

    def flag(self, job):
        return self.world.store.jobs[job].flagged_reason


def worker(*tasks, pools=("chrono",), name="w1"):
    return WorkerReport(name, list(pools), list(tasks), 1, "prefork", 0)


def test_r144_a_job_is_flagged_before_it_is_due_and_cleared_when_a_worker_comes(scenes):
    scene = scenes()
    job = scene.world.job(**ONCE, task="t.renamed")
    scene.reports = [worker("t.other")]

    scene.look(seconds=60)

    assert scene.world.flow.wall_us() < us()
    assert scene.flag(job) == "no live worker of the pool chrono knows the task t.renamed"
    [event] = scene.events("no_worker")
    assert (event["pool"], event["task"], event["jobs"]) == ("chrono", "t.renamed", [(job, "default", "job")])

    scene.reports.append(worker("t.renamed", name="w2"))
    scene.look(seconds=5)

    assert scene.flag(job) == ""
    assert scene.events("worker_found")[0]["jobs"] == [(job, "default", "job")]
    scene.look(seconds=60)
    assert len(scene.events("no_worker")) == len(scene.events("worker_found")) == 1


def test_a_worker_that_does_not_draw_the_pool_is_no_help(scenes):
    scene = scenes()
    job = scene.world.job(**ONCE, task="t.a", pool="chrono.gold")
    scene.reports = [worker("t.a")]
    scene.look(seconds=60)
    assert scene.flag(job)

    scene.reports = [worker("t.a", pools=["chrono", "chrono.gold"])]
    scene.look()

    assert not scene.flag(job)


def test_no_worker_at_all_is_a_reason_too(scenes):
    scene = scenes()
    job = scene.world.job(**ONCE, task="t.a")

    scene.look(seconds=60)

    assert scene.flag(job)


def test_workers_that_are_restarted_flag_nothing(scenes):
    scene = scenes()
    job = scene.world.job(**ONCE, task="t.a")
    scene.reports = [worker("t.a")]
    for _ in range(3):
        scene.look(seconds=10)
        kept, scene.reports = scene.reports, []
        scene.look(seconds=MISSING_US // SECOND)
        scene.reports = kept

    scene.look()

    assert not scene.flag(job) and not scene.events("no_worker")


def test_what_is_due_much_later_is_left_alone(scenes):
    scene = scenes(NINE - timedelta(microseconds=AHEAD_US) - timedelta(seconds=120))
    job = scene.world.job(**ONCE, task="t.a")
    scene.look(seconds=90)
    assert not scene.flag(job)

    scene.look(seconds=90)

    assert scene.flag(job)


def test_celerys_own_tasks_are_known_to_every_worker(scenes):
    scene = scenes()
    job = scene.world.job(**ONCE, task="celery.backend_cleanup")
    scene.reports = [worker("t.a")]

    scene.look(seconds=60)

    assert not scene.flag(job)
