"""What an import says of entries as people have them, line by line, worked out by hand from what each means there.

The app's zone is Europe/London. It is Wednesday, 7 January 2026, noon; the names, times and options are of the kind that
public projects have.
"""
import hashlib
import json
from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.beat import BeatLazyFunc
from celery.schedules import crontab, schedule, solar
from click.testing import CliRunner
from django_celery_beat.models import ClockedSchedule, CrontabSchedule, IntervalSchedule, PeriodicTask, SolarSchedule
from django_celery_beat.tzcrontab import TzAwareCrontab

from chrono_beat.celery import ChronoBeat
from chrono_beat.celery.commands import chrono
from chrono_beat.core import ids
from chrono_beat.core.config import Config
from chrono_beat_django import jobs, wiring
from chrono_beat_django.models import Job, Tenant
from tests.django.fakes import RecordingQueue

NOON = datetime(2026, 1, 7, 12, tzinfo=UTC)
SUN = solar.__new__(solar)                      # its constructor needs a library that knows where the sun is
SUN.event, SUN.lat, SUN.lon = "dawn_astronomical", -37.8, 145.2

NO_SUN = "solar schedules are unsupported; replace it by a crontab near that time, or trigger the job from code"
BOTH_DAYS = "both day fields must hold, as in Celery; cron text would take either"
FROM_IMPORT = "counts from the import; Celery counts from the last run"
NOT_ROUNDED = "relative is dropped: runs are not rounded to whole periods"
EXPIRY = "expiry counts from the due time, where Celery counts from the sending"
PRIORITY = "priority 0 is the first here, as with Redis; RabbitMQ takes the highest first"
DISABLED = "is disabled there, so it is paused here"
TOO_SHORT = "it is shorter than a second; give one second or more"
OVER = "is over there; nothing is left to take over"
IS_OVER = "end: is over already, so the job would never run"


def queue_dropped(queue):
    return f'queue "{queue}" is dropped: the pool of the tenant runs it; --pool {queue}=POOL gives it another'


class Holidays(crontab):
    """A schedule of somebody's own: not on holidays."""

    def is_due(self, last_run_at):
        return super().is_due(last_run_at)


class EveryMorning(crontab):
    """A name for one of Celery's schedules, which means what that means."""

    def __init__(self):
        super().__init__(minute=0, hour=7)


def lines_of(text):
    """Return the report by name: what becomes of the entry, then its messages."""
    found, name = {}, ""
    for line in text.splitlines()[:-1]:                        # the last one counts
        if line.startswith(" "):
            found[name].append(line.strip())
        else:
            action, _, rest = line.partition(" ")
            name, _, when = rest.strip().partition("  ")
            name = name.removeprefix("default/")
            found[name] = [f"{action} {when}".strip()]
    return found


@pytest.fixture
def app(transactional_db):
    Tenant.objects.get_or_create(slug="default")
    app = Celery("moving", set_as_current=False, broker="memory://")
    ChronoBeat(app)
    app.conf.update(timezone="Europe/London", result_expires=None)
    @app.task(name="t", shared=False)
    def known():
        """Is known to the app."""

    with wiring.override(queue=RecordingQueue(), now_us=lambda: ids.to_us(NOON), config=Config(partitions=8)):
        yield app


def report(app, *line):
    """Return what the import says it would do, which must be what it then says it does."""
    def run(*more):
        done = CliRunner().invoke(chrono, ["import", *line, *more], obj=SimpleNamespace(app=app))
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return lines_of(done.stdout)

    dry, real = run(), run("--apply")
    assert dry == real
    assert {name for name, (first, *_) in real.items() if first.startswith("create")} == set(
        Job.objects.filter(source="import").values_list("name", flat=True))
    return real


def celery(*fields, zone="Europe/London"):
    return f"create celery {' '.join(fields)} {zone}"


