"""``@scheduled`` notes what was said and refuses at once what no settings could make right."""
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from celery import Celery, _state, shared_task

import chrono_beat
from chrono_beat import Retry, every, scheduled
from chrono_beat.celery import decorators
from chrono_beat.core.errors import InvalidInput
from chrono_beat.core.schedule import Cron, Interval, ScheduleError


@pytest.fixture(autouse=True)
def nothing_declared(monkeypatch):
    """Neither declarations nor tasks get into other tests; Celery gives every task to every app that is made later."""
    monkeypatch.setattr(decorators, "_declarations", [])
    monkeypatch.setattr(_state, "_on_app_finalizers", {*_state._on_app_finalizers})


@pytest.fixture
def app():
    app = Celery("declared", fixups=[], set_as_current=False)
    app.finalize()
    return app


def declared(app):
    return [(d.task, d.name, d.expression) for d in decorators.declared_for(app)]


def test_below_the_task_decorator(app):
    @app.task(shared=False, name="shop.report")
    @scheduled("0 9 * * mon-fri", timezone="Europe/London", tenant="acme", retry=Retry(max_attempts=5), priority=2)
    def report():
        return "written"

    assert report() == "written"
    [found] = decorators.declared_for(app)
    assert (found.task, found.name, found.tenant) == ("shop.report", "shop.report", "acme")
    assert (found.timezone, found.retry.max_attempts, found.priority) == ("Europe/London", 5, 2)


def test_above_the_task_decorator(app):
    @scheduled(every=60)
    @app.task(shared=False, name="shop.report")
    def report():
        """Write."""

    assert declared(app) == [("shop.report", "shop.report", "60")]


@pytest.mark.parametrize("options", [{}, {"bind": True}, {"autoretry_for": (OSError,)}, {"base": None}])
def test_whatever_the_task_is_made_with(app, options):
    @app.task(shared=False, name="shop.report", **{key: value for key, value in options.items() if value is not None})
    @scheduled("@daily")
    def report(*args):
        """Write."""

    assert [task for task, *_ in declared(app)] == ["shop.report"]


def test_several_schedules_on_one_task(app):
    @app.task(shared=False, name="shop.report")
    @scheduled("0 9 * * *", name="morning")
    @scheduled(every(minutes=10), name="often")
    @scheduled(at="2027-01-01T00:00:00Z", name="new year")
    def report():
        """Write."""

    assert sorted(name for _, name, _ in declared(app)) == ["morning", "new year", "often"]
    assert len(decorators.registered()) == 3


def test_a_shared_task_is_not_looked_at_while_modules_are_imported(app):
    """Evaluating the promise would finish an app that is not configured yet."""
    app = Celery("unfinished", fixups=[])

    @scheduled("0 9 * * *", name="above")
    @shared_task(name="shop.shared")
    @scheduled("0 9 * * *", name="below")
    def report():
        """Write."""

    assert not app.finalized
    app.finalize()
    assert sorted(name for task, name, _ in declared(app) if task == "shop.shared") == ["above", "below"]


def test_a_function_that_is_no_task_is_told(app):
    @scheduled("0 9 * * *")
    def forgotten():
        """Write."""

    with pytest.raises(InvalidInput, match=r"forgotten.*@shared_task"):
        declared(app)


@pytest.mark.parametrize("when", ["0 0 30 2 *", "*/61 * * * *", "* * * * * *", "", "@reboot"])
def test_a_wrong_schedule_is_refused_where_it_stands(when):
    with pytest.raises(ScheduleError):
        scheduled(when)


@pytest.mark.parametrize(("arguments", "field"), [
    ({"priority": 10}, "priority"), ({"retry": Retry(jitter=2)}, "retry"), ({"kwargs": {"at": object()}}, "kwargs"),
    ({"name": "a\nb"}, "name"), ({"name": ""}, "name"), ({"timezone": "Mars/Base"}, "timezone"),
    ({"every": 5}, "schedule"),
    ({"concurrency": "queue"}, "concurrency"), ({"start": datetime(2026, 1, 1)}, "start"),
])
def test_other_wrong_input_is_refused_where_it_stands_too(arguments, field):
    with pytest.raises(InvalidInput) as refused:
        scheduled("0 9 * * *", **arguments)

    assert refused.value.field == field


def test_what_depends_on_settings_is_left_to_sync():
    scheduled("0 9 * * *", pool="house.gold", kwargs={"x": "y" * 300_000})


def test_a_date_that_has_passed_is_no_mistake_of_the_code():
    scheduled(at="2020-01-01T00:00:00Z")
    scheduled(Cron("0 9 * * *", end=datetime(2020, 1, 1, tzinfo=UTC)))


def test_every_is_an_interval():
    assert every(hours=1, minutes=30) == Interval(timedelta(minutes=90))
    for wrong in ({}, {"seconds": 0.5}, {"days": float("nan")}, {"weeks": 1e300}, {"hours": "1"}):
        with pytest.raises(ScheduleError):
            every(**wrong)


def test_the_package_is_light_and_needs_no_settings():
    code = (
        "import sys, chrono_beat; assert 'celery' not in sys.modules, 'celery'; chrono_beat.__version__;"
        "from chrono_beat import scheduled, every, current, Retry;"
        "from django.conf import settings; assert not settings.configured"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ".:" + ":".join(sys.path)})

    assert {"scheduled", "every", "current", "Retry", "__version__"} <= {*dir(chrono_beat)}
    with pytest.raises(AttributeError):
        chrono_beat.nothing  # noqa: B018
