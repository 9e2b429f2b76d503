"""The file by which a probe sees from outside whether the services of a process get on."""
import os

from chrono_beat.celery.commands.run import show_health
from chrono_beat.services.service import HEALTHY_WITHIN_US, Runner
from tests.services.world import SECOND, World


def test_r105_the_health_file_is_left_to_age_while_a_service_does_not_get_through(tmp_path):
    world, file = World(), tmp_path / "health"
    planner = world.dispatcher().planner
    runner = Runner([planner], world.flow)
    world.run(seconds=1)

    show_health(runner, file)
    assert file.exists()

    os.utime(file, (0, 0))
    world.store.unavailable = True
    world.run(us=HEALTHY_WITHIN_US + 2 * SECOND)
    show_health(runner, file)
    assert file.stat().st_mtime == 0

    world.store.unavailable = False
    world.run(seconds=6)
    show_health(runner, file)
    assert file.stat().st_mtime > 0


def test_a_health_file_that_cannot_be_written_ends_nothing(tmp_path):
    world = World()
    runner = Runner([world.dispatcher().planner], world.flow)

    show_health(runner, tmp_path / "no such directory" / "health")
    show_health(runner, None)
