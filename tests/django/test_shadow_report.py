"""What the old beat really sent beside what the shadows fired, for minutes and hours of a virtual clock."""
from datetime import timedelta
from types import SimpleNamespace

import pytest
from celery.schedules import crontab, schedule
from click.testing import CliRunner

from chrono_beat.celery.commands import chrono
from chrono_beat_django import jobs, shadowing
from chrono_beat_django.models import BeatFire, BeatWatch, Job
from chrono_beat_django.shadow_report import UNSURE
from tests.django.trial import trial_of

ENTRIES = {"minutes": crontab(), "fives": crontab(minute="*/5"), "ninety": 90.0, "daily": crontab(minute="0", hour="3")}


@pytest.fixture
def trial(transactional_db):
    with trial_of(ENTRIES) as trial:
        yield trial


def told(entry):
    return entry.old, entry.shadow, entry.matched, len(entry.only_old), len(entry.only_shadow)


def test_entries_that_mean_the_same_agree(trial):
    trial.bring_in()
    trial.run(0.7)
    trial.beat()
    trial.run(30)

    status, entries = trial.report()

    assert status == 0, entries
    assert told(entries["minutes"]) == (30, 30, 30, 0, 0)
    assert told(entries["fives"]) == (6, 6, 6, 0, 0)
    assert entries["ninety"].matched >= 18 and not entries["ninety"].differs
    assert told(entries["daily"]) == (0, 0, 0, 0, 0) and not entries["daily"].differs
    assert entries["minutes"].furthest_seconds < 1 and entries["minutes"].tolerance_seconds == 30
    assert "counts from another instant" in entries["ninety"].why[0]


def test_what_was_changed_ended_or_added_there_alone_is_told_and_is_the_exit_status(trial):
    trial.bring_in()
    trial.beat({"minutes": crontab(minute="*/2"), "fives": crontab(minute="*/5"), "new": crontab()})
    trial.run(20)

    status, entries = trial.report()

    assert status == 1
    assert told(entries["minutes"])[2:] == (10, 0, 10)
    assert not entries["fives"].differs
    assert entries["ninety"].differs and entries["ninety"].old == 0
    assert "counts from the import; Celery counts from the last run" in entries["ninety"].why
    assert (entries["new"].state, entries["new"].job, entries["new"].why) == ("none", "", ["has no job here: import it"])


def test_a_dispatcher_that_was_away_is_seen_and_why(trial):
    trial.bring_in()
    trial.beat()
    trial.run(10)
    trial.world.kill("a")
    trial.run(10)
    trial.world.dispatcher("b")
    trial.run(10)

    status, entries = trial.report()

    assert status == 1
    assert 8 <= len(entries["minutes"].only_old) <= 10
    assert f"did not fire here: {len(entries['minutes'].only_old)} missed (misfire)" in entries["minutes"].why


def test_a_beat_that_was_stopped_is_not_compared_while_it_was(trial):
    trial.bring_in()
    trial.beat()
    trial.run(5)
    trial.beats.pop().stop()
    trial.run(5)
    trial.beat()
    trial.run(5)

    status, entries = trial.report()

    assert status == 0
    assert 9 <= entries["minutes"].matched <= 10


def test_two_beats_at_once_are_told(trial):
    trial.bring_in()
    trial.beat()
    trial.beat()
    trial.run(10.7)

    status, entries = trial.report()

    assert (status, told(entries["minutes"])[2:]) == (1, (10, 10, 0))


def test_a_change_of_its_plan_begins_the_trial_of_that_job_anew_and_another_change_does_not(trial):
    trial.bring_in()
    trial.beat()
    trial.run(10.5)
    jobs.update(Job.objects.get(name="minutes"), timezone="Europe/London")
    jobs.update(Job.objects.get(name="fives"), note="seen")
    trial.run(5)

    status, entries = trial.report()

    assert (status, entries["minutes"].matched, entries["fives"].matched) == (0, 5, 3)


def test_what_is_paused_here_and_not_there_is_told(trial):
    trial.bring_in(paused=True)
    trial.beat()
    trial.run(5.7)

    status, entries = trial.report()

    # Where nothing fired here the tolerance is a minute, and what is nearer to the ends than that is not judged.
    assert (status, entries["minutes"].state, told(entries["minutes"])[2:]) == (1, "paused", (0, 3, 0))
    assert "is paused here" in entries["minutes"].why


