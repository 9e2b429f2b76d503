"""The composition root: built once, from the settings, and anew where sockets cannot be shared."""
import os
import threading

import pytest
from django.db import connections

from chrono_beat.core.config import Config
from chrono_beat.core.errors import MisconfiguredError
from chrono_beat_django import doctor, jobs, wiring
from chrono_beat_django.models import Deployment
from tests.django.fakes import RecordingQueue


@pytest.fixture(autouse=True)
def nothing_built():
    wiring.forget()
    yield
    wiring.forget()


def test_settings_are_read_once_and_again_when_they_change(settings):
    settings.CHRONO_BEAT = {"PARTITIONS": 16}
    first = wiring.config()
    assert first.partitions == 16
    assert wiring.config() is first

    settings.CHRONO_BEAT = {"PARTITIONS": 32}
    assert wiring.config().partitions == 32


def test_impossible_settings_are_refused_with_all_that_is_wrong(settings):
    settings.CHRONO_BEAT = {"PARTITIONS": 0, "LANE": 1}

    with pytest.raises(MisconfiguredError, match=r"PARTITIONS.*; LANE: unknown setting; did you mean LANES\?"):
        wiring.config()


def test_a_project_without_the_application_is_told_so(monkeypatch):
    monkeypatch.setattr("django.apps.apps.is_installed", lambda name: False)

    with pytest.raises(MisconfiguredError, match="INSTALLED_APPS"):
        wiring.config()


def test_parts_are_built_once_and_shared():
    assert wiring.queue() is wiring.queue()
    assert wiring.store() is wiring.store()
    assert wiring.new_queue() is not wiring.queue()


def test_the_queue_has_the_settings(settings):
    settings.CHRONO_BEAT = {"KEY_PREFIX": "elsewhere"}

    assert wiring.queue().config.key_prefix == "elsewhere"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_builds_its_own():
    before = wiring.queue()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, b"own" if wiring.queue() is not before else b"shared")
        os._exit(0)
    os.waitpid(child, 0)

    assert os.read(read, 10) == b"own"


def test_parts_are_put_in_place_for_a_while():
    queue = RecordingQueue()
    with wiring.override(queue=queue, config=Config(partitions=3), now_us=lambda: 5):
        assert wiring.queue() is wiring.new_queue() is queue
        assert (wiring.config().partitions, wiring.now_us()) == (3, 5)
        with wiring.override(now_us=lambda: 6):
            assert wiring.now_us() == 6
        assert wiring.now_us() == 5

    assert wiring.queue() is not queue
    with pytest.raises(TypeError, match="qeue"), wiring.override(qeue=queue):
        pass


@pytest.mark.django_db
def test_the_clock_is_the_databases():
    assert abs(wiring.now_us() - wiring.store().now_us()) < 60_000_000


def test_what_stands_above_is_handed_on(monkeypatch):
    monkeypatch.setattr(doctor, "examine", lambda: ["fine"])
    monkeypatch.setattr("chrono_beat_django.sync.sync", lambda app, **options: (app, options))

    assert wiring.jobs() is jobs
    assert wiring.examine() == ["fine"]
    assert wiring.sync("app", prune=False) == ("app", {"actor": "sync", "prune": False})


@pytest.fixture
def layout(db, settings):
    Deployment.objects.update_or_create(id=1, defaults={"partitions": 8, "lanes": 1})
    settings.CHRONO_BEAT = {"PARTITIONS": 8}


def test_services_stop_in_the_order_in_which_work_flows(layout):
    names = [service.name for service in wiring.services(name="me").services]

    assert names[0] == "planner"
    assert names[-10:] == [
        "audit", "repairs", "watch", "keeper", "failures", "norms", "zones", "reaper", "recorder", "alerts"]


@pytest.mark.parametrize(("roles", "names"), [
    (("record",), ["recorder"]), (("reap",), ["reaper"]), (("audit",), ["audit", "repairs", "watch"]),
    (("keep",), ["keeper", "failures", "norms", "zones"]),
])
def test_a_role_alone(layout, roles, names):
    assert [service.name for service in wiring.services(roles).services] == names


@pytest.mark.parametrize("roles", [(), ("dispatch", "sing")])
def test_roles_must_be_known(roles):
    with pytest.raises(ValueError, match="known are dispatch"):
        wiring.services(roles)


def test_services_refuse_to_run_on_another_layout(layout, settings):
    settings.CHRONO_BEAT = {"PARTITIONS": 4}
    with pytest.raises(MisconfiguredError, match="PARTITIONS 8"):
        wiring.services()

    Deployment.objects.all().delete()
    with pytest.raises(MisconfiguredError, match="migrate"):
        wiring.services()


def test_a_services_thread_closes_its_connections(layout):
    """A thread's connections are its own; Django closes them at the end of a request, and here is none."""
    runner, opened = wiring.services(("keep",)), []

    def work():
        with connections["default"].cursor() as cursor:
            cursor.execute("SELECT 1")
        runner._at_thread_end()
        opened.append(connections["default"].connection)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert opened == [None]