BEAT = {
    "describe-users": ({"schedule": crontab(hour=2, minute=19)}, [celery("19", "2", "*", "*", "*")]),
    "digest": ({"schedule": crontab(hour="4", minute="0", day_of_week="5")}, [celery("0", "4", "5", "*", "*")]),
    "stuck": ({"schedule": crontab(minute="*/5")}, [celery("*/5", "*", "*", "*", "*")]),
    "statement": ({"schedule": crontab(minute=45, hour=7, day_of_month=3)}, [celery("45", "7", "*", "3", "*")]),
    "first-monday": ({"schedule": crontab(minute=0, hour=9, day_of_week="mon", day_of_month="1-7")},
                     [celery("0", "9", "mon", "1-7", "*"), BOTH_DAYS]),
    "transmit": ({"schedule": 10}, ["create interval 10 Europe/London", FROM_IMPORT]),
    "fortnight": ({"schedule": timedelta(days=14)}, ["create interval 1209600 Europe/London", FROM_IMPORT]),
    "half-second": ({"schedule": 0.5}, ["refused", TOO_SHORT]),
    "dawn": ({"schedule": SUN}, ["refused", NO_SUN]),
    "whole-hours": ({"schedule": schedule(timedelta(hours=1), relative=True)},
                    ["create interval 3600 Europe/London", FROM_IMPORT, NOT_ROUNDED]),
    "whole-hours-too": ({"schedule": timedelta(hours=1), "relative": True},
                        ["create interval 3600 Europe/London", FROM_IMPORT, NOT_ROUNDED]),
    "of-another-clock": ({"schedule": crontab(minute=0, hour=9, nowfun=lambda: NOON)},
                         [celery("0", "9", "*", "*", "*"), "nowfun is dropped: it is read in Europe/London"]),
    "tokyo": ({"schedule": TzAwareCrontab(minute=0, hour=9, tz=ZoneInfo("Asia/Tokyo"))},
              [celery("0", "9", "*", "*", "*", zone="Asia/Tokyo")]),
    "holidays": ({"schedule": Holidays(minute=0)},
                 ["refused", "a Holidays is unsupported; write it as a crontab or an interval"]),
    "mornings": ({"schedule": EveryMorning()}, [celery("0", "7", "*", "*", "*")]),
    "reports": ({"schedule": crontab(minute=0), "options": {
        "queue": "reports", "priority": 3, "expires": 600, "headers": {"x": "1"}, "soft_time_limit": 30, "time_limit": 60}},
        [celery("0", "*", "*", "*", "*"), PRIORITY, EXPIRY, queue_dropped("reports")]),
    "expires-in": ({"schedule": crontab(minute=0), "options": {"expires": timedelta(minutes=10)}},
                   [celery("0", "*", "*", "*", "*"), EXPIRY]),
    "expired": ({"schedule": crontab(minute=0), "options": {"expires": datetime(2025, 12, 31)}},
                ["refused " + celery("0", "*", "*", "*", "*").removeprefix("create "), IS_OVER]),
    "routed": ({"schedule": crontab(minute=0), "options": {
        "exchange": "media", "routing_key": "media.video", "retry_policy": {"max_retries": 3, "interval_max": 1},
        "countdown": 5}},
        [celery("0", "*", "*", "*", "*"), "option countdown is dropped", "option exchange is dropped",
         "option retry_policy is dropped", "option routing_key is dropped"]),
    "urgent": ({"schedule": crontab(minute=0), "options": {"priority": 255}},
               [celery("0", "*", "*", "*", "*"), "priority 255 is dropped: it must be 0 (first) to 9"]),
    "lazy": ({"schedule": crontab(minute=0), "args": (BeatLazyFunc(len, ""),)},
             ["refused " + celery("0", "*", "*", "*", "*").removeprefix("create "),
              'args: "[0]" is a BeatLazyFunc, which JSON does not have; give texts, numbers, lists, dicts']),
    "since": ({"schedule": crontab(minute=0), "kwargs": {"since": date(2026, 1, 1)}},
              ["refused " + celery("0", "*", "*", "*", "*").removeprefix("create "),
               'kwargs: "since" is a date, which JSON does not have; give its text, value.isoformat()']),
    "of-another-app": ({"schedule": crontab(minute=0), "task": "shop.far"},
                       [celery("0", "*", "*", "*", "*"),
                        "this app has no task shop.far, so a worker of another one has to know it"]),
    "n" * 201: ({"schedule": crontab(minute=0)}, ["refused " + celery("0", "*", "*", "*", "*").removeprefix("create "),
                                                  "name: may have 200 characters; this has 201"]),
    "mine": ({"schedule": crontab(minute=0)}, ["refused " + celery("0", "*", "*", "*", "*").removeprefix("create "),
                                               'default has a job "mine" that does not come from here; rename one of them']),
    "of-a-task": ({"schedule": 5, "task": crontab}, ["refused", "its task is a type; give the name of the task, a text"]),
    "no-schedule": ({}, ["refused", "the entry needs a task and a schedule (KeyError: 'schedule')"]),
}


