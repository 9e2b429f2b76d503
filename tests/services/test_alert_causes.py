"""Each kind of alert from its cause to its receivers: something goes wrong in a running deployment, and the operator and
the tenant are told at their own addresses, by mail and by a request, and no other tenant is."""
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.core import mail

from chrono_beat import telemetry
from chrono_beat.core import alerts as rules
from chrono_beat.core import crowding
from chrono_beat.core.config import Config
from chrono_beat.core.records import RetryPolicy, WorkerReport
from chrono_beat.core.rollup import MINUTE_US, histogram
from chrono_beat.services import alerts, streaks, watch
from chrono_beat.services.alerts import Alerts
from chrono_beat.services.failures import FailureWatch
from chrono_beat.services.norms import Norms
from chrono_beat.services.reaper import Reaper
from chrono_beat.services.watch import Watch
from chrono_beat.targets import http
from chrono_beat.testing.memory_alerts import MemoryAlertStore
from chrono_beat.testing.memory_rows import MemoryRollup, MemoryTenant
from chrono_beat_django import alert_senders
from chrono_beat_django.models import Tenant
from tests.services.world import LEASE_US, MINUTE, NINE, SECOND, World, us
from tests.targets.receiver import DOCS

ONCE = {"schedule_kind": "once", "expression": NINE.isoformat()}
NEVER_AGAIN = RetryPolicy(1, True, 30.0, 2.0, 3600.0, 0.0)
OPERATOR = ""
RECEIVERS = (OPERATOR, "acme", "globex", "default")

pytestmark = pytest.mark.django_db


def rows_of_the_page():
    """Return the table of the documentation: for each kind who is told, noticed when, over when, what to do."""
    table = (DOCS / "alerts.rst").read_text().partition(".. list-table::")[2].partition("\n\nWhat agrees")[0]
    rows = [[cell.strip() for cell in row.split("\n     - ")] for row in table.split("\n   * - ")[2:]]
    return {kind.strip("`"): cells for kind, *cells in rows}


def mail_of(whose):
    return f"ops@{whose or 'operator'}.example"


def url_of(whose):
    return f"https://{whose or 'operator'}.example/hook"


class Scene:
    """A world with an operator and three tenants who have an address and a URL each; tenant acme has the jobs."""

    def __init__(self, posted, **world):
        self.world, self.alerts, self._posted = World(**world), MemoryAlertStore(), posted
        self.world.store.add_tenant(MemoryTenant(slug="acme", max_running=100))
        for slug in RECEIVERS[1:]:
            Tenant.objects.update_or_create(slug=slug, defaults={"alert_email": mail_of(slug), "alert_url": url_of(slug)})
        ways = alert_senders.ways(Config(alert_emails=(mail_of(OPERATOR),), alert_url=url_of(OPERATOR)))
        self.service = self.world.add(Alerts(self.world.store, self.alerts, ways, self.world.flow, self.world.config))
        self.unsubscribe = telemetry.subscribe(self.service.inbox.observe)

    def job(self, name="job", **fields):
        return self.world.job(name, **{"tenant": "acme", **fields})

    def told(self, whose):
        """Return what a receiver's program was told."""
        return [SimpleNamespace(**json.loads(body)) for url, body in self._posted if url == url_of(whose)]

    def quiet(self):
        return not self._posted and not mail.outbox

    def one(self, kind, tenant, whose=None):
        """Return what was told of the one alert of a kind, after a look at who was told.

        Args:
            whose: what this receiver was told; by default the tenant, of the deployment's alerts the operator.
        """
        whose = tenant if whose is None else whose
        both = {tenant} if rules.KINDS[kind].for_all else {OPERATOR, tenant}
        assert rows_of_the_page()[kind][0] == ("both" if tenant or rules.KINDS[kind].for_all else "operators")
        heard = {who: [each for each in self.told(who) if (each.kind, each.tenant) == (kind, tenant)] for who in RECEIVERS}
        assert {who: len(told) for who, told in heard.items() if told} == dict.fromkeys(both, 1)
        [found] = heard[whose]
        assert "?" not in found.text and "{" not in found.text
        return found

    def assert_each_heard_its_own(self):
        """No tenant heard of another or of the deployment, and every receiver had each message in both ways."""
        for who in RECEIVERS:
            told = self.told(who)
            assert who == OPERATOR or {each.tenant for each in told} <= {who}
            mailed = Counter(message.body for message in mail.outbox if message.to == [mail_of(who)])
            assert mailed == Counter(each.text for each in told)

    def open(self, kind):
        return [row.key.tenant for row in self.alerts.rows if row.key.kind == kind and row.closed_us is None]


