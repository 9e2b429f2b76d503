"""Dead letters: found, replayed once, discarded; every step in the audit."""
import json
from datetime import UTC, datetime, timedelta

import pytest

from chrono_beat.core import ids
from chrono_beat.core.config import Config
from chrono_beat.core.errors import Conflict, InvalidInput, NotFound
from chrono_beat_django import dead_letters, jobs, wiring
from chrono_beat_django.models import Execution, JobEvent, Tenant
from tests.crowd import at_once
from tests.django.fakes import RecordingQueue

pytestmark = pytest.mark.django_db(transaction=True)

NOON = datetime(2026, 1, 7, 12, 0, 0, tzinfo=UTC)
EIGHT = NOON - timedelta(hours=4)


@pytest.fixture
def queue():
    return RecordingQueue()


@pytest.fixture(autouse=True)
def composition(queue):
    Tenant.objects.get_or_create(slug="default")
    with wiring.override(queue=queue, now_us=lambda: ids.to_us(NOON), config=Config(partitions=8)):
        yield


@pytest.fixture
def job():
    return jobs.create(name="nightly", task="shop.report", cron="0 3 * * *", actor="ada")


def attempt(job, number, state, *, at=EIGHT, reason="error", finished=NOON - timedelta(hours=1), **values):
    kind = "schedule" if number == 1 else "retry"
    return Execution.objects.create(
        id=ids.execution_id(str(job.id), ids.to_us(at), number), job_id=job.id, tenant=job.tenant, job_name=job.name,
        partition=job.partition, scheduled_at=at, due_at=at, first_due_at=at, attempt=number, retries=number - 1, kind=kind,
        state=state, reason=reason, finished_at=finished, job_version=1, error=f"ValueError: no {number}", **values)


def exhausted(job, **values):
    """An occurrence of which four attempts failed; returns the dead letter."""
    for number in (1, 2, 3):
        attempt(job, number, "failed", **values)
    return attempt(job, 4, "dead", **values)


def test_r151_a_dead_letter_shows_all_its_errors_and_a_replay_starts_a_fresh_count(job, queue):
    """R151: max_retries=3 → four attempts, a dead letter with four errors; the redrive is audited."""
    letter = exhausted(job, kwargs='{"n": 1}')
    jobs.update(job, priority=2)

    made = jobs.replay(letter, actor="bob")

    errors = dead_letters.errors_of(letter)
    assert [(e.attempt, e.state, e.error) for e in errors[:4]] == [
        (1, "failed", "ValueError: no 1"), (2, "failed", "ValueError: no 2"), (3, "failed", "ValueError: no 3"),
        (4, "dead", "ValueError: no 4")]
    made.refresh_from_db()
    assert (made.attempt, made.kind, made.retries, made.state, made.job_version) == (5, "replay", 0, "scheduled", 2)
    assert (made.scheduled_at, made.due_at, made.first_due_at, made.kwargs) == (EIGHT, NOON, NOON, '{"n": 1}')
    letter.refresh_from_db()
    assert (letter.state, letter.handled_as, letter.handled_at) == ("dead", "replayed", NOON)
    event = JobEvent.objects.get(action="replay")
    assert (event.actor, json.loads(event.detail)) == ("bob", {"execution": made.id, "of": letter.id})
    assert not dead_letters.list().exists() and queue.wakes == 3


@pytest.mark.parametrize("second", [dead_letters.replay, dead_letters.discard])
@pytest.mark.parametrize(("first", "how"), [(dead_letters.replay, "replayed"), (dead_letters.discard, "discarded")])
def test_a_letter_is_handled_once(job, first, how, second):
    letter = exhausted(job)
    first(letter)
    rows = Execution.objects.count()

    with pytest.raises(Conflict, match=how):
        second(letter.id)

    assert Execution.objects.count() == rows


def test_of_two_replays_at_the_same_time_one_wins(job):
    letter = exhausted(job)

    answers = at_once(2, lambda _: dead_letters.replay(letter).id)

    assert letter.id[:-1] + "5" in answers and [type(answer) for answer in answers if not isinstance(answer, str)] == [Conflict]
    assert Execution.objects.filter(kind="replay").count() == 1


def test_a_replay_that_died_too_is_a_dead_letter_of_its_own(job):
    first = dead_letters.replay(exhausted(job))
    Execution.objects.filter(id=first.id).update(state="dead", reason="error", finished_at=NOON)

    second = dead_letters.replay(first)

    assert (second.attempt, second.kind) == (6, "replay")


def test_what_is_no_dead_letter_is_refused(job):
    ran = attempt(job, 1, "succeeded", reason="")

    with pytest.raises(Conflict, match="is succeeded: only dead letters"):
        dead_letters.replay(ran)
    for unknown in ("nonsense", ran.id[:-1] + "7"):
        with pytest.raises(NotFound):
            dead_letters.replay(unknown)
        with pytest.raises(NotFound):
            dead_letters.discard(unknown)


def test_a_letter_of_a_deleted_job_can_only_be_discarded(job):
    letter = exhausted(job)
    jobs.delete(job)

    with pytest.raises(NotFound, match="was deleted, so there is nothing to run: discard it"):
        dead_letters.replay(letter)
    assert dead_letters.discard(letter, actor="eve").handled_as == "discarded"

    event = JobEvent.objects.get(action="discard")
    assert (event.actor, event.tenant, event.job_name) == ("eve", "default", "nightly")


def test_letters_are_found_by_tenant_job_reason_and_age(job):
    Tenant.objects.create(slug="acme")
    other = jobs.create(tenant="acme", name="nightly", task="shop.report", cron="0 3 * * *")
    old = exhausted(job, finished=NOON - timedelta(days=3))
    capped = attempt(other, 1, "dead", reason="reap_cap")

    def found(**given):
        return list(dead_letters.list(**given))

    assert found() == [capped, old]
    assert found(tenant="acme") == found(job=other) == found(job=other.id) == found(reason="reap_cap") == [capped]
    assert found(older_than=86_400) == found(tenant="default") == [old]
    assert found(tenant="acme", older_than=timedelta(days=1)) == []
    with pytest.raises(InvalidInput, match="older_than"):
        dead_letters.list(older_than="long")


def test_many_are_replayed_up_to_a_limit_and_one_that_is_refused_stops_no_other(job):
    gone = jobs.create(name="gone", task="shop.report", cron="0 3 * * *")
    letters = [attempt(gone, 1, "dead", finished=NOON)]
    letters += [attempt(job, 1, "dead", at=EIGHT + timedelta(hours=n), finished=NOON - timedelta(hours=n + 1))
                for n in range(4)]
    jobs.delete(gone)

    done = dead_letters.replay_all(dead_letters.list(), limit=3)

    assert [row.scheduled_at for row in done.executions] == [EIGHT, EIGHT + timedelta(hours=1)]
    assert [key for key, why in done.refused] == [letters[0].id]
    assert done.more
    assert len(dead_letters.discard_all([row.id for row in dead_letters.list()]).executions) == 3
    assert not dead_letters.list().exists()
    with pytest.raises(InvalidInput, match="limit"):
        dead_letters.replay_all([], limit=0)