def test_entries_of_beat_schedule(app):
    jobs.create(name="mine", task="t", cron="0 1 * * *")
    app.conf.beat_schedule = {name: {"task": "t"} | item for name, (item, _) in BEAT.items()}
    app.on_after_finalize.connect(lambda sender, **_: sender.add_periodic_task(30, app.tasks["t"].s(), name="added"), weak=False)

    assert report(app, "beat-schedule") == {name: said for name, (_, said) in BEAT.items()} | {
        "added": ["create interval 30 Europe/London", FROM_IMPORT]}


def test_rows_of_django_celery_beat(app):
    pacific = CrontabSchedule.objects.create(minute="*/15", hour="1-23", timezone="America/Los_Angeles")
    monday = CrontabSchedule.objects.create(minute="0", hour="9", day_of_week="1", day_of_month="1-7", timezone="UTC")
    nine = CrontabSchedule.objects.create(minute="0", hour="9", timezone="UTC")
    week = IntervalSchedule.objects.create(every=7, period="days")
    blink = IntervalSchedule.objects.create(every=500_000, period="microseconds")
    later, earlier = (ClockedSchedule.objects.create(clocked_time=NOON + timedelta(days=days)) for days in (2, -2))
    sun = SolarSchedule.objects.create(event="sunset", latitude=51.5, longitude=0.1)
    at_nine = celery("0", "9", "*", "*", "*", zone="UTC")
    rows = {
        "send scheduled mail": ({"crontab": pacific, "enabled": False},
                                [celery("*/15", "1-23", "*", "*", "*", zone="America/Los_Angeles"), DISABLED]),
        "first monday": ({"crontab": monday}, [celery("0", "9", "1", "1-7", "*", zone="UTC"), BOTH_DAYS]),
        "periodic_task_init": ({"interval": week, "last_run_at": NOON - timedelta(days=2)},
                               ["create interval 604800 Europe/London", "counts from its last run there, and does not drift"]),
        "never ran": ({"interval": week}, ["create interval 604800 Europe/London", "counts from the import; it never ran there"]),
        "blink": ({"interval": blink}, ["refused", TOO_SHORT]),
        "remind": ({"clocked": later, "one_off": True}, ["create once 2026-01-09T12:00:00Z Europe/London"]),
        "reminded": ({"clocked": earlier, "one_off": True, "enabled": False},
                     ["over once 2026-01-05T12:00:00Z Europe/London", OVER]),
        "overlooked": ({"clocked": earlier, "one_off": True},
                       ["refused once 2026-01-05T12:00:00Z Europe/London",
                        "expression: 2026-01-05T12:00:00Z has passed; give a later instant, or trigger the job now"]),
        "next nine": ({"crontab": nine, "one_off": True},
                      ["create once 2026-01-08T09:00:00Z UTC", "runs only once: at 2026-01-08T09:00:00Z"]),
        "dusk": ({"solar": sun}, ["refused", NO_SUN]),
        "next nine, sent": ({"crontab": nine, "one_off": True, "total_run_count": 1},
                            ["over " + at_nine.removeprefix("create "), OVER]),
        "reminded, still enabled": ({"clocked": earlier, "one_off": True, "total_run_count": 1},
                                    ["over once 2026-01-05T12:00:00Z Europe/London", OVER]),
        "reminds too late": ({"clocked": later, "one_off": True, "expires": NOON + timedelta(days=1)},
                             ["over once 2026-01-09T12:00:00Z Europe/London", OVER]),
        "reminds from a start on": ({"clocked": later, "one_off": True, "start_time": NOON + timedelta(days=5)},
                                    ["create once 2026-01-12T12:00:00Z Europe/London"]),
        "ends before nine": ({"crontab": nine, "one_off": True, "expires": NOON + timedelta(hours=1)},
                             ["over " + at_nine.removeprefix("create "), OVER]),
        "short-lived": ({"crontab": nine, "expire_seconds": 60}, [at_nine, EXPIRY]),
        "no expiry": ({"crontab": nine, "expire_seconds": 0}, [at_nine]),
        "ended": ({"crontab": nine, "expires": NOON - timedelta(days=1)}, ["over " + at_nine.removeprefix("create "), OVER]),
        "not yet": ({"crontab": nine, "start_time": NOON + timedelta(days=9)}, [at_nine]),
        "routed": ({"crontab": nine, "queue": "media", "exchange": "e", "routing_key": "r", "priority": 3, "headers": '{"x": 1}'},
                   [at_nine, "option exchange is dropped", "option routing_key is dropped", PRIORITY, queue_dropped("media")]),
        "cut off": ({"crontab": nine, "args": "[1,"},
                    ["refused",
                     "args, kwargs or headers are no JSON: Expecting value: line 1 column 4 (char 3); mend them there"]),
        "swapped": ({"crontab": nine, "args": '{"a": 1}'},
                    ["refused " + at_nine.removeprefix("create "), "args: must be a list, not a dict"]),
        "m" * 200: ({"crontab": nine}, [at_nine]),
    }
    PeriodicTask.objects.bulk_create([PeriodicTask(name=name, task="t", **row) for name, (row, _) in rows.items()])

    assert report(app, "django-celery-beat") == {name: said for name, (_, said) in rows.items()}