@pytest.fixture
def scene_of(monkeypatch):
    made, posted = [], []
    monkeypatch.setattr(http, "call", lambda target, of, config: posted.append((target.url, target.body)))

    def make(**world):
        made.append(Scene(posted, **world))
        return made[-1]

    yield make
    for scene in made:
        scene.unsubscribe()
        scene.assert_each_heard_its_own()


def test_executions_that_fail_for_good(scene_of):
    scene = scene_of()
    for number in range(3):
        scene.job(f"job {number}", task="t.fails", retry=NEVER_AGAIN, **ONCE)
    scene.world.answers["t.fails"] = ("failed", {})
    scene.world.dispatcher()

    scene.world.run_until(us() + 5 * SECOND)

    assert scene.one("dead_letter", "acme").subject == "error"
    assert scene.alerts.rows[0].count == 3


def test_a_run_that_hangs_while_five_occurrences_find_it_active(scene_of):
    scene = scene_of()
    job = scene.job(expression="10", concurrency="forbid")
    scene.world.working = False
    scene.world.dispatcher()

    scene.world.run_until(us() + SECOND)
    [hung] = scene.world.queue.draw(0, "chrono", 10, "w", 10 * LEASE_US)
    scene.world.begin(0, hung)
    scene.world.run_until(us() + 45 * SECOND)
    assert scene.quiet()
    scene.world.run_until(us() + 55 * SECOND)

    told = scene.one("skipped", "acme")
    assert (told.subject, told.detail["times"]) == (job, 5)


def test_occurrences_that_nobody_fired(scene_of):
    scene = scene_of()
    scene.job("nightly", next_run_us=us(hours=-1), anchor_us=us(hours=-1))
    scene.world.dispatcher()

    scene.world.run(seconds=20)

    assert scene.one("missed", "acme").detail["name"] == "nightly"


def test_occurrences_that_were_claimed_in_time_by_a_dispatcher_that_died(scene_of):
    """The operator is told once of all, each tenant of its own."""
    scene = scene_of()
    for number in range(3):
        scene.job(f"job {number}", misfire="skip", **ONCE)
    scene.job("theirs", tenant="default", misfire="skip", **ONCE)
    scene.world.dispatcher("a")

    scene.world.run_until(us() - SECOND)
    assert scene.world.states() == {"scheduled": 4}
    scene.world.kill("a")
    scene.world.run(seconds=90)
    scene.world.dispatcher("b")
    scene.world.run(seconds=30)

    assert scene.world.states() == {"missed": 4}
    told = [scene.one("publish_missed", who).detail for who in (OPERATOR, "acme", "default")]
    assert told == [{"executions": 4}, {"executions": 3}, {"executions": 1}]
    assert [alert.kind for alert in scene.told(OPERATOR) if alert.tenant] == []


def test_executions_that_no_worker_began_in_their_time(scene_of):
    scene = scene_of()
    jobs = [scene.job(f"job {number}", expires_after_seconds=60.0, **ONCE) for number in range(3)]
    scene.world.working = False
    scene.world.dispatcher()

    scene.world.run_until(us() + 2 * MINUTE)
    scene.world.working = True
    scene.world.run(seconds=5)

    assert scene.world.states() == {"expired": 3} and not scene.world.runs
    told = scene.one("expired", "acme")
    assert told.count == 3 and told.detail["job_id"] in jobs and told.detail["job_id"] in told.text


def test_a_tenant_whose_runs_fail_until_they_do_not(scene_of):
    scene = scene_of()
    scene.world.store.add_tenant(MemoryTenant(slug="acme", failure_threshold=0.5, max_running=100))
    for number in range(20):
        scene.job(f"job {number}", task="t.fails", retry=RetryPolicy(3, True, 120.0, 2.0, 3600.0, 0.0), **ONCE)
    scene.world.answers["t.fails"] = ("failed", {})
    scene.world.dispatcher()
    scene.world.add(FailureWatch(scene.world.store, scene.world.flow, scene.world.config))

    scene.world.run_until(us() + 40 * SECOND)
    assert scene.one("retries_held", "acme").detail == {"failed": 20, "ended": 20}
    scene.world.working = False
    scene.world.run_until(us() + 6 * MINUTE)

    assert not scene.open("retries_held")


