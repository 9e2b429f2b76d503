"""Jobs that are created and changed together keep what each has alone, at the cost of a few statements."""
import inspect
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from chrono_beat.core import imports
from chrono_beat.core.errors import Conflict, InvalidInput, QuotaExceeded
from chrono_beat_django import batches, jobs
from chrono_beat_django.importing import bring_in
from chrono_beat_django.models import Job, JobEvent, Tenant
from chrono_beat_django.store import definitions as store
from tests.crowd import at_once
from tests.django.test_jobs import clock, composition, create, queue  # noqa: F401
from tests.django.test_quotas import limit

pytestmark = pytest.mark.django_db(transaction=True)


def entries(count, **changed):
    given = {"task": "shop.t", "schedule": 60.0} | changed
    return list(imports.from_beat_schedule({f"entry {number:04}": given for number in range(count)}, "UTC"))


def bring(found, **options):
    return bring_in(found, prefix="beat_schedule:", tenant="default", **({"dry_run": False} | options))


def actions(lines):
    return [line.action for line in lines]


def named(*names, **more):
    return [{"name": name, "task": "shop.t", "cron": "0 3 * * *"} | more for name in names]


def test_an_import_asks_the_database_little_for_each_hundred_entries_and_wakes_dispatchers_once_a_batch(queue):  # noqa: F811
    with CaptureQueriesContext(connection) as created:
        bring(entries(400))
    assert (Job.objects.count(), JobEvent.objects.count(), queue.wakes) == (400, 400, 2)
    assert len(created) <= 80                           # a hundred in twenty; SQLite takes nineteen rows a statement

    with CaptureQueriesContext(connection) as repeated:
        assert set(actions(bring(entries(400)))) == {"unchanged"}
    assert len(repeated) <= 10

    with CaptureQueriesContext(connection) as changed:
        assert set(actions(bring(entries(400, args=[1])))) == {"update"}
    assert len(changed) <= 120
    assert (queue.wakes, queue.looks, len(queue.voids)) == (4, 400, 400)
    assert set(Job.objects.values_list("args", "version")) == {("[1]", 2)}
    assert JobEvent.objects.filter(action="import").count() == 400


def test_what_is_refused_takes_no_neighbour_with_it():
    create(name="entry 0001")
    given = entries(4)
    given[2] = imports.refused(given[2].origin, given[2].name, "is wrong")

    lines = bring(given)

    assert actions(lines) == ["create", "refused", "refused", "create"]
    assert "rename one of them" in lines[1].messages[0]
    assert actions(bring(given, dry_run=True)) == ["unchanged", "refused", "refused", "unchanged"]


def test_what_the_database_refuses_is_told_and_the_others_of_its_batch_are_written(monkeypatch):
    """A name may be taken, by a rename or by SQL, between the look and the write."""
    create(name="b")
    monkeypatch.setattr(store, "names_taken", lambda wanted: set())

    made = batches.create_each([jobs._defined(given) for given in named("a", "b", "c")], source="api", actor=None)

    assert [type(outcome) for outcome in made] == [Job, Conflict, Job]
    assert set(Job.objects.values_list("name", flat=True)) == {"a", "b", "c"}
    assert JobEvent.objects.count() == 3
    assert jobs.get("default", "c").next_run_at is not None


def test_a_change_that_is_refused_takes_no_other_with_it():
    made = [create(name=name) for name in "abcd"]
    wanted = [batches.Wanted(job, {"priority": 1}) for job in made]
    wanted[1] = batches.Wanted(made[1], {"name": "a"})                      # the database refuses it
    wanted[2] = batches.Wanted(made[2], {"priority": 1}, expected_version=7)

    outcomes = batches.change_each(wanted, "update", "ada")

    assert [isinstance(outcome, batches.Changed) for outcome in outcomes] == [True, False, False, True]
    assert 'job named "a" already' in str(outcomes[1]) and "version" in str(outcomes[2])
    assert list(Job.objects.order_by("name").values_list("priority", "version")) == [(1, 2), (5, 1), (5, 1), (1, 2)]
    assert JobEvent.objects.filter(action="update", actor="ada").count() == 2


def test_names_that_entries_pass_on_are_free_for_what_comes_after():
    bring(list(imports.from_crontab("0 9 * * * /bin/a", source="s", task="ops.run", timezone="UTC")))
    Job.objects.update(origin="beat_schedule:entry 0000", name="entry 0001")
    dry, done = bring(entries(2), dry_run=True), bring(entries(2))

    assert actions(dry) == actions(done) == ["update", "create"]