@pytest.mark.redis
@pytest.mark.parametrize("spelled", [str.lower, str.upper])
def test_hashes_of_redbeat(app, redis_url, spelled):
    from redbeat import RedBeatSchedulerEntry
    from redbeat.schedules import rrule

    app.conf.update({spelled("redbeat_redis_url"): redis_url, spelled("redbeat_key_prefix"): "shop:beat:"})
    last_run = "counts from its last run there, and does not drift"
    entries = {
        "static-sites": (crontab(minute="30", hour="3", day_of_week="monday"), {}, [celery("30", "3", "monday", "*", "*")]),
        "gravatars": (crontab(minute="0", hour="0"), {"enabled": False}, [celery("0", "0", "*", "*", "*"), DISABLED]),
        "poll": (schedule(timedelta(minutes=5)), {"last_run_at": NOON - timedelta(minutes=2)},
                 ["create interval 300 Europe/London", last_run]),
        "whole": (schedule(timedelta(minutes=5), relative=True), {"last_run_at": NOON},
                  ["create interval 300 Europe/London", last_run, NOT_ROUNDED]),
        "rule": (rrule("DAILY", dtstart=NOON), {}, ["refused", "a rrule is unsupported; write it as a crontab or an interval"]),
        "short-lived": (crontab(minute="0"), {"options": {"expires": 60, "queue": "fast"}},
                        [celery("0", "*", "*", "*", "*"), EXPIRY, queue_dropped("fast")]),
        "since": (crontab(minute="0"), {"kwargs": {"span": [{"since": NOON}]}},
                  ["refused", "its arguments hold a datetime, which JSON does not have; give a text there"]),
        "until-may": (crontab(minute="0"), {"options": {"expires": datetime(2026, 5, 1, tzinfo=UTC)}},
                      [celery("0", "*", "*", "*", "*")]),
    }
    for name, (when, others, _) in entries.items():
        RedBeatSchedulerEntry(name, "t", when, app=app, **others).save()

    assert report(app, "redbeat") == {name: said for name, (_, _, said) in entries.items()}
    assert Job.objects.get(name="until-may").end_at == datetime(2026, 5, 1, tzinfo=UTC)


def names_of(*commands):
    """Return the names of jobs from a crontab: a command and what tells it from others that begin likewise."""
    return [f"{command} {hashlib.sha256(command.encode()).hexdigest()[:12]}" for command in commands]