def late_minutes(scene, tenant, ago, starts, late_us):
    """Write down what a tenant did in a minute so long ago."""
    minute = scene.world.now_us() // MINUTE_US * MINUTE_US - ago * MINUTE_US
    scene.world.store.rollups[tenant, minute] = MemoryRollup(started=starts, lateness=histogram([late_us] * starts))


def test_a_lateness_objective_that_too_few_workers_break(scene_of):
    scene = scene_of()
    scene.world.store.add_tenant(MemoryTenant(slug="acme", lateness_objective_seconds=2.0, max_running=100))
    scene.job(expression="10")
    scene.world.working = False
    scene.world.dispatcher()
    scene.world.add(Norms(scene.world.store, scene.world.flow))

    scene.world.run_until(us() + 50 * SECOND)
    scene.world.working = True
    scene.world.run_until(us() + 130 * SECOND)

    assert scene.one("lateness", "acme").detail["objective"] == 2.0


def test_a_tenant_that_another_one_crowds(scene_of):
    scene = scene_of()
    for ago in range(6, 60):
        late_minutes(scene, "acme", ago, 10, SECOND // 5)
        late_minutes(scene, "globex", ago, 5, SECOND // 5)
    for ago in range(1, 6):
        late_minutes(scene, "acme", ago, 10, 4 * SECOND)
        late_minutes(scene, "globex", ago, 400, 9 * SECOND)
    scene.world.add(Norms(scene.world.store, scene.world.flow))

    scene.world.run(seconds=5)

    assert "globex" in scene.one("crowded", "acme", OPERATOR).text
    assert "globex" not in json.dumps(vars(scene.one("crowded", "acme")))


def test_a_task_that_no_worker_knows_before_its_jobs_are_due(scene_of):
    scene = scene_of()
    scene.job("nightly", task="t.gone", next_run_us=us() + 5 * MINUTE)
    scene.job("mine", task="t.gone", next_run_us=us() + 5 * MINUTE)
    scene.job("theirs", tenant="default", task="t.gone", next_run_us=us() + 5 * MINUTE)
    scene.world.add(Watch(scene.world.store, scene.world.queue, scene.world.flow, scene.world.config))
    scene.world.dispatcher()

    scene.world.run_until(us())

    assert [scene.one("no_worker", who).detail["jobs"] for who in (OPERATOR, "acme", "default")] == [3, 2, 1]
    assert "theirs" not in scene.one("no_worker", "acme").text
    assert len(scene.told(OPERATOR)) == 1
    assert not scene.world.store.rows()                      # nothing was due yet

    worker = WorkerReport("w", ["chrono"], ["t.gone"], 1, "prefork", 0)
    scene.world.queue.report_worker(worker, 600 * SECOND)
    scene.world.run(seconds=20)

    assert not scene.open("no_worker")


def test_partitions_whose_dispatcher_died_until_another_takes_them(scene_of):
    scene = scene_of()
    scene.world.dispatcher("a")
    scene.world.run(seconds=60)
    assert scene.quiet()

    scene.world.kill("a")
    scene.world.run(seconds=120)
    assert scene.one("no_owner", OPERATOR).detail == {"partitions": 8}
    scene.world.dispatcher("b")
    scene.world.run(seconds=60)

    assert not scene.open("no_owner")


@pytest.mark.parametrize("off", [{"redis_off_us": 20 * SECOND}, {}])
def test_clocks_that_differ(scene_of, off):
    scene = scene_of(**off)
    scene.world.dispatcher(off_us=0 if off else 20 * SECOND)

    scene.world.run(seconds=60)

    told = [alert.subject.split()[0] for alert in scene.told(OPERATOR) if alert.kind == "clock_skew"]
    assert sorted(told) == (["redis"] if off else ["database", "redis"])


def test_workers_that_die_again_and_again(scene_of):
    """Every reap is another delivery of the same execution; one that is reaped too often is a dead letter."""
    scene = scene_of(reap_cap=2)
    for number in range(6):
        scene.job(f"job {number}", **ONCE)
    scene.world.working = False
    scene.world.dispatcher()
    scene.world.add(Reaper(scene.world.queue, scene.world.flow, scene.world.config, scene.world.store))
    scene.world.add(Norms(scene.world.store, scene.world.flow))

    scene.world.run_until(us() + SECOND)
    for _ in range(3):
        for delivery in scene.world.queue.draw(0, "chrono", 100, "dies", LEASE_US):
            scene.world.begin(0, delivery)
        scene.world.run(us=LEASE_US + 5 * SECOND)
    scene.world.run(seconds=90)

    assert scene.one("reap_cap", OPERATOR).count >= 1
    assert scene.one("dead_letter", "acme").subject == "reap_cap"
    told = scene.one("duplicates", "acme").detail
    assert told == {"duplicates": 12, "deliveries": 18}
    assert scene.one("reaps", "acme").detail["reaps"] >= 5


def test_a_job_that_cannot_be_planned(scene_of):
    scene = scene_of()
    scene.job("broken", expression="no number")
    scene.world.dispatcher()

    scene.world.run(seconds=60)

    assert scene.one("quarantined", "acme").detail == {"name": "broken"}


def test_a_quiet_deployment_alerts_nobody(scene_of):
    scene = scene_of()
    scene.job(expression="10")
    scene.world.dispatcher()
    store, flow, config = scene.world.store, scene.world.flow, scene.world.config
    for service in (Watch(store, scene.world.queue, flow, config), FailureWatch(store, flow, config), Norms(store, flow)):
        scene.world.add(service)
    tasks = [job.task for job in store.jobs.values()]
    scene.world.queue.report_worker(WorkerReport("w", ["chrono"], tasks, 1, "prefork", 0), 600 * SECOND)

    scene.world.run_until(us() + 2 * MINUTE)

    assert scene.quiet() and scene.world.runs


def test_a_process_that_notices_more_than_it_can_keep(scene_of):
    scene = scene_of()
    for number in range(rules.MAX_WAITING + 1):
        scene.job(f"job {number}", expression="no number")
    scene.world.dispatcher()
    scene.service.step, step = (lambda now_us: SECOND), scene.service.step      # the database is slow to write

    scene.world.run(seconds=60)
    scene.service.step = step
    scene.world.run(seconds=5)

    assert scene.one("overflow", OPERATOR).count >= 1


def seconds(us):
    return us // SECOND


@pytest.mark.parametrize(("kind", "says"), [
    ("skipped", f"{streaks.ALERT_AT} occurrences"),
    ("lateness", f"of {seconds(crowding.RECENT_US) // 60} minutes"),
    ("no_worker", f"within {seconds(watch.AHEAD_US) // 60} minutes"),
    ("no_worker", f"for {seconds(watch.MISSING_US)} s"),
    ("no_owner", f"for {seconds(alerts.UNOWNED_AFTER_US)} s"),
    ("duplicates", f"{crowding.LEAST_DUPLICATES} or more"),
    ("duplicates", f"{crowding.LEAST_DUPLICATES_SHARE:.0%}".replace("%", " %")),
    ("duplicates", f"{crowding.TIMES:.0f} times"),
    ("reaps", f"{crowding.LEAST_REAPS} or more"),
    ("reaps", f"{crowding.TIMES:.0f} times"),
    ("crowded", f"{crowding.TIMES:.0f} times"),
    ("crowded", f"{seconds(crowding.LEAST_RISE_US)} s more"),
    ("overflow", f"{rules.MAX_WAITING:,}"),
])
def test_the_page_names_the_thresholds_of_the_code(kind, says):
    assert says in rows_of_the_page()[kind][1]


def test_the_page_has_every_kind_with_all_its_columns():
    rows = rows_of_the_page()

    assert list(rows) == list(rules.KINDS)
    assert {len(list(filter(None, cells))) for cells in rows.values()} == {4}


def test_every_kind_has_its_cause_tried_here():
    source = Path(__file__).read_text()

    assert not [kind for kind in rules.KINDS if f'scene.one("{kind}"' not in source and f'== "{kind}"' not in source]