def test_a_run_that_is_interrupted_leaves_whole_batches_and_can_be_repeated():
    def stop_in_second_batch(line):
        if line.job.endswith("0250"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bring(entries(500), progress=stop_in_second_batch)
    assert (Job.objects.count(), JobEvent.objects.count()) == (400, 400)

    assert actions(bring(entries(500))) == ["unchanged"] * 400 + ["create"] * 100


def test_a_batch_that_breaks_off_leaves_nothing_of_itself(monkeypatch, queue):  # noqa: F811
    monkeypatch.setattr(store, "write_events", lambda events: (_ for _ in ()).throw(KeyboardInterrupt))
    limit(create_burst=1_000)

    with pytest.raises(KeyboardInterrupt):
        bring(entries(3))

    assert (Job.objects.count(), queue.wakes, Tenant.objects.get(slug="default").create_tokens) == (0, 0, None)


def test_a_dry_run_tells_the_limit_of_jobs_as_applying_it_does():
    limit(max_jobs=7)
    create(name="mine")

    dry, done = bring(entries(9), dry_run=True), bring(entries(9))

    assert actions(dry) == actions(done) == ["create"] * 6 + ["refused"] * 3
    assert dry[-1].messages == done[-1].messages and "raise max_jobs" in done[-1].messages[0]
    assert Job.objects.count() == 7


def test_an_import_creates_as_fast_as_its_tenant_may_and_refuses_what_would_take_for_ever(clock, monkeypatch):  # noqa: F811
    waits = []

    def wait(seconds):
        waits.append(seconds)
        clock.now += timedelta(seconds=seconds)

    monkeypatch.setattr(batches.wiring, "wait", wait)
    limit(create_rate=10, create_burst=30)
    assert set(actions(bring(entries(65)))) == {"create"}
    assert waits == [1.0] * 4                                   # 30 at once, then ten a second

    limit(create_rate=0.001, create_burst=2, create_tokens=2)
    lines = bring(entries(70))[65:]
    assert actions(lines) == ["create", "create", "refused", "refused", "refused"]
    assert "raise create_rate" in lines[-1].messages[0]
    assert len(waits) == 4


def test_an_import_gives_up_where_others_take_whatever_its_tenant_may_create(monkeypatch):
    waits = []
    monkeypatch.setattr(batches.wiring, "wait", waits.append)   # and no token comes back
    limit(create_rate=10, create_burst=3)

    assert actions(bring(entries(5))) == ["create"] * 3 + ["refused"] * 2
    assert len(waits) == batches.FRUITLESS_WAITS


# -- create_many ------------------------------------------------------------------------------------------------------


def test_many_jobs_are_created_in_one_transaction_in_their_order(queue):  # noqa: F811
    made = jobs.create_many(named("a", "b", kwargs={"day": 1}, timezone="Europe/London"), actor="ada")

    assert [(job.name, job.created_by, job.kwargs, job.timezone) for job in made] == [
        (name, "ada", '{"day": 1}', "Europe/London") for name in "ab"]
    assert all(Job.objects.get(id=job.id).next_run_at for job in made)
    assert (JobEvent.objects.filter(action="create", actor="ada").count(), queue.wakes) == (2, 1)
    assert jobs.create_many([]) == []


def test_many_jobs_take_what_one_job_takes():
    assert jobs._CREATABLE == inspect.signature(jobs.create).parameters.keys() - {"source", "actor"}


@pytest.mark.parametrize(("wrong", "error", "words"), [
    (named("b", cron="nonsense"), InvalidInput, "1: cron"),
    (named("b", colour="red"), InvalidInput, "1: colour"),
    (named("b", tenant="nobody"), InvalidInput, "1: tenant"),
    ([{"task": "shop.t", "every": 60}], InvalidInput, "1: name"),
    (named("a"), Conflict, '"a" already'),
    (named("there"), Conflict, '"there" already'),
    (named(*"bcdef"), QuotaExceeded, "create_rate"),
])
def test_of_many_jobs_none_is_created_where_one_is_refused(wrong, error, words):
    create(name="there")
    limit(create_rate=0.001, create_burst=4, create_tokens=4)

    with pytest.raises(error, match=words):
        jobs.create_many([*named("a"), *wrong])

    assert list(Job.objects.values_list("name", flat=True)) == ["there"]
    assert Tenant.objects.get(slug="default").create_tokens == 4


def test_more_than_may_be_created_together_are_refused_before_anything_is_read(monkeypatch):
    monkeypatch.setattr(jobs, "MAX_TOGETHER", 1)

    with pytest.raises(InvalidInput, match="create them in parts"):
        jobs.create_many(named("a", "b"))


def test_batches_at_the_same_time_get_never_one_too_many():
    limit(max_jobs=10)

    def work(number):
        wanted = [jobs._defined(given) for given in named(*(f"{number}-{n}" for n in range(4)))]
        outcomes = batches.create_each(wanted, source="api", actor=None)
        return sum(isinstance(outcome, Job) for outcome in outcomes)

    assert (sorted(at_once(4, work)), Job.objects.count()) == ([0, 2, 4, 4], 10)