def test_lines_of_a_crontab_of_somebodys_own(app, tmp_path):
    path = tmp_path / "crontab"
    path.write_text("\n".join((
        "# m h dom mon dow command",
        "0 2 * * *   /srv/purge",
        'MAILTO=""', "PATH = /usr/bin:/bin",
        "37 8 * * 1 cd /srv && ./run_with_lockfile weekly # no comment",
        "@monthly /srv/backup",
        "@reboot /srv/start",
        "0 0 13 * 5 /srv/either", "0 0 */2 * 1 /srv/both", "0 0 * * */2 /srv/even", "0 0 */1 * 1 /srv/mondays",
        r"0 3 * * * date +\%F%first%second",
        "0 3 * * * /srv/twice", "0 15 * * * /srv/twice",
        "CRON_TZ=Asia/Tokyo", "09 9 * * 1-5 /srv/tokyo",
        "CRON_TZ=Mars/Phobos", "0 9 * * * /srv/mars",
        "CRON_TZ=Europe/London", "60 * * * * /srv/never", "5 5 * * *", "30 8 * * * Europe/London",
        "17 * * * * root /srv/hourly",
    )))
    stored = "the environment is stored with the job: MAILTO, PATH"
    both, even, mondays = names_of("/srv/both", "/srv/even", "/srv/mondays")
    purge, weekly, backup, start, either, dated, twice, tokyo, mars, never = names_of(
        "/srv/purge", "cd /srv && ./run_with_lockfile weekly # no comment", "/srv/backup", "/srv/start",
        "/srv/either", r"date +\%F%first%second", "/srv/twice", "/srv/tokyo", "/srv/mars", "/srv/never")
    given = "tab"

    found = report(app, "crontab", str(path), "--task", "t", "--name", given)

    assert found == {
        purge: ["create cron 0 2 * * * Europe/London"],
        weekly: ["create cron 37 8 * * 1 Europe/London", stored],
        backup: ["create cron @monthly Europe/London", stored],
        start: ["refused", "tab line 7: @reboot is unsupported; run it from the service manager of the host"],
        either: ["create cron 0 0 13 * 5 Europe/London", stored],
        both: ["create cron 0 0 */2 * 1 Europe/London", stored,
               "either day field is enough here; cron wants both where one begins with a star, as */2 does"],
        even: ["create cron 0 0 * * */2 Europe/London", stored],
        mondays: ["create cron 0 0 */1 * 1 Europe/London", stored],
        dated: ["create cron 0 3 * * * Europe/London", stored],
        twice: ["create cron 0 3 * * * Europe/London", stored],
        f"{twice}-2": ["create cron 0 15 * * * Europe/London", stored],
        tokyo: ["create cron 09 9 * * 1-5 Asia/Tokyo", stored],
        mars: ["refused", "tab line 18: timezone: 'Mars/Phobos' is not an IANA zone; use a name such as 'Europe/London'"],
        never: ["refused", "tab line 20: minute: 60 is outside 0-59"],
        "tab line 21": ["refused", "the line has no command after its schedule"],
        "tab line 22": ["refused", "the line has a zone where its command should be; write CRON_TZ=Europe/London before it"],
        "tab line 23": ["refused", "the line has a user where its command should be; add --system"],
    }
    job = Job.objects.get(name=dated)
    assert json.loads(job.kwargs) == {
        "command": "date +%F", "stdin": "first\nsecond\n", "env": {"MAILTO": "", "PATH": "/usr/bin:/bin"}}
    # The thirteenth of January is a Tuesday: cron runs on Friday the ninth as well.
    assert Job.objects.get(name=either).next_run_at == datetime(2026, 1, 9, tzinfo=UTC)


def test_lines_of_the_systems_crontab(app, tmp_path):
    path = tmp_path / "crontab"
    path.write_text("17 *\t* * *\troot    cd / && run-parts --report /etc/cron.hourly\n"
                    "*/5 * * * * www-data\n@daily root /srv/daily\n")
    hourly, daily = names_of("cd / && run-parts --report /etc/cron.hourly", "/srv/daily")

    found = report(app, "crontab", str(path), "--task", "shop.shell", "--name", "tab", "--system")

    unknown = "this app has no task shop.shell, so a worker of another one has to know it"
    assert found == {
        hourly: ["create cron 17 * * * * Europe/London", unknown],
        "tab line 2": ["refused", "the line has no command after its schedule"],
        daily: ["create cron @daily Europe/London", unknown],
    }
    assert json.loads(Job.objects.get(name=hourly).kwargs)["user"] == "root"
