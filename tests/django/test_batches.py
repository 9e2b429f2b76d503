"""Jobs that are created and changed together keep what each has alone, at the cost of a few statements."""
import inspect
import threading

import pytest
from django.db import connections

from chrono_beat.core.errors import Conflict, InvalidInput, QuotaExceeded
from chrono_beat_django import batches, jobs
from chrono_beat_django.models import Job, JobEvent, Tenant
from chrono_beat_django.store import definitions as store
from tests.django.test_jobs import clock, composition, create, queue  # noqa: F401
from tests.django.test_quotas import limit

pytestmark = pytest.mark.django_db(transaction=True)


def actions(lines):
    return [line.action for line in lines]


def named(*names, **more):
    return [{"name": name, "task": "shop.t", "cron": "0 3 * * *"} | more for name in names]


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
    start, made = threading.Barrier(4), []

    def work(number):
        start.wait()
        wanted = [jobs._defined(given) for given in named(*(f"{number}-{n}" for n in range(4)))]
        outcomes = batches.create_each(wanted, source="api", actor=None)
        made.append(sum(isinstance(outcome, Job) for outcome in outcomes))
        connections.close_all()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (Job.objects.count(), sorted(made)) == (10, [0, 2, 4, 4])