def test_a_job_that_never_was_a_shadow_and_is_sent_there_as_well_is_told(trial):
    trial.bring_in(shadow=False)
    trial.beat()
    trial.run(3)

    status, entries = trial.report()

    assert status == 1 and entries["minutes"].state == "both" and len(entries["minutes"].sent_twice) == 3
    assert "daily" not in entries


def test_an_entry_is_found_by_its_name_where_the_beat_keeps_it_in_a_table_of_its_own(trial):
    trial.bring_in()
    trial.beat()
    trial.run(5)
    BeatFire.objects.filter(name="minutes").update(origin="django_celery_beat:7")

    status, entries = trial.report()

    assert status == 0 and entries["minutes"].matched == 5


def test_only_as_far_back_as_asked_and_with_the_tolerance_given(trial):
    trial.bring_in()
    trial.beat({"minutes": schedule(timedelta(minutes=1)), "fives": ENTRIES["fives"], "ninety": 90.0, "daily": 86_400.0})
    trial.run(12)

    _, entries = trial.report("--since", "5m")
    strict = trial.report("--tolerance", "1s")[1]

    assert 4 <= entries["minutes"].matched <= 5
    assert strict["minutes"].tolerance_seconds == 1 and strict["minutes"].differs
    assert not strict["fives"].differs


def test_people_read_a_table_and_what_to_do_where_nothing_was_watched(trial):
    def said(*line):
        trial.mirror()
        return CliRunner().invoke(chrono, ["shadow", "report", *line],
                                  obj=SimpleNamespace(app=trial.app_of(trial.entries)))

    trial.bring_in()
    nothing = said()
    assert nothing.exit_code == 1 and "OBSERVE_BEAT" in nothing.stderr
    assert said("--since", "soon").exit_code == said("--since", "9999999999999d").exit_code == 2

    trial.beat({"minutes": crontab(minute="*/2"), "fives": ENTRIES["fives"], "new": crontab()})
    trial.run(0.5)
    assert said().stdout.startswith("old.Beat was watched for 30 s in 1 span")
    trial.run(19.5)
    done = said()

    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert lines[0].startswith("old.Beat was watched for 20.0 min in 1 span")
    assert "default/minutes  shadow  10   20      10       0         10" in done.stdout
    assert any(line.startswith("default/minutes: only shadow: 2026-01-02 09:01:00Z, ") and line.endswith(" and 7 more")
               for line in lines)
    assert "new: has no job here: import it" in lines
    assert lines[-1] == "1 of 5 agree, 3 differ, 1 have nothing to compare yet"


@pytest.mark.parametrize(("prompt", "killed"), [(True, False), (False, False), (False, True)],
                         ids=["at once", "a minute late", "a minute after it was killed"])
def test_what_nobody_sent_and_what_both_sent_when_a_job_went_live_is_told(trial, prompt, killed):
    """Between the end of the old beat and going live a shadow still sends nothing; an old beat that goes on sends as well.

    What a beat that was killed sent after its last note is not known: to make up for it may send it twice.
    """
    trial.bring_in()
    trial.beat()
    trial.run(5.4)
    beat = trial.beats.pop()
    last = BeatWatch.objects.get().seen_until
    if not killed:
        beat.stop()
    trial.run(0.1 if prompt else 1)
    job = Job.objects.get(name="minutes")
    Job.objects.filter(id=job.id).update(next_run_at=trial.now() + timedelta(seconds=30))
    shadowing.go_live(Job.objects.get(id=job.id))
    trial.world.store.jobs[str(job.id)].target_kind = "task"
    quiet = trial.report()[1]["minutes"]

    trial.beat()
    trial.run(2)
    status, entries = trial.report()

    assert (quiet.state, quiet.matched, quiet.sent_twice) == ("live", 5, [])
    assert quiet.differs is not prompt
    assert [instant[:16] for instant in quiet.sent_by_nobody] == ([] if prompt else ["2026-01-02T09:06"])
    assert not prompt or quiet.why == []
    assert prompt or any("backfill makes up for it" in why for why in quiet.why) is not killed
    assert [why for why in quiet.why if "killed, not stopped" in why] == ([f"{UNSURE} {last:%H:%M:%S}Z"] if killed else [])
    assert status == 1 and len(entries["minutes"].sent_twice) == 2
    assert "is sent there as well since it is live here: end the entry there" in entries["minutes"].why
